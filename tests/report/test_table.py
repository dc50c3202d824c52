"""One table says the same in the terminal and on a page, and markup in it stays text."""

from __future__ import annotations

from rich.console import Console

from sottovoce.report import macros
from sottovoce.report.table import Table, TableEntry, percent

ENTRY = TableEntry("83.6 ± 7.1", "87.6, −4.0", small="tuned", better=False, share=0.4, value=83.61)
TABLE = Table(["method", "ε = 16"], [["[b]|<i>", ENTRY], ["other", percent(50.0)]], title="Accuracy")


def printed(table: Table) -> str:
    console = Console(width=80)
    with console.capture() as shown:
        console.print(table.terminal())
    return shown.get()


def test_a_page_colors_the_difference_and_keeps_the_unrounded_value() -> None:
    page = macros("report/parts.html").table(TABLE)
    assert '<td class="worse" style="--share:0.400"><data value="83.61">83.6 ± 7.1</data>' in page
    assert "<small>87.6, −4.0</small><small>tuned</small>" in page
    assert "[b]|&lt;i&gt;" in page


def test_a_terminal_shows_the_same_with_ordinary_spaces() -> None:
    shown = printed(TABLE)
    assert "Accuracy" in shown
    assert "[b]|<i>" in shown
    assert "83.6 ± 7.1" in shown
    assert "(87.6, −4.0)" in shown
    assert "50.0 %" in shown


def test_facts_have_no_heads_and_no_frame() -> None:
    shown = printed(Table([], [["noise", "σ = 0.1"]], "A plan"))
    assert shown.split() == ["A", "plan", "noise", "σ", "=", "0.1"]


def test_a_path_in_a_list_of_facts_is_never_cut() -> None:
    path = "/a" * 60
    shown = printed(Table([], [["ledger", path]], title="facts"))
    assert path in "".join(shown.split())
