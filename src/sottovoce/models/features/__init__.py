"""Public feature maps: a fixed function of one record, without a trainable parameter or a private statistic.

A linear head on features learns more at the same ε than a model of pixels, and features are computed once.
`scattering` is made of wavelets alone, `patterns` is a network that has seen generated pictures alone. A map
takes the raw picture, values in [0, 1], and gives unit norm, so that the gradient of a linear head is bounded
alike for every record. No other record enters: no privacy cost.

x ↦ P f(x)/‖P f(x)‖ with f(x) the named parts side by side, each of unit norm and weighted; the same of the
mirror image of a picture added with `mirror`; and P a signed partition into `size` sums, public and random,
or nothing.

What a record becomes is the same bit for bit, whatever lies beside it and wherever it stands (`tiles`). A map
of one's own (`local`) sees one record at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sottovoce.errors import SottovoceError
from sottovoce.machine.determinism import one_core, side_by_side
from sottovoce.models.features import local as own_maps
from sottovoce.models.features.fixed import (
    CHUNK,
    COEFFICIENTS,
    SIZE,
    Scattering,
    mirrored,
    ngrams,
    spectrum,
)
from sottovoce.models.features.patterns import Network, Patterns, by_kind, centred, paths, shipped
from sottovoce.models.tiles import TILE, drawn, even, tiles
from sottovoce.plan.catalog import DESCRIBED, entry

_PATTERNS_SHARE, _PATTERNS_SHARE_GRAY = 0.7, 0.3  # of the squared norm, where both parts are used
_LARGE_TILE = 256
"""Records of a tile where each is little work, and on a GPU."""

Part = Callable[[Tensor], Tensor]


def projection(inputs: int, size: int, seed: int) -> Part:
    """A signed partition P from (n, inputs) to (n, size); ⟨Pf, Pg⟩ has mean ⟨f, g⟩ over seeds.

    Inputs, in public random order and with random signs, are summed in `size` groups.
    """
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(inputs, generator=rng)
    signs = torch.randint(2, (inputs,), generator=rng).mul(2).sub(1).float()
    groups = math.ceil(inputs / size)

    def project(features: Tensor) -> Tensor:
        signed = features[:, order.to(features.device)] * signs.to(features.device)
        padded = nn.functional.pad(signed, (0, groups * size - inputs))
        return padded.view(-1, groups, size).sum(1)

    return project


@dataclass(frozen=True)
class FeatureMap:
    """A public function of one record: pictures (n, C, H, W), values in [0, 1], to (n, size) of unit norm.

    Or of series (n, T, F) of any numbers, or of tokens (n, L).

    The maps here have no weights learned from other people's public data: the network behind `patterns` has
    seen noise processes alone.
    """

    name: str
    shape: tuple[int, ...]
    size: int
    parts: tuple[Part, ...]
    weights: tuple[float, ...]
    projection: Part | None
    mirror: bool = False
    device: str = "cpu"
    """Where it is computed: another changes the last digits."""
    alone: bool = False
    """It sees one record at a time, and works on no two at once."""

    def __call__(self, x: Tensor) -> Tensor:
        """Records as they are stored, before any normalization of a dataset; bytes are divided by 255."""
        if tuple(x.shape[1:]) != self.shape:
            raise SottovoceError(
                f"features={self.name} is open for records of shape {self.shape}, these have "
                f"{tuple(x.shape[1:])}: open it for their shape"
            )

        parts = tiles(x, self._tile())
        if self.device == "cpu" and not self.alone:
            rows = side_by_side(self._described, parts)
        else:
            with one_core():
                rows = [self._described(part) for part in parts]
        return torch.cat([torch.empty(0, self.size), *rows])[: len(x)]

    def _tile(self) -> int:
        """Returns how many records are described at once: one where their places would decide digits."""
        large = len(self.shape) < 3 or self.device != "cpu"
        if self.alone or (not large and math.prod(self.shape) > 2 * CHUNK):
            return 1
        size = _LARGE_TILE if large else TILE
        key = (self.name, self.shape, self.size, self.mirror, self.device)
        if key not in _even:
            kind = torch.int64 if len(self.shape) == 1 else torch.float32
            public = torch.cat([drawn(torch.empty(0, *self.shape, dtype=kind)).abs()] * (size // TILE))
            _even[key] = even(lambda tile: [self._described(tile)], public)
        return size if _even[key] else 1

    @torch.no_grad()  # of the thread that works on it
    def _described(self, x: Tensor) -> Tensor:
        if x.dtype != torch.int64:  # tokens stay what they are
            x = x / 255 if x.dtype == torch.uint8 else x.float()
        x = x.to(self.device)
        features = torch.cat([w * part(x) for w, part in zip(self.weights, self.parts, strict=True)], dim=1)
        if self.projection is not None:
            features = self.projection(features)
        return nn.functional.normalize(features, dim=1).cpu()


_even: dict[tuple[object, ...], bool] = {}
"""Whether a map may see tiles on this machine."""


def open_features(
    name: str,
    shape: tuple[int, ...],
    *,
    size: int = 0,
    mirror: bool = False,
    device: str = "cpu",
    local: str | None = None,
) -> FeatureMap:
    """The map `name` for records of `shape`: (C, H, W) of pictures, (T, F) of series, (L,) of tokens.

    `size` > 0 projects to so many numbers, in a public way; `mirror` averages the features of a picture and
    of its mirror image, for things that a mirror does not change (no digits). `local` is the name of a map of
    this machine's owner, which `name` may be too; nothing else is imported. Such a map runs on the CPU.

    >>> features = open_features("scattering", (1, 28, 28), size=500)
    >>> out = features(torch.rand(2, 1, 28, 28))
    >>> out.shape, bool(torch.allclose(out.norm(dim=1), torch.ones(2)))
    (torch.Size([2, 500]), True)
    """
    own = ":" in name
    if own and name != local:
        raise SottovoceError(f"features={name} is code: if you trust it, name it yourself", "features")
    described, axes = ("records", len(shape)) if own else entry("features", name, DESCRIBED)
    if len(shape) != axes:
        raise SottovoceError(f"features={name} describes {described}, not records of shape {shape}: use none")
    if mirror and axes != 3:
        raise SottovoceError(
            f"mirror=true is for pictures, not for records of shape {shape}: set mirror=false"
        )
    if own:
        found = own_maps.opened(name, shape)
        opened, device = [(_mirroring(found, mirror), found.size)], "cpu"
    else:
        opened = [_PARTS[part](shape, mirror, device) for part in name.split("+")]
    full = sum(length for _, length in opened)
    if size > full:
        raise SottovoceError(
            f"feature_size={size}, but {name} has {full} numbers: choose at most that, or 0 for all"
        )
    patterns = _PATTERNS_SHARE_GRAY if shape[0] == 1 else _PATTERNS_SHARE
    shares = (1 - patterns, patterns) if len(opened) == 2 else (1.0,)
    return FeatureMap(
        name=name,
        shape=shape,
        size=size or full,
        parts=tuple(part for part, _ in opened),
        weights=tuple(math.sqrt(share) for share in shares),
        projection=projection(full, size, seed=0) if size else None,
        mirror=mirror,
        device=device,
        alone=own,
    )


def _scattering(shape: tuple[int, ...], mirror: bool, device: str) -> tuple[Part, int]:
    channels, height, width = shape
    scatter, centre = Scattering(height, width, device=device), shipped()["scattering"].to(device)

    def describe(coefficients: Tensor) -> Tensor:
        if channels == 1:
            return by_kind(coefficients)
        return centred(paths(coefficients), centre)

    def part(x: Tensor) -> Tensor:
        coefficients = scatter(x)
        if not mirror:
            return describe(coefficients)
        flipped = mirrored(coefficients) if scatter.mirrors else scatter(x.flip(-1))
        return describe(coefficients) + describe(flipped)

    return part, channels * COEFFICIENTS * math.prod(scatter.grid)


def _patterns(shape: tuple[int, ...], mirror: bool, device: str) -> tuple[Part, int]:
    patterns = Patterns(Network.shipped().to(device))
    centre = shipped()["patterns"].to(device)
    part = _mirroring(lambda x: centred(patterns(x), centre), mirror)
    return part, (1 if shape[0] == 3 else shape[0]) * patterns.channels * 16


def _mirroring(describe: Part, mirror: bool) -> Part:
    return (lambda x: describe(x) + describe(x.flip(-1))) if mirror else describe


_PARTS: dict[str, Callable[[tuple[int, ...], bool, str], tuple[Part, int]]] = {
    "scattering": _scattering,
    "patterns": _patterns,
    "spectrum": lambda shape, mirror, device: (spectrum(*shape), SIZE),
    "ngrams": lambda shape, mirror, device: (ngrams, SIZE),
}
"""Each part of a map, and how many numbers it has; only pictures have mirror images."""
