"""Tokens that say who may ask: kept as hashes, in a file for their owner only."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from sottovoce.errors import SottovoceError, nearest
from sottovoce.machine.files import PRIVATE, locked, write_atomically

TOKENS_FILE = "tokens.txt"
LOCK_FILE = "tokens.lock"
TOKEN_BYTES = 32


def token_hash(token: str) -> str:
    """Returns what is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token(run: Path, name: str, file: str = TOKENS_FILE) -> str:
    """Makes a token for a client and remembers its hash; the token itself is not kept."""
    if not name or any(character.isspace() for character in name):
        raise SottovoceError(f"'{name}' cannot name a token: use one word")
    with locked(run / LOCK_FILE):
        tokens = read_tokens(run, file)
        if name in tokens.values():
            raise SottovoceError(
                f"there is a token for {name} already: revoke it first, to replace it", "revoke"
            )
        token = secrets.token_urlsafe(TOKEN_BYTES)
        _write(run / file, {**tokens, token_hash(token): name})
    return token


def revoke_token(run: Path, name: str, file: str = TOKENS_FILE) -> None:
    """Forgets a client's token: a service that runs refuses it from now on."""
    with locked(run / LOCK_FILE):
        tokens = read_tokens(run, file)
        if name not in tokens.values():
            raise SottovoceError(f"nobody called {name} has a token: {nearest(name, tokens.values())}")
        _write(run / file, {known: owner for known, owner in tokens.items() if owner != name})


def _write(path: Path, tokens: dict[str, str]) -> None:
    lines = [f"{known} {owner}\n" for known, owner in tokens.items()]
    write_atomically(path, "".join(lines).encode(), mode=PRIVATE)


def read_tokens(run: Path, file: str = TOKENS_FILE) -> dict[str, str]:
    """Hash to name of every client that may onboard."""
    try:
        lines = (run / file).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = [line.split() for line in lines if line.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise SottovoceError(f"{run / file} is damaged: each line is a hash and a name")
    return dict(pairs)


class Tokens:
    """The tokens of a run as they are now: the file is read again whenever it has changed."""

    def __init__(self, run: Path, file: str = TOKENS_FILE) -> None:
        self._run = run
        self._file = file
        self._seen: object = None
        self._names: dict[str, str] = {}

    def name(self, token: str) -> str | None:
        """The client behind a token; None for one that is not, or no longer, good."""
        seen = self._stamp()
        if seen != self._seen:  # while the file cannot be read nobody has a name: it raises
            self._names, self._seen = read_tokens(self._run, self._file), seen
        return self._names.get(token_hash(token))

    def _stamp(self) -> object:
        try:
            found = (self._run / self._file).stat()
        except FileNotFoundError:
            return "missing"
        return found.st_ino, found.st_mtime_ns, found.st_size
