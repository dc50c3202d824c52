"""The secret of a client and the server: theirs alone, and of one run and one name."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from sottovoce.blueprint import client_secret, seeded_master
from sottovoce.federation.keys import (
    EnrolmentError,
    agreed_secret,
    channel_secret,
    new_key,
    proof,
    public_key,
)
from tests.small import federated_plan


def test_every_run_name_and_pair_of_keys_has_a_secret_of_its_own() -> None:
    server, one, two = new_key(), new_key(), new_key()
    secrets = {
        agreed_secret(server, public_key(client), run=run, name=name)
        for client in (one, two)
        for run in ("a", "b")
        for name in ("participant-0", "participant-1")
    }
    assert len(secrets) == 8


def test_who_sees_both_public_keys_does_not_have_the_secret() -> None:
    server, client, stranger = new_key(), new_key(), new_key()
    agreed = agreed_secret(server, public_key(client), run="r", name="n")
    for theirs in (public_key(server), public_key(client)):
        assert agreed_secret(stranger, theirs, run="r", name="n") != agreed


@pytest.mark.parametrize("theirs", [b"", bytes(31), bytes(32), b"\x01" + bytes(31)], ids=len)
def test_a_key_that_gives_everybody_the_same_secret_is_refused(theirs: bytes) -> None:
    with pytest.raises(EnrolmentError, match="enrol again"):
        agreed_secret(new_key(), theirs, run="r", name="n")


def test_only_a_seeded_simulation_has_reproducible_channel_secrets() -> None:
    agreed, seeded = new_key(), federated_plan()
    expected = client_secret(seeded_master(seeded), "participant-2")
    assert channel_secret(seeded, agreed, 2) == expected
    assert channel_secret(seeded.replace(seeded=False), agreed, 2) == agreed


def test_a_proof_is_of_one_secret_and_one_nonce() -> None:
    proofs = {proof(secret, nonce) for secret in (b"a" * 32, b"b" * 32) for nonce in (b"1", b"2")}
    assert len(proofs) == 4
    expected = hmac.new(b"a" * 32, b"sottovoce enrolment:1", hashlib.sha256).digest()
    assert proof(b"a" * 32, b"1") == expected  # a client of any version proves the same
