"""The budget of a client is the client's, whatever a server's plan says."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.machine.rollback import Memory
from sottovoce.privacy.ledger import OWN_RECORDS, Budget, Charge, Ledger, Overspent, client_scope
from sottovoce.privacy.terms import Price, Terms


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "mine.ledger.sqlite", scope=client_scope("mine")) as opened:
        yield opened


def test_a_client_that_says_nothing_is_willing_to_spend_8_at_a_delta_of_1e_5(ledger: Ledger) -> None:
    assert ledger.budget is None
    assert ledger.willing() == Budget(8.0, 1e-5, "exact") == ledger.budget


def test_the_strictest_budget_holds_until_it_is_raised(ledger: Ledger) -> None:
    assert ledger.willing(4.0).epsilon == 4.0
    assert ledger.willing(6.0).epsilon == 4.0
    assert ledger.willing(3.0).epsilon == 3.0
    assert ledger.willing().epsilon == 3.0
    ledger.raise_budget(5.0)
    assert ledger.willing(7.0) == Budget(5.0, 1e-5, "exact")
    assert [(budget.epsilon, raised) for budget, raised, _ in ledger.budgets()] == [
        (4.0, False),
        (3.0, False),
        (5.0, True),
    ]


def test_a_smaller_delta_is_stricter_at_the_same_epsilon_and_a_larger_one_is_not(ledger: Ledger) -> None:
    ledger.willing(4.0, 1e-5)
    assert ledger.willing(4.0, 1e-3).delta == 1e-5
    assert ledger.willing(4.0, 1e-7).delta == 1e-7
    stricter = ledger.willing(4.2, 1e-9)
    assert stricter == ledger.budget == Budget(4.2, 1e-9, "exact")
    with pytest.raises(SottovoceError, match="promises little"):
        ledger.willing(0.1, 0.9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (float("inf"), 1e-5), (1.0, 0.0)])
def test_what_is_no_budget_is_not_kept(ledger: Ledger, epsilon: float, delta: float) -> None:
    with pytest.raises(SottovoceError, match=r"epsilon = .* buys no release|delta = .* is outside"):
        ledger.willing(epsilon, delta)
    with pytest.raises(SottovoceError, match=r"epsilon = .* buys no release|delta = .* is outside"):
        ledger.raise_budget(epsilon, delta)
    assert ledger.budget is None


def test_no_caller_spends_more_than_the_ledgers_owner_allows(ledger: Ledger) -> None:
    ledger.willing(1.0)
    generous = Budget(epsilon=100.0, delta=0.9, accounting="exact")
    charge = Charge("run", OWN_RECORDS, "context", 0, sensitivity=1.0, sigma=1.0)
    with pytest.raises(Overspent, match=r"beyond the budget of 1 at .* 'sottovoce ledger raise"):
        ledger.commit(charge, b"", generous)
    ledger.raise_budget(8.0)
    ledger.commit(charge, b"", generous)


def test_a_price_is_stated_at_the_clients_own_delta() -> None:
    price = Price("this release", 1.0, 0.0, Budget(epsilon=8.0, delta=1e-5, accounting="exact"))
    assert price.epsilon == pytest.approx(4.377, abs=1e-3)  # at δ = 0.9 the same release costs ε = 0
    assert str(price) == "this release: ε 4.38, together 4.38 of 8 at δ = 1e-5"


def test_whoever_raises_a_budget_before_setting_one_keeps_the_usual_delta(ledger: Ledger) -> None:
    assert ledger.raise_budget(20.0) == Budget(20.0, 1e-5, "exact") == ledger.budget


def test_the_largest_delta_that_is_a_promise_is_one_in_a_hundred(ledger: Ledger) -> None:
    assert ledger.willing(1.0, 1e-2).delta == 1e-2
    with pytest.raises(SottovoceError, match="promises little"):
        ledger.raise_budget(1.0, 1.001e-2)


def test_nobody_else_writes_the_ledger_while_its_witness_is_told_of_a_budget(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def note(memory: Memory, facts: list[dict[str, object]]) -> None:
        other = sqlite3.connect(ledger.path, timeout=0)
        with closing(other), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        told.extend(fact["budget"] for fact in facts)

    monkeypatch.setattr(Memory, "note", note)
    ledger.willing(4.0)
    assert told == [[4.0, 1e-5, "exact"]]


def test_a_price_is_affordable_together_with_all_that_was_spent_before() -> None:
    budget = Budget(epsilon=8.0, delta=1e-5, accounting="exact")
    half = budget.mu_squared / 2
    assert Price("this release", half, half, budget).affordable
    assert not Price("this release", 1.01 * half, half, budget).affordable


def test_nobody_accepts_noise_at_the_server_without_saying_so() -> None:
    assert not Terms().noise_at_server
