"""The command starts without torch, helps by example, and answers a mistake in one line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from rich.console import Console
from rich.errors import LiveError
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.cli.display import bullet, err, progress, say
from sottovoce.plan.presets import PRESETS

from .conftest import Failing

runner = CliRunner()
START = """
import atexit, sys, time
def say():
    heavy = {"torch", "numpy", "numba"} & set(sys.modules)
    print(f"{time.process_time()} {sorted(heavy)}", file=sys.stderr)
atexit.register(say)
sys.argv = ["sottovoce", *sys.argv[1:]]
from sottovoce.cli import main
main()
"""


def start(*words: str, **variables: str) -> tuple[str, float, str]:
    """What a fresh process prints, its CPU seconds, and which heavy packages it has loaded."""
    command = [sys.executable, "-c", START, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **variables}
    )
    seconds, _, heavy = done.stderr.strip().splitlines()[-1].partition(" ")
    return done.stdout, float(seconds), heavy


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["train", "--help"], ["bench", "--help"]])
def test_help_and_version_start_at_once_and_without_torch(words: list[str]) -> None:
    # 0.18 to 0.22 s for --version and 0.26 to 0.32 s for --help, measured on a busy machine.
    _, seconds, heavy = start(*words)
    assert heavy == "[]"
    assert seconds < 1.5


def complete(*words: str) -> list[str]:
    """What bash is offered for the last of these words."""
    asked = {"COMP_WORDS": " ".join(("sottovoce", *words)), "COMP_CWORD": str(len(words))}
    answer, seconds, heavy = start(**asked, _SOTTOVOCE_COMPLETE="complete_bash")
    assert heavy == "[]"
    assert seconds < 1.5
    return answer.split()


def test_a_shell_completes_keys_of_a_plan_and_their_values() -> None:
    assert complete("train", "clients_") == ["clients_per_round="]
    assert complete("plan", "preset=") == [f"preset={name}" for name in PRESETS]
    assert complete("plan", "seeded", "=", "f") == ["false"]  # bash breaks words at =
    assert "cifar10" in complete("plan", "dataset", "=")
    assert complete("reproduce", "main") == ["main-table"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trian"], "no command 'trian': did you mean 'train'?"),
        (["ledger", "shwo"], "no command 'shwo': did you mean 'show'?"),
        (["site", "zzz"], "no command 'zzz': choose from agreement, key, nvflare"),
    ],
)
def test_a_misspelled_command_is_corrected_in_one_line(failing: Failing, words: list[str], hint: str) -> None:
    assert failing(*words) == f"error: {hint}"


def test_help_says_what_an_argument_is() -> None:
    assert "folder of results" in runner.invoke(app, ["report", "--help"]).stdout


def test_help_teaches_by_example() -> None:
    for command in (
        "quickstart",
        "plan",
        "train",
        "evaluate",
        "personalize",
        "report",
        "compare",
        "models",
        "predict",
    ):
        assert f"sottovoce {command}" in runner.invoke(app, [command, "--help"]).stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["plan", "epsilom=3"], "did you mean 'epsilon'"),
        (["plan", "dataset=mnits"], "did you mean 'mnist'"),
        (["plan", "coefficients=999999"], "at most 20490"),
        (["plan", "gradient_records=9999"], "at most 400"),
        (["plan", "a.toml", "b.toml"], "second plan file"),
        (["plan", "missing.toml"], "no plan at missing.toml"),
        (["plan", "dataset=mnist", "context_records=5000"], "set context_records to at most"),
        (["plan", "dataset=mnist", "records_per_client=100000"], "lower participants"),
        (["evaluate", "nowhere[/]"], "nowhere[/]"),
        (["evaluate", "nowhere", "--device", "cud"], "did you mean 'cuda'"),
        (["evaluate", "nowhere"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
        (["data", "fetch", "imagenet"], "no public dataset"),
    ],
)
def test_mistakes_get_one_line_that_says_what_to_do(failing: Failing, words: list[str], hint: str) -> None:
    assert hint in failing(*words)


def test_a_bar_is_shown_while_it_has_work_and_two_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before version 14.1 rich refuses a second one: `compare` has one of rounds and one of features."""
    shown: list[object] = []

    def set_live(console: Console, live: object) -> bool:
        if shown:
            raise LiveError("Only one live display may be active at once")
        shown.append(live)
        return True

    monkeypatch.setattr(Console, "set_live", set_live)
    monkeypatch.setattr(Console, "clear_live", lambda console: shown.clear())
    with progress("rehearsing") as rehearsing, progress("features") as describing:
        describing(60, 60)  # kept from another run
        assert not shown
        describing(32, 60)
        assert shown
        describing(60, 60)
        assert not shown
        rehearsing(1, 2, "alone")
        assert shown
    assert not shown


def test_nothing_that_is_said_is_markup_or_moves_a_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    say(("[red]a\x1b[2J", "bold"), " [/] b\x1b[2J")
    bullet("[bold]c\r", to=err)
    told = capsys.readouterr()
    assert told.out == "[red]a\\x1b[2J [/] b\\x1b[2J\n"
    assert told.err == "• [bold]c\\r\n"
