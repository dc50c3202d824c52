"""An error is one line that a user can act on."""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path

import pytest

from sottovoce.cli import main
from sottovoce.errors import nearest

SOURCES = sorted((Path(__file__).parents[1] / "src").rglob("*.py"))


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_a_near_word_is_offered_and_otherwise_all_of_them() -> None:
    assert nearest("polr", ["polar", "direct"]) == "did you mean 'polar'?"
    assert nearest("xyz", ["polar", "direct"]) == "choose from direct, polar"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_error_of_ours_is_written_over_several_lines(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                texts = [n.value for n in ast.walk(argument) if isinstance(n, ast.Constant)]
                assert not any(isinstance(text, str) and "\n" in text for text in texts), ast.unparse(node)


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if "cli" not in path.parts], ids=lambda path: path.stem
)
def test_sentences_below_the_command_line_do_not_speak_of_flags(path: Path) -> None:
    """Python has none: an error names the arguments that it is about, and the command line adds the flags."""
    flag = re.compile(r"(^|[\s(`'\"])--[a-z]")
    nodes = list(ast.walk(parsed(path)))
    said_to_readers = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    raised = {id(part) for node in nodes if isinstance(node, ast.Raise) for part in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said_to_readers:
            sentence = " " in node.value.strip() or id(node) in raised
            assert not (sentence and flag.search(node.value)), f"line {node.lineno}: {node.value}"


def test_the_command_line_adds_the_flags_of_the_arguments_that_an_error_is_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.toml").write_text("rounds = 1\n")
    monkeypatch.setattr(sys, "argv", ["sottovoce", "train", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "already holds a run: choose another folder, or resume it (--out, --resume)" in said.replace(
        "\n", ""
    )
