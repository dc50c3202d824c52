"""What a release is, for every kind: statistic, Δ, this client's σ, channel, stream, charge, decoding.

A client asks a `Release` for the bounded statistic of its records and for the message that carries it, the
ledger is given the charge it states, and the server decodes with the very same object. Its noise is added
by the channel, at the client, once in the sum of a round, at the server (`central`), or to that sum by all of
its clients (`shared`); `place` says where.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce.calibration import Derivatives
from sottovoce.catalog import CHANNELS, Kind
from sottovoce.central import RoundSum
from sottovoce.centring import Inputs, told_apart
from sottovoce.channel import Channel, open_channel
from sottovoce.channel.direct import Noiseless
from sottovoce.channel.wire import PrivateRandomness, SeededRandomness, Stream, SystemRandomness
from sottovoce.context import Confusion, Statistic
from sottovoce.data import Records
from sottovoce.errors import SottovoceError
from sottovoce.gradients import clipped_mean, recordwise_logits, sensitivity
from sottovoce.models import flat_parameters
from sottovoce.plan import Phase, Plan
from sottovoce.privacy import accounting
from sottovoce.privacy.accounting import Charge, Place
from sottovoce.shared import Shares, Sharing
from sottovoce.subspace import Basis
from sottovoce.tasks import Losses, cross_entropy

OVERHEAD_BYTES = 4096
IMPOSSIBLE = 1e-12
"""The probability below which a release is not believed."""


@dataclass(frozen=True, eq=False)
class Model:
    """The public half of every personal model: a module at θ_ref, and the basis P in which models differ."""

    module: nn.Module
    basis: Basis
    reference: Tensor
    losses: Losses
    """The loss of each record, from outputs and targets."""

    @classmethod
    def of(cls, module: nn.Module, basis: Basis, losses: Losses = cross_entropy) -> Model:
        return cls(module, basis, flat_parameters(module), losses)

    def theta(self, coefficients: Tensor) -> Tensor:
        """Model parameters θ_ref + P a, (…, d)."""
        return self.reference + self.basis.lift(coefficients)


@dataclass(frozen=True, eq=False)
class Release:
    """One kind of release of one client.

    `statistic` maps records, and coefficients (k,) where the statistic depends on a model, to a float64
    vector (size,) that replacing one record (or one unit, with all its records) moves by at most
    `sensitivity` in ‖·‖₂; where the noise is at the server, `sensitivity` is how far it moves the sum to
    which the server adds noise.
    """

    kind: Kind
    statistic: Callable[[Records, Tensor | None], Tensor]
    sensitivity: float
    radius: float
    """The most that ‖·‖₂ of the statistic can be, whatever the records."""
    channel: Channel | Noiseless | Shares
    sum_sigma: float | None = None
    """σ of noise at the server; what the channel adds is then no protection, and not counted."""
    removal: float = field(kw_only=True)
    """As `sensitivity`, for one record left out (a vector of zeros) and the denominator kept: to be read
    beside work that states ε for added or removed records; nothing is calibrated or charged by it."""

    @property
    def size(self) -> int:
        """Numbers in the released vector."""
        return self.channel.size

    @property
    def sigma(self) -> float:
        """σ, the scale of the noise that protects."""
        return self.channel.sigma if self.sum_sigma is None else self.sum_sigma

    @property
    def place(self) -> Literal["client", "server", "shared", "nowhere"]:
        """Where the noise is added; nowhere in the ablation `epsilon=inf`."""
        if isinstance(self.channel, Noiseless):
            return "nowhere"
        if isinstance(self.channel, Shares):
            return "shared"
        return "client" if self.sum_sigma is None else "server"

    @property
    def mu_squared(self) -> float:
        """(Δ/σ)², what one such release adds to its client's spending; nothing where there is no ledger."""
        return 0.0 if self.place == "nowhere" else (self.sensitivity / self.sigma) ** 2

    @property
    def largest_message(self) -> int:
        """Bytes beyond which nothing can be a message of this release."""
        return 8 * self.size + OVERHEAD_BYTES

    @property
    def largest_norm(self) -> float:
        """What ‖·‖₂ of a release exceeds with a probability of `IMPOSSIBLE` at most, whatever the records.

        χ² with k degrees of freedom is above k + 2√(kt) + 2t with probability e⁻ᵗ at most (Laurent and
        Massart, 2000).
        """
        t, k = -math.log(IMPOSSIBLE), self.size
        noise = self.channel.sigma * math.sqrt(k + 2 * math.sqrt(k * t) + 2 * t)
        return (self.radius + noise) * (1 + self.channel.rounding)

    def plausible(self, vector: np.ndarray) -> bool:
        """Returns whether a decoded vector can be a release of this kind: who sends others is no client.

        A vector that is not finite is not plausible.
        """
        return bool(np.linalg.norm(vector) <= self.largest_norm)

    def charge(self, run: str, account: str, round_number: int, helpers: str = "") -> Charge:
        """Returns what the ledger records of it; `helpers` are the names of those whose masks are on it."""
        place: Place = "client" if self.place == "nowhere" else self.place
        charge = Charge(run, account, self.kind, round_number, self.sensitivity, self.sigma, place)
        if not isinstance(self.channel, Shares):
            return charge
        sharing = self.channel.sharing
        return replace(charge, honest=sharing.honest, share=sharing.one, helpers=helpers)

    def stream(self, run: str, client: str, round_number: int) -> Stream:
        """The name of one release's randomness, used once for ever."""
        return (run, client, self.kind, round_number)

    def encode(self, u: np.ndarray, *, secret: bytes, stream: Stream, seed: int | None = None) -> bytes:
        """The message of one release; `seed` draws reproducible noise, in simulations that say so."""
        private = None if seed is None else _seeded(seed, stream)
        return self.channel.encode(u, secret=secret, stream=stream, private=private)

    def decode(self, message: bytes, *, secret: bytes, stream: Stream) -> np.ndarray:
        """The private vector, float64 (size,)."""
        return self.channel.decode(message, secret=secret, stream=stream)


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


def server_randomness(plan: Plan, run: str, round_number: int) -> PrivateRandomness:
    """Returns what the server draws a round's noise from: cryptographic, unless the run is seeded."""
    return _seeded(plan.seed, (run, "server", "update", round_number)) if plan.seeded else SystemRandomness()


def spending(releases: Mapping[Kind, Release], counts: Mapping[Kind, int], *, removal: bool = False) -> float:
    """Σ (Δ/σ)² of so many releases of each kind; with Δ for an added or removed record if asked for."""
    total = 0.0
    for kind, count in counts.items():
        if count:
            release = releases[kind]
            part = (release.removal / release.sensitivity) ** 2 if removal else 1.0
            total += count * release.mu_squared * part
    return total


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
        coefficients, records = told_apart(coefficients, model.basis.coefficients, records)
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


def _seeded(seed: int, stream: Stream) -> SeededRandomness:
    return SeededRandomness(hashlib.sha256(f"{seed}:{stream!r}".encode()).digest())


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
    options = {name: getattr(plan, name) for name in CHANNELS[plan.channel].options}
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
