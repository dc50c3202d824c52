"""What an audit found, as a section of a run's report, a page of its own, and the curve as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from sottovoce.report import page
from sottovoce.report.chart import Axis, Chart, svg
from sottovoce.report.figures import Series, trend
from sottovoce.report.numbers import equals, number, percent
from sottovoce.report.table import Html, Table, tag

TONES = {"worst": "orange", "given": "blue"}
PAIRS = {"worst": "the worst pair", "given": "the worst pair of the given records"}
_TENTHS = Axis(0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))


def verdict(found: Mapping[str, Any]) -> str:
    """One sentence: whether anything was found that breaks the promise."""
    faults = found["faults"]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return f"The promise is broken: {faults[0]}{more}."
    return "Nothing was found that breaks the promise."


def section(found: Mapping[str, Any]) -> Html:
    """Everything that was found, for a page."""
    parts = [tag("p", verdict(found), class_="alert" if found["faults"] else None)]
    parts += [tag("p", sentence(game)) for game in found.get("games", ())]
    tables = [table for table in (releases_table(found), recount_table(found)) if table is not None]
    drawn = curve(found)
    charts = [drawn] if drawn.marks else []
    return page.section(
        "Audit", tag("div", *parts, class_="prose"), page.grid(*charts) if charts else Html(),
        *(table.html() for table in tables), identifier="audit",
    )  # fmt: skip


def render(found: Mapping[str, Any]) -> Html:
    """A page of its own."""
    facts = [f"preset {found['preset']}", f"noise at the {found['noise']}"] if "preset" in found else []
    title = f"Audit of {found.get('dataset') or found['ledger']['run']}"
    return page.page(
        f"{title} – Sottovoce",
        page.header(title, facts, "Sottovoce · do not believe us"),
        tag("main", section(found)),
    )


def picture(found: Mapping[str, Any]) -> str:
    """The trade-off curves as an SVG file."""
    chart = curve(found)
    return svg(chart.title, chart.note, [chart])


def curve(found: Mapping[str, Any]) -> Chart:
    """False negatives over false positives: measured in the games, and the least that was promised."""
    games = [game for game in found.get("games", ()) if game.get("curve")]
    lines = [
        Series(
            f"measured, {PAIRS[game['pair']]}",
            TONES[game["pair"]],
            [x for x, _ in game["curve"]],
            [y for _, y in game["curve"]],
        )
        for game in games
    ]
    if games:
        steps = [step / 100 for step in range(101)]
        least = [_promised(x, games[0]["mu"]) for x in steps]
        lines.insert(0, Series("promised: no test is below", "dashed", steps, least))
    note = "Guesses of an adversary who knows all but one record; a curve below the promised one breaks it."
    return trend(
        "False negatives against false positives", note, lines,
        x_name="false positives", y=_TENTHS, show=number, x=_TENTHS,
    )  # fmt: skip


def sentence(game: Mapping[str, Any]) -> str:
    """What one game came to."""
    beside = f"{equals('ε', game['epsilon'])} is charged"
    if game["pair"] == "canaries":
        right = game["guesses"] - game["wrong"]
        return (
            f"One run with {number(game['canaries'])} canaries: {right} of {game['guesses']} "
            f"guesses were right, which certifies ε ≥ {number(game['epsilon_lower'])} (95 %); {beside}."
        )
    right = game["runs"] - game["wrong"]
    return (
        f"{PAIRS[game['pair']].capitalize()}: guessed right {right:,} of {game['runs']:,} times "
        f"({percent(100 * right / game['runs'])}), which certifies ε ≥ {number(game['epsilon_lower'])} "
        f"(95 %; {number(game['epsilon_counted'])} by counting alone); {beside}."
    )


def releases_table(found: Mapping[str, Any]) -> Table | None:
    """How far one record moves each kind of release, against what is charged."""
    rows = [
        [row["kind"], row["place"], number(row["charged"]), number(row["ratio"], 4, zeros=True)]
        for row in found.get("releases", ())
    ]
    heads = ["Release", "Noise at", "Charged Δ", "Largest move / Δ"]
    return Table(heads, rows, "How far one record moves a release", words=2) if rows else None


def recount_table(found: Mapping[str, Any]) -> Table | None:
    """ε of every client as it was stated, and as other code makes it."""
    ledger = found.get("ledger")
    if not ledger:
        return None
    rows = [
        [row["client"], number(row["stated"], 5, zeros=True), number(row["recomputed"], 5, zeros=True)]
        for row in ledger["clients"]
    ]
    return Table(
        ["Client", "ε stated", "ε by dp-accounting"], rows, "ε of the ledger, by other code", words=1
    )


def _promised(positives: float, mu: float) -> float:
    """The least false negatives of μ-GDP."""
    normal = NormalDist()
    if positives in (0.0, 1.0):
        return 1.0 - positives
    return normal.cdf(normal.inv_cdf(1 - positives) - mu)
