"""A run as one HTML page: accuracy, privacy spent, bytes sent, and what was promised.

The page is a single file without outside resources: text, tables and SVG charts that print and open
offline, plus one small script for the readouts. It shows what files say and computes no result of its own.
`table` and `chart` serve the terminal and SVG files as well.

Pages are templates that extend page.html, whose content security policy forbids every outside resource and
every script but ours (by hash). They escape whatever they show, so nothing that was read from a file can
become an element. The marks of charts alone are markup that Python makes (`chart`, `figures`).
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from sottovoce.report import table

if TYPE_CHECKING:
    from jinja2 import Environment, Template


@cache
def templates() -> Environment:
    """Templates of this package by their path in it, such as report/page.html; numbers are as in `table`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # most commands need none

    found = Environment(
        loader=PackageLoader("sottovoce", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    shown = ("count", "data_size", "duration", "equals", "label", "number", "out_of", "percent", "UNKNOWN")
    found.globals |= {name: getattr(table, name) for name in shown}
    return found


def page(template: str | Template, *, live: bool = False, **values: object) -> str:
    """A complete HTML document by a template; a `live` one receives events from its server."""
    from markupsafe import Markup

    script = _text("page.js") + (_text("live.js") if live else "")
    shell = {
        "style": Markup(_text("chart.css") + _text("page.css")),
        "script": Markup(script),
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "live": live,
    }
    return templates().get_template(template).render(values, **shell)


def macros(template: str) -> Any:
    """The macros of a template as functions, which return markup."""
    return templates().get_template(template).module


def _text(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
