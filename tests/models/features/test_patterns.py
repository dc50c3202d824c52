"""The pattern network: sizes and the file that is shipped."""

from __future__ import annotations

import hashlib

import pytest
import torch

from sottovoce.models.features.patterns import SHIPPED, Network, Patterns

SHA256 = "1e01b1c406f9f6a23e3b21a24ff0008ae6077021de28913b890e1d6d43365c6f"  # of the shipped file


@pytest.mark.parametrize(
    ("shape", "maps"), [((3, 32, 32), 1), ((1, 28, 28), 1), ((2, 100, 60), 2), ((3, 5, 9), 1)]
)
def test_every_shape_of_picture_becomes_four_by_four(shape: tuple[int, int, int], maps: int) -> None:
    torch.manual_seed(2)
    patterns = Patterns(Network(4, (6, 8), (1, 1), 10).eval())
    assert patterns(torch.rand(5, *shape)).shape == (5, maps, 10, 16)


def test_a_gray_picture_is_the_color_picture_without_color() -> None:
    patterns = Patterns(Network.shipped())
    x = torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(patterns(x), patterns(x.expand(-1, 3, -1, -1)))


def test_the_description_of_a_record_does_not_depend_on_its_neighbours() -> None:
    patterns = Patterns(Network.shipped())
    x = torch.rand(70, 3, 32, 32)
    torch.testing.assert_close(patterns(x)[-3:], patterns(x[-3:]), atol=1e-5, rtol=1e-4)


def test_the_shipped_weights_are_the_ones_of_the_model_card_and_small() -> None:
    content = SHIPPED.read_bytes()
    assert len(content) <= 2_000_000
    digest = hashlib.sha256(content).hexdigest()
    assert digest == SHA256
    assert digest in SHIPPED.with_suffix(".md").read_text()
