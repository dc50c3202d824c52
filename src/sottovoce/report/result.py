"""The files of a run, read and checked: result.json, rounds.jsonl and plan.toml of its directory.

Objects have the names of their files, and the fields that a report may show (`RESULT`, `ROUND`) and no
others. What is missing or damaged is one line that names the file and the field, and says what to do.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Maybe:
    """What a file may lack, and what it then is."""

    shape: Any
    otherwise: Any = None


SQUARE = "a square matrix of counts"
KINDS = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "an object",
    SQUARE: SQUARE,
}
"""What a shape may ask for, in words; of an object `{str: X}` and a list `[X]` every value is an X."""
NUMBERS = {str: Maybe(float)}
RESULT: dict[str, Any] = {
    **dict.fromkeys(
        ("method", "dataset", "preset", "context", "channel", "noise", "basis", "created", "sottovoce"),
        Maybe(str),
    ),
    **dict.fromkeys(
        ("seed", "model_parameters", "coefficients", "participants", "future_clients", "rounds"), int
    ),
    "releases_max": int,
    "seeded": bool,
    "uses_future_labels": bool,
    # Percent; what is masked is restricted to the classes that a client has.
    "accuracy": {
        **dict.fromkeys(("seen", "future", "seen_masked", "future_masked"), Maybe(float)),
        **dict.fromkeys(("seen_per_client", "future_per_client"), NUMBERS),
        **dict.fromkeys(("seen_masked_per_client", "future_masked_per_client"), NUMBERS),
    },
    "epsilon": {
        "target": Maybe(float),
        "spent_max": Maybe(float),
        "accounting": str,
        "per_client": NUMBERS,
        "future_context": Maybe(float),
    },
    "delta": float,
    "sigma": Maybe(float),
    "sigma_context": Maybe(float),
    "uplink": {
        "bytes": float,
        "releases": int,
        "bits_per_coefficient": Maybe(float),
        "context_bytes": float,
        "fp32_bytes": float,
    },
    "downlink": {"bytes": float, "bits_per_coefficient": Maybe(float)},
    "seconds": float,
    "confusion": {str: SQUARE},
    # What follows is missing in results of before there was some.
    "engine": Maybe(str),
    "class_names": Maybe(list, []),
    "metric": Maybe(str, "accuracy"),
    "metrics": Maybe(
        {
            "seen": Maybe(NUMBERS, {}),
            "future": Maybe(NUMBERS, {}),
            "constant": Maybe({"seen": Maybe(NUMBERS, {}), "future": Maybe(NUMBERS, {})}, {}),
        },
        {},
    ),
    "reliability": Maybe(
        dict.fromkeys(("seen", "future"), Maybe([{"stated": float, "observed": float}], [])), {}
    ),
    "unit": Maybe(str, "record"),
    "clients": Maybe([{"name": str, "size": int, "sigma": Maybe(float)}], []),
}
UNKNOWN_TO_A_SERVER = {
    "accuracy": {f"{role}_per_client": {} for role in ("seen", "future", "seen_masked", "future_masked")},
    "uplink": dict.fromkeys(("bytes", "releases", "context_bytes", "fp32_bytes"), 0),
    "confusion": {},
}
ROUND: dict[str, Any] = {
    "round": int,
    "clients": [str],
    "bytes": Maybe(float, 0),  # nobody knows the length of a lone message under noise at the server
    "seconds": float,
    # Means over the clients of the round; accuracies are missing where it was not evaluated.
    **dict.fromkeys(("signal_norm", "noise_norm", "gain", "effective_gain", "seen", "future"), Maybe(float)),
}


@dataclass(frozen=True)
class ReportedRun:
    """Everything that the report of a run shows."""

    result: dict[str, Any]
    """As `RESULT`."""
    rounds: list[dict[str, Any]]
    """Each as `ROUND`."""
    plan: dict[str, str]
    audit: dict[str, Any] | None
    """What an audit found, where one was made."""

    @property
    def sites(self) -> dict[str, dict[str, Any]]:
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
    path, audit = directory / "result.json", directory / "audit.json"
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
        _fields(RESULT, result, path),
        list(_rounds(directory / "rounds.jsonl")),
        _plan(directory / "plan.toml"),
        _object(audit, _text(audit)) if audit.exists() else None,
    )


def _rounds(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_text(path).splitlines(), start=1):
        yield _fields(ROUND, _object(path, line, f" in line {number}"), path, f"line {number}: ")


def _plan(path: Path) -> dict[str, str]:
    try:
        plan = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise _damaged(path, f"is not TOML ({error})") from None
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in plan.items()}


def _fields(shape: dict[str, Any], found: dict[str, Any], path: Path, where: str = "") -> dict[str, Any]:
    """The fields of an object that its shape names."""
    return {key: _checked(inner, found.get(key), path, where + key) for key, inner in shape.items()}


def _checked(shape: Any, value: Any, path: Path, name: str) -> Any:
    """A value as its shape has it; raises SottovoceError, with the field's name, when it has another one."""
    if isinstance(shape, Maybe):
        value = shape.otherwise if value is None else value
        return None if value is None else _checked(shape.shape, value, path, name)
    kind = type(shape) if isinstance(shape, dict | list) else shape
    if not _is(kind, value):
        raise _damaged(path, f"({name}) is not {KINDS[kind]}")
    if isinstance(shape, list):
        return [_checked(shape[0], entry, path, f"{name}[{i}]") for i, entry in enumerate(value)]
    if isinstance(shape, dict):
        return _fields(dict.fromkeys(value, shape[str]) if str in shape else shape, value, path, f"{name}.")
    return value


def _is(kind: Any, value: Any) -> bool:
    if kind is SQUARE:
        return isinstance(value, list) and all(
            isinstance(row, list) and len(row) == len(value) and all(isinstance(n, int) for n in row)
            for row in value
        )
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


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
