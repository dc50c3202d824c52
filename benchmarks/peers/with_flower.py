"""Flower's simulation: `python -m benchmarks.peers.with_flower ROUNDS CORES`, where Flower and Ray are.

Federated averaging with one local step on all records, without any privacy. As Flower's documentation says,
each client is given one core and Ray as many as there are: on two cores, both clients of a round run at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.flower_client import app as client_app
from benchmarks.peers.records import CLIENTS, CLIENTS_PER_ROUND
from benchmarks.peers.turns import Turns
from sottovoce.models.architectures import lenet


class FlowerClock(FedAvg):
    """A turn is everything from one of the strategy's rounds to the next."""

    def __init__(self, turns: Turns, **options: Any) -> None:
        super().__init__(**options)
        self._turns = turns

    def configure_train(self, *arguments: Any, **options: Any) -> Iterable[Message]:
        self._turns.done()
        self._turns.wait()
        return super().configure_train(*arguments, **options)


def main(rounds: int, cores: int) -> None:
    turns = Turns()
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FlowerClock(
            turns,
            fraction_train=CLIENTS_PER_ROUND / CLIENTS,
            min_train_nodes=CLIENTS_PER_ROUND,
            min_available_nodes=CLIENTS,
            fraction_evaluate=0.0,
        )
        strategy.start(grid, ArrayRecord(lenet((3, 32, 32), 10).state_dict()), num_rounds=rounds)
        turns.done()

    run_simulation(
        server_app,
        client_app,
        num_supernodes=CLIENTS,
        backend_config={
            "init_args": {"num_cpus": cores, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
