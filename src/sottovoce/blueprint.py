"""The blueprint: everything that both ends derive from a plan and the facts about records.

Reference, basis, context statistic, schedule and releases follow from the plan and the facts alone; client,
server and onboarding each rebuild the same blueprint.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce.context import Statistic, open_statistic
from sottovoce.data import Facts
from sottovoce.gradients import check_recordwise
from sottovoce.models import open_model
from sottovoce.plan import Plan
from sottovoce.privacy import accounting, schedule
from sottovoce.privacy.ledger import Budget, Kind
from sottovoce.release import Model, Release, open_releases, spending
from sottovoce.seeding import derived_seed
from sottovoce.subspace import Basis, open_basis


def participant_name(index: int) -> str:
    """The name under which a participant's releases are charged."""
    return f"participant-{index}"


@dataclass(frozen=True)
class Blueprint:
    """A resolved plan (`gradient_records` > 0) with the objects it stands for, all public."""

    plan: Plan
    facts: Facts
    model: Model
    statistic: Statistic
    schedule: np.ndarray

    @cached_property
    def releases(self) -> dict[Kind, Release]:
        """The releases that a client makes, by kind; a public context is not among them."""
        return open_releases(self.plan, self.statistic, self.model, self.releases_max)

    @property
    def module(self) -> nn.Module:
        """The architecture of every personal model."""
        return self.model.module

    @property
    def basis(self) -> Basis:
        """P."""
        return self.model.basis

    @cached_property
    def reference_digest(self) -> str:
        """A fingerprint of the module's parameters and their names: what a run's coefficients refer to."""
        named = dict(self.module.named_parameters())
        digest = hashlib.sha256(",".join(named).encode())
        digest.update(self.model.reference.cpu().numpy().tobytes())
        fixed = {name: p for name, p in named.items() if not p.requires_grad}
        for _, tensor in sorted({**fixed, **dict(self.module.named_buffers())}.items()):
            digest.update(tensor.detach().cpu().numpy().tobytes())
        return digest.hexdigest()[:32]

    @property
    def coefficients(self) -> int:
        """Dimension of a gradient release: k, or the whole model for methods that adapt all of it."""
        return self.basis.coefficients

    @property
    def releases_max(self) -> int:
        """T_max, gradient releases of the busiest participant."""
        return int(schedule.counts(self.schedule, self.plan.participants).max())

    @property
    def contexts_after(self) -> int:
        """Rounds after which contexts are released: 0, or where they are made with a model, those before."""
        return self.plan.context_round - 1 if self.plan.context_traits.uses_model else 0

    @property
    def sigma(self) -> float:
        """σ of a gradient release."""
        return self.releases["gradient"].sigma

    @property
    def sigma_context(self) -> float:
        """σ of a context, also where the context is public and none is released."""
        return self.sigma * self.plan.context_noise

    @property
    def budget(self) -> Budget:
        """What a participant may have spent when its last release has left."""
        plan = self.plan
        return Budget(epsilon=plan.budget or plan.epsilon, delta=plan.delta, accounting=plan.accounting)

    def epsilon(self, counts: Mapping[Kind, int]) -> float:
        """ε after so many releases of each kind."""
        return accounting.epsilon(spending(self.releases, counts), self.plan.delta, self.plan.accounting)

    def participant_counts(self, gradients: int) -> dict[Kind, int]:
        """Releases of a participant that the schedule calls so often."""
        return {"gradient": gradients, **self.future_counts}

    @property
    def future_counts(self) -> dict[Kind, int]:
        """Releases of a future client: its context, if the plan has one."""
        return {"context": 1} if self.plan.releases_context else {}

    def theta(self, coefficients: Tensor) -> Tensor:
        """Model parameters θ_ref + P a, (…, d)."""
        return self.model.theta(coefficients)

    def to(self, device: str) -> Blueprint:
        """The same blueprint with module and basis on a device."""
        model = Model.of(self.module.to(torch.device(device)), self.basis.to(device))
        return Blueprint(self.plan, self.facts, model, self.statistic, self.schedule)


def draw(plan: Plan, facts: Facts, module: nn.Module | None = None) -> Blueprint:
    """The blueprint of a resolved plan; `module` replaces the plan's own model, from Python."""
    if module is None:
        module = open_model(plan.model, facts.shape, facts.classes, derived_seed(plan.seed, "reference"))
    else:
        module = copy.deepcopy(module).float().eval()  # the caller's own stays as it is
    check_recordwise(module, facts)
    kind = "identity" if plan.traits.whole_model else plan.basis
    basis = open_basis(kind, module, plan.coefficients, derived_seed(plan.seed, "basis"))
    order = schedule.open_schedule(
        plan.schedule,
        clients=plan.participants,
        per_round=plan.clients_per_round,
        rounds=plan.rounds,
        seed=derived_seed(plan.seed, "schedule"),
    )
    statistic = open_statistic(plan.context, facts.shape, facts.classes, plan.context_groups)
    return Blueprint(plan, facts, Model.of(module, basis), statistic, order)


def client_secret(master: bytes, client: str) -> bytes:
    """A client's 32-byte channel secret, derived from the master secret of a simulated run."""
    return hmac.digest(master, b"sottovoce client secret:" + client.encode(), "sha256")


def seeded_master(plan: Plan) -> bytes:
    """The master secret of a seeded simulation: reproducible, and therefore no secret."""
    return hashlib.sha256(f"sottovoce:{plan.seed}:master".encode()).digest()
