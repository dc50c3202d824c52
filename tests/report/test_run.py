"""The page of a run is complete, self-contained and small, whatever the run recorded."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.plan.catalog import PLACES
from sottovoce.report.run import write_report
from sottovoce.report.table import THIN

from .example import FUTURE, PARTICIPANTS, example_result, example_rounds, write_example
from .test_promise import PROTECTS_NOBODY, without_noise


class Outline(HTMLParser):
    """Elements, their attributes and all text; fails on elements that are not closed in order."""

    VOID = ("meta", "link")

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script") and data.strip():
            self.text += data + "\n"


def test_headline_and_plan_are_on_the_page(tmp_path: Path) -> None:
    page = Outline(write_report(write_example(tmp_path)))
    accuracy = example_result()["accuracy"]
    for text in (f"{accuracy['seen']:.1f}{THIN}%", f"{accuracy['future_masked']:.1f}{THIN}% if only classes"):
        assert text in page.text
    assert "learning_rate" in page.text
    assert "server step size" in page.text
    assert PROTECTS_NOBODY not in page.text


@pytest.mark.parametrize("place", PLACES)
def test_the_head_says_where_the_noise_is_added(tmp_path: Path, place: str) -> None:
    page = Outline(write_report(write_example(tmp_path, noise=place)))
    assert f"\n{PLACES[place].phrase}\n" in page.text


def test_a_constant_stands_beside_the_headline_and_probabilities_have_their_curve(tmp_path: Path) -> None:
    bins = [
        {"records": 9, "stated": 21.0, "observed": 33.0},
        {"records": 5, "stated": 84.0, "observed": 60.0},
    ]
    metrics = {"seen": {"log_loss": 0.412}, "constant": {"seen": {"accuracy": 64.3, "log_loss": 0.533}}}
    plain = Outline(write_report(write_example(tmp_path / "plain", metrics={}, reliability={}))).text
    assert "a constant" not in plain
    assert "Do probabilities mean something?" not in plain
    changes = {"metrics": metrics, "reliability": {"seen": bins}}
    text = Outline(write_report(write_example(tmp_path / "told", **changes))).text
    assert f"a constant: 64.3{THIN}%; log loss 0.412, a constant’s 0.533" in text
    assert "Do probabilities mean something?" in text
    with pytest.raises(SottovoceError, match="observed"):
        write_report(write_example(tmp_path / "bad", reliability={"seen": [{"stated": 1.0}]}))


def test_nothing_outside_the_file_is_referred_to(tmp_path: Path) -> None:
    page = Outline(write_report(write_example(tmp_path)))
    links = [a[key] or "" for _, a in page.elements for key in ("src", "href", "action", "data") if key in a]
    assert all(link.startswith("data:") for link in links)
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    policy = next(a["content"] for t, a in page.elements if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_a_report_of_500_rounds_and_50_clients_is_under_a_megabyte(tmp_path: Path) -> None:
    clients = {f"participant-{i}": 40.0 + i for i in range(50)}
    result = example_result()
    matrix = next(iter(result["confusion"].values()))
    changes = {
        "accuracy": result["accuracy"] | {"seen_per_client": clients, "seen_masked_per_client": clients},
        "confusion": dict.fromkeys(clients, matrix),
    }
    lines = [line | {"round": 100 * block + line["round"]} for block in range(5) for line in example_rounds()]
    write_example(tmp_path, **changes)
    (tmp_path / "rounds.jsonl").write_text("\n".join(map(json.dumps, lines)))
    page = write_report(tmp_path)
    assert page.stat().st_size < 1e6
    assert "Every round (500)" in Outline(page).text


@pytest.mark.parametrize(
    "changes",
    [
        without_noise(),
        {"seeded": True, "preset": None, "created": None},
        {
            "future_clients": 0,
            "accuracy": example_result()["accuracy"]
            | {
                "future": None,
                "future_masked": None,
                "future_per_client": {},
                "future_masked_per_client": {},
            },
        },
        {"confusion": {}, "uplink": example_result()["uplink"] | {"bytes": 0, "bits_per_coefficient": None}},
    ],
    ids=["without noise", "without preset and time", "without future clients", "without bytes and confusion"],
)
def test_a_run_with_less_to_show_still_has_a_page(tmp_path: Path, changes: dict[str, Any]) -> None:
    text = Outline(write_report(write_example(tmp_path, **changes))).text
    assert "What was promised" in text
    assert "nan" not in text
    assert "None" not in text


def test_norms_and_gains_that_were_not_recorded_are_said_to_be_missing(tmp_path: Path) -> None:
    write_example(tmp_path)
    blank = {"signal_norm": None, "noise_norm": None, "gain": None}
    lines = [json.dumps(line | blank) for line in example_rounds()]
    (tmp_path / "rounds.jsonl").write_text("\n".join(lines))
    text = Outline(write_report(tmp_path)).text
    assert text.count("Nothing was recorded.") == 1
    assert "Gain of the generator" not in text


def test_a_run_of_one_round_has_its_figures(tmp_path: Path) -> None:
    write_example(tmp_path)
    (tmp_path / "rounds.jsonl").write_text(json.dumps(example_rounds()[0]))
    page = Outline(write_report(tmp_path))
    assert sum("data-stops" in attributes for _, attributes in page.elements) == 7
    lines = sum(tag == "polyline" for tag, _ in page.elements)
    dots = sum(tag == "circle" for tag, _ in page.elements)
    assert dots == lines + PARTICIPANTS + FUTURE  # a lone point of a line is a dot, or nobody would see it


def test_every_site_has_its_size_noise_and_epsilon_and_every_metric_its_line(tmp_path: Path) -> None:
    write_example(
        tmp_path,
        metrics={"seen": {"accuracy": 83.0, "auroc": 0.912}, "future": {"accuracy": 87.0, "auroc": None}},
        clients=[{"name": "participant-0", "role": "participant", "size": 1234, "sigma": 0.0321}],
        metric="r2",
        confusion={},
    )
    page = write_report(tmp_path).read_text(encoding="utf-8")
    for text in (f"1{THIN}234", "0.0321", "AUROC", "0.912", "Participants’ R²"):
        assert text in page
    assert 'id="confusion-client"' not in page
