"""The public facts about records: what a record is, agreed on before anybody looks at one.

They travel through datasets, agreements, specifications and model files in this one carrier. Normalization
constants are public values, never computed from clients' records: that would be an uncharged release.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from sottovoce.errors import SottovoceError, shown

MOST_DIMENSIONS, MOST_NUMBERS, MOST_CLASSES = 6, 2**24, 2**16
"""What a stranger's description of a record may reach."""


class FactsError(SottovoceError):
    """A description of records that cannot be one."""


@dataclass(frozen=True)
class Facts:
    """Shape of one record, number of classes, and one normalization constant, or one for each channel.

    `mean` and `std` are on the scale where bytes have been divided by 255.

    >>> Facts((1, 28, 28), 10, mean=(0.1307,), std=(0.3081,)).fields()["shape"]
    [1, 28, 28]
    """

    shape: tuple[int, ...]
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    source: Facts | None = None
    """What a record was before a public feature map described it; None where the model sees it itself."""

    def normalize(self, x: Tensor) -> Tensor:
        """Stored values (n, channels, ...) to float32 (x − mean)/std, bytes divided by 255 first."""
        per_channel = (-1,) + (1,) * (x.ndim - 2)
        mean = torch.tensor(self.mean, device=x.device).view(per_channel)
        std = torch.tensor(self.std, device=x.device).view(per_channel)
        scaled = x / 255 if x.dtype == torch.uint8 else x.float()
        return (scaled - mean).div_(std)

    def fields(self) -> dict[str, Any]:
        """As plain values, for TOML, JSON and model files."""
        lists = {name: list(getattr(self, name)) for name in ("shape", "mean", "std")}
        source = {} if self.source is None else {"source": self.source.fields()}
        return {**lists, "classes": self.classes, **source}

    def metadata(self) -> dict[str, str]:
        """As texts, for the header of a model file."""
        return {name: json.dumps(value) for name, value in self.fields().items()}

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """From `fields()` of another party: typed and bounded, or refused."""
        try:
            shape = tuple(_whole(size, MOST_NUMBERS) for size in fields["shape"])
            classes = _whole(fields["classes"], MOST_CLASSES)
            mean, std = (tuple(_number(value) for value in fields[name]) for name in ("mean", "std"))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            reason = shown(repr(error))
            raise FactsError(f"that does not describe records ({reason}): ask for the file again") from None
        if not 1 <= len(shape) <= MOST_DIMENSIONS or math.prod(shape) > MOST_NUMBERS:
            raise FactsError(f"records of shape {shown(shape)} are larger than any we know: check them")
        if len(mean) not in (1, shape[0]) or len(std) not in (1, shape[0]) or min(std) <= 0:
            raise FactsError("mean and std are one number, or one a channel, and std is positive: check them")
        source = None if fields.get("source") is None else cls.parse({**fields["source"], "source": None})
        return cls(shape, classes, mean, std, source)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Self:
        """From `metadata()`."""
        try:
            fields = {name: json.loads(metadata[name]) for name in ("shape", "classes", "mean", "std")}
            fields["source"] = json.loads(metadata.get("source", "null"))
        except (KeyError, ValueError, RecursionError) as error:
            reason = shown(repr(error))
            raise FactsError(f"that file does not say what its records are ({reason})") from None
        return cls.parse(fields)


def _whole(value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is not a whole number from 1 to {most}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]} is not a finite number")
    return float(value)
