"""A future client's keys, kept beside its ledger, one for each run: a stored context was made for its key.

Each encoding has a key of its own, so that no stream is used twice. A key is a draft until its context is
charged, and is kept before that context may leave, together with its price. So a kept key whose context the
ledger does not know means that the ledger was deleted or restored from a backup: the lost context is charged,
under a name made of that key, whichever run it was made for.
"""

from __future__ import annotations

import glob
import logging
import math
import os
import struct

from sottovoce.account import Account
from sottovoce.errors import SottovoceError
from sottovoce.federation.keys import KEY_BYTES, new_key, public_key
from sottovoce.files import PRIVATE, write_atomically
from sottovoce.privacy.ledger import Charge, Ledger
from sottovoce.release import Release

log = logging.getLogger("sottovoce.onboarding")

_PRICE = struct.Struct("<d")


def _entry(run: str) -> str:
    return f"{run}/onboarding"


class Keys:
    """The files of one run's key; used under a lock."""

    def __init__(self, account: Account, run: str, server_key: bytes) -> None:
        self._ledger = account.path
        self._account = account.name
        self._client = account.name if account.shared else ""
        self._run = run
        self._server_key = server_key
        whose = ".".join(part for part in (account.path.name, run, self._client) if part)
        self._kept = account.path.with_name(f"{whose}.key")
        self._draft = account.path.with_name(f"{whose}.key.draft")

    def entry(self, ledger: Ledger) -> str:
        """The name of this run in the ledger, which may hold releases of the run's training too."""
        old = self._kept.exists() and self._kept.stat().st_size <= 2 * KEY_BYTES  # kept by version 0.1
        return self._run if old and ledger.releases(self._account, run=self._run) else _entry(self._run)

    def reconcile(self, ledger: Ledger, release: Release | None) -> None:
        """Charges contexts of any run whose keys are kept here and which the ledger does not know."""
        for path in sorted(self._ledger.parent.glob(f"{glob.escape(self._ledger.name)}.*.key")):
            # A run's name has no dots; in a ledger of several a client's name follows.
            run, _, client = path.name[len(self._ledger.name) + 1 : -len(".key")].partition(".")
            if client != self._client:
                continue
            os.chmod(path, PRIVATE)  # a restored file may have come back readable by all
            content = path.read_bytes()
            name = f"{run}/{public_key(content[:KEY_BYTES]).hex()[:16]}"
            known = (name, _entry(run), *([run] if len(content) <= 2 * KEY_BYTES else []))
            if any(ledger.releases(self._account, run=entry) for entry in known):
                continue
            ledger.recover([self._charge(name, run, content[2 * KEY_BYTES :], release)], run)
            log.warning("%s was restored from a backup: charged for a context that left", self._ledger)

    def _charge(self, name: str, run: str, price: bytes, release: Release | None) -> Charge:
        if run == self._run and release is not None:
            return release.charge(name, self._account, 0)
        if len(price) != _PRICE.size:
            raise SottovoceError(
                f"a context of run {run} left with a key beside {self._ledger}, which does not know it: "
                "restore the ledger's newest backup"
            )
        return Charge(name, self._account, "context", 0, math.sqrt(_PRICE.unpack(price)[0]), 1.0)

    def renew(self, release: Release) -> None:
        """Drafts a key for a context to be made."""
        price = _PRICE.pack(release.mu_squared)
        write_atomically(self._draft, new_key() + self._server_key + price, mode=PRIVATE)

    def private(self) -> bytes:
        """The key of the context that is stored or about to be."""
        for path in (self._draft, self._kept):
            if path.exists():
                content = path.read_bytes()
                made_for = content[KEY_BYTES : 2 * KEY_BYTES]
                if made_for in (self._server_key, b""):  # nothing: kept by version 0.1
                    return content[:KEY_BYTES]
                raise SottovoceError(
                    f"the context in {self._ledger} was made for another key of this run, with which the "
                    "run was not served: give another --ledger and add up what both have spent"
                )
        raise SottovoceError(
            f"the context in {self._ledger} has lost its key {self._kept}: restore the key, or give another "
            "--ledger and add up what both have spent"
        )

    def keep(self) -> None:
        """Keeps the draft, durably: its context is charged, and leaves after this."""
        if self._draft.exists():
            write_atomically(self._kept, self._draft.read_bytes(), mode=PRIVATE)
            os.unlink(self._draft)
