"""The account that a client's records are charged to: in which ledger it stands, and under which name.

A client has one account, for training and onboarding alike. The clients of a folder of sites have theirs in
the folder's ledger, under their names, because simulations on the folder charge them there; a client by
itself has a ledger of its own beside its records. Where both are there, each counts what the other knows.
A name is the same in every Unicode form: macOS and Linux write `Zürich.csv` in different bytes. A link is the
file that it leads to, whose ledger is charged; what was ever charged where the link lies counts too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sottovoce.data.clients import NAMED
from sottovoce.data.columns import canonical
from sottovoce.data.description import NAME
from sottovoce.data.folder import LEDGER, client_files, described
from sottovoce.errors import SottovoceError, nearest
from sottovoce.files import locked
from sottovoce.privacy.ledger import OWN_RECORDS, Budget, Ledger, client_scope
from sottovoce.privacy.terms import Terms
from sottovoce.privacy.witness import Witness

OWN = ".ledger.sqlite"
"""How the ledger of one client ends; what comes before is the name of its file of records."""


@dataclass(frozen=True)
class Account:
    """One client's account: `name` in the ledger at `path`, which is about `scope`."""

    path: Path
    scope: str
    name: str
    others: Mapping[Path, str] = field(default_factory=dict)
    """Other ledgers that may have charged the same records, and the client's name in each."""

    @classmethod
    def of(cls, records: Path, terms: Terms) -> Self:
        """The account of the records in a file, by what their owner says and by what lies beside them."""
        name, everywhere = called(records, terms), ledgers_of(records, terms)
        if terms.ledger is None:
            shared = next((path for path, there in everywhere.items() if there != OWN_RECORDS), None)
        else:
            shared = _of_several(Path(terms.ledger))
        if shared is not None:
            return cls(shared, NAMED, _known(shared, everywhere.get(shared, name)), everywhere)
        path = own_ledger(records) if terms.ledger is None else Path(terms.ledger)
        return cls(path, client_scope(name), OWN_RECORDS, everywhere)

    @property
    def client(self) -> str:
        """The client's name in a ledger of several; nothing where the ledger is its own."""
        return "" if self.name == OWN_RECORDS else self.name

    @contextmanager
    def open(self) -> Iterator[Ledger]:
        """The ledger, locked, and charged for what the client has spent in a ledger of its own."""
        lock = self.path.with_name(f"{self.path.name}.lock")
        with Ledger.open(self.path, scope=self.scope) as ledger, locked(lock):
            ledger.count(self.name, self.others)
            yield ledger

    def budget(self, ledger: Ledger, terms: Terms) -> Budget:
        """What holds for this client. Only a word of its owner is remembered in a ledger of several."""
        if self.client and terms.epsilon is None and terms.delta is None:
            return ledger.allowed
        return ledger.willing(terms.epsilon, terms.delta)


def called(records: Path, terms: Terms) -> str:
    """What the client of a file is called, in ledgers, models and towards a server.

    A link in a folder of sites names its client; any other link is called as the file that it leads to.
    """
    return canonical(terms.client or (records if described(records) else records.resolve()).stem)


def own_ledger(records: Path) -> Path:
    """The ledger of a client by itself, beside its file of records, wherever links to that file lie."""
    return _beside(records.resolve())


def ledgers_of(records: Path, terms: Terms) -> dict[Path, str]:
    """Every ledger that may have charged these records, and the client's name in each.

    Those of the folder that the file, or a link to it, lies in; the client's own, and the one that earlier
    versions began beside a link.
    """
    found = dict[Path, str]()
    for file in (records.parent.resolve() / records.name, records.resolve()):
        if (shared := folder_ledger(file)) is not None:
            found[shared] = called(file, terms)
        found[_beside(file)] = OWN_RECORDS
    return found


def _beside(records: Path) -> Path:
    """NAME.ledger.sqlite beside NAME.csv, in whichever Unicode form it is there."""
    path = records.with_suffix(OWN)
    if not (path.exists() or Witness(path).path.exists()):
        for other in sorted(path.parent.glob(f"*{OWN}*")):
            name = other.name.removesuffix(".witness")
            if canonical(name) == canonical(path.name):
                return path.with_name(name)
    return path


def folder_ledger(records: Path) -> Path | None:
    """The ledger of the folder of sites that a client's file lies in, if anything was charged in it."""
    return _of_several(records.with_name(LEDGER)) if described(records) else None


def _of_several(ledger: Path) -> Path | None:
    """The ledger, if there is one and its clients are known by their names."""
    known = Witness(ledger).read()
    if known is None and not ledger.exists():
        return None
    if known is None:
        with Ledger.open(ledger, scope=None) as book:
            return ledger if book.scope == NAMED else None
    return ledger if known.scope == NAMED else None


def _known(ledger: Path, client: str) -> str:
    """The name, if it is one of the folder's: a new name would be a new account, with nothing spent."""
    names = set(client_files(ledger.parent)) if (ledger.parent / NAME).exists() else set()
    if client not in names and ledger.exists():
        with Ledger.open(ledger, scope=None) as book:
            names.update(book.clients())
    if client not in names:
        raise SottovoceError(
            f"{ledger} is the ledger of several clients, and '{client}' is none of them: say --client NAME, "
            f"{nearest(client, sorted(names))}"
        )
    return client
