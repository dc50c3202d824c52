"""Golden messages pin the wire format: version 1 encodes and decodes to these bytes and values for ever.

golden.json was written by golden.py beside it; a change that needs new golden messages
needs a new format version.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from .golden import PATH, Golden, encoded

GOLDEN = [Golden(**entry) for entry in json.loads(PATH.read_text())]


def _name(golden: Golden) -> str:
    return f"{golden.channel}-{golden.size}-{golden.norm:g}"


@pytest.mark.parametrize("golden", GOLDEN, ids=_name)
def test_golden_messages_decode_to_their_golden_values(golden: Golden) -> None:
    y = golden.opened().decode(bytes.fromhex(golden.message), secret=golden.secret, stream=golden.stream)
    found = [y[0], y[-1], y.sum(), float(np.abs(y).sum())]
    np.testing.assert_allclose(found, golden.decoded, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("golden", GOLDEN, ids=_name)
def test_encoding_again_gives_the_golden_bytes(golden: Golden) -> None:
    assert encoded(golden).hex() == golden.message
