"""A service over the network, as a future client reaches it.

Nothing is charged before the service has been reached over a trusted connection, the token accepted and the
specification checked against what its plan means. After the charge only the stored bytes are sent, however
often the connection breaks.
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

from sottovoce.blueprint import Blueprint
from sottovoce.errors import SottovoceError
from sottovoce.federation.keys import public_key
from sottovoce.onboarding.future_client import obtain_model
from sottovoce.onboarding.specification import VERSION, Specification
from sottovoce.privacy.terms import Terms

TRIES = 6
TIMEOUT = 30.0


class OnboardingError(SottovoceError):
    """The service could not be used; what was charged stays sendable."""


class Connection:
    """The service at a URL, with a token and the authority that vouches for it."""

    def __init__(self, url: str, token: str = "", authority: str | Path | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        if not url.startswith(("https://", "http://127.0.0.1", "http://localhost")):
            raise OnboardingError(f"{url} is not encrypted: use https (http only to this machine)")
        try:
            self._tls = ssl.create_default_context(cafile=None if authority is None else str(authority))
        except (OSError, ssl.SSLError) as error:
            raise OnboardingError(f"{authority} is not the certificate of an authority: {error}") from None

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


class Service:
    """A service that was reached over a trusted connection, and whose specification means what it says."""

    def __init__(self, connection: Connection) -> None:
        stated = _json(connection.get("/v1/specification"))
        self._connection = connection
        self._specification = Specification.parse(stated)
        self.run, self.key = self._specification.run, self._specification.key
        self.blueprint = self._specification.agreement.blueprint()
        self._specification.check(stated, self.blueprint)
        connection.get("/v1/access")

    def context_model(self) -> Tensor | None:
        if not self.blueprint.plan.future_uses_model:
            return None
        return _coefficients(self._connection.get("/v1/context-model"), self.blueprint)

    def coefficients(self, private: bytes, message: bytes) -> Tensor:
        headers = {
            "Sottovoce-Version": str(VERSION),
            "Sottovoce-Specification": self._specification.digest(),
        }
        body = self._connection.post("/v1/onboard", public_key(private) + message, headers)
        return _coefficients(body, self.blueprint)


def onboard(
    url: str,
    records_file: str | Path,
    out: str | Path,
    *,
    token: str = "",
    authority: str | Path | None = None,
    terms: Terms | None = None,
) -> dict[str, Any]:
    """Writes a future client's model from the service at `url`; see `obtain_model`."""
    service = Service(Connection(url, token, authority))
    return obtain_model(service, records_file, out, terms or Terms())


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
