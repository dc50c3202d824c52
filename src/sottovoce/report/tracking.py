"""Trackers of experiments as callbacks of a run: TensorBoard, MLflow, Weights & Biases, an extra each.

They get the plan, the lines of rounds.jsonl and result.json, and nothing else. What is logged are results of
a simulation, some of them made of held-out records without noise: it goes where the user sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from sottovoce.errors import extra
from sottovoce.machine.files import private_folder

SCALARS = {
    "accuracy/future": "future",
    "accuracy/seen": "seen",
    "uplink/bytes": "bytes",
    "downlink/bytes": "downlink_bytes",
    "norm/signal": "signal_norm",
    "norm/noise": "noise_norm",
    "generator/gain": "gain",
    "time/seconds": "seconds",
}
"""What a tracker shows of a round, by the key in its line."""
LONGEST = 500
"""Letters of a parameter that MLflow takes."""


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Returns what is shown of a round, as far as its line has it."""
    return {name: line[key] for name, key in SCALARS.items() if line.get(key) is not None}


def final_scalars(result: Mapping[str, Any]) -> dict[str, float]:
    """Returns what is shown of a result, as far as it is known: means of all metrics too."""
    found = {
        "final/accuracy/seen": result["accuracy"]["seen"],
        "final/accuracy/future": result["accuracy"]["future"],
        "final/epsilon": result["epsilon"]["spent_max"],
        "final/delta": result["delta"],
        "final/uplink/bytes": result["uplink"]["total_bytes"],
        "final/downlink/bytes": result["downlink"]["total_bytes"],
        "final/seconds": result["seconds"],
    }
    for role in ("seen", "future"):
        means = result["metrics"].get(role, {})
        found |= {f"final/{name}/{role}": value for name, value in means.items()}
    return {name: value for name, value in found.items() if value is not None}


class TensorBoard:
    """Writes scalars into event files under a folder; a resumed run continues there."""

    def __init__(self, folder: str | Path) -> None:
        module = _imported("torch.utils.tensorboard", "TensorBoard", "tensorboard")
        private_folder(Path(folder))
        self._writer = module.SummaryWriter(str(folder))

    def on_plan(self, plan: Mapping[str, Any]) -> None:
        """Shows the plan as text."""
        self._writer.add_text("plan", "\n".join(f"    {name} = {value!r}" for name, value in plan.items()))

    def on_round(self, line: Mapping[str, Any]) -> None:
        """Adds the scalars of a round."""
        self._add(scalars(line), line["round"])
        self._writer.flush()

    def on_result(self, result: Mapping[str, Any]) -> None:
        """Adds the final scalars, and ends."""
        self._add(final_scalars(result), result["rounds"])
        self._writer.close()

    def _add(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)


class MLflow:
    """Logs a run of MLflow: the plan as parameters, rounds and result as metrics, result.json as an artifact.

    `tracking_uri` is where, by default what MLflow is set to; global state of MLflow is left alone.
    """

    def __init__(
        self,
        experiment: str = "sottovoce",
        *,
        tracking_uri: str | Path | None = None,
        name: str | None = None,
    ) -> None:
        mlflow = _imported("mlflow", "MLflow", "mlflow")
        self._entities = import_module("mlflow.entities")
        self._client = mlflow.MlflowClient(None if tracking_uri is None else str(tracking_uri))
        found = self._client.get_experiment_by_name(experiment)
        self._experiment = found.experiment_id if found else self._client.create_experiment(experiment)
        self._name, self._run = name, ""

    def on_plan(self, plan: Mapping[str, Any]) -> None:
        """Begins a run with the plan's keys as its parameters."""
        self._run = self._client.create_run(self._experiment, run_name=self._name).info.run_id
        params = [self._entities.Param(name, str(value)[:LONGEST]) for name, value in plan.items()]
        self._client.log_batch(self._run, params=params)

    def on_round(self, line: Mapping[str, Any]) -> None:
        """Logs the scalars of a round."""
        self._log(scalars(line), line["round"])

    def on_result(self, result: Mapping[str, Any]) -> None:
        """Logs the final scalars and the whole result, and ends the run."""
        self._log(final_scalars(result), result["rounds"])
        self._client.log_dict(self._run, dict(result), "result.json")
        self._client.set_terminated(self._run)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        metrics = [self._entities.Metric(name, value, 0, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)


class WeightsAndBiases:
    """Logs a run of Weights & Biases: the plan as its config, rounds as history, the result as its summary.

    Further `settings` are those of `wandb.init`, such as mode="offline", name or dir.
    """

    def __init__(self, project: str = "sottovoce", **settings: Any) -> None:
        self._wandb = _imported("wandb", "Weights & Biases", "wandb")
        self._settings = {"project": project, **settings}
        self._run: Any = None

    def on_plan(self, plan: Mapping[str, Any]) -> None:
        """Begins a run with the plan as its config."""
        self._run = self._wandb.init(config=dict(plan), **self._settings)

    def on_round(self, line: Mapping[str, Any]) -> None:
        """Logs the scalars of a round."""
        self._run.log(scalars(line), step=line["round"])

    def on_result(self, result: Mapping[str, Any]) -> None:
        """Keeps the result as the run's summary, and ends it."""
        self._run.summary.update({**final_scalars(result), "result": dict(result)})
        self._run.finish()


def _imported(module: str, name: str, package: str) -> Any:
    return extra(module, f"{name} is not installed", package, ", or train without it", package)
