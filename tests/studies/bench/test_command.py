"""What was measured is a table for people and JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from sottovoce.cli.application import app

WORDS = ["bench", "channel", "--channel", "direct", "--norm", "0.3", "--size", "64", "--messages", "1"]


def test_channels_are_measured_printed_and_drawn(tmp_path: Path) -> None:
    plot = tmp_path / "rate.svg"
    answer = CliRunner().invoke(app, [*WORDS, "--plot", str(plot)])
    assert answer.exit_code == 0, answer.output
    assert "direct" in answer.stdout
    assert "limit" in plot.read_text()
    [row] = json.loads(CliRunner().invoke(app, [*WORDS, "--json"]).stdout)
    assert row["size"] == 64
