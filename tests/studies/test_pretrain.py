"""The training script, in miniature."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from studies.pretrain import Recipe, contrast, crops, folded, main, train, untrained

from sottovoce.models.features.patterns import Network

TINY = Recipe(steps=4, pairs=8, pool=16, picture=20, crop=16, stem=4, fine=4, coarse=6, channels=8)


def test_partners_that_agree_and_differ_from_all_others_cost_least() -> None:
    z = torch.eye(6)
    together = contrast(torch.cat([z, z]), 0.1)
    apart = contrast(torch.cat([z, z.roll(1, 0)]), 0.1)
    assert together < 0.01 < 5 < apart


def test_the_loss_is_the_written_out_one() -> None:
    z = torch.nn.functional.normalize(torch.randn(6, 4), dim=1)
    terms = []
    for i in range(6):
        others = sum(torch.exp(z[i] @ z[k] / 0.3) for k in range(6) if k != i)
        terms.append(-torch.log(torch.exp(z[i] @ z[(i + 3) % 6] / 0.3) / others))
    torch.testing.assert_close(contrast(z, 0.3), torch.stack(terms).mean())


def test_crops_stay_pictures_and_differ() -> None:
    pictures = torch.rand(5, 3, 20, 20)
    rng = torch.Generator().manual_seed(1)
    first, second = crops(pictures, TINY, rng), crops(pictures, TINY, rng)
    assert first.shape == (5, 3, 16, 16)
    assert first.min() >= 0
    assert first.max() <= 1
    assert not torch.allclose(first, second, atol=0.05)


def test_folding_keeps_what_the_network_computes() -> None:
    torch.manual_seed(1)
    network = untrained(replace(TINY, fine_blocks=1, coarse_blocks=2))
    for _ in range(3):
        network(torch.rand(16, 3, 16, 16))
    network.eval()
    x = torch.rand(4, 3, 16, 16)
    torch.testing.assert_close(
        Network.restored(folded(network))(x), network(x).detach(), atol=2e-3, rtol=1e-2
    )


def test_a_training_can_be_repeated() -> None:
    first, second = (folded(train(TINY)[0]) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_script_writes_weights_with_their_recipe(tmp_path: Path) -> None:
    out = tmp_path / "w.safetensors"
    sizes = ["--pairs", "8", "--pool", "16", "--stem", "4", "--fine", "4", "--coarse", "6", "--channels", "8"]
    main(["--out", str(out), "--steps", "2", "--centred-on", "256", *sizes])
    assert Network.restored(load_file(out))(torch.rand(1, 3, 32, 32)).shape == (1, 8, 8, 8)
    assert load_file(tmp_path / "centres.safetensors")["patterns"].shape == (8,)
    with safe_open(out, "pt") as file:
        assert json.loads(file.metadata()["recipe"])["pairs"] == 8
