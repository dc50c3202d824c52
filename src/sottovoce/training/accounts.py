"""Which ledger is whose: the account that records are charged to, and every other that may know of them.

A client has one account, for training and onboarding alike. The clients of a folder of sites have theirs in
the folder's ledger, under their names, because simulations on the folder charge them there; a client by
itself, and one that takes part in a federation, has a ledger of its own beside its records. Where there are
several, each counts what the others know.

A ledger's own memory lies beside it (`privacy.past`). So do the keys of contexts that left when somebody was
onboarded: one whose context the ledger does not know tells that the ledger was deleted or restored, even if
nothing else does, and the context is charged, whoever opens the account.

A name is the same in every Unicode form: macOS and Linux write `Zürich.csv` in different bytes. A link is the
file that it leads to, whose ledger is charged; what was ever charged where the link lies counts too.
"""

from __future__ import annotations

import glob
import logging
import math
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sottovoce.data import Dataset
from sottovoce.data.clients import NAMED
from sottovoce.data.section import canonical
from sottovoce.data.sites import LEDGER, bare_name, client_files, described
from sottovoce.data.tables.schema import NAME
from sottovoce.errors import SottovoceError, nearest
from sottovoce.machine.files import PRIVATE, locked
from sottovoce.machine.rollback import Memory
from sottovoce.plan import Plan
from sottovoce.privacy.accounting import Budget, Charge
from sottovoce.privacy.history import Remembered
from sottovoce.privacy.ledger import OWN_RECORDS, Ledger, client_scope
from sottovoce.privacy.terms import Terms

log = logging.getLogger("sottovoce.account")

_KEY = 32
PRICE = struct.Struct("<d")
OWN = ".ledger.sqlite"
"""How the ledger of one client ends; what comes before is the name of its file of records."""


@dataclass(frozen=True)
class Account:
    """The account of a file of records: `name` in the ledger at `path`, which is about `scope`."""

    path: Path
    scope: str
    name: str
    records: Path
    terms: Terms

    @classmethod
    def of(cls, records: Path, terms: Terms) -> Self:
        """By what the owner of the records says and by what lies beside them."""
        everywhere = ledgers_of(records, terms)
        shared = next((path for path, there in everywhere.items() if there != OWN_RECORDS), None)
        if terms.ledger is not None:
            shared = _of_several(Path(terms.ledger))
        if shared is None:
            return cls.alone(records, terms)
        name = everywhere.get(shared, called(records, terms))
        return cls(shared, NAMED, _known(shared, name), records, terms)

    @classmethod
    def alone(cls, records: Path, terms: Terms, directory: Path | None = None) -> Self:
        """In a ledger of the client's own; version 0.1 had it in a node's `directory`."""
        path = _beside(_led_to(records)) if terms.ledger is None else Path(terms.ledger)
        if directory is not None and terms.ledger is None and Memory(directory / LEDGER).begun:
            path = directory / LEDGER
        return cls(path, client_scope(called(records, terms)), OWN_RECORDS, records, terms)

    @property
    def client(self) -> str:
        """What the client is called."""
        return called(self.records, self.terms) if self.name == OWN_RECORDS else self.name

    @property
    def shared(self) -> bool:
        """Returns whether the ledger is about several clients."""
        return self.name != OWN_RECORDS

    @property
    def model_file(self) -> Path:
        """Where a personal model goes: beside the ledger, under the client's name where it is not alone."""
        alone = not any(other != self.path for other in self.path.parent.glob(f"*{OWN}"))
        return self.path.with_name("personal.safetensors" if alone else f"{self.client}.personal.safetensors")

    @contextmanager
    def open(self) -> Iterator[Ledger]:
        """The ledger, locked, and charged for what the client has spent in any other."""
        lock = self.path.with_name(f"{self.path.name}.lock")
        with Ledger.open(self.path, scope=self.scope) as ledger, locked(lock):
            charge_kept(ledger, [self.name])
            ledger.count(self.name, ledgers_of(self.records, self.terms))
            yield ledger

    def budget(self, ledger: Ledger) -> Budget:
        """Returns what holds for this client. Only a word of its owner is kept in a ledger of several."""
        if self.shared and self.terms.epsilon is None and self.terms.delta is None:
            return ledger.allowed
        return ledger.willing(self.terms.epsilon, self.terms.delta)


def called(records: Path, terms: Terms) -> str:
    """Returns what the client of a file is called, in ledgers, models and towards a server.

    A link in a folder of sites names its client; any other link is called as the file that it leads to.
    """
    return canonical(terms.client or bare_name(records if described(records) else _led_to(records)))


def ledgers_of(records: Path, terms: Terms | None = None, *, but: Path | None = None) -> dict[Path, str]:
    """Every ledger that may have charged these records, and the client's name in each, `but` for one.

    Those of the folder that the file, or a link to it, lies in; the client's own, and the one that earlier
    versions began beside a link.
    """
    found = dict[Path, str]()
    for file in (records, _led_to(records)):
        folders = file.with_name(LEDGER)
        if described(file) and folders.absolute() != but and _of_several(folders) is not None:
            found[folders] = called(file, terms or Terms())
        found[_beside(file)] = OWN_RECORDS
    return found


def folder_ledger(plan: Plan, records: Dataset) -> Path | None:
    """The ledger of all runs on a folder of clients; None where every run has one of its own.

    A seeded simulation protects nobody: what it spends is not added to what real runs have spent.
    """
    return None if records.home is None or plan.seeded else records.home / LEDGER


def count_clients(ledger: Ledger, plan: Plan, records: Dataset) -> None:
    """Counts in a folder's ledger what its clients have spent in others, like those beside their records."""
    shared = folder_ledger(plan, records)
    if records.home is not None and shared is not None and shared.absolute() == ledger.path.absolute():
        clients = client_files(records.home)
        charge_kept(ledger, clients)
        for name, path in clients.items():
            ledger.count(name, ledgers_of(path, but=shared.absolute()))


@dataclass(frozen=True)
class KeptKey:
    """A future client's key, the server's, and the price of the context that left with it.

    Version 0.1 kept the first alone, or the first two.
    """

    run: str
    account: str
    content: bytes

    @property
    def entry(self) -> str:
        """What the context is called in a ledger that has lost it: a name made of its key."""
        # A simulation on a machine without `cryptography` has no such keys.
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        private = X25519PrivateKey.from_private_bytes(self.content[:_KEY])
        return f"{self.run}/{private.public_key().public_bytes_raw().hex()[:16]}"

    @property
    def price(self) -> float | None:
        """(Δ/σ)² of the context, if it is known."""
        price = self.content[2 * _KEY :]
        return float(PRICE.unpack(price)[0]) if len(price) == PRICE.size else None

    def lost(self, ledger: Ledger) -> bool:
        """Returns whether the ledger does not know the context."""
        known = [self.entry, onboarding_entry(self.run)]
        if len(self.content) <= 2 * _KEY:
            known.append(self.run)  # as version 0.1 called it
        return not any(ledger.releases(self.account, run=entry) for entry in known)


def onboarding_entry(run: str) -> str:
    """Returns the name of a future client's context in its ledger, which may hold the run's training too."""
    return f"{run}/onboarding"


def kept_keys(ledger: Path, accounts: Collection[str]) -> Iterator[KeptKey]:
    """The keys beside a ledger, of these accounts in it."""
    for path in sorted(ledger.parent.glob(f"{glob.escape(ledger.name)}.*.key")):
        # A run's name has no dots; in a ledger of several a client's name follows.
        run, _, client = path.name[len(ledger.name) + 1 : -len(".key")].partition(".")
        key = KeptKey(run, canonical(client) or OWN_RECORDS, path.read_bytes())
        if key.account in accounts:
            path.chmod(PRIVATE)  # a restored file may have come back readable by all
            yield key


def charge_kept(ledger: Ledger, accounts: Collection[str]) -> None:
    """Charges contexts whose keys are kept and which the ledger does not know, as far as their price is."""
    for key in kept_keys(ledger.path, accounts):
        if key.price is not None and key.lost(ledger):
            charge = Charge(key.entry, key.account, "context", 0, math.sqrt(key.price), 1.0)
            ledger.recover([charge], key.run)
            log.warning("%s was restored from a backup: charged for a context that left", ledger.path)


def _led_to(records: Path) -> Path:
    """The file itself, where a link leads to it."""
    return records.resolve() if records.is_symlink() else records


def _beside(records: Path) -> Path:
    """NAME.ledger.sqlite beside NAME.csv, in whichever Unicode form it is there."""
    path = records.with_name(bare_name(records) + OWN)
    if not Memory(path).begun:
        for other in sorted(path.parent.glob(f"*{OWN}*")):
            name = other.name.removesuffix(".witness")
            if canonical(name) == canonical(path.name):
                return path.with_name(name)
    return path


def _of_several(ledger: Path) -> Path | None:
    """The ledger, if there is one and its clients are known by their names."""
    known = Remembered.beside(ledger)
    if known is not None:
        return ledger if known.scope == NAMED else None
    if not ledger.exists():
        return None
    with Ledger.open(ledger, scope=None) as book:
        return ledger if book.scope == NAMED else None


def _known(ledger: Path, client: str) -> str:
    """The name, if it is one of the folder's: a new name would be a new account, with nothing spent."""
    names = set(client_files(ledger.parent)) if (ledger.parent / NAME).exists() else set()
    if client not in names and ledger.exists():
        with Ledger.open(ledger, scope=None) as book:
            names.update(book.clients())
    if client not in names:
        raise SottovoceError(
            f"{ledger} is the ledger of several clients, and '{client}' is none of them: name the client, "
            f"{nearest(client, sorted(names))}",
            "client",
        )
    return client
