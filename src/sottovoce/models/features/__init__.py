"""Public feature maps: a fixed function of one record, without a trainable parameter or a private statistic.

A linear head on features learns more at the same ε than a model of pixels, and features are computed once.
`scattering` is made of wavelets alone, `patterns` is a network that has seen generated pictures alone. A map
takes the raw picture, values in [0, 1], and gives unit norm, so that the gradient of a linear head is bounded
alike for every record. No other record enters: no privacy cost.

x ↦ P f(x)/‖P f(x)‖ with f(x) the named parts side by side, each of unit norm and weighted; the same of the
mirror image of a picture added with `mirror`; and P a signed partition into `size` sums, public and random,
or nothing.

A map of one's own is `features=package.module:function`, named on this machine, never by a message. The
function is called once with the shape of a record and returns the map: a callable from raw records (n, …),
pictures on the scale from 0 to 1, to numbers (n, k). It must treat records one by one. Its attribute
`version` (a text) says under which name its features are kept; without one, the source of its module does.
Its attribute `public_pretraining` says whether it has learned from other people's public data: true by
default.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from sottovoce.errors import SottovoceError
from sottovoce.machine.determinism import side_by_side
from sottovoce.models.features.fixed import COEFFICIENTS, SIZE, Scattering, mirrored, ngrams, spectrum
from sottovoce.models.features.patterns import Network, Patterns, by_kind, centred, paths, shipped
from sottovoce.models.imports import imported, made_at_home, reason
from sottovoce.plan.catalog import DESCRIBED, entry

_PATTERNS_SHARE, _PATTERNS_SHARE_GRAY = 0.7, 0.3  # of the squared norm, where both parts are used
_BATCH = 256  # records at once

Part = Callable[[Tensor], Tensor]
_PROBE = 3
_TOLERANCE = 1e-3


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
    device: str = "cpu"
    """Where it is computed: another changes the last digits."""

    def __call__(self, x: Tensor) -> Tensor:
        """Records as they are stored, before any normalization of a dataset; bytes are divided by 255."""
        if tuple(x.shape[1:]) != self.shape:
            raise SottovoceError(
                f"features={self.name} is open for records of shape {self.shape}, these have "
                f"{tuple(x.shape[1:])}: open it for their shape"
            )

        batches = torch.split(x, _BATCH)
        described = self._described
        parts = side_by_side(described, batches) if self.device == "cpu" else map(described, batches)
        return torch.cat([torch.empty(0, self.size), *parts])

    @torch.no_grad()  # of the thread that works on it
    def _described(self, x: Tensor) -> Tensor:
        if x.dtype != torch.int64:  # tokens stay what they are
            x = x / 255 if x.dtype == torch.uint8 else x.float()
        x = x.to(self.device)
        features = torch.cat([w * part(x) for w, part in zip(self.weights, self.parts, strict=True)], dim=1)
        if self.projection is not None:
            features = self.projection(features)
        return nn.functional.normalize(features, dim=1).cpu()


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
        describe, length = _opened(name, shape)
        opened, device = [(_mirroring(describe, mirror), length)], "cpu"
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
        device=device,
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


def pretrained(name: str) -> bool:
    """Returns whether a map may hold public data of other people: of one's own, unless declared not to."""
    return ":" in name and bool(getattr(imported("features", name), "public_pretraining", True))


def fingerprint(name: str) -> str:
    """Returns what distinguishes the map's features from those of another version of it."""
    factory = imported("features", name)
    version = getattr(factory, "version", None)
    if version is None:
        try:
            version = inspect.getsource(inspect.getmodule(factory) or factory)
        except (OSError, TypeError):
            raise SottovoceError(
                f"features={name} has no source to tell its versions apart: give the function an attribute "
                "version, a text"
            ) from None
    return hashlib.sha256(repr((name, str(version))).encode()).hexdigest()


@lru_cache(maxsize=4)
def _opened(name: str, shape: tuple[int, ...]) -> tuple[Part, int]:
    """The map as a function to float32 (n, k), and k; tried on made-up records: it must not mix them."""
    try:
        inner = imported("features", name)(shape)
    except SottovoceError:
        raise
    except Exception as error:
        raise SottovoceError(
            f"features={name} fails for records of shape {shape}: {reason(error)}"
        ) from error

    if made_at_home(inner):
        raise SottovoceError(
            f"features={name} uses a model that was finished at home, on records without noise: give it as "
            "it was before"
        )

    def described(x: Tensor) -> Tensor:
        try:
            out = torch.as_tensor(inner(x))
        except Exception as error:
            raise SottovoceError(f"features={name} fails: {reason(error)}") from error
        if len(out) != len(x):
            raise SottovoceError(f"features={name} gave {len(out)} rows for {len(x)} records: one each")
        return out.detach().flatten(1).float().cpu()

    probe = torch.rand(_PROBE, *shape, generator=torch.Generator().manual_seed(0))
    together, alone = described(probe), torch.cat([described(probe[i : i + 1]) for i in range(_PROBE)])
    if together.shape != alone.shape or not torch.allclose(together, alone, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise SottovoceError(
            f"features={name} describes a record differently beside others, which no ε covers: put its "
            "module into eval mode, or describe records one by one"
        )
    return described, together.shape[1]
