"""What the service does for one client: decode its context once, keep it, and answer with coefficients.

The work of a request in plain functions, without HTTP. One thread does it all, which keeps SQLite, torch and
the order of answers simple, and bounds what runs at a time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.torch import save
from torch import Tensor

from sottovoce.channel import ChannelError
from sottovoce.client import release_stream
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.keys import KEY_BYTES, agreed_secret, new_key, public_key
from sottovoce.files import kept_secret
from sottovoce.models import state_dict_at
from sottovoce.onboarding.contexts import Contexts
from sottovoce.onboarding.personalization import Personalizer
from sottovoce.onboarding.specification import NAME, Specification

KEY_FILE = "service.key"
CONTEXTS_FILE = "contexts.sqlite"
OVERHEAD_BYTES = 4096


class Desk:
    """A finished run, ready to onboard."""

    def __init__(self, run: str | Path) -> None:
        directory = Path(run)
        self._personalizer = Personalizer.load(directory)
        blueprint = self._personalizer.blueprint
        self.blueprint = blueprint
        self._key = kept_secret(directory / KEY_FILE, new_key)  # clients resend messages made for it
        self._contexts = Contexts(directory / CONTEXTS_FILE)
        agreement = Agreement(
            blueprint.plan,
            blueprint.shape,
            blueprint.classes,
            self._personalizer.mean,
            self._personalizer.std,
        )
        self.specification = Specification(self._personalizer.run, agreement, public_key(self._key))

    @property
    def largest_body(self) -> int:
        """Bytes beyond which a request cannot be a context of this run."""
        return KEY_BYTES + 8 * self.blueprint.statistic.size + OVERHEAD_BYTES

    def context_model(self) -> bytes | None:
        """The shared coefficients behind `context=predictions`, float32, or None."""
        model = self._personalizer.context_model()
        return None if model is None else self.packed(model)

    def coefficients(self, client: str, body: bytes) -> tuple[Tensor, bool]:
        """Coefficients (k,) for a body of public key and message; whether the context was known before."""
        if not self.blueprint.plan.releases_context:
            return self._personalizer.server.personalize(None), True
        known = self._contexts.known(client, body)
        context = self._decode(body) if known is None else known
        if known is None:
            self._contexts.remember(client, body, context)
        return self._personalizer.server.personalize(context), known is not None

    @staticmethod
    def packed(coefficients: Tensor) -> bytes:
        """Coefficients as they travel: float32, little-endian."""
        return coefficients.numpy().astype("<f4").tobytes()

    def model(self, coefficients: Tensor) -> bytes:
        """The personal model as a safetensors state dict."""
        state = state_dict_at(self.blueprint.module, self.blueprint.theta(coefficients))
        return save({name: value.contiguous() for name, value in state.items()})

    def close(self) -> None:
        self._contexts.close()

    def _decode(self, body: bytes) -> np.ndarray:
        key, message = body[:KEY_BYTES], body[KEY_BYTES:]
        if not message:
            raise ChannelError(f"{len(body)} bytes are no context: send the public key, then the message")
        run = self.specification.run
        secret = agreed_secret(self._key, key, run=run, name=NAME)
        stream = release_stream(run, NAME, "context", 0)
        return self.blueprint.context_channel.decode(message, secret=secret, stream=stream)
