"""Callbacks: what a run tells others while it goes on, exactly as its files have it.

A callback gets copies, so it cannot change anything; whatever it raises is logged in one line and it is not
called again, because a run that has spent privacy must not end for a tracker that is out of reach.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from sottovoce.errors import SottovoceError, shown

log = logging.getLogger(__name__)
MOMENTS = ("on_plan", "on_round", "on_result")


class Callback(Protocol):
    """Whatever follows a run; a class may have any of these methods."""

    def on_plan(self, plan: Mapping[str, Any]) -> None:
        """Called when the run begins or goes on, with what plan.toml has."""

    def on_round(self, line: Mapping[str, Any]) -> None:
        """Called after each round, with its line of rounds.jsonl."""

    def on_result(self, result: Mapping[str, Any]) -> None:
        """Called at the end, with what result.json has."""


class Callbacks:
    """Several callbacks as one."""

    def __init__(self, callbacks: Iterable[object] = ()) -> None:
        self._following = list(callbacks)
        for one in self._following:
            if not any(callable(getattr(one, moment, None)) for moment in MOMENTS):
                raise SottovoceError(
                    f"{type(one).__name__} is no callback: give objects with on_plan, on_round or on_result"
                )

    def tell(self, moment: str, said: Mapping[str, Any]) -> None:
        """Calls `moment`, one of `MOMENTS`, of all that have it."""
        for one in list(self._following):
            method = getattr(one, moment, None)
            if method is None:
                continue
            try:
                method(copy.deepcopy(dict(said)))
            except Exception as error:
                name, reason = type(one).__name__, shown(f"{type(error).__name__}: {error}")
                log.warning("%s.%s failed and is not called again: %s", name, moment, reason)
                self._following.remove(one)
