"""Shared noise: the law of a sum, what one record moves, and the formulas that are charged."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from sottovoce.channel.direct import TAU_SQUARED, draw
from sottovoce.channel.wire import SeededRandomness
from sottovoce.errors import SottovoceError
from sottovoce.privacy import accounting
from sottovoce.release.places.shared import Shares, Sharing, centred

DELTA = 1e-5


def sharing(epsilon: float = 4.0, clients: int = 40, **changes: object) -> Sharing:
    """That of preset=shared on pictures, 7 % of the budget being for contexts and confusions."""
    rounds = int(changes.get("releases", 100))  # type: ignore[call-overload]
    numbers = {
        **{"clip": 0.5, "size": 20_490, "releases": rounds, "largest": 800},
        **{"records": 800 * clients, "most": 800 * clients, "clients": clients},
        **{"threshold": max(2, 9 * clients // 10), "colluding": max(1, -(-clients // 10))},
        "mu": math.sqrt(0.93 * accounting.mu_squared(epsilon, DELTA, "exact") / rounds),
    }
    return Sharing(**{**numbers, **changes})  # type: ignore[arg-type]


def ripple(variance: float) -> float:
    """q(v) = e^(−2π²v): by how much sums of e^(−(y − x)²/2v) over whole numbers y depend on x, halved."""
    return math.exp(-2 * math.pi**2 * variance)


def sum_error(shares: int, tau_squared: float) -> float:
    """η₁: P(ΣY = y) of so many independent N_ℤ(x_i, τ²) is the density of N(Σx, Hτ²) times e^{±η₁}."""
    inner = sum(ripple(tau_squared * j / (j + 1)) for j in range(1, shares))
    e = 2.01 * (shares * ripple(tau_squared) + inner)
    return e / (1 - e)


def rounded_error(variance: float) -> float:
    """η₃: as `sum_error`, for N(x, V − r²) rounded to a whole number by N_ℤ(·, r²)."""
    e = 2.01 * ripple(variance)
    return e / (1 - e)


def run_error(made: Sharing) -> float:
    """Γ of a whole run, which κ pays for."""
    each = sum_error(made.honest, TAU_SQUARED) + rounded_error(made.rounded)
    return made.size * made.releases * each


def _discrete(centre: mpmath.mpf, variance: mpmath.mpf, reach: int) -> dict[int, mpmath.mpf]:
    weights = {y: mpmath.exp(-((y - centre) ** 2) / (2 * variance)) for y in range(-reach, reach + 1)}
    total = mpmath.fsum(weights.values())
    return {y: weight / total for y, weight in weights.items()}


@pytest.mark.parametrize("shares", [2, 3, 5])
def test_the_law_of_a_sum_keeps_within_its_bound_and_nearly_reaches_it(shares: int) -> None:
    """τ = 0.8, with 40 digits: at τ = 8 nothing could fail."""
    with mpmath.workdps(40):
        variance = mpmath.mpf("0.64")
        worst = mpmath.mpf(0)
        for seed in range(6):
            centres = [
                mpmath.mpf(value) / 8 for value in np.random.default_rng(seed).integers(0, 8, shares).tolist()
            ]
            if seed < 2:  # what the bound is about: all halves, or none
                centres = [mpmath.mpf(seed) / 2] * shares
            law = {0: mpmath.mpf(1)}
            for centre in centres:
                one, found = _discrete(centre, variance, 14), {}
                for a, p in law.items():
                    for b, q in one.items():
                        found[a + b] = found.get(a + b, mpmath.mpf(0)) + p * q
                law = found
            middle, width = mpmath.fsum(centres), mpmath.sqrt(shares * variance)
            for y in range(int(middle) - 4, int(middle) + 5):
                worst = max(worst, abs(mpmath.log(law[y] / (mpmath.npdf((y - middle) / width) / width))))
        bound = sum_error(shares, 0.64)
        assert worst <= bound
        if shares == 2:  # with more of them their ripples cancel
            assert worst > 0.98 * bound
            without = 2.01 * shares * math.exp(-2 * math.pi**2 * 0.64)  # the bound but for its term j = 1
            assert worst > 100 * without


def test_a_rounded_gaussian_keeps_within_its_bound_and_nearly_reaches_it() -> None:
    with mpmath.workdps(20):
        variance, rounded, worst = mpmath.mpf("0.31"), mpmath.mpf("0.3"), mpmath.mpf(0)
        for x in (0, mpmath.mpf(1) / 2):

            def density(w: mpmath.mpf, y: int, x: mpmath.mpf = x) -> mpmath.mpf:
                normal = mpmath.npdf(w, x, mpmath.sqrt(variance - rounded))
                law = mpmath.exp(-((y - w) ** 2) / (2 * rounded))
                near = int(mpmath.nint(w))
                return (
                    normal
                    * law
                    / mpmath.fsum(
                        mpmath.exp(-((z - w) ** 2) / (2 * rounded)) for z in range(near - 9, near + 10)
                    )
                )

            for y in (0, 1):
                found = mpmath.quad(lambda w, y=y: density(w, y), range(-12, 14))
                worst = max(worst, abs(mpmath.log(found / mpmath.npdf(y, x, mpmath.sqrt(variance)))))
        assert 0.5 * rounded_error(0.3) < worst <= rounded_error(0.3)


def _hockey_stick(shift: float, shares: int, rounds: int, coordinates: int, epsilon: float) -> float:
    """δ(ε) of the sums of all rounds, one client's centre moved by `shift`, spread evenly over coordinates.

    From the discrete law alone, by Fourier transforms. Every coordinate's loss is the same linear function of
    its sum, so that the sum over coordinates and rounds tells all there is to tell.
    """
    each, count = shift / math.sqrt(coordinates), rounds * coordinates
    deviation = math.sqrt(TAU_SQUARED * shares * count)
    length = 1 << math.ceil(math.log2(24 * deviation + 4 * each * count))
    y = np.arange(-120, 121)
    frequency = 2 * np.pi * np.arange(length // 2 + 1) / length
    near = frequency * math.sqrt(TAU_SQUARED * count * shares) < 12  # beyond it both vanish

    def log_spectrum(centre: float) -> np.ndarray:
        law = np.exp(-((y - centre) ** 2) / (2 * TAU_SQUARED))
        return np.log(np.exp(1j * np.outer(frequency[near], y)) @ (law / law.sum()))

    def law(moved: np.ndarray) -> np.ndarray:
        spectrum = np.zeros(length // 2 + 1, complex)
        spectrum[near] = np.exp(count * ((shares - 1) * log_spectrum(0.0) + moved))
        return np.fft.irfft(spectrum.conj(), length)

    one, other = law(log_spectrum(0.0)), law(log_spectrum(each))
    return float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum())


@pytest.mark.parametrize("coordinates", [1, 64])
@pytest.mark.parametrize(("epsilon", "clients"), [(1.0, 40), (4.0, 40), (8.0, 40), (4.0, 16)])
def test_the_stated_epsilon_covers_the_discrete_law_and_is_hardly_more_than_the_continuous_one(
    epsilon: float, clients: int, coordinates: int
) -> None:
    made = sharing(epsilon, clients)
    stated = accounting.epsilon(100 * (made.sensitivity / made.sigma) ** 2, DELTA, "exact")
    shift, variance = 2 * made.clip / made.step, made.honest * TAU_SQUARED
    continuous = accounting.epsilon(100 * shift**2 / variance, DELTA, "exact")
    assert _hockey_stick(shift, made.honest, 100, coordinates, stated) <= DELTA
    assert _hockey_stick(shift, made.honest, 100, coordinates, 0.999 * continuous) > DELTA
    assert continuous < stated <= 1.005 * continuous
    assert _hockey_stick(1.014 * shift, made.honest, 100, coordinates, stated) > DELTA


@pytest.mark.parametrize(
    ("clients", "threshold", "colluding", "epsilon", "step", "deviation", "bits"),
    [
        (10, 9, 2, 4, 0.531, 21.1, 11),
        (40, 36, 4, 1, 0.855, 45.2, 12),
        (40, 36, 4, 4, 0.248, 45.2, 14),
        (40, 36, 4, 8, 0.138, 45.2, 15),
        (100, 90, 10, 4, 0.157, 71.5, 16),
        (1000, 800, 100, 4, 0.053, 211.7, 21),
    ],
)
def test_the_grid_is_the_one_of_the_formulas(
    clients: int, threshold: int, colluding: int, epsilon: float, step: float, deviation: float, bits: int
) -> None:
    made = sharing(epsilon, clients, threshold=threshold, colluding=colluding)
    assert made.honest == threshold - colluding
    assert made.rounded == pytest.approx(math.log(4.04 * 2_049_000 / 1e-9) / (2 * math.pi**2), rel=1e-12)
    assert made.deviation == pytest.approx(math.sqrt(64 * made.honest - made.rounded), rel=1e-12)
    rho = math.sqrt(20_490) * 2.0**-23
    assert made.step == pytest.approx(1.000002 / (made.mu * made.deviation - rho), rel=1e-12)
    assert made.sensitivity * 800 * clients == pytest.approx(1.000002 + rho * made.step, rel=1e-12)
    assert made.removal * 800 * clients == pytest.approx(0.500001 + rho * made.step, rel=1e-12)
    assert made.sigma * 800 * clients == pytest.approx(made.deviation * made.step, rel=1e-12)
    assert made.sensitivity / made.sigma == pytest.approx(made.mu, rel=1e-12)
    assert (round(made.step, 3), round(made.deviation, 1), made.bits) == (step, deviation, bits)
    assert made.word == (16 if bits <= 16 else 32)
    assert made.total * 800 * clients == pytest.approx(8 * math.sqrt(clients) * made.step, rel=1e-12)
    assert made.weakened(made.honest) == pytest.approx(made.mu**2, rel=1e-12)


def test_what_a_run_is_not_gaussian_by_is_paid_by_the_spare() -> None:
    """(ε + 2Γ, e^Γ δ) of the noise without the spare is below (ε, δ) of what is charged."""
    for epsilon in (0.5, 1.0, 4.0, 8.0, 16.0):
        made = sharing(epsilon)
        error = run_error(made)
        assert error <= 0.5e-9
        unspared = (made.mu / (1 + 1e-6)) ** 2 * made.releases
        below = accounting.epsilon(unspared, DELTA * math.exp(-error), "exact") + 2 * error
        assert below < accounting.epsilon(made.mu**2 * made.releases, DELTA, "exact")


def test_a_client_with_very_many_records_has_its_rounding_charged() -> None:
    assert sharing(largest=65_536).spare == 2e-6
    assert sharing(largest=10**6).spare == pytest.approx(1e-6 + 1e12 * 2.0**-53)


def _sums(made: Sharing, mean: np.ndarray, honest: int, seed: bytes, draws: int) -> np.ndarray:
    source = SeededRandomness(seed)
    others = np.zeros(made.size)
    return np.array(
        [
            made.share(mean, made.largest, source)
            + sum(made.share(others, made.largest, source) for _ in range(honest - 1))
            for _ in range(draws)
        ]
    )


def test_an_attacker_who_sees_a_million_coordinates_finds_mu_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One round with μ = 1; one record turned around, the change spread over all coordinates by rotation."""
    size, draws = 50_000, 20
    made = sharing(clients=2, threshold=2, colluding=1, size=size, releases=1, mu=1.0, largest=1, records=2)
    assert made.honest == 1
    one = np.zeros(size)
    one[7] = made.clip
    direction = made._rotated(one) / np.linalg.norm(made._rotated(one))

    def found() -> float:
        seen, other = (_sums(made, sign * one, 1, b"mu", draws) @ direction for sign in (1, -1))
        spread = np.concatenate([_sums(made, one, 1, b"s", draws) - made._rotated(one)]).std()
        return float((seen.mean() - other.mean()) / spread)

    # Same draws for both neighbours: their means differ by Δ up to what rounding leaves of the common noise.
    assert 0.95 < found() <= 1.01
    monkeypatch.setattr(
        "sottovoce.release.places.shared.draw",
        lambda x, private: draw(x * math.sqrt(2), private) / math.sqrt(2),
    )
    assert found() > 1.3


@pytest.mark.parametrize("size", [1, 2, 17, 1000])
def test_the_rotation_keeps_lengths_and_is_undone(size: int) -> None:
    made = sharing(size=size, releases=1)
    v = np.random.default_rng(size).normal(size=size)
    assert np.linalg.norm(made._rotated(v)) * made.step == pytest.approx(np.linalg.norm(v), rel=1e-13)
    total = np.rint(1e6 * v).astype(np.int64)
    np.testing.assert_allclose(made._rotated(made._back(total)), total, rtol=1e-12, atol=1e-6)
    np.testing.assert_allclose(
        made.columns(total)[:, 0].numpy(), made._back(total) / made.records, rtol=1e-6, atol=1e-3
    )


@pytest.mark.parametrize("sizes", [(800, 800, 800), (5, 790, 64)])
def test_one_record_moves_the_sum_of_all_centres_by_the_sensitivity_at_most(sizes: tuple[int, ...]) -> None:
    made = sharing(clients=3, size=300, records=sum(sizes), most=sum(sizes), largest=max(sizes))
    rng = np.random.default_rng(1)
    for size in sizes:
        gradients = rng.normal(size=(size, 300))
        gradients *= made.clip / np.linalg.norm(gradients, axis=1, keepdims=True)
        other = gradients.copy()
        other[0] *= -1  # the worst replacement
        apart = made._rotated(gradients.mean(axis=0) * size) - made._rotated(other.mean(axis=0) * size)
        charged = made.sensitivity * made.records / made.step
        assert charged * 0.9999 < np.linalg.norm(apart) <= charged
        other[0] = np.nan_to_num(np.nan)
        apart = made._rotated(gradients.mean(axis=0) * size) - made._rotated(other.mean(axis=0) * size)
        assert np.linalg.norm(apart) <= made.removal * made.records / made.step


def test_rounding_before_the_noise_would_move_the_sum_by_far_more() -> None:
    """Why nothing is rounded first: Δ = 4 on the grid, spread over all coordinates, would become 16."""
    made = sharing()
    rng = np.random.default_rng(2)
    sums = rng.normal(size=made.size) * 40 * made.step
    record = rng.normal(size=made.size)
    record *= 2 * made.clip / np.linalg.norm(record)
    one, other = made._rotated(sums), made._rotated(sums + record)
    charged = made.sensitivity * made.records / made.step
    assert np.linalg.norm(one - other) <= charged
    assert np.linalg.norm(np.rint(one) - np.rint(other)) > 3 * charged


def test_rounding_before_the_noise_is_caught_in_the_shares_themselves() -> None:
    """A mean of shares finds the centre; had it been rounded first, it would find the rounded one."""
    made = sharing(clients=3, size=2000, largest=1, records=3, most=3, releases=1, mu=0.5)
    mean = made._back(np.ones(2000, np.int64)) * 0.09 / made.largest
    source = SeededRandomness(b"shares")
    found = np.mean([made.share(mean, 1, source) for _ in range(400)], axis=0)
    assert abs(found.mean() - 0.09) < 4 * 8 / math.sqrt(400 * 2000) < 0.09 / 2


def test_a_sum_of_all_shares_is_the_planned_noise_around_the_mean_of_all_records() -> None:
    made = sharing()
    rng = np.random.default_rng(3)
    means = rng.normal(size=(40, made.size)) * 0.3 / math.sqrt(made.size)
    total = sum(made.share(mean, 800, SeededRandomness(bytes([i]))) for i, mean in enumerate(means))
    assert isinstance(total, np.ndarray)
    assert made.plausible(total)
    error = made.columns(total)[:, 0].double().numpy() - means.mean(axis=0)
    # 20,490 squares: five standard deviations of their mean are 5 %.
    assert float(np.mean(error**2)) == pytest.approx(made.total**2, rel=0.05)
    assert np.abs(total).max() < 2 ** (made.bits - 1)


def test_noise_alone_has_room_in_a_sum_of_one_record_each() -> None:
    made = sharing(clients=900, threshold=800, colluding=100, largest=1, records=900, most=900)
    assert 2 ** (made.bits - 1) > 9 * 8 * math.sqrt(900)


def test_a_sum_that_cannot_be_one_is_not_believed() -> None:
    made = sharing()
    largest = np.zeros(made.size, np.int64)
    largest[0] = made.clip * made.most / made.step
    assert made.plausible(largest)
    largest[0] = 2 * largest[0] + 9 * 8 * math.sqrt(40 * made.size)
    assert not made.plausible(largest)


def test_a_mean_that_is_not_finite_counts_as_zeros_and_gets_its_noise() -> None:
    made = sharing(size=100, releases=1)
    bad = np.full(100, np.nan)
    noise = made.share(np.zeros(100), 800, SeededRandomness(b"n"))
    np.testing.assert_array_equal(made.share(bad, 800, SeededRandomness(b"n")), noise)


@pytest.mark.parametrize("word", [16, 32])
def test_promise_are_centred_at_zero(word: int) -> None:
    half = 2 ** (word - 1)
    values = np.array([0, 5, -5, half - 1, -half])
    words = (values % 2**word).astype(np.uint64)
    np.testing.assert_array_equal(centred(words, word), values)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"colluding": 0}, "protects nobody"),
        ({"threshold": 4}, "protects nobody"),
        ({"threshold": 41}, "protects nobody"),
        ({"mu": 1e-9}, "fewer coefficients"),
        ({"mu": 10.0, "largest": 10**7}, "fewer records"),
        ({"most": 10**12}, "fewer records"),
    ],
)
def test_numbers_that_protect_nobody_or_fit_no_grid_are_refused(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(SottovoceError, match=reason):
        sharing(**changes)


def test_rotations_of_two_runs_differ_and_signs_are_even() -> None:
    one, same, other = (sharing(seed=seed)._signs for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert abs(float(one @ other)) < 5 * math.sqrt(len(one))
    assert abs(float(one.sum())) < 5 * math.sqrt(len(one))


@pytest.mark.parametrize("clients", [40, 400])
def test_shares_as_messages_add_up_and_have_one_length(clients: int) -> None:
    made = sharing(clients=clients, size=500, releases=1)
    rng = np.random.default_rng(9)
    means = rng.normal(size=(5, 500)) * 0.3 / math.sqrt(500)
    messages, total = [], np.zeros(500, np.int64)
    for i, mean in enumerate(means):
        channel, seed = Shares(made, 800), SeededRandomness(bytes([i]))
        messages.append(channel.encode(mean, secret=b"", stream=(i,), private=seed))
        total += made.share(mean, 800, SeededRandomness(bytes([i])))
    assert {len(message) for message in messages} == {500 * made.word // 8}
    np.testing.assert_array_equal(made.added(messages), total)
    alone = Shares(made, 800).decode(messages[2], secret=b"", stream=())
    np.testing.assert_array_equal(alone, made.share(means[2], 800, SeededRandomness(bytes([2]))))
    with pytest.raises(SottovoceError, match="words"):
        made.added([messages[0][:-1]])


def test_shares_are_drawn_by_the_system_unless_a_simulation_says_otherwise() -> None:
    made = sharing(size=500, releases=1)
    one, other = (Shares(made, 800).encode(np.zeros(500), secret=b"", stream=(1,)) for _ in range(2))
    assert one != other


def test_a_seeded_share_is_what_it_was() -> None:
    """Signs, rotation, digits and rows of the table: all of it is pinned by a few numbers."""
    made = sharing(size=1000, releases=10, seed=41)
    mean = np.linspace(-1, 1, 1000) * 0.01
    share = made.share(mean, 800, SeededRandomness(b"pinned"))
    assert share[:8].tolist() == [33, -9, -7, -52, -23, 39, 78, 71]
    assert int(share.sum()) == 2957
