"""Messages die: after a round is applied, nobody can read its releases again, whatever was kept on disk."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sottovoce.channel import ChannelError
from sottovoce.errors import SottovoceError
from sottovoce.federation import store as store_module
from sottovoce.federation.sealing import (
    MOST_BUCKET,
    SEAL_BYTES,
    EnrolmentError,
    agreed_secret,
    channel_secret,
    new_key,
    pad,
    proof,
    public_key,
    seal,
    seal_downward,
    sealed_for,
    unpad,
    unseal,
    unseal_downward,
)
from sottovoce.federation.server import Fields, Options
from sottovoce.federation.status.progress import keep_log, write_run
from sottovoce.release.secrets import client_secret, seeded_master
from tests.small import federated_plan

from . import overhearing
from .overhearing import Secrets, overheard
from .world import World, charged, same

STREAM = ("run", "participant-0", "gradient", 1)


@pytest.fixture
def codewords(monkeypatch: pytest.MonkeyPatch) -> Secrets:
    return overheard(monkeypatch)


@pytest.fixture
def seal_keys(monkeypatch: pytest.MonkeyPatch) -> Secrets:
    """Every private key for which the server let a release be sealed."""
    made: Secrets = []

    def overheard() -> bytes:
        made.append(new_key())
        return made[-1]

    monkeypatch.setattr(store_module, "new_key", overheard)
    return made


def found(folder: Path, needles: Secrets) -> set[str]:
    """Files below a folder that hold a piece of one of the needles."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".npz"]
    return overhearing.found(files, needles)


def test_what_is_looked_for_would_be_found(tmp_path: Path, codewords: Secrets, seal_keys: Secrets) -> None:
    world = World(tmp_path, seeded=False)
    world.enrol_all()
    answer = world.answer(0)
    assert world.codeword(0, answer) == codewords[-1]
    assert found(tmp_path, seal_keys[1:]) == {"server.sqlite-wal"}
    (tmp_path / "careless").write_bytes(b"..." + codewords[-1])
    assert "careless" in found(tmp_path, codewords)


@pytest.mark.parametrize("channel", ["direct", "direct-q12", "integers"])
def test_no_codeword_and_no_key_outlives_its_round(
    tmp_path: Path, codewords: Secrets, seal_keys: Secrets, channel: str
) -> None:
    world = World(tmp_path, seeded=False, channel=channel)
    world.enrol_all()
    mailbox = tmp_path / "superlink"  # keeps every answer that ever passed
    mailbox.mkdir()
    while not world.coordinator.done:
        for participant in list(world.coordinator.missing()):
            answer = world.answer(participant)
            (mailbox / f"{len(list(mailbox.iterdir()))}").write_bytes(answer["release"])
            world.coordinator.accept(participant, answer)
            assert found(tmp_path, codewords) == set()  # not even while the round is open
        world.coordinator.advance()
        assert found(tmp_path, codewords) == set()
        assert found(tmp_path, seal_keys[1:]) == set()  # the first is the server's own
    assert len(codewords) == 3 + 4 * 2
    assert len(seal_keys) >= len(codewords)
    world.kill()
    assert found(tmp_path, codewords + seal_keys[1:]) == set()


def test_a_server_killed_before_it_cut_its_log_does_so_when_it_is_back(
    tmp_path: Path, seal_keys: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seeded=False)
    world.enrol_all()
    with monkeypatch.context() as patch:
        patch.setattr("sottovoce.federation.store.Store._forget", lambda _: None)
        world.step()
    for part in tmp_path.glob("server.sqlite*"):  # as a kill leaves them: closing would cut the log
        shutil.copy(part, tmp_path / part.name.replace("server", "killed"))
    world.kill()
    for part in tmp_path.glob("killed.sqlite*"):
        part.replace(tmp_path / part.name.replace("killed", "server"))
    assert found(tmp_path, seal_keys[1:4]) == {"server.sqlite-wal"}
    world.start()
    assert found(tmp_path, seal_keys[1:4]) == set()


def test_keys_of_clients_that_never_answered_die_with_the_round_too(
    tmp_path: Path, seal_keys: Secrets
) -> None:
    world = World(tmp_path, seeded=False, clients_per_round=3, options=Options(patience=0.0))
    world.enrol_all()
    world.step()
    late = world.answer(2)
    for participant in (0, 1):
        world.coordinator.accept(participant, world.answer(participant))
    world.coordinator.advance()
    assert found(tmp_path, seal_keys[1:]) == set()
    world.answer(2)  # of the next round, for which there is another key
    with pytest.raises(ChannelError, match="does not match its seal"):
        world.codeword(2, late)


def test_a_context_that_was_lost_is_sent_again_in_a_later_round(tmp_path: Path, codewords: Secrets) -> None:
    world = World(tmp_path, seeded=False, clients_per_round=3, options=Options(patience=0.0))
    world.enrol_all()
    lost = world.answer(2)
    for _ in range(2):
        for participant in (0, 1):
            world.coordinator.accept(participant, world.answer(participant))
        world.coordinator.advance()
    assert world.answer(2) == lost
    world.coordinator.accept(2, lost)
    world.coordinator.accept(2, world.answer(2))
    world.finish()
    assert world.store.seal_key(2, "context") is None


def test_when_training_ends_no_key_is_left_for_those_who_never_came(tmp_path: Path) -> None:
    world = World(tmp_path, clients_per_round=3, options=Options(patience=0.0))
    for index in (0, 1):
        world.enrol(index)
    world.coordinator.request(2, "context")
    while not world.coordinator.done:
        for participant in (0, 1):
            world.coordinator.accept(participant, world.answer(participant))
        world.coordinator.advance()
    assert world.store.query("SELECT * FROM seal") == []


def test_a_server_that_lost_its_key_gets_no_second_encoding(tmp_path: Path, codewords: Secrets) -> None:
    world = World(tmp_path, seeded=False)
    world.enrol_all()
    world.answer(0)
    with world.store.transaction():
        world.store.query("DELETE FROM seal")
    answer = world.answer(0)
    assert "release" not in answer
    assert "sealed for a key that the server no longer has" in answer["left_out"]
    assert len(codewords) == 1


def test_only_the_server_opens_a_seal_and_only_of_its_own_stream() -> None:
    server, agreed = new_key(), b"a" * 32
    sealed = seal(b"release", STREAM, to=public_key(server), agreed=agreed, bucket=64)
    assert len(sealed) == SEAL_BYTES + 64
    assert sealed_for(sealed) == public_key(server)
    assert unseal(sealed, STREAM, private=server, agreed=agreed) == b"release"
    assert seal(b"release", STREAM, to=public_key(server), agreed=agreed, bucket=64) != sealed
    others: list[Callable[[], bytes]] = [
        lambda: unseal(sealed, STREAM, private=new_key(), agreed=agreed),
        lambda: unseal(sealed, STREAM, private=server, agreed=b"b" * 32),
        lambda: unseal(sealed, (*STREAM[:3], 2), private=server, agreed=agreed),
        lambda: unseal(sealed, ("run", "participant-1", *STREAM[2:]), private=server, agreed=agreed),
    ]
    for attempt in others:
        with pytest.raises(ChannelError, match="does not match its seal"):
            attempt()
    for place in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[place] ^= 1
        with pytest.raises(ChannelError):
            unseal(bytes(damaged), STREAM, private=server, agreed=agreed)
    with pytest.raises(ChannelError, match="other than a key"):
        unseal(sealed[:32] + bytes(32) + sealed[64:], STREAM, private=server, agreed=agreed)
    for no_key in (b"", bytes(31), bytes(32)):
        with pytest.raises(ChannelError, match="key"):
            seal(b"release", STREAM, to=no_key, agreed=agreed)


def test_a_seal_is_as_long_as_it_says_and_a_bucket_fits_into_its_header() -> None:
    server, agreed = new_key(), b"a" * 32
    for message in (b"", b"release"):
        sealed = seal(message, STREAM, to=public_key(server), agreed=agreed)
        assert len(sealed) == SEAL_BYTES + len(message) == 84 + len(message)
        assert unseal(sealed, STREAM, private=server, agreed=agreed) == message
    for short in (b"", sealed[: SEAL_BYTES - 1]):
        with pytest.raises(ChannelError, match="shorter than a seal"):
            unseal(short, STREAM, private=server, agreed=agreed)
    for bucket in (-1, MOST_BUCKET + 1, 10**8, 2**32):
        with pytest.raises(ChannelError, match="65536 bytes at most"):
            seal(b"release", STREAM, to=public_key(server), agreed=agreed, bucket=bucket)
    sealed = seal(b"release", STREAM, to=public_key(server), agreed=agreed, bucket=MOST_BUCKET)
    assert unseal(sealed, STREAM, private=server, agreed=agreed) == b"release"


def test_a_server_that_asks_for_megabytes_of_padding_gets_nothing_and_costs_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    participant, kind = next(iter(world.coordinator.missing().items()))
    request = world.coordinator.request(participant, kind)
    for bucket in (MOST_BUCKET + 1, 10**8, -1):
        with pytest.raises(ChannelError, match="padded"):
            world.node(participant).release({**request, "bucket": bucket})
    assert charged(world, participant) == []
    assert world.node(participant).release({**request, "bucket": 64})["release"]
    with pytest.raises(ChannelError, match="padded"):
        Options(bucket=10**8)


def test_what_goes_down_is_opened_by_one_client_of_one_run_alone() -> None:
    agreed, stream = b"a" * 32, ("run", "participant-0", "model", 0)
    sealed = seal_downward(b"model", stream, agreed=agreed)
    assert unseal_downward(sealed, stream, agreed=agreed) == b"model"
    assert seal_downward(b"model", stream, agreed=agreed) != sealed  # a fresh salt
    for wrong in (
        sealed[:-1],
        sealed[:-1] + bytes([sealed[-1] ^ 1]),
        bytes([sealed[0] ^ 1]) + sealed[1:],
        b"",
    ):
        with pytest.raises(ChannelError, match="for another client or run"):
            unseal_downward(wrong, stream, agreed=agreed)
    for other, key in ((stream, b"b" * 32), (("run", "participant-1", "model", 0), agreed)):
        with pytest.raises(ChannelError, match="for another client or run"):
            unseal_downward(sealed, other, agreed=key)


def test_a_request_without_a_key_charges_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, seeded=False)
    world.enrol_all()
    request = world.coordinator.request(0, "context")
    with pytest.raises(SottovoceError, match="no key to seal"):
        world.node(0).release({**request, "seal": b""})
    assert world.node(0).release(request)["release"]


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_files_are_for_their_owner_only_whatever_the_umask(tmp_path: Path, no_umask: None) -> None:
    world = World(tmp_path / "run")
    keep_log(tmp_path / "run")
    world.enrol_all()
    world.finish()
    write_run(tmp_path / "run", world.coordinator)
    paths = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    names = {path.name for path in paths}
    assert {"server.sqlite", "model.safetensors", "result.json", "federation.log", "client.log"} <= names
    for path in paths:
        if path.name == "agreement.toml":  # given to everybody
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_message_that_lies_about_its_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, options=Options(bucket=64))
    world.enrol_all()
    answer = world.answer(0)
    assert (len(answer["release"]) - SEAL_BYTES) % 64 == 0
    padded = pad(world.codeword(0, answer), 64)

    def said_to_be_padded(body: bytes, monkeypatch: pytest.MonkeyPatch) -> Fields:
        with monkeypatch.context() as patch:
            patch.setattr("sottovoce.federation.sealing.pad", lambda message, bucket: message)
            return world.sealed(0, answer, body, bucket=64)

    with pytest.raises(SottovoceError, match="cannot"):
        world.coordinator.accept(0, said_to_be_padded((2**31).to_bytes(4, "big") + padded[4:], monkeypatch))
    with pytest.raises(SottovoceError, match="refused unread"):
        world.coordinator.accept(0, {**answer, "release": bytes(10**7)})
    with pytest.raises(SottovoceError, match="not padded"):
        world.coordinator.accept(0, said_to_be_padded(padded[:-1], monkeypatch))
    assert world.store.received(0) == []
    world.coordinator.accept(0, answer)


def test_padding_changes_no_result(tmp_path: Path) -> None:
    worlds = [World(tmp_path / str(bucket), options=Options(bucket=bucket)) for bucket in (0, 512)]
    for world in worlds:
        world.enrol_all()
        world.finish()
    assert same(*(world.coordinator.server.state() for world in worlds))


@pytest.mark.parametrize("bucket", [0, 1, 5, 64])
@pytest.mark.parametrize("size", [0, 1, 59, 60, 61, 4096])
def test_a_padded_message_comes_back_and_fills_its_bucket(bucket: int, size: int) -> None:
    message = bytes(range(256)) * 16
    padded = pad(message[:size], bucket)
    assert unpad(padded, bucket) == message[:size]
    assert not bucket or len(padded) % bucket == 0


def test_only_one_padding_of_a_message_is_accepted() -> None:
    padded = pad(b"release", 64)
    for other in (padded + bytes(64), padded[:-1] + b"\x01", b"", padded[:3]):
        with pytest.raises(ChannelError, match="refused"):
            unpad(other, 64)
    full = pad(bytes(60), 64)  # fills its bucket
    assert len(full) == 64
    for wrong in (full + bytes(64), (61).to_bytes(4, "big") + full[4:]):
        with pytest.raises(ChannelError, match="cannot: refused"):
            unpad(wrong, 64)


# The secret of a client and the server: theirs alone, and of one run and one name.


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
