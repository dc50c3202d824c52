"""What a run promised to whom, in plain words, and what an audit of it found: words, tables, a curve.

The promise is record-level differential privacy under a trusted server; the words also say whose labels
were used, and when a run protects nobody. An audit is a section of a run's report, or a page of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from markupsafe import Markup

from sottovoce import report
from sottovoce.plan.catalog import ACCOUNTINGS, CHANNELS, CONTEXTS, METHODS, PLACES, Place
from sottovoce.report.chart import Axis, Chart, Series, svg, trend
from sottovoce.report.reading import ReportedRun
from sottovoce.report.table import Table, equals, number, percent

TONES = {"worst": "orange", "given": "blue"}
PAIRS = {"worst": "the worst pair", "given": "the worst pair of the given records"}


def warning(run: ReportedRun) -> str | None:
    """Returns why nobody is protected by this run, if that is so."""
    if without_noise(run):
        return "No noise was added, so this run protects nobody. It is an ablation."
    if run.result["seeded"]:
        return "Seeded simulation: the noise is reproducible, so this run protects nobody."
    return None


def promise(run: ReportedRun) -> Markup:
    """The promise as paragraphs, in the catalog's words for the names that this version knows."""
    result = run.result
    accounting, context = result["epsilon"]["accounting"], CONTEXTS.get(str(result["context"]))
    releases_context = result["context"] is not None if context is None else context.released
    words: Markup = report.macros("report/promise.html").promise(
        result,
        method=METHODS.get(str(result["method"])),
        channel=CHANNELS.get(str(result["channel"])),
        place=place(run),
        context=context,
        releases_context=releases_context,
        once=[
            *(["one mean of its inputs"] if _paid(run, "centring") else []),
            *(["one context"] if releases_context else []),
            *(["one calibration of probabilities"] if _paid(run, "calibration") else []),
            *(["one confusion of classes"] if context and context.predicted_for_future else []),
        ],
        noisy=not without_noise(run),
        sigma=_sigma(run),
        unit=unit_word(result["unit"]),
        accounting=ACCOUNTINGS.get(accounting, accounting),
    )
    return words


def _paid(run: ReportedRun, share: str) -> bool:
    """Returns whether a share of the budget was spent on what a plan key names."""
    return run.plan.get(share, "0") not in ("0", "0.0")


def without_noise(run: ReportedRun) -> bool:
    """Returns whether releases left without noise, as an ablation."""
    target = run.result["epsilon"]["target"]
    return target is None or math.isinf(target) or not run.result["sigma"]


def unit_word(unit: str) -> str:
    """Returns what a protected unit is called in a sentence, from the column that tells units apart.

    >>> unit_word("patient_id"), unit_word("record")
    ('patient', 'record')
    """
    return re.sub(r"[ _-]?(id|nr|no|number|key|code)$", "", unit.strip(), flags=re.IGNORECASE) or unit


def _sigma(run: ReportedRun) -> str:
    """The noise of gradients, which differs with the size of a participant where each adds its own."""
    sigmas = {site["sigma"] for site in run.result["clients"] if site["sigma"] is not None}
    if place(run).summed or len(sigmas) < 2:
        return equals("σ", run.result["sigma"])
    return f"σ from {number(min(sigmas))} to {number(max(sigmas))}, by the size of each participant,"


def place(run: ReportedRun) -> Place:
    """Returns where the noise of gradients was added."""
    return PLACES.get(str(run.result["noise"]), PLACES["client"])


_TENTHS = Axis(0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))


def verdict(found: Mapping[str, Any]) -> str:
    """One sentence: whether anything was found that breaks the promise."""
    faults = found["faults"]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return f"The promise is broken: {faults[0]}{more}."
    return "Nothing was found that breaks the promise."


def sentences(found: Mapping[str, Any]) -> list[str]:
    """What games and the noise came to, a sentence each."""
    return [*(sentence(game) for game in found.get("games", ())), *_of_noise(found)]


def _of_noise(found: Mapping[str, Any]) -> list[str]:
    common = found.get("common")
    if not common:
        return []
    most = ", ".join(f"{abs(value):.3f} between {between}" for between, value in common["common"].items())
    chance = "more than chance explains" if common["faults"] else "as chance makes them"
    pairs = f"each against all others ({common['pairs']:,} pairs)"
    return [f"Noise of releases, {pairs}: correlations of {most}, {chance}."]


def audit_section(found: Mapping[str, Any]) -> Markup:
    """Everything that was found, for a page."""
    tables, drawn = (releases_table(found), recount_table(found)), curve(found)
    section: Markup = report.macros("report/promise.html").audit(
        found,
        verdict(found),
        sentences=sentences(found),
        charts=[drawn] if drawn.marks else [],
        tables=[table for table in tables if table is not None],
    )
    return section


def audit_page(found: Mapping[str, Any]) -> str:
    """A page of its own."""
    return report.page(
        "report/audit.html",
        title=f"Audit of {found.get('dataset') or found['ledger']['run']}",
        facts=[f"preset {found['preset']}", PLACES[found["noise"]].phrase] if "preset" in found else [],
        audit=audit_section(found),
    )


def audit_picture(found: Mapping[str, Any]) -> str:
    """The trade-off curves as an SVG file."""
    chart = curve(found)
    return svg(chart.title, chart.note, [chart])


def curve(found: Mapping[str, Any]) -> Chart:
    """False negatives over false positives: measured in the games, and the least that was promised."""
    games = [game for game in found.get("games", ()) if game.get("curve")]
    lines = [Series(f"measured, {PAIRS[game['pair']]}", TONES[game["pair"]], game["curve"]) for game in games]
    if games:
        least = [(step / 100, _promised(step / 100, games[0]["mu"])) for step in range(101)]
        lines.insert(0, Series("promised: no test is below", "dashed", least))
    note = "Guesses of an adversary who knows all but one record; a curve below the promised one breaks it."
    return trend(
        "False negatives against false positives", note, lines,
        x_name="false positives", y=_TENTHS, show=number, x=_TENTHS,
    )  # fmt: skip


def sentence(game: Mapping[str, Any]) -> str:
    """Returns what one game came to."""
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
    """Returns how far one record moves each kind of release, against what is charged."""
    rows = [
        [
            row["kind"],
            row["place"],
            number(row["charged"]),
            number(row["ratio"], 4, zeros=True),
            number(row.get("order"), 2),
        ]
        for row in found.get("releases", ())
    ]
    heads = ["Release", "Noise at", "Charged Δ", "Largest move / Δ", "By order alone / Δ"]
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
