"""The server of a federation: what it asks of whom, what it accepts, and when a round is over.

It knows no transport. An engine delivers its requests as often as it likes, because every request can be
repeated: the client answers with stored bytes, and a release that was received before is dropped unread. So
lost, doubled, late and damaged messages change nothing but the time a round takes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce.blueprint import participant_name
from sottovoce.errors import SottovoceError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.client_log import shown
from sottovoce.federation.keys import public_key
from sottovoce.federation.roster import Roster
from sottovoce.federation.sealing import SEAL_BYTES, unseal
from sottovoce.federation.store import Store
from sottovoce.privacy.ledger import Kind
from sottovoce.release import server_randomness
from sottovoce.server import Server

log = logging.getLogger("sottovoce.federation")

Fields = dict[str, Any]
"""A message between the ends: flat, of text, numbers, bytes and lists of numbers."""


@dataclass(frozen=True)
class Options:
    """What the server's operator may choose without changing a promise."""

    patience: float = 600.0
    """Seconds after which a round continues without the clients that are missing."""
    bucket: int = 0
    """Messages are padded to multiples of so many bytes; 0: not padded."""
    diagnostics: bool = False
    """Log bytes, norms and accuracies per client: private to the server, and charged to nobody."""


class Coordinator:
    """A federation in progress: `missing` says what to ask, `accept` takes it, `advance` closes rounds."""

    def __init__(self, agreement: Agreement, store: Store, options: Options | None = None) -> None:
        self.agreement = agreement
        self.options = options or Options()
        self.blueprint = agreement.blueprint()
        if agreement.plan.features != "none" or agreement.plan.context_traits.predicted_for_future:
            raise SottovoceError(
                "a federation cannot describe records by features nor ask for a confusion of classes yet: "
                "set features=none and context=labels"
            )
        self._digest = agreement.digest()
        self.server = Server(self.blueprint)
        self._store = store
        self._roster = Roster(agreement, store)
        self._decoded: dict[tuple[int, Kind], np.ndarray] = {}
        self._diagnostics: dict[str, Fields] = {}
        self._refused: dict[int, str] = {}
        self._left_out: set[tuple[int, Kind]] = set()
        self._coefficients: dict[int, bytes] = {}
        state = store.state()
        if state is not None:
            self.server.load_state(state)
            log.info("resumed after round %d of %d", self.server.round, agreement.plan.rounds)
        for participant, kind, round_number, message in store.waiting():
            self._decoded[participant, kind] = self._decode(participant, kind, round_number, message)
        self._begin()

    @property
    def run(self) -> str:
        """The run's name in streams."""
        return self._store.run

    @property
    def done(self) -> bool:
        return self.server.round >= self.agreement.plan.rounds

    @property
    def enrolled(self) -> set[int]:
        """Participants whose keys are known."""
        return self._roster.enrolled

    def batch(self) -> AbstractContextManager[None]:
        """Everything that is enrolled and accepted in the block becomes durable together, at its end."""
        return self._store.transaction()

    def offer(self) -> Fields:
        """What a node is told before it has said who it is."""
        return self._roster.offer()

    def enrol(self, answer: Mapping[str, Any], address: str) -> int:
        """The participant behind an address of the engine's; EnrolmentError if it may not take part."""
        return self._roster.enrol(answer, address)

    def addresses(self) -> dict[int, str]:
        """Where the engine last reached each participant; what comes from there is checked all the same."""
        return self._store.addresses()

    def missing(self) -> dict[int, Kind]:
        """The release that is still to come from each participant; asking again is always harmless."""
        if self.done:
            return {}
        due: dict[int, Kind]
        if self._contexts_open:
            everyone = range(self.agreement.plan.participants)
            due = {participant: "context" for participant in everyone if self._lacks_context(participant)}
        else:
            due = {
                # Who came too late for the contexts releases its own before its first gradient.
                participant: "context" if self._lacks_context(participant) else "gradient"
                for participant in self._coefficients
                if (participant, "gradient") not in self._decoded
            }
        return {
            participant: kind
            for participant, kind in due.items()
            if (participant, kind) not in self._left_out
        }

    def request(self, participant: int, kind: Kind) -> Fields:
        """The request for a missing release, to be delivered to the participant.

        It says what the participant was asked for before, which a client with a restored backup must take
        for released.
        """
        received, asked = self._store.received(participant), self._store.asked(participant)
        key = self._store.ask(participant, kind, self._round_of(kind))
        fields: Fields = {
            "run": self.run,
            "agreement": self._digest,
            "kind": kind,
            "round": self._round_of(kind),
            "received_context": any(kind == "context" for kind, _ in received),
            "received_rounds": [number for kind, number in received if kind == "gradient"],
            "asked_context": any(kind == "context" for kind, _ in asked),
            "asked_rounds": [number for kind, number in asked if kind == "gradient"],
            "seal": public_key(key),
            "bucket": self.options.bucket,
            "diagnostics": self.options.diagnostics,
            "refused": self._refused.pop(participant, ""),
        }
        if kind == "gradient":
            fields["coefficients"] = self._coefficients[participant]
        elif (vector := self.server.open_contexts()) is not None:
            fields["coefficients"] = self.blueprint.downlink(kind).encode(vector)
        return fields

    def accept(self, participant: int, answer: Mapping[str, Any]) -> None:
        """Takes a client's answer; one that is refused changes nothing and raises, saying why.

        The client reads why in the next request that it gets. A release that the client can never make is
        not waited for: a gradient in its round, a context in the whole run, and its gradients with it.
        """
        if answer.get("error"):
            raise SottovoceError(f"{participant_name(participant)} declined: {shown(answer['error'])}")
        try:
            self._accept(participant, answer)
        except SottovoceError as error:
            self._refused[participant] = str(error)
            raise

    def _accept(self, participant: int, answer: Mapping[str, Any]) -> None:
        kind, round_number, body = answer.get("kind"), answer.get("round"), answer.get("release")
        if kind not in self.blueprint.releases or not (isinstance(body, bytes) or answer.get("left_out")):
            raise SottovoceError(f"{participant_name(participant)} sent something other than a release")
        if self.done or round_number != self._round_of(kind):
            raise SottovoceError(
                f"{participant_name(participant)} sent a release of round {shown(round_number)}, which is "
                "not open"
            )
        if not isinstance(body, bytes):
            if self.missing().get(participant) == kind:
                self._left_out.add((participant, kind))
                why = shown(answer["left_out"])
                log.warning("%s leaves out its %s: %s", participant_name(participant), kind, why)
            return
        if kind == "gradient" and participant not in self._coefficients:
            raise SottovoceError(f"{participant_name(participant)} was not chosen for round {round_number}")
        release = self.blueprint.releases[kind]
        if len(body) > SEAL_BYTES + release.largest_message + self.options.bucket:
            raise SottovoceError(
                f"{participant_name(participant)} sent {len(body)} bytes for {release.size} numbers: "
                "refused unread"
            )
        if (kind, round_number) in self._store.received(participant):
            log.info("%s of %s came twice: dropped", kind, participant_name(participant))
            return
        decoded = self._decode(participant, kind, round_number, body)
        if not release.plausible(decoded):
            self._left_out.add((participant, kind))  # it would only be sent again
            raise SottovoceError(
                f"{participant_name(participant)} sent a {kind} of a norm that its clipping and noise do not "
                f"reach ({release.largest_norm:.3g}): refused"
            )
        self._store.receive(participant, kind, round_number, body)
        self._decoded[participant, kind] = decoded
        self._diagnose(participant, kind, body, decoded, answer)

    def advance(self) -> Fields | None:
        """Closes the contexts or the round if all have come or patience is over; a closed round's line."""
        if self.done:
            return None
        missing = self.missing()
        if missing:
            if time.monotonic() < self._deadline:
                return None
            names = ", ".join(participant_name(participant) for participant in missing)
            what = "contexts of" if self._contexts_open else f"round {self.server.round + 1} without"
            log.warning("patience is over, continuing: %s %s", what, names)
        line = None if self._contexts_open else self._close_round()
        contexts = {p: vector for (p, kind), vector in self._decoded.items() if kind == "context"}
        for participant in sorted(contexts):
            self.server.receive_context(participant, contexts[participant])
        if self._contexts_open:
            self.server.close_contexts()
        self._store.apply(self.server.state(), line, last=self.done)
        self._decoded.clear()
        self._diagnostics.clear()
        self._begin(contexts_closed=self._contexts_open)
        return line

    def _close_round(self) -> Fields:
        releases = {p: vector for (p, kind), vector in self._decoded.items() if kind == "gradient"}
        gain = self.server.gain(list(self._coefficients))
        effective = None
        if self.agreement.plan.noise_at_server:
            # Drawn here and durable with the state that it makes: before that nothing leaves, and what a
            # killed server had drawn and not stored nobody has seen.
            number = self.server.round + 1
            randomness = server_randomness(self.agreement.plan, self.run, number)
            self.server.receive_update(self.server.add_up(releases, randomness))
        else:
            effective = self.server.receive_round(releases)
        line: Fields = {
            "round": self.server.round,
            "clients": [participant_name(participant) for participant in sorted(releases)],
            "downlink_bytes": sum(map(len, self._coefficients.values())),
            "gain": gain,
            "effective_gain": effective,
            "seconds": time.perf_counter() - self._started,
        }
        if self.options.diagnostics:
            line["uncharged_diagnostics"] = dict(self._diagnostics)
        return line

    def _begin(self, *, contexts_closed: bool = False) -> None:
        """Opens what comes next: the contexts, in the round before which they are due, or that round."""
        current, due = self.server.round, self.blueprint.contexts_after
        self._contexts_open = current == due and self.server.contexts_due and not contexts_closed
        self._left_out = {(participant, kind) for participant, kind in self._left_out if kind == "context"}
        self._started, self._deadline = time.perf_counter(), time.monotonic() + self.options.patience
        self._coefficients = {}
        if not self._contexts_open and not self.done:
            chosen = [int(index) for index in self.blueprint.schedule[current]]
            messages = map(self.blueprint.downlink("gradient").encode, self.server.coefficients(chosen))
            self._coefficients = dict(zip(chosen, messages, strict=True))

    def _round_of(self, kind: Kind) -> int:
        return 0 if kind == "context" else self.server.round + 1

    def _lacks_context(self, participant: int) -> bool:
        releases = self.agreement.plan.releases_context and self.server.contexts_due
        return (
            releases and not self.server.knows(participant) and (participant, "context") not in self._decoded
        )

    def _decode(self, participant: int, kind: Kind, round_number: int, sealed: bytes) -> np.ndarray:
        release, key = self.blueprint.releases[kind], self._store.seal_key(participant, kind)
        if key is None:
            raise SottovoceError(f"{participant_name(participant)} sent a {kind} that it was not asked for")
        stream = release.stream(self.run, participant_name(participant), round_number)
        message = unseal(sealed, stream, private=key, agreed=self._roster.agreed(participant))
        return release.decode(message, secret=self._roster.secret(participant), stream=stream)

    def _diagnose(
        self, participant: int, kind: Kind, sealed: bytes, decoded: np.ndarray, answer: Mapping[str, Any]
    ) -> None:
        # Under noise at the server neither norm nor length of a message may be known to anybody.
        hidden = self.agreement.plan.noise_at_server and kind == "gradient"
        if self.options.diagnostics and not hidden:
            self._diagnostics[f"{kind} of {participant_name(participant)}"] = {
                "bytes": len(sealed),
                "norm": float(np.linalg.norm(decoded)),
                "accuracy": answer.get("accuracy"),
            }
