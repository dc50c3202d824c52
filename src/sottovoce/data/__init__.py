"""Records and who holds them: named datasets, your own data, and their partition into clients.

`load` gives a `Dataset`, `divide` hands it out to participants and future clients; `check` reads every site
of a folder, or one, and says what is wrong before anything is charged; `read_inputs` gives records to
predict. Normalization constants are public and travel with the dataset; nothing in here releases anything
about a record, and what a check finds is for the eyes of whoever holds the files.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sottovoce.data.arrays import from_torch, read_array_parts, read_arrays, read_npz, read_stored_parts
from sottovoce.data.clients import (
    ClientRecords,
    FederatedDataset,
    check_sizes,
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
from sottovoce.data.pictures import content_of, pixels
from sottovoce.data.public import PUBLIC, FetchError, cache_folder, fetch, fetched
from sottovoce.data.section import DataError, canonical
from sottovoce.data.sites import (
    NONE,
    Copies,
    agreement,
    client_files,
    client_name,
    described,
    read_client,
    read_folder,
    read_one,
    unread_files,
)
from sottovoce.data.tables import schema
from sottovoce.data.tables.checks import Findings, UnusableFile, suspicions, verdict
from sottovoce.data.tables.columns import ArrayColumns, ColumnFindings, Values
from sottovoce.data.tables.encoding import Reader, Site, kinds_of, read_site
from sottovoce.data.tables.folders import Folder
from sottovoce.data.tables.held import MOST_FAULTS
from sottovoce.data.tables.readers import FORMATS, column_names, read_parts
from sottovoce.data.tables.schema import Description, tokens
from sottovoce.errors import SottovoceError, nearest
from sottovoce.plan.presets import FOLDERS

NAMES = ("mnist-small", *FOLDERS, *PUBLIC)
TABLES = [kind for kind in FORMATS if kind != ".npz"]
SHIPPED = Path(__file__).parent / "shipped"
"""What comes with the package: digits, and a folder of four hospitals."""


def load(name_or_path: str | Path, encoders: Mapping[str, str] = NONE) -> Dataset:
    """A dataset by name, or your own: a folder of sites with its `records.toml`, one site's file, an `.npz`.

    `encoders` are the names of public ones by kind, "image" or "text", for columns that name none.

    `mnist-small` and `heart` ship with the package; the other names are fetched into the cache at first use.

    >>> data = load("mnist-small")
    >>> len(data), data.facts.shape, data.facts.classes
    (10000, (1, 28, 28), 10)
    """
    name = str(name_or_path)
    if name == "mnist-small":
        return replace(read_npz(SHIPPED / "mnist-small.npz", name), public=True)
    if name in FOLDERS:
        return replace(read_folder(SHIPPED / name), name=name, home=None, public=True).identified()
    if name in PUBLIC:
        return replace(read_npz(fetch(name, logging.getLogger(__name__).info), name), public=True)
    path = Path(name).expanduser()
    if path.is_dir() and not described(path):
        return read_folder(path, encoders)
    if described(path) or path.suffix.lower() in TABLES:
        return read_one(path, encoders)
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


@dataclass(frozen=True)
class Check:
    """What was found in each client's file, and refusals of files that nobody reads."""

    agreed: Description
    sites: list[Findings]
    unread: list[str]
    alike: list[str]
    """Which sites share many records, a line each."""

    @property
    def problems(self) -> list[str]:
        """What refuses a client, a line each."""
        return [*self.unread, *(problem for site in self.sites for problem in site.problems)]

    @property
    def suspicions(self) -> list[str]:
        """What can be used and looks wrong, a line each."""
        found = (line for site in self.sites for line in suspicions(site, self.agreed))
        return [*self.agreed.uncovered, *self.alike, *found]

    def fields(self) -> dict[str, Any]:
        """For another program of the owner's."""
        return {
            "ok": not self.problems,
            "task": self.agreed.task,
            "unit": self.agreed.unit,
            "inputs": list(self.agreed.facts().shape),
            "records": sum(site.records for site in self.sites),
            "sites": [
                {
                    **asdict(site),
                    "verdict": verdict(site, self.agreed),
                    "suspicions": list(suspicions(site, self.agreed)),
                }
                for site in self.sites
            ],
            "unread": self.unread,
            "alike": self.alike,
            "looked_up": self.agreed.looked_up,
        }


def check(path: str | Path, progress: Callable[[str, int], None] = lambda client, clients: None) -> Check:
    """Checks every site of a folder, or the one in a file.

    `progress` is called with each client's name and the number of clients.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist: give a folder of sites, or one site's file")
    agreed = agreement(path)
    alone = described(path) or not path.is_dir()
    files = {client_name(path): path} if alone else client_files(path)
    sites, copies = [], Copies()
    for name, file in files.items():
        progress(name, len(files))
        sites.append(_findings(name, file, agreed, copies))
    unread = [] if alone else unread_files(path)
    return Check(agreed, sites, unread, copies.suspicions())


def _findings(name: str, path: Path, agreed: Description, copies: Copies) -> Findings:
    try:
        site = read_site(path, agreed)
        copied = copies.problem(name, site)
        site.findings.problems += [] if copied is None else [copied]
        site.findings.broken += _broken(site)
        return site.findings
    except UnusableFile as refused:
        return refused.findings
    except DataError as error:
        return Findings(name, problems=[str(error)])


def _broken(site: Site) -> list[str]:
    """Says which pictures begin as such and cannot be decoded: a run takes them for missing ones."""
    broken: list[str] = []
    for content in site.contents.values():
        if isinstance(content, Path) and len(broken) < MOST_FAULTS:
            try:
                pixels(content_of(content), 64)
            except DataError as error:
                broken.append(f"'{content.name}' {error}; it counts as missing")
    return broken


Part = tuple[Values, Mapping[str, list[str]], Mapping[str, ColumnFindings]]
"""Some records to predict: x as in `Facts`, columns that are kept as they stand, and what was odd."""


def read_inputs(
    path: Path, facts: Facts, keep: Sequence[str] = (), contents: dict[bytes, str | Path] | None = None
) -> Iterator[Part]:
    """The records to predict, in the file's order and in parts of bounded size; `facts` say what they are.

    Targets and units are not read; nothing is refused for what its cells hold. A record of an array that
    cannot be used is a row of NaN, or of −1 where records are tokens. What records of a part hold as digests
    is put into `contents` instead of what was there.
    """
    agreed = schema.of(facts)
    if agreed is None or (agreed.array is not None and path.suffix.lower() == ".npz"):
        kept, start = _kept(path, keep), 0
        if agreed is None:
            parts = read_stored_parts(path, facts.shape)
        else:
            parts = (Reader(path, agreed).stored(x) for x in read_array_parts(path, "x"))
        for x in parts:
            yield x, {name: cells[start : start + len(x)] for name, cells in kept.items()}, {}
            start += len(x)
        return
    numbers, texts = kinds_of(agreed, list(keep))
    folder = agreed.sites == "folders"
    for columns in [Folder(path, agreed.parts)] if folder else read_parts(path, numbers, texts):
        reader = Reader(path, agreed)
        columns.folder = path if folder else path.parent
        inputs = reader.inputs(columns, keep)
        if contents is not None:
            contents.clear()
            contents.update(reader.contents)
        yield inputs, {name: columns.texts(name).cells for name in keep}, reader.findings.columns


def _kept(path: Path, keep: Sequence[str]) -> dict[str, list[str]]:
    """Columns of an npz as they stand, to be kept beside predictions."""
    columns = ArrayColumns(read_arrays(path, keep))
    for name in keep:
        if name not in columns.names:
            raise DataError(f"{path} has no array '{name}' to keep: {nearest(name, column_names(path))}")
    return {name: columns.texts(name).cells for name in keep}
