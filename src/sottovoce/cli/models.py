"""The commands around what comes out of a run: a model for each participant, and predictions of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from sottovoce.cli.display import (
    FEATURES,
    FINISH,
    JSON,
    MODEL,
    as_json,
    epsilon,
    err,
    facts,
    finished,
    progress_over,
    share_progress,
)
from sottovoce.cli.display import out as stdout
from sottovoce.errors import SottovoceError, visible
from sottovoce.report.table import count, percent

EXAMPLES = {
    "models": "models runs/h --out models/",
    "predict": "predict models/north.safetensors --data new.csv --out predictions.csv",
    "export": "export models/north.safetensors --onnx north.onnx",
    "finish": "finish models/north.safetensors --data hospitals/north.csv --out north.home.safetensors",
}


def register(app: typer.Typer) -> None:
    """Adds these commands to the application."""
    for command in (models, predict, finish, export):
        app.command(epilog=f"Example: sottovoce {EXAMPLES[command.__name__]}")(command)


def models(
    run: Path = typer.Argument(help="Directory of a finished run."),
    out: Path = typer.Option(..., help="Folder for the models, one file for each participant."),
    client: list[str] = typer.Option([], help="Only this participant's, by name; repeatable."),
    finish: bool = FINISH,
    metrics: bool = typer.Option(
        False, "--metrics", help="State held-out metrics in model cards too, though no ε covers them."
    ),
    model: str = MODEL,
    features: str = FEATURES,
    json: bool = JSON,
) -> None:
    """Write every participant's own model of a run, without any further charge.

    A file is named after its client and explains itself: sottovoce predict needs nothing else. Beside it lies
    its card, a page of Markdown.
    """
    from sottovoce.report.table import Table
    from sottovoce.run.export import write_models

    with progress_over("writing") as progress:
        written = write_models(
            run,
            out,
            clients=client,
            module=model,
            features=features,
            finish=finish,
            metrics=metrics,
            progress=progress,
        )
    if json:
        as_json({"models": written})
        return
    rows = [[row["client"], epsilon(row["epsilon"]), *_home(row)] for row in written]
    head = ["client", "ε", *(["alone", "published", "finished"] if finish else [])]
    stdout.print(Table(head, rows, count(len(rows), "model")).terminal())
    stdout.print(f"in {escape(str(out))}, each named after its client", soft_wrap=True, highlight=False)


def predict(
    model_file: Path = typer.Argument(metavar="MODEL", help="A client's model, a .safetensors file."),
    data: Path = typer.Option(..., help="Records, in any format that check reads; no target is read."),
    out: Path = typer.Option(..., help="Where to write predictions, .csv or .parquet."),
    threshold: float = typer.Option(
        None, help="Decide for the second of two classes, or a label, from this probability on."
    ),
    keep: list[str] = typer.Option([], metavar="COLUMN", help="Write this column too, as ids; repeatable."),
    model: str = MODEL,
    features: str = FEATURES,
    json: bool = JSON,
) -> None:
    """Predict every record of a file: probabilities and a decision, or a number, a line for each.

    The model's file says all that is needed. Nothing is released. Unusable records get empty cells.
    """
    from sottovoce.personal import PersonalModel
    from sottovoce.prediction import Layout
    from sottovoce.prediction import predict as predict_records

    if not model_file.exists():
        raise SottovoceError(f"{model_file} does not exist: write models with 'sottovoce models RUN --out …'")
    personal = PersonalModel.read(model_file, model=model, features=features, home=True)
    with _records_progress() as progress:
        summary = predict_records(
            personal, data, out, progress, threshold=threshold, features=features, keep=keep
        )
    for name, times in summary.unknown.items():
        odd = f"column '{name}' has {count(times, 'value')} that the model does not know: they count as other"
        err.print(f"[dark_orange]•[/] {escape(visible(odd))}", soft_wrap=True, highlight=False)
    for name, times in summary.unreadable.items():
        odd = f"column '{name}' has {count(times, 'value')} that cannot be read: they count as missing"
        err.print(f"[dark_orange]•[/] {escape(visible(odd))}", soft_wrap=True, highlight=False)
    if summary.unusable:
        text = f"{count(summary.unusable, 'record')} could not be used: empty cells in {out}"
        err.print(f"[dark_orange]•[/] {escape(text)}", soft_wrap=True, highlight=False)
    if json:
        told = {
            "columns": list(Layout.of(personal, keep).columns),
            "origin": dataclasses.asdict(personal.origin),
        }
        as_json({"predictions": str(out), "task": personal.records.task, **vars(summary), **told})
        return
    origin = personal.origin
    promise = f"{epsilon(origin.epsilon)} at δ = {origin.delta:g}" + (", simulated" if origin.seeded else "")
    if personal.home:
        promise = "none, it is a home model: keep it and these predictions at home"
    rows = {
        "model": f"{origin.client}, run {origin.run}, {origin.created or 'undated'}",
        "ε behind it": promise,
        "records": f"{summary.records:,}, of which {summary.unusable:,} could not be used",
    }
    decisions = {f"decided {name}": f"{times:,}" for name, times in summary.decisions.items()}
    facts(f"Predictions written to {out}", rows | decisions)


def finish(
    model_file: Path = typer.Argument(metavar="MODEL", help="A published model of this client's."),
    data: Path = typer.Option(..., help="The client's own records, with what is to be predicted."),
    out: Path = typer.Option(..., help="Where to write the home model, a .safetensors file."),
    model: str = MODEL,
    features: str = FEATURES,
    json: bool = JSON,
) -> None:
    """Finish a published model at home: fit it to your own records, without noise, for your own use.

    The result says what joining is worth to you. It is made of your records and is not private: it stays
    here, and nothing of ours that sends, serves or releases reads it.
    """
    from sottovoce.finishing import finish as finish_model

    if not model_file.exists():
        raise SottovoceError(f"{model_file} does not exist: write models with 'sottovoce models RUN --out …'")
    with share_progress("finishing") as progress:
        told = finish_model(model_file, data, out, module=model, features=features, progress=progress)
    if json:
        as_json(told)
        return
    finished(told)


def export(
    model_file: Path = typer.Argument(metavar="MODEL", help="A client's model, a .safetensors file."),
    onnx: Path = typer.Option(..., help="Where to write the model as ONNX."),
    home: bool = typer.Option(False, "--home", help="It is a home model, and the file stays at home."),
    model: str = MODEL,
    json: bool = JSON,
) -> None:
    """Export a linear or mlp model as ONNX, with its encoding of columns, for machines without sottovoce."""
    from sottovoce.onnxfile import export_onnx

    if not model_file.exists():
        raise SottovoceError(f"{model_file} does not exist: write models with 'sottovoce models RUN --out …'")
    told = export_onnx(model_file, onnx, home=home, module=model)
    if json:
        as_json(told)
        return
    rows = {"inputs": ", ".join(told["inputs"]), "outputs": ", ".join(told["outputs"])}
    stays = {"who may see it": "its owner alone: it is a home model"} if told["home"] else {}
    facts(f"Model written to {onnx}", rows | stays)


def _home(row: Mapping[str, Any]) -> list[str]:
    """Accuracies of a finished model's rows."""
    if "home" not in row:
        return []
    home = row["home"]
    return [percent(home["rows"][name][home["metric"]], 1) for name in ("alone", "published", "finished")]


@contextmanager
def _records_progress() -> Iterator[Callable[[int], None]]:
    """A counter of records, gone when all are done; how many there will be is not known before."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("[bold]predicting"), BarColumn(), TextColumn("{task.completed:,} records"))
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done: bar.update(task, completed=done)
