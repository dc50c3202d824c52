"""Generated wearables: people differ, windows begin anywhere, and a spectrum says what samples cannot."""

from __future__ import annotations

import pytest
import torch
from studies.series import PEOPLE, measured, summed_up, wearables


def test_the_recipe_is_its_seeds() -> None:
    one, again, other = wearables(5), wearables(5), wearables(6)
    assert torch.equal(one.x, again.x)
    assert one.x.shape[1:] == (64, 3)
    assert not torch.equal(one.x[:100], other.x[:100])
    assert one.client is not None
    sizes = torch.bincount(one.client)
    assert len(sizes) == PEOPLE
    assert int(sizes.min()) >= 120
    assert sorted(one.y.unique().tolist()) == list(range(6))


@pytest.mark.slow
def test_a_spectrum_gains_more_than_eight_points_over_samples() -> None:
    figures = [measured("wearables", name, 11, None) for name in ("none", "spectrum")]
    lines = {line["features"]: line for line in summed_up(figures)}
    assert lines["spectrum"]["seen"]["mean"] > lines["none"]["seen"]["mean"] + 8
    assert lines["spectrum"]["future"]["mean"] > lines["none"]["future"]["mean"]
