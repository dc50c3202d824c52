"""The file of records that one client holds, read for a run whose public facts were fixed elsewhere.

Shape, classes and normalization constants are the run's, never the file's own: a constant computed from a
client's records would be an uncharged release.
"""

from __future__ import annotations

from pathlib import Path

import torch

from sottovoce.data import description
from sottovoce.data.dataset import Records
from sottovoce.data.encoding import read_site
from sottovoce.data.facts import Facts
from sottovoce.data.identity import of_records
from sottovoce.data.own import DataError, read_npz
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
    own = read_npz(path, labels=labels, shape=facts.shape)
    if own.facts.shape != facts.shape:
        raise DataError(f"{path} holds records of shape {own.facts.shape}, the run is about {facts.shape}")
    if int(own.y.max()) >= facts.classes:
        raise DataError(f"{path} has label {int(own.y.max())}, the run knows 0 to {facts.classes - 1}")
    if len(own) < needed:
        raise DataError(f"{path} holds {len(own)} records: this run needs {needed}")
    return Records(normalize(own.x), own.y, identity=of_records(own.x, own.y))


def has_target(path: Path, facts: Facts) -> bool:
    """Whether a client's file has a place for what is to be predicted; it may still be empty."""
    agreed, names = description.of(facts), set(column_names(path))
    return "y" in names or (agreed is not None and names.issuperset(agreed.target.sources))
