"""Fresh noise that is the same every time; and what audits of presets certified, said at the end, whichever
process they ran in."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from _pytest.terminal import TerminalReporter

from sottovoce.audit import game, guessing
from sottovoce.channel.wire import SystemRandomness


@pytest.fixture
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn from the operating system is the same every time: no test of guesses fails by chance."""
    source = np.random.default_rng(5)
    monkeypatch.setattr(SystemRandomness, "bytes", lambda self, count: source.bytes(count))
    for module in (game, guessing):
        drawn = SimpleNamespace(
            token_bytes=source.bytes, randbits=lambda bits: int.from_bytes(source.bytes(bits // 8))
        )
        monkeypatch.setattr(module, "secrets", drawn)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, told in report.user_properties if isinstance(report, pytest.TestReport) else ():
                terminalreporter.write_line(f"{name}: {told}")
