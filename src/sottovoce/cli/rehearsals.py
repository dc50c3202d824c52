"""`sottovoce compare` and `audit`: what joining would give a site, and whether ε is true, before anybody
joins.

A rehearsal sets what a site has today beside what joining gives it. An audit is for people who do not
believe us: nothing leaves, and nothing is charged.
"""

from __future__ import annotations

import json as texts
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from sottovoce.cli import options
from sottovoce.cli.display import as_json, bullet, bullets, progress, say, show_table
from sottovoce.cli.runs import plan_of
from sottovoce.errors import SottovoceError

RESULT, PAGE, PICTURE = "audit.json", "audit.html", "audit.svg"
MOST_SITES = 30
"""Sites that the terminal lists; the report has them all."""


def audit(
    settings: list[str] = typer.Argument(
        None,
        metavar="[RUN | PLAN.toml] [key=value …]",
        help="The directory of a finished run; or a plan file, settings, or both.",
        autocompletion=options.complete_setting,
    ),
    runs: int = typer.Option(
        0,
        help="Play the game so often: an adversary guesses which of two records is in a file. 1: one run "
        "with many canaries.",
    ),
    folder: Path = typer.Option(
        None, "--out", help="Keep what was found in this folder; it is made of records."
    ),
    model: str = options.OWN_MODEL,
    features: str = options.OWN_FEATURES,
    json: bool = options.JSON,
) -> None:
    """Check the promise of a plan on your records, or of a finished run: do not believe us.

    How far one record moves each release, against what is charged for it; with --runs, how well an adversary
    guesses it; of a run, its ε from the ledger by other code than ours, and whether its files agree. What
    breaks the promise is said, and the exit code is 1. Nothing leaves, and nothing is charged.
    """
    found: dict[str, Any] = {"faults": []}
    run = _run_of(settings or [])
    if folder is not None:
        from sottovoce.run.directory import check_apart

        check_apart(folder)
    if run is not None:
        from sottovoce.audit import recount

        found["ledger"] = recount(run, module=model, features=features)
        found["faults"] += found["ledger"]["faults"]
    if run is None or runs:
        from sottovoce.audit import audit as audit_plan

        named = [str(run / "plan.toml")] if run is not None else settings
        plan = plan_of(named, model, features)
        with progress("auditing") as auditing, progress("features", rate="records") as describing:
            of_plan = audit_plan(plan, runs, progress=auditing, on_features=describing)
        found = {**of_plan, **found, "faults": list(dict.fromkeys([*found["faults"], *of_plan["faults"]]))}
    kept = folder or run
    if kept is not None:
        keep(found, kept, alone=kept != run)
    if json:
        as_json(found)
    else:
        show(found, kept)
    if found["faults"]:
        raise typer.Exit(1)


def _run_of(settings: list[str]) -> Path | None:
    """The run that is to be audited, if a directory was named."""
    run = next((Path(word) for word in settings if "=" not in word and Path(word).is_dir()), None)
    if run is not None and not (run / "plan.toml").exists():
        raise SottovoceError(f"{run} holds no run: to audit a plan on its records, say dataset={run}")
    if run is not None and len(settings) > 1:
        raise SottovoceError(f"{run} is a run, whose plan is settled: give it alone, or settings alone")
    return run


def keep(found: Mapping[str, Any], folder: Path, *, alone: bool) -> None:
    """Writes what was found, for its owner's eyes only; in the directory of a run, into its report."""
    from sottovoce.machine.files import PRIVATE, private_folder, write_atomically
    from sottovoce.report.promise import audit_page, audit_picture, curve
    from sottovoce.report.run import write_report

    private_folder(folder)
    write_atomically(folder / RESULT, (texts.dumps(found, indent=1) + "\n").encode(), PRIVATE)
    if curve(found).marks:
        write_atomically(folder / PICTURE, audit_picture(found).encode(), PRIVATE)
    if alone:
        write_atomically(folder / PAGE, audit_page(found).encode(), PRIVATE)
    else:
        write_report(folder)


def show(found: Mapping[str, Any], kept: Path | None) -> None:
    """Prints what was found."""
    from sottovoce.report.promise import recount_table, releases_table, sentences, verdict
    from sottovoce.report.table import plain

    for table in (releases_table(found), recount_table(found)):
        if table is not None:
            show_table(table)
    for text in sentences(found):
        say(plain(text))
    bullets(found["faults"], "bold red")
    color = "bold red" if found["faults"] else "green"
    say((verdict(found), color), " Nothing left, and nothing was charged.")
    if kept is not None:
        say(f"kept: {kept / RESULT}")


def compare(
    settings: list[str] = options.SETTINGS,
    out: Path = typer.Option(..., help="Folder for compare.json, compare.html, compare.svg and ledgers."),
    repeats: int = typer.Option(5, help="Splits of all records; more narrow the intervals."),
    model: str = options.OWN_MODEL,
    features: str = options.OWN_FEATURES,
    json: bool = options.JSON,
) -> None:
    """Rehearse: what a site has today beside what joining gives it; who gains, who loses, how sure that is.

    Rows: a constant, alone at home without noise, one shared model, the published model, and that model
    finished at home. Several splits of all records give intervals. For records of which nothing is
    published. Ledgers are its own, no model is written, and a choice made by
    looking at the accuracies is not covered by ε.
    """
    from sottovoce.report.rehearsal import clients_table, rows_table, summary, write_comparison
    from sottovoce.run.rehearsal import ROWS
    from sottovoce.run.rehearsal import compare as compare_rows

    words = list(settings or [])
    if all("=" in word for word in words) and not any(word.startswith("preset=") for word in words):
        words.append("preset=best")
    plan = plan_of(words, model, features)
    begun = 0
    with progress("rehearsing") as rehearsing, progress("features", rate="records") as describing:

        def on_round(row: str, line: dict[str, Any]) -> None:
            nonlocal begun
            begun += line["round"] == 1
            rehearsing(begun - 1, repeats * len(ROWS), f"{row}, round {line['round']}")

        found = compare_rows(
            plan,
            out,
            repeats=repeats,
            on_round=on_round,
            on_features=describing,
        )
    path = write_comparison(out)
    if json:
        as_json(found)
        return
    say((summary(found), "bold"))
    show_table(rows_table(found))
    if len(found["gain"]["per_client"]) <= MOST_SITES:
        show_table(clients_table(found))
    bullet(found["warning"])
    say(f"report: {path}")
