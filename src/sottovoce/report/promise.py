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

from sottovoce import report
from sottovoce.catalog import ACCOUNTINGS, CHANNELS, CONTEXTS, METHODS, PLACES, Place
from sottovoce.report.chart import Axis, Chart, svg
from sottovoce.report.figures import Series, trend
from sottovoce.report.reading import ReportedRun
from sottovoce.report.table import Html, Table, count, equals, join, number, out_of, percent, tag

TONES = {"worst": "orange", "given": "blue"}
PAIRS = {"worst": "the worst pair", "given": "the worst pair of the given records"}


def warning(run: ReportedRun) -> str | None:
    """Why nobody is protected by this run, if that is so."""
    if without_noise(run):
        return "No noise was added, so this run protects nobody. It is an ablation."
    if run.seeded:
        return "Seeded simulation: the noise is reproducible, so this run protects nobody."
    return None


def promise(run: ReportedRun) -> Html:
    """The promise as paragraphs."""
    return join(*(tag("p", tag("strong", head), " ", text) for head, text in _paragraphs(run)))


def _paragraphs(run: ReportedRun) -> list[tuple[str, str]]:
    parts = [*_made(run), ("Records of participants.", _participants(run))]
    if not without_noise(run):
        parts.append(("Trusted server.", _server(run)))
    if run.counts["future_clients"]:
        parts.append(("Future clients.", _future(run)))
    if not without_noise(run):
        parts.append(("Randomness.", _randomness(run)))
    return parts


def _made(run: ReportedRun) -> list[tuple[str, str]]:
    """What was learned and how it travelled, where this version knows the names."""
    method, channel = METHODS.get(str(run.facts["method"])), CHANNELS.get(str(run.facts["channel"]))
    if method is None or channel is None:
        return []
    learned = method.phrase[0].upper() + method.phrase[1:]
    return [("What was learned.", f"{learned}. Releases travelled as {channel.phrase}.")]


def without_noise(run: ReportedRun) -> bool:
    """Returns whether releases left without noise, as an ablation."""
    return run.epsilon.target is None or math.isinf(run.epsilon.target) or not run.sigma


def _participants(run: ReportedRun) -> str:
    if without_noise(run):
        return "Releases were clipped but carried no noise: there is no privacy promise."
    releases = f"at most {count(run.counts['releases_max'], 'gradient')}"
    if _releases_context(run):
        context = CONTEXTS.get(str(run.facts["context"]))
        confusion = context is not None and context.predicted_for_future
        once = "one context, one confusion of classes" if confusion else "one context"
        releases = f"{once} and {releases}"
    factor = join("e", tag("sup", "ε"))
    noise = f"every one bounded and carrying Gaussian noise ({_sigma(run)} in each coordinate"
    seen = "its decoded releases, or in any model made from them"
    if place(run).at_server:
        noise = (
            "every one bounded. The server added Gaussian noise once a round, to the sum of the gradients "
            f"({equals('σ', run.sigma)} in each coordinate"
        )
        seen = "any generator or model (but not in a release)"
    if place(run).shared:
        noise = (
            "every one bounded, and the gradients hidden in the sum of their round, to which each client "
            f"added a share of Gaussian noise in whole numbers ({equals('σ', run.sigma)} in each coordinate, "
            "counting those who do not collude"
        )
        seen = "any sum of a round, generator or model, while cryptography holds and one helper is honest"
    counted = ACCOUNTINGS.get(run.epsilon.accounting, run.epsilon.accounting)
    unit, other = unit_word(run.unit), "any other"
    what = "one record"
    if run.unit != "record":
        what, other = f"all records of one {unit}", "any others, of another or of none"
    return join(
        f"Each participant released {releases}, {noise}{_context_sigma(run)}). If {what} of one "
        f"participant were replaced by {other}, the probability of anything that can be seen in {seen}, "
        "would change by a factor of at most ",
        factor,
        f", up to δ: {equals('ε', run.epsilon.spent_max, 4)} for the participant that spent most, "
        f"{out_of(run.epsilon.spent_max, run.epsilon.target)} at {equals('δ', run.delta)}. This is "
        f"{unit}-level differential privacy; it was counted by {counted}.",
    )


def unit_word(unit: str) -> str:
    """What a protected unit is called in a sentence, from the column that tells units apart.

    >>> unit_word("patient_id"), unit_word("record")
    ('patient', 'record')
    """
    return re.sub(r"[ _-]?(id|nr|no|number|key|code)$", "", unit.strip(), flags=re.IGNORECASE) or unit


def _sigma(run: ReportedRun) -> str:
    sigmas = [site.sigma for site in run.sites.values() if site.sigma is not None]
    if len(set(sigmas)) < 2:
        return equals("σ", run.sigma)
    return f"σ from {number(min(sigmas))} to {number(max(sigmas))}, by the size of each participant,"


def place(run: ReportedRun) -> Place:
    """Where the noise of gradients was added."""
    return PLACES.get(str(run.facts["noise"]), PLACES["client"])


def _releases_context(run: ReportedRun) -> bool:
    return run.facts["context"] not in (None, "public")


def _context_sigma(run: ReportedRun) -> str:
    if not _releases_context(run) or run.sigma_context in (None, run.sigma):
        return ""
    where = ", at the client" if place(run).summed else ""
    return f"; {number(run.sigma_context)} for the context{where}"


def _server(run: ReportedRun) -> str:
    if place(run).at_server:
        return (
            "The server saw every gradient release before the noise, and is trusted to have kept none: "
            "for a reader of releases there is no finite ε. The small noise of the channels protects nobody "
            "and is not counted. Accuracies, confusions and byte counts in this report depend on records "
            "too and are not charged; in a federation, don’t publish them."
        )
    if place(run).shared:
        return (
            "Nobody needs to trust the server: it saw sums of rounds, and messages that are private "
            "themselves. This was a simulation, though, where all records lay on one machine. Accuracies and "
            "confusions in this report depend on records and are not charged."
        )
    return (
        "The server decodes the releases and is trusted with what it receives. The promise covers decoded "
        "releases and models. It does not cover the encoded bytes, their lengths, or the randomness that "
        "client and server share: these stay between the two. Accuracies, confusions, byte counts and signal "
        "norms in this report depend on records too and are not charged; in a federation, don’t publish them."
    )


def _future(run: ReportedRun) -> str:
    if not _releases_context(run):
        return (
            "They released nothing: their models do not depend on their records. Their labels were not used."
        )
    context = run.facts["context"] or ""
    phrase = CONTEXTS[context].phrase if context in CONTEXTS else context
    labels = (
        "Labels of future clients were used."
        if run.uses_future_labels
        else ("Labels of future clients were not used.")
    )
    if without_noise(run):
        return f"Each released one context without noise ({phrase}). {labels}"
    return (
        f"Each released one context ({phrase}), which cost its records "
        f"{equals('ε', run.epsilon.future_context)}, and got its model from it without any training. {labels}"
    )


def _randomness(run: ReportedRun) -> str:
    if run.seeded:
        return (
            "The noise came from the plan’s seed, so that the run can be repeated bit by bit. Whoever knows "
            "the seed can subtract the noise: ε says what the same run with secret noise would have promised."
        )
    return "The noise came from the operating system’s cryptographic generator."


_TENTHS = Axis(0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))


def verdict(found: Mapping[str, Any]) -> str:
    """One sentence: whether anything was found that breaks the promise."""
    faults = found["faults"]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return f"The promise is broken: {faults[0]}{more}."
    return "Nothing was found that breaks the promise."


def audit_section(found: Mapping[str, Any]) -> Html:
    """Everything that was found, for a page."""
    parts = [tag("p", verdict(found), class_="alert" if found["faults"] else None)]
    parts += [tag("p", sentence(game)) for game in found.get("games", ())]
    tables = [table for table in (releases_table(found), recount_table(found)) if table is not None]
    drawn = curve(found)
    charts = [drawn] if drawn.marks else []
    return report.section(
        "Audit", tag("div", *parts, class_="prose"), report.grid(*charts) if charts else Html(),
        *(table.html() for table in tables), identifier="audit",
    )  # fmt: skip


def audit_page(found: Mapping[str, Any]) -> Html:
    """A page of its own."""
    facts = [f"preset {found['preset']}", PLACES[found["noise"]].phrase] if "preset" in found else []
    title = f"Audit of {found.get('dataset') or found['ledger']['run']}"
    return report.page(
        f"{title} – Sottovoce",
        report.header(title, facts, "Sottovoce · do not believe us"),
        tag("main", audit_section(found)),
    )


def audit_picture(found: Mapping[str, Any]) -> str:
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
