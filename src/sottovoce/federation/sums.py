"""The server's half of shared noise: masked messages come in, and only the sum of a round ever opens.

A round begins when every helper has sent its signed key. When its messages are in, the set of those who came
is fixed, durably, and every helper is asked for the sum of its masks of this set; once all have answered, the
sum opens. No helper answers for another set, so there is one attempt: a round with fewer messages than the
threshold is given up, and what it cost stays charged. Answers and messages are dropped when a round is
applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sottovoce.errors import SottovoceError, shown
from sottovoce.federation.helping import MASKS
from sottovoce.federation.store import Store
from sottovoce.masking import MaskTerms, RoundKey, ephemeral_of, unmasked


class Sums:
    """The sums of a run, round after round; what it knows is in the server's store."""

    def __init__(self, store: Store, terms: MaskTerms) -> None:
        self._store = store
        self.terms = terms
        self.round = 0
        """The round that is open; beyond the last when the run is over."""

    def begin(self, round_number: int) -> None:
        """Opens a round."""
        self.round = round_number

    def asked(self) -> list[int]:
        """The helpers without whom nothing goes on: their keys before the set is fixed, then their masks."""
        helpers, fixed = range(len(self.terms.helpers)), self.fixed
        if fixed is None:
            keys = self._keys()
            return [helper for helper in helpers if not (helper in keys and keys[helper].round >= self.round)]
        answered = dict(self._store.masks())
        return [helper for helper in helpers if fixed and helper not in answered]

    def idle(self) -> list[int]:
        """Helpers that still hold a key when the run is over, and are to erase it."""
        return sorted(helper for helper, key in self._keys().items() if 0 < key.round < self.round)

    @property
    def fixed(self) -> list[int] | None:
        """The clients whose sum is to open; none of them: the round is given up; None: not fixed yet."""
        return self._store.fixed(self.round)

    def fix(self, messages: Mapping[int, bytes]) -> bool:
        """Fixes the set of a round, durably; False if they are too few, so that the round is given up."""
        enough = len(messages) >= self.terms.threshold
        self._store.fix(self.round, sorted(messages) if enough else [])
        return enough

    def request(self, messages: Mapping[int, bytes]) -> dict[str, Any]:
        """What a helper is asked: its key, while no set is fixed, else its masks of the set."""
        clients = self.fixed or []
        keys = [ephemeral_of(messages[client]) for client in clients]
        return {"kind": MASKS, "round": self.round, "clients": clients, "keys": keys}

    def keys(self) -> dict[str, Any]:
        """The helpers' keys of the round, as every client is sent them."""
        keys = [key for _, key in sorted(self._keys().items())]
        return {
            "helper_keys": [key.public for key in keys],
            "helper_signatures": [key.signature for key in keys],
        }

    def accept(self, helper: int, answer: Mapping[str, Any]) -> None:
        """Takes a helper's answer; one that is refused changes nothing and raises, saying why."""
        name = self.terms.helpers[helper].name
        if answer.get("error"):
            raise SottovoceError(f"helper {name} declined: {shown(answer['error'])}")
        if answer.get("kind") != MASKS or answer.get("round") != self.round:
            return  # of a round that is over by now
        key, body = self._next(helper, answer), answer.get("masks")
        with self._store.transaction():
            self._store.keep_key(key)
            if self.fixed is None:
                if key.round > self.round or not key.round:
                    # It has closed this round before: this server's store was restored from before that.
                    self._store.fix(self.round, [])
            elif self.fixed and body:
                if not isinstance(body, bytes) or len(body) != self.terms.length:
                    raise SottovoceError(f"helper {name} sent something other than masks")
                self._store.keep_masks(helper, body)

    def total(self, messages: Mapping[int, bytes]) -> np.ndarray | None:
        """The sum of the fixed set, when all helpers have answered; None if the round is given up."""
        if not self.fixed:
            return None
        answers = [body for _, body in sorted(self._store.masks())]
        return unmasked(self.terms, {client: messages[client] for client in self.fixed}, answers)

    def _next(self, helper: int, answer: Mapping[str, Any]) -> RoundKey:
        """A helper's key of the round that it will answer next; of round 0 if it answers no more."""
        number, public, signature = (answer.get(name) for name in ("next", "key", "signature"))
        if number == 0:
            return RoundKey(helper, 0, b"", b"")
        if not (type(number) is int and isinstance(public, bytes) and isinstance(signature, bytes)):
            raise SottovoceError(f"helper {self.terms.helpers[helper].name} sent no key: update it")
        key = RoundKey(helper, number, public, signature)
        key.check(self.terms)
        return key

    def _keys(self) -> dict[int, RoundKey]:
        return {key[0]: RoundKey(*key) for key in self._store.helper_keys()}
