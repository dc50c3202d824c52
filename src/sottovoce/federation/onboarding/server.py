"""A finished run that onboards: decodes a future client's context and answers with coefficients.

`FinishedRun` is all that `personalize` needs, in the client's own process. `Onboarding` adds what a service
keeps: its key, the contexts it has received, and the specification it publishes. Plain functions without
HTTP, used by one thread, which keeps SQLite, torch and the order of answers simple.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor, nn

from sottovoce.channel import ChannelError
from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement
from sottovoce.federation.onboarding import BUCKET, NAME, Specification
from sottovoce.federation.sealing import KEY_BYTES, agreed_secret, new_key, pad, public_key, unpad
from sottovoce.machine.files import Database, kept_secret
from sottovoce.models.features.cache import weights_digest
from sottovoce.personal import personal_model
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.downlink import Downlink
from sottovoce.release.kind import asked_for
from sottovoce.run.directory import RunDirectory
from sottovoce.run.finished import GeneratorFile, open_server
from sottovoce.training.server import Server

KEY_FILE = "service.key"
CONTEXTS_FILE = "contexts.sqlite"
TOGETHER = 8
"""Contexts that go through the generator at once: its weights are read from memory once for all of them."""


@dataclass(frozen=True)
class FinishedRun:
    """The blueprint and the trained server of a run."""

    run: str
    blueprint: Blueprint
    server: Server
    private_key: bytes
    """With it contexts of this run are decoded."""

    @classmethod
    def load(
        cls, directory: str | Path, module: nn.Module | str | None = None, features: str | None = None
    ) -> FinishedRun:
        """From the run directory of a finished run, which may be another party's.

        `module` if it was trained with one of the user's own: from Python, or as 'package.module:function';
        `features` likewise, by name.
        """
        path = RunDirectory(directory).model_file
        file = GeneratorFile.read(path, model=module, features=features)
        plan = file.plan
        if any(header.get("map", weights_digest()) != weights_digest() for header in file.headers[:1]):
            raise SottovoceError(
                f"{directory} was trained with feature maps of another version, and newcomers need the "
                "same: use the version that trained it"
            )
        if not plan.private:
            raise SottovoceError(
                f"{directory} is an ablation without privacy of its own: it personalizes nobody"
            )
        # A future client's records are real even where the run was a simulation: its noise is never seeded.
        server = open_server(replace(file, plan=plan.replace(seeded=False, repeat=0)), module)
        key_file = Path(directory) / KEY_FILE
        # A run that was never served has no key to keep: whoever reads this one is the client itself.
        unserved = hashlib.sha256(b"sottovoce unserved run:" + file.run.encode()).digest()
        return cls(
            file.run, server.blueprint, server, kept_secret(key_file) if key_file.exists() else unserved
        )

    def context_model(self) -> Tensor | None:
        """The shared coefficients behind contexts that use a model, None for other statistics."""
        models = [self.server.model_of(phase) for phase in self.blueprint.future]
        return models[0] if models else None

    @property
    def key(self) -> bytes:
        """The public key for which contexts of this run are made."""
        return public_key(self.private_key)

    @cached_property
    def _request(self) -> bytes:
        return asked_for(self.context_model())

    @cached_property
    def _private(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.private_key)

    def decode(self, body: bytes) -> np.ndarray:
        """The context in a body of public key and message."""
        key, message = body[:KEY_BYTES], body[KEY_BYTES:]
        if not message:
            raise ChannelError(f"{len(body)} bytes are not a context: send the public key, then the message")
        release = self.blueprint.releases["context"]
        secret = agreed_secret(self._private, key, run=self.run, name=NAME)
        stream = release.stream(self.run, NAME, 0)
        context = release.decode(message, secret=secret, stream=stream, request=self._request)
        if not release.plausible(context):
            raise ChannelError("the context is longer than its noise allows: it is refused")
        return context

    def coefficients(self, private: bytes, message: bytes) -> Tensor:
        """Coefficients (k,) for a client of this process."""
        released = self.blueprint.plan.releases_context
        return self.server.personalize(self.decode(public_key(private) + message) if released else None)


class SecondContext(SottovoceError):
    """The client has released another context before."""


class Contexts(Database):
    """The contexts that a service has received, in an SQLite file that only its owner can read.

    There is one for each client, for ever. A retry with the same bytes is answered again from here and costs
    nothing new. Other bytes from the same client are refused: a second context would be a second release, and
    after a restored backup two encodings under one stream. Used by one thread.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _explain, threads=True)
        self.query("PRAGMA journal_mode = WAL")
        self.query(
            "CREATE TABLE IF NOT EXISTS context"
            " (client TEXT PRIMARY KEY, digest BLOB NOT NULL, vector BLOB NOT NULL) WITHOUT ROWID"
        )
        self.restrict()

    def known(self, client: str, body: bytes) -> np.ndarray | None:
        """The decoded context that these bytes gave before; None for a client that is new."""
        rows = self.query("SELECT digest, vector FROM context WHERE client = ?", client)
        if not rows:
            return None
        [(digest, vector)] = rows
        if digest != _digest(body):
            raise SecondContext(
                "this client has sent another context before: send that one again, it costs nothing new"
            )
        return np.frombuffer(vector, np.float64).copy()

    def remember(self, client: str, body: bytes, vector: np.ndarray) -> None:
        """Keeps a context durably before it is answered."""
        row = (client, _digest(body), vector.astype(np.float64).tobytes())
        self.query("INSERT INTO context VALUES (?, ?, ?)", *row)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _explain(path: Path, error: Exception) -> SottovoceError:
    return SottovoceError(f"{path} is damaged or not ours ({error}): restore a backup")


class Request(NamedTuple):
    """Who asks, the body of public key and padded message, and whether the whole model is wanted."""

    client: str
    body: bytes
    model: bool = False


class Answer(NamedTuple):
    """Coefficients as they travel, or the model's file, and whether the context was known."""

    body: bytes
    again: bool


class Onboarding:
    """A finished run, ready to serve."""

    def __init__(self, run: str | Path, model: str | None = None, features: str | None = None) -> None:
        directory = Path(run)
        file = GeneratorFile.read(RunDirectory(directory).model_file, model=model, features=features)
        if file.plan.seeded:
            raise SottovoceError(
                f"{run} was a seeded simulation, whose noise protects nobody: serve a run with seeded=false"
            )
        # Clients resend messages that were made for this key, so it stays for ever.
        kept_secret(directory / KEY_FILE, new_key)
        self._run = FinishedRun.load(directory, model, features)
        self.blueprint = self._run.blueprint
        self._contexts = Contexts(directory / CONTEXTS_FILE)
        plan, facts = self.blueprint.plan, self.blueprint.facts
        agreement = Agreement(plan, facts, model=model, sizes=file.sizes, finished=True)
        self.specification = Specification(self._run.run, agreement, self._run.key)

    @property
    def largest_body(self) -> int:
        """Bytes beyond which a request cannot be a context of this run."""
        context = self.blueprint.releases.get("context")
        largest = 0 if context is None else context.largest_message
        return KEY_BYTES + len(pad(bytes(largest), BUCKET))

    def context_model(self) -> bytes | None:
        """The shared coefficients behind contexts that use a model, float32, or None."""
        model = self._run.context_model()
        return None if model is None else Downlink(len(model)).encode(model)

    def answer(self, requests: Sequence[Request]) -> list[Answer | SottovoceError]:
        """One answer, or the reason why there is none, for each request, from one visit to the disk.

        New contexts are durable before any answer is returned. An answer does not depend on the requests that
        came with it.
        """
        if not self.blueprint.plan.releases_context:
            shared = self._run.server.personalize(None)
            return [self._answered(request, shared, again=True) for request in requests]
        contexts: list[tuple[np.ndarray, bool] | SottovoceError] = []
        with self._contexts.transaction():
            for request in requests:
                try:
                    contexts.append(self._context(request.client, request.body))
                except SottovoceError as refusal:
                    contexts.append(refusal)
        good = [context for context in contexts if not isinstance(context, SottovoceError)]
        coefficients = self._coefficients([vector for vector, _ in good])
        return [
            context
            if isinstance(context, SottovoceError)
            else self._answered(request, next(coefficients), again=context[1])
            for request, context in zip(requests, contexts, strict=True)
        ]

    def _context(self, client: str, body: bytes) -> tuple[np.ndarray, bool]:
        """The context in a body of public key and padded message, and whether it was known."""
        body = body[:KEY_BYTES] + unpad(body[KEY_BYTES:], BUCKET)
        known = self._contexts.known(client, body)
        if known is not None:
            return known, True
        context = self._run.decode(body)
        self._contexts.remember(client, body, context)
        return context, False

    def _coefficients(self, contexts: Sequence[np.ndarray]) -> Iterator[Tensor]:
        """Coefficients (k,) of each context, always as many at once (the last bit follows the shape)."""
        for start in range(0, len(contexts), TOGETHER):
            some = contexts[start : start + TOGETHER]
            filled = np.stack([*some, *[some[0]] * (TOGETHER - len(some))])
            yield from self._run.server.personalize_many(filled)[: len(some)]

    def _answered(self, request: Request, coefficients: Tensor, again: bool) -> Answer:
        if not request.model:
            return Answer(Downlink(len(coefficients)).encode(coefficients), again)
        # Undated, so that asking again gives the same.
        model = personal_model(
            self.blueprint,
            coefficients,
            run=self.specification.run,
            client=request.client,
            epsilon=self.blueprint.epsilon(self.blueprint.future_counts),
            created="",
        )
        return Answer(model, again)

    def close(self) -> None:
        self._contexts.close()
