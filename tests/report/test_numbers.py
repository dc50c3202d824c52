"""Numbers lose nothing but digits that nobody reads."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.report.table import UNKNOWN, data_size, duration, number, percent, plain

_DIGITS = str.maketrans("−⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "--0123456789")


def read(text: str) -> float:
    """The value that a reader takes from it."""
    text = plain(text).replace(" × 10", "e").translate(_DIGITS)
    if text.startswith(("10-", "-10-")):
        text = text.replace("10-", "1e-")
    return float(text.replace(" ", ""))


@given(st.floats(1e-12, 1e12) | st.floats(-1e12, -1e-12))
def test_a_number_is_right_to_three_digits(value: float) -> None:
    assert read(number(value)) == pytest.approx(value, rel=0.0051)


@given(st.integers(-(10**12), 10**12))
def test_whole_numbers_keep_all_their_digits(value: int) -> None:
    assert read(number(value)) == value


def test_what_is_not_known_is_a_dash_everywhere() -> None:
    assert {number(None), number(math.nan), percent(None), data_size(None)} == {UNKNOWN}


def test_units_change_at_their_bounds() -> None:
    assert [plain(data_size(size)) for size in (999, 1000, 999_999, 1e6)] == [
        "999 B",
        "1 kB",
        "1 000 kB",
        "1 MB",
    ]
    assert [plain(duration(s)) for s in (0.999, 1, 59, 60, 3599, 3600)] == [
        "1.00 s",
        "1 s",
        "59 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
    ]
