"""The blueprint: everything that both ends derive from a plan and the facts about records.

Reference, basis, context statistic, schedule and releases follow from the plan and the facts alone; client,
server and onboarding each rebuild the same blueprint.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce.blending import Blending, blending, counted_sizes, recipe
from sottovoce.calibration import Derivatives, LastLayer
from sottovoce.catalog import TASKS, Kind
from sottovoce.central import RoundSum
from sottovoce.centring import Inputs, check_linear
from sottovoce.context import MeanProbability, Statistic, open_statistic
from sottovoce.cores import derived_seed
from sottovoce.data import Facts
from sottovoce.downlink import FLOAT_BITS, Downlink
from sottovoce.errors import SottovoceError
from sottovoce.gradients import check_outputs, check_recordwise
from sottovoce.models import ModelError, import_model, made_at_home, model_options, open_model, trainable
from sottovoce.plan import Phase, Plan, phases
from sottovoce.privacy import accounting, call_counts, open_schedule
from sottovoce.privacy.accounting import Budget
from sottovoce.release import Model, Release, open_future_releases, open_releases, spending
from sottovoce.shared import Shares, Sharing
from sottovoce.subspace import Basis, Identity, open_basis
from sottovoce.tasks import open_task


def participant_name(index: int) -> str:
    """The name under which a participant's releases are charged."""
    return f"participant-{index}"


@dataclass(frozen=True)
class Blueprint:
    """A resolved plan with the objects it stands for, all public.

    `sizes` are the participants' m_g and `context_sizes` their m_c, in records, or in units where several
    records belong together.
    """

    plan: Plan
    facts: Facts
    model: Model
    statistic: Statistic
    schedule: np.ndarray
    sizes: tuple[int, ...]
    context_sizes: tuple[int, ...]

    _opened: dict[tuple[int, int], dict[Kind, Release]] = field(default_factory=dict, init=False, repr=False)

    def context_size(self, participant: int | None) -> int:
        """m_c of a participant, or of a future client (None): as many as the smallest of them has."""
        return min(self.context_sizes) if participant is None else self.context_sizes[participant]

    def releases_of(self, participant: int | None) -> dict[Kind, Release]:
        """The releases of a participant, by kind; a public context is not among them.

        None stands for a future client, whose one release is a context; where contexts of participants get
        a share of their budget, it has all of ε for its own.
        """
        if participant is None and self.plan.releases_context and self.plan.context_share:
            return self._future_releases
        records = max(self.sizes) if participant is None else self.sizes[participant]
        sizes = records, self.context_size(participant)
        if sizes not in self._opened:
            self._opened[sizes] = open_releases(
                self.plan,
                self.statistic,
                self.facts.classes,
                self.model,
                derivatives=self.derivatives,
                inputs=self.inputs,
                records=records,
                gradients=self.releases_max,
                context_records=sizes[1],
                once=self.once,
                round_sum=self.round_sum,
                counted=self.counted[self.sizes.index(records)],
                largest=max(self.sizes),
            )
        return self._opened[sizes]

    @cached_property
    def _future_releases(self) -> dict[Kind, Release]:
        predicted = self.plan.context_traits.predicted_for_future
        statistic = MeanProbability(self.facts.classes) if predicted else self.statistic
        return open_future_releases(self.plan, statistic, self.model, context_records=self.context_size(None))

    @property
    def releases(self) -> dict[Kind, Release]:
        """The releases of a client where all hold alike many records, and of future clients."""
        return self.releases_of(None)

    @cached_property
    def counted(self) -> tuple[int, ...]:
        """For how many records each participant's release counts in weights."""
        return counted_sizes(self.plan, self.sizes)

    @cached_property
    def blending(self) -> Blending:
        """How much each participant's release counts, and in which part of its coefficients."""
        found = recipe(self.plan, self.facts)
        if self.round_sum is not None:
            own = (self.sigma / self.round_sum.weights(self.counted)).tolist()
            total = self.round_sum.total(self.sigma) if self.sharing is None else self.sharing.total
            return blending(self.plan, self.counted, own, self.releases_max, total, found)
        sigmas = [self.releases_of(i)["gradient"].sigma for i in range(self.plan.participants)]
        return blending(self.plan, self.counted, sigmas, self.releases_max, recipe=found)

    @cached_property
    def derivatives(self) -> Derivatives | None:
        """What a calibration is a mean of; None where there is none."""
        return Derivatives(open_task(self.facts)) if self.plan.calibration else None

    @cached_property
    def inputs(self) -> Inputs | None:
        """What a centre is a mean of; None where there is none."""
        return Inputs(math.prod(self.facts.shape)) if self.plan.centring else None

    @cached_property
    def round_sum(self) -> RoundSum | None:
        """The public numbers of noise in a sum; None where each release has its own."""
        return RoundSum.of(self.schedule, self.counted) if self.plan.place.summed else None

    @cached_property
    def sharing(self) -> Sharing | None:
        """The public numbers of noise that clients share; None where they do not."""
        channel = self.releases_of(0)["gradient"].channel
        return channel.sharing if isinstance(channel, Shares) else None

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Who releases what, when, and with which model, in order."""
        return phases(self.plan)

    @cached_property
    def once(self) -> tuple[Phase, ...]:
        """What all participants release once."""
        return tuple(phase for phase in self.phases if phase.by == "participants")

    @cached_property
    def future(self) -> tuple[Phase, ...]:
        """What future clients release."""
        return tuple(phase for phase in self.phases if phase.by == "future")

    @property
    def uniform(self) -> bool:
        """Returns whether all participants average over alike many records, and so add the same noise."""
        return len(set(self.sizes)) == 1

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

    def downlink(self, kind: Kind) -> Downlink:
        """Returns how coefficients travel with the request for a release: coded in rounds, if planned.

        In rounds the centre of inputs is behind them, where there is one.
        """
        if kind != "gradient":
            return Downlink(self.coefficients)
        return Downlink(self.coefficients + (self.inputs.size if self.inputs else 0), self.plan.downlink_bits)

    @property
    def once_downlink_bytes(self) -> int:
        """Bytes of the coefficients that participants are sent besides, for what they release once."""
        once = self.plan.participants * sum(phase.model != "none" for phase in self.once)
        return once * self.coefficients * FLOAT_BITS // 8

    @property
    def releases_max(self) -> int:
        """T_max, gradient releases of the busiest participant."""
        return int(call_counts(self.schedule, self.plan.participants).max())

    @property
    def sigma(self) -> float:
        """σ of a gradient release, or of their sum; of the smallest participant's, where they differ."""
        return self.releases_of(int(np.argmin(self.sizes)))["gradient"].sigma

    @property
    def sigma_context(self) -> float:
        """σ of a context, also where the context is public and none is released; the largest of all."""
        if self.plan.releases_context:
            return self.releases_of(int(np.argmin(self.context_sizes)))["context"].sigma
        return self.sigma * self.plan.context_noise

    @property
    def budget(self) -> Budget:
        """What a participant may have spent when its last release has left."""
        plan = self.plan
        return Budget(epsilon=plan.budget or plan.epsilon, delta=plan.delta, accounting=plan.accounting)

    def epsilon(
        self, counts: Mapping[Kind, int], participant: int | None = None, *, removal: bool = False
    ) -> float:
        """ε of a client after so many releases of each kind; for `removal` that of one record added or
        removed, as much other work states it."""
        spent = spending(self.releases_of(participant), counts, removal=removal)
        return accounting.epsilon(spent, self.plan.delta, self.plan.accounting)

    def participant_counts(self, gradients: int) -> dict[Kind, int]:
        """Releases of a participant that the schedule calls so often."""
        return {"gradient": gradients, **{phase.kind: 1 for phase in self.once}}

    @property
    def future_counts(self) -> dict[Kind, int]:
        """Releases of a future client: its context, if the plan has one."""
        return {phase.kind: 1 for phase in self.future}

    def theta(self, coefficients: Tensor) -> Tensor:
        """Model parameters θ_ref + P a, (…, d)."""
        return self.model.theta(coefficients)

    def to(self, device: str) -> Blueprint:
        """The same blueprint with module and basis on a device."""
        moved = self.module.to(torch.device(device)), self.basis.to(device)
        model = Model.of(*moved, self.model.losses)
        return replace(self, model=model)


def build(
    plan: Plan, facts: Facts, module: nn.Module | str | None = None, sizes: Sequence[int] = ()
) -> Blueprint:
    """The blueprint of a resolved plan, whose model is a built-in one unless `module` says otherwise.

    `module` is the caller's own, from Python, or the name of the plan's model as this machine's owner gave
    it, 'package.module:function' included. The plan's word alone imports nothing. `sizes` are the
    participants' training records (units) where the plan leaves `gradient_records` or `context_records` to
    them.
    """
    if not plan.clip or not plan.bias_scale:
        raise SottovoceError("clip=0 and bias_scale=0 leave them to a recipe: complete the plan first")
    given = module
    if not isinstance(given, nn.Module):
        if given is not None and given != plan.model:
            raise ModelError(
                f"the plan is about model={plan.model}, not {given}: name that one, if you trust it"
            )
        open_ = open_model if given is None else import_model
        seed = derived_seed(plan.seed, "reference")
        given = open_(plan.model, facts.shape, facts.classes, seed, model_options(plan))
    if made_at_home(given):  # asked of what was given: a copy of its parameters has no mark
        raise ModelError(
            "this module was finished at home, on records without noise, and no run starts from it: give "
            "it as it was before"
        )
    # The caller's own stays as it is.
    module = copy.deepcopy(given).float().eval() if given is module else given
    task = open_task(facts)
    check_outputs(module, task)
    check_recordwise(module, facts)
    if plan.context_traits.class_shares and not TASKS[facts.task].class_shares:
        raise SottovoceError(
            f"context={plan.context} counts classes, but the task is '{facts.task}': set context=public"
        )
    size = sum(parameter.numel() for parameter in trainable(module))
    # With k = d a signed partition is a permutation of the parameters: the same subspace, slower.
    kind = "identity" if plan.traits.whole_model or plan.coefficients in (0, size) else plan.basis
    basis = open_basis(kind, module, plan.coefficients, derived_seed(plan.seed, "basis"))
    if plan.calibration:
        Derivatives(task)
    if plan.calibration or plan.centring or plan.bias_scale != 1:
        layer = LastLayer.of(module, basis, facts)
        if plan.centring:
            check_linear(module, layer, facts)
    if isinstance(basis, Identity):
        basis = replace(basis, biases=facts.classes, bias_scale=plan.bias_scale)
    order = open_schedule(
        plan.schedule,
        clients=plan.participants,
        per_round=plan.clients_per_round,
        rounds=plan.rounds,
        seed=derived_seed(plan.seed, "schedule"),
    )
    statistic = open_statistic(plan.context, facts.shape, facts.classes, plan.context_groups)
    counts = _counts("gradient_records", plan, sizes)
    contexts = _counts("context_records", plan, sizes if plan.releases_context else counts)
    return Blueprint(plan, facts, Model.of(module, basis, task.losses), statistic, order, counts, contexts)


def _counts(name: str, plan: Plan, sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns how many records each participant averages over, as the plan says or as many as it has."""
    fixed: int = getattr(plan, name)
    counts = (fixed,) * plan.participants if fixed else tuple(sizes)
    if len(counts) != plan.participants:
        raise SottovoceError(f"{name}=0 leaves their number to the participants: state their sizes")
    return counts


def client_secret(master: bytes, client: str) -> bytes:
    """A client's 32-byte channel secret, derived from the master secret of a simulated run."""
    return hmac.digest(master, b"sottovoce client secret:" + client.encode(), "sha256")


def seeded_master(plan: Plan) -> bytes:
    """The master secret of a seeded simulation: reproducible, and therefore no secret."""
    return hashlib.sha256(f"sottovoce:{plan.seed}:master".encode()).digest()
