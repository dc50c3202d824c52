"""The envelope of a message: one format byte, a keyed tag, then the payload.

The tag binds a message to the secret, the channel, the size, σ and the stream, and covers every payload
byte, so a damaged, truncated, foreign or misplaced message is refused before anything in it is read. It
detects accidents and mix-ups (a random change passes with probability 2⁻³²); messages still travel encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import operator
import struct
from dataclasses import dataclass
from functools import cached_property

from sottovoce.catalog import CHANNELS
from sottovoce.errors import SottovoceError

VERSION = 1
TAG_BYTES = 4
HEADER_BYTES = 1 + TAG_BYTES
SECRET_BYTES = 32

Stream = tuple[str | int, ...]


class ChannelError(SottovoceError):
    """A statistic that cannot be sent, or a message that must not be read."""


def stream_bytes(stream: Stream) -> bytes:
    """The stream as bytes; different streams never share an encoding.

    >>> stream_bytes(("client", 7))
    b's\\x00\\x00\\x00\\x06clienti\\x00\\x00\\x00\\x017'
    """
    if not isinstance(stream, tuple):
        raise ChannelError(f"a stream is a tuple of strings and integers, not {type(stream).__name__}")
    parts = []
    for item in stream:
        if isinstance(item, str):
            kind, text = b"s", item.encode()
        else:
            try:
                kind, text = b"i", str(operator.index(item)).encode()
            except TypeError:
                raise ChannelError(
                    f"a stream holds strings and integers, not {type(item).__name__}; convert it first"
                ) from None
        parts.append(kind + struct.pack(">I", len(text)) + text)
    return b"".join(parts)


def derive(secret: bytes, purpose: bytes, context: bytes) -> bytes:
    """A 32-byte key: HKDF-SHA256 of `secret` for one purpose in one context (RFC 5869, one block)."""
    if len(secret) != SECRET_BYTES:
        raise ChannelError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}; try secrets.token_bytes")
    extracted = hmac.digest(b"sottovoce channel", secret, "sha256")
    info = struct.pack(">H", len(purpose)) + purpose + hashlib.sha256(context).digest()
    return hmac.digest(extracted, info + b"\x01", "sha256")


def _formats() -> dict[str, int]:
    return {name: number for channel in CHANNELS.values() for name, number in channel.formats.items()}


@dataclass(frozen=True)
class Envelope:
    """What both ends know before a message exists; seals payloads and opens messages."""

    format: str  # of a channel of the catalog
    size: int
    sigma: float
    secret: bytes
    stream: Stream

    @property
    def number(self) -> int:
        """The format's number in the first byte."""
        return _formats()[self.format]

    @cached_property
    def context(self) -> bytes:
        """Version, channel, size, σ and stream as bytes: the context of every derived key."""
        head = struct.pack(">BBQd", VERSION, self.number, self.size, self.sigma)
        return head + stream_bytes(self.stream)

    def _tag(self, payload: bytes) -> bytes:
        key = derive(self.secret, b"tag", self.context)
        return hmac.digest(key, payload, "sha256")[:TAG_BYTES]

    def seal(self, payload: bytes) -> bytes:
        """The message that carries `payload`: HEADER_BYTES longer."""
        return bytes([VERSION << 4 | self.number]) + self._tag(payload) + payload

    def open(self, message: bytes) -> bytes:
        """The payload of `message`, or a ChannelError that says why it is refused."""
        if not isinstance(message, bytes | bytearray | memoryview):
            raise ChannelError(f"a message is bytes, not {type(message).__name__}")
        message = bytes(message)
        if len(message) < HEADER_BYTES:
            raise ChannelError(f"message of {len(message)} bytes is shorter than a header; ask for it again")
        payload = message[HEADER_BYTES:]
        expected = bytes([VERSION << 4 | self.number]) + self._tag(payload)
        if not hmac.compare_digest(message[:HEADER_BYTES], expected):
            raise ChannelError(self._refusal(message[0]))
        return payload

    def _refusal(self, found: int) -> str:
        version, channel = found >> 4, found & 15
        if version != VERSION:
            return f"message has format version {version}, this decoder reads {VERSION}; update the older end"
        if channel != self.number:
            names = {number: name for name, number in _formats().items()}
            sender = names.get(channel, f"number {channel}")
            return f"message was made by channel {sender}, not {self.format}; open one channel at both ends"
        return (
            "message does not match its tag: it was damaged, or secret, stream, size or sigma differ "
            "between the two ends"
        )
