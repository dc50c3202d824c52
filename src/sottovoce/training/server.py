"""The server: generator, cached contexts, and the update that turns decoded releases into a better generator.

It sees channel messages only. `update_generator` is the one place where clients' decoded statistics
become a step (Eq. 6); every release entering it is differentially private by itself, because successive
generators reveal each of them (see the test that recovers one). With noise at the server releases are not:
they enter `Server.add_up` alone, and the noised sum that it returns is all that moves the generator. With
noise that clients share only their sum is ever here (`Server.share_out`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sottovoce.channel.wire import PrivateRandomness
from sottovoce.errors import SottovoceError
from sottovoce.machine.determinism import derived_seed, one_core
from sottovoce.plan.catalog import Kind
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.once import Phase
from sottovoce.release.once.calibration import Scaling
from sottovoce.release.once.centre import centre
from sottovoce.release.once.prior import ClassPriors, LabelShift, directions
from sottovoce.release.places.server import Update, noised_sum
from sottovoce.release.recipe import Blending
from sottovoce.training.generator import AnyGenerator, Blend, BoundedGenerator, open_generator
from sottovoce.training.newcomers import Adjustments, Newcomers, Publishing
from sottovoce.training.optimizers import Optimizer, open_optimizer

log = logging.getLogger("sottovoce.server")
RECIPE, FINAL = "recipe.", "final."
"""Before the names of what a recipe made of the plan, and of what a finished run leaves."""
_KEPT = ("contexts", "known", "center", "scale", "snapshot", "confusion", "confused")
"""Tensors of a server, each an attribute of its own, that are in its state under these names."""


def update_generator(
    generator: AnyGenerator,
    descent: Optimizer,
    inputs: Tensor,
    releases: Tensor,
    participants: Sequence[int] = (),
    weights: Tensor | None = None,
) -> float:
    """ω ← ω − η Σ_i w_i J_iᵀ g̃_i, for contexts `inputs` (|S|, c) and `releases` g̃ (|S|, k); w_i = 1/|S|.

    Returns the step's effective gain ‖Σ_i J_iᵀ g̃_i‖² / Σ_i ‖g̃_i‖²: how far it moves the coefficients along
    the releases, against a step on shared coefficients. It is ‖h‖² for one client while W is zero.
    """
    descent.zero()
    weighted = releases / len(releases) if weights is None else releases * weights[:, None]
    generator.vjp(inputs, weighted, releases, participants)
    moved = [torch.linalg.vector_norm(p.grad) for p in generator.parameters() if p.grad is not None]
    descent.step()
    released = torch.linalg.vector_norm(releases).clamp_min(1e-30)
    return float((len(releases) * torch.linalg.vector_norm(torch.stack(moved)) / released) ** 2)


def class_priors(made: Blueprint, device: torch.device) -> ClassPriors:
    """The priors of a run whose contexts tell class shares."""
    noise = [made.releases_of(participant)["context"].sigma for participant in range(made.plan.participants)]
    future = made.releases["context"].sigma
    model = made.module, made.basis, made.facts.classes
    return ClassPriors.of(*model, noise, future, made.recipe.smoothing, device)


class Server:
    """The server's whole state for one run; deterministic given the messages it receives."""

    def __init__(
        self, blueprint: Blueprint, device: str = "cpu", *, blending: Blending | None = None
    ) -> None:
        """`blending` is what the run's state says, by default what its recipe makes of the blueprint."""
        plan = blueprint.plan
        self.blueprint = blueprint
        self.round = 0
        """Rounds applied so far."""
        self._device = torch.device(device)
        self._neutral = blueprint.statistic.neutral.to(self._device)
        if plan.prior == "context":
            directions(blueprint.module, blueprint.basis, blueprint.facts.classes, self._device)  # or refused
        self._blend(blending or blueprint.blending)
        self._confusion = torch.zeros(blueprint.facts.classes, blueprint.facts.classes, device=self._device)
        self._confused = torch.zeros(plan.participants, dtype=torch.bool, device=self._device)
        self._calibrations = torch.zeros(plan.participants, 0)
        self._calibrated = torch.zeros(plan.participants, dtype=torch.bool)
        self._scaled: Scaling | None = None
        self._centres = torch.zeros(plan.participants, blueprint.centre_size)
        self._centred = torch.zeros(plan.participants, dtype=torch.bool)
        self._centre: Tensor | None = None
        self._contexts = torch.zeros(plan.participants, blueprint.statistic.size, device=self._device)
        self._known = torch.zeros(plan.participants, dtype=torch.bool, device=self._device)
        self._center = torch.zeros(blueprint.statistic.size, device=self._device)
        self._scale = torch.ones(blueprint.statistic.size, device=self._device)
        self._snapshot = torch.zeros(blueprint.coefficients, device=self._device)
        self._finished = False
        self._stored: tuple[Tensor, Adjustments] | None = None
        """Participants' coefficients as they stay, and what newcomers' follow from; None before the end."""

    def _blend(self, blending: Blending) -> None:
        """Opens generator and optimizer with these numbers."""
        plan, blueprint = self.blueprint.plan, self.blueprint
        self.generator = open_generator(
            plan.method,
            blueprint.statistic.neutral,
            plan.hidden,
            plan.trunk_layers,
            blueprint.coefficients,
            derived_seed(plan.seed, "generator"),
            blending,
        ).to(self._device)
        self.blending = blending
        self._step = plan.learning_rate or blending.step
        self._descent = open_optimizer(plan.optimizer, self.generator, self._step, plan.momentum)
        self._weights = torch.as_tensor(blending.weights, dtype=torch.float32, device=self._device)

    # Phases

    def has(self, phase: Phase) -> bool:
        """Returns whether the releases of a phase of participants were all received, or are over."""
        if phase.kind == "confusion":
            return self.has_confusion
        if phase.kind == "calibration":
            return bool(self._calibrated.any())
        if phase.kind == "centre":
            return self._centre is not None
        return self.round > phase.after or (phase.kind == "context" and bool(self._known.all()))

    def model_of(self, phase: Phase, participant: int | None = None) -> Tensor | None:
        """The coefficients (k,) that a release of a phase is made with, own or shared; None where none are.

        Those of a phase between rounds are kept when it begins: who comes late, and future clients, use them.
        """
        if phase.model == "own" and participant is not None:
            return self._uncalibrated([participant])[0]
        if phase.model != "shared":
            return None
        if phase.after == self.blueprint.plan.rounds:
            return self.shared_coefficients()
        if not bool(self._known.any()):
            self._snapshot = self.shared_coefficients().clone()
        return self._snapshot

    def receive(self, kind: Kind, participant: int, release: np.ndarray) -> None:
        """Takes one decoded release of those that are made once."""
        if kind == "context":
            self.receive_context(participant, release)
        elif kind == "confusion":  # counts as much as its client's records
            self._confusion += self._weights[participant] * self._tensor(release).view_as(self._confusion)
            self._confused[participant] = True
        elif kind == "calibration":
            if self._calibrations.shape[1] != len(release):
                self._calibrations = torch.zeros(len(self._calibrated), len(release))
            self._calibrations[participant] = torch.as_tensor(release, dtype=torch.float32)
            self._calibrated[participant], self._scaled = True, None
        elif kind == "centre":
            self._centres[participant] = torch.as_tensor(release, dtype=torch.float32)
            self._centred[participant] = True

    def close(self, phase: Phase) -> None:
        """Call when the releases of a phase are in."""
        if phase.kind == "context":
            self.close_contexts()
        elif phase.kind == "centre":
            self._close_centres()

    # Contexts

    def owes_context(self, participant: int) -> bool:
        """Returns whether this participant must release its context before anything else."""
        due = any(phase.kind == "context" and self.round >= phase.after for phase in self.blueprint.once)
        return due and not bool(self._known[participant])

    def receive_context(self, participant: int, context: np.ndarray) -> None:
        """Caches one decoded context."""
        self._contexts[participant] = self._tensor(context)
        self._known[participant] = True

    @one_core()
    def close_contexts(self) -> None:
        """Fixes how contexts are rescaled, by post-processing of those that are in alone.

        Moments are standardized one by one. Mean predictions get one scale for all classes, since the shares
        of classes that a model seldom predicts are mostly noise. Both then have about unit norm.
        """
        rescaled, known = self.blueprint.plan.context_traits.rescaled, self._contexts[self._known]
        if rescaled != "no":
            if len(known) < 2:
                return  # nobody to compare with: contexts stay as they are, of norm 1 at most but for noise
            self._center = known.mean(dim=0)
            deviation = known.std(dim=0)
            if rescaled == "together":
                deviation = deviation.square().mean().sqrt().expand_as(deviation)
            # Noise alone spreads contexts by σ_c; what spreads less would be blown up for nothing.
            floor = max(self.blueprint.sigma_context, 1e-6)
            self._scale = deviation.clamp_min(floor) * math.sqrt(known.shape[1])

    def inputs(self, participants: Sequence[int]) -> Tensor:
        """Returns what the generator is given for these participants, (n, c)."""
        index = torch.as_tensor(participants, device=self._device)
        rescaled = (self._contexts[index] - self._center) / self._scale
        return torch.where(self._known[index, None], rescaled, self._neutral)

    # Confusions

    @torch.no_grad()
    @one_core()
    def shared_coefficients(self) -> Tensor:
        """Returns the coefficients of an unknown client: behind confusions and predicted shares."""
        return self._publishing.uncentred(self.generator(self._neutral[None]))[0]

    @property
    def has_confusion(self) -> bool:
        """Returns whether any confusion matrix has been received."""
        return bool(self._confused.any())

    # Centring

    def _close_centres(self) -> None:
        """Fixes the centre from what is in: who comes late finds coefficients that were trained at it."""
        blueprint, size = self.blueprint, self._centres.shape[1]
        self._centre = torch.zeros(size, device=self._device)
        if bool(self._centred.any()):
            everyone = range(blueprint.plan.participants)
            sigmas = torch.tensor([blueprint.releases_of(i)["centre"].sigma for i in everyone])
            counted = torch.tensor(blueprint.counted) * self._centred
            self._centre = centre(self._centres, sigmas, counted, blueprint.recipe.longest)
            self._centre = self._centre.to(self._device)

    def centre(self) -> Tensor:
        """The centre (inputs,) that clients train at, 0 before it is fixed; of no inputs without centring."""
        if self._centre is None:
            return torch.zeros(self._centres.shape[1], device=self._device)
        return self._centre

    @torch.no_grad()
    @one_core()
    def sent(self, participants: Sequence[int]) -> Tensor:
        """What participants are sent to train at: coefficients of inputs measured from the centre, and behind
        them the centre, (n, k + inputs)."""
        coefficients, at = self._trained(participants), self.centre()
        return torch.cat([coefficients, at.expand(len(coefficients), -1)], dim=1)

    @property
    def _publishing(self) -> Publishing:
        return Publishing(self.blueprint, self._centre)

    # Calibration

    def scaling(self) -> Scaling | None:
        """Slope and shifts of all outputs, once anybody's calibration was received."""
        blueprint = self.blueprint
        if blueprint.derivatives and self._scaled is None and bool(self._calibrated.any()):
            everyone = range(blueprint.plan.participants)
            sigmas = [blueprint.releases_of(i)["calibration"].sigma for i in everyone]
            counted = torch.tensor(blueprint.counted) * self._calibrated
            released, noise, own = self._calibrations, torch.tensor(sigmas), blueprint.plan.traits.individual
            self._scaled = Scaling.of(blueprint.derivatives, released, noise, counted, own=own)
        return self._scaled

    # Coefficients

    @cached_property
    def _priors(self) -> ClassPriors | None:
        wanted = self.blueprint.plan.prior == "context"
        return class_priors(self.blueprint, self._device) if wanted else None

    @torch.no_grad()
    @one_core()
    def coefficients(self, participants: Sequence[int]) -> Tensor:
        """The current coefficients of participants, (n, k); after the last round calibrated ones, and at the
        end those that stay."""
        if self._stored is not None:
            models = self._stored[0]
            return models.expand(len(participants), -1) if len(models) == 1 else models[list(participants)]
        coefficients, scaling = self._uncalibrated(participants), self.scaling()
        if scaling is None:
            return coefficients
        return self._publishing.calibrated(coefficients, scaling.slope, scaling.shifts[list(participants)])

    @torch.no_grad()
    @one_core()
    def _uncalibrated(self, participants: Sequence[int]) -> Tensor:
        return self._publishing.uncentred(self._trained(participants))

    def _trained(self, participants: Sequence[int]) -> Tensor:
        coefficients: Tensor = self.generator(self.inputs(participants), participants)
        if self._priors is not None:
            index = torch.as_tensor(participants, device=self._device)
            priors = self._priors.coefficients(self._contexts[index], index)
            coefficients = coefficients + torch.where(self._known[index, None], priors, 0.0)
        return coefficients

    def personalize(self, context: np.ndarray | None) -> Tensor:
        """Coefficients (k,) of a client that never trained, from its decoded context alone."""
        newcomers = self._newcomers()
        if context is None:
            return newcomers.without_context()
        return newcomers.with_contexts(self._tensor(context[None]))[0]

    def personalize_many(self, contexts: np.ndarray) -> Tensor:
        """Coefficients (n, k) of clients that never trained, from their decoded contexts (n, c)."""
        return self._newcomers().with_contexts(self._tensor(contexts))

    def _newcomers(self) -> Newcomers:
        adjustments = self._adjustments() if self._stored is None else self._stored[1]
        inputs = self._neutral, self._center, self._scale
        return Newcomers(self._publishing, self.generator, *inputs, adjustments)

    @torch.no_grad()
    @one_core()
    def _adjustments(self) -> Adjustments:
        scaling = self.scaling()
        calibrated = () if scaling is None else (scaling.slope, scaling.shift)
        return Adjustments(self._priors, self._label_shift(), *calibrated)

    @torch.no_grad()
    def gain(self, participants: Sequence[int]) -> float:
        """Mean ‖h‖² over these participants."""
        return float(self.generator.gain(self.inputs(participants)).mean())

    def _label_shift(self) -> LabelShift | None:
        """Returns how class shares differ among participants, and how the shared model confuses classes."""
        if self._priors is None or not self.has_confusion:
            return None
        blueprint = self.blueprint
        sigmas = [blueprint.releases_of(i)["confusion"].sigma for i in range(blueprint.plan.participants)]
        weighted = self._weights.cpu().double().mul(torch.tensor(sigmas))[self._confused.cpu()]
        noise = float(weighted.norm())
        smoothing = blueprint.recipe.smoothing
        known = self._contexts[self._known]
        return LabelShift.of(known, blueprint.sigma_context, self._confusion, noise, smoothing)

    # Rounds

    @one_core()
    def receive_round(self, releases: Mapping[int, np.ndarray]) -> float | None:
        """Applies the decoded releases of the next round, in the order of their participants.

        Returns the effective gain against a step at the plan's learning rate; None if nobody released.
        """
        plan = self.blueprint.plan
        if plan.place.summed:
            raise SottovoceError(f"releases under noise={plan.noise} are not private: add them up first")
        order = sorted(releases)
        effective = None
        if order:
            weights = self._weights[order] / self._weights[order].sum() if plan.weighting else None
            stacked = torch.stack([self._tensor(releases[participant]) for participant in order])
            effective = update_generator(
                self.generator, self._descent, self.inputs(order), stacked, order, weights
            )
        self._count_round()
        return effective

    @one_core()
    def add_up(self, releases: Mapping[int, np.ndarray], randomness: PrivateRandomness) -> Update:
        """The noised sum of the next round's decoded releases; make it durable before `receive_update`.

        Who is missing leaves the weights of the others as they were planned.
        """
        order = tuple(sorted(releases))
        if not order:
            return self.nothing()
        stacked = np.stack([releases[participant] for participant in order])
        h, weights = self.counted(order)
        shape = (stacked.shape[1], h.shape[1])
        noise = self.blueprint.sigma * randomness.normal(math.prod(shape)).reshape(shape)
        total = noised_sum(stacked, h.cpu().numpy(), weights, noise)
        return Update(self.round + 1, order, torch.from_numpy(total).float())

    def share_out(self, total: np.ndarray, participants: Sequence[int]) -> Update:
        """Returns what the next round's sum of shares (k,), whole numbers, makes of it: see `shared`.

        A sum that cannot be one moves nothing: some client or helper has lied, and nobody knows which.
        """
        sharing = self.blueprint.sharing
        assert sharing is not None
        if not sharing.plausible(total):
            log.warning("the sum of round %d is too large to be one: it is thrown away", self.round + 1)
            return self.nothing()
        return Update(self.round + 1, tuple(sorted(participants)), sharing.columns(total))

    def nothing(self) -> Update:
        """Returns what the next round makes of no sum."""
        return Update(self.round + 1, (), torch.zeros(self.blueprint.coefficients, 0))

    def counted(self, participants: Sequence[int]) -> tuple[Tensor, np.ndarray]:
        """Returns how releases of participants count in a noised sum: h (n, columns), float64, and w (n,)."""
        h = self._bounded.columns(self.inputs(participants), participants).double()
        return h, self._weights_in_sum(participants)

    @one_core()
    def receive_update(self, update: Update) -> None:
        """Applies the noised sum of the next round, durable by now; without participants it moves nothing."""
        if update.round != self.round + 1:
            raise SottovoceError(f"the sum is that of round {update.round}, not of round {self.round + 1}")
        if update.participants:
            self._descent.zero()
            weights = self._weights_in_sum(update.participants).tolist()
            self._bounded.apply_update(update.columns.to(self._device), update.participants, weights)
            self._descent.step()
        self._count_round()

    @property
    def _bounded(self) -> BoundedGenerator:
        assert isinstance(self.generator, BoundedGenerator)
        return self.generator

    def _weights_in_sum(self, participants: Sequence[int]) -> np.ndarray:
        assert self.blueprint.round_sum is not None
        return self.blueprint.round_sum.weights([self.blueprint.counted[i] for i in participants])

    def _count_round(self) -> None:
        self.round += 1
        self._descent.averaged = self._averaged

    @property
    def _averaged(self) -> int:
        """Rounds so far that count in the average."""
        plan = self.blueprint.plan
        return max(0, self.round - (plan.rounds - round(plan.averaging * plan.rounds)))

    def finish(self) -> None:
        """After the last round: takes the average over the last rounds, if the plan says so.

        Where the recipe says so, own parts keep what chance alone does not explain.
        """
        if self.blueprint.plan.averaging > 0 and not self._finished:
            self.generator.load_state_dict(self._descent.final_means(), strict=False)
            if isinstance(self.generator, Blend) and bool((self.blending.least_kept < 1).any()):
                self.generator.shrink_own(self.blueprint.facts.classes)
        self._finished = True

    def conclude(self) -> None:
        """After the last release: what participants and newcomers are given stays as it is, for ever."""
        self.finish()
        if self._stored is None:
            each = [self.coefficients([i]) for i in range(self.blueprint.plan.participants)]
            alike = all(torch.equal(each[0], other) for other in each)
            self._stored = torch.cat(each[:1] if alike else each), self._adjustments()

    # State

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed or serving copy needs, as CPU tensors."""
        state = {f"generator.{name}": value for name, value in self.generator.state_dict().items()}
        state.update({f"momentum.{name}": value for name, value in self._descent.state.items()})
        if self.blueprint.plan.averaging > 0:
            state.update({f"average.{name}": value for name, value in self._descent.means.items()})
            counts = [self._descent.rounds[name] for name in sorted(self._descent.means)]
            state["averaged"] = torch.tensor(counts, dtype=torch.int64)
        state.update({name: getattr(self, f"_{name}") for name in _KEPT}, round=torch.tensor(self.round))
        if self.blueprint.plan.calibration:
            state.update(calibrations=self._calibrations, calibrated=self._calibrated)
        if self._stored is not None:
            models, adjustments = self._stored
            state.update(_over(FINAL, {"models": models, **adjustments.state()}))
        state.update(_over(RECIPE, {name: torch.tensor(v) for name, v in self.blending.numbers().items()}))
        if self._centre is not None:
            state.update(centre=self._centre)
        elif self.blueprint.plan.centring:
            state.update(centres=self._centres, centred=self._centred)
        return {name: value.detach().cpu().contiguous() for name, value in state.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continues exactly where `state()` was taken."""
        try:
            stored = Blending.stored(self.blueprint.plan, under(RECIPE, state))
            if stored is not None:
                self._blend(stored)
            self.generator.load_state_dict(under("generator.", state))
            for name, value in under("momentum.", state).items():
                self._descent.state[name] = value.to(self._device)
            for name in _KEPT:
                if name in state or not name.startswith("confus"):  # files of version 0.1 have no confusions
                    setattr(self, f"_{name}", state[name].to(self._device))
            self.round = int(state["round"])
            self._load_average(under("average.", state), state.get("averaged"))
            if self.blueprint.plan.calibration:
                self._calibrations, self._calibrated = state["calibrations"], state["calibrated"]
                self._scaled = None
            if "centre" in state:
                self._centre = state["centre"].to(self._device)
            elif self.blueprint.plan.centring:
                self._centres, self._centred = state["centres"], state["centred"]
            final = under(FINAL, state)
            if final:
                models = final.pop("models").to(self._device)
                self._stored = models, Adjustments.restored(final, self.blueprint, self._device)
            # A final state has no running average left: it is the average.
            self._finished = not any(name.startswith("average") for name in state)
        except (KeyError, RuntimeError) as error:
            raise SottovoceError(
                f"the saved state does not belong to this plan: {error}".splitlines()[0]
            ) from None

    def _load_average(self, means: Mapping[str, Tensor], counts: Tensor | None) -> None:
        self._descent.averaged = self._averaged
        # In files of version 0.1 every mean is over all rounds.
        known = [self._averaged] * len(means) if counts is None else counts.tolist()
        self._descent.rounds = dict(zip(sorted(means), known, strict=True))
        self._descent.means = {name: value.to(self._device) for name, value in means.items()}

    def _tensor(self, vector: np.ndarray) -> Tensor:
        return torch.as_tensor(vector, dtype=torch.float32, device=self._device)


def _over(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a state whose names begin so, without that."""
    return {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
