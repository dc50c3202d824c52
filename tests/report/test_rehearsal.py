"""The page of a rehearsal is made of its file, and says who gains and who loses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from studies.tables import markdown_table

from sottovoce.errors import SottovoceError
from sottovoce.report.rehearsal import (
    charts,
    clients_table,
    future_table,
    read_comparison,
    render,
    rows_table,
    summary,
    write_comparison,
)


def found(clients: int = 3) -> dict[str, Any]:
    names = [f"site-{i}" for i in range(clients)]
    sites = [{"name": name, "role": "participant", "size": 100 + i} for i, name in enumerate(names)]
    values = {
        "constant": 40.0,
        "home_alone": 60.0,
        "alone": 50.0,
        "shared": 55.0,
        "blend": 58.0,
        "finished": 61.5,
    }
    rows: dict[str, Any] = {
        row: {
            "participants": value,
            "log_loss": 1.0 - value / 100,
            "per_client": {name: value + i % 20 for i, name in enumerate(names)},
            "log_loss_per_client": dict.fromkeys(names, 1.0 - value / 100),
            "future": 50.0,
            "future_per_client": {"west": 50.0},
            "epsilon": 4.0,
        }
        for row, value in values.items()
    }
    rows["finished"]["per_client"]["site-0"] = 50.0
    gains = {name: {"points": 1.5, "low": 0.5, "high": 2.5, "log_loss": -0.01} for name in names}
    gains["site-0"] = {"points": -10.0, "low": -14.0, "high": -6.0, "log_loss": 0.2}
    gain = {
        "per_client": gains, "mean": 1.0, "median": 1.5, "worst_decile": -7.7,
        "sites_gaining": clients - 1, "sites_losing": 1, "sites_undecided": 0,
    }  # fmt: skip
    curve = [
        {"records": 10, "stated": 20.0, "observed": 30.0},
        {"records": 9, "stated": 80.0, "observed": 70.0},
    ]
    return {
        "sottovoce": "0.2", "dataset": "data/hospitals", "metric": "accuracy", "rounds": 40, "epsilon": 4.0,
        "delta": 1e-5, "clients": [*sites, {"name": "west", "role": "future", "size": 50}], "rehearsal": True,
        "warning": "A choice made by looking at it is not covered by ε.", "rows": rows, "repeats": 5,
        "gain": gain, "reliability": {"published": curve, "finished": curve},
    }  # fmt: skip


def test_the_summary_says_how_many_gain_and_lose() -> None:
    said = summary(found())
    assert "by joining gain more than their interval: 2, that lose more: 1, that cannot tell: 0" in said
    assert "surely" not in said
    assert "median +1.5 points, worst tenth -7.7 or less" in said
    gain = {"median_interval": [-0.01, 3.0], "worst_decile_interval": [-9.0, -6.4]}
    said = summary({**found(), "gain": {**found()["gain"], **gain}})
    assert said.endswith("median +1.5 points (+0.0 to +3.0), worst tenth -7.7 or less (-9.0 to -6.4)")


def test_the_summary_of_many_sites_says_how_many_would_gain_by_chance() -> None:
    """Each interval is one of 95 %: of 139 sites that gain nothing, three seem to."""
    assert "lose more: 1 (by chance alone: about 3 each way), that cannot tell" in summary(found(139))
    single = found(139)
    single["gain"]["per_client"] = {
        name: {**site, "low": None, "high": None} for name, site in single["gain"]["per_client"].items()
    }
    assert "by chance" not in summary(single)


def test_a_constant_stands_beside_what_future_clients_get() -> None:
    told = found()
    told["rows"]["constant"]["future_per_client"] = {"west": 41.5}
    table = future_table(told)
    assert table is not None
    assert "41.5" in markdown_table(table)
    assert "the participants’ constant" in markdown_table(table)
    del told["rows"]["constant"]["future_per_client"]  # of an earlier version
    assert future_table(told) is not None


def test_the_table_has_every_site_the_largest_first_with_its_interval() -> None:
    assert "units (patient)" in markdown_table(clients_table({**found(), "unit": "patient"}))
    text = markdown_table(clients_table(found()))
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert [line.split("|")[1].strip() for line in lines] == ["site-2", "site-1", "site-0"]
    assert "-10.0" in lines[2]
    assert "-14.0 to -6.0" in lines[2]
    assert "alone at home" in text
    assert "finished at home" in markdown_table(rows_table(found()))


@pytest.mark.parametrize("clients", [3, 139])
def test_page_and_picture_are_written(tmp_path: Path, clients: int) -> None:
    (tmp_path / "compare.json").write_text(json.dumps(found(clients)))
    page = write_comparison(tmp_path).read_text()
    assert "not covered by ε" in page
    assert "site-2" in page
    assert "<script src" not in page
    assert f'<p class="lead">S{summary(found(clients))[1:]}.</p>' in page
    order = [page.index(f"<h3>{title}") for title in ("What joining gives", "Gains over size")]
    assert (order == sorted(order)) is (clients == 3)  # a tall picture stands by itself, at the end
    assert (tmp_path / "compare.svg").read_text().startswith("<svg")


def test_a_rehearsal_of_numbers_says_what_its_metric_is_and_nothing_of_probabilities(tmp_path: Path) -> None:
    numbers = {**found(), "metric": "r2", "reliability": {"published": [], "finished": []}}
    (tmp_path / "compare.json").write_text(json.dumps(numbers))
    page = write_comparison(tmp_path).read_text()
    assert "Do probabilities mean something?" not in page
    assert "Do probabilities mean something?" in render(found(), charts(found()))
    assert "R² against its own mean; loss" in page
    assert "R² against its own mean" in markdown_table(rows_table(numbers))


def test_intervals_are_drawn_to_their_ends_on_the_axis_of_each_site() -> None:
    moves, *_ = charts(found())
    assert moves.x is not None
    assert moves.x.low <= 60 - 14.0
    assert moves.x.high <= 100


def cut(clients: int = 3) -> dict[str, Any]:
    """A rehearsal with an interval that no axis shows whole."""
    wide = found(clients)
    wide["gain"]["per_client"]["site-1"] |= {"low": -300.0, "high": 300.0}
    return wide


@pytest.mark.parametrize("clients", [4, 139])
def test_an_interval_that_goes_on_beyond_the_axis_ends_in_an_arrow(clients: int) -> None:
    for whole, wide in zip(charts(found(clients))[:2], charts(cut(clients))[:2], strict=True):
        cut_before = sum("arrow" in mark for mark in whole.marks)
        assert cut_before == 0 or clients == 139  # of many sites the one that loses ten points is cut
        assert sum("arrow" in mark for mark in wide.marks) == cut_before + 2
        assert ("arrow" in whole.note) is bool(cut_before)
        assert wide.note.endswith("An arrow: it goes on beyond the axis.")


def test_of_many_sites_a_lucky_and_an_unlucky_one_do_not_choose_the_axis() -> None:
    """With 139 sites it ran from 0 to 100 %, and a difference of two points could not be seen."""
    told = found(139)
    for name, alone, finished in (("site-1", 0.0, 100.0), ("site-2", 100.0, 2.0)):
        told["rows"]["home_alone"]["per_client"][name] = alone
        told["rows"]["finished"]["per_client"][name] = finished
        gain = finished - alone
        told["gain"]["per_client"][name] |= {"points": gain, "low": gain - 90, "high": gain + 90}
    moves, *_ = charts(told)
    assert moves.x is not None
    assert (moves.x.low, moves.x.high) == (60.0, 85.0)
    places = [float(place) for mark in moves.marks for place in re.findall(r'[xX12]="(-?[\d.]+)%"', mark)]
    assert min(places) >= 0
    assert max(places) <= 100
    assert "goes on beyond the axis" in moves.note


def test_the_end_at_home_alone_is_hollow_and_the_finished_one_is_not() -> None:
    moves, *_ = charts(found())
    assert sum('class="dot gray hollow"' in mark for mark in moves.marks) == 3
    assert sum('class="dot blue"' in mark for mark in moves.marks) == 3
    assert ".dot.hollow { fill: var(--card)" in render(found(), charts(found()))


@pytest.mark.parametrize("text", ["", "{}", '{"rows": {"alone": {}}}', "[]"])
def test_a_damaged_file_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(SottovoceError, match="does not exist"):
        read_comparison(tmp_path / "compare.json")
    (tmp_path / "compare.json").write_text(text)
    with pytest.raises(SottovoceError, match="damaged"):
        read_comparison(tmp_path / "compare.json")
