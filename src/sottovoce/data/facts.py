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

from sottovoce.catalog import TASKS
from sottovoce.errors import SottovoceError, shown

MOST_DIMENSIONS, MOST_NUMBERS, MOST_CLASSES = 6, 2**24, 2**16
MOST_TEXT = 2**20
"""What a stranger's description of a record may reach."""


class FactsError(SottovoceError):
    """A description of records that cannot be one."""


@dataclass(frozen=True)
class Facts:
    """Shape of one record, number of classes, and one normalization constant, or one for each channel.

    `mean` and `std` are on the scale where bytes have been divided by 255. `classes` is the number of a
    model's outputs: classes, labels, or 1 for a number; `class_names` names them where names are known.
    `columns` is the text of `records.toml` where one was agreed on (`description.of` reads it): with it a
    model file says by itself how a row of a table becomes a record.

    >>> Facts((1, 28, 28), 10, mean=(0.1307,), std=(0.3081,)).fields()["shape"]
    [1, 28, 28]
    """

    shape: tuple[int, ...]
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    source: Facts | None = None
    """What a record was before a public feature map described it; None where the model sees it itself."""
    task: str = "classes"
    class_names: tuple[str, ...] = ()
    columns: str = ""

    def normalize(self, x: Tensor) -> Tensor:
        """Stored values (n, channels, ...) to float32 (x − mean)/std, bytes divided by 255 first.

        Tokens (int64) stay what they are.
        """
        if x.dtype == torch.int64:
            return x
        per_channel = (-1,) + (1,) * (x.ndim - 2)
        mean = torch.tensor(self.mean, device=x.device).view(per_channel)
        std = torch.tensor(self.std, device=x.device).view(per_channel)
        scaled = x / 255 if x.dtype == torch.uint8 else x.float()
        return (scaled - mean).div_(std)

    def fields(self) -> dict[str, Any]:
        """As plain values, for TOML, JSON and model files; what is not known is left out."""
        lists = {name: list(getattr(self, name)) for name in ("shape", "mean", "std")}
        source = {} if self.source is None else {"source": self.source.fields()}
        named = {"task": self.task, "class_names": list(self.class_names), "columns": self.columns}
        known = {name: value for name, value in named.items() if value not in ("classes", [], "")}
        return {**lists, "classes": self.classes, **known, **source}

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
            task, names, columns = _named(fields, classes)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            reason = shown(repr(error))
            raise FactsError(f"that does not describe records ({reason}): ask for the file again") from None
        if not 1 <= len(shape) <= MOST_DIMENSIONS or math.prod(shape) > MOST_NUMBERS:
            raise FactsError(f"records of shape {shown(shape)} are larger than any we know: check them")
        if len(mean) not in (1, shape[0]) or len(std) not in (1, shape[0]) or min(std) <= 0:
            raise FactsError("mean and std are one number, or one a channel, and std is positive: check them")
        source = fields.get("source")
        if not isinstance(source, Mapping | None):
            raise FactsError(
                "what a record was before its feature map is not described: ask for the file again"
            )
        before = None if source is None else cls.parse({**source, "source": None})
        return cls(shape, classes, mean, std, before, task, names, columns)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Self:
        """From `metadata()`."""
        try:
            fields = {name: json.loads(metadata[name]) for name in ("shape", "classes", "mean", "std")}
            optional = [name for name in ("task", "class_names", "columns") if name in metadata]
            fields |= {name: json.loads(metadata[name]) for name in optional}
            fields["source"] = json.loads(metadata.get("source", "null"))
        except (KeyError, ValueError, RecursionError) as error:
            reason = shown(repr(error))
            raise FactsError(f"that file does not say what its records are ({reason})") from None
        return cls.parse(fields)


def _named(fields: Mapping[str, Any], classes: int) -> tuple[str, tuple[str, ...], str]:
    """Task, names of classes and text of `records.toml`: absent in descriptions that know none of them."""
    task, names, columns = (
        fields.get("task", "classes"),
        fields.get("class_names", []),
        fields.get("columns", ""),
    )
    if task not in TASKS:
        raise ValueError(f"{str(task)[:40]} is no task")
    if not isinstance(names, list | tuple) or len(names) not in (0, classes):
        raise ValueError(f"class_names are not {classes} names")
    if not all(isinstance(text, str) and len(text) <= MOST_TEXT for text in (*names, columns)):
        raise ValueError("class_names and columns are not texts of a sensible length")
    if not all(name.isprintable() for name in names):
        raise ValueError("class_names are not names of one line")
    return task, tuple(names), columns


def _whole(value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is not a whole number from 1 to {most}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]} is not a finite number")
    return float(value)
