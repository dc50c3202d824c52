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
from dataclasses import dataclass
from typing import Any

from sottovoce.errors import SottovoceError, shown
from sottovoce.federation import Agreement
from sottovoce.federation.sealing import KEY_BYTES
from sottovoce.machine.determinism import derived_seed
from sottovoce.machine.documents import foreign_name
from sottovoce.release.blueprint import Blueprint

VERSION = 3
NAME = "future client"
"""The name of every onboarding client in streams; its secret makes its streams its own."""


BUCKET = 256
"""Contexts travel padded to multiples of so many bytes.

An entropy-coded message is longer where the noised statistic is unusual; padded, nearly all contexts of a run
have one length. Padding hides that length from whoever watches the connection. It hides neither that a client
onboards, when and from where, nor anything from the service, which decodes the context.
"""


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

        `model` and `features` are what this machine's owner calls model and feature map (`plan.limits`).
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
