"""A future client's keys, kept beside its ledger, one for each run: a stored context was made for its key.

Each encoding has a key of its own, so that no stream is used twice. A key is a draft until its context is
charged, and is kept before that context may leave, together with its price: whoever opens the account is told
by it of a context that the ledger has lost (`account`).
"""

from __future__ import annotations

import os

from sottovoce.account import PRICE, Account, charge_kept, kept_keys, onboarding_entry
from sottovoce.errors import SottovoceError
from sottovoce.federation.keys import KEY_BYTES, new_key
from sottovoce.files import PRIVATE, write_atomically
from sottovoce.privacy.ledger import Ledger
from sottovoce.release import Release


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
        known = old and ledger.releases(self._account, run=self._run)
        return self._run if known else onboarding_entry(self._run)

    def reconcile(self, ledger: Ledger, release: Release | None) -> None:
        """Charges contexts of any run whose keys are kept here and which the ledger does not know."""
        charge_kept(ledger, [self._account])
        for key in kept_keys(self._ledger, [self._account]):
            if key.lost(ledger):  # kept by version 0.1, without its price
                if key.run != self._run or release is None:
                    raise SottovoceError(
                        f"a context of run {key.run} left with a key beside {self._ledger}, which does not "
                        "know it: restore the ledger's newest backup"
                    )
                ledger.recover([release.charge(key.entry, self._account, 0)], key.run)

    def renew(self, release: Release) -> None:
        """Drafts a key for a context to be made."""
        price = PRICE.pack(release.mu_squared)
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
                    "run was not served: give another ledger and add up what both have spent",
                    "ledger",
                )
        raise SottovoceError(
            f"the context in {self._ledger} has lost its key {self._kept}: restore the key, or give another "
            "ledger and add up what both have spent",
            "ledger",
        )

    def keep(self) -> None:
        """Keeps the draft, durably: its context is charged, and leaves after this."""
        if self._draft.exists():
            write_atomically(self._kept, self._draft.read_bytes(), mode=PRIVATE)
            os.unlink(self._draft)
