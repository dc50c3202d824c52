"""Feature maps of one's own: `features=package.module:function`, named on this machine, never by a message.

The function is called once with the shape of a record and returns the map: a callable from raw records
(n, …), pictures on the scale from 0 to 1, to numbers (n, k). It must treat records one by one. Its attribute
`version` (a text) says under which name its features are kept; without one, the source of its module does.
Its attribute `public_pretraining` says whether it has learned from other people's public data: true by
default.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.features.maps import FeatureMap, Projection
from sottovoce.models import imported, reason

_PROBE = 3
_TOLERANCE = 1e-3


class LocalMapError(SottovoceError):
    """A function that cannot be a feature map."""


def open_local(
    name: str, shape: tuple[int, ...], *, size: int = 0, mirror: bool = False, seed: int = 0
) -> FeatureMap:
    """The map that this machine's owner calls `name`, for records of `shape`; `size` and `mirror` as ever."""
    described = _opened(name, shape)
    if mirror and len(shape) != 3:
        raise LocalMapError(
            f"mirror=true is for pictures, not for records of shape {shape}: set mirror=false"
        )

    def part(x: Tensor, mirrored: bool) -> Tensor:
        return described(x) + described(x.flip(-1)) if mirrored else described(x)

    full = described(torch.zeros(1, *shape)).shape[1]
    if size > full:
        raise LocalMapError(f"feature_size={size}, but {name} has {full} numbers: choose at most that, or 0")
    return FeatureMap(
        name=name,
        shape=shape,
        size=size or full,
        mirror=mirror,
        public_pretraining=pretrained(name),
        parts=(part,),
        weights=(1.0,),
        projection=Projection.drawn(full, size, seed) if size else None,
    )


def pretrained(name: str) -> bool:
    """Whether public data of other people may be in a map: unless its owner has declared that it is not."""
    return bool(getattr(imported("features", name), "public_pretraining", True))


def fingerprint(name: str) -> str:
    """What distinguishes the map's features from those of another version of it."""
    factory = imported("features", name)
    version = getattr(factory, "version", None)
    if version is None:
        try:
            version = inspect.getsource(inspect.getmodule(factory) or factory)
        except (OSError, TypeError):
            raise LocalMapError(
                f"features={name} has no source to tell its versions apart: give the function an attribute "
                "version, a text"
            ) from None
    return hashlib.sha256(repr((name, str(version))).encode()).hexdigest()


@lru_cache(maxsize=4)
def _opened(name: str, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """The map as a function to float32 (n, k), tried on made-up records: it must not mix them."""
    try:
        inner = imported("features", name)(shape)
    except SottovoceError:
        raise
    except Exception as error:
        raise LocalMapError(f"features={name} fails for records of shape {shape}: {reason(error)}") from error

    def described(x: Tensor) -> Tensor:
        try:
            out = torch.as_tensor(inner(x))
        except Exception as error:
            raise LocalMapError(f"features={name} fails: {reason(error)}") from error
        if len(out) != len(x):
            raise LocalMapError(f"features={name} gave {len(out)} rows for {len(x)} records: one each")
        return out.detach().flatten(1).float().cpu()

    probe = torch.rand(_PROBE, *shape, generator=torch.Generator().manual_seed(0))
    together, alone = described(probe), torch.cat([described(probe[i : i + 1]) for i in range(_PROBE)])
    if together.shape != alone.shape or not torch.allclose(together, alone, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise LocalMapError(
            f"features={name} describes a record differently beside others, which no ε covers: put its "
            "module into eval mode, or describe records one by one"
        )
    return described
