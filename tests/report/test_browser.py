"""The report in a real Chromium: it renders everywhere, and what it shows is what result.json says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from studies.reproduction import write_reproduction

from sottovoce.report.run import write_report
from tests.studies.test_reproduction import example_index

from .example import example_rounds, write_example
from .webdriver import CHROMIUM, DRIVER, Browser

TAB, RIGHT, LEFT, DOWN, END = "\ue004", "\ue014", "\ue012", "\ue015", "\ue010"
PHONE, DESK = (390, 844), (1280, 900)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("not run: needs chromium and chromedriver (Debian: chromium and chromium-driver)")
    with Browser(CHROMIUM, DRIVER, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_example(tmp_path_factory.mktemp("run"), seeded=True))


@pytest.fixture(scope="module")
def result(page: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((page.parent / "result.json").read_text())
    return result


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_page_renders_without_errors_overflow_or_outside_resources(
    browser: Browser, page: Path, size: tuple[int, int], dark: bool
) -> None:
    browser.open(page, width=size[0], height=size[1], dark=dark)
    browser.script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.console() == []
    assert browser.script("return performance.getEntriesByType('resource').map(e => e.name)") == []
    assert browser.script("return document.documentElement.scrollWidth") <= size[0]
    assert browser.script(_OUTSIDE) == []
    assert browser.script(_LOW_CONTRAST) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_a_reproduction_renders_without_errors_or_overflow(
    browser: Browser, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    page = write_reproduction(example_index(), tmp_path / "reproduction.html")
    browser.open(page, width=size[0], height=size[1], dark=dark)
    browser.script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.console() == []
    assert browser.script("return document.documentElement.scrollWidth") <= size[0]
    assert browser.script(_LOW_CONTRAST) == []


def test_a_run_of_one_round_stays_inside_the_window(browser: Browser, tmp_path: Path) -> None:
    directory = write_example(tmp_path / "run")
    (directory / "rounds.jsonl").write_text(json.dumps(example_rounds()[0]))
    browser.open(write_report(directory), width=PHONE[0], height=PHONE[1], dark=False)
    assert browser.console() == []
    assert browser.script(_OUTSIDE) == []


def test_headline_figures_equal_those_of_the_result(
    browser: Browser, page: Path, result: dict[str, Any]
) -> None:
    browser.open(page, width=DESK[0], height=DESK[1], dark=False)
    cards = browser.script(
        "return Object.fromEntries([...document.querySelectorAll('.card')].map(c =>"
        " [c.id, [c.querySelector('data').value, c.querySelector('data').innerText]]))"
    )
    expected = {
        "seen": (result["accuracy"]["seen"], 1),
        "future": (result["accuracy"]["future"], 1),
        "epsilon": (result["epsilon"]["spent_max"], 1),
        "uplink": (result["uplink"]["bytes"], 1000),
    }
    assert cards.keys() == expected.keys()
    for name, (value, unit) in expected.items():
        exact, shown = cards[name]
        assert float(exact) == value
        digits = "".join(c for c in shown if c.isdigit() or c == ".")
        assert float(digits) * unit == pytest.approx(value, abs=0.051 * unit)


def test_dots_of_clients_lie_where_the_axis_says_their_accuracy_is(
    browser: Browser, page: Path, result: dict[str, Any]
) -> None:
    for width, height in (PHONE, DESK):
        browser.open(page, width=width, height=height, dark=False)
        drawn = browser.script(_ACROSS, "Client by client", "circle")
        per_client = result["accuracy"]["seen_per_client"] | result["accuracy"]["future_per_client"]
        assert {name.split(":")[0]: value for name, value in drawn} == pytest.approx(per_client, abs=0.1)


def test_columns_of_clients_are_as_tall_as_the_axis_says_their_epsilon_is(
    browser: Browser, page: Path, result: dict[str, Any]
) -> None:
    browser.open(page, width=DESK[0], height=DESK[1], dark=False)
    drawn = browser.script(_UPWARD, "ε client by client", "rect.bar")
    epsilon = result["epsilon"]
    expected = epsilon["per_client"] | {"each future client": epsilon["future_context"]}
    assert {name.split(":")[0]: value for name, value in drawn} == pytest.approx(expected, abs=0.05)
    ((_, target),) = browser.script(_UPWARD, "ε client by client", "line.target")
    assert target == pytest.approx(epsilon["target"], abs=0.05)


def test_points_over_rounds_are_the_accuracies_that_were_evaluated(browser: Browser, page: Path) -> None:
    browser.open(page, width=PHONE[0], height=PHONE[1], dark=True)
    drawn = [value for _, value in browser.script(_UPWARD, "Over rounds", "circle")]
    lines = [line for line in example_rounds() if line["seen"] is not None]
    assert drawn == pytest.approx([r["seen"] for r in lines] + [r["future"] for r in lines], abs=0.3)


def test_arrow_keys_read_out_a_figure(browser: Browser, page: Path) -> None:
    browser.open(page, width=PHONE[0], height=PHONE[1], dark=False)
    browser.script("document.querySelector('.plot').focus()")
    browser.press(END, LEFT)
    last_but_one = [line for line in example_rounds() if line["seen"] is not None][-2]
    words = browser.script("return document.querySelector('output').innerText")
    assert words.startswith(f"round {last_but_one['round']}: Participants {last_but_one['seen']:.1f}")
    assert browser.script("return document.activeElement.getAttribute('aria-valuetext')") == words.strip()
    assert browser.script("return document.documentElement.scrollWidth") <= PHONE[0]


def test_every_control_can_be_reached_by_tab_with_a_visible_focus(browser: Browser, page: Path) -> None:
    browser.open(page, width=DESK[0], height=DESK[1], dark=False)
    controls = browser.script("return document.querySelectorAll('.plot, select, summary').length")
    reached = set()
    for _ in range(controls + 5):
        browser.press(TAB)
        reached.add(browser.script(_FOCUSED))
    assert len(reached - {None}) >= controls
    assert "none" not in {style for _, style in (r.split("|") for r in reached if r)}


def test_the_selector_shows_the_confusion_of_one_client(
    browser: Browser, page: Path, result: dict[str, Any]
) -> None:
    browser.open(page, width=PHONE[0], height=PHONE[1], dark=False)
    assert browser.script(_CELLS) == _sum(result, "future_per_client")
    browser.script("document.querySelector('select').focus()")
    browser.press(DOWN, DOWN)
    assert browser.script("return document.querySelector('select').selectedOptions[0].text") == "future-1"
    assert browser.script(_CELLS) == result["confusion"]["future-1"]
    browser.script(
        "const s = document.querySelector('select');"
        "s.value = 'all participants'; s.dispatchEvent(new Event('change'))"
    )
    assert browser.script(_CELLS) == _sum(result, "seen_per_client")


def test_markup_in_names_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)></script><b>"
    directory = write_example(tmp_path / "run", dataset=evil, created=evil)
    changed = json.loads((directory / "result.json").read_text())
    changed["confusion"] = {evil: changed["confusion"]["future-0"]}
    changed["accuracy"]["future_per_client"] = {evil: 50.0}
    (directory / "result.json").write_text(json.dumps(changed))
    (directory / "plan.toml").write_text(f"'{evil}' = '{evil}'\n")
    browser.open(write_report(directory), width=PHONE[0], height=PHONE[1], dark=False)
    assert browser.console() == []
    assert browser.script("return document.querySelectorAll('img, b').length") == 0
    assert evil in browser.script("return document.querySelector('h1').innerText")
    assert browser.script("return document.documentElement.scrollWidth") <= PHONE[0]


def _sum(result: dict[str, Any], group: str) -> list[list[int]]:
    matrices = [result["confusion"][name] for name in result["accuracy"][group]]
    return [[sum(m[i][j] for m in matrices) for j in range(10)] for i in range(10)]


_CELLS = """return [...document.querySelectorAll('.confusion tbody tr')].map(
  row => [...row.querySelectorAll('td')].map(cell => Number(cell.innerText)))"""

_FOCUSED = """const e = document.activeElement;
if (e === document.body) return null;
const all = [...document.querySelectorAll('*')];
return all.indexOf(e) + '|' + getComputedStyle(e).outlineStyle"""

# Elements with text or marks that stick out of the window, apart from boxes that scroll by themselves.
_OUTSIDE = """return [...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && !e.closest('.scroll') && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map(e => e.outerHTML.slice(0, 120))"""

# Values read back from the picture: positions of marks against those of the axis' labels.
_READ_BACK = """
const figure = [...document.querySelectorAll('figure')].find(
  f => f.querySelector('h3').innerText === arguments[0]);
const number = text => Number(text.replace(/[^0-9.]/g, ''));
const ticks = [...figure.querySelectorAll(axis + ' span')].map(
  t => [number(t.innerText), middle(t.getBoundingClientRect())]);
const [[v0, p0], [v1, p1]] = [ticks[0], ticks[ticks.length - 1]];
return [...figure.querySelectorAll(arguments[1])].map(mark => {
  const title = mark.querySelector('title');
  return [title ? title.textContent : '',
          v0 + (place(mark.getBoundingClientRect()) - p0) * (v1 - v0) / (p1 - p0)];
});"""
_ACROSS = "const axis = '.x-ticks', middle = b => (b.left + b.right) / 2, place = middle;" + _READ_BACK
_UPWARD = (
    "const axis = '.y-ticks', middle = b => (b.top + b.bottom) / 2,"
    " place = b => arguments[1] === 'rect.bar' ? b.top : middle(b);" + _READ_BACK
)

# Text whose contrast to what lies behind it is under 4.5 : 1 (WCAG AA), at every shade of the confusion.
_LOW_CONTRAST = """
document.querySelectorAll('.confusion td:not(.zero)').forEach(
  (cell, i) => cell.style.setProperty('--share', (i % 11) / 10));
const parse = c => c.match(/[0-9.]+/g).map(Number);
const light = c => c.slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = e => {
  if (!e) return [255, 255, 255];
  const [r, g, b, a = 1] = parse(getComputedStyle(e).backgroundColor);
  if (a === 1) return [r, g, b];
  const back = behind(e.parentElement);
  return [r, g, b].map((v, i) => a * v + (1 - a) * back[i]);
};
return [...document.querySelectorAll('body *')].filter(e => {
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.getClientRects().length || ['SCRIPT', 'title'].includes(e.tagName)) return false;
  if (e.closest('svg') || getComputedStyle(e).visibility === 'hidden') return false;
  const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05) < 4.5;
}).map(e => e.outerHTML.slice(0, 160))"""
