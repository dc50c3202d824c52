"""The privacy core stands on its own."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import sottovoce.privacy


def test_it_imports_nothing_but_the_standard_library_numpy_and_our_errors_and_files() -> None:
    ours = {f"sottovoce.{name}" for name in ("errors", "machine", "privacy")}
    allowed = {*sys.stdlib_module_names, "numpy", *ours}
    for file in Path(sottovoce.privacy.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                parts = name.split(".")
                assert {parts[0], ".".join(parts[:2])} & allowed, f"{file.name} imports {name}"
