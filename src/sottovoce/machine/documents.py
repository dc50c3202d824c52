"""What a text from elsewhere may be, before anything is made of it."""

from __future__ import annotations

import re

from sottovoce.errors import SottovoceError, shown

MOST_TEXT = 2**20
"""Bytes of an agreement or a specification."""
MOST_LETTERS = 200
"""Letters of a text in a plan."""


class ForeignError(SottovoceError):
    """Something of another party's that is not what it must be; nothing was built from it."""


def foreign_name(text: object) -> str:
    """A run's name, fit to be part of a file's name.

    >>> foreign_name("../../etc")
    Traceback (most recent call last):
    sottovoce.machine.documents.ForeignError: '../../etc' cannot name a run: ask for the file again
    """
    if not isinstance(text, str) or re.fullmatch(r"[0-9A-Za-z_-]{1,64}", text) is None:
        raise ForeignError(f"'{shown(text)}' cannot name a run: ask for the file again")
    return text
