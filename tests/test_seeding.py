"""Public seeds: one for each purpose, and no trace of them in the generator of others."""

from __future__ import annotations

import pytest
import torch

from sottovoce.seeding import derived_seed, seeded


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
