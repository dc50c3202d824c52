"""The future client at home: fetch the specification, make one context, charge it, send it, build the model.

Nothing is charged before the service has been reached over a trusted connection, the token accepted and the
specification checked against what its plan means. After the charge only the stored bytes are sent, however
often the connection breaks. A ledger that was restored from a backup is charged for the lost context first.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce import data
from sottovoce.blueprint import Blueprint
from sottovoce.client import OWN_RECORDS, Client
from sottovoce.data import ClientRecords
from sottovoce.errors import SottovoceError
from sottovoce.federation.keys import agreed_secret, new_key, public_key
from sottovoce.files import locked
from sottovoce.onboarding.keys import Keys
from sottovoce.onboarding.personalization import delivered, labelled, own_budget
from sottovoce.onboarding.specification import NAME, VERSION, Specification
from sottovoce.privacy.ledger import Ledger

TRIES = 6
TIMEOUT = 30.0


class OnboardingError(SottovoceError):
    """The service could not be used; what was charged stays sendable."""


class Door:
    """The service at a URL, with a token and the authority that vouches for it."""

    def __init__(self, url: str, token: str = "", authority: str | Path | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        if not url.startswith(("https://", "http://127.0.0.1", "http://localhost")):
            raise OnboardingError(f"{url} is not encrypted: use https (http only to this machine)")
        try:
            self._tls = ssl.create_default_context(cafile=None if authority is None else str(authority))
        except (OSError, ssl.SSLError) as error:
            raise OnboardingError(f"{authority} is no certificate of an authority: {error}") from None

    def get(self, path: str) -> bytes:
        return self._open(urllib.request.Request(self._url + path, headers=self._headers))

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        everything = {**self._headers, **headers, "Content-Type": "application/octet-stream"}
        return self._open(urllib.request.Request(self._url + path, data=body, headers=everything))

    def _open(self, request: urllib.request.Request) -> bytes:
        """The answer; a busy or silent service is asked again a few times."""
        for attempt in range(TRIES):
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT, context=self._tls) as answer:
                    body: bytes = answer.read()
                    return body
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503) or attempt == TRIES - 1:
                    raise OnboardingError(f"the service refused ({error.code}): {_reason(error)}") from None
            except urllib.error.URLError as error:
                if isinstance(error.reason, ssl.SSLCertVerificationError):
                    raise OnboardingError(
                        f"the service's certificate is not trusted: {error.reason.verify_message}"
                    ) from None
                if attempt == TRIES - 1:
                    raise OnboardingError(f"cannot reach {self._url}: {error.reason}") from None
            except OSError as error:
                if attempt == TRIES - 1:
                    raise OnboardingError(f"the connection to {self._url} broke: {error}") from None
            time.sleep(min(0.25 * 2**attempt, 4.0))
        raise AssertionError("the last attempt returns or raises")


def onboard(
    url: str,
    records_file: str | Path,
    out: str | Path,
    *,
    token: str = "",
    authority: str | Path | None = None,
    ledger: str | Path | None = None,
    budget: float | None = None,
) -> dict[str, Any]:
    """Writes a future client's model to `out`, a safetensors state dict, and returns what it cost.

    The context is made of the first m_c records of the file; where there are more, with labels, the model's
    accuracy on the others is returned too. It stays here. `budget` is the ε that the client's ledger may
    reach, by default the run's own.
    """
    source = Path(records_file)
    door = Door(url, token, authority)
    stated = _json(door.get("/v1/specification"))
    specification = Specification.parse(stated)
    agreement, plan = specification.agreement, specification.agreement.plan
    blueprint = agreement.blueprint()
    specification.check(stated, blueprint)
    door.get("/v1/access")
    model = _coefficients(door.get("/v1/context-model"), blueprint) if plan.context == "predictions" else None
    records = data.read_client(
        source,
        shape=agreement.shape,
        classes=agreement.classes,
        mean=agreement.mean,
        std=agreement.std,
        needed=plan.context_records,
        labels=blueprint.statistic.uses_labels,
    )
    split = ClientRecords(records[:0], records[plan.context_records :], records[: plan.context_records])
    ledger_file = Path(ledger) if ledger is not None else source.with_suffix(".ledger.sqlite")
    run, allowed = specification.run, own_budget(plan, budget)
    keys, lock = Keys(ledger_file, run), ledger_file.with_name(f"{ledger_file.name}.lock")
    with Ledger.open(ledger_file, scope=data.fingerprint(source)) as book, locked(lock):
        if plan.releases_context and book.stored(run, OWN_RECORDS, "context", 0) is None:
            keys.renew(book, blueprint, allowed)
        key = keys.private() if plan.releases_context else new_key()
        client = Client(
            NAME,
            split,
            blueprint,
            book,
            run=run,
            secret=agreed_secret(key, specification.key, run=run, name=NAME),
            account=OWN_RECORDS,
            budget=allowed,
        )
        message = client.release_context(model) if plan.releases_context else b""
        keys.keep()
        total = book.epsilon(OWN_RECORDS, plan.delta, plan.accounting)
    headers = {"Sottovoce-Version": str(VERSION), "Sottovoce-Specification": specification.digest()}
    coefficients = _coefficients(door.post("/v1/onboard", public_key(key) + message, headers), blueprint)
    accuracy = client.evaluate(coefficients).accuracy if labelled(source) and split.held_out else None
    return delivered(blueprint, coefficients, Path(out), ledger_file, len(message), total, accuracy)


def _coefficients(body: bytes, blueprint: Blueprint) -> Tensor:
    """Checked coefficients (k,)."""
    if len(body) != 4 * blueprint.coefficients:
        raise OnboardingError(
            f"the service sent {len(body)} bytes, not {blueprint.coefficients} coefficients: no model written"
        )
    vector = np.frombuffer(body, "<f4").astype(np.float32)
    if not np.isfinite(vector).all():
        raise OnboardingError("the service sent coefficients that are not finite: no model written")
    return torch.from_numpy(vector)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise OnboardingError("that is not an onboarding service: check the URL") from None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(4096))["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return error.reason
