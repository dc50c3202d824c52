"""The envelope refuses every message that is not exactly the one its reader expects."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.channel import CHANNELS, ChannelError, SeededRandomness, channel_class, open_channel
from sottovoce.channel.wire import FORMATS, Envelope, claim, derive, stream_bytes, version_of

SECRET = bytes(range(32))
for name in CHANNELS:
    channel_class(name)  # whose formats are known then


def _message(**changes: object) -> tuple[bytes, Envelope]:
    fields = {"format": "direct", "size": 3, "sigma": 0.5, "secret": SECRET, "stream": ("a", 1)} | changes
    envelope = Envelope(**fields)  # type: ignore[arg-type]
    return envelope.seal(b"payload"), envelope


def test_a_sealed_payload_opens_again() -> None:
    for bound in ({}, {"request": b"asked", "drawn": b"12"}):
        message, envelope = _message(**bound)
        reader = replace(envelope, drawn=b"")  # it learns them from the message
        assert reader.opened(message) == (envelope, b"payload")
        assert reader.opened(envelope.seal(b"")) == (envelope, b"")


@pytest.mark.parametrize("thing", [None, "text", 7, ["a"]])
def test_a_message_is_bytes(thing: object) -> None:
    with pytest.raises(ChannelError, match="a message is bytes, not"):
        _message()[1].opened(thing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"size": 4},
        {"sigma": 0.5000001},
        {"secret": bytes(32)},
        {"stream": ("a", 2)},
        {"stream": ("a", "1")},
        {"request": b"other"},
        {"request": b""},
    ],
)
def test_a_reader_that_expects_something_else_refuses_the_message(change: dict[str, object]) -> None:
    bound = {"request": b"asked", "drawn": b"12"} if "request" in change else {}
    message, _ = _message(**bound)
    _, reader = _message(**bound | change)
    with pytest.raises(ChannelError, match="does not match its tag"):
        reader.opened(message)


def test_a_message_of_another_channel_is_named_in_the_refusal() -> None:
    message, _ = _message(format="polar")
    with pytest.raises(ChannelError, match="made by channel polar, not direct"):
        _message()[1].opened(message)


def test_a_message_of_a_later_version_asks_for_an_update() -> None:
    message, envelope = _message()
    with pytest.raises(ChannelError, match="format version 2"):
        envelope.opened(bytes([message[0] + 16]) + message[1:])


def test_a_message_that_is_bound_to_no_request_is_none_that_is() -> None:
    message, _ = _message()
    with pytest.raises(ChannelError, match="format version 1, not 2; update the older end"):
        _message(request=b"")[1].opened(message)
    assert [version_of(each) for each in (message, _message(request=b"")[0], b"", "text")] == [1, 2, 0, 0]  # type: ignore[arg-type]


def test_no_two_envelopes_have_one_context() -> None:
    """What a message is bound to cannot be moved from one part of it to another."""
    parts = [
        {},
        {"request": b""},
        {"request": b"ab"},
        {"request": b"a", "drawn": b"b"},
        {"drawn": b"ab", "request": b""},
        {"stream": ("a", 1, "r"), "request": b""},
        {"stream": ("a", 1, "ab")},
    ]
    assert len({_message(**part)[1].context for part in parts}) == len(parts)


@pytest.mark.parametrize("bound", [{}, {"request": b"asked", "drawn": b"12"}])
def test_every_flipped_bit_and_every_truncation_is_refused(bound: dict[str, object]) -> None:
    message, envelope = _message(**bound)
    for bit in range(8 * len(message)):
        damaged = bytearray(message)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChannelError):
            envelope.opened(bytes(damaged))
    for length in range(len(message)):
        with pytest.raises(ChannelError):
            envelope.opened(message[:length])


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


def test_the_numbers_of_formats_and_the_version_are_given_once_for_ever() -> None:
    ours = {name: number for channel in CHANNELS for name, number in channel_class(channel).formats.items()}
    assert list(ours) == [
        "direct", "direct-q12", "lrsuq/Z4", "lrsuq/D4", "lrsuq/E8",
        "lrsuq-elias/Z4", "lrsuq-elias/D4", "lrsuq-elias/E8", "polar", "integers",
    ]  # fmt: skip
    assert list(ours.values()) == list(range(10))
    assert [_message(format=name)[0][0] for name in ours] == [16 + number for number in range(10)]


@pytest.mark.parametrize(("name", "number"), [("polar", 7), ("new", 8), ("new", 16), ("new", -1)])
def test_a_number_that_is_taken_or_none_is_refused(name: str, number: int) -> None:
    before = dict(FORMATS)
    with pytest.raises(ChannelError, match=f"format {name} cannot have number {number}"):
        claim(name, number)
    assert before == FORMATS


def test_keys_and_tags_are_pinned() -> None:
    key = derive(SECRET, b"purpose", b"context")
    assert key.hex() == "40197656bf0f08aaf18b0224da5f04305be014fe4e04ac994d408730feb3e351"
    message = Envelope("polar", 7, 0.25, SECRET, ("run", 3)).seal(b"payload")
    assert message.hex() == "18aa54f9d07061796c6f6164"
