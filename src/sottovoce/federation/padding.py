"""Padding of messages to size buckets, so that their length says little about the statistic inside.

An entropy-coded message is longer where the statistic is unusual; padded to a multiple of the bucket, most
messages of a run have one length. Padding costs bytes and changes nothing else.
"""

from __future__ import annotations

import struct

from sottovoce.channel import ChannelError

_LENGTH = struct.Struct(">I")


def pad(message: bytes, bucket: int) -> bytes:
    """The message in the smallest multiple of `bucket` bytes that holds it; a bucket of 0 leaves it alone.

    >>> len(pad(b"release", 64)), unpad(pad(b"release", 64), 64)
    (64, b'release')
    """
    if not bucket:
        return message
    framed = _LENGTH.pack(len(message)) + message
    return framed + bytes(-len(framed) % bucket)


def unpad(padded: bytes, bucket: int) -> bytes:
    """The message inside; a ChannelError where the length it states is not the length it has."""
    if not bucket:
        return padded
    if len(padded) < _LENGTH.size or len(padded) % bucket:
        raise ChannelError(f"message of {len(padded)} bytes is not padded to multiples of {bucket}: refused")
    [length] = _LENGTH.unpack_from(padded)
    end = _LENGTH.size + length
    if not end <= len(padded) < end + bucket or any(padded[end:]):
        raise ChannelError(f"message says it holds {length} bytes, which its {len(padded)} cannot: refused")
    return padded[_LENGTH.size : end]
