"""The blueprint: everything that both ends derive from a plan without seeing a record.

Reference, basis, context statistic, schedule, noise and channels follow from the plan, the shape of a
record and the number of classes alone; client, server and onboarding each rebuild the same blueprint.
The noise model of a run is decided here, in `calibrated`, and nowhere else.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce.channel import Channel, open_channel
from sottovoce.channel.noiseless import Noiseless
from sottovoce.context import Statistic, open_statistic
from sottovoce.errors import SottovoceError
from sottovoce.gradients import sensitivity as gradient_sensitivity
from sottovoce.models import flat_parameters, open_model
from sottovoce.plan import Plan
from sottovoce.privacy import accounting, schedule
from sottovoce.privacy.ledger import Budget
from sottovoce.subspace import Basis, Kind, open_basis


def derived_seed(seed: int, purpose: str) -> int:
    """An independent 63-bit seed for one purpose of a public seed."""
    return int.from_bytes(hashlib.sha256(f"sottovoce:{seed}:{purpose}".encode()).digest()[:8], "big") >> 1


def participant_name(index: int) -> str:
    """The name under which a participant's releases are charged."""
    return f"participant-{index}"


@dataclass(frozen=True)
class Blueprint:
    """A resolved plan (`gradient_records` > 0) with the objects it stands for, all public."""

    plan: Plan
    shape: tuple[int, ...]
    classes: int
    module: nn.Module
    basis: Basis
    statistic: Statistic
    schedule: np.ndarray
    sigma: float
    sigma_context: float

    @cached_property
    def reference(self) -> Tensor:
        """θ_ref (d,)."""
        return flat_parameters(self.module)

    @cached_property
    def reference_digest(self) -> str:
        """A fingerprint of the module's parameters and their names: what a run's coefficients refer to."""
        names = ",".join(name for name, _ in self.module.named_parameters())
        digest = hashlib.sha256(names.encode())
        digest.update(self.reference.cpu().numpy().tobytes())
        return digest.hexdigest()[:32]

    @property
    def coefficients(self) -> int:
        """Dimension of a gradient release: k, or the whole model for `global` and `full`."""
        return self.basis.coefficients

    @property
    def releases_max(self) -> int:
        """T_max, gradient releases of the busiest participant."""
        return int(schedule.counts(self.schedule, self.plan.participants).max())

    @property
    def gradient_sensitivity(self) -> float:
        """Δ_g."""
        return gradient_sensitivity(self.plan.clip, self.plan.gradient_records)

    @property
    def context_sensitivity(self) -> float:
        """Δ_c."""
        return self.statistic.sensitivity(self.plan.context_records)

    @property
    def budget(self) -> Budget:
        """What a participant may have spent when its last release has left."""
        plan = self.plan
        return Budget(epsilon=plan.budget or plan.epsilon, delta=plan.delta, accounting=plan.accounting)

    def epsilon(self, releases: int, *, context: bool) -> float:
        """ε after so many gradient releases, with or without the context before them."""
        spent = releases * (self.gradient_sensitivity / self.sigma) ** 2 if releases else 0.0
        if context:
            spent += (self.context_sensitivity / self.sigma_context) ** 2
        return accounting.epsilon(spent, self.plan.delta, self.plan.accounting)

    @cached_property
    def gradient_channel(self) -> Channel | Noiseless:
        return _channel(self.plan, self.coefficients, self.sigma)

    @cached_property
    def context_channel(self) -> Channel | Noiseless:
        return _channel(self.plan, self.statistic.size, self.sigma_context)

    def theta(self, coefficients: Tensor) -> Tensor:
        """Model parameters θ_ref + P a, (…, d)."""
        return self.reference + self.basis.lift(coefficients)

    def to(self, device: str) -> Blueprint:
        """The same blueprint with module and basis on a device."""
        return replace(self, module=self.module.to(torch.device(device)), basis=self.basis.to(device))


def draw(plan: Plan, shape: tuple[int, ...], classes: int, module: nn.Module | None = None) -> Blueprint:
    """The blueprint of a resolved plan; `module` replaces the plan's own model, from Python."""
    if module is None:
        module = open_model(plan.model, shape, classes, derived_seed(plan.seed, "reference"))
    else:
        module = copy.deepcopy(module).float().eval()  # the caller's own stays as it is
    size = sum(parameter.numel() for parameter in module.parameters())
    full = plan.method in ("global", "full")
    if not full and plan.coefficients > size:
        raise SottovoceError(
            f"coefficients={plan.coefficients} is more than the model's {size} parameters: "
            f"set coefficients to at most {size}"
        )
    kind: Kind = "identity" if full else "structured" if plan.basis == "structured" else "unstructured"
    basis = open_basis(kind, module, plan.coefficients, derived_seed(plan.seed, "basis"))
    statistic = open_statistic(plan.context, shape, classes, plan.context_groups)
    rounds = schedule.random if plan.schedule == "random" else schedule.balanced
    order = rounds(
        plan.participants, plan.clients_per_round, plan.rounds, seed=derived_seed(plan.seed, "schedule")
    )
    sigma = calibrated(plan, statistic, int(schedule.counts(order, plan.participants).max()))
    return Blueprint(
        plan=plan,
        shape=shape,
        classes=classes,
        module=module,
        basis=basis,
        statistic=statistic,
        schedule=order,
        sigma=sigma,
        sigma_context=sigma * plan.context_noise,
    )


def calibrated(plan: Plan, statistic: Statistic, releases_max: int) -> float:
    """σ of a gradient release such that the busiest participant spends the plan's ε (Eq. 16).

    Controls with a public context get the σ they would have with one, so that they differ in one thing
    only; `global` has no context to pay for.
    """
    if not plan.private:
        return 0.0
    squared = releases_max * gradient_sensitivity(plan.clip, plan.gradient_records) ** 2
    if plan.method != "global":
        squared += (statistic.sensitivity(plan.context_records) / plan.context_noise) ** 2
    sigma = accounting.calibrate(
        epsilon=plan.epsilon, delta=plan.delta, accounting=plan.accounting, squared_sensitivity=squared
    )
    # A ledger adds releases up one by one; the rounding of its sum must not pass the target.
    return sigma * (1 + 1e-12)


def _channel(plan: Plan, size: int, sigma: float) -> Channel | Noiseless:
    if not plan.private:
        return Noiseless(size)
    options = {"lattice": plan.lattice} if plan.channel.startswith("lrsuq") else {}
    return open_channel(plan.channel, size=size, sigma=sigma, **options)


def client_secret(master: bytes, client: str) -> bytes:
    """A client's 32-byte channel secret, derived from the master secret of a simulated run."""
    return hmac.digest(master, b"sottovoce client secret:" + client.encode(), "sha256")


def seeded_master(plan: Plan) -> bytes:
    """The master secret of a seeded simulation: reproducible, and therefore no secret."""
    return hashlib.sha256(f"sottovoce:{plan.seed}:master".encode()).digest()
