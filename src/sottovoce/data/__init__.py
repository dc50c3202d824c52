"""Records and who holds them: named datasets, your own data, and their partition into clients.

`load` gives a `Dataset`, `divide` hands it out to participants and future clients. Normalization
constants are public and travel with the dataset; nothing in here releases anything about a record.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

from sottovoce.data.checking import Check, check
from sottovoce.data.clients import (
    ClientRecords,
    Clients,
    FederatedDataset,
    check_sizes,
    client_names,
    delta_doubt,
    divide,
    division,
    identified,
    scope,
    split_future,
    split_participant,
    split_seeds,
    training_size,
)
from sottovoce.data.dataset import Dataset, Facts, Records
from sottovoce.data.description import Description, tokens
from sottovoce.data.encoding import Site, read_site
from sottovoce.data.folder import client_files, described, read_client, read_folder, read_one
from sottovoce.data.own import DataError, from_torch, read_npz
from sottovoce.data.partitions import partition
from sottovoce.data.public import PUBLIC, FetchError, cache_folder, fetch, fetched
from sottovoce.data.tables import FORMATS
from sottovoce.errors import SottovoceError, nearest
from sottovoce.plan.presets import FOLDERS

__all__ = [
    "NAMES",
    "PUBLIC",
    "SHIPPED",
    "Check",
    "ClientRecords",
    "Clients",
    "DataError",
    "Dataset",
    "Description",
    "Facts",
    "FederatedDataset",
    "FetchError",
    "Records",
    "Site",
    "cache_folder",
    "check",
    "check_sizes",
    "client_files",
    "client_names",
    "copy_shipped",
    "delta_doubt",
    "divide",
    "division",
    "fetch",
    "fetched",
    "from_torch",
    "identified",
    "load",
    "partition",
    "read_client",
    "read_folder",
    "read_npz",
    "read_site",
    "scope",
    "split_future",
    "split_participant",
    "split_seeds",
    "tokens",
    "training_size",
]

NAMES = ("mnist-small", *FOLDERS, *PUBLIC)
TABLES = [kind for kind in FORMATS if kind != ".npz"]
SHIPPED = Path(__file__).parent / "shipped"
"""What comes with the package: digits, and a folder of four hospitals."""


def load(name_or_path: str | Path) -> Dataset:
    """A dataset by name, or your own: a folder of sites with its `records.toml`, one site's file, an `.npz`.

    `mnist-small` and `heart` ship with the package; the other names are fetched into the cache at first use.

    >>> data = load("mnist-small")
    >>> len(data), data.facts.shape, data.facts.classes
    (10000, (1, 28, 28), 10)
    """
    name = str(name_or_path)
    if name == "mnist-small":
        return replace(read_npz(SHIPPED / "mnist-small.npz", name), public=True)
    if name in FOLDERS:
        return replace(read_folder(SHIPPED / name), name=name, home=None, public=True)
    if name in PUBLIC:
        return replace(read_npz(fetch(name, logging.getLogger(__name__).info), name), public=True)
    path = Path(name).expanduser()
    if path.is_dir():
        return read_folder(path)
    if described(path) or path.suffix.lower() in TABLES:
        return read_one(path)
    if path.suffix == ".npz" or path.exists():
        return read_npz(path)
    raise SottovoceError(
        f"no dataset '{name}': {nearest(name, NAMES)} or give the path of your own; one that was made in "
        "Python is passed again, as dataset=…"
    )


def copy_shipped(name: str, to: Path) -> None:
    """A shipped folder of sites as one's own, where a ledger may lie beside the records."""
    if name not in FOLDERS:
        raise SottovoceError(f"no folder '{name}' is shipped: {nearest(name, FOLDERS)}")
    if to.exists():
        raise SottovoceError(f"{to} is there already: choose another folder")
    shutil.copytree(SHIPPED / name, to)
