"""Both accountings against dp-accounting, 60-digit arithmetic and the paper's appendix B."""

from __future__ import annotations

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from sottovoce.errors import SottovoceError
from sottovoce.plan import schedule
from sottovoce.privacy.accounting import calibrate, epsilon, mu_squared

DELTA = 1e-5
STEP = 2 / 333  # the sensitivity of the paper's contexts and gradients
DELTAS = (0.1, 1e-3, 1e-5, 1e-8, 1e-12, 1e-15)
# dp-accounting's PLD accountant doubles the sensitivity itself under replace-one; Δ is already doubled here.
RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


def true_delta(eps: float, mu: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        e, m = mpmath.mpf(eps), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def pld_epsilon(multipliers: list[tuple[float, int]]) -> float:
    """ε by numerical composition of Gaussian releases, given (σ/Δ, how often); an upper bound."""
    accountant = PLDAccountant(RELATION)
    for multiplier, count in multipliers:
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier), count)
    return float(accountant.get_epsilon(DELTA))


@pytest.mark.parametrize(("accounting", "sigma"), [("rdp", 0.015209), ("exact", 0.013712)])
def test_the_papers_plan_at_epsilon_16_needs_this_much_noise(accounting: str, sigma: float) -> None:
    total = 44 * STEP**2
    found = calibrate(epsilon=16, delta=DELTA, accounting=accounting, squared_sensitivity=total)
    assert found == pytest.approx(sigma, abs=1e-6)


@pytest.mark.parametrize(
    ("eps", "mu", "rdp", "exact"),
    [
        (4, 0.9249, (0.03969, 0.05164), (0.03311, 0.04307)),
        (8, 1.6660, (0.02114, 0.02750), (0.01838, 0.02391)),
        (16, 2.9055, (0.01169, 0.01521), (0.01054, 0.01371)),
        (32, 4.8796, (0.00676, 0.00879), (0.00628, 0.00816)),
    ],
)
def test_noise_for_25_and_43_gradients_and_a_context(
    eps: float, mu: float, rdp: tuple[float, float], exact: tuple[float, float]
) -> None:
    assert math.sqrt(mu_squared(eps, DELTA, "exact")) == pytest.approx(mu, abs=5e-5)
    for accounting, sigmas in (("rdp", rdp), ("exact", exact)):
        for gradients, sigma in zip((25, 43), sigmas, strict=True):
            total = (gradients + 1) * STEP**2
            found = calibrate(epsilon=eps, delta=DELTA, accounting=accounting, squared_sensitivity=total)
            assert found == pytest.approx(sigma, abs=6e-6)


@pytest.mark.parametrize("mu", [1e-4, 1e-3, 0.01, 0.1, 0.255, 0.5, 1.0, 3.0, 10.0, 30.0, 50.0])
@pytest.mark.parametrize("delta", DELTAS)
def test_exact_epsilon_solves_the_gaussian_curve_to_ten_digits(mu: float, delta: float) -> None:
    found = epsilon(mu**2, delta, "exact")
    if found == 0:
        assert true_delta(0, mu) <= delta
        return
    assert true_delta(found * (1 - 1e-10), mu) > delta
    assert true_delta(found * (1 + 1e-10), mu) < delta


def test_rdp_epsilon_is_the_best_renyi_order_of_appendix_b() -> None:
    orders = 1 + np.geomspace(1e-3, 1e6, 2_000_000)
    for spending in (1e-4, 0.1, 1.0, 8.0, 100.0):
        best = np.min(orders * spending / 2 + math.log(1 / DELTA) / (orders - 1))
        assert epsilon(spending, DELTA, "rdp") == pytest.approx(best, rel=1e-9)


def test_dp_accountings_rdp_lies_between_the_exact_curve_and_the_papers_closed_form() -> None:
    orders = (1 + np.geomspace(1e-2, 1e3, 4000)).tolist()
    for sigma, count in ((0.015209, 44), (0.05, 26), (0.3, 1)):
        accountant = RdpAccountant(orders, RELATION)
        accountant.compose(dp_accounting.GaussianDpEvent(sigma / STEP), count)
        spending = count * (STEP / sigma) ** 2
        found = accountant.get_epsilon(DELTA)
        assert epsilon(spending, DELTA, "exact") < found < epsilon(spending, DELTA, "rdp")


@pytest.mark.parametrize("seed", range(41, 46))
def test_random_schedules_cost_what_numerical_composition_says(seed: int) -> None:
    busiest = int(schedule.call_counts(schedule.random_schedule(40, 2, 500, seed), 40).max())
    target = float(np.random.default_rng(seed).choice([4, 8, 16, 32]))
    total = (busiest + 1) * STEP**2
    sigma = calibrate(epsilon=target, delta=DELTA, accounting="exact", squared_sensitivity=total)
    assert pld_epsilon([(sigma / STEP, busiest + 1)]) == pytest.approx(target, rel=1e-3)


def test_a_context_with_its_own_noise_enters_with_its_squared_ratio() -> None:
    ratio, context, gradients = 2.5, math.sqrt(2) / 100, 25
    total = (context / ratio) ** 2 + gradients * STEP**2
    sigma = calibrate(epsilon=8, delta=DELTA, accounting="exact", squared_sensitivity=total)
    composed = pld_epsilon([(ratio * sigma / context, 1), (sigma / STEP, gradients)])
    assert composed == pytest.approx(8, rel=1e-3)


@pytest.mark.parametrize("accounting", ["rdp", "exact"])
def test_calibrated_noise_never_costs_more_than_the_target_and_wastes_nothing(accounting: str) -> None:
    generator = np.random.default_rng(7)
    for _ in range(100):
        target = float(10 ** generator.uniform(-3, 2.5))
        delta = float(10 ** generator.uniform(-15, -1))
        total = float(10 ** generator.uniform(-8, 2))
        sigma = calibrate(epsilon=target, delta=delta, accounting=accounting, squared_sensitivity=total)
        assert epsilon(total / sigma**2, delta, accounting) <= target
        assert epsilon(total / (sigma * (1 - 1e-8)) ** 2, delta, accounting) > target


@pytest.mark.parametrize("accounting", ["rdp", "exact"])
def test_a_budget_is_the_largest_spending_that_costs_no_more(accounting: str) -> None:
    for target in (1e-3, 0.5, 4.0, 16.0, 300.0):
        for delta in DELTAS:
            largest = mu_squared(target, delta, accounting)
            assert epsilon(largest, delta, accounting) <= target
            assert epsilon(largest * (1 + 1e-9), delta, accounting) > target


def test_exact_accounting_never_asks_for_more_than_the_closed_form() -> None:
    for spending in np.geomspace(1e-8, 2500, 60):
        for delta in DELTAS:
            assert epsilon(float(spending), delta, "exact") <= epsilon(float(spending), delta, "rdp")


def test_nothing_spent_costs_nothing() -> None:
    assert epsilon(0.0, DELTA, "exact") == epsilon(0.0, DELTA, "rdp") == 0


def test_an_epsilon_too_small_for_floats_is_refused() -> None:
    assert mu_squared(1e-150, DELTA, "exact") > 0
    with pytest.raises(SottovoceError, match="give a larger one"):
        mu_squared(1e-170, DELTA, "exact")


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_that_buys_nothing_is_refused(target: float) -> None:
    with pytest.raises(SottovoceError, match="positive, finite epsilon"):
        calibrate(epsilon=target, delta=DELTA, accounting="exact", squared_sensitivity=1.0)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_a_delta_outside_the_unit_interval_is_refused(delta: float) -> None:
    for call in (epsilon, mu_squared):
        with pytest.raises(SottovoceError, match=r"outside \(0, 1\)"):
            call(1.0, delta, "rdp")


@pytest.mark.parametrize("spending", [-1.0, math.inf, math.nan])
def test_a_spending_that_no_release_can_have_is_refused(spending: float) -> None:
    with pytest.raises(SottovoceError, match="not a spending"):
        epsilon(spending, DELTA, "exact")


@pytest.mark.parametrize("total", [0.0, -1.0, math.inf, math.nan])
def test_a_sensitivity_that_needs_no_noise_is_refused(total: float) -> None:
    with pytest.raises(SottovoceError, match="sum of Δ²"):
        calibrate(epsilon=1.0, delta=DELTA, accounting="exact", squared_sensitivity=total)
