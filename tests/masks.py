"""Terms, keys and helpers for tests about masks."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.release.places.helper import Helper
from sottovoce.release.places.masks import HelperKeys, MaskTerms, RoundKey, ephemeral_of, masked, public_hex


@dataclass(frozen=True)
class Circle:
    """Clients and helpers with their private keys, and what they agreed on."""

    clients: list[X25519PrivateKey]
    helpers: list[tuple[X25519PrivateKey, Ed25519PrivateKey]]
    terms: MaskTerms

    def opened(self, folder: Path, stack: ExitStack, terms: MaskTerms | None = None) -> list[Helper]:
        return [
            stack.enter_context(Helper.open(folder / f"helper-{h}.sqlite", terms or self.terms, *keys))
            for h, keys in enumerate(self.helpers)
        ]

    def message(self, client: int, round_number: int, keys: list[RoundKey], values: np.ndarray) -> bytes:
        return masked(self.terms, self.clients[client], round_number, keys, values)

    def changed(self, **changes: object) -> MaskTerms:
        return replace(self.terms, **changes)  # type: ignore[arg-type]


def circle(clients: int = 6, helpers: int = 2, **changes: object) -> Circle:
    sites = [X25519PrivateKey.generate() for _ in range(clients)]
    keys = [(X25519PrivateKey.generate(), Ed25519PrivateKey.generate()) for _ in range(helpers)]
    named = tuple(HelperKeys(f"helper {i}", public_hex(a), public_hex(b)) for i, (a, b) in enumerate(keys))
    everybody = tuple(range(clients))
    numbers = {"run": "3f2a", "size": 20, "word": 16, "threshold": 3, "colluding": 1}
    given = {**numbers, "schedule": (everybody,) * 3, **changes}
    terms = MaskTerms(clients=tuple(map(public_hex, sites)), helpers=named, **given)  # type: ignore[arg-type]
    return Circle(sites, keys, terms)


def keys_of(helpers: list[Helper]) -> list[RoundKey]:
    found = [helper.key() for helper in helpers]
    assert all(found)
    return found  # type: ignore[return-value]


def named(messages: dict[int, bytes]) -> dict[int, bytes]:
    """What helpers are told of messages."""
    return {client: ephemeral_of(message) for client, message in messages.items()}
