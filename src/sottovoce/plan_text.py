"""How a plan is written: TOML, `key=value`, and the values of its keys as text."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError

_NUMBER = re.compile(r"[+-]?(0|[1-9]\d*)(\.\d*)?")


class PlanError(SottovoceError):
    """A plan that cannot be carried out as written."""


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PlanError(f"no plan at {path}: give a TOML file, or key=value pairs alone") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} is not a plan: {error}") from None


def split(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise PlanError(f"'{pair}' is neither a plan file nor key=value")
    return name.strip().replace("-", "_"), value.strip()


def told_apart(given: dict[str, Any]) -> dict[str, Any]:
    """The settings with `future_clients` told apart: a number, or names (a lone number with a comma).

    >>> told_apart({"future_clients": "west,east"})
    {'future_clients': 2, 'future_names': 'west,east'}
    >>> told_apart({"future_clients": "3"}), told_apart({"future_clients": "3,"})["future_names"]
    ({'future_clients': '3', 'future_names': ''}, '3')
    """
    if "future_clients" not in given or "future_names" in given:
        return given
    value = given["future_clients"]
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value) + ","
    if isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value.strip())):
        return {**given, "future_names": ""}
    names = [name.strip() for name in text.split(",") if name.strip()]
    return {**given, "future_clients": len(names), "future_names": ",".join(names)}


def coerce(name: str, value: Any, kind: type) -> Any:
    """The value as the key's type; strings come from the command line."""
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        raise PlanError(f"{name} is true or false, not '{value}'")
    if kind is str:
        if isinstance(value, str):
            return value
        raise PlanError(f"{name} is a text, not {value!r}")
    try:
        if isinstance(value, bool):
            raise ValueError
        if kind is int and isinstance(value, float) and value != int(value):
            raise ValueError
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise PlanError(
            f"{name} is {'a whole number' if kind is int else 'a number'}, not '{value}'"
        ) from None


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
