"""Whole numbers around real centres follow N_ℤ(x, 8²), and a message holds them and nothing else.

Seeds are fixed. With other seeds a test of z-scores fails once in a million runs or less.
"""

from __future__ import annotations

import hashlib
import math

import mpmath
import numpy as np
import pytest

from sottovoce.channel import ChannelError, SeededRandomness, direct, open_channel
from sottovoce.channel.direct import LOWEST, ROUNDED, SPARE, TAU_SQUARED, THRESHOLDS, draw, widening

SECRET = bytes(32)
CENTRES = [0.0, 0.5, 2.0**-24, 1 - 2.0**-24, *np.random.default_rng(20).uniform(-40, 40, 16)]
DRAWS = 100_000


def _law(x: float, variance: float = TAU_SQUARED) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers within 14 τ, and their probabilities."""
    y = np.arange(math.floor(x) - 112, math.floor(x) + 114)
    weights = np.exp(-((y - x) ** 2) / (2 * variance))
    return y, weights / weights.sum()


def test_the_table_equals_sixty_digit_arithmetic() -> None:
    exact = direct._table()[-1]
    assert [len(row) for row in exact] == [THRESHOLDS] * 16
    with mpmath.workdps(60):
        s2 = mpmath.mpf(64) * (1 - mpmath.mpf(1) / 256) / (1 - mpmath.mpf(1) / 256**6)
        for number, row in enumerate(exact):
            gaps = [LOWEST + i - mpmath.mpf(number) / 16 for i in range(THRESHOLDS + 1)]
            density = [mpmath.npdf(gap / mpmath.sqrt(s2)) for gap in gaps]
            for i in range(THRESHOLDS):
                true = 2**128 * mpmath.fsum(density[: i + 1]) / mpmath.fsum(density)
                assert abs(row[i] - true) <= (0.5 if row[i] < 2**128 - 1 else 1.0)


def test_the_table_is_the_one_of_its_digest_and_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    direct._table.cache_clear()
    direct._table()
    monkeypatch.setattr(direct, "DIGEST", hashlib.sha256(b"another").hexdigest())
    direct._table.cache_clear()
    with pytest.raises(ChannelError, match="damaged"):
        direct._table()
    direct._table.cache_clear()


def test_keys_are_rows_and_first_bits_and_every_slot_knows_how_many_lie_below_it() -> None:
    keys, slots, exact = direct._table.__wrapped__()
    assert keys.tolist() == [(j << 60) + (number >> 68) for j, row in enumerate(exact) for number in row]
    assert (np.diff(keys.astype(object)) >= 0).all()
    width = 2**64 // (len(slots) - 1)
    for slot in (0, 1, 77, 4096, len(slots) - 2, len(slots) - 1):
        assert slots[slot] == sum(key < slot * width for key in keys.tolist())


def test_the_channels_noise_has_the_deviation_that_its_grid_and_its_rounding_say() -> None:
    channel, size = open_channel("integers", size=50_000, sigma=0.3), 50_000
    message = channel.encode(np.zeros(size), secret=SECRET, stream=(1,), private=SeededRandomness(b"s"))
    found = float(np.std(channel.decode(message, secret=SECRET, stream=(1,)))) / 0.3
    # 50,000 numbers: five standard deviations are 1.6 %.
    assert found == pytest.approx(1 + channel.rounding, rel=0.016)
    assert 1 + channel.rounding == pytest.approx(8 / math.sqrt(62), rel=1e-4)
    assert channel.step * math.sqrt(62) == pytest.approx(0.3 * (1 + SPARE), rel=1e-12)


@pytest.mark.parametrize("x", [0.0, 0.37, 7 / 16, 2.0**-24, 0.999])
def test_six_digits_drawn_one_after_the_other_are_one_discrete_gaussian(x: float) -> None:
    """The law of `draw` itself, from the table's integers: all ways to a number are added up."""
    exact = direct._table()[-1]
    rows = (
        np.diff(np.array([[0, *row, 2**128] for row in exact], dtype=object), axis=1).astype(float) / 2**128
    )
    rest, law = round(x * 2**24), {0: 1.0}
    for _ in range(6):
        found: dict[int, float] = {}
        for drawn, share in law.items():
            below, row = divmod((rest & 15) + drawn, 16)
            for i, chance in enumerate(rows[row]):
                found[below + LOWEST + i] = found.get(below + LOWEST + i, 0.0) + share * chance
        law, rest = found, rest >> 4
    y, wanted = _law(round(x * 2**24) / 2**24)
    near = wanted > 1e-30
    got = np.array([law.get(int(number), 0.0) for number in y])
    np.testing.assert_allclose(got[near], wanted[near], rtol=1e-12, atol=1e-37)


def _scores(centres: list[float], seed: bytes = b"law") -> list[float]:
    """z of mean, variance and χ² at each centre, and of the variance at all of them together."""
    source, found, together = SeededRandomness(seed), [], 0.0
    for x in centres:
        drawn = draw(np.full(DRAWS, x), source)
        y, law = _law(x)
        spread = (((drawn - x) ** 2) / TAU_SQUARED - 1).mean() / math.sqrt(2 / DRAWS)
        together += spread / math.sqrt(len(centres))
        expected = DRAWS * law
        usual = expected > 20
        counts = np.bincount(drawn - y[0], minlength=len(y))[usual]
        chi2 = ((counts - expected[usual]) ** 2 / expected[usual]).sum()
        free = usual.sum() - 1
        found += [(drawn - x).mean() / math.sqrt(TAU_SQUARED / DRAWS), spread]
        found.append((chi2 - free) / math.sqrt(2 * free))
    return [*found, together]


def test_draws_have_the_mean_the_variance_and_the_shape_of_the_law_at_twenty_centres() -> None:
    assert max(map(abs, _scores(CENTRES))) < 5


@pytest.mark.parametrize("wrong", [0.99, 1.01])
def test_a_table_whose_variance_is_wrong_by_one_percent_is_caught(
    monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    laws = [_law(row / 16, wrong * TAU_SQUARED * 255 / 256) for row in range(16)]
    rows = [np.cumsum(law)[(y >= LOWEST) & (y < LOWEST + THRESHOLDS)] for y, law in laws]
    keys = [(j << 60) + int(min(total, 1 - 1e-15) * 2**60) for j, row in enumerate(rows) for total in row]
    table = np.array(keys, np.uint64)
    monkeypatch.setattr(direct, "_table", lambda: (table, direct.slots_of(table), []))
    monkeypatch.setattr(direct, "bisect_right", lambda row, number: THRESHOLDS // 2)
    assert max(map(abs, _scores(CENTRES))) > 7


def test_rounding_centres_before_the_noise_is_caught() -> None:
    """Δ = 4 spread over 2,000 coordinates: 0.09 in each, which rounding first would lose."""
    size, messages = 2000, 500
    x = np.full(size, 4 / math.sqrt(size))
    source = SeededRandomness(b"spread")

    def score(centres: np.ndarray) -> float:
        total = sum(draw(centres, source).sum() for _ in range(messages)) / messages
        return float(abs(total - x.sum())) / math.sqrt(TAU_SQUARED * size / messages)

    assert score(x) < 4
    assert score(np.rint(x)) > 8


def test_a_channel_that_rounds_before_its_noise_is_caught() -> None:
    """A mean of messages finds the statistic, and not the nearest point of the grid."""
    size, messages = 2000, 400
    channel = open_channel("integers", size=size, sigma=0.3)
    u, source, total = np.full(size, 0.09 * channel.step), SeededRandomness(b"channel"), 0.0
    for number in range(messages):
        message = channel.encode(u, secret=SECRET, stream=(number,), private=source)
        total += float(channel.decode(message, secret=SECRET, stream=(number,)).mean())
    found = total / messages / channel.step
    assert abs(found - 0.09) < 5 * math.sqrt(TAU_SQUARED / (size * messages)) < 0.09 / 2


class _Fixed(SeededRandomness):
    """Draws with fixed first bits, and fixed last ones where they decide."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(b"")
        self.first, self.last = first, last

    def words(self, count: int) -> np.ndarray:
        return np.full(count, self.first << 4, np.uint64)

    def bytes(self, count: int) -> bytes:
        return (self.last << 4).to_bytes(count, "big")


@pytest.mark.parametrize("row", [0, 5, 15])
@pytest.mark.parametrize("at", [0, 40, 111, 180, 221])
def test_where_the_first_bits_are_equal_the_last_ones_decide(row: int, at: int) -> None:
    numbers = direct._table()[-1][row]
    for number in (numbers[at] - 1, numbers[at], numbers[at] + 1):
        wanted = LOWEST + sum(threshold <= number for threshold in numbers)
        if 0 <= number < 2**128:
            private = _Fixed(number >> 68, number & (2**68 - 1))
            assert direct._row_draws(np.array([row]), private) == [wanted]


def test_a_message_holds_the_decoded_numbers_and_nothing_else() -> None:
    channel = open_channel("integers", size=300, sigma=0.1)
    u = np.random.default_rng(1).standard_normal(300)
    message = channel.encode(u, secret=SECRET, stream=(1,), private=SeededRandomness(b"m"))
    y = channel.decode(message, secret=SECRET, stream=(1,)) / channel.step
    assert direct._packed(np.rint(y).astype(np.int64)) == message[5:]


@pytest.mark.parametrize("largest", [0, 1, 20, 10**6, 2**43])
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 500])
def test_whole_numbers_of_every_size_are_packed_and_unpacked(largest: int, size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.integers(-largest, largest + 1, size)
    values[rng.integers(size)] = -largest
    packed = direct._packed(values)
    np.testing.assert_array_equal(direct._unpacked(packed, size), values)
    assert len(packed) <= 8 * size + 8


def test_a_coordinate_takes_little_more_than_its_entropy() -> None:
    drawn = draw(np.zeros(20_490), SeededRandomness(b"bits"))
    _, law = _law(0.0)
    entropy = -float((law * np.log2(np.maximum(law, 1e-300))).sum())
    assert 8 * len(direct._packed(drawn)) / 20_490 < entropy + 0.1


@pytest.mark.parametrize("ratio", [0.01, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("offset", [0.0, 0.5, 0.123])
def test_a_message_is_as_private_as_gaussian_noise_of_sigma(ratio: float, offset: float) -> None:
    """δ(ε) of two messages, from the discrete law, against that of N(0, σ²) and N(ratio·σ, σ²)."""
    moved = ratio * math.sqrt(TAU_SQUARED - ROUNDED) / (1 + SPARE)
    y = np.arange(-120, 160)
    laws = [np.exp(-((y - x) ** 2) / (2 * TAU_SQUARED)) for x in (offset, offset + moved)]
    one, other = (law / law.sum() for law in laws)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
        discrete = np.maximum(one - math.exp(epsilon) * other, 0).sum()
        lower, upper = (mpmath.ncdf(sign * ratio / 2 - epsilon / ratio) for sign in (1, -1))
        continuous = float(lower - mpmath.exp(epsilon) * upper)
        assert discrete <= continuous + 1e-15


@pytest.mark.parametrize("size", [1, 1000])
def test_two_statistics_are_as_far_apart_after_their_rounding_as_the_widening_says(size: int) -> None:
    rng = np.random.default_rng(size)
    one = rng.uniform(-3, 3, size)
    other = one + rng.uniform(-1e-3, 1e-3, size)
    rounded = [np.rint(x * 2**24) / 2**24 for x in (one, other)]
    apart = np.linalg.norm(rounded[0] - rounded[1]) - np.linalg.norm(one - other)
    assert apart <= widening(size)
    channel = open_channel("integers", size=size, sigma=0.3)
    assert channel.widening == pytest.approx(channel.step * math.sqrt(size) * 2**-24)
