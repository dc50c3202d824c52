"""A future client's key for one run, kept beside its ledger: the stored context was made for it.

Each encoding has a key of its own, so that no stream is used twice. A key is a draft until its context is
charged, and is kept before that context may leave. So a kept key whose context the ledger does not know means
that the ledger was restored from a backup: the lost context is charged, under a name made of that key.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from sottovoce.client import OWN_RECORDS
from sottovoce.errors import SottovoceError
from sottovoce.federation.keys import KEY_BYTES, new_key, public_key
from sottovoce.files import write_atomically
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.release import Release

log = logging.getLogger("sottovoce.onboarding")


class Keys:
    """The files of one run's key; used under a lock."""

    def __init__(self, ledger: Path, run: str, server_key: bytes) -> None:
        self._ledger = ledger
        self._run = run
        self._server_key = server_key
        self._kept = ledger.with_name(f"{ledger.name}.{run}.key")
        self._draft = ledger.with_name(f"{ledger.name}.{run}.key.draft")

    def renew(self, ledger: Ledger, release: Release, budget: Budget) -> None:
        """Drafts a key for a context to be made; one that was lost from the ledger is charged before."""
        if self._kept.exists():
            name = f"{self._run}/{public_key(self._kept.read_bytes()[:KEY_BYTES]).hex()[:16]}"
            if not ledger.releases(OWN_RECORDS, run=name):
                ledger.commit(release.charge(name, OWN_RECORDS, 0), b"", budget)
                log.warning("%s was restored from a backup: charged for a context that left", self._ledger)
        write_atomically(self._draft, new_key() + self._server_key, mode=0o600)

    def private(self) -> bytes:
        """The key of the context that is stored or about to be."""
        for path in (self._draft, self._kept):
            if path.exists():
                private, made_for = path.read_bytes()[:KEY_BYTES], path.read_bytes()[KEY_BYTES:]
                if made_for in (self._server_key, b""):  # nothing: kept by version 0.1
                    return private
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
            write_atomically(self._kept, self._draft.read_bytes(), mode=0o600)
            os.unlink(self._draft)
