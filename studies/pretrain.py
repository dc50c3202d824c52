"""Trains the network behind `patterns` on generated pictures only: `python -m studies.pretrain`.

Contrastive learning (SimCLR): two random crops of one picture, recolored, must find each other among all
crops of the batch. With z the unit-norm projections of 2n crops and τ the temperature, the loss of crop i
with partner j is −log exp(⟨z_i, z_j⟩/τ) / Σ_{k≠i} exp(⟨z_i, z_k⟩/τ). The pool of pictures is renewed all the
time, so that none is seen often. Repeatable with `--steps` and `--seed`, up to the order of sums on a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sottovoce.models.features.fixed import Scattering
from sottovoce.models.features.patterns import Network, Patterns, paths, standardized
from studies.images import generate

_RENEWED = 4096  # pictures made at once


@dataclass(frozen=True)
class Recipe:
    """Every choice of a training. The defaults made the shipped weights, on one NVIDIA H200."""

    device: str = "cpu"
    seed: int = 1
    steps: int = 24_238
    minutes: float = 0.0  # more than 0: as many steps as fit into them instead
    pairs: int = 1536  # pictures of a step, two crops of each
    pool: int = 131_072  # pictures kept
    renew_every: int = 32  # steps between two renewals of 4,096 pictures
    picture: int = 48  # pixels a side, before cropping
    crop: int = 32
    scenes: float = 0.5  # share of the pictures; the others are textures
    least: float = 0.25  # shortest side of a crop, of the picture's side
    temperature: float = 0.1
    rate: float = 2e-3
    decay: float = 0.05
    warmup: int = 300
    stem: int = 32
    fine: int = 64
    coarse: int = 136
    fine_blocks: int = 2
    coarse_blocks: int = 2
    channels: int = 256
    centred_on: int = 4096  # generated pictures behind the centres
    compile: int = 0  # 1: torch.compile


def crops(pictures: Tensor, recipe: Recipe, rng: torch.Generator) -> Tensor:
    """One random crop of each picture: place, size, shape, mirror, brightness, contrast, colors, gray."""
    n = len(pictures)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand((n, 1, 1, 1), generator=rng, device=rng.device)

    side = uniform(recipe.least, 1).view(n)
    shape = torch.exp(uniform(-0.25, 0.25)).view(n)
    tall, wide = (side * shape).clamp(max=1), (side / shape).clamp(max=1)
    theta = pictures.new_zeros(n, 2, 3)
    theta[:, 0, 0] = wide * torch.where(uniform(0, 1).view(n) < 0.5, 1.0, -1.0)
    theta[:, 1, 1] = tall
    theta[:, 0, 2] = (1 - wide) * uniform(-1, 1).view(n)
    theta[:, 1, 2] = (1 - tall) * uniform(-1, 1).view(n)
    grid = nn.functional.affine_grid(theta, [n, 3, recipe.crop, recipe.crop], align_corners=False)
    x = nn.functional.grid_sample(pictures, grid, align_corners=False, padding_mode="reflection")

    jittered = uniform(0, 1) < 0.8
    y = x * uniform(0.6, 1.4)
    mean = y.mean((1, 2, 3), keepdim=True)
    y = mean + (y - mean) * uniform(0.6, 1.4)
    gray = y.mean(1, keepdim=True)
    y = gray + _turned(y - gray, uniform(-0.6, 0.6)) * uniform(0.6, 1.4)
    x = torch.where(jittered, y, x)
    x = torch.where(uniform(0, 1) < 0.2, x.mean(1, keepdim=True), x)
    return x.clamp(0, 1)


def _turned(color: Tensor, angle: Tensor) -> Tensor:
    """Hues turned about the gray axis (colors are orthogonal to it) by `angle` in radians."""
    across = (color.roll(1, 1) - color.roll(2, 1)) / math.sqrt(3)
    return color * angle.cos() + across * angle.sin()


def contrast(z: Tensor, temperature: float) -> Tensor:
    """Mean SimCLR loss of unit-norm projections (2n, d): row i belongs to row i ± n."""
    n = len(z) // 2
    similarity = (z @ z.T).float() / temperature
    similarity.fill_diagonal_(-torch.inf)
    partner = torch.cat([torch.arange(n, 2 * n, device=z.device), torch.arange(n, device=z.device)])
    return nn.functional.cross_entropy(similarity, partner)


class Normalized(nn.Module):
    """A convolution and a batch normalization in the place of its bias."""

    def __init__(self, like: nn.Conv2d) -> None:
        super().__init__()
        inputs, outputs, size = like.in_channels, like.out_channels, like.kernel_size[0]
        self.conv = nn.Conv2d(inputs, outputs, size, like.stride[0], size // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        normalized: Tensor = self.norm(self.conv(x))
        return normalized

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the one convolution that does the same at evaluation."""
        assert self.norm.running_mean is not None
        assert self.norm.running_var is not None
        scale = self.norm.weight / (self.norm.running_var + self.norm.eps).sqrt()
        return self.conv.weight * scale.view(-1, 1, 1, 1), self.norm.bias - self.norm.running_mean * scale


def untrained(recipe: Recipe) -> Network:
    """The network as it is trained: normalized after each convolution."""
    blocks = (recipe.fine_blocks, recipe.coarse_blocks)
    with torch.device("meta"):
        network = Network(recipe.stem, (recipe.fine, recipe.coarse), blocks, recipe.channels)
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.Conv2d):
            network.set_submodule(name, Normalized(module))
    return network


@torch.no_grad()
def folded(network: Network) -> dict[str, Tensor]:
    """The weights in half precision, as they are shipped: normalizations folded into the convolutions."""
    kept: dict[str, Tensor] = {}
    for name, module in network.named_modules():
        if isinstance(module, Normalized):
            weight, bias = module.folded()
            kept[f"{name}.weight"] = weight.half().cpu().contiguous()
            kept[f"{name}.bias"] = bias.half().cpu()
    return kept


def train(recipe: Recipe) -> tuple[Network, dict[str, float]]:
    """The trained network and what its training measured."""
    device = torch.device(recipe.device)
    torch.manual_seed(recipe.seed)
    rng = torch.Generator(device).manual_seed(recipe.seed)
    network = untrained(recipe)
    head = nn.Sequential(
        nn.Linear(recipe.channels, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128)
    ).to(device)
    network = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run = torch.compile(network) if recipe.compile else network
    weights = [*network.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(
        [
            {"params": [w for w in weights if w.ndim > 1], "weight_decay": recipe.decay},
            {"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0},
        ],
        lr=recipe.rate,
        fused=device.type == "cuda",
    )
    pool = torch.empty((recipe.pool, 3, recipe.picture, recipe.picture), dtype=torch.uint8, device=device)
    for start in range(0, recipe.pool, _RENEWED):
        _renew(pool, start, recipe, rng)

    began, step, loss = time.monotonic(), 0, torch.zeros(())
    steps = 0 if recipe.minutes else recipe.steps  # 0: not yet known
    timed = began
    while step < (steps or 101):
        if step == 20:
            timed = _now(device)
        if step == 100 and not steps:  # the speed is known: choose the number of steps
            each = (_now(device) - timed) / 80
            steps = max(101, int((60 * recipe.minutes - (time.monotonic() - began)) / each) + 100)
            print(json.dumps({"steps": steps, "seconds_a_step": round(each, 4)}), flush=True)
        if step % recipe.renew_every == 0:
            _renew(pool, step // recipe.renew_every * _RENEWED % recipe.pool, recipe, rng)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * _schedule(step, steps or 10**6, recipe.warmup)
        chosen = torch.randint(recipe.pool, (recipe.pairs,), generator=rng, device=device)
        pictures = pool[chosen].float().div_(255)
        views = torch.cat([crops(pictures, recipe, rng), crops(pictures, recipe, rng)])
        views = views.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            z = head(run(views).mean((2, 3)))
            loss = contrast(nn.functional.normalize(z.float()).to(z.dtype), recipe.temperature)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step += 1
        if step % 500 == 0:
            row = {"step": step, "loss": round(loss.item(), 4), "seconds": round(time.monotonic() - began)}
            print(json.dumps(row), flush=True)
    measured = {"steps": step, "loss": round(loss.item(), 4), "seconds": round(time.monotonic() - began)}
    return network.eval(), measured


def _renew(pool: Tensor, start: int, recipe: Recipe, rng: torch.Generator) -> None:
    part = pool[start : start + _RENEWED]
    part.copy_((generate(len(part), recipe.picture, rng, recipe.scenes) * 255).round())


def _schedule(step: int, steps: int, warmup: int) -> float:
    """Up in a line, then down along a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup)))


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic()


def centres(network: Network, *, pictures: int, seed: int = 5) -> dict[str, Tensor]:
    """The centres of both descriptions over generated pictures of 32×32."""
    rng = torch.Generator().manual_seed(seed)
    scatter, patterns = Scattering(32, 32), Patterns(network)
    sums = {"scattering": torch.zeros(81), "patterns": torch.zeros(patterns.channels)}
    batch = 256
    for _ in range(pictures // batch):
        x = generate(batch, 32, rng)
        for name, values in (
            ("scattering", paths(scatter(x))),
            ("patterns", patterns(x)),
        ):
            sums[name] += standardized(values).mean((0, 1, 3))
    return {name: total / (pictures // batch) for name, total in sums.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains and writes the weights, with the recipe in their header, and `centres.safetensors` beside."""
    parser = argparse.ArgumentParser(description="Train the pattern network on generated pictures.")
    parser.add_argument("--out", type=Path, required=True, help="weights file to write (.safetensors)")
    for field in fields(Recipe):
        default = field.default
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(default), default=default)
    chosen = vars(parser.parse_args(arguments))
    out = chosen.pop("out")
    recipe = Recipe(**chosen)
    network, measured = train(recipe)
    weights = folded(network)
    save_file(
        weights,
        out,
        metadata={"recipe": json.dumps(asdict(recipe)), "measured": json.dumps(measured)},
    )
    save_file(
        centres(Network.restored(weights), pictures=recipe.centred_on),
        out.with_name("centres.safetensors"),
    )
    print(json.dumps({"written": str(out), "bytes": out.stat().st_size, **measured}))


if __name__ == "__main__":
    main()
