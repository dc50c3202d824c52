"""An error is one line that a user can act on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from sottovoce.errors import nearest

SOURCES = sorted((Path(__file__).parents[1] / "src").rglob("*.py"))


def test_a_near_word_is_offered_and_otherwise_all_of_them() -> None:
    assert nearest("polr", ["polar", "direct"]) == "did you mean 'polar'?"
    assert nearest("xyz", ["polar", "direct"]) == "choose from direct, polar"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_error_of_ours_is_written_over_several_lines(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                texts = [n.value for n in ast.walk(argument) if isinstance(n, ast.Constant)]
                assert not any(isinstance(text, str) and "\n" in text for text in texts), ast.unparse(node)
