"""The charts of one run: what is plotted, on which scale, and the sentence that explains it.

Confusion matrices: of all participants, of all future clients, and of one client on demand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate

from sottovoce.report.chart import Axis, Chart, Format, linear, logarithmic
from sottovoce.report.fields import PerClient
from sottovoce.report.figures import Group, Series, columns, line_of, strip, trend
from sottovoce.report.reading import ReportedRun
from sottovoce.report.table import (
    Html,
    data_size,
    duration,
    embedded_json,
    equals,
    join,
    label,
    number,
    percent,
    scrolling,
    tag,
)

_from_zero = partial(linear, zero=True)
Matrix = list[list[int]]


def accuracy(run: ReportedRun) -> list[Chart]:
    """Accuracy over rounds, and of every client at the end."""
    over_rounds = [
        line_of("Participants", "blue", ((r.round, r.seen) for r in run.rounds)),
        line_of("Future clients", "orange", ((r.round, r.future) for r in run.rounds)),
    ]
    groups = [
        Group("Participants", "blue", _known(run.seen.per_client)),
        Group("Future clients", "orange", _known(run.future.per_client)),
    ]
    values = [value for group in groups for value in group.values.values()]
    note = "Mean over clients, where it was evaluated."
    if float(run.plan.get("averaging", 0)) > 0:
        note += " The final models come from the generator’s average over the last rounds, not from its last."
    clients = "A dot is a client; boxes span the middle half, lines mark the median."
    bounds = (0.0, 100.0) if run.metric == "accuracy" else (-math.inf, 100.0)
    x, name = linear(values or [0.0, 100.0], bounds=bounds), f"{label(run.metric)} at the end"
    found = [
        _over_rounds("Over rounds", note, over_rounds, partial(_from_zero, bounds=bounds), percent_tick),
        strip("Client by client", clients, groups, x=x, x_name=name, show=percent_tick),
    ]
    if run.reliability:
        found.append(reliability(run.reliability, {"Participants": "blue", "Future clients": "orange"}))
    return found


def reliability(curves: Mapping[str, Sequence[Mapping[str, float]]], tones: Mapping[str, str]) -> Chart:
    """How often things happen that are stated with a probability; on the dashed line it means what it says.

    Of two classes the second is meant, of more the one that is decided.
    """
    lines = [
        line_of(row, tones[row], [(bin["stated"], bin["observed"]) for bin in bins])
        for row, bins in curves.items()
    ]
    if lines:
        lines.append(Series("as stated", "dashed", [0.0, 100.0], [0.0, 100.0]))
    scale = linear([0.0, 100.0])
    title, note = "Do probabilities mean something?", "Share of held-out records, by stated probability."
    return trend(title, note, lines, x_name="stated", x=scale, y=scale if lines else None, show=percent_tick,
                 x_show=percent_tick)  # fmt: skip


def epsilon(run: ReportedRun) -> Chart:
    """ε of every client against the target."""
    context = _known({"each future client": run.epsilon.future_context})
    groups = [
        Group("Participants", "blue", _known(run.epsilon.per_client)),
        Group("Each future client, for its context", "orange", context if run.future.per_client else {}),
    ]
    target = run.epsilon.target
    aim = ("target", target) if target is not None and math.isfinite(target) else None
    values = [value for group in groups for value in group.values.values()] + ([aim[1]] if aim else [])
    note = f"What each client’s records have spent, at {equals('δ', run.delta)}."
    return columns("ε client by client", note, groups, y=_from_zero(values or [1.0]), target=aim, show=number)


def noise(run: ReportedRun) -> list[Chart]:
    """Norm of the noise against that of the signal, and the generator's gain where it has one."""
    norms = [
        line_of("Signal", "green", ((r.round, r.signal_norm) for r in run.rounds), dots=False, positive=True),
        line_of("Noise", "violet", ((r.round, r.noise_norm) for r in run.rounds), dots=False, positive=True),
    ]
    gains = [
        line_of("Gain", "gray", ((r.round, r.gain) for r in run.rounds), dots=False),
        line_of("Effective gain", "green", ((r.round, r.effective_gain) for r in run.rounds), dots=False),
    ]
    note = "Mean norm over a round’s releases: the clipped mean gradient, and the noise it left with."
    charts = [_over_rounds("Noise against signal", note, norms, logarithmic, number)]
    if gains[0].x:
        note = (
            "How strongly a step of the server moves a client’s model: the mean over a round’s clients "
            "(‖h‖² in the paper). Effective: how far the whole step moved them along the releases."
        )
        charts.append(_over_rounds("Gain of the generator", note, gains, _from_zero, number))
    return charts


def progress(run: ReportedRun) -> list[Chart]:
    """How long each round of a federation took, and the generator's gain where it has one."""
    took = [line_of("Time", "gray", ((r.round, r.seconds) for r in run.rounds), dots=False)]
    charts = [
        _over_rounds(
            "Time of each round",
            "From the first request to the last release that was waited for.",
            took,
            _from_zero,
            duration,
        )
    ]
    gain = line_of("Gain", "gray", ((r.round, r.gain) for r in run.rounds), dots=False)
    if gain.x:
        note = (
            "How strongly a step of the server moves a client’s model: the mean over a round’s clients "
            "(‖h‖² in the paper)."
        )
        charts.append(_over_rounds("Gain of the generator", note, [gain], _from_zero, number))
    return charts


def communication(run: ReportedRun) -> list[Chart]:
    """Bytes so far against the same releases in FP32, and bytes of every round."""
    numbers = [r.round for r in run.rounds]
    so_far = accumulate(r.bytes for r in run.rounds)
    clients = list(accumulate(len(r.clients) for r in run.rounds))
    fp32 = [run.uplink.fp32_bytes * n / clients[-1] for n in clients] if clients and clients[-1] else []
    total = [
        line_of("FP32", "dashed", zip(numbers, fp32, strict=False), dots=False, positive=True),
        line_of("Sent", "gray", zip(numbers, so_far, strict=True), dots=False, positive=True),
    ]
    each = [line_of("Sent", "gray", ((r.round, r.bytes) for r in run.rounds), dots=False)]
    sent, dense, back = map(data_size, (run.uplink.bytes, run.uplink.fp32_bytes, run.downlink_bytes))
    return [
        _over_rounds(
            "Bytes so far",
            f"Gradient releases, {sent} in all; the same in FP32: {dense}.",
            total,
            logarithmic,
            data_size,
        ),
        _over_rounds(
            "Bytes of each round",
            f"All clients of a round together; the server sent them {back} in all.",
            each,
            _from_zero,
            data_size,
        ),
    ]


def percent_tick(value: float) -> str:
    """Whole percents without decimals, as on an axis.

    >>> percent_tick(80.0)[:2], percent_tick(80.26)[:4]
    ('80', '80.3')
    """
    return percent(value, 0 if value == round(value) else 1)


def _over_rounds(
    title: str, note: str, series: list[Series], axis: Callable[[list[float]], Axis], show: Format
) -> Chart:
    values = [y for line in series for y in line.y]
    return trend(title, note, series, x_name="round", y=axis(values) if values else None, show=show)


def _known(values: PerClient) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def confusion(
    matrices: dict[str, Matrix], groups: Iterable[tuple[str, list[str]]], classes: Sequence[str] = ()
) -> Html:
    """A selector and one table of counts, rows the true class and columns the predicted one.

    `groups` are (name, clients) pairs; each group's sum comes before its clients in the selector. `classes`
    are called by their numbers where they have no names.
    Without the page's script the table shows the first group's sum.
    """
    choices: list[Matrix] = []
    options: list[Html] = []
    for name, clients in groups:
        present = [client for client in clients if client in matrices]
        if not present:
            continue
        choices += [_sum([matrices[client] for client in present]), *(matrices[client] for client in present)]
        entries = [tag("option", f"all {name.lower()}"), *(tag("option", client) for client in present)]
        options.append(tag("optgroup", *entries, label=name))
    if not choices:
        return tag("p", "No confusion was recorded.")
    select = tag("select", *options, id="confusion-client")
    label = tag("label", "Records of", for_="confusion-client")
    data = embedded_json("confusion-data", choices)
    return join(label, select, scrolling("Confusion matrix", _table(choices[0], classes)), data)


def _sum(matrices: list[Matrix]) -> Matrix:
    """
    >>> _sum([[[1, 2], [3, 4]], [[0, 1], [0, 1]]])
    [[1, 3], [3, 5]]
    """
    return [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def _table(matrix: Matrix, classes: Sequence[str]) -> Html:
    names = list(classes) if len(classes) == len(matrix) else [str(i) for i in range(len(matrix))]
    head = tag("tr", tag("th", ""), *(tag("th", name, scope="col") for name in names))
    body = [_row(names[i], i, counts) for i, counts in enumerate(matrix)]
    caption = tag("caption", "Rows: true class. Columns: predicted class. Shade: share of the row.")
    return tag("table", caption, tag("thead", head), tag("tbody", *body), class_="confusion")


def _row(name: str, truth: int, counts: list[int]) -> Html:
    total = max(sum(counts), 1)
    cells = [
        tag("td", str(n), class_=_classes(n, own=j == truth), style=f"--share:{n / total:.3f}")
        for j, n in enumerate(counts)
    ]
    return tag("tr", tag("th", name, scope="row"), *cells)


def _classes(count: int, *, own: bool) -> str | None:
    names = [("own", own), ("zero", count == 0)]
    return " ".join(name for name, holds in names if holds) or None
