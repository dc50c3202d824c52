"""The page of a federation's server: promise, ε of every client, and how long rounds took.

A server learns no accuracies, norms and byte counts, so the page has none; clients evaluate their own models.
"""

from __future__ import annotations

from sottovoce.report import page, run_figures
from sottovoce.report.markup import Html
from sottovoce.report.numbers import count, duration, number
from sottovoce.report.reading import ReportedRun, natural
from sottovoce.report.table import Table


def cards(run: ReportedRun) -> list[Html]:
    """Who took part, and how long it took."""
    released = sum(len(line.clients) for line in run.rounds)
    rounds = len(run.rounds) or 1
    return [
        page.card(
            "participants",
            "Took part",
            number(len(run.epsilon.per_client)),
            len(run.epsilon.per_client),
            f"of {count(run.counts['participants'], 'participant')} in the plan",
            f"{count(released, 'gradient')} in {count(run.counts['rounds'], 'round')}",
        ),
        page.card(
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
        page.section("Rounds", page.grid(*run_figures.progress(run))),
        page.section("In full", _clients(run), _rounds(run)),
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
    return page.folded(Table(names, rows, f"Every client ({len(rows)})"))


def _rounds(run: ReportedRun) -> Html:
    rows = [
        [str(line.round), ", ".join(line.clients), number(line.gain, zeros=True), duration(line.seconds)]
        for line in run.rounds
    ]
    names = ["Round", "Released", "Gain", "Time"]
    return page.folded(Table(names, rows, f"Every round ({len(rows)})", words=2))
