"""Padded messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.channel import ChannelError
from sottovoce.errors import SottovoceError
from sottovoce.federation.coordinator import Fields, Options
from sottovoce.federation.padding import pad, unpad
from sottovoce.federation.sealing import SEAL_BYTES

from .world import World, same


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
