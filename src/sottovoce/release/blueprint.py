"""The blueprint: everything that both ends derive from a plan and the facts about records.

Reference, basis, context statistic, schedule and releases follow from the plan and the facts alone; client,
server and onboarding each rebuild the same blueprint.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce.channel import Channel, channel_class, open_channel
from sottovoce.channel.direct import Noiseless
from sottovoce.data import Facts, Records
from sottovoce.errors import SottovoceError
from sottovoce.gradients import check_outputs, check_recordwise, clipped_mean, recordwise_logits, sensitivity
from sottovoce.machine.determinism import derived_seed
from sottovoce.models import Model
from sottovoce.models.architectures import import_model, model_options, open_model
from sottovoce.models.bases import Basis, Identity, open_basis
from sottovoce.models.imports import ModelError, made_at_home
from sottovoce.models.parameters import trainable
from sottovoce.models.tasks import open_task
from sottovoce.plan import Plan
from sottovoce.plan.catalog import TASKS, Kind
from sottovoce.plan.recipes import Recipe, open_recipe
from sottovoce.plan.schedule import call_counts, open_schedule
from sottovoce.privacy import accounting
from sottovoce.privacy.accounting import Budget
from sottovoce.release.downlink import FLOAT_BITS, Downlink
from sottovoce.release.kind import Release, spending
from sottovoce.release.once import Phase, Statistic
from sottovoce.release.once.calibration import Derivatives, LastLayer, check_probabilities
from sottovoce.release.once.centre import Inputs, check_linear, told_apart
from sottovoce.release.once.context import Confusion, MeanProbability, open_statistic
from sottovoce.release.places.server import RoundSum
from sottovoce.release.places.shared import Shares, Sharing
from sottovoce.release.recipe import Blending, blending, bounds, counted_sizes
from sottovoce.release.sent import cut, longest_sent


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
                counted=self.counted[self.sizes.index(records)] if self.plan.place.summed else 0,
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
        found = bounds(self.plan, self.facts)
        together, own = self._noise
        return blending(self.plan, self.counted, own.tolist(), self.releases_max, together, found)

    @cached_property
    def _noise(self) -> tuple[float | None, np.ndarray]:
        """What moves a client's coefficients in a round beside signals: the noise of the sum, if there is
        one, and that of each participant's own release."""
        if self.round_sum is None:
            sigmas = [self.releases_of(i)["gradient"].sigma for i in range(self.plan.participants)]
            return None, np.array(sigmas)
        total = self.round_sum.total(self.sigma) if self.sharing is None else self.sharing.total
        return total, self.sigma / self.round_sum.weights(self.counted)

    @cached_property
    def longest_sent(self) -> float:
        """The length to which coefficients that a server sends are cut."""
        (together, own), total = self._noise, self.round_sum
        return longest_sent(
            self.plan,
            self.blending,
            (float(own.max()) if together is None else together, own),
            planned=1.0 if total is None else total.most / total.records,
            size=self.coefficients,
            classes=self.facts.classes,
            bias_scale=self.basis.bias_scale if isinstance(self.basis, Identity) else 1.0,
        )

    def cut(self, sent: Tensor) -> Tensor:
        """What a server sent, as a client uses it: no longer than `longest_sent`."""
        return cut(sent, self.coefficients, self.longest_sent)

    @property
    def recipe(self) -> Recipe:
        """The numbers that no key of the plan says."""
        return open_recipe(self.plan.recipe)

    @cached_property
    def derivatives(self) -> Derivatives | None:
        """What a calibration is a mean of; None where there is none."""
        if not self.plan.calibration:
            return None
        return Derivatives(open_task(self.facts), self.recipe.calibrating)

    @cached_property
    def inputs(self) -> Inputs | None:
        """What a centre is a mean of; None where there is none."""
        return Inputs(self.centre_size, self.recipe.longest) if self.plan.centring else None

    @property
    def centre_size(self) -> int:
        """Numbers of a centre; 0 where there is none."""
        return math.prod(self.facts.shape) if self.plan.centring else 0

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
    def noise(self) -> str:
        """Where the noise of gradients is added; nowhere in the ablation `epsilon=inf`."""
        return self.plan.noise if self.plan.private else "nowhere"

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

    @cached_property
    def basis_digest(self) -> str:
        """A fingerprint of P."""
        basis = self.basis
        digest = hashlib.sha256(f"{basis.kind}:{basis.size}:{basis.coefficients}".encode())
        if isinstance(basis, Identity):
            digest.update(f":{basis.biases}:{basis.bias_scale!r}".encode())
        else:
            for tensor in (basis.index, basis.weight):
                digest.update(tensor.cpu().numpy().tobytes())
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
        return Downlink(self.coefficients + self.centre_size, self.plan.downlink_bits)

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
        check_probabilities(task)
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


def phases(plan: Plan) -> tuple[Phase, ...]:
    """All phases of a run, in order.

    >>> shares = Plan(context="shares", context_share=0.05, method="blend", rounds=1)
    >>> [(phase.kind, phase.by, phase.model) for phase in phases(shares)]  # doctest: +NORMALIZE_WHITESPACE
    [('context', 'participants', 'none'), ('gradient', 'called', 'own'),
     ('confusion', 'participants', 'shared'), ('context', 'future', 'shared')]
    """
    context, end = plan.context_traits, plan.rounds
    found = [Phase("gradient", "called", number, "own") for number in range(end)]
    if context.released:
        after = plan.context_round - 1 if context.uses_model else 0
        model: Literal["none", "shared"] = "shared" if context.uses_model else "none"
        found.append(Phase("context", "participants", after, model, plan.context_share))
        if not context.predicted_for_future:
            found.append(Phase("context", "future", after, model))
    if plan.centring:
        found.append(Phase("centre", "participants", 0, "none", plan.centring))
    if plan.calibration:
        found.append(Phase("calibration", "participants", end, "own", plan.calibration))
    if context.predicted_for_future:
        found.append(Phase("confusion", "participants", end, "shared", plan.confusion_share))
        found.append(Phase("context", "future", end, "shared"))
    return tuple(sorted(found, key=lambda phase: (phase.after, phase.kind == "gradient")))


def open_releases(
    plan: Plan,
    statistic: Statistic,
    classes: int,
    model: Model,
    *,
    derivatives: Derivatives | None = None,
    inputs: Inputs | None = None,
    records: int,
    gradients: int,
    context_records: int,
    once: Sequence[Phase],
    round_sum: RoundSum | None = None,
    counted: int = 0,
    largest: int = 0,
) -> dict[Kind, Release]:
    """The releases of one participant, by kind; the noise of a run is decided here and nowhere else.

    `records` is the client's m_g and `context_records` its m_c; σ is such that it spends the plan's ε with so
    many `gradients` (Eq. 16) and what it releases `once`: a client with more records adds less noise. With a
    `round_sum` the noise of gradients is in the sum of a round, in which this client counts for `counted`
    records and no client has more than `largest`; what is released once gets its own at the client all the
    same.
    """
    bound = sensitivity(plan.clip, records if round_sum is None else round_sum.records)
    context = statistic.sensitivity(context_records)
    # A plan may set a context's share aside and release none, as a control.
    shares = plan.context_share + sum(phase.share for phase in once if phase.kind != "context")
    if shares or round_sum is not None:
        sigma = _share(plan, math.sqrt(gradients) * bound, 1.0 - shares)
        sigma_context = _share(plan, context, plan.context_share) if plan.context_share else sigma
    else:
        # What is charged may be less than what noise is calibrated for, never more.
        calibrated = statistic.calibrated_sensitivity(context_records)
        sigma = _calibrated(plan, gradients * bound**2, calibrated)
        sigma_context = sigma * plan.context_noise
    gradient = _gradient(plan, model, records, bound, sigma, round_sum)
    if plan.place.shared and round_sum is not None:
        gradient = _shared(plan, gradient, gradients, bound / sigma, round_sum, counted, largest)
    releases: dict[Kind, Release] = {"gradient": gradient}
    for phase in once:
        if phase.kind == "context":
            releases["context"] = _averaged("context", plan, statistic, model, context_records, sigma_context)
            continue
        once_only = {"confusion": Confusion(classes), "calibration": derivatives, "centre": inputs}
        mean = once_only[phase.kind]
        assert mean is not None
        noise = _share(plan, mean.sensitivity(records), phase.share)
        releases[phase.kind] = _averaged(phase.kind, plan, mean, model, records, noise)
    return releases


def open_future_releases(
    plan: Plan, statistic: Statistic, model: Model, *, context_records: int
) -> dict[Kind, Release]:
    """The one release of a future client, where it is another than the participants': it gets all of ε."""
    sigma = _share(plan, statistic.sensitivity(context_records), 1.0)
    return {"context": _averaged("context", plan, statistic, model, context_records, sigma)}


def _averaged(
    kind: Kind, plan: Plan, statistic: Statistic, model: Model, count: int, sigma: float
) -> Release:
    """The mean of a bounded statistic over exactly `count` records: all that is released once (Eqs. 1, 2)."""

    def mean(records: Records, coefficients: Tensor | None) -> Tensor:
        output = None
        if coefficients is not None:
            with torch.no_grad():
                theta = model.theta(coefficients)
                output = recordwise_logits(model.module, theta, records.x.to(theta.device))
                output = output.to(records.x.device)
        return statistic.mean(records.x, records.y, count, output, records.unit)

    bound = statistic.sensitivity(count)
    channel = _channel(plan, statistic.size, sigma, bound)
    removal = min(bound, statistic.radius / count) + channel.widening
    return Release(kind, mean, bound + channel.widening, statistic.radius, channel, removal=removal)


def _gradient(
    plan: Plan, model: Model, count: int, bound: float, sigma: float, round_sum: RoundSum | None
) -> Release:
    """The clipped mean of `count` records' coefficient gradients (Eqs. 4 and 5), once a round.

    Behind the coefficients there may be a centre, from which inputs are measured then.
    """

    def mean(records: Records, coefficients: Tensor | None) -> Tensor:
        assert coefficients is not None
        size, longest = model.basis.coefficients, open_recipe(plan.recipe).longest
        coefficients, records = told_apart(coefficients, size, records, longest)
        theta = model.theta(coefficients)
        return clipped_mean(
            model.module,
            theta,
            model.basis,
            records.x.to(theta.device),
            records.y.to(theta.device),
            clip=plan.clip,
            denominator=count,
            loss=model.losses,
            unit=records.unit,
            remember=records.copied,
        )

    channel_sigma = sigma if round_sum is None else round_sum.channel_sigma(sigma)
    channel = _channel(plan, model.basis.coefficients, channel_sigma, bound)
    moved, removal = bound + channel.widening, bound / 2 + channel.widening
    return Release(
        "gradient", mean, moved, plan.clip, channel, None if round_sum is None else sigma, removal=removal
    )


def _shared(
    plan: Plan, gradient: Release, gradients: int, mu: float, round_sum: RoundSum, counted: int, largest: int
) -> Release:
    """The same statistic as a share of a round's sum, each release spending μ."""
    sharing = Sharing(
        clip=plan.clip,
        size=gradient.size,
        releases=gradients,
        largest=largest,
        records=round_sum.records,
        most=round_sum.most,
        clients=round_sum.clients,
        threshold=plan.in_every_sum,
        colluding=plan.may_collude,
        mu=mu,
        seed=plan.seed,
    )
    shares, moved = Shares(sharing, counted), sharing.sensitivity
    return replace(gradient, sensitivity=moved, channel=shares, sum_sigma=None, removal=sharing.removal)


def _calibrated(plan: Plan, gradients_squared: float, context: float) -> float:
    """σ of a gradient release, for Σ Δ² of a client's gradients and Δ of its context."""
    if not plan.private:
        return 0.0
    squared = gradients_squared
    if plan.releases_context or plan.traits.calibrated_with_context:
        squared += (context / plan.context_noise) ** 2
    sigma = accounting.calibrate(
        epsilon=plan.epsilon, delta=plan.delta, accounting=plan.accounting, squared_sensitivity=squared
    )
    # A ledger adds releases up one by one; the rounding of its sum must not pass the target.
    return sigma * (1 + 1e-12)


def _share(plan: Plan, bound: float, share: float) -> float:
    """σ of releases with Σ Δ² = bound², such that they spend a share of the plan's μ²."""
    if not plan.private:
        return 0.0
    budget = share * accounting.mu_squared(plan.epsilon, plan.delta, plan.accounting)
    return bound / math.sqrt(budget) * (1 + 1e-12)


def _channel(plan: Plan, size: int, sigma: float, bound: float) -> Channel | Noiseless:
    """The plan's channel, with σ or more: such that what it widens `bound` by costs nothing.

    A widening w at σ becomes w/(1 − w/bound) at σ/(1 − w/bound), and (bound + that)/that σ is bound/σ.
    """
    if not plan.private:
        return Noiseless(size)
    options = {name: getattr(plan, name) for name in channel_class(plan.channel).options}
    channel = open_channel(plan.channel, size=size, sigma=sigma, **options)
    if not channel.widening:
        return channel
    if channel.widening > bound / 2:
        raise SottovoceError(
            f"channel={plan.channel} cannot carry so small a statistic in {size:,} numbers: "
            "set fewer coefficients, fewer rounds, or another channel"
        )
    wider = sigma / (1 - channel.widening / bound)
    return open_channel(plan.channel, size=size, sigma=wider, **options)
