"""Masks of a simulated run: all clients' keys and all helpers' stores in one place, everything else as it is.

A simulation has no need of them, since all records lie on one machine; with them it does what a federation
does, byte for byte of its messages, and its result says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.machine.files import private_folder
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.places import masks
from sottovoce.release.places.helper import Helper
from sottovoce.release.secrets import client_secret
from sottovoce.training.client import Seal


class Masks:
    """The helpers of a simulated run, whose stores lie in `folder`; `stack` closes them."""

    def __init__(
        self,
        blueprint: Blueprint,
        run: str,
        names: Sequence[str],
        master: bytes,
        folder: Path,
        stack: ExitStack,
    ) -> None:
        plan = blueprint.plan
        self._clients = [_exchange(master, f"site {name}") for name in names]
        helpers = [f"helper-{number + 1}" for number in range(plan.helpers)]
        keys = [(_exchange(master, name), _signing(master, name)) for name in helpers]
        self._terms = mask_terms(
            blueprint,
            run,
            map(masks.public_hex, self._clients),
            [
                masks.HelperKeys(name, masks.public_hex(exchange), masks.public_hex(signing))
                for name, (exchange, signing) in zip(helpers, keys, strict=True)
            ],
            f"{plan.digest()} {blueprint.sharing}",
        )
        private_folder(folder)
        self._helpers = [
            stack.enter_context(Helper.open(folder / f"{name}.sqlite", self._terms, *pair))
            for name, pair in zip(helpers, keys, strict=True)
        ]
        self._keys: list[masks.RoundKey] = []

    def begin(self) -> None:
        """Before a round: its helpers' keys, which all clients get."""
        self._keys = [key for helper in self._helpers if (key := helper.key()) is not None]

    def seal(self, participant: int) -> Seal:
        """Returns what puts this client's masks on its shares, and nothing on other messages."""
        key = self._clients[participant]
        return lambda message, stream: masks.covered(self._terms, key, self._keys, message, stream)

    def total(self, number: int, messages: Mapping[int, bytes]) -> np.ndarray:
        """The sum of a round's shares: every helper answers, once."""
        told = {participant: masks.ephemeral_of(message) for participant, message in messages.items()}
        run = self._terms.run
        answers = [helper.answer(run, masks.KIND, number, told) for helper in self._helpers]
        return masks.unmasked(self._terms, messages, answers)


def mask_terms(
    blueprint: Blueprint, run: str, clients: Iterable[str], helpers: Iterable[masks.HelperKeys], rest: str
) -> masks.MaskTerms:
    """Returns what masks of a run are derived from; `rest` is all else that was agreed, or its digest."""
    sharing = blueprint.sharing
    assert sharing is not None
    return masks.MaskTerms(
        run=run,
        size=sharing.size,
        word=sharing.word,
        threshold=sharing.threshold,
        colluding=sharing.colluding,
        clients=tuple(clients),
        helpers=tuple(helpers),
        schedule=tuple(tuple(map(int, planned)) for planned in blueprint.schedule),
        rest=rest,
    )


def _exchange(master: bytes, name: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(client_secret(master, f"masks of {name}"))


def _signing(master: bytes, name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(client_secret(master, f"signatures of {name}"))
