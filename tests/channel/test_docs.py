"""The example in docs/channel.md runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "channel.md"


def test_the_example_of_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    exec(example, {})
    sent, noise = capsys.readouterr().out.splitlines()
    assert int(sent.split()[0]) < 100
    # Five standard deviations of an estimate from 16,384 values.
    assert abs(float(noise) / 0.0147 - 1.0) < 0.03
