"""Errors that a user can act on.

Every error of ours is a `SottovoceError` whose text is one line: what is wrong, then what to do.
The command line prints that line and exits with 2; nothing that was stored is lost.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from typing import Any

SHOWN = 200
"""Letters of a stranger's text that are shown."""


class SottovoceError(Exception):
    """Something the user can put right; the message says how.

    `options` are the names of arguments that it is about. The command line, which calls them `--NAME`, adds
    them to the message; whoever calls from Python knows them as they are.
    """

    def __init__(self, message: str = "", *options: str) -> None:
        super().__init__(message)
        self.options = options


def extra(module: str, needs: str, name: str, instead: str = "", *options: str) -> Any:
    """A module of a package that the extra `name` brings, or a line that says what needs it."""
    try:
        return import_module(module)
    except ImportError:
        raise SottovoceError(f"{needs}: pip install 'sottovoce[{name}]'{instead}", *options) from None


def shown(said: object) -> str:
    """Returns what a stranger said, fit for one line of a log or an error: printable, and not too long.

    >>> shown("gone\\nERROR all is lost")
    'gone ERROR all is lost'
    """
    try:
        text = str(said)
    except ValueError:  # a whole number of thousands of digits
        return "…"
    return "".join(letter if letter.isprintable() else " " for letter in text[:SHOWN])


def visible(text: str) -> str:
    """The text as a terminal may show it: control characters and other invisible ones written out.

    >>> visible("north\x1b[2J")
    'north\\\\x1b[2J'
    """
    keep = str.isprintable
    spaces = "\n\u00a0\u202f"  # of figures and their units
    return "".join(c if keep(c) or c in spaces else c.encode("unicode_escape").decode() for c in text)


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint that names the closest valid word, or all of them.

    >>> nearest("factorised", ["factorized", "full"])
    "did you mean 'factorized'?"
    >>> nearest("zzz", ["b", "a"])
    'choose from a, b'
    """
    words = sorted(valid)
    close = difflib.get_close_matches(name, words, n=1)
    return f"did you mean '{close[0]}'?" if close else "choose from " + ", ".join(words)
