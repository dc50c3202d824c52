"""Asking the owner of records before something is released, or before a limit is moved."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from sottovoce.cli.display import err
from sottovoce.errors import SottovoceError

if TYPE_CHECKING:
    from sottovoce.privacy.terms import Price


def consent(*, yes: bool) -> Callable[[Price], None]:
    """Shows a price and asks; raises unless the owner agrees."""

    def agree(price: Price) -> None:
        err.print(str(price), soft_wrap=True, highlight=False)
        confirm("release it?", yes=yes)

    return agree


def confirm(question: str, *, yes: bool) -> None:
    """Asks on the terminal; where there is none, `--yes` must have been said."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise SottovoceError(
            "nobody is here to ask: repeat the command with --yes to agree; nothing was done"
        )
    if not typer.confirm(question, err=True):
        raise SottovoceError("declined: nothing was done")
