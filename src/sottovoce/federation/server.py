"""The server of a federation: what it asks of whom, what it accepts, and when a round is over.

It knows no transport. An engine delivers its requests as often as it likes, because every request can be
repeated: the client answers with stored bytes, and a release that was received before is dropped unread. So
lost, doubled, late and damaged messages change nothing but the time a round takes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sottovoce.errors import SottovoceError, shown
from sottovoce.federation import Agreement, sealing
from sottovoce.federation.roster import Implausible, Roster
from sottovoce.federation.sealing import MODEL, SEAL_BYTES, check_bucket, public_key
from sottovoce.federation.store import Store
from sottovoce.federation.sums import MASKS, Sums, terms_of
from sottovoce.plan.catalog import Kind
from sottovoce.release.kind import asked_for, server_randomness
from sottovoce.release.once import ONCE, Phase
from sottovoce.release.secrets import participant_name
from sottovoce.run.directory import round_line
from sottovoce.training.server import Server

log = logging.getLogger("sottovoce.federation")

Fields = dict[str, Any]
"""A message between the ends: flat, of text, numbers, bytes and lists of numbers."""

Missing = dict[int, Kind | Literal["model", "masks"]]
"""What is missing of each member: participants by their numbers, and helpers after them."""
Open = Phase | Literal["enrolment", "over"]
"""What is open: enrolment until the agreement is frozen, a phase of participants, or nothing."""


@dataclass(frozen=True)
class Options:
    """What the server's operator may choose without changing a promise."""

    patience: float = 600.0
    """Seconds after which a round continues without the clients that are missing."""
    bucket: int = 0
    """Messages are padded to multiples of so many bytes; 0: not padded."""
    diagnostics: bool = False
    """Log bytes, norms and accuracies per client: private to the server, and charged to nobody."""

    def __post_init__(self) -> None:
        check_bucket(self.bucket)  # or every client would refuse


class Coordinator:
    """A federation in progress: `missing` says what to ask, `accept` takes it, `advance` closes rounds.
    Its `roster` enrols; what is accepted in a transaction of its `store` becomes durable together.

    When all releases are in (`done`), everybody who made some is due a model, until `closed`.
    """

    def __init__(self, agreement: Agreement, store: Store, options: Options | None = None) -> None:
        self.agreement = agreement
        self.options = options or Options()
        self.store = store
        self.roster = Roster(agreement, store)
        self.run = store.run
        self._decoded: dict[tuple[int, Kind], np.ndarray] = {}
        self._diagnostics: dict[str, Fields] = {}
        self._refused: dict[int, str] = {}
        self._sums: Sums | None = None
        if agreement.parties is not None and self.options.diagnostics:
            raise SottovoceError(
                "under noise=shared nothing is known of a single client: leave diagnostics out", "diagnostics"
            )
        self._left_out: set[tuple[int, Kind]] = set()
        self.left: set[int] = set()
        """Participants who were put back and have not come back."""
        self._coefficients: dict[int, bytes] = {}
        self.open: Open = "enrolment"
        """What is open."""
        self._deadline = time.monotonic() + self.options.patience
        self._freeze()

    def _freeze(self) -> None:
        """Leaves enrolment, if everybody's number of records is known or stated by the plan."""
        if self.agreement.open:
            sizes = self.roster.sizes()
            if sizes is None:
                return
            self.agreement = self.agreement.frozen(sizes)
            log.info("all clients have declared their records: the agreement is frozen")
        self.blueprint = self.agreement.blueprint()
        self._digest = self.agreement.digest()
        self.server = Server(self.blueprint)
        if self.agreement.parties is not None:
            self._sums = Sums(self.store, terms_of(self.agreement, self.blueprint, self.run))
            log.info("masks are derived from the agreement %s", self._sums.terms.digest.hex())
        state = self.store.state()
        if state is not None:
            self.server.load_state(state)
            log.info("resumed after round %d of %d", self.server.round, self.agreement.plan.rounds)
        for participant, kind, round_number, message in self.store.waiting():
            release = self.blueprint.releases_of(participant)[kind]
            self._decoded[participant, kind] = self.roster.decode(participant, release, round_number, message)
        self._begin(self._phase_after(None))

    @property
    def round(self) -> int:
        """Rounds applied so far."""
        return 0 if self.open == "enrolment" else self.server.round

    @property
    def done(self) -> bool:
        """Returns whether every release that the plan asks for was made, or given up."""
        return self.open == "over"

    @property
    def closed(self) -> bool:
        """Returns whether everybody has their model, too, or patience with those who do not come is over."""
        return self.done and (not self.missing() or time.monotonic() >= self._deadline)

    def called(self, member: int) -> str:
        """Returns what a member is called: participants come first, then the helpers of shared noise."""
        helper = member - self.agreement.plan.participants
        if helper < 0 or self.agreement.parties is None:
            return participant_name(member)
        return f"helper {self.agreement.parties.helpers[helper][0]}"

    def missing(self) -> Missing:
        """Returns what is still to come from each member, or go to it; asking again is always harmless."""
        if self.open == "enrolment":
            return {}
        if self.open == "over":
            idle = [] if self._sums is None else self._sums.idle()
            return {**dict.fromkeys(self.roster.without_model(), MODEL), **self._helpers(idle)}
        if self._sums is not None and self.open.by == "called" and (asked := self._sums.asked()):
            return self._helpers(asked)
        if self._sums is not None and self.open.by == "called" and self._sums.fixed is not None:
            return {}
        return {
            participant: kind
            for participant, kind in self._due(self.open).items()
            if (participant, kind) not in self._decoded and (participant, kind) not in self._left_out
        }

    def _helpers(self, helpers: list[int]) -> Missing:
        return {self.agreement.plan.participants + helper: MASKS for helper in helpers}

    def _due(self, phase: Phase) -> dict[int, Kind]:
        if phase.by != "called":
            everyone, contexts = range(self.agreement.plan.participants), phase.kind == "context"
            return {i: phase.kind for i in everyone if self._lacks_context(i) == contexts}
        # Who came too late for the contexts releases its own before its first gradient.
        return {
            participant: "context" if self._lacks_context(participant) else phase.kind
            for participant in self._coefficients
            if (participant, phase.kind) not in self._decoded
        }

    def request(self, participant: int, kind: Kind | Literal["model", "masks"]) -> Fields:
        """The request for a missing release, or the model that is due, to be delivered to the participant."""
        frozen = {"agreement": self._digest, "sizes": list(self.agreement.sizes)}
        if kind == MODEL:
            [coefficients] = self.server.coefficients([participant])
            return {**self.roster.model(participant, coefficients), **frozen}
        if kind == MASKS:
            assert self._sums is not None
            return {"run": self.run, **frozen, **self._sums.request(self._masked())}
        key = self.store.ask(participant, kind)
        fields: Fields = {
            "run": self.run,
            **frozen,
            "kind": kind,
            "round": self._round_of(kind),
            "seal": public_key(key),
            "bucket": self.options.bucket,
            "diagnostics": self.options.diagnostics,
            "refused": self._refused.pop(participant, ""),
        }
        if kind == "gradient":
            fields["coefficients"] = self._coefficients[participant]
            fields.update({} if self._sums is None else self._sums.keys())
        link = self.blueprint.downlink(kind)
        for phase in self.blueprint.once:
            if phase.kind == kind and (vector := self.server.model_of(phase, participant)) is not None:
                fields["coefficients"] = link.encode(vector)
        sent = link.decode(fields["coefficients"]) if "coefficients" in fields else None
        bound = asked_for(sent, sealing.bound_to(self.agreement.plan, fields["seal"]))
        self.store.note_request(participant, kind, bound)
        return fields

    def accept(self, participant: int, answer: Mapping[str, Any]) -> None:
        """Takes a client's answer; one that is refused changes nothing and raises, saying why.

        The client reads why in the next request that it gets. A release that the client can never make is
        not waited for: a gradient in its round, a context in the whole run, and its gradients with it. Nor is
        a client that has left the run, until it comes back.
        """
        helper = participant - self.agreement.plan.participants
        if helper >= 0:
            if self._sums is not None:
                self._sums.accept(helper, answer)
                if not self._sums.asked():  # whoever was waiting for helpers has their time from now on
                    self._deadline = time.monotonic() + self.options.patience
            return
        if answer.get("error"):
            raise SottovoceError(f"{participant_name(participant)} declined: {shown(answer['error'])}")
        try:
            self._accept(participant, answer)
        except SottovoceError as error:
            self._refused[participant] = str(error)
            raise

    def _accept(self, participant: int, answer: Mapping[str, Any]) -> None:
        kind, round_number, body = answer.get("kind"), answer.get("round"), answer.get("release")
        if self.open == "enrolment":
            raise SottovoceError(f"{participant_name(participant)} answers before anything was asked")
        if kind == MODEL:
            if answer.get("kept") is True and participant in self.roster.enrolled:
                self.store.keep_model(participant)
                log.info("%s has its model", participant_name(participant))
            return
        releases = self.blueprint.releases_of(participant)
        why = answer.get("left") or answer.get("left_out")
        if kind not in releases or not (isinstance(body, bytes) or why):
            raise SottovoceError(f"{participant_name(participant)} sent something other than a release")
        if isinstance(body, bytes) and (kind, round_number) in self.store.received(participant):
            log.info("%s of %s came twice: dropped", kind, participant_name(participant))
            return
        if self.done or round_number != self._round_of(kind):
            raise SottovoceError(
                f"{participant_name(participant)} sent a release of round {shown(round_number)}, which is "
                "not open"
            )
        if not isinstance(body, bytes):
            if self.missing().get(participant) == kind:
                self._left_out.add((participant, kind))
                if answer.get("left"):
                    self.left.add(participant)
                log.warning("%s leaves out its %s: %s", participant_name(participant), kind, shown(why))
            return
        if kind == "gradient" and participant not in self._coefficients:
            raise SottovoceError(f"{participant_name(participant)} was not chosen for round {round_number}")
        release = releases[kind]
        if len(body) > SEAL_BYTES + release.largest_message + self.options.bucket:
            raise SottovoceError(
                f"{participant_name(participant)} sent {len(body)} bytes for {release.size} numbers: "
                "refused unread"
            )
        try:
            decoded = self.roster.decode(participant, release, round_number, body)
        except Implausible:
            self._left_out.add((participant, kind))
            raise
        self.store.receive(participant, kind, round_number, body)
        self.left.discard(participant)
        self._decoded[participant, kind] = decoded
        self._diagnose(participant, kind, body, decoded, answer)

    def advance(self) -> Fields | None:
        """Closes what is open if all have come or patience is over; the line of a round that is closed."""
        if self.open == "enrolment":
            self._freeze()
            if self.open == "enrolment" and time.monotonic() >= self._deadline:
                self._deadline = time.monotonic() + self.options.patience
                absent = set(range(self.agreement.plan.participants)) - self.roster.enrolled
                names = ", ".join(participant_name(participant) for participant in sorted(absent))
                log.warning("nothing begins before all have declared their records: waiting for %s", names)
            return None
        if self.open == "over":
            return None
        phase, missing = self.open, self.missing()
        if missing:
            if time.monotonic() < self._deadline:
                return None
            names = ", ".join(map(self.called, sorted(missing)))
            if min(missing) >= self.agreement.plan.participants:
                log.warning(
                    "round %d waits for %s: no sum opens while a helper is away", self.server.round + 1, names
                )
                self._deadline = time.monotonic() + self.options.patience
                return None
            what = f"round {self.server.round + 1} without" if phase.by == "called" else f"{phase.kind}s of"
            log.warning("patience is over, continuing: %s %s", what, names)
        if phase.by == "called" and self._sums is not None and self._sums.fixed is None:
            self._fix_sum(self._sums)
            return None
        line = self._close_round() if phase.by == "called" else None
        for kind in ONCE:
            for participant, release in sorted(self._released(kind).items()):
                self.server.receive(kind, participant, release)
        self.server.close(phase)
        following = self._phase_after(phase)
        if following == "over":
            self.server.conclude()
        self.store.apply(self.server.state(), line, last=following == "over")
        self._decoded.clear()
        self._diagnostics.clear()
        self._begin(following)
        return line

    def _released(self, kind: Kind) -> dict[int, np.ndarray]:
        """Returns what came of a kind since something was closed last, by participant."""
        return {participant: vector for (participant, of), vector in self._decoded.items() if of == kind}

    def _masked(self) -> dict[int, bytes]:
        """The masked messages of the round."""
        return {participant: share.tobytes() for participant, share in self._released("gradient").items()}

    def _fix_sum(self, sums: Sums) -> None:
        """Decides, once for ever, whose sum opens in this round, or that none does."""
        came = self._masked()
        self._deadline = time.monotonic() + self.options.patience
        if not sums.fix(came):
            log.warning(
                "round %d is given up: %d messages came, a sum is of %d or more; who sent one stays charged",
                *(sums.round, len(came), sums.terms.threshold),
            )

    def _close_round(self) -> Fields:
        releases = self._released("gradient")
        gain = self.server.gain(list(self._coefficients))
        effective, observed = None, Fields()
        if self._sums is not None:
            total, came = self._sums.total(self._masked()), self._sums.fixed or []
            update = self.server.nothing() if total is None else self.server.share_out(total, came)
            observed = {} if total is not None else {"given_up": True}
            releases = {participant: releases[participant] for participant in came}
            self.server.receive_update(update)
        elif self.agreement.plan.place.at_server:
            # Drawn here, durable with the state that it makes, and noted: before that nothing leaves, and
            # what a killed server had drawn and not stored nobody has seen.
            number = self.server.round + 1
            randomness = server_randomness(self.agreement.plan, self.run, number)
            self.server.receive_update(self.server.add_up(releases, randomness))
        else:
            effective = self.server.receive_round(releases)
        return round_line(
            self.server.round,
            [participant_name(participant) for participant in sorted(releases)],
            downlink_bytes=sum(map(len, self._coefficients.values())),
            gain=gain,
            effective_gain=effective,
            started=self._started,
            **observed,
            **({"uncharged_diagnostics": dict(self._diagnostics)} if self.options.diagnostics else {}),
        )

    def _phase_after(self, closed: Phase | None) -> Open:
        """The next phase, after what was closed, whose releases of participants the server has not got."""
        phases = self.blueprint.phases
        left = phases if closed is None else phases[phases.index(closed) + 1 :]
        mine = (phase for phase in left if phase.by != "future" and not self.server.has(phase))
        return next(mine, "over")

    def _begin(self, phase: Open) -> None:
        """Opens a phase."""
        self.open = phase
        self._left_out = {one for one in self._left_out if one[1] == "context" and one[0] not in self.left}
        self._started, self._deadline = time.perf_counter(), time.monotonic() + self.options.patience
        self._coefficients = {}
        if self._sums is not None:
            self._sums.round = self.server.round + 1
        if isinstance(phase, Phase) and phase.by == "called":
            chosen = [int(index) for index in self.blueprint.schedule[self.server.round]]
            messages = map(self.blueprint.downlink("gradient").encode, self.server.sent(chosen))
            self._coefficients = dict(zip(chosen, messages, strict=True))
        elif self.server.round == self.agreement.plan.rounds:
            self.server.finish()

    def _round_of(self, kind: Kind) -> int:
        return self.server.round + 1 if kind == "gradient" else 0

    def _lacks_context(self, participant: int) -> bool:
        return self.server.owes_context(participant) and (participant, "context") not in self._decoded

    def _diagnose(
        self, participant: int, kind: Kind, sealed: bytes, decoded: np.ndarray, answer: Mapping[str, Any]
    ) -> None:
        # Under noise at the server neither norm nor length of a message may be known to anybody.
        hidden = self.agreement.plan.place.at_server and kind == "gradient"
        if self.options.diagnostics and not hidden:
            self._diagnostics[f"{kind} of {participant_name(participant)}"] = {
                "bytes": len(sealed),
                "norm": float(np.linalg.norm(decoded)),
                "accuracy": answer.get("accuracy"),
            }
