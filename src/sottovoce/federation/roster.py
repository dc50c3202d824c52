"""Who takes part: the server's half of enrolment, and of what passes between it and each client.

With each client the server shares a secret; its releases come in, and its final model goes out. The bytes of
a release are believed when size, seal, tag and norm allow it. Everybody who trained gets the coefficients of
their own model, once it is final. They are made of releases that were paid for, so nobody is charged for
them; each client's travel under a seal that only its enrolment opens, and are delivered again until the
client says that it has kept its model.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from torch import Tensor

from sottovoce.channel.wire import ChannelError, Stream
from sottovoce.data.sites import CLIENT
from sottovoce.errors import SottovoceError, shown
from sottovoce.federation import MOST_RECORDS, Agreement, sealing
from sottovoce.federation.sealing import KEY_BYTES, MODEL, EnrolmentError
from sottovoce.federation.store import Store
from sottovoce.machine.documents import Bound, read
from sottovoce.release.downlink import Downlink
from sottovoce.release.kind import Release
from sottovoce.release.places.shared import Shares
from sottovoce.release.secrets import participant_name

log = logging.getLogger("sottovoce.federation")


class Implausible(SottovoceError):
    """An authentic release that no client's clipping and noise give; it would only be sent again."""


@dataclass(frozen=True)
class Answer:
    """What a client says when it enrols."""

    participant: Annotated[int, Bound(ge=0)]
    key: Annotated[bytes, Bound(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    proof: bytes
    records: Annotated[int, Bound(ge=0, le=MOST_RECORDS)] = 0
    name: object = ""
    """What it wants to be called; nobody is refused for that."""


def _incomplete(what: str) -> EnrolmentError:
    return EnrolmentError(f"the enrolment is incomplete: {what}; update the client")


class Roster:
    """The clients of a run: an index belongs for ever to the key that enrolled first."""

    def __init__(self, agreement: Agreement, store: Store) -> None:
        self._agreement = agreement
        self._digest = agreement.digest()
        self._store = store
        self._nonce = secrets.token_bytes(16)
        self._keys = store.keys()
        self._taken = set(store.names().values())
        self._proposed = -1

    @property
    def enrolled(self) -> set[int]:
        """Participants whose keys are known."""
        return set(self._keys)

    def offer(self) -> dict[str, Any]:
        """Returns what a node is told before it has said who it is."""
        return {
            "run": self._store.run,
            "agreement": self._digest,
            "key": sealing.public_key(self._store.key),
            "nonce": self._nonce,
            "proposal": self._next_free(),
        }

    def _next_free(self) -> int:
        """An index that nobody has and that was not proposed lately; -1 if all are taken."""
        count = self._agreement.plan.participants
        if len(self._keys) == count:
            return -1
        while True:
            self._proposed = (self._proposed + 1) % count
            if self._proposed not in self._keys:
                return self._proposed

    def enrol(self, answer: Mapping[str, Any], address: str) -> int:
        """The participant behind an address of the engine's; EnrolmentError if it may not take part."""
        count = self._agreement.plan.participants
        if answer.get("error"):
            raise EnrolmentError(shown(answer["error"]))
        if answer.get("agreement") != self._digest:
            raise EnrolmentError("the client holds another agreement: give it the agreement.toml of this run")
        if "helper" in answer:
            return self._enrol_helper(answer, address)
        said = read(Answer, answer, _incomplete, more=True)
        participant, key, records, name = said.participant, said.key, said.records, said.name
        if participant >= count:
            raise EnrolmentError(f"no participant {shown(participant)}: the plan has 0 to {count - 1}")
        if not secrets.compare_digest(said.proof, sealing.proof(self._agreed(participant, key), self._nonce)):
            raise EnrolmentError("the enrolment does not prove its key: enrol again")
        if self._agreement.open and not records:
            raise EnrolmentError("the client does not declare how many records it trains on: update it")
        if not isinstance(name, str) or not CLIENT.fullmatch(name) or name in self._taken:
            name = ""
        if self._store.enrol(participant, key, records, name):
            self._taken.add(name)
            log.info("%s enrolled%s", participant_name(participant), f" as {name}" if name else "")
        self._keys[participant] = key
        self._store.reached(participant, address)
        return participant

    def _enrol_helper(self, answer: Mapping[str, Any], address: str) -> int:
        """Helpers are numbered after the participants."""
        parties, helper, proven = self._agreement.parties, answer["helper"], answer.get("proof")
        if parties is None or type(helper) is not int or not 0 <= helper < len(parties.helpers):
            raise EnrolmentError(f"the agreement has no helper {shown(helper)}: compare both agreement.toml")
        told = (self._store.run, self._digest, self._nonce)
        if not isinstance(proven, bytes) or not parties.proves(helper, proven, *told):
            raise EnrolmentError("the helper does not prove its key: it needs the key of the agreement")
        member = self._agreement.plan.participants + helper
        self._store.reached(member, address)
        log.info("helper %s is here", parties.helpers[helper][0])
        return member

    @property
    def names(self) -> list[str]:
        """What the participants are called, in their order: by themselves, or participant-0, …"""
        if self._agreement.parties is not None:
            return [name for name, _ in self._agreement.parties.sites]
        named, count = self._store.names(), self._agreement.plan.participants
        return [named.get(index, participant_name(index)) for index in range(count)]

    def sizes(self) -> list[int] | None:
        """Returns what all participants have declared, in their order; None while somebody is missing."""
        declared = self._store.declared()
        everyone = range(self._agreement.plan.participants)
        return [declared[p] for p in everyone] if all(p in declared for p in everyone) else None

    def secret(self, participant: int) -> bytes:
        """Returns what this client's channels and the server's have in common."""
        return sealing.channel_secret(self._agreement.plan, self.agreed(participant), participant)

    def agreed(self, participant: int) -> bytes:
        """The secret of this client's enrolment."""
        return self._agreed(participant, self._keys[participant])

    def _agreed(self, participant: int, key: bytes) -> bytes:
        return sealing.agreed_secret(
            self._store.key, key, run=self._store.run, name=participant_name(participant)
        )

    def decode(self, participant: int, release: Release, round_number: int, sealed: bytes) -> np.ndarray:
        """The private vector in a sealed message; refused where it is not of this client and release.

        `Implausible` where clipping and noise do not reach it. Of a masked share it is the bytes: nobody can
        decode one by itself.
        """
        name, key = participant_name(participant), self._store.seal_key(participant, release.kind)
        if key is None:
            raise SottovoceError(f"{name} sent a {release.kind} that it was not asked for")
        stream = release.stream(self._store.run, name, round_number)
        message = sealing.unseal(sealed, stream, private=key, agreed=self.agreed(participant))
        if isinstance(release.channel, Shares):
            if len(message) != KEY_BYTES + release.channel.sharing.length:
                raise Implausible(f"{name} sent {len(message)} bytes for a masked share")
            return np.frombuffer(message, np.uint8)
        decoded = self._decode(participant, release, stream, message)
        if not release.plausible(decoded):
            raise Implausible(
                f"{name} sent a {release.kind} of a norm that its clipping and noise do not reach "
                f"({release.largest_norm:.3g}): refused"
            )
        return decoded

    def _decode(self, participant: int, release: Release, stream: Stream, message: bytes) -> np.ndarray:
        """Of several requests for one release the client has answered whichever came first."""
        why = ChannelError("message answers no request")
        for request in self._store.requests(participant, release.kind):
            try:
                secret = self.secret(participant)
                return release.decode(message, secret=secret, stream=stream, request=request)
            except ChannelError as refused:
                why = refused
        raise why

    def without_model(self) -> list[int]:
        """Participants whose releases are in the generator and who have not kept their model yet."""
        return sorted((self._store.counts().keys() & self.enrolled) - self._store.kept())

    def model(self, participant: int, coefficients: Tensor) -> dict[str, Any]:
        """The message that brings a participant its final coefficients (k,), under seal."""
        stream = (self._store.run, participant_name(participant), MODEL, 0)
        message = Downlink(len(coefficients)).encode(coefficients)
        sealed = sealing.seal_downward(message, stream, agreed=self.agreed(participant))
        return {"run": self._store.run, "kind": MODEL, "model": sealed}
