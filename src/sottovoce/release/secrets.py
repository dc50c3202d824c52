"""Names and secrets of participants, from which their streams follow."""

from __future__ import annotations

import hashlib
import hmac

from sottovoce.plan import Plan


def participant_name(index: int) -> str:
    """The name under which a participant's releases are charged."""
    return f"participant-{index}"


def client_secret(master: bytes, client: str) -> bytes:
    """A client's 32-byte channel secret, derived from the master secret of a simulated run."""
    return hmac.digest(master, b"sottovoce client secret:" + client.encode(), "sha256")


def seeded_master(plan: Plan) -> bytes:
    """The master secret of a seeded simulation: reproducible, and therefore no secret."""
    return hashlib.sha256(f"sottovoce:{plan.seed}:master".encode()).digest()
