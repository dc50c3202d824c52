"""Confusion matrices: of all participants, of all future clients, and of one client on demand."""

from __future__ import annotations

from collections.abc import Iterable

from sottovoce.report.markup import Html, embedded_json, join, scrolling, tag

Matrix = list[list[int]]


def confusion(matrices: dict[str, Matrix], groups: Iterable[tuple[str, list[str]]]) -> Html:
    """A selector and one table of counts, rows the true class and columns the predicted one.

    `groups` are (name, clients) pairs; each group's sum comes before its clients in the selector.
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
    return join(label, select, scrolling("Confusion matrix", _table(choices[0])), data)


def _sum(matrices: list[Matrix]) -> Matrix:
    """
    >>> _sum([[[1, 2], [3, 4]], [[0, 1], [0, 1]]])
    [[1, 3], [3, 5]]
    """
    return [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def _table(matrix: Matrix) -> Html:
    head = tag("tr", tag("th", ""), *(tag("th", str(j), scope="col") for j in range(len(matrix))))
    body = [_row(i, counts) for i, counts in enumerate(matrix)]
    caption = tag("caption", "Rows: true class. Columns: predicted class. Shade: share of the row.")
    return tag("table", caption, tag("thead", head), tag("tbody", *body), class_="confusion")


def _row(truth: int, counts: list[int]) -> Html:
    total = max(sum(counts), 1)
    cells = [
        tag("td", str(n), class_=_classes(n, own=j == truth), style=f"--share:{n / total:.3f}")
        for j, n in enumerate(counts)
    ]
    return tag("tr", tag("th", str(truth), scope="row"), *cells)


def _classes(count: int, *, own: bool) -> str | None:
    names = [("own", own), ("zero", count == 0)]
    return " ".join(name for name, holds in names if holds) or None
