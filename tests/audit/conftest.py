"""Says at the end what audits of presets certified, whichever process they ran in."""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, told in report.user_properties if isinstance(report, pytest.TestReport) else ():
                terminalreporter.write_line(f"{name}: {told}")
