"""The simulator: the whole federation in one process, message by message.

Clients and server are the real ones; the simulator only carries their bytes, decodes them with the
client's secret, and looks at what a federation would keep private (signal norms, accuracies).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.blueprint import Blueprint, client_secret, participant_name
from sottovoce.channel import Channel
from sottovoce.client import Client, release_stream
from sottovoce.data import Federation
from sottovoce.evaluation import Evaluation, mean_accuracy
from sottovoce.privacy.ledger import Kind, Ledger
from sottovoce.server import Server


class Simulation:
    """A run in progress: `step` advances it by one round."""

    def __init__(
        self,
        blueprint: Blueprint,
        federation: Federation,
        server: Server,
        ledger: Ledger | None,
        *,
        run: str,
        master: bytes,
    ) -> None:
        self.blueprint = blueprint
        self.federation = federation
        self.server = server
        self._ledger = ledger
        self._run = run
        self._master = master
        self._future_contexts: np.ndarray | None = None

    @property
    def done(self) -> bool:
        return self.server.round >= self.blueprint.plan.rounds

    def step(self) -> dict[str, Any]:
        """Contexts if they are due, then one round; returns the round's line of rounds.jsonl."""
        started = time.perf_counter()
        context_bytes = self._release_contexts() if self.server.contexts_due else 0
        round_number = self.server.round + 1
        chosen = [int(i) for i in self.blueprint.schedule[self.server.round]]
        coefficients = self.server.coefficients(chosen)
        gain = self.server.gain(chosen)
        releases, sent, signals, noises = {}, 0, [], []
        for participant, a in zip(chosen, coefficients, strict=True):
            client = self._participant(participant)
            message = client.release_gradient(round_number, a)
            sent += len(message)
            decoded = self._decode(self.blueprint.gradient_channel, message, client.name, "gradient", round_number)
            releases[participant] = decoded
            if client.signal is not None:
                signals.append(float(np.linalg.norm(client.signal)))
                noises.append(float(np.linalg.norm(decoded - client.signal)))
        self.server.receive_round(releases)
        return {
            "round": round_number,
            "clients": [participant_name(participant) for participant in chosen],
            "bytes": sent,
            "context_bytes": context_bytes,
            "signal_norm": float(np.mean(signals)) if signals else None,
            "noise_norm": float(np.mean(noises)) if noises else None,
            "gain": gain,
            "seconds": time.perf_counter() - started,
            "seen": None,
            "future": None,
        }

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
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.server.load_state(state)
        if "future_contexts" in state:
            self._future_contexts = state["future_contexts"].numpy()

    def _release_contexts(self) -> int:
        """All participants' contexts, and the future clients', who in a simulation are at hand; bytes sent."""
        model = self.server.open_contexts()
        total = 0
        for participant in range(self.blueprint.plan.participants):
            client = self._participant(participant)
            message = client.release_context(model)
            total += len(message)
            self.server.receive_context(participant, self._decode_context(message, client.name))
        self.server.close_contexts()
        decoded = []
        for index in range(len(self.federation.future)):
            client = self._future(index)
            decoded.append(self._decode_context(client.release_context(model), client.name))
        self._future_contexts = np.array(decoded).reshape(len(decoded), self.blueprint.statistic.size)
        return total

    def _participant(self, index: int) -> Client:
        return self._client(participant_name(index), self.federation.participants[index])

    def _future(self, index: int) -> Client:
        return self._client(f"future-{index}", self.federation.future[index])

    def _client(self, name: str, records: Any) -> Client:
        secret = client_secret(self._master, name)
        return Client(name, records, self.blueprint, self._ledger, run=self._run, secret=secret)

    def _decode_context(self, message: bytes, name: str) -> np.ndarray:
        return self._decode(self.blueprint.context_channel, message, name, "context", 0)

    def _decode(self, channel: Channel, message: bytes, name: str, kind: Kind, round_number: int) -> np.ndarray:
        return channel.decode(
            message,
            secret=client_secret(self._master, name),
            stream=release_stream(self._run, name, kind, round_number),
        )
