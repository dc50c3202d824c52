"""The commands around what comes out of a run: a model for each participant, and predictions of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from sottovoce.cli import options
from sottovoce.cli.display import (
    as_json,
    bullet,
    client_progress,
    epsilon,
    err,
    facts,
    finished,
    progress,
    say,
    show_table,
)
from sottovoce.errors import SottovoceError
from sottovoce.report.table import UNKNOWN, Table, count, label, number, percent

AT_HOME = ("constant", "alone", "published", "finished")
"""Rows of a finish."""


def models(
    run: Path = typer.Argument(help="Directory of a finished run."),
    out: Path = typer.Option(..., help="Folder for the models, one file for each participant."),
    client: list[str] = typer.Option([], help="Only this participant's, by name; repeatable."),
    finish: bool = options.FINISH,
    metrics: bool = typer.Option(
        False, "--metrics", help="State held-out metrics in model cards too, though no ε covers them."
    ),
    model: str = options.MODEL,
    features: str = options.FEATURES,
    json: bool = options.JSON,
) -> None:
    """Write every participant's own model of a run, without any further charge.

    A file is named after its client and explains itself: sottovoce predict needs nothing else. Beside it lies
    its card, a page of Markdown.
    """
    from sottovoce.run.models import write_models

    with client_progress("writing") as writing:
        written = write_models(
            run,
            out,
            clients=client,
            module=model,
            features=features,
            finish=finish,
            metrics=metrics,
            progress=writing,
        )
    if json:
        as_json({"models": written})
        raise typer.Exit(int(any("unfinished" in row for row in written)))
    rows = [[row["client"], epsilon(row["epsilon"])] for row in written]
    show_table(Table(["client", "ε"], rows, count(len(rows), "model")))
    say(f"in {out}, each named after its client")
    at_home = {row["client"]: row["home"] for row in written if "home" in row}
    if at_home:
        _show_homes(at_home)
    for name, told in at_home.items():
        _odd_columns(told, f"{name}: ")
    unfinished = [row for row in written if "unfinished" in row]
    for row in unfinished:
        bullet(f"{row['client']} is not finished at home: {row['unfinished']}", to=err)
    if unfinished:
        raise typer.Exit(1)


def predict(
    model_file: Path = typer.Argument(metavar="MODEL", help="A client's model, a .safetensors file."),
    data: Path = typer.Option(..., help="Records, in any format that check reads; no target is read."),
    out: Path = typer.Option(..., help="Where to write predictions, .csv or .parquet."),
    threshold: float = typer.Option(
        None, help="Decide for the second of two classes, or a label, from this probability on."
    ),
    keep: list[str] = typer.Option([], metavar="COLUMN", help="Write this column too, as ids; repeatable."),
    model: str = options.MODEL,
    features: str = options.FEATURES,
    json: bool = options.JSON,
) -> None:
    """Predict every record of a file: probabilities and a decision, or a number, a line for each.

    The model's file says all that is needed. Nothing is released. Unusable records get empty cells.
    """
    from sottovoce.personal import PersonalModel
    from sottovoce.personal.prediction import Layout
    from sottovoce.personal.prediction import predict as predict_records

    _check_there(model_file)
    personal = PersonalModel.read(model_file, model=model, features=features, home=True)
    with progress("predicting") as predicting:
        summary = predict_records(
            personal, data, out, predicting, threshold=threshold, features=features, keep=keep
        )
    _odd_columns(vars(summary))
    if summary.unusable:
        bullet(f"{count(summary.unusable, 'record')} could not be used: empty cells in {out}", to=err)
    if json:
        told = {
            "columns": list(Layout.of(personal, keep).columns),
            "origin": dataclasses.asdict(personal.origin),
            "home": personal.home,
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
    model: str = options.MODEL,
    features: str = options.FEATURES,
    json: bool = options.JSON,
) -> None:
    """Finish a published model at home: fit it to your own records, without noise, for your own use.

    The result says what joining is worth to you. It is made of your records and is not private: it stays
    here, and nothing of ours that sends, serves or releases reads it.
    """
    from sottovoce.personal.finishing import finish as finish_model

    _check_there(model_file)
    with progress("finishing") as advance:
        told = finish_model(
            model_file,
            data,
            out,
            module=model,
            features=features,
            progress=lambda share: advance(round(100 * share), 100),
        )
    _odd_columns(told)
    if json:
        as_json(told)
    else:
        finished(told)


def export(
    model_file: Path = typer.Argument(metavar="MODEL", help="A client's model, a .safetensors file."),
    onnx: Path = typer.Option(..., help="Where to write the model as ONNX."),
    home: bool = typer.Option(False, "--home", help="It is a home model, and the file stays at home."),
    model: str = options.MODEL,
    json: bool = options.JSON,
) -> None:
    """Export a linear or mlp model as ONNX, with its encoding of columns, for machines without sottovoce."""
    from sottovoce.personal.onnx import export_onnx

    _check_there(model_file)
    told = export_onnx(model_file, onnx, home=home, module=model)
    if json:
        as_json(told)
        return
    rows = {"inputs": ", ".join(told["inputs"]), "outputs": ", ".join(told["outputs"])}
    stays = {"who may see it": "its owner alone: it is a home model"} if told["home"] else {}
    facts(f"Model written to {onnx}", rows | stays)


def _show_homes(homes: Mapping[str, Mapping[str, Any]]) -> None:
    """What a finish gives each client, how it was chosen, and what joining is worth to it, a line each."""
    one = next(iter(homes.values()))
    loss = "loss" if one["task"] == "number" else "log loss"
    given = [[name, *(_measured(told, row) for row in AT_HOME)] for name, told in homes.items()]
    show_table(Table(["client", *AT_HOME], given, f"finished at home: {loss}, {label(one['metric'])}"))
    if any(not told["held_out"] for told in homes.values()):
        say("by cross-validation where no records were set aside, which flatters published and finished")
    head = ["client", "chosen τ", "λ", "worth, points", "95 %", "set aside", "left out"]
    show_table(Table(head, [[name, *_worth(told)] for name, told in homes.items()], "what joining is worth"))
    say(
        "worth: finished against alone; left out: records without a target that the model knows, or that are "
        "not finite"
    )
    say("τ: the share of the published model that was kept, 0 is alone; λ = ∞: the published model as it is")


def _measured(told: Mapping[str, Any], row: str) -> str:
    """The loss and the metric of one row of a finish, such as '0.415 81.2 %'."""
    given = told["rows"][row]
    return f"{number(given['loss'], 3, zeros=True)} {percent(given[told['metric']])}"


def _worth(told: Mapping[str, Any]) -> list[str]:
    """What was chosen, what joining is worth, and how many records that is made of."""
    worth, pull = told["worth"], told["chosen"]["pull"]
    return [
        f"{told['chosen']['share']:g}",
        "∞" if pull is None else f"{pull:.3g}",
        f"{worth['points']:+z.1f}",
        UNKNOWN if worth["low"] is None else f"{worth['low']:+z.1f} to {worth['high']:+z.1f}",
        number(told["held_out"]),
        number(told["left_out"]),
    ]


def _odd_columns(odd: Mapping[str, Any], whose: str = "") -> None:
    """Notes on columns that hold what a model does not know or cannot read, or nothing."""
    for name, times in odd["unknown"].items():
        many = count(times, "value")
        bullet(f"{whose}column '{name}' has {many} that the model does not know: they count as other", to=err)
    for name, times in odd["unreadable"].items():
        many = count(times, "value")
        bullet(f"{whose}column '{name}' has {many} that cannot be read: they count as missing", to=err)
    for name in odd.get("empty", []):
        bullet(f"{whose}column '{name}' is empty in every record: the model sees no value in it", to=err)


def _check_there(model: Path) -> None:
    if not model.exists():
        raise SottovoceError(f"{model} does not exist: write models with 'sottovoce models RUN --out …'")
