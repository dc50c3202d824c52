"""The files of a run, read and checked: result.json, rounds.jsonl and plan.toml of its directory.

Objects have the fields of their types (`report.result`) and no others. What is missing or damaged is one line
that names the file and the field, and says what to do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, cast, get_args, get_origin, get_type_hints, is_typeddict

from sottovoce.errors import SottovoceError
from sottovoce.machine.documents import toml
from sottovoce.report.result import FILE, FORMAT_VERSION, SQUARE, Absent, ByClient, Round, RunResult, Site

UNKNOWN_TO_A_SERVER: dict[str, Any] = {
    "accuracy": {f"{role}_per_client": {} for role in ("seen", "future", "seen_masked", "future_masked")},
    "uplink": dict.fromkeys(("bytes", "releases", "context_bytes", "fp32_bytes"), 0),
    "confusion": {},
}
WORDS = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True)
class ReportedRun:
    """Everything that the report of a run shows."""

    result: RunResult
    rounds: list[Round]
    plan: dict[str, str]
    audit: dict[str, Any] | None
    """What an audit found, where one was made."""

    def scores(self, role: str, *, masked: bool = False) -> ByClient:
        """What each client of a role, seen or future, came to."""
        accuracy = cast(Mapping[str, ByClient], self.result["accuracy"])
        return accuracy[f"{role}_masked_per_client" if masked else f"{role}_per_client"]

    @property
    def sites(self) -> dict[str, Site]:
        """By name what each client averages over, and the σ that follows; a future client has none."""
        return {site["name"]: site for site in self.result["clients"]}


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sorting key that puts client-2 before client-10.

    >>> sorted(["client-10", "client-2"], key=natural)
    ['client-2', 'client-10']
    """
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


def read_run(directory: Path) -> ReportedRun:
    """The run stored in `directory`; raises SottovoceError when a file is missing or damaged."""
    path, audit = directory / FILE, directory / "audit.json"
    result = _object(path, _text(path))
    version = _checked(int, result.get("version"), path, "version")
    if version != FORMAT_VERSION:
        raise SottovoceError(
            f"{path} has format {version}, this version reads format {FORMAT_VERSION}: "
            "use the version of sottovoce that wrote it"
        )
    if result.get("engine") is not None:
        result |= UNKNOWN_TO_A_SERVER
    return ReportedRun(
        _fields(RunResult, result, path),
        list(_rounds(directory / "rounds.jsonl")),
        _plan(directory / "plan.toml"),
        _object(audit, _text(audit)) if audit.exists() else None,
    )


def _rounds(path: Path) -> Iterator[Round]:
    for number, line in enumerate(_text(path).splitlines(), start=1):
        yield _fields(Round, _object(path, line, f" in line {number}"), path, f"line {number}: ")


def _plan(path: Path) -> dict[str, str]:
    try:
        plan = toml(_text(path))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"is not TOML ({error})") from None
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in plan.items()}


_hints = cache(partial(get_type_hints, include_extras=True))


def _fields(kind: Any, found: Mapping[str, Any], path: Path, where: str = "") -> Any:
    """The fields of an object that its type names."""
    return {name: _checked(hint, found.get(name), path, where + name) for name, hint in _hints(kind).items()}


def _checked(hint: Any, value: Any, path: Path, name: str) -> Any:
    """A value as its type has it; raises SottovoceError, with the field's name, when it is of another one."""
    marks = list[Any]()
    while get_origin(hint) in (NotRequired, Annotated):
        hint, *more = get_args(hint)
        marks += more or [NoneType]
    if get_origin(hint) is UnionType:
        kinds = get_args(hint)
        marks += kinds
        hint = next((kind for kind in kinds if type(value) is kind), kinds[0])
    if value is None:
        value = next((mark.value for mark in marks if isinstance(mark, Absent)), None)
        if value is None and NoneType in marks:
            return None
    kind: Any = dict if is_typeddict(hint) else get_origin(hint) or hint
    same = isinstance(value, int | float if kind is float else kind)
    if not same or isinstance(value, bool) != (kind is bool):
        raise _damaged(path, f"({name}) is not {WORDS[kind]}")
    if is_typeddict(hint):
        return _fields(hint, value, path, f"{name}.")
    if kind is dict:
        _, inner = get_args(hint)
        return {key: _checked(inner, entry, path, f"{name}.{key}") for key, entry in value.items()}
    if kind is list:
        [inner] = get_args(hint)
        value = [_checked(inner, entry, path, f"{name}[{i}]") for i, entry in enumerate(value)]
        if SQUARE in marks and any(len(row) != len(value) for row in value):
            raise _damaged(path, f"({name}) is not {SQUARE}")
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
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
        raise _damaged(path, f"cannot be read ({error})") from None


def _object(path: Path, text: str, place: str = "") -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _damaged(path, f"is not JSON{place} ({error})") from None
    if not isinstance(value, dict):
        raise _damaged(path, f"has no JSON object{place}")
    return value


def _damaged(path: Path, problem: str) -> SottovoceError:
    text = " ".join(problem.split())
    return SottovoceError(f"{path} {text}: restore the file, or repeat the command that wrote it")
