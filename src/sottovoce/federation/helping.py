"""A helper of a run with shared noise: a node without records, in a directory of its own.

It answers each round once (`helper`). What it needs to know it takes from its own copy of the agreement; a
request says nothing but the run, the round, and whose messages began with which keys. A request that names
nobody asks for the key of its round, and gives up every round before it that was not answered, for ever.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from sottovoce.errors import SottovoceError, shown
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.client_directory import ClientLog
from sottovoce.federation.masks import terms_of
from sottovoce.federation.parties import SiteKey
from sottovoce.federation.sealing import Declined, EnrolmentError
from sottovoce.files import locked, private_folder
from sottovoce.foreign import foreign_name
from sottovoce.helper import Helper
from sottovoce.masking import KIND

MASKS: Literal["masks"] = "masks"
"""The purpose of requests to helpers, and of their answers."""
LOG = "helper.log"


class HelperNode:
    """One helper's end of a federation; its memory is in `directory`, which belongs into no backup."""

    def __init__(self, directory: str | Path, agreement: Agreement, key: SiteKey) -> None:
        if agreement.parties is None:
            raise EnrolmentError("this agreement has no helpers: its noise is not shared")
        self._directory = Path(directory)
        self._agreement = agreement
        self._key = key
        self._number = agreement.parties.helper(key)
        self._log = ClientLog(self._directory / LOG)

    def enrol(self, offer: Mapping[str, Any]) -> dict[str, Any]:
        """Answers the server's offer with this helper's place, and a proof that it has its key."""
        run, mine = str(offer["run"]), self._agreement.digest()
        with self._locked(), self._log.refusals(f"to help in run {shown(run)}"):
            self._check(offer, self._agreement)
            self._log.note(
                f"helps in run {foreign_name(run)}, under the agreement {self._agreement.full_digest()}"
            )
        proof = self._key.proof(run, mine, bytes(offer["nonce"]))
        return {"helper": self._number, "agreement": mine, "proof": proof}

    def refused(self, run: str, reason: str) -> None:
        """The server declined the enrolment."""
        with self._locked():
            self._log.note(f"the server refused this helper: {shown(reason)}", level=logging.ERROR)

    def masks(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The sum of its masks for one set of clients, once for ever; and its key of the next round."""
        number, clients = int(request["round"]), [int(client) for client in request["clients"]]
        keys = [bytes(key) for key in request["keys"]]
        with self._locked(), self._log.refusals(f"the masks of round {number}"), _told():
            if len(set(clients)) != len(clients) or len(keys) != len(clients):
                raise Declined("a set names each client once, with one key: refused")
            with self._opened(request) as helper:
                body = b""
                if clients:
                    told = dict(zip(clients, keys, strict=True))
                    body = helper.answer(str(request["run"]), KIND, number, told).masks
                    self._log.note(f"answers round {number}, for {len(clients)} clients")
                while 0 < helper.round < number:
                    self._log.note(f"gives up round {helper.round}: it is never answered")
                    helper.give_up(helper.round)
                key = helper.key()
        following = {} if key is None else {"key": key.public, "signature": key.signature}
        return {
            "kind": MASKS,
            "round": number,
            "masks": body,
            "next": 0 if key is None else key.round,
            **following,
        }

    @contextmanager
    def _opened(self, request: Mapping[str, Any]) -> Iterator[Helper]:
        """The store of a run, under the agreement that its first request froze."""
        agreement, run = self._agreement, foreign_name(request["run"])
        if agreement.open:
            agreement = agreement.frozen([int(size) for size in request.get("sizes", ())])
        self._check(request, agreement)
        terms = terms_of(agreement, agreement.blueprint(), run)
        path = self._directory / f"masks-{run}.sqlite"
        with Helper.open(path, terms, self._key.exchange, self._key.signing) as helper:
            yield helper

    def _check(self, fields: Mapping[str, Any], mine: Agreement) -> None:
        if fields.get("agreement") != mine.digest():
            raise EnrolmentError(
                "the server works under another agreement than this helper's: refused; compare both "
                "agreement.toml"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        private_folder(self._directory)
        with locked(self._directory / "lock"):
            yield


def answered(directory: Path) -> list[dict[str, Any]]:
    """What a helper has done in each run of its directory, as its stores say; they stay as they are."""
    found, stores = [], sorted(directory.glob("masks-*.sqlite"))
    if not stores and not (directory / LOG).exists():
        raise SottovoceError(f"{directory} is not that of a helper: name the directory of its node config")
    for path in stores:
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as store:
                [(rounds,)] = store.execute("SELECT COUNT(*) FROM answer").fetchall()
                [(empty,)] = store.execute("SELECT COUNT(*) FROM answer WHERE masks = x''").fetchall()
                key = store.execute("SELECT round FROM key").fetchone()
        except sqlite3.Error as error:
            raise SottovoceError(
                f"{path} cannot be read ({error}): look as its owner, with the version that made it"
            ) from None
        run = path.stem.removeprefix("masks-")
        said = {"run": run, "answered": rounds - empty, "given_up": empty, "round": key[0] if key else 0}
        found.append(said)
    return found


@contextmanager
def _told() -> Iterator[None]:
    """A helper has no records: the server may know why it refuses."""
    try:
        yield
    except (EnrolmentError, Declined):
        raise
    except SottovoceError as error:
        raise Declined(str(error)) from None
