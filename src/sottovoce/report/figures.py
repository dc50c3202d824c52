"""The charts of one run: what is plotted, on which scale, and the sentence that explains it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, cast

from markupsafe import Markup

from sottovoce.report.chart import (
    Axis,
    Chart,
    Format,
    Series,
    dot,
    grid,
    line_of,
    linear,
    logarithmic,
    rect,
    stroke,
    trend,
    upright,
)
from sottovoce.report.reading import ReportedRun, natural
from sottovoce.report.result import Bin
from sottovoce.report.table import data_size, duration, equals, label, number, percent

from_zero = partial(linear, zero=True)
ROLES = {"seen": ("Participants", "blue"), "future": ("Future clients", "orange")}
"""Name and color of the clients who trained, and of those who join later."""
Matrix = list[list[int]]
Group = tuple[str, str, dict[str, float]]
"""Name and color of some clients, and their values."""


def accuracy(run: ReportedRun) -> list[Chart]:
    """Accuracy over rounds, and of every client at the end."""
    metric = run.result["metric"]
    note = "Mean over clients, where it was evaluated."
    if float(run.plan.get("averaging", 0)) > 0:
        note += " The final models come from the generator’s average over the last rounds, not from its last."
    bounds = (0.0, 100.0) if metric == "accuracy" else (-math.inf, 100.0)
    groups = [(*ROLES[role], _known(run.scores(role))) for role in ROLES]
    charts = [
        over_rounds("Over rounds", note, scores(run.rounds), percent_tick, partial(from_zero, bounds=bounds)),
        _strip(groups, bounds, f"{label(metric)} at the end"),
    ]
    stated = cast(Mapping[str, list[Bin]], run.result["reliability"])
    curves = {ROLES[role][0]: bins for role, bins in stated.items() if bins}
    return [*charts, reliability(curves, dict(ROLES.values()))] if curves else charts


def _strip(groups: Sequence[Group], bounds: tuple[float, float], x_name: str) -> Chart:
    """One dot a client, a row a group; a box spans the middle half and a line marks the median."""
    rows = [group for group in groups if group[2]]
    x = linear([value for *_, values in rows for value in values.values()] or [0.0, 100.0], bounds=bounds)
    marks, texts, labels = upright(x), list[tuple[float, str]](), []
    for row, (group, tone, values) in enumerate(rows):
        middle, half = 100 * (row + 0.5) / len(rows), 32 / len(rows)
        marks += _box(tone, list(values.values()), x, middle, half)
        ordered = sorted(values.items(), key=lambda item: item[1])
        lanes = _lanes([x.at(value) for _, value in ordered])
        spread = half / max(4, *map(abs, lanes))
        for (name, value), lane in zip(ordered, lanes, strict=True):
            words = f"{name}: {percent_tick(value)}"
            marks.append(dot(tone, x.at(value), 100 - middle - lane * spread, words))
            texts.append((x.at(value), f"{name} ({group.lower()}): {percent_tick(value)}"))
        labels.append((100 - middle + half + 2, group))
    note = "A dot is a client; boxes span the middle half, lines mark the median."
    titled = ("Client by client", note)
    return Chart(*titled, marks, sorted(texts), labels=labels, x=x, x_name=x_name, x_show=percent_tick)


def _box(tone: str, values: list[float], x: Axis, middle: float, half: float) -> list[Markup]:
    lower, median, upper = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    box = rect(f"box {tone}", x.at(lower), middle - half, x.at(upper) - x.at(lower), 2 * half)
    ends = (x.at(median), 100 - middle + half, x.at(median), 100 - middle - half)
    return [box, stroke(f"median {tone}", *ends)]


def _lanes(positions: Sequence[float]) -> list[int]:
    """Lanes 0, 1, −1, 2, … for sorted positions, so that dots of one lane are 2.6 percent apart.

    >>> _lanes([10.0, 10.5, 11.0, 14.0])
    [0, 1, -1, 0]
    """
    last: dict[int, float] = {}
    lanes = []
    for position in positions:
        lane = 0
        while position - last.get(lane, -math.inf) < 2.6:
            lane = -lane if lane > 0 else 1 - lane
        last[lane] = position
        lanes.append(lane)
    return lanes


def reliability(curves: Mapping[str, Sequence[Bin]], tones: Mapping[str, str]) -> Chart:
    """Returns how often things happen that are stated with a probability; the dashed line is honest.

    Of two classes the second is meant, of more the one that is decided.
    """
    lines = [
        line_of(row, tones[row], [(bin["stated"], bin["observed"]) for bin in bins])
        for row, bins in curves.items()
    ]
    if lines:
        lines.append(Series("as stated", "dashed", [(0.0, 0.0), (100.0, 100.0)]))
    scale = linear([0.0, 100.0])
    title, note = "Do probabilities mean something?", "Share of held-out records, by stated probability."
    return trend(title, note, lines, x_name="stated", x=scale, y=scale if lines else None, show=percent_tick,
                 x_show=percent_tick)  # fmt: skip


def epsilon(run: ReportedRun) -> Chart:
    """ε of every client, most first, against a dashed line at the target."""
    spent, future = run.result["epsilon"], run.result["accuracy"]["future_per_client"]
    context = _known({"each future client": spent["future_context"]}) if future else {}
    groups: list[Group] = [
        ("Participants", "blue", _known(spent["per_client"])),
        ("Each future client, for its context", "orange", context),
    ]
    note = f"What each client’s records have spent, at {equals('δ', run.result['delta'])}."
    found = [(group, *item) for group in groups for item in sorted(group[2].items(), key=lambda i: -i[1])]
    if not found:
        return Chart("ε client by client", note)
    target = _known({"target": spent["target"]})
    y, width = from_zero([*(value for *_, value in found), *target.values()]), 100 / len(found)
    gap, marks, texts = min(0.15 * width, 0.6), grid(y), []
    for i, ((group, tone, _), name, value) in enumerate(found):
        height, left = y.at(value), i * width
        place = (left + gap, 100 - height, width - 2 * gap, height)
        marks.append(rect(f"bar {tone}", *place, words=f"{name}: {number(value)}"))
        texts.append((left + width / 2, f"{name} ({group.lower()}): {number(value)}"))
    names = [(group, tone) for group, tone, values in groups if values]
    for name, value in target.items():
        marks.append(stroke(name, 0, y.at(value), 100, y.at(value)))
        names.append((f"{name} {number(value)}", name))
    titled = ("ε client by client", note)
    return Chart(*titled, marks, texts, names, y=y, x_name="clients, most first", y_show=number)


def noise(run: ReportedRun) -> list[Chart]:
    """Norm of the noise against that of the signal, and the generator's gain where it has one."""
    norms = [
        over(run.rounds, "signal_norm", "Signal", "green", dots=False, positive=True),
        over(run.rounds, "noise_norm", "Noise", "violet", dots=False, positive=True),
    ]
    note = "Mean norm over a round’s releases: the clipped mean gradient, and the noise it left with."
    return [over_rounds("Noise against signal", note, norms, number, logarithmic), *_gain(run)]


def progress(run: ReportedRun) -> list[Chart]:
    """Returns how long each round of a federation took, and the generator's gain where it has one."""
    note = "From the first request to the last release that was waited for."
    return [times(run.rounds, note), *_gain(run)]


def _gain(run: ReportedRun) -> list[Chart]:
    lines = [over(run.rounds, "gain", "Gain", "gray", dots=False)]
    note = (
        "How strongly a step of the server moves a client’s model: the mean over a round’s clients "
        "(‖h‖² in the paper)."
    )
    if run.result["engine"] is None:
        lines.append(over(run.rounds, "effective_gain", "Effective gain", "green", dots=False))
        note += " Effective: how far the whole step moved them along the releases."
    return [over_rounds("Gain of the generator", note, lines, number)] if lines[0].points else []


def communication(run: ReportedRun) -> list[Chart]:
    """Bytes so far against the same releases in FP32, and bytes of every round."""
    uplink, numbers = run.result["uplink"], [r["round"] for r in run.rounds]
    so_far = accumulate(r["bytes"] for r in run.rounds)
    clients = list(accumulate(len(r["clients"]) for r in run.rounds))
    fp32 = [uplink["fp32_bytes"] * n / clients[-1] for n in clients] if clients and clients[-1] else []
    total = [
        line_of("FP32", "dashed", zip(numbers, fp32, strict=False), dots=False, positive=True),
        line_of("Sent", "gray", zip(numbers, so_far, strict=True), dots=False, positive=True),
    ]
    each = [over(run.rounds, "bytes", "Sent", "gray", dots=False)]
    sent, dense, back = map(
        data_size, (uplink["bytes"], uplink["fp32_bytes"], run.result["downlink"]["bytes"])
    )
    in_all = f"Gradient releases, {sent} in all; the same in FP32: {dense}."
    together = f"All clients of a round together; the server sent them {back} in all."
    return [
        over_rounds("Bytes so far", in_all, total, data_size, logarithmic),
        over_rounds("Bytes of each round", together, each, data_size),
    ]


def percent_tick(value: float) -> str:
    """Whole percents without decimals, as on an axis.

    >>> percent_tick(80.0)[:2], percent_tick(80.26)[:4]
    ('80', '80.3')
    """
    return percent(value, 0 if value == round(value) else 1)


def over(
    lines: Iterable[Mapping[str, Any]],
    key: str,
    name: str,
    tone: str,
    *,
    dots: bool = True,
    positive: bool = False,
) -> Series:
    """One field of every round's line, where it is known."""
    return line_of(name, tone, ((r["round"], r[key]) for r in lines), dots=dots, positive=positive)


def scores(lines: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Returns how well the models of participants and of future clients did, where rounds were evaluated."""
    return [over(lines, role, *named) for role, named in ROLES.items()]


def times(lines: Sequence[Mapping[str, Any]], note: str) -> Chart:
    """Returns how long rounds took."""
    return over_rounds(
        "Time of each round", note, [over(lines, "seconds", "Time", "gray", dots=False)], duration
    )


def over_rounds(
    title: str,
    note: str,
    series: list[Series],
    show: Format,
    axis: Callable[[list[float]], Axis] = from_zero,
) -> Chart:
    """Lines over rounds, on a scale from zero on, or on another."""
    values = [y for line in series for _, y in line.points]
    return trend(title, note, series, x_name="round", y=axis(values) if values else None, show=show)


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def confusion(run: ReportedRun) -> dict[str, Any]:
    """The `groups` of a selector (name, choices), the `matrices` in the order of its choices, and `classes`.

    Rows are the true class and columns the predicted one. Each group's sum comes before its clients. Classes
    are called by their numbers where they have no names.
    """
    found, groups, matrices = run.result["confusion"], [], []
    for role in ("future", "seen"):
        name, clients = ROLES[role][0], sorted(run.scores(role), key=natural)
        present = [client for client in clients if client in found]
        if present:
            own = [found[client] for client in present]
            matrices += [_sum(own), *own]
            groups.append((name, [f"all {name.lower()}", *present]))
    size = len(matrices[0]) if matrices else 0
    names = run.result["class_names"]
    classes = names if len(names) == size else [str(i) for i in range(size)]
    return {"groups": groups, "matrices": matrices, "classes": classes}


def _sum(matrices: list[Matrix]) -> Matrix:
    """
    >>> _sum([[[1, 2], [3, 4]], [[0, 1], [0, 1]]])
    [[1, 3], [3, 5]]
    """
    return [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]
