"""What private gradients cost: our paths beside an ordinary training step, vmap, and Opacus where it is
installed.

All contenders compute on the same records and the same CIFAR-10 LeNet with one thread, in turn within one
run, and figures are ratios of medians. Opacus never enters our own environment: `peer_python` names one
that has it, and the whole measurement then runs there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import sottovoce
from sottovoce.gradients import clipped_mean, vmap
from sottovoce.models.architectures import lenet
from sottovoce.models.bases import BASIS_KINDS, BasisKind, SignedPartition, open_basis
from sottovoce.models.parameters import flat_parameters
from studies.bench.interleaved import medians

COEFFICIENTS = 16_384
CLIP = 1.0


def measure(records: int = 333, repeats: int = 15, peer_python: Path | None = None) -> dict[str, float]:
    """Ratios of median times of one clipped mean (see the keys), and `plain_ms` to tell what a step took.

    `x_over_y` is the time of x divided by that of y. The keys with `opacus` are there where Opacus is.
    """
    if peer_python is not None:
        return _measure_elsewhere(peer_python, records, repeats)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = medians(contenders(records, peers=True), repeats, time.process_time)
    finally:
        torch.set_num_threads(threads)
    plain = times["plain"]
    ratios = {f"{name}_over_plain": t / plain for name, t in times.items() if "opacus" not in name}
    del ratios["plain_over_plain"]
    hooks = [t for name, t in times.items() if name.startswith("opacus_hooks")]
    if hooks:
        ratios["opacus_over_structured"] = min(hooks) / times["structured"]
        ratios["opacus_over_unstructured"] = min(hooks) / times["unstructured"]
        ratios["opacus_ghost_over_identity"] = times["opacus_ghost"] / times["identity"]
    return {**ratios, "plain_ms": 1e3 * plain, "records": records}


def _measure_elsewhere(python: Path, records: int, repeats: int) -> dict[str, float]:
    source = Path(sottovoce.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{Path(__file__).parents[2]}"}
    command = [str(python), "-m", "studies.bench.gradients", str(records), str(repeats)]
    finished = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    ratios: dict[str, float] = json.loads(finished.stdout)
    return ratios


def contenders(records: int, *, peers: bool = False) -> dict[str, Callable[[], object]]:
    """One step on so many made-up records by every path, with `peers` also Opacus' where it is installed."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, 3, 32, 32, generator=generator)
    y = torch.randint(10, (records,), generator=generator)
    module = lenet((3, 32, 32), 10)
    theta = flat_parameters(module)
    bases = {kind: open_basis(kind, module, COEFFICIENTS, 0) for kind in BASIS_KINDS}

    def plain() -> None:
        module.zero_grad()
        torch.autograd.backward(F.cross_entropy(module(x), y))

    def ours(kind: BasisKind) -> Callable[[], object]:
        return lambda: clipped_mean(module, theta, bases[kind], x, y, clip=CLIP, denominator=records)

    partition = bases["unstructured"]
    assert isinstance(partition, SignedPartition)
    found: dict[str, Callable[[], object]] = {
        "plain": plain,
        **{kind: ours(kind) for kind in bases},
        "vmap": lambda: vmap.clipped_sum(module, theta, partition, x, y, CLIP),
    }
    if peers and importlib.util.find_spec("opacus"):
        found |= _opacus(x, y, partition)
    return found


def _opacus(x: Tensor, y: Tensor, basis: SignedPartition) -> dict[str, Callable[[], object]]:
    """Opacus' per-record gradients, then projection and clipping; its ghost clipping cannot project."""
    opacus: Any = importlib.import_module("opacus")
    ghost: Any = importlib.import_module("opacus.grad_sample.grad_sample_module_fast_gradient_clipping")
    hooked = opacus.GradSampleModule(lenet((3, 32, 32), 10))
    ghosted = ghost.GradSampleModuleFastGradientClipping(
        lenet((3, 32, 32), 10), max_grad_norm=CLIP, use_ghost_clipping=True
    )

    def hooks(chunk: int) -> Tensor:
        total = torch.zeros(basis.coefficients)
        for start in range(0, len(x), chunk):
            hooked.zero_grad()
            part = slice(start, start + chunk)
            torch.autograd.backward(F.cross_entropy(hooked(x[part]), y[part], reduction="sum"))
            samples = [p.grad_sample.flatten(1) for p in hooked.parameters()]
            gradients = basis.project(torch.cat(samples, dim=1))
            scales = (CLIP / gradients.norm(dim=1)).clamp(max=1.0)
            total += scales @ gradients
        return total / len(x)

    def ghosts() -> None:
        ghosted.zero_grad()
        losses = F.cross_entropy(ghosted(x), y, reduction="none")
        torch.autograd.backward(losses.sum(), retain_graph=True)
        coefficients = ghosted.get_clipping_coef()
        ghosted.zero_grad()
        ghosted.disable_hooks()
        torch.autograd.backward((coefficients * losses).sum())
        ghosted.enable_hooks()

    return {
        "opacus_hooks": lambda: hooks(len(x)),
        "opacus_hooks_in_chunks": lambda: hooks(32),
        "opacus_ghost": ghosts,
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
