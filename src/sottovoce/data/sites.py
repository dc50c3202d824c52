"""A folder of sites: `records.toml` and one file for each client, named after it; or one such file alone.

The file of records that one client holds, read for a run whose public facts were fixed elsewhere.

Shape, classes and normalization constants are the run's, never the file's own: a constant computed from a
client's records would be an uncharged release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.data.arrays import read_arrays, read_npz, whole_labels
from sottovoce.data.dataset import Dataset, Facts, Records, joined
from sottovoce.data.pictures import SUFFIXES
from sottovoce.data.section import DataError, canonical
from sottovoce.data.tables import schema
from sottovoce.data.tables.checks import without_unusable
from sottovoce.data.tables.encoding import Site, read_site
from sottovoce.data.tables.folders import pictures_in
from sottovoce.data.tables.readers import FORMATS, column_names
from sottovoce.data.tables.schema import NAME, Description
from sottovoce.data.units import contents, of_records
from sottovoce.errors import visible

LEDGER = "ledger.sqlite"
"""What all runs on a folder have spent, an account for each client."""
APART = re.compile(
    rf"{NAME}|(.+\.)?{LEDGER}.*|.*\.safetensors|.*\.card\.md|.*\.onnx|(.*\.)?home\.log|(README|LICENSE|LICENCE)(\..*)?",
    re.IGNORECASE,
)
"""Files beside those of clients that nobody takes for one: the agreement, ledgers, models, words."""
HIDDEN = re.compile(r"\.|~\$")
"""How names of hidden files begin; Excel leaves one beside a workbook that is open."""
FEW = 10
"""Different records of a site below which it is not compared with others."""
SAVE = {".xls": "save it as .xlsx or .csv", ".gz": "unpack it", ".zip": "unpack it"}
NONE: Mapping[str, str] = {}
CLIENT = re.compile(r"\w[\w .@+-]{0,99}")
"""What a client may be called: its name stands in ledgers, lists and file names."""


def described(path: Path) -> bool:
    """Returns whether a file of records has an agreement beside it."""
    if path.is_dir():
        return not (path / NAME).exists() and (path.parent / NAME).exists() and _of_folders(path.parent)
    return path.suffix.lower() in FORMATS and (path.parent / NAME).exists()


def _has_pictures(folder: Path) -> bool:
    """Returns whether records of a folder are agreed to have pictures."""
    with suppress(DataError):
        return any(column.kind == "image" for column in Description.load(folder / NAME).columns.values())
    return False


def _of_folders(folder: Path) -> bool:
    """Returns whether the sites of a folder are folders of pictures."""
    with suppress(DataError):  # what is wrong with it is said where it is used
        return Description.load(folder / NAME).sites == "folders"
    return False


def agreement(path: Path) -> Description:
    """The agreement of a folder, or of the folder that a client's file lies in."""
    own = path.is_dir() and not described(path)
    return Description.load((path if own else path.parent) / NAME)


def bare_name(path: Path) -> str:
    """The name of a file without its ending, or of a folder, which has none."""
    return path.name if path.is_dir() else path.stem


def client_name(path: Path) -> str:
    """The client that a file, or a folder of pictures, is named after."""
    name = canonical(bare_name(path))
    if not CLIENT.fullmatch(name):
        odd = ", ".join(dict.fromkeys(repr(c) for c in name if not re.fullmatch(r"[\w .@+-]", c)))
        fault = f"for {odd}" if odd else "it begins with no letter or digit, or is longer than 100 letters"
        named = visible(path.name)
        raise DataError(
            f"{named} cannot name a client ({fault}): rename it with letters, digits, spaces and . @ + - _"
        )
    return name


def site_files(folder: Path) -> list[Path]:
    """Files of a folder that may be of clients, in the order of their names; or its folders of pictures."""
    if _of_folders(folder):
        shown = (path for path in folder.iterdir() if path.is_dir() and not HIDDEN.match(path.name))
        return sorted(path for path in shown if pictures_in(path))  # runs and models may lie there, too
    files = (path for path in folder.iterdir() if path.suffix.lower() in FORMATS and not path.is_dir())
    return sorted(path for path in files if not HIDDEN.match(path.name))


def client_files(folder: Path) -> dict[str, Path]:
    """The clients of a folder by name, in the order of their names; other files are left alone."""
    try:
        files = site_files(folder)
    except OSError as error:
        raise DataError(f"cannot read {folder} ({error.strerror}): check the path") from None
    clients: dict[str, Path] = {}
    for path in files:
        name = client_name(path)
        if name in clients:
            raise DataError(f"{path.name} and {clients[name].name} are one client: keep one of them")
        clients[name] = path
    _different(clients)
    if not clients:
        raise DataError(f"{folder} has no file of a client ({', '.join(FORMATS)}): put one for each there")
    return dict(sorted(clients.items()))


def unread_files(folder: Path) -> list[str]:
    """Refusals of files that no run reads and that may be somebody's records, a line each.

    A folder that is called like a file of records, as other programs write Parquet, is one of them.
    """
    refused: list[str] = []
    if _of_folders(folder):
        return refused
    pictures = _has_pictures(folder)
    for path in sorted(folder.iterdir()):
        if pictures and path.suffix.lower() in SUFFIXES:  # cells of tables name them
            continue
        kind, remedy = path.suffix.lower(), f"save it as one of {', '.join(FORMATS)}"
        if HIDDEN.match(path.name) or path.is_dir() != (kind in FORMATS) or APART.fullmatch(path.name):
            continue
        remedy = "make one file of the folder" if path.is_dir() else SAVE.get(kind, remedy)
        refused.append(f"{path} is not read: {remedy}, or move it out of this folder")
    return refused


class Copies:
    """Notices files that hold the same records under two names: they would be charged twice.

    What it remembers is made of records and stays here.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, str] = {}
        self._records: dict[str, npt.NDArray[np.int64]] = {}

    def first(self, name: str, x: Tensor, y: Tensor) -> str | None:
        """Returns who else was seen to hold exactly the records that this client holds."""
        records = np.sort(contents(x, y)[:, 0].numpy())
        first = self._seen.setdefault(records.tobytes(), name)
        if first == name:
            self._records[name] = records
            return None
        return first

    def problem(self, name: str, site: Site) -> str | None:
        """Returns why this site is refused, if its records are another's."""
        first = self.first(name, torch.from_numpy(site.x), torch.from_numpy(site.y))
        if first is None:
            return None
        return (
            f"{name} holds the same records as {first}: two accounts would spend their privacy, and neither "
            "would know; remove one of the files"
        )

    def suspicions(self) -> list[str]:
        """Says which two sites have half of the records of one in common, as of a file that was continued.

        Only where hardly any record occurs twice in a site: where records say little, sites share some.
        """
        once = {name: np.unique(records) for name, records in self._records.items()}
        telling = [name for name, own in once.items() if len(own) >= max(FEW, 0.9 * len(self._records[name]))]
        if len(telling) < 2:
            return []
        owner = np.repeat(np.arange(len(telling)), [len(once[name]) for name in telling])
        records = np.concatenate([once[name] for name in telling])
        order = np.argsort(records, kind="stable")
        again = np.flatnonzero(records[order][1:] == records[order][:-1])
        pairs = np.stack([owner[order][again], owner[order][again + 1]], axis=1)
        found = zip(*np.unique(pairs, axis=0, return_counts=True), strict=True)
        told = [(telling[one], telling[other], int(count)) for (one, other), count in found]
        return [
            f"{other} has {count} records that {one} has too: if one was copied from the other, two accounts "
            "spend their privacy; keep each record in one file"
            for one, other, count in told
            if 2 * count > min(len(once[one]), len(once[other]))
        ]


def read_folder(folder: Path, encoders: Mapping[str, str] = NONE) -> Dataset:
    """All clients of a folder as one dataset with their names; refused at the first that cannot be used.

    `encoders` by kind are those of columns that name none.
    """
    agreed, copies = agreement(folder).encoded_by(encoders), Copies()
    facts, sites = agreed.facts(), {}
    for refusal in unread_files(folder)[:1]:
        raise DataError(refusal)
    for name, path in client_files(folder).items():
        site = read_site(path, agreed)
        refused = copies.problem(name, site)
        if refused is not None:
            raise DataError(refused)
        sites[name] = site.dataset(facts)
    return replace(joined(str(folder), sites), home=folder)


def read_one(path: Path, encoders: Mapping[str, str] = NONE) -> Dataset:
    """One client's file, by the agreement beside it: a dataset with one client."""
    agreed = agreement(path).encoded_by(encoders)
    return joined(str(path), {client_name(path): read_site(path, agreed).dataset(agreed.facts())})


def _different(clients: dict[str, Path]) -> None:
    """Refuses one file under two names: its records would be protected twice and spent twice."""
    seen: dict[tuple[int, int], str] = {}
    for name, path in clients.items():
        try:
            status = path.stat()
        except OSError as error:
            raise DataError(f"cannot read {path} ({error.strerror}): check the file or its link") from None
        first = seen.setdefault((status.st_dev, status.st_ino), name)
        if first != name:
            raise DataError(f"{name} and {first} are the same file: remove one of the links")


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
    agreed = schema.of(facts)
    if agreed is not None:
        site = read_site(path, agreed, target=labels, limited=limited).dataset(facts).identified()
        records = Records(normalize(site.x), site.y, site.unit, site.identity, site.contents)
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
    agreed = schema.of(facts)
    if agreed is not None and agreed.sites == "folders":
        return True
    names = set(column_names(path))
    return "y" in names or (agreed is not None and names.issuperset(agreed.target.sources))
