"""The report of one run: headline, promise, figures and folded tables, from the files of its directory.

The page of a federation's server: promise, ε of every client, and how long rounds took.

A server learns no accuracies, norms and byte counts, so the page has none; clients evaluate their own models.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sottovoce import report
from sottovoce.files import write_atomically
from sottovoce.plan import Plan
from sottovoce.report import run_figures
from sottovoce.report.promise import audit_section, place, promise, warning, without_noise
from sottovoce.report.reading import Accuracy, ReportedRun, natural, read_run
from sottovoce.report.run_figures import confusion
from sottovoce.report.table import (
    UNKNOWN,
    Html,
    Table,
    TableEntry,
    count,
    counted,
    data_size,
    duration,
    equals,
    join,
    label,
    measure,
    number,
    out_of,
    percent,
    tag,
)


def cards(run: ReportedRun) -> list[Html]:
    """Who took part, and how long it took."""
    released = sum(len(line.clients) for line in run.rounds)
    rounds = len(run.rounds) or 1
    return [
        report.card(
            "participants",
            "Took part",
            number(len(run.epsilon.per_client)),
            len(run.epsilon.per_client),
            f"of {count(run.counts['participants'], 'participant')} in the plan",
            f"{count(released, 'gradient')} in {count(run.counts['rounds'], 'round')}",
        ),
        report.card(
            "time",
            "Rounds took",
            duration(run.seconds),
            run.seconds,
            f"{duration(run.seconds / rounds)} a round, waiting for clients included",
        ),
    ]


def sections(run: ReportedRun) -> list[Html]:
    """What a server knows of the rounds and the clients."""
    return [
        report.section("Rounds", report.grid(*run_figures.progress(run))),
        report.section("In full", _clients(run), _rounds(run)),
    ]


def _clients(run: ReportedRun) -> Html:
    calls = [name for line in run.rounds for name in line.clients]
    rows = [
        [
            name,
            number(run.sites[name].size),
            number(run.sites[name].sigma),
            number(calls.count(name)),
            number(run.epsilon.per_client[name], 4, zeros=True),
        ]
        for name in sorted(run.epsilon.per_client, key=natural)
    ]
    names = ["Client", "Averages over", "σ", "Gradients", "ε"]
    return report.folded(Table(names, rows, f"Every client ({len(rows)})"))


def _rounds(run: ReportedRun) -> Html:
    rows = [
        [str(line.round), ", ".join(line.clients), number(line.gain, zeros=True), duration(line.seconds)]
        for line in run.rounds
    ]
    names = ["Round", "Released", "Gain", "Time"]
    return report.folded(Table(names, rows, f"Every round ({len(rows)})", words=2))


def write_report(directory: Path) -> Path:
    """Writes DIR/report.html from DIR/result.json, DIR/rounds.jsonl and DIR/plan.toml; returns its path.

    The page appears in one step. Raises SottovoceError when a file is missing or damaged.
    """
    path = directory / "report.html"
    write_atomically(path, render(read_run(directory)).encode())
    return path


def render(run: ReportedRun) -> Html:
    """The page of a run that was read."""
    title = f"{run.facts['method'] or UNKNOWN} on {run.facts['dataset'] or UNKNOWN}"
    alert = warning(run)
    words = tag("div", promise(run), class_="prose", id="promise")
    return report.page(
        f"{title} – Sottovoce",
        report.header(title, _facts(run), "Sottovoce · run report"),
        tag("p", alert, class_="alert", role="note") if alert else Html(),
        tag("main", *(_simulated(run, words) if run.engine is None else _federated(run, words))),
        tag("footer", f"Written by sottovoce {run.facts['sottovoce'] or UNKNOWN}. ", _ended(run)),
    )


def _simulated(run: ReportedRun, words: Html) -> list[Html]:
    return [
        report.cards(*_cards(run)),
        report.section("Accuracy", report.grid(*run_figures.accuracy(run)), _metrics_table(run)),
        report.section("What was promised", report.grid(words, run_figures.epsilon(run))),
        audit_section(run.audit) if run.audit else Html(),
        report.section("Signal and noise", report.grid(*run_figures.noise(run))),
        report.section("Communication", report.grid(*run_figures.communication(run))),
        report.section("Confusion", confusion(run.confusion, _groups(run), run.class_names))
        if run.confusion
        else Html(),
        report.section("In full", _clients_table(run), _rounds_table(run), _plan_table(run)),
    ]


def _federated(run: ReportedRun, words: Html) -> list[Html]:
    return [
        report.cards(_epsilon_card(run), *cards(run)),
        report.section("What was promised", report.grid(words, run_figures.epsilon(run))),
        *sections(run),
        report.section("The plan", _plan_table(run)),
    ]


def _facts(run: ReportedRun) -> list[str]:
    facts, counts = run.facts, run.counts
    return [
        f"preset {facts['preset'] or UNKNOWN}",
        f"context {facts['context'] or UNKNOWN}",
        f"channel {facts['channel'] or UNKNOWN}",
        place(run).phrase,
        f"{facts['basis'] or UNKNOWN} basis",
        f"{number(counts['coefficients'])} coefficients of {number(counts['model_parameters'])} parameters",
        count(counts["rounds"], "round"),
        f"seed {counts['seed']}",
        duration(run.seconds),
    ]


def _ended(run: ReportedRun) -> Html:
    created = run.facts["created"]
    if created is None:
        return Html()
    return join("The run ended on ", tag("time", created.replace("T", " ")[:16], datetime=created), ".")


def _cards(run: ReportedRun) -> list[Html]:
    counts, uplink = run.counts, run.uplink
    labels = "labels used" if run.uses_future_labels else "labels not used"
    future = f"{count(counts['future_clients'], 'client')}, {labels}" if counts["future_clients"] else "none"
    ratio = uplink.fp32_bytes / uplink.bytes if uplink.bytes else None
    return [
        _accuracy_card(
            "seen",
            f"Participants’ {label(run.metric)}",
            run.seen,
            _constant(run, "seen"),
            count(counts["participants"], "client"),
        ),
        _accuracy_card(
            "future",
            f"Future clients’ {label(run.metric)}",
            run.future,
            _constant(run, "future"),
            future,
        ),
        _epsilon_card(run),
        report.card(
            "uplink",
            "Sent by clients",
            data_size(uplink.bytes),
            uplink.bytes,
            f"{number(ratio)}× less than {data_size(uplink.fp32_bytes)} in FP32"
            if ratio and ratio >= 1.05
            else f"{data_size(uplink.fp32_bytes)} in FP32",
            f"{number(uplink.bits_per_coefficient)} bits a coefficient",
            f"{count(uplink.releases, 'release')}; contexts: {data_size(uplink.context_bytes)}",
            f"sent to them: {data_size(run.downlink_bytes)}, {number(run.downlink_bits or 32)} bits each",
        ),
    ]


def _epsilon_card(run: ReportedRun) -> Html:
    busiest = f"{count(run.counts['releases_max'], 'gradient')} of the busiest client"
    if without_noise(run):
        return report.card("epsilon", "Privacy spent", "no limit", None, "no noise was added", busiest)
    spent = run.epsilon.spent_max
    target = f"{out_of(spent, run.epsilon.target)} at {equals('δ', run.delta)}"
    counting = f"{run.epsilon.accounting} accounting, {busiest}"
    return report.card("epsilon", "Privacy spent", equals("ε", spent, 4), spent, target, counting)


def _constant(run: ReportedRun, role: str) -> str:
    """What a constant would have, beside the headline."""
    found, measured = run.constant[role], run.metrics[role]
    if found.get(run.metric) is None:
        return ""
    said = f"a constant: {percent(found[run.metric])}"
    losses = measured.get("log_loss"), found.get("log_loss")
    return (
        said if None in losses else f"{said}; log loss {number(losses[0])}, a constant’s {number(losses[1])}"
    )


def _accuracy_card(identifier: str, label: str, accuracy: Accuracy, constant: str, clients: str) -> Html:
    among = f"{percent(accuracy.masked)} if only classes that a client has may be chosen"
    told = accuracy.masked is not None and accuracy.masked_per_client != accuracy.per_client
    details = constant, among if told else "", clients
    return report.card(identifier, label, percent(accuracy.mean), accuracy.mean, *details)


def _groups(run: ReportedRun) -> list[tuple[str, list[str]]]:
    return [
        ("Future clients", sorted(run.future.per_client, key=natural)),
        ("Participants", sorted(run.seen.per_client, key=natural)),
    ]


def _metrics_table(run: ReportedRun) -> Html:
    """The task's other metrics, means over clients."""
    seen, future = run.metrics["seen"], run.metrics["future"]
    if not seen:
        return Html()
    rows = [
        [label(name), measure(name, seen[name]), measure(name, future.get(name))]
        for name in seen
        if name != "accuracy"
    ]
    names = ["Metric", "Participants", "Future clients"]
    return tag("div", Table(names, rows, "Other metrics, means over clients").html(), class_="measures")


def _clients_table(run: ReportedRun) -> Html:
    rows = []
    for role, accuracy in (("participant", run.seen), ("future", run.future)):
        for name in sorted(accuracy.per_client, key=natural):
            spent = run.epsilon.per_client.get(name) if accuracy is run.seen else run.epsilon.future_context
            values = [accuracy.per_client[name], accuracy.masked_per_client.get(name)]
            site = run.sites.get(name)
            sizes = [] if site is None else [number(site.size), number(site.sigma)]
            rows.append([name, role, *sizes, *map(percent, values), number(spent, 4, zeros=True)])
    sized = [counted(run.unit).capitalize(), "σ"] if run.sites else []
    names = ["Client", "Role", *sized, label(run.metric).capitalize(), "Of own classes", "ε"]
    return report.folded(Table(names, rows, f"Every client ({len(rows)})", words=2))


def _rounds_table(run: ReportedRun) -> Html:
    rows = [
        [
            str(r.round),
            percent(r.seen),
            percent(r.future),
            number(r.bytes),
            number(r.signal_norm, zeros=True),
            number(r.noise_norm, zeros=True),
            number(r.gain, zeros=True),
            duration(r.seconds),
        ]
        for r in run.rounds
    ]
    names = ["Round", "Participants", "Future", "Bytes", "Signal", "Noise", "Gain", "Time"]
    return report.folded(Table(names, rows, f"Every round ({len(rows)})"))


def _plan_table(run: ReportedRun) -> Html:
    meaning = {field.name: field.metadata.get("help", "") for field in dataclasses.fields(Plan)}
    rows: list[list[str | TableEntry]] = [
        [TableEntry(key, small=meaning.get(key, "")), value] for key, value in run.plan.items()
    ]
    return report.folded(Table(["Key", "Value"], rows, "The resolved plan", words=2))
