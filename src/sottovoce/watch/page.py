"""What the live page shows of a run, of a federation or of one of its clients.

Of a run it is results of a simulation or totals over clients; of a federation what its server may know, and
nothing that depends on the records of one client; of a client what is its owner's own.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from sottovoce import report
from sottovoce.catalog import PLACES
from sottovoce.federation.status import NodeStatus
from sottovoce.report.chart import Chart
from sottovoce.report.run_figures import over_rounds, percent_tick, scores, times
from sottovoce.report.table import UNKNOWN, Table, equals, number
from sottovoce.run.status import Status

LISTED = 100
"""Clients that a page names."""


def parts(found: Status | NodeStatus) -> dict[str, str]:
    """The parts of the page that change, by the id of the element that holds each; the title is no markup."""
    made, grid = report.macros("watch/parts.html"), report.macros("report/parts.html").grid
    shown = {"title": _title(found), "state": made.state(found), "figures": "", "charts": "", "clients": ""}
    if isinstance(found, NodeStatus):
        if found.client:
            shown["figures"] = made.node_figures(found)
        return {**shown, "clients": made.log(found.errors)}
    if found.rounds:
        shown |= {"figures": made.run_figures(found), "charts": grid(_charts(found))}
    if found.engine:
        shown["clients"] = made.federation(found, _clients(found), _errors(found))
    return shown


def document(found: Status | NodeStatus) -> str:
    """The whole page as it is now; its script replaces the parts."""
    return report.page(
        "watch/page.html",
        live=True,
        name=_name(found),
        facts=_node_facts(found) if isinstance(found, NodeStatus) else _facts(found),
        seeded=isinstance(found, Status) and found.seeded,
        parts=parts(found),
    )


def _title(found: Status | NodeStatus) -> str:
    rounds = f" {found.round} of {found.rounds}" if found.rounds else ""
    return f"{found.state}{rounds} · {_name(found)}"


def _name(found: Status | NodeStatus) -> str:
    """What a page is called: a client by its name, everything else by its directory."""
    return (isinstance(found, NodeStatus) and found.client) or Path(found.directory).name


def _facts(found: Status) -> list[str]:
    if found.noise is None:  # nothing is known of its plan
        return []
    about = [found.dataset or "", found.method or "", f"{number(found.participants)} participants"]
    target = found.epsilon.get("target")
    promise = "without privacy" if target is None else f"{equals('ε', target)} at {equals('δ', found.delta)}"
    return [*about, found.noise_words, promise]


def _node_facts(found: NodeStatus) -> list[str]:
    return ["a client of a federation", *([PLACES[found.noise].phrase] if found.noise in PLACES else [])]


def _charts(found: Status) -> list[Chart]:
    note = "Waiting for clients included." if found.engine else "Evaluation is not counted."
    charts, lines = [times(found.history, note)], scores(found.history)
    if any(line.x for line in lines):
        note = "Mean over clients, where it was evaluated."
        charts.insert(0, over_rounds("On held-out records", note, lines, percent_tick))
    return charts


def _clients(found: Status) -> Table:
    why = {one["name"]: one["why"] for one in found.waiting}
    rows = [
        [
            client["name"],
            *(word if client[word] else UNKNOWN for word in ("enrolled", "connected")),
            why.get(client["name"], "waited for" if client["late"] else ""),
        ]
        for client in found.clients[:LISTED]
    ]
    return Table(["Client", "Enrolled", "Connected", "Waited for"], rows, "Clients", words=4)


def _errors(found: Status) -> list[str]:
    return [
        f"{datetime.fromtimestamp(error['time']):%Y-%m-%d %H:%M} {error['text']}" for error in found.errors
    ]
