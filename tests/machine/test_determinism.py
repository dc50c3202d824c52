"""Independent things side by side, each on one core: the same results, whatever the number of cores."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from sottovoce.machine.determinism import (
    available,
    batched,
    beside_others,
    derived_seed,
    one_core,
    seeded,
    side_by_side,
)
from sottovoce.models.parameters import logits


@pytest.fixture(autouse=True)
def three_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_items_are_worked_on_at_once_and_come_back_in_order() -> None:
    together = threading.Barrier(3, timeout=600)

    def work(item: int) -> int:
        together.wait()  # breaks unless three are here
        return 10 * item

    assert side_by_side(work, range(6)) == [0, 10, 20, 30, 40, 50]


def test_an_item_has_one_core_and_what_it_hands_on_stays_there() -> None:
    def inner(_: int) -> str:
        assert (torch.get_num_threads(), available()) == (1, 1)
        return threading.current_thread().name

    def outer(_: int) -> bool:
        return set(side_by_side(inner, range(2))) == {threading.current_thread().name} and beside_others()

    assert all(side_by_side(outer, range(6)))
    assert not beside_others()


def test_threads_of_items_have_one_core_from_the_first_item_on() -> None:
    torch.set_num_threads(4)  # no other test has had four
    together = threading.Barrier(4, timeout=600)

    def work(_: int) -> int:
        together.wait()
        return torch.get_num_threads()

    assert side_by_side(work, range(4)) == [1, 1, 1, 1]


def test_one_item_alone_has_one_core_too() -> None:
    assert side_by_side(lambda _: (torch.get_num_threads(), beside_others()), [0]) == [(1, False)]
    assert torch.get_num_threads() == available() == 3


def test_operations_within_have_one_core_and_items_all_of_them() -> None:
    with one_core():
        assert (torch.get_num_threads(), available()) == (1, 3)
        with one_core():
            assert available() == 3
        together = threading.Barrier(3, timeout=600)
        assert len(set(side_by_side(lambda _: together.wait(), range(3)))) == 3
    assert torch.get_num_threads() == available() == 3


def test_the_number_of_cores_is_given_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), one_core():
        _ = 1 / 0
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda item: 1 / item, [1, 0, 1])
    assert torch.get_num_threads() == available() == 3


def test_threads_take_short_turns_at_python_while_they_are_side_by_side() -> None:
    before = sys.getswitchinterval()
    turns = side_by_side(lambda _: sys.getswitchinterval(), range(3))
    assert max(turns) < before / 10
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda item: 1 // item, range(3))
    assert sys.getswitchinterval() == before


def test_fresh_threads_have_all_cores_again() -> None:
    side_by_side(abs, range(6))
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [3]


def test_batches_hold_all_items_in_order() -> None:
    assert list(batched(iter(range(5)), 5)) == [[0, 1, 2, 3, 4]]
    assert list(batched([], 5)) == []


def test_threads_that_evaluate_one_module_at_other_parameters_do_not_disturb_each_other() -> None:
    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.layer.weight.sum()
            together.wait()  # all threads are within the module now
            return x * (first + self.layer.weight.sum())

    module, together = Slow(), threading.Barrier(3, timeout=600)
    thetas = [torch.full((4,), float(i)) for i in range(6)]
    found = side_by_side(lambda theta: float(logits(module, theta, torch.ones(1)).detach()), thetas)
    assert found == [8.0 * i for i in range(6)]


# Public seeds: one for each purpose, and no trace of them in the generator of others.


def test_purposes_and_seeds_have_seeds_of_their_own_that_never_change() -> None:
    found = {derived_seed(seed, purpose) for seed in (0, 1, 41) for purpose in ("basis", "reference", "")}
    assert len(found) == 9
    assert all(0 <= seed < 2**63 for seed in found)
    assert derived_seed(41, "basis") == 186313875817220540


def test_what_is_drawn_around_a_seeded_block_is_not_changed_by_it() -> None:
    torch.manual_seed(5)
    torch.rand(1)
    expected = torch.rand(3)
    torch.manual_seed(5)
    torch.rand(1)
    with pytest.raises(KeyError), seeded(1):
        raise KeyError(torch.rand(10))
    with seeded(1), seeded(2):
        torch.rand(10)
    assert torch.equal(torch.rand(3), expected)


def test_a_seeded_block_draws_what_its_seed_says_whatever_came_before() -> None:
    drawn = []
    for seed in (1, 1, 2):
        torch.rand(1)
        with seeded(seed):
            drawn.append(torch.rand(3))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
