"""What a public feature map is worth on series: raw samples against `features=spectrum`, ε = 8.

`python -m studies.series [--vowels FOLDER] [--seeds 5] [--jobs 2]` writes `results/series.json`, from
which a table of docs/benchmarks.md is made. *wearables* are generated (`wearables`): twenty people with
a gait of their own, six activities, windows of 64 × 3; sixteen train, four join later without labels.
*vowels* are real: JapaneseVowels (Kudo, Toyama, Shimbo, 1999), 640 utterances of nine speakers, 25
steps of 12 values, dealt to four clients; FOLDER holds the files `JapaneseVowels_eq_TRAIN.ts` and
`_TEST.ts` of the package aeon. The map's constants were chosen on seeds 1 to 4, so others are shown.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sottovoce.data import Dataset, Facts
from sottovoce.plan import Plan
from sottovoce.run.training import train

RESULTS = Path(__file__).parents[1] / "results" / "series.json"
ACTIVITIES = ("sitting", "standing", "walking", "running", "stairs", "cycling")
PEOPLE, NEWCOMERS, STEPS, HERTZ = 20, 4, 64, 20.0
CADENCE = (0.0, 0.0, 1.0, 1.45, 0.85, 0.75)
"""Of a person's own."""
STRENGTH = (0.01, 0.02, 0.3, 0.9, 0.32, 0.22)
"""Of movement, in units of gravity."""
POSE = ((0.5, 0.2, 0.84), (0, 0.1, 1), (0, 0.1, 1), (0.25, 0.1, 0.97), (0.15, 0.1, 0.98), (0.45, 0.1, 0.88))
"""Where gravity points."""
HARMONICS = (1.0, 0.6, 0.35)
EPSILON, FIRST = 8.0, 11
FEATURES = ("none", "spectrum")

Figures = dict[str, Any]
Array = npt.NDArray[Any]


def wearables(seed: int) -> Dataset:
    """Accelerations of twenty people, 120 to 400 windows each, with their activities.

    Gravity and a wave of three harmonics in each axis. The activity sets where gravity points, how fast and
    how strong the wave is and its shape; a person's own are cadence, strength, shape, the sensor's
    orientation and the shares of activities. A window begins anywhere in the wave.
    """
    rng = np.random.default_rng(seed)
    heights = np.array(HARMONICS)
    common = heights * rng.standard_normal((len(ACTIVITIES), 3, 3))
    people = [_person(rng, common, heights) for _ in range(PEOPLE)]
    x, y = (torch.from_numpy(np.concatenate([person[part] for person in people])) for part in (0, 1))
    owner = torch.repeat_interleave(torch.arange(PEOPLE), torch.tensor([len(person[1]) for person in people]))
    facts = Facts((STEPS, 3), len(ACTIVITIES), class_names=ACTIVITIES)
    return Dataset("wearables", x.float(), y, facts, owner, tuple(f"person-{i:02}" for i in range(PEOPLE)))


def _person(rng: np.random.Generator, common: Array, heights: Array) -> tuple[Array, Array]:
    windows = int(rng.integers(120, 400))
    cadence, strength = 1.8 * np.exp(0.1 * rng.standard_normal()), np.exp(0.25 * rng.standard_normal())
    gait = common + 0.5 * heights * rng.standard_normal(common.shape)
    phases = rng.uniform(0, 2 * np.pi, common.shape)
    turned, signs = np.linalg.qr(np.eye(3) + 0.35 * rng.standard_normal((3, 3)))
    turned = turned * np.sign(np.diag(signs))
    y = rng.choice(len(ACTIVITIES), windows, p=rng.dirichlet(np.full(len(ACTIVITIES), 2.0)))
    hertz = cadence * np.array(CADENCE)[y] * np.exp(0.06 * rng.standard_normal(windows))
    starts, order = rng.uniform(0, 2 * np.pi, windows), np.arange(1, 4)
    angles = (2 * np.pi * hertz[:, None] * np.arange(STEPS) / HERTZ + starts[:, None])[:, :, None] * order
    waves = np.einsum("nah,ntah->nta", gait[y], np.cos(angles[:, :, None] + phases[y][:, None]))
    strong = strength * np.array(STRENGTH)[y] * np.exp(0.2 * rng.standard_normal(windows))
    gravity = np.array(POSE)[y] + 0.12 * rng.standard_normal((windows, 3))
    gravity /= np.linalg.norm(gravity, axis=1, keepdims=True)
    x = gravity[:, None] + strong[:, None, None] * waves + 0.04 * rng.standard_normal((windows, STEPS, 3))
    return x @ turned.T, y


def vowels(folder: Path, seed: int) -> Dataset:
    """The utterances, dealt to four clients of 160."""
    x, labels = [], []
    for part in ("TRAIN", "TEST"):
        for line in (folder / f"JapaneseVowels_eq_{part}.ts").read_text(encoding="utf-8").splitlines():
            if line and line[0] not in "#@":
                *values, label = line.split(":")
                x.append(np.array([value.split(",") for value in values], np.float32).T)
                labels.append(int(label) - 1)
    owner = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)) % 4)
    named = tuple(f"client-{i}" for i in range(4))
    series, speakers = torch.from_numpy(np.stack(x)), torch.tensor(labels)
    return Dataset("vowels", series, speakers, Facts(tuple(series.shape[1:]), 9), owner, named)


def measured(part: str, features: str, seed: int, folder: Path | None) -> Figures:
    """Accuracies of one run: of participants, and of who joins later without labels."""
    torch.set_num_threads(1)
    dataset = wearables(seed) if folder is None else vowels(folder, seed)
    given = {"dataset": dataset.name, "partition": "client", "participants": 0, "clients_per_round": 0}
    given |= {"future_clients": NEWCOMERS if part == "wearables" else 0, "features": features}
    given |= {"epsilon": EPSILON, "seed": seed, "seeded": True, "channel": "direct", "evaluate_every": 0}
    with tempfile.TemporaryDirectory() as run:
        told = train(Plan.load(overrides=given), Path(run) / "run", dataset=dataset, cache=False)["accuracy"]
    return {"part": part, "features": features, "seed": seed, "seen": told["seen"], "future": told["future"]}


def summed_up(figures: Sequence[Figures]) -> list[Figures]:
    """Means over seeds, and their standard errors."""
    found = []
    for part, features in dict.fromkeys((one["part"], one["features"]) for one in figures):
        runs = [one for one in figures if (one["part"], one["features"]) == (part, features)]
        line: Figures = {"part": part, "features": features, "seeds": [one["seed"] for one in runs]}
        for who in ("seen", "future"):
            values = np.array([one[who] for one in runs if one[who] is not None])
            if len(values):
                error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
                line[who] = {"mean": round(float(values.mean()), 2), "error": round(float(error), 2)}
        found.append(line)
    return found


def table(lines: Sequence[Figures]) -> str:
    """The figures as Markdown."""
    text = ["| | features | participants | joined later, no labels |", "|---|---|---|---|"]
    for line in lines:
        cells = [
            f"{line[who]['mean']:.1f} ± {line[who]['error']:.1f}" if who in line else "–"
            for who in ("seen", "future")
        ]
        text.append(f"| {line['part']} | {line['features']} | {' | '.join(cells)} |")
    return "\n".join(text)


def work(seeds: int, folder: Path | None) -> Iterator[tuple[Any, ...]]:
    """Vowels are few and cheap: four times as many seeds."""
    for features in FEATURES:
        yield from (("wearables", features, seed, None) for seed in range(FIRST, FIRST + seeds))
        if folder is not None:
            yield from (("vowels", features, seed, folder) for seed in range(FIRST, FIRST + 4 * seeds))


def main(seeds: int, jobs: int, folder: Path | None, out: Path) -> None:
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        lines = summed_up(pool.starmap(measured, list(work(seeds, folder)), chunksize=1))
    lines.sort(key=lambda line: line["part"], reverse=True)
    out.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    print(table(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--vowels", type=Path, help="folder of aeon's files of JapaneseVowels")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    main(chosen.seeds, chosen.jobs, chosen.vowels, chosen.out)
