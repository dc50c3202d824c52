"""Golden messages pin the wire format: they decode to these values for ever, and are encoded to these bytes.

Of polar and lrsuq, messages of version 1 are only decoded, and only where no request is said.

golden.json was written by golden.py beside it; a change that needs new golden messages
needs a new format version.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.channel import ChannelError

from .golden import PATH, Golden, decoded, encoded, made_no_more

GOLDEN = [Golden(**entry) for entry in json.loads(PATH.read_text())]


def _name(golden: Golden) -> str:
    return f"{golden.channel}-{golden.size}-{golden.norm:g}-v{golden.message[0]}"


@pytest.mark.parametrize("golden", GOLDEN, ids=_name)
def test_golden_messages_decode_to_their_golden_values(golden: Golden) -> None:
    y = decoded(golden)
    found = [y[0], y[-1], y.sum(), float(np.abs(y).sum())]
    np.testing.assert_allclose(found, golden.decoded, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("golden", [each for each in GOLDEN if made_no_more(each)], ids=_name)
def test_no_run_takes_a_message_that_is_bound_to_no_request(golden: Golden) -> None:
    with pytest.raises(ChannelError, match="format version 1, not 2; update the older end"):
        decoded(replace(golden, request="asked"))


@pytest.mark.parametrize("golden", [each for each in GOLDEN if not made_no_more(each)], ids=_name)
def test_encoding_again_gives_the_golden_bytes(golden: Golden) -> None:
    assert encoded(golden).hex() == golden.message
