"""Future clients: one context in, one personal model out, in this process or over the network.

Here is what both ends of the network know beforehand: the public specification of a run, all that a future
client needs to make its context and its model, and tokens that say who may ask. Everything in a
specification follows from the plan; nothing of it depends on a record except, for `context=predictions`, the
shared coefficients, which are a function of charged releases.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.blueprint import Blueprint
from sottovoce.cores import derived_seed
from sottovoce.errors import SottovoceError, nearest, shown
from sottovoce.federation import Agreement
from sottovoce.federation.sealing import KEY_BYTES
from sottovoce.files import PRIVATE, locked, write_atomically
from sottovoce.foreign import foreign_name

VERSION = 2
NAME = "future client"
"""The name of every onboarding client in streams; its secret makes its streams its own."""


BUCKET = 256
"""Contexts travel padded to multiples of so many bytes.

An entropy-coded message is longer where the noised statistic is unusual; padded, nearly all contexts of a run
have one length. Padding hides that length from whoever watches the connection. It hides neither that a client
onboards, when and from where, nor anything from the service, which decodes the context.
"""
TOKENS_FILE = "tokens.txt"
LOCK_FILE = "tokens.lock"
TOKEN_BYTES = 32


class SpecificationError(SottovoceError):
    """A specification that this client cannot trust or does not understand."""


@dataclass(frozen=True)
class Specification:
    """What `GET /v1/specification` says."""

    run: str
    agreement: Agreement
    key: bytes
    """The service's X25519 public key."""

    def fields(self, blueprint: Blueprint) -> dict[str, Any]:
        """As JSON, with what follows from the plan spelled out for clients in other languages."""
        plan = self.agreement.plan
        return {
            "version": VERSION,
            "run": self.run,
            "digest": self.digest(),
            "agreement": self.agreement.to_toml(),
            "service_key": self.key.hex(),
            "seeds": {name: derived_seed(plan.seed, name) for name in ("reference", "basis")},
            "model": plan.model,
            "coefficients": blueprint.coefficients,
            "context": {
                "statistic": plan.context,
                "size": blueprint.statistic.size,
                "records": blueprint.context_size(None),
                "sigma": blueprint.sigma_context,
                "channel": plan.channel,
                "bucket": BUCKET,
                "sensitivity": blueprint.statistic.sensitivity(blueprint.context_size(None)),
                "uses_labels": plan.context_traits.future_uses_labels,
                "uses_model": plan.context_traits.future_uses_model,
                "released": plan.releases_context,
            },
            "epsilon": blueprint.epsilon(blueprint.future_counts),
            "delta": plan.delta,
            "accounting": plan.accounting,
        }

    def digest(self) -> str:
        """A fingerprint that a client sends along, so that both ends mean the same run."""
        parts = [str(VERSION), self.run, self.agreement.digest(), self.key.hex()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    @classmethod
    def parse(cls, fields: Any, *, model: str | None = None, features: str | None = None) -> Specification:
        """Reads a service's answer; anything that does not fit together is refused, and no code is loaded.

        `model` and `features` are what this machine's owner calls model and feature map (`foreign`).
        """
        if not isinstance(fields, dict) or "version" not in fields:
            raise SpecificationError("that is not the specification of a run: check the URL")
        if fields["version"] != VERSION:
            raise SpecificationError(
                f"the service speaks version {shown(fields['version'])}, this client {VERSION}: update one"
            )
        text, key = fields.get("agreement"), fields.get("service_key")
        if not isinstance(text, str) or not isinstance(key, str):
            raise SpecificationError("the specification lacks its agreement or its key: check the URL")
        if re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", key) is None:
            raise SpecificationError("the service's key is not an X25519 public key: check the URL")
        run = foreign_name(fields.get("run"))
        agreement = Agreement.parse(text, finished=True, model=model, features=features)
        return cls(run, agreement, bytes.fromhex(key))

    def check(self, fields: dict[str, Any], blueprint: Blueprint) -> None:
        """Refuses a specification whose stated values are not the ones that follow from its plan."""
        mine = json.loads(json.dumps(self.fields(blueprint)))
        for name in ("digest", "seeds", "coefficients", "context"):
            if fields.get(name) != mine[name]:
                raise SpecificationError(
                    f"the service states {name}={shown(fields.get(name))}, its plan means {mine[name]}: "
                    "nothing was released; use the same version of sottovoce at both ends"
                )


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
