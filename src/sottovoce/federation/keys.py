"""Who takes part in a run with shared noise: the long-term keys of its sites and helpers, by name.

Every site and every helper makes its own key file, once, and gives its public half away. The public halves
stand in the agreement, in the order of the participants, so that everybody derives masks from the same names,
keys and numbers (`release.places.masks`). People compare fingerprints by voice, and read the names: whoever
they do not know counts among those who may collude.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.data.sites import CLIENT
from sottovoce.errors import SottovoceError, shown
from sottovoce.machine.documents import toml
from sottovoce.machine.files import PRIVATE, private_folder, write_atomically
from sottovoce.plan import Plan
from sottovoce.release.places.masks import KEY_BYTES, prefixed, public_hex

_PUBLIC = re.compile(rf"[0-9a-f]{{{4 * KEY_BYTES}}}")
_DIGITS, _GROUP = 30, 5


class PartyError(SottovoceError):
    """A key, or a list of keys, that cannot be used."""


@dataclass(frozen=True)
class SiteKey:
    """The private long-term keys of a site or a helper: one to exchange secrets, one to sign."""

    exchange: X25519PrivateKey
    signing: Ed25519PrivateKey

    @classmethod
    def make(cls, path: Path) -> Self:
        """A new one, in a file that only its owner can read; a file that is there stays as it is."""
        if path.exists():
            raise PartyError(
                f"{path} is there already: whoever agreed on that key could not unmask with a new one; "
                "name another file"
            )
        key = cls(X25519PrivateKey.generate(), Ed25519PrivateKey.generate())
        private = key.exchange.private_bytes_raw() + key.signing.private_bytes_raw()
        private_folder(path.absolute().parent)
        write_atomically(path, f"{private.hex()}\n".encode())
        return key

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The key in a file that `make` wrote."""
        try:
            private = bytes.fromhex(Path(path).read_text().strip())
            if len(private) != 2 * KEY_BYTES:
                raise ValueError
            os.chmod(path, PRIVATE)  # a restored file may have come back readable by all
        except FileNotFoundError:
            raise PartyError(f"there is no key at {path}: make one with 'sottovoce site key'") from None
        except ValueError:
            raise PartyError(f"{path} holds no key of a site: give the file it was made in") from None
        return cls(
            X25519PrivateKey.from_private_bytes(private[:KEY_BYTES]),
            Ed25519PrivateKey.from_private_bytes(private[KEY_BYTES:]),
        )

    @property
    def public(self) -> str:
        """Both public halves, as they stand in an agreement."""
        return public_hex(self.exchange) + public_hex(self.signing)

    def proof(self, run: str, agreement: str, nonce: bytes) -> bytes:
        """Shows a server that a helper holds this key: a signature that serves for nothing else."""
        return self.signing.sign(_to_prove(run, agreement, nonce))


def fingerprint(public: str) -> str:
    """Thirty digits to compare by voice: no other key has them.

    >>> fingerprint("00" * 64)
    '02510 42766 79984 49777 58633 95960'
    """
    number = int.from_bytes(hashlib.sha256(b"sottovoce site key:" + bytes.fromhex(public)).digest(), "big")
    digits = f"{number % 10**_DIGITS:0{_DIGITS}}"
    return " ".join(digits[i : i + _GROUP] for i in range(0, _DIGITS, _GROUP))


def check_name(name: str) -> None:
    """Refuses what can be no name of a site or a helper."""
    if not CLIENT.fullmatch(name):
        raise PartyError(f"'{shown(name)}' cannot name a site or a helper: choose another name")


def accepted(text: str) -> frozenset[str]:
    """The fingerprints in what an owner has written: thirty digits each, separated by commas."""
    found = frozenset("".join(re.findall(r"\d", part)) for part in text.split(",") if part.strip())
    if any(len(digits) != _DIGITS for digits in found):
        raise PartyError(
            f"a fingerprint has {_DIGITS} digits, and a comma stands between two: read them again"
        )
    return found


@dataclass(frozen=True)
class Parties:
    """Public keys by name, in the order of the participants and of the helpers."""

    sites: tuple[tuple[str, str], ...]
    helpers: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, values: object) -> Self:
        """From the table [keys] of an agreement, or a file with its two tables: of another party's hand."""
        if not isinstance(values, Mapping) or set(values) != {"sites", "helpers"}:
            raise PartyError("the tables of keys are those of sites and of helpers: ask for the file again")
        return cls(_read(values["sites"]), _read(values["helpers"]))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a file with the tables [sites] and [helpers], a line for each as its key was printed."""
        try:
            return cls.parse(toml(Path(path).read_text()))
        except OSError as error:
            raise PartyError(f"no keys at {path} ({error.strerror}): collect them first") from None
        except (ValueError, RecursionError) as error:
            raise PartyError(f'{path} is not TOML ({shown(error)}): write NAME = "KEY" lines') from None

    @classmethod
    def dealt(cls, folder: Path, plan: Plan) -> Self:
        """Fresh keys for clients that this machine plays, in files beside those with their records."""
        sites = [f"client-{i}" for i in range(plan.participants)]
        helpers = [f"helper-{i}" for i in range(plan.helpers)]
        keys = {name: SiteKey.make(folder / f"{name}.key").public for name in (*sites, *helpers)}
        return cls(tuple((name, keys[name]) for name in sites), tuple((name, keys[name]) for name in helpers))

    def check(self, plan: Plan) -> None:
        """Refuses lists that are not as long as the plan says, and keys or names that occur twice."""
        counts = (len(self.sites), len(self.helpers))
        if counts != (plan.participants, plan.helpers):
            raise PartyError(
                f"there are keys of {counts[0]} sites and {counts[1]} helpers, and the plan has "
                f"participants={plan.participants} and helpers={plan.helpers}: make them agree"
            )
        for group in (self.sites, self.helpers):
            if len({name for name, _ in group}) != len(group):
                raise PartyError("two sites, or two helpers, have one name: each needs its own")
        if len({public for _, public in (*self.sites, *self.helpers)}) != sum(counts):
            raise PartyError("two of them have one key: a site that helps makes another key for that")

    def place(self, what: Literal["site", "helper"], key: SiteKey) -> int:
        """The number of the site, or helper, that holds a key: no coordinator's proposal counts."""
        for number, (_, public) in enumerate(self.sites if what == "site" else self.helpers):
            if public == key.public:
                return number
        raise PartyError(f"the key of this machine is not that of any {what} of the agreement: compare both")

    def proves(self, helper: int, proof: bytes, run: str, agreement: str, nonce: bytes) -> bool:
        """Returns whether a helper's proof is that of its key."""
        signing = bytes.fromhex(self.helpers[helper][1])[KEY_BYTES:]
        try:
            Ed25519PublicKey.from_public_bytes(signing).verify(proof, _to_prove(run, agreement, nonce))
        except (InvalidSignature, ValueError):
            return False
        return True

    @property
    def both(self) -> list[str]:
        """Helpers that are participating sites as well, by name."""
        sites = {name for name, _ in self.sites}
        return [name for name, _ in self.helpers if name in sites]

    def to_toml(self) -> str:
        """The tables of an agreement."""
        groups = (("sites", self.sites), ("helpers", self.helpers))
        return "".join(
            f"\n[keys.{name}]\n" + "".join(f'"{who}" = "{public}"\n' for who, public in group)
            for name, group in groups
        )


def _to_prove(run: str, agreement: str, nonce: bytes) -> bytes:
    return prefixed("sottovoce helper enrolment", run, agreement, nonce)


def _read(table: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(table, Mapping):
        raise PartyError("a table of keys has a line NAME = KEY for each: ask for the file again")
    for name, public in table.items():
        check_name(name)
        if not isinstance(public, str) or not _PUBLIC.fullmatch(public):
            raise PartyError(f"{name} has no key as 'sottovoce site key' prints it: ask for it again")
    return tuple(table.items())
