"""JSON objects of a run's files with typed access: whatever is missing or damaged is one line that names
the file and the field, and says what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from sottovoce.errors import SottovoceError

PerClient: TypeAlias = dict[str, float | None]
T = TypeVar("T")


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not any((path.parent / name).exists() for name in ("plan.toml", "result.json")):
            raise SottovoceError(
                f"{path.parent} holds no run: give the folder that a training wrote"
            ) from None
        raise SottovoceError(
            f"{path} does not exist: give the directory of a finished run, or resume the training in "
            f"{path.parent}",
            "resume",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, f"cannot be read ({error})") from None


def read_object(path: Path, text: str, line: int | None = None) -> dict[str, Any]:
    place = "" if line is None else f" in line {line}"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise damaged(path, f"is not JSON{place} ({error})") from None
    if not isinstance(value, dict):
        raise damaged(path, f"has no JSON object{place}")
    return value


def damaged(path: Path, problem: str) -> SottovoceError:
    text = " ".join(problem.split())
    return SottovoceError(f"{path} {text}: restore the file, or repeat the command that wrote it")


class Fields:
    """Typed access to one JSON object; an error names the file and the field."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path, self._values, self._prefix = path, values, prefix

    def _wrong(self, key: str, wanted: str) -> SottovoceError:
        return damaged(self.path, f"({self._prefix}{key}) is not {wanted}")

    def number(self, key: str) -> float:
        value = self.maybe_number(key)
        if value is None:
            raise self._wrong(key, "a number")
        return value

    def maybe_number(self, key: str) -> float | None:
        value = self._values.get(key)
        return None if value is None else self._real(key, value)

    def _real(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number")
        return value

    def whole(self, key: str) -> int:
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number")
        return value

    def flag(self, key: str) -> bool:
        value = self._values.get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str) -> str:
        value = self.maybe_text(key)
        if value is None:
            raise self._wrong(key, "a text")
        return value

    def maybe_text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def names(self, key: str) -> list[Any]:
        value = self._values.get(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list")
        return value

    def maybe_names(self, key: str) -> list[str]:
        """Texts that older results lack."""
        return [str(name) for name in self.names(key)] if key in self._values else []

    def read(self, kind: type[T]) -> T:
        """A dataclass whose fields have the names and types of this object's."""
        readers: dict[Any, Callable[[str], Any]] = {
            "float": self.number,
            "float | None": self.maybe_number,
            "int": self.whole,
            "str": self.text,
            "list[str]": self.names,
            "PerClient": self.per_client,
        }
        return kind(**{key: readers[wanted](key) for key, wanted in kind.__annotations__.items()})

    def maybe_section(self, key: str) -> Fields:
        """An object that older results lack: empty where it is missing."""
        return self.section(key) if key in self._values else Fields(self.path, {}, f"{self._prefix}{key}.")

    def rows(self, key: str) -> list[Fields]:
        """A list of objects that older results lack."""
        found = self.names(key) if key in self._values else []
        if not all(isinstance(row, dict) for row in found):
            raise self._wrong(key, "a list of objects")
        return [Fields(self.path, row, f"{self._prefix}{key}[{i}].") for i, row in enumerate(found)]

    def maybe_per_client(self, key: str) -> PerClient:
        """Numbers by name, where there are some."""
        return self.per_client(key) if key in self._values else {}

    def section(self, key: str) -> Fields:
        return Fields(self.path, self._object(key), f"{self._prefix}{key}.")

    def per_client(self, key: str) -> PerClient:
        values = self._object(key)
        return {name: None if v is None else self._real(key, v) for name, v in values.items()}

    def matrices(self, key: str) -> dict[str, list[list[int]]]:
        matrices = self._object(key)
        for name, matrix in matrices.items():
            if not _is_square_of_counts(matrix):
                raise self._wrong(f"{key}.{name}", "a square matrix of counts")
        return matrices

    def _object(self, key: str) -> dict[str, Any]:
        value = self._values.get(key)
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return value


def _is_square_of_counts(matrix: Any) -> bool:
    return isinstance(matrix, list) and all(
        isinstance(row, list) and len(row) == len(matrix) and all(isinstance(n, int) for n in row)
        for row in matrix
    )
