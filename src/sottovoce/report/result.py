"""`result.json`: what a finished run promised, spent, sent and achieved, for pages and other programs.

Engines fill a `RunResult`, and `write_result` is the one way in which it is written; the server of a
federation knows what stands in `Known` and no more. Pages read the same types (`report.reading`), also from
files of earlier versions: `NotRequired` is what some of them, or of the engines, do not write.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from sottovoce.errors import extra
from sottovoce.machine.files import write_atomically

FILE = "result.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Absent:
    """What a page shows of a field that a file has not: `NotRequired` alone is then null."""

    value: Any


SQUARE = "a square matrix of counts"
ByClient = dict[str, float | None]
"""A number of each client, by its name; or of a mean, by its metric."""
Means = Annotated[ByClient, Absent({})]
Matrix = Annotated[list[list[int]], SQUARE]


class Described(TypedDict):
    """What was run, as results of runs and of comparisons say it."""

    version: NotRequired[int]
    sottovoce: NotRequired[str]
    method: NotRequired[str]
    dataset: NotRequired[str]
    seed: int
    preset: NotRequired[str]
    context: NotRequired[str]
    uses_future_labels: bool
    channel: NotRequired[str]
    noise: NotRequired[str]
    features: NotRequired[str]
    public_pretraining: NotRequired[str | bool]
    task: NotRequired[str]
    metric: NotRequired[Annotated[str, Absent("accuracy")]]
    basis: NotRequired[str]
    seeded: bool
    model_parameters: int
    coefficients: int
    participants: int
    engine: NotRequired[str]
    """What carried the messages of a federation."""
    masks: NotRequired[bool]
    """Whether shares of the noise were masked."""
    releases: NotRequired[int]
    given_up: NotRequired[int]
    """Rounds of masked shares without enough of them."""


class Spent(TypedDict):
    """ε of the run; null without noise, since JSON has no infinity."""

    target: float | None
    spent_max: float | None
    accounting: str
    per_client: dict[str, float]
    future_context: float | None
    add_remove: NotRequired[float | None]


class Site(TypedDict):
    """A client: how many records (units) it has, and of those that its releases average over."""

    name: str
    role: NotRequired[str]
    size: int
    training: NotRequired[int]
    sigma: float | None
    epsilon: NotRequired[float | None]


class Downlink(TypedDict):
    """What participants were sent."""

    bytes: float
    messages: NotRequired[int]
    bits_per_coefficient: float | None
    once_bytes: NotRequired[float]
    total_bytes: NotRequired[float]
    fp32_bytes: NotRequired[float]


class Known(Described):
    """What every engine knows of its run."""

    future_clients: int
    rounds: int
    releases_max: int
    delta: float
    unit: NotRequired[Annotated[str, Absent("record")]]
    sigma: float | None
    sigma_context: float | None
    downlink: Downlink
    seconds: float
    created: NotRequired[str]
    epsilon: Spent
    clients: NotRequired[Annotated[list[Site], Absent([])]]


class Accuracy(TypedDict):
    """Percent; what is masked is restricted to the classes that a client has."""

    seen: float | None
    future: float | None
    seen_masked: float | None
    future_masked: float | None
    seen_per_client: ByClient
    future_per_client: ByClient
    seen_masked_per_client: ByClient
    future_masked_per_client: ByClient


class Constant(TypedDict):
    """What a constant achieves, by role."""

    seen: NotRequired[Means]
    future: NotRequired[Means]


class Metrics(TypedDict):
    """Means over clients by role, and each client's own."""

    seen: NotRequired[Means]
    future: NotRequired[Means]
    constant: NotRequired[Annotated[Constant, Absent({})]]
    per_client: NotRequired[dict[str, ByClient]]


class Bin(TypedDict):
    """How often records were what was stated of them."""

    records: NotRequired[float]
    stated: float
    observed: float


class Reliability(TypedDict):
    """Bins by role."""

    seen: NotRequired[Annotated[list[Bin], Absent([])]]
    future: NotRequired[Annotated[list[Bin], Absent([])]]


class Uplink(TypedDict):
    """What was sent to the server: gradients in rounds, contexts, and by kind what else is released once."""

    bytes: float
    releases: int
    bits_per_coefficient: float | None
    context_bytes: float
    total_bytes: NotRequired[float]
    fp32_bytes: float


class RunResult(Known):
    """What a simulation measures besides."""

    alpha: NotRequired[float]
    accuracy: Accuracy
    uplink: Uplink
    confusion: dict[str, Matrix]
    class_names: NotRequired[Annotated[list[str], Absent([])]]
    metrics: NotRequired[Annotated[Metrics, Absent({})]]
    reliability: NotRequired[Annotated[Reliability, Absent({})]]


class Round(TypedDict):
    """A line of rounds.jsonl: means over the clients of the round, accuracies where it was evaluated."""

    round: int
    clients: list[str]
    bytes: NotRequired[Annotated[float, Absent(0)]]
    """Nobody knows the length of a lone message under noise at the server."""
    seconds: float
    signal_norm: NotRequired[float]
    noise_norm: NotRequired[float]
    gain: NotRequired[float]
    effective_gain: NotRequired[float]
    seen: NotRequired[float]
    future: NotRequired[float]


class Result(dict[str, Any]):
    """A result as `result.json` or `compare.json` has it, which can also be a table."""

    def frame(self) -> Any:
        """A pandas DataFrame with a row for each client: its size, σ, ε, accuracy and metrics.

        Of a comparison it has a row for each of its rows and clients.
        """
        pandas = extra("pandas", "tables of results need pandas", "pandas")
        if "rows" in self:
            parts = {"points": "per_client", "log_loss": "log_loss_per_client"}
            return pandas.DataFrame(
                {"row": row, "client": name, **{what: told[key].get(name) for what, key in parts.items()}}
                for row, told in self["rows"].items()
                for name in told["per_client"]
            )
        accuracy, metrics = self["accuracy"], self.get("metrics", {}).get("per_client", {})
        score = {**accuracy["seen_per_client"], **accuracy["future_per_client"]}
        rows = [
            {**client, self["metric"]: score.get(client["name"]), **metrics.get(client["name"], {})}
            for client in self["clients"]
        ]
        return pandas.DataFrame(rows)


def write_result(folder: Path, result: Known) -> None:
    """Writes result.json: from here on there is nothing to resume."""
    write_atomically(folder / FILE, (json.dumps(result, indent=1) + "\n").encode())
