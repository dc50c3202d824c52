"""The file of records that one client holds, read for a run whose public facts were fixed elsewhere.

Shape, classes and normalization constants are the run's, never the file's own: a constant computed from a
client's records would be an uncharged release.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.data import description
from sottovoce.data.arrays import without_unusable
from sottovoce.data.dataset import Dataset, Records
from sottovoce.data.encoding import read_site
from sottovoce.data.facts import Facts
from sottovoce.data.identity import of_records
from sottovoce.data.own import DataError, read_arrays, read_npz, whole_labels
from sottovoce.data.tables import column_names


def read_client(
    path: Path,
    *,
    facts: Facts,
    needed: int,
    labels: bool = True,
    raw: bool = False,
    limited: bool = True,
) -> Records:
    """At least `needed` records of a file, normalized with the run's constants, in the file's order.

    CSV and Parquet are read, and an .npz too, by the `records.toml` in the run's facts where there is one.
    `raw` records are not normalized, only on the scale from 0 to 1 if they were bytes: for feature maps.
    `limited` as in `read_site`.
    """
    normalize = (Facts(facts.shape, facts.classes) if raw else facts).normalize
    agreed = description.of(facts)
    if agreed is not None:
        site = read_site(path, agreed, target=labels, limited=limited)
        unit = None if site.unit is None else torch.from_numpy(site.unit)
        x, y = torch.from_numpy(site.x), torch.from_numpy(site.y)
        identity = of_records(x, y) if site.identity is None else site.identity
        records = Records(normalize(x), y, unit, identity)
        if records.units < needed:
            what = "records" if agreed.unit is None else f"units ({agreed.unit})"
            raise DataError(f"{path} holds {records.units} {what}: this run needs {needed}")
        return records
    own = read_npz(path, labels=labels and limited, shape=facts.shape)
    if own.facts.shape != facts.shape:
        raise DataError(f"{path} holds records of shape {own.facts.shape}, the run is about {facts.shape}")
    if int(own.y.max()) >= facts.classes:
        raise DataError(f"{path} has label {int(own.y.max())}, the run knows 0 to {facts.classes - 1}")
    if len(own) < needed:
        raise DataError(f"{path} holds {len(own)} records: this run needs {needed}")
    x, y = own.x, own.y
    if labels and not limited:  # a label that nobody knows is that record's affair
        x, y = _with_labels(own, facts.classes, read_arrays(path, ["y"]))
    return Records(normalize(x), y, identity=of_records(x, y))


def _with_labels(own: Dataset, classes: int, arrays: dict[str, npt.NDArray[Any]]) -> tuple[Tensor, Tensor]:
    """Records with their labels; one whose label is none of the classes cannot be used."""
    if "y" not in arrays or arrays["y"].shape != (len(own),):
        raise DataError(f"{own.name} has no array 'y' of {len(own)} labels: give one label a record")
    labels = whole_labels(own.name, arrays["y"])
    known = (labels >= 0) & (labels < classes)
    x, whole = without_unusable(own.x.numpy(), labels.numpy(), known.numpy())
    return torch.from_numpy(x), torch.from_numpy(whole)


def has_target(path: Path, facts: Facts) -> bool:
    """Returns whether a client's file has a place for what is to be predicted; it may still be empty."""
    agreed, names = description.of(facts), set(column_names(path))
    return "y" in names or (agreed is not None and names.issuperset(agreed.target.sources))
