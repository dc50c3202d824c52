"""Who is let in, and how many at a time: tokens, rates by client and address, and places to wait in."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from starlette.datastructures import Address
from starlette.exceptions import HTTPException

from sottovoce.errors import SottovoceError
from sottovoce.onboarding.tokens import Rate, Tokens

RETRY = {"Retry-After": "1"}

log = logging.getLogger("sottovoce.onboarding")


@dataclass(frozen=True)
class Limits:
    """What the service takes on: requests at a time, and per client in a second and at once.

    Strangers are requests without a good token, counted by address.
    """

    waiting: int = 64
    per_second: float = 5.0
    burst: int = 10
    strangers_per_second: float = 20.0
    strangers_burst: int = 100


class Gate:
    """Lets in as many as can be served soon, and knows who they are."""

    def __init__(self, limits: Limits, tokens: Tokens, open_to_all: bool) -> None:
        self.waiting = 0
        self._limits = limits
        self._tokens = tokens
        self._open = open_to_all
        self._rate = Rate(limits.per_second, limits.burst)
        self._strangers = Rate(limits.strangers_per_second, limits.strangers_burst)

    def look(self) -> None:
        """Sheds a request that could not be served soon."""
        if self.waiting >= self._limits.waiting:
            raise HTTPException(503, "busy: try again soon", RETRY)

    def __enter__(self) -> None:
        self.look()
        self.waiting += 1

    def __exit__(self, *unused: object) -> None:
        self.waiting -= 1

    def glance(self, who: Address | None, authorization: str) -> str:
        """The client behind a token, or nobody; strangers who ask too often from one address are refused."""
        if self._open:
            return ""
        scheme, _, token = authorization.partition(" ")
        try:
            name = self._tokens.name(token) if scheme.lower() == "bearer" else None
        except SottovoceError as error:
            log.error("%s", error)
            raise HTTPException(503, "the tokens cannot be read: ask the operator", RETRY) from None
        if name is None and not self._strangers.admits(who.host if who else ""):
            raise HTTPException(429, "too many requests from this address: slow down", RETRY)
        return name or ""

    def check(self, who: Address | None, authorization: str) -> str:
        """The client behind a token; a wrong token, and a client that asks too often, are refused.

        Without tokens it is nobody: the public key in the body says who it is.
        """
        name = self.glance(who, authorization)
        if self._open:
            return ""
        if not name:
            raise HTTPException(
                401, "no such token: ask the operator for one", {"WWW-Authenticate": "Bearer"}
            )
        if not self._rate.admits(name):
            raise HTTPException(429, "too many requests with this token: slow down", RETRY)
        return name
