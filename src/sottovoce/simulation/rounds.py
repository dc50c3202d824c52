"""The simulator: the whole federation in one process, message by message.

Clients and server are the real ones; the simulator only carries their bytes, decodes them with the
client's secret, and looks at what a federation would keep private (signal norms, accuracies).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.blueprint import Blueprint, client_secret
from sottovoce.central import Update
from sottovoce.client import Client
from sottovoce.data import ClientRecords, FederatedDataset
from sottovoce.errors import SottovoceError
from sottovoce.evaluation import Evaluation, mean_accuracy
from sottovoce.privacy.ledger import Kind, Ledger
from sottovoce.release import server_randomness
from sottovoce.server import Server
from sottovoce.simulation.updates import Updates


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
    ) -> None:
        self.blueprint = blueprint
        self.federation = federation
        self.server = server
        self._ledger = ledger
        self._run = run
        self._master = master
        self._updates = updates
        self._future_contexts: np.ndarray | None = None
        self.confusion_bytes = 0
        """Sent after the last round."""

    @property
    def done(self) -> bool:
        return self.server.round >= self.blueprint.plan.rounds

    def step(self) -> dict[str, Any]:
        """One round; returns its line of rounds.jsonl."""
        return self.close_round(self.open_round())

    def open_round(self) -> Round:
        """Contexts if they are due, then the round's clients with their coefficients."""
        started = time.perf_counter()
        context_bytes = self._release_contexts() if self.server.contexts_due else 0
        chosen = [int(i) for i in self.blueprint.schedule[self.server.round]]
        coefficients, downlink = self.blueprint.downlink("gradient").deliver(self.server.coefficients(chosen))
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
        gain = self.server.gain(opened.participants)
        releases, sent, signals, noises = {}, 0, list[float](), list[float]()
        summed = self.blueprint.plan.noise_at_server
        drawn = self._updates.get(opened.number) if summed and self._updates is not None else None
        for i, (participant, client) in enumerate(zip(opened.participants, opened.clients, strict=True)):
            given = None if clipped is None else clipped[i]
            message = client.release_gradient(opened.number, opened.coefficients[i], given)
            sent += len(message)
            if drawn is not None:
                continue
            decoded = self._decode("gradient", message, client, opened.number)
            releases[participant] = decoded
            if client.signal is not None and not summed:
                signals.append(float(np.linalg.norm(client.signal)))
                noises.append(float(np.linalg.norm(decoded - client.signal)))
        effective = None
        if not summed:
            effective = self.server.receive_round(releases)
        else:
            self.server.receive_update(drawn or self._draw(releases))
        return {
            "round": opened.number,
            "clients": [client.name for client in opened.clients],
            "bytes": sent,
            "context_bytes": opened.context_bytes,
            "downlink_bytes": opened.downlink_bytes,
            "signal_norm": float(np.mean(signals)) if signals else None,
            "noise_norm": float(np.mean(noises)) if noises else None,
            "gain": gain,
            "effective_gain": effective,
            "seconds": time.perf_counter() - opened.started,
            "seen": None,
            "future": None,
        }

    def _draw(self, releases: Mapping[int, np.ndarray]) -> Update:
        """The noised sum of the next round, durable before anything is made from it."""
        plan, number = self.blueprint.plan, self.server.round + 1
        update = self.server.add_up(releases, server_randomness(plan, self._run, number))
        if self._updates is None:
            raise SottovoceError("noise at the server needs a run directory, where its draws are kept")
        self._updates.commit(update)
        return update

    def evaluate(self) -> tuple[dict[str, Evaluation], dict[str, Evaluation]]:
        """Every participant's and every future client's personal model on its held-out records."""
        seen = {}
        for participant in range(len(self.federation.participants)):
            client = self._participant(participant)
            seen[client.name] = client.evaluate(self.server.coefficients([participant])[0])
        future = {}
        for index in range(len(self.federation.future)):
            client = self._future(index)
            context = None if self._future_contexts is None else self._future_contexts[index]
            future[client.name] = client.evaluate(self.server.personalize(context))
        return seen, future

    def evaluate_into(self, line: dict[str, Any]) -> None:
        """Adds the two mean accuracies to a round's line."""
        seen, future = self.evaluate()
        line["seen"], line["future"] = mean_accuracy(seen), mean_accuracy(future)

    def state(self) -> dict[str, Tensor]:
        """All that a resumed simulation needs beyond the ledger and the plan."""
        state = self.server.state()
        if self._future_contexts is not None:
            state["future_contexts"] = torch.from_numpy(self._future_contexts)
            state["confusion_bytes"] = torch.tensor(self.confusion_bytes)
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.server.load_state(state)
        if "future_contexts" in state:
            self._future_contexts = state["future_contexts"].numpy()
            self.confusion_bytes = int(state.get("confusion_bytes", torch.tensor(0)))

    def _release_contexts(self) -> int:
        """All participants' contexts, and the future clients' where they release the same; bytes sent."""
        model = self.server.open_contexts()
        total = 0
        for participant in range(self.blueprint.plan.participants):
            client = self._participant(participant)
            message = client.release_context(model)
            total += len(message)
            self.server.receive_context(participant, self._decode("context", message, client))
        self.server.close_contexts()
        if not self.blueprint.plan.context_traits.predicted_for_future:
            self._release_future(model)
        return total

    def finish(self) -> None:
        """After the last round: the final generator and, where the plan has them, the last releases."""
        self.server.finish()
        if self.blueprint.plan.context_traits.predicted_for_future and self._future_contexts is None:
            model = self.server.shared_coefficients()
            for participant in range(self.blueprint.plan.participants):
                client = self._participant(participant)
                message = client.release_confusion(model)
                self.confusion_bytes += len(message)
                decoded = self._decode("confusion", message, client)
                self.server.receive_confusion(participant, decoded)
            self._release_future(model)

    def _release_future(self, model: Tensor | None) -> None:
        """The contexts of the future clients, who are at hand here."""
        decoded = []
        for index in range(len(self.federation.future)):
            client = self._future(index)
            decoded.append(self._decode("context", client.release_context(model), client))
        size = self.blueprint.releases["context"].size
        self._future_contexts = np.array(decoded).reshape(len(decoded), size)

    def _participant(self, index: int) -> Client:
        return self._client(self.federation.names[index], self.federation.participants[index], index)

    def _future(self, index: int) -> Client:
        return self._client(self.federation.future_names[index], self.federation.future[index])

    def _client(self, name: str, records: ClientRecords, participant: int | None = None) -> Client:
        secret = client_secret(self._master, name)
        return Client(
            name,
            records,
            self.blueprint,
            self._ledger,
            run=self._run,
            secret=secret,
            participant=participant,
        )

    def _decode(self, kind: Kind, message: bytes, client: Client, round_number: int = 0) -> np.ndarray:
        release = self.blueprint.releases_of(client.participant)[kind]
        stream = release.stream(self._run, client.name, round_number)
        return release.decode(message, secret=client_secret(self._master, client.name), stream=stream)
