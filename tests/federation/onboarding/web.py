"""Requests to a service, and what they cost the client that makes them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

from sottovoce.privacy.ledger import OWN_RECORDS, Ledger, client_scope


def post(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    request = urllib.request.Request(f"{url}/v1/onboard", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=600) as answer:
        body: bytes = answer.read()
        return body


def headers(url: str, token: str) -> dict[str, str]:
    digest = json.loads(get(f"{url}/v1/specification"))["digest"]
    return {
        "Authorization": f"Bearer {token}",
        "Sottovoce-Version": "3",
        "Sottovoce-Specification": digest,
    }


def spent(records: Path) -> int:
    with Ledger.open(records.with_suffix(".ledger.sqlite"), scope=client_scope(records.stem)) as ledger:
        return ledger.releases(OWN_RECORDS)
