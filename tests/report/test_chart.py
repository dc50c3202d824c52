"""A chart is the same on a page and in a file: well-formed, true to its data, legible in light and dark."""

from __future__ import annotations

from xml.etree import ElementTree

from sottovoce.report import macros
from sottovoce.report.chart import Chart, line_of, linear, svg, trend

SPACE = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SPACE}text")]


def example() -> Chart:
    lines = [line_of("a", "blue", [(1, 2.0), (3, None), (2, 4.0)]), line_of("b", "orange", [(1, 1.0)])]
    return trend("Title", "Note.", lines, x_name="round", y=linear([0, 4]), show=str)


def test_a_file_has_the_marks_of_the_page() -> None:
    page, file = macros("report/parts.html").chart(example()), svg("File", "note", [example(), example()])
    for mark in example().marks:
        assert mark in page
        assert file.count(str(mark).replace("><", ">\n<")) == 2
    assert {"File", "note", "Title", "a", "b", "round"} <= set(texts(file))


def test_a_file_brings_its_colors_for_light_and_dark_pages() -> None:
    assert "prefers-color-scheme: dark" in svg("File", "note", [example()])


def test_a_legend_that_is_too_long_continues_below() -> None:
    lines = [line_of(f"a rather long name {i}", "blue", [(1, 2.0)]) for i in range(6)]
    chart = trend("", "", lines, x_name="", y=linear([0, 2]), show=str)
    names = [
        t
        for t in ElementTree.fromstring(svg("", "", [chart])).iter(f"{SPACE}text")
        if t.text in [line.name for line in lines]
    ]
    assert len({name.get("y") for name in names}) == 2
    assert all(float(name.get("x", "")) < 600 for name in names)
