"""One client's file is read with the run's public facts, never with constants of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.data import DataError, Facts, read_client

FACTS = Facts((1, 4, 4), 3, mean=(0.5,), std=(0.25,))


def saved(path: Path, count: int = 10, **arrays: np.ndarray) -> Path:
    x = np.random.default_rng(0).integers(0, 256, (count, 1, 4, 4), dtype=np.uint8)
    np.savez(path, **{"x": x, "y": np.arange(count) % 3, **arrays})
    return path


def test_the_files_own_constants_are_not_used(tmp_path: Path) -> None:
    plain = read_client(saved(tmp_path / "a.npz"), facts=FACTS, needed=5)
    own = read_client(
        saved(tmp_path / "b.npz", mean=np.array([0.9]), std=np.array([7.0])), facts=FACTS, needed=5
    )
    assert torch.equal(plain.x, own.x)
    with np.load(tmp_path / "a.npz") as file:
        assert torch.equal(plain.x, FACTS.normalize(torch.from_numpy(file["x"])))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x": np.zeros((10, 3, 4, 4), np.uint8)}, "of shape"),
        ({"y": np.full(10, 3)}, "label 3"),
        ({"count": 4}, "needs 5"),
    ],
)
def test_records_of_another_run_are_refused(tmp_path: Path, changes: dict, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_client(saved(tmp_path / "a.npz", **changes), facts=FACTS, needed=5)


def test_once_enrolled_a_label_that_nobody_knows_is_that_records_affair(tmp_path: Path) -> None:
    """A refusal would let one record decide whether all others count."""
    odd = np.array([0, 1, 2, 7, -1, 0, 1, 2, 0, 1])
    plain = read_client(saved(tmp_path / "a.npz", y=odd % 3), facts=FACTS, needed=5)
    found = read_client(saved(tmp_path / "b.npz", y=odd), facts=FACTS, needed=5, limited=False)
    assert found.usable.tolist() == [True] * 3 + [False] * 2 + [True] * 5
    assert torch.equal(found.x[found.usable], plain.x[found.usable])
    assert found.identity is not None
    assert plain.identity is not None
    assert torch.equal(found.identity[found.usable], plain.identity[found.usable])
    with pytest.raises(DataError, match="no array 'y' of 10 labels"):
        read_client(saved(tmp_path / "c.npz", y=odd[:4]), facts=FACTS, needed=5, limited=False)
