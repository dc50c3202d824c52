"""A contender's side of taking turns: it makes a round for each line it reads, and answers in seconds."""

from __future__ import annotations

import os
import sys
import time


class Turns:
    """Answers go to the original stdout; whatever a framework prints goes to stderr."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._started: float | None = None

    def wait(self) -> None:
        """Returns when the next turn begins, or when there is none (a contender then stops by its count)."""
        sys.stdin.readline()
        self._started = time.perf_counter()

    def done(self) -> None:
        """Tells how long the turn took; nothing if none was begun."""
        if self._started is not None:
            self.say(str(time.perf_counter() - self._started))

    def say(self, words: str) -> None:
        """A line for whoever gives the turns."""
        print(words, file=self._answers, flush=True)
