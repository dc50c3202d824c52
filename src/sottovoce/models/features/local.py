"""A feature map of one's own: `features=package.module:function`, named on this machine, never by a message.

The function is called once with the shape of a record and returns the map: a callable from raw records (n,
…), pictures on the scale from 0 to 1, to numbers (n, k). It is given a copy of one record, and the next when
it is done, so that nothing that it does can mix two of them; one that it fails on counts as a record that
cannot be used. What it could still keep in a memory of its own is tried before anything else: on public
records, forwards and backwards, each must get the same bits.

The function's attribute `version` (a text) says under which name its features are kept; without one, the
source of its module does. What it makes of the public records counts too, so that other weights are noticed.
Its attribute `public_pretraining` says whether it has learned from other people's public data: true by
default.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.machine.determinism import one_core
from sottovoce.models.imports import imported, made_at_home, reason

log = logging.getLogger("sottovoce.features")
_SCALES = (1.0, 1.0, 1.0, 10.0, -100.0, 1e4)
"""Of public records; beyond 1 they are whole numbers, as tokens are."""
_PLAIN = 3
"""The first of them, which any map describes."""
_ALIKE = 0.05
"""A module that is not in eval mode differs by more, a GPU of few digits by less."""


class LocalMap:
    """A map of one's own, from records (n, …) to float32 (n, size), one after the other."""

    def __init__(self, name: str, inner: Callable[[Tensor], Any], shape: tuple[int, ...]) -> None:
        self._name, self._inner = name, inner
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self.size = 0
        """Numbers of a description; what has others is none."""
        public = _public(shape)
        self.size = self._row(public[:1]).shape[1]
        forwards, backwards = self._rows(public), self._rows(public.flip(0)).flip(0)
        if not bool(((forwards == backwards) | (forwards.isnan() & backwards.isnan())).all()):
            raise SottovoceError(
                f"features={name} describes a record differently after others, which no ε covers: put its "
                "module into eval mode, or let it forget what it has seen"
            )
        self._check_batch(public[:_PLAIN], forwards[:_PLAIN])
        self.digest = hashlib.sha256(forwards.numpy().tobytes()).hexdigest()
        """A fingerprint of what it makes of public records, on this machine."""

    def __call__(self, x: Tensor) -> Tensor:
        """Records (n, …) to (n, size); NaN where the map fails."""
        return self._rows(x, self._tell)

    def _check_batch(self, public: Tensor, alone: Tensor) -> None:
        """Refuses what its author did not mean: a map that describes records by each other."""
        try:
            together = torch.as_tensor(self._inner(public.clone())).detach().flatten(1).float().cpu()
        except Exception:  # it takes single records, and gets no others
            return
        if together.shape != alone.shape or not bool((together - alone).norm() <= _ALIKE * alone.norm()):
            raise SottovoceError(
                f"features={self._name} describes a record differently beside others: put its module into "
                "eval mode, or describe records one by one"
            )

    def _row(self, record: Tensor) -> Tensor:
        try:
            out = torch.as_tensor(self._inner(record.clone()))
        except Exception as error:
            raise SottovoceError(f"features={self._name} fails: {reason(error)}") from error
        if len(out) != 1:
            raise SottovoceError(f"features={self._name} gave {len(out)} rows for 1 record: one each")
        row = out.detach().flatten(1).float().cpu()
        if row.shape[1] != (self.size or row.shape[1]):
            raise SottovoceError(f"features={self._name} gave {row.shape[1]} numbers, not {self.size}")
        return row

    def _rows(self, x: Tensor, failed: Callable[[SottovoceError], None] = lambda _: None) -> Tensor:
        rows = [torch.empty(0, self.size)]
        with self._lock:
            for record in torch.split(x, 1):
                try:
                    rows.append(self._row(record))
                except SottovoceError as error:
                    failed(error)
                    rows.append(torch.full((1, self.size), torch.nan))
        return torch.cat(rows)

    def _tell(self, error: SottovoceError) -> None:
        if str(error) not in self._told:
            log.warning("%s; such records cannot be used", error)
        self._told.add(str(error))


def _public(shape: tuple[int, ...]) -> Tensor:
    """Made-up records: small numbers and large, some with a hole, one empty."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(len(_SCALES), *shape, generator=generator)
    scaled = [one if scale == 1 else (scale * one).floor() for scale, one in zip(_SCALES, x, strict=True)]
    holed = torch.where(torch.rand(2, *shape, generator=generator) < 0.3, torch.nan, x[:2])
    return torch.cat([torch.stack(scaled), holed, torch.zeros(1, *shape)])


@lru_cache(maxsize=4)
def opened(name: str, shape: tuple[int, ...]) -> LocalMap:
    """The map, tried."""
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
    with torch.no_grad(), one_core():
        return LocalMap(name, inner, shape)


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
