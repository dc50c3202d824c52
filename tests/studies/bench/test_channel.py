"""The benchmark reports what is on the wire, and the issue's rates hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.channel import TARGETS
from studies.bench.channel import measure, plot

from sottovoce.channel import ChannelError

POLAR, LRSUQ = TARGETS["polar"], TARGETS["lrsuq"]


@pytest.mark.parametrize(("sigma", "norm"), POLAR)
def test_rates_stay_within_their_figures_and_above_the_limit(sigma: float, norm: float) -> None:
    polar, lrsuq = measure(["polar", "lrsuq"], sigma, [norm], 16384, 12)
    assert polar["limit"] < polar["bits_per_coefficient"] <= POLAR[sigma, norm]
    assert lrsuq["bits_per_coefficient"] <= LRSUQ.get((sigma, norm), 1.0)
    assert polar["bits_per_coefficient"] == 8 * polar["bytes"] / 16384
    assert polar["ratio"] == polar["bits_per_coefficient"] / polar["limit"]


def test_direct_channels_cost_what_the_paper_says() -> None:
    direct, coarse = measure(["direct", "direct-q12"], 0.0147, [0.3], 16384, 1)
    assert direct["bytes"] <= 65_552
    assert coarse["bits_per_coefficient"] < 12.1


def test_conditional_coding_saves_most_of_the_plain_code() -> None:
    plain, conditional = measure(["lrsuq-elias", "lrsuq"], 0.0147, [0.3], 16384, 3)
    assert plain["bytes"] > 7 * conditional["bytes"]


def test_a_lattice_can_be_named() -> None:
    (row,) = measure(["lrsuq/D4"], 0.0147, [0.3], 256, 1)
    assert row["channel"] == "lrsuq/D4"


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(ChannelError, match="at least one"):
        measure(["direct"], 0.1, [0.1], 16, 0)


def test_the_plot_names_every_channel_and_the_limit(tmp_path: Path) -> None:
    rows = measure(["direct", "lrsuq"], 0.0147, [0.3, 1.0], 256, 1)
    plot(rows, tmp_path / "rate.svg")
    text = (tmp_path / "rate.svg").read_text()
    assert all(name in text for name in ("direct", "lrsuq", "limit"))


@pytest.mark.slow
def test_no_message_takes_five_times_the_median() -> None:
    for row in measure(["polar", "lrsuq"], 0.0147, [0.3], 16384, 5000):
        assert row["slowest_ratio"] < 5.0
