"""A service over the network, as a future client reaches it.

Nothing is charged before the service has been reached over a trusted connection, the token accepted and the
specification checked against what its plan means. After the charge only the stored bytes are sent, however
often the connection breaks. The token goes to that service alone: a redirect is refused.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import SottovoceError, shown
from sottovoce.federation.onboarding import BUCKET, VERSION, Specification
from sottovoce.federation.onboarding.client import obtain_model
from sottovoce.federation.sealing import pad, public_key
from sottovoce.machine.documents import MOST_TEXT
from sottovoce.privacy.terms import Terms
from sottovoce.release.blueprint import Blueprint

TRIES = 6
TIMEOUT = 30.0
BUSY = (429, 502, 503, 504)
"""A proxy's answers while the service has too much to do or is being started again, and the service's own."""


class OnboardingError(SottovoceError):
    """The service could not be used; what was charged stays sendable."""


class Connection:
    """The service at a URL, with a token and the authority that vouches for it."""

    def __init__(self, url: str, token: str = "", authority: str | Path | None = None) -> None:
        self._url = checked_url(url)
        if not token.isascii() or not token.isprintable():
            raise OnboardingError("that is not a token, it has other characters: check the file")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            tls = ssl.create_default_context(cafile=None if authority is None else str(authority))
        except (OSError, ssl.SSLError) as error:
            raise OnboardingError(f"{authority} is not the certificate of an authority: {error}") from None
        handlers: list[urllib.request.BaseHandler] = [_Redirects(), urllib.request.HTTPSHandler(context=tls)]
        if not self._url.startswith("https:"):
            handlers.append(urllib.request.ProxyHandler({}))  # what is not encrypted stays on this machine
        self.most = MOST_TEXT
        """Bytes of an answer that are read."""
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str) -> bytes:
        return self._open(urllib.request.Request(self._url + path, headers=self._headers))

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        everything = {**self._headers, **headers, "Content-Type": "application/octet-stream"}
        return self._open(urllib.request.Request(self._url + path, data=body, headers=everything))

    def _open(self, request: urllib.request.Request) -> bytes:
        """The answer; a busy or silent service is asked again a few times."""
        failure = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(min(0.125 * 2**attempt, 4.0))
            try:
                with self._opener.open(request, timeout=TIMEOUT) as answer:
                    body: bytes = answer.read(self.most + 1)
                if len(body) > self.most:
                    raise OnboardingError(f"the service sends more than {self.most} bytes: check the URL")
                return body
            except urllib.error.HTTPError as error:
                failure = f"the service refused ({error.code}): {_reason(error)}"
                if error.code not in BUSY:
                    break
            except urllib.error.URLError as error:
                failure = f"cannot reach {self._url}: {error.reason}"
                if isinstance(error.reason, ssl.SSLCertVerificationError):
                    failure = f"the service's certificate is not trusted: {error.reason.verify_message}"
                    break
            except (OSError, http.client.HTTPException) as error:
                failure = f"the connection to {self._url} broke: {shown(repr(error))}"
        raise OnboardingError(failure)


class Service:
    """A service that was reached over a trusted connection, and whose specification means what it says."""

    def __init__(self, connection: Connection, model: str | None = None, features: str | None = None) -> None:
        stated = parsed_json(connection.get("/v1/specification"))
        self._connection = connection
        self._specification = Specification.parse(stated, model=model, features=features)
        self.run, self.key = self._specification.run, self._specification.key
        self.blueprint = self._specification.agreement.blueprint()
        self._specification.check(stated, self.blueprint)
        connection.get("/v1/access")
        connection.most = max(MOST_TEXT, 4 * self.blueprint.coefficients)

    def context_model(self) -> Tensor | None:
        if not self.blueprint.plan.context_traits.future_uses_model:
            return None
        return _coefficients(self._connection.get("/v1/context-model"), self.blueprint)

    def coefficients(self, private: bytes, message: bytes) -> Tensor:
        headers = {
            "Sottovoce-Version": str(VERSION),
            "Sottovoce-Specification": self._specification.digest(),
        }
        body = public_key(private) + pad(message, BUCKET)
        return _coefficients(self._connection.post("/v1/onboard", body, headers), self.blueprint)


def onboard(
    url: str,
    records_file: str | Path,
    out: str | Path,
    *,
    token: str = "",
    authority: str | Path | None = None,
    terms: Terms | None = None,
    model: str | None = None,
    features: str | None = None,
    finish: bool = False,
) -> dict[str, Any]:
    """Writes a future client's model from the service at `url`; see `obtain_model`.

    `model` and `features` name the run's where they are code of one's own (`plan.limits`).
    """
    service = Service(Connection(url, token, authority), model, features)
    said = terms or Terms()
    return obtain_model(service, records_file, out, said, module=model, features=features, finish=finish)


def checked_url(url: str) -> str:
    """The URL of a service that a token may be sent to: https, or http to this machine.

    >>> checked_url("https://example.org:8443/")
    'https://example.org:8443'
    >>> checked_url("http://127.0.0.1@evil.example")
    Traceback (most recent call last):
    sottovoce.federation.onboarding.remote.OnboardingError: http://127.0.0.1@evil.example is not the URL of \
a service: use https://host:port
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if (
        not host
        or not (url.isascii() and url.isprintable())
        or parts.scheme not in ("http", "https")
        or {"@", "\\", " "} & set(url)
        or parts.query
        or parts.fragment
    ):
        raise OnboardingError(f"{shown(url)} is not the URL of a service: use https://host:port")
    if parts.scheme == "http" and not this_machine(host):
        raise OnboardingError(f"{url} is not encrypted: use https (http only to this machine)")
    return url.rstrip("/")


def this_machine(host: str) -> bool:
    """Returns whether a host is this machine, as nobody else can be under that name."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows none: the token would travel along."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        raise OnboardingError(
            f"the service sends us elsewhere ({code}, {shown(newurl)}): give the URL that it is really at"
        )


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


def parsed_json(body: bytes) -> Any:
    """Returns what a stranger calls JSON."""
    try:
        return json.loads(body.decode())  # UTF-8 and nothing else: json would guess, and import a codec
    except (ValueError, RecursionError):
        raise OnboardingError("that is not an onboarding service: check the URL") from None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return shown(json.loads(error.read(4096).decode())["error"])
    except (ValueError, KeyError, TypeError, OSError, RecursionError, http.client.HTTPException):
        return shown(error.reason)
