"""Coded coefficients against float32: `python -m benchmarks.downlink --bits 32 4 --out DIR` prints JSON.

Trains one seeded simulation for every seed and number of bits, the same in all else, and compares bytes to
the clients and accuracies, seed by seed. Runs that lie finished in DIR are not made again; with the features
kept, one run of `preset=best` on MNIST takes about a minute on one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sottovoce.plan import Plan
from sottovoce.run.directory import RunDirectory
from sottovoce.run.training import train


def compare(
    preset: str, dataset: str, seeds: Sequence[int], bits: Sequence[int], out: Path
) -> list[dict[str, Any]]:
    """For every number of bits: bytes, accuracies over seeds, and the differences to the first number."""
    results = {(b, seed): _result(preset, dataset, seed, b, out) for seed in seeds for b in bits}
    lines = []
    for b in bits:
        line: dict[str, Any] = {"downlink_bits": b, "seeds": list(seeds)}
        line["uplink_bytes"] = _mean([results[b, seed]["uplink"]["total_bytes"] for seed in seeds])
        for name in ("bytes", "bits_per_coefficient", "once_bytes"):
            line[f"downlink_{name}"] = _mean([results[b, seed]["downlink"][name] for seed in seeds])
        for role in ("seen", "future"):
            found = [results[b, seed]["accuracy"][role] for seed in seeds]
            before = [results[bits[0], seed]["accuracy"][role] for seed in seeds]
            line[role] = _mean(found)
            line[f"{role}_lost"] = [round(x - y, 3) for x, y in zip(before, found, strict=True)]
            line[f"{role}_lost_mean"] = _mean(line[f"{role}_lost"])
        lines.append(line)
    return lines


def _result(preset: str, dataset: str, seed: int, bits: int, out: Path) -> dict[str, Any]:
    given = {"preset": preset, "dataset": dataset, "seed": seed, "downlink_bits": bits}
    plan = Plan.load(overrides={**given, "seeded": True, "evaluate_every": 0, "channel": "direct"})
    directory = RunDirectory(out / f"{preset}-{dataset}-{seed}-{bits}")
    if directory.result_file.exists():
        return directory.result()
    return train(plan, directory.path, resume=directory.plan_file.exists())


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 3)


def main() -> None:
    """Runs the comparison and prints its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.downlink", description=__doc__)
    parser.add_argument("--preset", default="best")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--seeds", type=int, nargs="+", default=[41, 42, 43, 44, 45])
    parser.add_argument("--bits", type=int, nargs="+", default=[32, 4])
    parser.add_argument("--out", type=Path, required=True, help="folder of run directories")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = compare(options.preset, options.dataset, options.seeds, options.bits, options.out)
    print(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
