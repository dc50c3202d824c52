"""What clients that never trained are given: coefficients from public state and their own context alone.

A model is published for inputs as they are, with a calibration's slope and shifts in its last layer. What the
recipe makes of releases for it, `Adjustments`, is stored when a run is finished, and read afterwards:
newcomers of any later version are given what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from sottovoce.machine.determinism import one_core
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.once.calibration import LastLayer
from sottovoce.release.once.centre import as_published
from sottovoce.release.once.prior import ClassPriors, LabelShift, directions
from sottovoce.training.generator import AnyGenerator


@dataclass(frozen=True, eq=False)
class Publishing:
    """Coefficients as they are published, of those that clients train at."""

    blueprint: Blueprint
    centre: Tensor | None
    """From which inputs are measured in rounds; None before it is fixed, and where there is none."""

    @cached_property
    def _layer(self) -> LastLayer:
        return LastLayer.of(self.blueprint.module, self.blueprint.basis, self.blueprint.facts)

    def uncentred(self, coefficients: Tensor) -> Tensor:
        """Coefficients (n, k) of inputs as they are."""
        at = self.centre
        if at is None or not at.any():
            return coefficients
        return self._changed(coefficients, lambda theta: as_published(theta, self._layer, at))

    def calibrated(self, coefficients: Tensor, slope: float, shifts: Tensor) -> Tensor:
        """Coefficients (n, k) whose outputs are slope · z + shift, for shifts (n, outputs)."""
        return self._changed(coefficients, lambda theta: self._layer.folded(theta, slope, shifts))

    def _changed(self, coefficients: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Coefficients (n, k) of parameters (n, d) in which a last layer was changed."""
        model = self.blueprint.model
        reference = model.reference.to(coefficients)
        return model.basis.coordinates(change(reference + model.basis.lift(coefficients)) - reference)


@dataclass(frozen=True, eq=False)
class Adjustments:
    """What a recipe has made of releases, for newcomers."""

    priors: ClassPriors | None = None
    shift: LabelShift | None = None
    slope: float | None = None
    """Of a calibration; None where nobody has released any."""
    shifts: Tensor | None = None
    """(outputs,)"""

    def state(self) -> dict[str, Tensor]:
        """Its numbers, by name."""
        numbers: dict[str, float] = {}
        found: dict[str, Tensor] = {}
        if self.priors is not None:
            numbers.update(noise=self.priors.future_noise, smoothing=self.priors.smoothing)
        if self.shift is not None:
            numbers.update(spread=self.shift.spread)
            found.update({name: getattr(self.shift, name) for name in ("mean", "matrix", "matrix_noise")})
        if self.slope is not None and self.shifts is not None:
            numbers.update(slope=self.slope)
            found.update(shifts=self.shifts)
        return found | {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}

    @classmethod
    def restored(cls, state: Mapping[str, Tensor], blueprint: Blueprint, device: torch.device) -> Self:
        """From what `state` gave."""
        priors = shift = slope = shifts = None
        here = {name: value.to(device) for name, value in state.items()}
        if "noise" in here:
            nobody = torch.zeros(0, device=device)
            noise, smoothing = float(here["noise"]), float(here["smoothing"])
            model = blueprint.module, blueprint.basis, blueprint.facts.classes
            priors = ClassPriors(directions(*model, device), nobody, noise, smoothing)
        if "spread" in here:
            shift = LabelShift(here["mean"], float(here["spread"]), here["matrix"], here["matrix_noise"])
        if "slope" in here:
            slope, shifts = float(here["slope"]), here["shifts"].cpu()
        return cls(priors, shift, slope, shifts)


@dataclass(frozen=True, eq=False)
class Newcomers:
    """All that newcomers' coefficients follow from."""

    publishing: Publishing
    generator: AnyGenerator
    neutral: Tensor
    """What the generator is given for a client without a context, (c,)."""
    center: Tensor
    scale: Tensor
    """Contexts are rescaled by both before the generator has them, (c,)."""
    adjustments: Adjustments

    @torch.no_grad()
    @one_core()
    def without_context(self) -> Tensor:
        """Coefficients (k,) of a client that releases nothing."""
        return self._calibrated(self.publishing.uncentred(self.generator(self.neutral[None])))[0]

    @torch.no_grad()
    @one_core()
    def with_contexts(self, contexts: Tensor) -> Tensor:
        """Coefficients (n, k) for decoded contexts (n, c)."""
        rescaled = (contexts - self.center) / self.scale
        coefficients = self.publishing.uncentred(self.generator(rescaled))
        priors, shift = self.adjustments.priors, self.adjustments.shift
        if priors is not None:
            coefficients = coefficients + torch.stack([priors.future(one, shift) for one in contexts])
        return self._calibrated(coefficients)

    def _calibrated(self, coefficients: Tensor) -> Tensor:
        slope, shifts = self.adjustments.slope, self.adjustments.shifts
        if slope is None or shifts is None:
            return coefficients
        return self.publishing.calibrated(coefficients, slope, shifts.expand(len(coefficients), -1))
