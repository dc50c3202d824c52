"""Who may onboard: tokens of which only the hash is kept, and how often each may ask.

A token is shown once, when it is made. A token bucket per client sheds what comes faster than agreed; its
memory is bounded by the number of tokens.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sottovoce.errors import SottovoceError
from sottovoce.files import write_atomically

TOKENS_FILE = "tokens.txt"


def token_hash(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token(run: Path, name: str) -> str:
    """Makes a token for a client and remembers its hash; the token itself is not kept."""
    if not name or any(character.isspace() for character in name):
        raise SottovoceError(f"'{name}' cannot name a token: use one word")
    path = run / TOKENS_FILE
    tokens = read_tokens(run)
    if name in tokens.values():
        raise SottovoceError(
            f"there is a token for {name} already: remove its line from {path} to replace it"
        )
    token = secrets.token_urlsafe(32)
    lines = [f"{known} {owner}\n" for known, owner in {**tokens, token_hash(token): name}.items()]
    write_atomically(path, "".join(lines).encode(), mode=0o600)
    return token


def read_tokens(run: Path) -> dict[str, str]:
    """Hash to name of every client that may onboard."""
    try:
        lines = (run / TOKENS_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = [line.split() for line in lines if line.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise SottovoceError(f"{run / TOKENS_FILE} is damaged: each line is a hash and a name")
    return dict(pairs)


@dataclass
class Rate:
    """A token bucket for each client: `per_second` on average, `burst` at once.

    >>> clock = iter([0.0, 0.0, 0.0, 0.5])
    >>> rate = Rate(per_second=2.0, burst=2, clock=lambda: next(clock))
    >>> [rate.admits("client") for _ in range(4)]
    [True, True, False, True]
    """

    per_second: float
    burst: int
    clock: Callable[[], float] = time.monotonic
    _levels: dict[str, tuple[float, float]] = field(default_factory=dict)

    def admits(self, client: str) -> bool:
        """Whether this client may ask now."""
        now = self.clock()
        level, last = self._levels.get(client, (float(self.burst), now))
        level = min(float(self.burst), level + (now - last) * self.per_second)
        admitted = level >= 1.0
        self._levels[client] = (level - 1.0 if admitted else level, now)
        return admitted
