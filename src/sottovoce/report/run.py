"""The report of one run: what is charted and tabled of the files of its directory; run.html lays it out.

A federation's server learns no accuracies, norms and byte counts, so its page has none: promise, ε of every
client, and how long rounds took. Clients evaluate their own models.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sottovoce import report
from sottovoce.machine.files import write_atomically
from sottovoce.plan import Plan
from sottovoce.report import figures
from sottovoce.report.promise import audit_section, place, promise, warning, without_noise
from sottovoce.report.reading import ReportedRun, natural, read_run
from sottovoce.report.table import Table, TableEntry, counted, duration, label, measure, number, percent


def write_report(directory: Path) -> Path:
    """Writes DIR/report.html from DIR/result.json, DIR/rounds.jsonl and DIR/plan.toml; returns its path.

    The page appears in one step. Raises SottovoceError when a file is missing or damaged.
    """
    path = directory / "report.html"
    write_atomically(path, render(read_run(directory)).encode())
    return path


def render(run: ReportedRun) -> str:
    """The page of a run that was read."""
    return report.page(
        "report/run.html",
        result=run.result,
        place=place(run),
        noisy=not without_noise(run),
        warning=warning(run),
        promise=promise(run),
        **(_simulated(run) if run.result["engine"] is None else _federated(run)),
    )


def _simulated(run: ReportedRun) -> dict[str, Any]:
    return {
        "charts": {
            "accuracy": figures.accuracy(run),
            "epsilon": figures.epsilon(run),
            "noise": figures.noise(run),
            "communication": figures.communication(run),
        },
        "tables": {
            "metrics": _metrics(run),
            "clients": _clients(run),
            "rounds": _rounds(run),
            "plan": _plan(run),
        },
        "confusion": figures.confusion(run),
        "audit": audit_section(run.audit) if run.audit else "",
    }


def _federated(run: ReportedRun) -> dict[str, Any]:
    calls = [name for line in run.rounds for name in line["clients"]]
    return {
        "charts": {"epsilon": figures.epsilon(run), "progress": figures.progress(run)},
        "tables": {"clients": _sites(run, calls), "rounds": _released(run), "plan": _plan(run)},
        "released": len(calls),
        "rounds": len(run.rounds),
    }


def _sites(run: ReportedRun, calls: list[str]) -> Table:
    """Returns what a server knows of each client; `calls` are who released, in all rounds."""
    sites, spent = run.sites, run.result["epsilon"]["per_client"]
    rows = [
        [
            name,
            number(sites[name]["size"]),
            number(sites[name]["sigma"]),
            number(calls.count(name)),
            number(spent[name], 4, zeros=True),
        ]
        for name in sorted(spent, key=natural)
    ]
    return Table(["Client", "Averages over", "σ", "Gradients", "ε"], rows, f"Every client ({len(rows)})")


def _released(run: ReportedRun) -> Table:
    """Returns what a server knows of each round."""
    rows = [
        [str(r["round"]), ", ".join(r["clients"]), number(r["gain"], zeros=True), duration(r["seconds"])]
        for r in run.rounds
    ]
    return Table(["Round", "Released", "Gain", "Time"], rows, f"Every round ({len(rows)})", words=2)


def _metrics(run: ReportedRun) -> Table:
    """The task's other metrics, means over clients."""
    seen, future = run.result["metrics"]["seen"], run.result["metrics"]["future"]
    rows = [
        [label(name), measure(name, seen[name]), measure(name, future.get(name))]
        for name in seen
        if name != "accuracy"
    ]
    return Table(["Metric", "Participants", "Future clients"], rows, "Other metrics, means over clients")


def _clients(run: ReportedRun) -> Table:
    result, sites, rows = run.result, run.sites, []
    epsilon = result["epsilon"]
    for role, group in (("participant", "seen"), ("future", "future")):
        own = run.scores(group, masked=True)
        for name, value in sorted(run.scores(group).items(), key=lambda item: natural(item[0])):
            spent = epsilon["per_client"].get(name) if group == "seen" else epsilon["future_context"]
            site = sites.get(name)
            sizes = [] if site is None else [number(site["size"]), number(site["sigma"])]
            values = [percent(value), percent(own.get(name))]
            rows.append([name, role, *sizes, *values, number(spent, 4, zeros=True)])
    sized = [counted(result["unit"]).capitalize(), "σ"] if sites else []
    names = ["Client", "Role", *sized, label(result["metric"]).capitalize(), "Of own classes", "ε"]
    return Table(names, rows, f"Every client ({len(rows)})", words=2)


def _rounds(run: ReportedRun) -> Table:
    rows = [
        [
            str(r["round"]),
            percent(r["seen"]),
            percent(r["future"]),
            number(r["bytes"]),
            number(r["signal_norm"], zeros=True),
            number(r["noise_norm"], zeros=True),
            number(r["gain"], zeros=True),
            duration(r["seconds"]),
        ]
        for r in run.rounds
    ]
    names = ["Round", "Participants", "Future", "Bytes", "Signal", "Noise", "Gain", "Time"]
    return Table(names, rows, f"Every round ({len(rows)})")


def _plan(run: ReportedRun) -> Table:
    meaning = {field.name: field.metadata.get("help", "") for field in dataclasses.fields(Plan)}
    rows: list[list[str | TableEntry]] = [
        [TableEntry(key, small=meaning.get(key, "")), value] for key, value in run.plan.items()
    ]
    return Table(["Key", "Value"], rows, "The resolved plan", words=2)
