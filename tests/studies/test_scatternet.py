"""ScatterNet's map is what was published, one picture at a time, and its head pays for what it releases."""

from __future__ import annotations

import pytest
import torch
from studies.scatternet import GROUPS, private_head, scatternet


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_groups_are_normalized_over_a_picture(shape: tuple[int, int, int]) -> None:
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(1))
    found = scatternet(shape)(x).cpu()
    groups = found.view(3, GROUPS, -1)
    torch.testing.assert_close(groups.mean(2), torch.zeros(3, GROUPS), atol=1e-4, rtol=0)
    assert float(groups.var(2).max()) == pytest.approx(1, abs=0.05)  # weak groups stay weaker, by eps
    torch.testing.assert_close(found[:1], scatternet(shape)(x[:1]).cpu(), atol=1e-4, rtol=1e-3)


def test_a_head_learns_without_noise_and_one_record_moves_a_step_by_a_clip() -> None:
    rng = torch.Generator().manual_seed(2)
    x = torch.randn(400, 5, generator=rng)
    y = (x[:, 0] > 0).long()
    given = {"rate": 1.0, "clip": 0.2, "sigma": 0.0, "classes": 2, "seed": 0}
    head = private_head(x, y, steps=40, **given)
    assert float(((x @ head[:-1] + head[-1]).argmax(1) == y).double().mean()) > 0.9
    other = y.clone()
    other[0] = 1 - y[0]
    one, moved = (private_head(x, labels, steps=1, **given) for labels in (y, other))
    assert float((one - moved).norm()) * len(x) <= 2 * 0.2 + 1e-5
