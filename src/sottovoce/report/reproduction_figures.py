"""The figures of a reproduction: the paper's Figure 2, and curves over budgets and heterogeneity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from sottovoce.experiments.summary import GAIN_EVERY
from sottovoce.report.cells import SYMBOLS, Cell
from sottovoce.report.figures import Group, Series, bars, trend
from sottovoce.report.markup import Html
from sottovoce.report.numbers import number
from sottovoce.report.scale import Scale, linear

_TONES = ("plain", "seen", "noise", "future", "signal")


def figures(cells: Sequence[Cell]) -> list[Html]:
    """The figures of one experiment on one dataset; none where there is nothing to draw."""
    if cells[0].experiment == "geometry":
        return _geometry(cells)
    if len({cell.at for cell in cells}) < 2:
        return []
    if cells[0].experiment == "dimension":
        return [_accuracy("Accuracy", "", cells, _roles(cells)), _perturbation(cells)]
    return _methods(cells)


def _methods(cells: Sequence[Cell]) -> list[Html]:
    """The paper's methods, published and ours, and where the tuned preset stands."""
    paper = _rows(cell for cell in cells if cell.beside is None)
    tuned = _rows(cell for cell in cells if cell.beside is not None and cell.settings["preset"] == "tuned")
    names = dict(zip(paper, _TONES, strict=False))
    theirs = [_published(label, names[label], paper[label]) for label in names]
    ours = [_ours(label, names[label], paper[label]) for label in names]
    found = [
        _accuracy("As published", "Future clients, the paper’s methods.", cells, theirs),
        _accuracy("Ours", "Future clients, the same methods and settings.", cells, ours),
    ]
    if tuned:
        base = next(iter(tuned.values()))[0].beside or ""
        lines = [_ours(label, tone, tuned[label]) for label, tone in zip(tuned, _TONES[3:], strict=False)]
        published = _published(f"{base}, published", "dashed", paper.get(base, []))
        note = "Future clients, the tuned preset at the same ε and δ."
        found.append(_accuracy("Past the paper", note, cells, [published, *lines]))
    return found


def _roles(cells: Sequence[Cell]) -> list[Series]:
    return [
        _series("Participants", "seen", ((cell.at, cell.ours["seen"][0]) for cell in cells)),
        _series("Future clients", "future", ((cell.at, cell.ours["future"][0]) for cell in cells)),
    ]


def _perturbation(cells: Sequence[Cell]) -> Html:
    lines = [
        _series("Ours", "noise", ((cell.at, cell.ours["noise"][0]) for cell in cells)),
        _series("Published", "dashed", ((cell.at, cell.published["noise"]) for cell in cells)),
    ]
    return _drawn("Norm of the perturbation", "Mean over releases.", cells, lines, zero=True)


def _geometry(cells: Sequence[Cell]) -> list[Html]:
    labels = list(dict.fromkeys(cell.label for cell in cells))
    groups = [
        Group(name, tone, {c.label: c.ours["future"][0] or 0.0 for c in cells if c.at is noise})
        for name, tone, noise in (("with noise", "future", True), ("without noise", "seen", False))
    ]
    note = "Accuracy of future clients by control."
    found = [bars("Geometry controls", note, labels, groups, x=linear([0.0, 100.0]), show=_percent)]
    noisy = [cell for cell in cells if cell.at is True and len(set(cell.effective_gain)) > 1]
    lines = [
        Series(cell.label, tone, [1, *range(GAIN_EVERY, GAIN_EVERY * len(gain), GAIN_EVERY)], gain)
        for cell, tone in zip((c for c in noisy if c.label != "Direct"), _TONES, strict=False)
        for gain in [cell.effective_gain]
    ]
    if lines:
        scale = linear(chain.from_iterable(line.y for line in lines), zero=True)
        note = "How far a step moves the coefficients along the releases, with noise, mean over seeds."
        found.append(trend("Effective gain", note, lines, x_name="round", y=scale, show=number))
    return found


def _rows(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.label, []).append(cell)
    return rows


def _ours(label: str, tone: str, cells: Sequence[Cell]) -> Series:
    return _series(label, tone, ((cell.at, cell.ours["future"][0]) for cell in cells))


def _published(label: str, tone: str, cells: Sequence[Cell]) -> Series:
    return _series(label, tone, ((cell.at, cell.published["future"]) for cell in cells))


def _series(name: str, tone: str, points: Iterable[tuple[float, float | None]]) -> Series:
    known = sorted((x, y) for x, y in points if y is not None)
    return Series(name, tone, [x for x, _ in known], [y for _, y in known], dots=True)


def _accuracy(title: str, note: str, cells: Sequence[Cell], lines: Sequence[Series]) -> Html:
    return _drawn(title, note, cells, lines, bounds=(0, 100), zero=True)


def _drawn(
    title: str,
    note: str,
    cells: Sequence[Cell],
    lines: Sequence[Series],
    *,
    bounds: tuple[float, float] = (0.0, float("inf")),
    zero: bool,
) -> Html:
    """Lines over the columns of the table, which are spread logarithmically."""
    columns = sorted({float(cell.at) for cell in cells})
    values = [value for line in lines for value in line.y]
    y = linear(values, bounds=bounds, zero=zero) if values else None
    x = Scale(columns[0], columns[-1], tuple(columns), log=True)
    show = _percent if bounds[1] == 100 else number
    return trend(title, note, lines, x_name=SYMBOLS[cells[0].across], y=y, show=show, x=x)


def _percent(value: float) -> str:
    return f"{value:.4g} %"
