"""Shared noise in a federation: a site's half, a helper's and the server's.

A site masks its shares. Nothing that a server says decides about that: its owner does (`consent`). Keys of a
round count only if the helper of the agreement has signed them.

A helper is a node without records, in a directory of its own, and answers each round once
(`release.places.helper`). What it needs to know it takes from its own copy of the agreement; a request says
nothing but the run, the round, and whose messages began with which keys. A request that names nobody asks for
the key of its round, and gives up every round before it that was not answered, for ever.

At the server masked messages come in, and only the sum of a round ever opens. A round begins when every
helper has sent its signed key. When its messages are in, the set of those who came is fixed, durably, and
every helper is asked for the sum of its masks of this set; once all have answered, the sum opens. No helper
answers for another set, so there is one attempt: a round with fewer messages than the threshold is given up,
and what it cost stays charged. Answers and messages are dropped when a round is applied.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sottovoce.errors import SottovoceError, shown
from sottovoce.federation import Agreement
from sottovoce.federation.keys import SiteKey
from sottovoce.federation.sealing import Declined, EnrolmentError
from sottovoce.federation.site.directory import ClientLog
from sottovoce.federation.store import Store
from sottovoce.machine.documents import foreign_name
from sottovoce.machine.files import Database, locked, private_folder
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.places import masks
from sottovoce.release.places.helper import Helper
from sottovoce.run.masks import mask_terms
from sottovoce.training.client import Seal, unsealed

MASKS: Literal["masks"] = "masks"
"""The purpose of requests to helpers, and of their answers."""
LOG = "helper.log"


def helper_names(agreement: Agreement) -> str:
    """The helpers of an agreement, as a ledger keeps them."""
    return "" if agreement.parties is None else ", ".join(name for name, _ in agreement.parties.helpers)


def terms_of(agreement: Agreement, blueprint: Blueprint, run: str) -> masks.MaskTerms:
    """Returns what masks of a run are derived from, with the full digest of its frozen agreement."""
    parties, half = agreement.parties, 2 * masks.KEY_BYTES
    assert parties is not None
    sites = [public[:half] for _, public in parties.sites]
    helpers = [masks.HelperKeys(name, public[:half], public[half:]) for name, public in parties.helpers]
    return mask_terms(blueprint, run, sites, helpers, agreement.full_digest())


def masks_for(
    agreement: Agreement, blueprint: Blueprint, run: str, key: SiteKey | None, request: Mapping[str, Any]
) -> Seal:
    """Returns what covers this site's share of the requested round; what is no share stays as it is.

    The keys of the round are checked here, before any record is read.
    """
    if agreement.parties is None:
        return unsealed
    if request["diagnostics"]:
        raise Declined("under shared noise nothing leaves but charged releases: diagnostics are refused")
    if request["kind"] != "gradient":
        return unsealed
    terms = terms_of(agreement, blueprint, run)
    keys = [
        masks.RoundKey(helper, int(request["round"]), bytes(public), bytes(signature))
        for helper, (public, signature) in enumerate(
            zip(request.get("helper_keys", ()), request.get("helper_signatures", ()), strict=False)
        )
    ]
    try:
        if len(keys) != len(terms.helpers):
            raise masks.MaskingError("every helper that was agreed on must have sent its key of the round")
        for one in keys:
            one.check(terms)
    except masks.MaskingError as error:
        raise Declined(str(error)) from None
    return partial(masks.covered, terms, held(key).exchange, keys)


def held(key: SiteKey | None) -> SiteKey:
    """The site's key, without which it has no place in the agreement."""
    if key is None:
        raise EnrolmentError(
            "the agreement is about keys and this node has none: name its file, site_key, in node.toml"
        )
    return key


class HelperNode:
    """One helper's end of a federation; its memory is in `directory`, which belongs into no backup."""

    def __init__(self, directory: str | Path, agreement: Agreement, key: SiteKey) -> None:
        if agreement.parties is None:
            raise EnrolmentError("this agreement has no helpers: its noise is not shared")
        self._directory = Path(directory)
        self._agreement = agreement
        self._key = key
        self._number = agreement.parties.place("helper", key)
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
                    body = helper.answer(str(request["run"]), masks.KIND, number, told)
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

    def release(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Refuses what clients are asked for."""
        raise Declined("this node is a helper: it holds no records")

    keep_model = release

    def contacted(self, what: str, asked: Mapping[str, Any], refused: str = "") -> None:
        """Only a client notes for its owner who came: a helper's log says all there is."""

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
    """Returns what a helper has done in each run of its directory; its stores stay as they are."""
    found, stores = [], sorted(directory.glob("masks-*.sqlite"))
    if not stores and not (directory / LOG).exists():
        raise SottovoceError(f"{directory} is not that of a helper: name the directory of its node.toml")
    for path in stores:
        with closing(Database(path, _unreadable, only_read=True)) as store:
            [(rounds,)] = store.query("SELECT COUNT(*) FROM answer")
            [(empty,)] = store.query("SELECT COUNT(*) FROM answer WHERE masks = x''")
            key = next(iter(store.query("SELECT round FROM key")), None)
        run = path.stem.removeprefix("masks-")
        said = {"run": run, "answered": rounds - empty, "given_up": empty, "round": key[0] if key else 0}
        found.append(said)
    return found


def _unreadable(path: Path, error: Exception) -> SottovoceError:
    return SottovoceError(
        f"{path} cannot be read ({error}): look as its owner, with the version that made it"
    )


@contextmanager
def _told() -> Iterator[None]:
    """A helper has no records: the server may know why it refuses."""
    try:
        yield
    except (EnrolmentError, Declined):
        raise
    except SottovoceError as error:
        raise Declined(str(error)) from None


class Sums:
    """The sums of a run, round after round; what it knows is in the server's store."""

    def __init__(self, store: Store, terms: masks.MaskTerms) -> None:
        self._store = store
        self.terms = terms
        self.round = 0
        """The round that is open; beyond the last when the run is over."""

    def asked(self) -> list[int]:
        """The helpers without whom nothing goes on: their keys before the set is fixed, then their masks."""
        helpers, fixed = range(len(self.terms.helpers)), self.fixed
        if fixed is None:
            keys = self._keys()
            return [helper for helper in helpers if not (helper in keys and keys[helper].round >= self.round)]
        return [helper for helper in helpers if fixed and helper not in self._answers()]

    def idle(self) -> list[int]:
        """Helpers that still hold a key when the run is over, and are to erase it."""
        return sorted(helper for helper, key in self._keys().items() if 0 < key.round < self.round)

    @property
    def fixed(self) -> list[int] | None:
        """The clients whose sum is to open; none of them: the round is given up; None: not fixed yet."""
        rows = self._store.query("SELECT clients FROM fixed WHERE round = ?", self.round)
        return list(json.loads(rows[0][0])) if rows else None

    def fix(self, messages: Iterable[int]) -> bool:
        """Fixes durably whose sum is to open, for ever; False if they are too few: the round is given up."""
        clients = sorted(messages)
        enough = len(clients) >= self.terms.threshold
        told = json.dumps(clients if enough else [])
        self._store.query("INSERT INTO fixed VALUES (?, ?)", self.round, told)
        return enough

    def request(self, messages: Mapping[int, bytes]) -> dict[str, Any]:
        """Returns what a helper is asked: its key, while no set is fixed, else its masks of the set."""
        clients = self.fixed or []
        keys = [masks.ephemeral_of(messages[client]) for client in clients]
        return {"kind": MASKS, "round": self.round, "clients": clients, "keys": keys}

    def keys(self) -> dict[str, Any]:
        """The helpers' keys of the round, as every client is sent them."""
        keys = [key for _, key in sorted(self._keys().items())]
        return {
            "helper_keys": [key.public for key in keys],
            "helper_signatures": [key.signature for key in keys],
        }

    def accept(self, helper: int, answer: Mapping[str, Any]) -> None:
        """Takes a helper's answer; one that is refused changes nothing and raises, saying why."""
        name = self.terms.helpers[helper].name
        if answer.get("error"):
            raise SottovoceError(f"helper {name} declined: {shown(answer['error'])}")
        if answer.get("kind") != MASKS or answer.get("round") != self.round:
            return  # of a round that is over by now
        key, body = self._next(helper, answer), answer.get("masks")
        with self._store.transaction():
            row = (key.helper, key.round, key.public, key.signature)
            self._store.query("INSERT OR REPLACE INTO helper_key VALUES (?, ?, ?, ?)", *row)
            if self.fixed is None:
                if key.round > self.round or not key.round:
                    # It has closed this round before: this server's store was restored from before that.
                    self.fix([])
            elif self.fixed and body:
                if not isinstance(body, bytes) or len(body) != self.terms.length:
                    raise SottovoceError(f"helper {name} sent something other than masks")
                self._store.query("INSERT OR IGNORE INTO masks VALUES (?, ?)", helper, body)

    def total(self, messages: Mapping[int, bytes]) -> np.ndarray | None:
        """The sum of the fixed set, when all helpers have answered; None if the round is given up."""
        if not self.fixed:
            return None
        answers = [body for _, body in sorted(self._answers().items())]
        return masks.unmasked(self.terms, {client: messages[client] for client in self.fixed}, answers)

    def _next(self, helper: int, answer: Mapping[str, Any]) -> masks.RoundKey:
        """A helper's key of the round that it will answer next; of round 0 if it answers no more."""
        number, public, signature = (answer.get(name) for name in ("next", "key", "signature"))
        if number == 0:
            return masks.RoundKey(helper, 0, b"", b"")
        if not (type(number) is int and isinstance(public, bytes) and isinstance(signature, bytes)):
            raise SottovoceError(f"helper {self.terms.helpers[helper].name} sent no key: update it")
        key = masks.RoundKey(helper, number, public, signature)
        key.check(self.terms)
        return key

    def _keys(self) -> dict[int, masks.RoundKey]:
        rows = self._store.query("SELECT helper, round, public, signature FROM helper_key")
        return {row[0]: masks.RoundKey(*row) for row in rows}

    def _answers(self) -> dict[int, bytes]:
        return dict(self._store.query("SELECT helper, body FROM masks"))
