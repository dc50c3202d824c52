"""The report of a rehearsal: why a site should join, or should not, from the file that it left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sottovoce import report
from sottovoce.errors import SottovoceError
from sottovoce.machine.files import PRIVATE, write_atomically
from sottovoce.report.chart import Axis, Chart, arrow, dot, grid, linear, logarithmic, stroke, svg, upright
from sottovoce.report.figures import percent_tick, reliability
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
_BY_CHANCE = 0.025
"""The share of sites without a gain whose interval of 95 % lies above zero all the same, or below it."""
_USUAL, _MOST = 0.9, (0.02, 0.98)
"""Quantiles: of gains, by which axes choose how much of intervals they show; of many sites, what is shown."""


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
        f"sites that by joining gain more than their interval: {gain['sites_gaining']}, "
        f"that lose more: {gain['sites_losing']}{_by_chance(gain)}, "
        f"that cannot tell: {gain['sites_undecided']}; "
        f"median {gain['median']:+z.1f} points{_within(gain, 'median')}, "
        f"worst tenth {gain['worst_decile']:+z.1f} or less{_within(gain, 'worst_decile')}"
    )


def _by_chance(gain: Mapping[str, Any]) -> str:
    """How many sites would gain, and lose, if joining changed nothing; nothing of less than one."""
    told = sum(site["low"] is not None for site in gain["per_client"].values())
    expected = round(_BY_CHANCE * told)
    return f" (by chance alone: about {expected} each way)" if expected else ""


def _within(gain: Mapping[str, Any], name: str) -> str:
    """The interval of 95 % behind a figure, if there is one."""
    interval = gain.get(f"{name}_interval")
    return "" if interval is None else " ({:+z.1f} to {:+z.1f})".format(*interval)


def rows_table(found: Mapping[str, Any]) -> Table:
    """A line for each row: metric and loss, means over participants."""
    lines = []
    for row, (word, explained) in ROWS.items():
        told = found["rows"][row]
        figures = percent(told["participants"]), number(told["log_loss"], zeros=True)
        lines.append([word, *figures, explained])
    head = ["", _metric(found), _loss(found), ""]
    title = f"Why join? {count(found['repeats'], 'split')} at {_promise(found)}"
    return Table(head, lines, title, remarks=True)


def clients_table(found: Mapping[str, Any]) -> Table:
    """A line for each participant, the largest first: its gain against alone at home, and the interval."""
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
    shown = ("constant", "shared", "blend")
    each = [found["rows"][row].get("future_per_client", {}) for row in shown]  # older files have no constant
    lines = [[name, *(percent(row.get(name)) for row in each)] for name in names]
    head = ["future client", "the participants’ constant", *(ROWS[row][0] for row in shown[1:])]
    return Table(head, lines, "Who joins later") if names else None


def charts(found: Mapping[str, Any]) -> list[Chart]:
    """From alone to finished; gains over size; reliability."""
    sites = []
    for site in _participants(found):
        name, gain = site["name"], found["gain"]["per_client"].get(site["name"])
        alone, finished = (found["rows"][row]["per_client"].get(name) for row in ("home_alone", "finished"))
        if gain is not None and alone is not None and finished is not None:
            sites.append({**site, **gain, "alone": alone, "finished": finished})
    curves = reliability(found["reliability"], {"published": "orange", "finished": "blue"})
    unit = counted(found.get("unit", "record"))
    pictures = [_moves(sites, _metric(found)), _gains(sites, f"{unit} of a site"), curves]
    return pictures if any(found["reliability"].values()) else pictures[:2]  # numbers have no probabilities


def _moves(sites: Sequence[Mapping[str, Any]], judged: str) -> Chart:
    """A row a site: a line from alone at home, hollow, to finished at home, over the interval of the end."""
    title = "What joining gives each site"
    note = (
        f"{judged[0].upper() + judged[1:]} on held-out records, the largest site first: from alone (hollow) "
        "to finished. The band is an interval of 95 %."
    )
    if not sites:
        return Chart(title, note)
    row, named = 100 / len(sites), len(sites) <= NAMED
    x = _along(sites, named)
    bands, marks, texts, labels = list[Markup](), list[Markup](), [], []
    for i, site in enumerate(sites):
        up = 100 - (i + (0.72 if named else 0.5)) * row
        a, b = x.at(site["alone"]), x.at(site["finished"])
        if site["low"] is not None:
            low, high = (x.at(site["alone"] + site[end]) for end in ("low", "high"))
            bands += _band(low, high, up, along=True)
        marks += [stroke("span blue", _inside(a), up, _inside(b), up), _end("gray hollow", a, up)]
        marks.append(_end("blue", b, up))
        start, end = percent_tick(site["alone"]), percent_tick(site["finished"])
        words = f"alone at home {start}, finished at home {end} ({site['finished'] - site['alone']:+z.1f})"
        texts.append((_inside(b), f"{site['name']}: {words}"))
        if named:
            labels.append((100 - (i + 0.4) * row, site["name"]))
    legend = [("alone at home", "gray"), ("finished at home", "blue")]
    height = max(160, (34 if named else 9) * len(sites))
    note += _beyond([*bands, *marks])
    shown = (title, note, [*upright(x), *bands, *marks], sorted(texts), legend, labels)
    return Chart(*shown, x=x, x_name=judged, x_show=percent_tick, height=height)


def _along(sites: Sequence[Mapping[str, Any]], whole: bool) -> Axis:
    """An axis on which differences can be seen: of many sites, not the `whole`, a few end in an arrow."""
    known = [site[end] for site in sites for end in ("alone", "finished")]
    low, high = min(known), max(known)
    if not whole:
        low, high = (_quantile(known, share) for share in _MOST)
    least = min(0.0, low)  # no interval leads to where no figure can be
    ends = [min(max(end, least), 100.0) for end in _ends(sites, "alone")]
    return linear([low, high, *(ends if whole else [min(max(end, low), high) for end in ends])])


def _quantile(values: Iterable[float], share: float) -> float:
    """The value of which this share of all is smaller; of a few the largest, for a share near 1.

    >>> _quantile([3.0, 1.0, 2.0], 0.9), _quantile(range(101), 0.9)
    (3.0, 90)
    """
    known = sorted(values)
    return known[round(share * (len(known) - 1))]


def _inside(at: float) -> float:
    return min(max(at, 0.0), 100.0)


def _end(tone: str, at: float, up: float) -> Markup:
    """A dot, or an arrow to where it would be."""
    if at == _inside(at):
        return dot(tone, at, up)
    return arrow(tone, _inside(at), up, 90 if at > 100 else 270)


def _gains(sites: Sequence[Mapping[str, Any]], size: str) -> Chart:
    """A dot for each site at its size and its gain, with its interval, around a line at zero."""
    title, note = "Gains over size", "Points of finished against alone at home, with intervals of 95 %."
    if not sites:
        return Chart(title, note)
    x = logarithmic(site["size"] for site in sites)
    y = linear([0.0, *(site["points"] for site in sites), *_ends(sites)])
    zero, show = stroke("target", 0, y.at(0.0), 100, y.at(0.0)), _signed
    bands, marks, texts = list[Markup](), list[Markup](), []
    for site in sites:
        a, words = x.at(site["size"]), show(site["points"])
        if site["low"] is not None:
            bands += _band(y.at(site["low"]), y.at(site["high"]), a)
        marks.append(dot("blue", a, y.at(site["points"]), f"{site['name']}: {words}"))
        texts.append((a, f"{site['name']} ({site['size']:,.0f}): {words}"))
    shown = (title, note + _beyond(bands), [*grid(y), zero, *bands, *marks], sorted(texts))
    return Chart(*shown, x=x, y=y, x_name=size, x_show="{:,g}".format, y_show=show)


def _band(low: float, high: float, across: float, *, along: bool = False) -> list[Markup]:
    """An upright interval, or one `along` the axis below, in percent; where the plot cuts it is an arrow."""
    start, end = _inside(low), _inside(high)
    ends = [(start, 180)] * (low < 0) + [(end, 0)] * (high > 100)
    if along:
        arrows = [arrow("blue", at, across, turn + 90) for at, turn in ends]
        return [stroke("reach blue", start, across, end, across), *arrows]
    return [
        stroke("reach blue", across, start, across, end),
        *(arrow("blue", across, *each) for each in ends),
    ]


def _beyond(bands: Sequence[Markup]) -> str:
    """What an arrow says, where there is one."""
    return " An arrow: it goes on beyond the axis." if any("arrow" in band for band in bands) else ""


def render(found: Mapping[str, Any], pictures: Sequence[Chart]) -> str:
    """The page."""
    return report.page(
        "report/comparison.html",
        found=found,
        title=_title(found),
        facts=_facts(found),
        lead=summary(found),
        metric=_metric(found),
        rows=ROWS,
        loss=_loss(found),
        charts=[pictures] if len(_participants(found)) <= NAMED else [pictures[1:], pictures[:1]],
        clients=clients_table(found),
        future=future_table(found),
    )


def _ends(sites: Sequence[Mapping[str, Any]], above: str = "") -> list[float]:
    """Ends of intervals, as far as an axis shows them: wider ones only say that nothing is known."""
    reach = 2 * _quantile((abs(site["points"]) for site in sites), _USUAL) + 1
    known = [(site.get(above, 0.0), site[end]) for site in sites for end in ("low", "high")]
    return [start + min(max(end, -reach), reach) for start, end in known if end is not None]


def _signed(points: float) -> str:
    """
    >>> _signed(2.5), _signed(-1.0), _signed(0.0)
    ('+2.5', '-1', '0')
    """
    return f"{points:+g}" if points else "0"


def _participants(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    sites = [site for site in found["clients"] if site["role"] == "participant"]
    return sorted(sites, key=lambda site: -site["size"])


def _gained(gain: Mapping[str, Any] | None) -> tuple[TableEntry, str]:
    if gain is None:
        return TableEntry(UNKNOWN), UNKNOWN
    if gain["low"] is None:
        return TableEntry(f"{gain['points']:+z.1f}", value=gain["points"]), UNKNOWN
    sure = gain["low"] > 0 or gain["high"] < 0
    entry = TableEntry(
        f"{gain['points']:+z.1f}",
        better=gain["points"] > 0 if sure and abs(gain["points"]) >= NOTICED else None,
        share=min(1.0, abs(gain["points"]) / 10),
        value=gain["points"],
    )
    return entry, f"{gain['low']:+z.1f} to {gain['high']:+z.1f}"


def _metric(found: Mapping[str, Any]) -> str:
    return "R² against its own mean" if found["metric"] == "r2" else label(found["metric"])


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
