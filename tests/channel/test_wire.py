"""The envelope refuses every message that is not exactly the one its reader expects."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.channel import ChannelError, SeededRandomness, open_channel
from sottovoce.channel.wire import Envelope, stream_bytes

SECRET = bytes(range(32))


def _message(**changes: object) -> tuple[bytes, Envelope]:
    fields = {"format": "direct", "size": 3, "sigma": 0.5, "secret": SECRET, "stream": ("a", 1)} | changes
    envelope = Envelope(**fields)  # type: ignore[arg-type]
    return envelope.seal(b"payload"), envelope


def test_a_sealed_payload_opens_again() -> None:
    message, envelope = _message()
    assert envelope.open(message) == b"payload"


@pytest.mark.parametrize(
    "change",
    [{"size": 4}, {"sigma": 0.5000001}, {"secret": bytes(32)}, {"stream": ("a", 2)}, {"stream": ("a", "1")}],
)
def test_a_reader_that_expects_something_else_refuses_the_message(change: dict[str, object]) -> None:
    message, _ = _message()
    _, reader = _message(**change)
    with pytest.raises(ChannelError, match="does not match its tag"):
        reader.open(message)


def test_a_message_of_another_channel_is_named_in_the_refusal() -> None:
    message, _ = _message(format="polar")
    with pytest.raises(ChannelError, match="made by channel polar, not direct"):
        _message()[1].open(message)


def test_a_message_of_a_later_version_asks_for_an_update() -> None:
    message, envelope = _message()
    with pytest.raises(ChannelError, match="format version 2"):
        envelope.open(bytes([message[0] + 16]) + message[1:])


def test_every_flipped_bit_and_every_truncation_is_refused() -> None:
    message, envelope = _message()
    for bit in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChannelError):
            envelope.open(bytes(damaged))
    for length in range(len(message)):
        with pytest.raises(ChannelError):
            envelope.open(message[:length])


def test_streams_that_differ_anywhere_have_different_bytes() -> None:
    streams = [("a", 1), ("a", "1"), ("a1",), ("a", 11), (1, "a"), (), ("",), ("", ""), (-1,), ("ai\x00",)]
    assert len({stream_bytes(stream) for stream in streams}) == len(streams)


@pytest.mark.parametrize("stream", [["a"], ("a", 1.0), (b"a",), "a", (None,)])
def test_a_stream_of_other_things_is_refused(stream: object) -> None:
    with pytest.raises(ChannelError, match="stream"):
        stream_bytes(stream)  # type: ignore[arg-type]


def test_a_secret_of_another_length_is_refused() -> None:
    channel = open_channel("direct", size=1, sigma=1.0)
    with pytest.raises(ChannelError, match="32 bytes"):
        channel.encode(np.zeros(1), secret=b"short", stream=(1,), private=SeededRandomness(b"x"))
