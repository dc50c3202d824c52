"""The report of a rehearsal: why a site should join, or should not, from the file that it left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce import report
from sottovoce.errors import SottovoceError
from sottovoce.files import PRIVATE, write_atomically
from sottovoce.report.chart import Chart, linear, logarithmic, svg
from sottovoce.report.figures import Span, reaches, spans
from sottovoce.report.run_figures import percent_tick, reliability
from sottovoce.report.table import UNKNOWN, Table, TableEntry, count, counted, equals, label, number, percent

ROWS = {
    "constant": ("constant", "the site's own shares, or its mean"),
    "home_alone": ("alone at home", "its own records, no noise: what it has today"),
    "shared": ("shared", "one private model for all"),
    "blend": ("published", "its private model"),
    "finished": ("finished at home", "its private model, fitted to its own records and kept there"),
}
"""Rows that people are shown, in this order: in a word, and explained."""
SITE_ROWS = ("home_alone", "blend", "finished")
"""Rows that are shown site by site."""
NAMED = 30
"""Sites that are shown by name; more are lines without names."""
NOTICED = 0.5
"""Points from which on a difference is colored."""


def write_comparison(folder: Path) -> Path:
    """Writes compare.html and compare.svg from compare.json; returns the path of the page."""
    found = read_comparison(folder / "compare.json")
    path, pictures = folder / "compare.html", charts(found)
    write_atomically(path, render(found, pictures).encode(), PRIVATE)
    picture = svg(_title(found), "; ".join([summary(found), *_facts(found)[:2]]), pictures[:1])
    write_atomically(folder / "compare.svg", picture.encode(), PRIVATE)
    return path


def read_comparison(path: Path) -> dict[str, Any]:
    """Returns what a rehearsal left."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not set(ROWS) <= set(found["rows"]) or "per_client" not in found["gain"]:
            raise KeyError("rows")
    except FileNotFoundError:
        raise SottovoceError(f"{path} does not exist: make it with sottovoce compare") from None
    except (ValueError, KeyError, TypeError):
        raise SottovoceError(f"{path} is damaged or of another version: compare again") from None
    return found


def summary(found: Mapping[str, Any]) -> str:
    """Returns how many sites gain and lose by joining, in a sentence."""
    gain = found["gain"]
    if gain["median"] is None:
        return "no site has records to tell by"
    return (
        f"sites that surely gain by joining: {gain['sites_gaining']}, "
        f"that surely lose: {gain['sites_losing']}, that cannot tell: {gain['sites_undecided']}; "
        f"median {gain['median']:+.1f} points, "
        f"worst tenth {gain['worst_decile']:+.1f} or less"
    )


def rows_table(found: Mapping[str, Any]) -> Table:
    """A line for each row: metric and loss, means over participants."""
    lines = [
        [word, percent(found["rows"][row]["participants"]), number(found["rows"][row]["log_loss"]), explained]
        for row, (word, explained) in ROWS.items()
    ]
    head = ["", label(found["metric"]), _loss(found), ""]
    return Table(head, lines, f"Why join? {count(found['repeats'], 'split')} at {_promise(found)}")


def clients_table(found: Mapping[str, Any]) -> Table:
    """A line for each participant, the largest first: what it gains against alone at home, and how surely."""
    lines = []
    for site in _participants(found):
        name, gain = site["name"], found["gain"]["per_client"].get(site["name"])
        values = [percent(found["rows"][row]["per_client"].get(name)) for row in SITE_ROWS]
        lines.append([name, number(site["size"]), *values, *_gained(gain)])
    words = (ROWS[row][0] for row in SITE_ROWS)
    head = ["site", counted(found.get("unit", "record")), *words, "gain", "95 %"]
    return Table(head, lines, "Site by site: finished against alone at home")


def future_table(found: Mapping[str, Any]) -> Table | None:
    """Returns what future clients get without any training; None where there are none."""
    names = [site["name"] for site in found["clients"] if site["role"] == "future"]
    lines = [
        [name, *(percent(found["rows"][row]["future_per_client"].get(name)) for row in ("shared", "blend"))]
        for name in names
    ]
    return Table(["future client", "shared", "published"], lines, "Who joins later") if names else None


def charts(found: Mapping[str, Any]) -> list[Chart]:
    """From alone to finished; gains over size; reliability."""
    rows, judged = found["rows"], label(found["metric"])
    moves, gains = [], []
    for site in _participants(found):
        name, gain = site["name"], found["gain"]["per_client"].get(site["name"])
        start, end = (rows[row]["per_client"].get(name) for row in ("home_alone", "finished"))
        if gain is None or start is None or end is None:
            continue
        around = [None if gain[side] is None else start + gain[side] for side in ("low", "high")]
        moves.append(Span(name, start, end, *around))
        gains.append((float(site["size"]), Span(name, 0.0, gain["points"], gain["low"], gain["high"])))
    note = f"{judged[0].upper() + judged[1:]} on held-out records, the largest site first."
    ends = [value for span in moves for value in (span.start, span.end)] or [0.0, 1.0]
    points = [span.end for _, span in gains] or [0.0]
    reach = 2 * max(map(abs, points)) + 1  # wider intervals are cut: they only say that nothing is known
    known = [end for _, span in gains for end in (span.low, span.high) if end is not None]
    spread = [min(max(end, -reach), reach) for end in known]
    return [
        spans(
            "What joining gives each site",
            f"{note} The band is an interval of 95 %.",
            moves,
            (("alone at home", "gray"), ("finished at home", "blue")),
            x=linear(ends),
            x_name=judged,
            show=percent_tick,
            named=len(moves) <= NAMED,
        ),
        reaches(
            "Gains over size",
            "Points of finished against alone at home, with intervals of 95 %.",
            gains,
            x=logarithmic([at for at, _ in gains] or [1.0, 10.0]),
            y=linear([0.0, *points, *spread]),
            x_name=f"{counted(found.get('unit', 'record'))} of a site",
            show="{:+g}".format,
        ),
        reliability(found["reliability"], {"published": "orange", "finished": "blue"}),
    ]


def render(found: Mapping[str, Any], pictures: Sequence[Chart]) -> str:
    """The page."""
    return report.page(
        "report/comparison.html",
        found=found,
        title=_title(found),
        facts=[summary(found), *_facts(found)],
        rows=ROWS,
        loss=_loss(found),
        charts=pictures,
        clients=clients_table(found),
        future=future_table(found),
    )


def _participants(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    sites = [site for site in found["clients"] if site["role"] == "participant"]
    return sorted(sites, key=lambda site: -site["size"])


def _gained(gain: Mapping[str, Any] | None) -> tuple[TableEntry, str]:
    if gain is None:
        return TableEntry(UNKNOWN), UNKNOWN
    if gain["low"] is None:
        return TableEntry(f"{gain['points']:+.1f}", value=gain["points"]), UNKNOWN
    sure = gain["low"] > 0 or gain["high"] < 0
    entry = TableEntry(
        f"{gain['points']:+.1f}",
        better=gain["points"] > 0 if sure and abs(gain["points"]) >= NOTICED else None,
        share=min(1.0, abs(gain["points"]) / 10),
        value=gain["points"],
    )
    return entry, f"{gain['low']:+.1f} to {gain['high']:+.1f}"


def _loss(found: Mapping[str, Any]) -> str:
    return "loss" if found["metric"] == "r2" else "log loss"


def _title(found: Mapping[str, Any]) -> str:
    return f"Why join? A rehearsal on {Path(str(found['dataset'])).name or found['dataset']}"


def _facts(found: Mapping[str, Any]) -> list[str]:
    clients = [site for site in found["clients"] if site["role"] == "participant"]
    return [_promise(found), count(len(clients), "participant"), count(found["rounds"], "round")]


def _promise(found: Mapping[str, Any]) -> str:
    if found["epsilon"] is None:
        return "no privacy"
    return f"{equals('ε', found['epsilon'])}, {equals('δ', found['delta'])}"
