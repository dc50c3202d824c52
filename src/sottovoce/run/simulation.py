"""The simulator: the whole federation in one process, message by message.

Clients and server are the real ones; the simulator only carries their bytes, decodes them with the
client's secret, and looks at what a federation would keep private (signal norms, accuracies).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.data import ClientRecords, FederatedDataset
from sottovoce.errors import SottovoceError
from sottovoce.machine.determinism import batched, side_by_side
from sottovoce.models.metrics import Evaluation, mean_accuracy
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.kind import server_randomness
from sottovoce.release.once import Phase
from sottovoce.release.places.server import Update, Updates
from sottovoce.release.secrets import client_secret
from sottovoce.run.directory import round_line
from sottovoce.training.client import Asked, Client, release_together, unsealed
from sottovoce.training.server import Server

if TYPE_CHECKING:
    from sottovoce.run.masks import Masks  # needs `cryptography`, which a simulation without masks does not

Observed = dict[str, float | None]
"""What only a simulator sees of a round, by its key in rounds.jsonl."""

TOGETHER = 64
"""Clients that release, or are evaluated, side by side; what they make is in memory at once."""


@dataclass(frozen=True)
class Round:
    """A round whose clients know their coefficients (clients, k) and have not released yet."""

    number: int
    participants: list[int]
    clients: list[Client]
    coefficients: Tensor
    context_bytes: int
    downlink_bytes: int
    started: float

    def line(self, gain: float, effective_gain: float | None, **observed: float | None) -> dict[str, Any]:
        """Its line of rounds.jsonl, with what only a simulator sees; accuracies come later, if at all."""
        return round_line(
            self.number,
            [client.name for client in self.clients],
            downlink_bytes=self.downlink_bytes,
            gain=gain,
            effective_gain=effective_gain,
            started=self.started,
            context_bytes=self.context_bytes,
            **observed,
            seen=None,
            future=None,
        )


class Simulation:
    """A run in progress; `step` advances it by one round."""

    def __init__(
        self,
        blueprint: Blueprint,
        federation: FederatedDataset,
        server: Server,
        ledger: Ledger | None,
        *,
        run: str,
        master: bytes,
        updates: Updates | None = None,
        masks: Masks | None = None,
    ) -> None:
        self.blueprint = blueprint
        self.federation = federation
        self.server = server
        self._ledger = ledger
        self._run = run
        self._master = master
        self._updates = updates
        self._masks = masks
        self._future_contexts: np.ndarray | None = None
        self.once_bytes = {"centre": 0, "calibration": 0, "confusion": 0}
        """Sent once, by kind; contexts are counted with the round that they come before."""

    @property
    def done(self) -> bool:
        return self.server.round >= self.blueprint.plan.rounds

    def step(self) -> dict[str, Any]:
        """One round; returns its line of rounds.jsonl."""
        return self.close_round(self.open_round())

    def open_round(self) -> Round:
        """Takes what is released before the round; returns its clients with their coefficients."""
        started = time.perf_counter()
        context_bytes = self._release_due()
        chosen = [int(i) for i in self.blueprint.schedule[self.server.round]]
        coefficients, downlink = self.blueprint.downlink("gradient").deliver(self.server.sent(chosen))
        return Round(
            number=self.server.round + 1,
            participants=chosen,
            clients=[self._participant(participant) for participant in chosen],
            coefficients=coefficients,
            context_bytes=context_bytes,
            downlink_bytes=downlink,
            started=started,
        )

    def close_round(self, opened: Round, clipped: Tensor | None = None) -> dict[str, Any]:
        """Releases, decodes and applies a round.

        `clipped` (clients, k) holds the clipped means where an engine has computed them for many runs.
        """
        gain, place = self.server.gain(opened.participants), self.blueprint.plan.place
        asked = [
            client.gradient(opened.number, opened.coefficients[i], None if clipped is None else clipped[i])
            for i, client in enumerate(opened.clients)
        ]
        if place.shared:
            return opened.line(gain, None, **self._sum_shares(opened, asked))
        if place.at_server:
            return opened.line(gain, None, **self._sum_at_server(opened, asked))
        effective, observed = self._apply(opened, asked)
        return opened.line(gain, effective, **observed)

    def _apply(self, opened: Round, asked: Sequence[Asked]) -> tuple[float | None, Observed]:
        """Applies releases that are private by themselves."""
        releases, sent, signals, noises = {}, 0, list[float](), list[float]()
        made = zip(opened.participants, opened.clients, self._released(asked), strict=True)
        for participant, client, (message, vector) in made:
            sent += len(message)
            releases[participant] = vector
            if client.signal is not None:
                signals.append(float(np.linalg.norm(client.signal)))
                noises.append(float(np.linalg.norm(vector - client.signal)))
        signal_norm, noise_norm = (float(np.mean(norms)) if norms else None for norms in (signals, noises))
        effective = self.server.receive_round(releases)
        return effective, {"bytes": sent, "signal_norm": signal_norm, "noise_norm": noise_norm}

    def _sum_at_server(self, opened: Round, asked: Sequence[Asked]) -> Observed:
        """Applies the sum of releases with the server's noise, which is drawn once for ever."""
        drawn = None if self._updates is None else self._updates.get(opened.number)
        messages = self._sent(asked)
        if drawn is None:
            vectors = self._decoded(asked, messages)
            drawn = self._draw(dict(zip(opened.participants, vectors, strict=True)))
        self.server.receive_update(drawn)
        # A lone message that only the server's noise protects: its length tells of records, and stays unsaid.
        sent = {} if len(messages) == 1 else {"bytes": sum(map(len, messages))}
        return {**sent, "signal_norm": None, "noise_norm": None}

    def _sum_shares(self, opened: Round, asked: Sequence[Asked]) -> Observed:
        """Applies the sum of clients' shares, unmasked if they have masks."""
        masks, sharing = self._masks, self.blueprint.sharing
        if masks is not None:
            masks.begin()
        shares = dict(zip(opened.participants, self._sent(asked), strict=True))
        assert sharing is not None
        total = sharing.added(shares.values()) if masks is None else masks.total(opened.number, shares)
        self.server.receive_update(self.server.share_out(total, opened.participants))
        return {"bytes": sum(map(len, shares.values())), "signal_norm": None, "noise_norm": None}

    def _draw(self, releases: Mapping[int, np.ndarray]) -> Update:
        """The noised sum of the next round, durable before anything is made from it."""
        plan, number = self.blueprint.plan, self.server.round + 1
        update = self.server.add_up(releases, server_randomness(plan, self._run, number))
        if self._updates is not None:
            self._updates.commit(update)
        elif not plan.seeded:
            raise SottovoceError("noise at the server needs a run directory, where its draws are kept")
        return update

    def evaluate(self) -> tuple[dict[str, Evaluation], dict[str, Evaluation]]:
        """Every participant's and every future client's personal model on its held-out records."""

        def participant(index: int) -> tuple[Client, Tensor]:
            return self._participant(index), self.server.coefficients([index])[0]

        def future(index: int) -> tuple[Client, Tensor]:
            context = None if self._future_contexts is None else self._future_contexts[index]
            return self._future(index), self.server.personalize(context)

        seen = _evaluated(map(participant, range(len(self.federation.participants))))
        return seen, _evaluated(map(future, range(len(self.federation.future))))

    def evaluate_into(self, line: dict[str, Any]) -> None:
        """Adds the two mean accuracies to a round's line."""
        seen, future = self.evaluate()
        line["seen"], line["future"] = mean_accuracy(seen), mean_accuracy(future)

    def state(self) -> dict[str, Tensor]:
        """All that a resumed simulation needs beyond the ledger and the plan."""
        state = self.server.state()
        if self._future_contexts is not None:
            state["future_contexts"] = torch.from_numpy(self._future_contexts)
        sent = {kind: count for kind, count in self.once_bytes.items() if count}
        return {**state, **{f"{kind}_bytes": torch.tensor(count) for kind, count in sent.items()}}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.server.load_state(state)
        if "future_contexts" in state:
            self._future_contexts = state["future_contexts"].numpy()
        for kind in self.once_bytes:
            self.once_bytes[kind] = int(state.get(f"{kind}_bytes", 0))

    def finish(self) -> None:
        """After the last round: the final generator and, where the plan has them, the last releases."""
        self.server.finish()
        self._release_due()
        self.server.conclude()

    def _release_due(self) -> int:
        """Walks the phases between the last round and the next; bytes of contexts."""
        due = (phase for phase in self.blueprint.phases if phase.after == self.server.round)
        return sum(self._release_once(phase) for phase in due if phase.by != "called")

    def _release_once(self, phase: Phase) -> int:
        """Takes what all clients of a role release once, if not known yet; bytes of contexts."""
        if phase.by == "future":
            if self._future_contexts is None:
                self._release_future(phase)
            return 0
        if self.server.has(phase):
            return 0
        total, everyone = 0, range(self.blueprint.plan.participants)
        asked = (self._participant(i).once(phase.kind, self.server.model_of(phase, i)) for i in everyone)
        for participant, (message, vector) in enumerate(self._released(asked)):
            total += len(message)
            self.server.receive(phase.kind, participant, vector)
        self.server.close(phase)
        if phase.kind == "context":
            return total
        self.once_bytes[phase.kind] += total
        return 0

    def _release_future(self, phase: Phase) -> None:
        """The contexts of the future clients, who are at hand here."""
        model, clients = self.server.model_of(phase), map(self._future, range(len(self.federation.future)))
        asked = (client.once(phase.kind, model) for client in clients)
        decoded = [vector for _, vector in self._released(asked)]
        size = self.blueprint.releases[phase.kind].size
        self._future_contexts = np.array(decoded).reshape(len(decoded), size)

    def _participant(self, index: int) -> Client:
        return self._client(self.federation.names[index], self.federation.participants[index], index)

    def _future(self, index: int) -> Client:
        return self._client(self.federation.future_names[index], self.federation.future[index])

    def _client(self, name: str, records: ClientRecords, participant: int | None = None) -> Client:
        masks, secret = self._masks, client_secret(self._master, name)
        return Client(
            name,
            records,
            self.blueprint,
            self._ledger,
            run=self._run,
            secret=secret,
            participant=participant,
            seal=unsealed if masks is None or participant is None else masks.seal(participant),
        )

    def _sent(self, asked: Iterable[Asked]) -> list[bytes]:
        """The messages that clients are asked for, made by some of them at a time."""
        return [message for block in batched(asked, TOGETHER) for message in release_together(block)]

    def _released(self, asked: Iterable[Asked]) -> Iterator[tuple[bytes, np.ndarray]]:
        """The same, each message with what it says."""
        for block in batched(asked, TOGETHER):
            messages = release_together(block)
            yield from zip(messages, self._decoded(block, messages), strict=True)

    def _decoded(self, asked: Sequence[Asked], messages: Sequence[bytes]) -> list[np.ndarray]:
        return side_by_side(self._decode, list(zip(asked, messages, strict=True)))

    def _decode(self, received: tuple[Asked, bytes]) -> np.ndarray:
        asked, message = received
        client = asked.client
        release = self.blueprint.releases_of(client.participant)[asked.kind]
        stream = release.stream(self._run, client.name, asked.round)
        secret = client_secret(self._master, client.name)
        return release.decode(message, secret=secret, stream=stream, request=asked.request)


def _evaluated(models: Iterable[tuple[Client, Tensor]]) -> dict[str, Evaluation]:
    """Clients' own models on their held-out records, by name."""
    found: dict[str, Evaluation] = {}
    for block in batched(models, TOGETHER):
        evaluations = side_by_side(lambda model: model[0].evaluate(model[1]), block)
        found.update((client.name, one) for (client, _), one in zip(block, evaluations, strict=True))
    return found
