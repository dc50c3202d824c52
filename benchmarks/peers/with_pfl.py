"""pfl-research's simulator: `python -m benchmarks.peers.with_pfl ROUNDS CORES`, where pfl is.

Federated averaging with one local step on all records, and pfl's Gaussian mechanism applied locally: it
clips each client's whole update, not each record's gradient, and keeps no account. As pfl's documentation
says, each core has a process of its own, and the clients of a round are shared out among them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset, get_user_sampler
from pfl.data.dataset import Dataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import GaussianMechanism
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers.records import CLIENTS, CLIENTS_PER_ROUND, clients
from benchmarks.peers.turns import Turns
from sottovoce.models.architectures import lenet

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


class Net(nn.Module):
    """The LeNet with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = lenet((3, 32, 32), 10)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


class PflClock(TrainingProcessCallback):
    """A turn is everything from one of pfl's central iterations to the next; the first process tells."""

    def __init__(self, turns: Turns, first: bool) -> None:
        self._turns = turns
        self._first = first

    def on_train_begin(self, *, model: Any) -> Metrics:
        self._wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if self._first:
            self._turns.done()
        self._wait()
        return False, Metrics()

    def _wait(self) -> None:
        if self._first:
            self._turns.wait()
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


def main(rounds: int) -> None:
    turns = Turns()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  (pfl draws its cohorts from it, alike in all processes)
    module = Net()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users = FederatedDataset(
        lambda user: Dataset(clients()[user]), get_user_sampler("random", range(CLIENTS))
    )
    noise = GaussianMechanism.construct_single_iteration(clipping_bound=1.0, epsilon=2.0, delta=1e-5)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,  # in the first round only, which warms up
            train_cohort_size=CLIENTS_PER_ROUND,
            val_cohort_size=0,
        ),
        SimulatedBackend(users, users, postprocessors=[noise]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None),
        callbacks=[PflClock(turns, os.environ.get(RANK, "0") == "0")],
        send_metrics_to_platform=False,
    )


def share_out(cores: int) -> None:
    """Starts one process a core and continues as the first of them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.peers.with_pfl", *sys.argv[1:]]
    os.environ[ADDRESSES] = ",".join([f"localhost:{port}"] * cores)
    for rank in range(1, cores):
        environment = {**os.environ, RANK: str(rank)}
        subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    os.execve(command[0], command, {**os.environ, RANK: "0"})


if __name__ == "__main__":
    if int(sys.argv[2]) > 1 and RANK not in os.environ:
        share_out(int(sys.argv[2]))
    main(int(sys.argv[1]))
