"""The report of a rehearsal: who gains and who loses by joining, from the file that it left."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.files import write_atomically
from sottovoce.report import page
from sottovoce.report.chart import Chart, linear, svg
from sottovoce.report.figures import Group, bars, strip
from sottovoce.report.markup import tag
from sottovoce.report.numbers import UNKNOWN, count, counted, equals, label, number, percent
from sottovoce.report.run_figures import percent_tick
from sottovoce.report.table import Table, TableEntry

TONES = {"alone": "gray", "shared": "orange", "blend": "blue"}
WORDS = {"alone": "every client alone", "shared": "one model for all", "blend": "blend of both"}
MOST_BARS = 30
"""Clients that are shown by name; more are dots."""
NOTICED = 0.5
"""Points from which on a difference is colored."""


def write_comparison(folder: Path) -> Path:
    """Writes compare.html and compare.svg from compare.json; returns the path of the page."""
    found = read_comparison(folder / "compare.json")
    path, chart = folder / "compare.html", clients_chart(found)
    write_atomically(path, render(found, chart).encode())
    picture = svg(_title(found), "; ".join(_facts(found)[:3]), [chart])
    write_atomically(folder / "compare.svg", picture.encode())
    return path


def read_comparison(path: Path) -> dict[str, Any]:
    """What a rehearsal left."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not set(TONES) <= set(found["rows"]):
            raise KeyError("rows")
    except FileNotFoundError:
        raise SottovoceError(f"{path} does not exist: make it with sottovoce compare") from None
    except (ValueError, KeyError, TypeError):
        raise SottovoceError(f"{path} is damaged: compare again") from None
    return found


def gain(found: Mapping[str, Any], client: str, role: str = "per_client") -> float | None:
    """By how many points a blend is above the better of alone and shared, for one client."""
    values = {name: row[role].get(client) for name, row in found["rows"].items()}
    others = [values[name] for name in ("alone", "shared") if values[name] is not None]
    return None if values["blend"] is None or not others else values["blend"] - max(others)


def clients_table(found: Mapping[str, Any]) -> Table:
    """A line for each client, the largest first, and one for their mean."""
    rows = []
    for site in sorted(found["clients"], key=lambda site: (site["role"] != "participant", -site["size"])):
        role = "per_client" if site["role"] == "participant" else "future_per_client"
        values = [percent(found["rows"][name][role].get(site["name"])) for name in TONES]
        difference = gain(found, site["name"], role)
        name = site["name"] if site["role"] == "participant" else f"{site['name']} (future)"
        rows.append([name, number(site["size"]), *values, _difference(difference)])
    means = {name: row["participants"] for name, row in found["rows"].items()}
    if None not in means.values():
        whole = means["blend"] - max(means["alone"], means["shared"])
        middle = [percent(means[name]) for name in TONES]
        rows.append(["mean of participants", "", *middle, _difference(whole)])
    head = ["client", counted(found.get("unit", "record")), *TONES, "blend gains"]
    return Table(head, rows, f"Who gains, who loses, at {_promise(found)}")


def clients_chart(found: Mapping[str, Any]) -> Chart:
    """Every participant under the three rows."""
    names = [site["name"] for site in found["clients"] if site["role"] == "participant"]
    values = {row: {name: found["rows"][row]["per_client"][name] for name in names} for row in TONES}
    known = [value for row in values.values() for value in row.values() if value is not None]
    judged = label(found["metric"])
    note = f"{judged[0].upper() + judged[1:]} on held-out records of each participant; one draw of noise."
    if len(names) > MOST_BARS:
        groups = [
            Group(WORDS[row], tone, {n: v for n, v in values[row].items() if v is not None})
            for row, tone in TONES.items()
        ]
        bounds = (0.0, 100.0) if found["metric"] == "accuracy" else (-math.inf, 100.0)
        axis = linear(known or [0.0, 100.0], bounds=bounds)
        return strip("Client by client", note, groups, x=axis, x_name=judged, show=percent_tick)
    by_client = {
        name: {WORDS[row]: v for row in TONES if (v := values[row][name]) is not None and math.isfinite(v)}
        for name in names
    }
    tones = {WORDS[row]: tone for row, tone in TONES.items()}
    axis = linear([0.0, *(max(value, 0.0) for value in known)], zero=True)
    return bars("Client by client", note, by_client, tones, x=axis, show=percent_tick)


def render(found: Mapping[str, Any], chart: Chart) -> str:
    """The page."""
    cards = [
        page.card(
            name,
            WORDS[name].capitalize(),
            percent(row["participants"]),
            row["participants"],
            f"mean {label(found['metric'])} of participants",
            f"future clients: {percent(row['future'])}" if row["future"] is not None else "",
        )
        for name, row in found["rows"].items()
    ]
    return page.page(
        f"{_title(found)} – Sottovoce",
        page.header(_title(found), _facts(found), "Sottovoce · rehearsal"),
        tag("p", found["warning"], class_="alert", role="note"),
        tag(
            "main",
            page.cards(*cards),
            page.section("Who gains, who loses", page.grid(chart), clients_table(found).html()),
        ),
        tag("footer", f"Written by sottovoce {found.get('sottovoce', UNKNOWN)}."),
    )


def _title(found: Mapping[str, Any]) -> str:
    return f"Alone, shared or blended on {Path(str(found['dataset'])).name or found['dataset']}"


def _facts(found: Mapping[str, Any]) -> list[str]:
    clients = [site for site in found["clients"] if site["role"] == "participant"]
    return [_promise(found), count(len(clients), "participant"), count(found["rounds"], "round")]


def _promise(found: Mapping[str, Any]) -> str:
    if found["epsilon"] is None:
        return "no privacy"
    return f"{equals('ε', found['epsilon'])}, {equals('δ', found['delta'])}"


def _difference(points: float | None) -> TableEntry:
    if points is None:
        return TableEntry(UNKNOWN)
    better = None if abs(points) < NOTICED else points > 0
    return TableEntry(f"{points:+.1f}", better=better, share=min(1.0, abs(points) / 10), value=points)
