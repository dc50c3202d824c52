"""What the live page shows of a run, of a federation or of one of its clients.

Of a run it is results of a simulation or totals over clients; of a federation what its server may know, and
nothing that depends on the records of one client; of a client what is its owner's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from sottovoce import report
from sottovoce.catalog import PLACES
from sottovoce.federation.status import NodeStatus
from sottovoce.report.chart import Chart, Format, linear
from sottovoce.report.figures import Series, line_of, trend
from sottovoce.report.run_figures import percent_tick
from sottovoce.report.table import Html, Table, count, data_size, duration, equals, join, number, percent, tag
from sottovoce.run.status import Status

LISTED = 100
"""Clients that a page names."""
LOST = "The connection is lost; what you see is what was last known. Trying again."


def parts(found: Status | NodeStatus) -> dict[str, str]:
    """The parts of the page that change, by the id of the element that holds each; the title is no markup."""
    shown = {"title": _title(found), "state": tag("p", tag("strong", found.state), f": {found.why}")}
    if isinstance(found, NodeStatus):
        figures = report.cards(*_node_cards(found)) if found.client else Html()
        return {**shown, "figures": figures, "charts": Html(), "clients": _errors(found.errors)}
    return {
        **shown,
        "figures": report.cards(*_cards(found)) if found.rounds else Html(),
        "charts": report.grid(*_charts(found)) if found.rounds else Html(),
        "clients": _federation(found) if found.engine else Html(),
    }


def document(found: Status | NodeStatus) -> Html:
    """The whole page as it is now; its script replaces the parts."""
    shown = parts(found)
    facts = _node_facts(found) if isinstance(found, NodeStatus) else _facts(found)
    seeded = isinstance(found, Status) and found.seeded
    return report.page(
        _title(found),
        report.header(_name(found), facts, "Sottovoce, live"),
        tag("p", LOST, id="lost", class_="alert", role="alert", hidden=True),
        Html() if not seeded else tag("p", "A seeded simulation protects nobody.", class_="alert"),
        tag("div", shown["state"], id="state", class_="state", role="status"),
        *(tag("div", shown[part], id=part) for part in ("figures", "clients", "charts")),
        live=True,
    )


def _title(found: Status | NodeStatus) -> str:
    rounds = f" {found.round} of {found.rounds}" if found.rounds else ""
    return f"{found.state}{rounds} · {_name(found)}"


def _name(found: Status | NodeStatus) -> str:
    """What a page is called: a client by its name, everything else by its directory."""
    return (isinstance(found, NodeStatus) and found.client) or Path(found.directory).name


def _facts(found: Status) -> list[str]:
    facts = [
        found.dataset or "",
        found.method or "",
        f"{number(found.participants)} participants",
        found.noise_words,
    ]
    if found.epsilon.get("target") is None:
        return [*facts, "without privacy"]
    return [*facts, f"{equals('ε', found.epsilon['target'])} at {equals('δ', found.delta)}"]


def _cards(found: Status) -> list[Html]:
    left = "" if found.seconds_left is None else f"about {duration(found.seconds_left)} left"
    silent = found.seconds_since_progress
    going_on = found.state in ("running", "waiting")
    age = "" if silent is None or not going_on else f"last progress {duration(round(silent))} ago"
    bar = tag("progress", value=found.round, max=found.rounds, aria_label="rounds")
    sent = report.card(
        "bytes",
        "To the server",
        data_size(found.bytes_up),
        found.bytes_up,
        f"{data_size(found.bytes_down)} to clients, all together",
        "of rounds that two or more clients answered" if found.engine else "",
    )
    return [
        report.card("round", "Rounds", f"{found.round} of {found.rounds}", found.round, bar, left, age),
        _privacy(found),
        _connected(found) if found.engine else _accuracy(found),
        sent,
    ]


def _privacy(found: Status) -> Html:
    kinds = [
        f"{kind} {number(value)}" for kind, value in found.epsilon.items() if kind not in ("target", "spent")
    ]
    target, spent = found.epsilon.get("target"), found.epsilon.get("spent")
    if target is None:
        return report.card("epsilon", "Privacy spent", "no limit", None, "no noise is added")
    return report.card(
        "epsilon",
        "Privacy spent",
        equals("ε", spent),
        spent,
        f"of {number(target)} at {equals('δ', found.delta)}, by who spent most in this run",
        f"alone: {', '.join(kinds)}" if len(kinds) > 1 else "",
    )


def _accuracy(found: Status) -> Html:
    judged = found.accuracy
    future = judged.get("future")
    return report.card(
        "seen",
        "On held-out records",
        percent(judged.get("seen")),
        judged.get("seen"),
        f"after round {judged['round']}" if judged else "not evaluated yet",
        f"future clients {percent(future)}" if future is not None else "",
    )


def _connected(found: Status) -> Html:
    connected, enrolled, late = (found.counted(what) for what in ("connected", "enrolled", "late"))
    return report.card(
        "connected",
        "Connected",
        f"{connected} of {found.participants}",
        connected,
        f"{enrolled} enrolled",
        f"{late} waited for" if late else "",
        f"{count(found.refusals, 'refusal')}" if found.refusals else "",
    )


def _charts(found: Status) -> list[Chart]:
    lines = found.history
    scores = [
        line_of("Participants", "blue", ((line["round"], line["seen"]) for line in lines)),
        line_of("Future clients", "orange", ((line["round"], line["future"]) for line in lines)),
    ]
    times = [line_of("Time", "gray", ((line["round"], line["seconds"]) for line in lines), dots=False)]
    note = "Waiting for clients included." if found.engine else "Evaluation is not counted."
    charts = [_chart("Time of each round", note, times, duration)]
    if any(series.x for series in scores):
        note = "Mean over clients, where it was evaluated."
        charts.insert(0, _chart("On held-out records", note, scores, percent_tick))
    return charts


def _chart(title: str, note: str, series: list[Series], show: Format) -> Chart:
    values = [y for line in series for y in line.y]
    return trend(
        title, note, series, x_name="round", y=linear(values, zero=True) if values else None, show=show
    )


def _federation(found: Status) -> Html:
    """The phases of a federation, its clients, and the last errors of its server."""
    steps = [tag("li", word, aria_current=word == found.phase and "step") for word in found.phases]
    why = {one["name"]: one["why"] for one in found.waiting}
    rows = [
        [
            client["name"],
            _yes(client["enrolled"], "enrolled"),
            _yes(client["connected"], "connected"),
            why.get(client["name"], "waited for" if client["late"] else ""),
        ]
        for client in found.clients[:LISTED]
    ]
    table = Table(["Client", "Enrolled", "Connected", "Waited for"], rows, "Clients", words=4)
    more = len(found.clients) - len(rows)
    errors = [
        f"{datetime.fromtimestamp(error['time']):%Y-%m-%d %H:%M} {error['text']}" for error in found.errors
    ]
    return join(
        report.section("Phases", tag("ol", *steps, class_="steps")),
        report.section("Clients", table.html("measures"), tag("p", f"and {more} more") if more else Html()),
        _errors(errors),
    )


def _yes(value: bool, word: str) -> str:
    return word if value else "–"


def _errors(lines: Sequence[str]) -> Html:
    if not lines:
        return Html()
    return report.section("Last errors", tag("ul", *(tag("li", line) for line in lines), class_="log"))


def _node_facts(found: NodeStatus) -> list[str]:
    return ["a client of a federation", *([PLACES[found.noise].phrase] if found.noise in PLACES else [])]


def _node_cards(found: NodeStatus) -> list[Html]:
    since = found.seconds_since_contact
    spent = found.epsilon.get("spent")
    run, planned = found.epsilon.get("run"), ""
    if run is not None and found.state == "finished":
        planned = f"this run has spent {number(run)}"
    elif run is not None:
        planned = f"this run will spend {number(run)}, together {number(found.epsilon['together'])}"
    budget = f"of {number(found.epsilon.get('budget'))} at {equals('δ', found.delta)}, in all runs"
    return [
        report.card("epsilon", "Privacy spent", equals("ε", spent), spent, budget, planned),
        report.card(
            "round",
            "Rounds",
            str(found.gradients),
            found.gradients,
            f"released in; the server was last at round {found.round} of {found.rounds}",
        ),
        report.card(
            "contact",
            "Last contact",
            "–" if since is None else duration(round(since)),
            since,
            "ago",
            f"{count(found.answers, 'message')} answered",
        ),
        report.card("refusals", "Refused", str(found.refusals), found.refusals, "messages of the server"),
    ]
