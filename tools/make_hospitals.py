"""Make a folder of generated hospitals, whose records differ in shift.

Run `python tools/make_hospitals.py FOLDER [--seed SEED]`: byte for byte the same each time. Another seed
makes other hospitals of the same kind, to rehearse with. No real patient stands behind any number.

Every site measures the same hidden z ~ N(0, I) with a gain and a shift of its own: x = z·exp(0.2·N) + 0.6·N,
drawn once for each site and column. The diagnosis is the largest of (z + tanh(z W₂)) W + prior of the site +
Gumbel noise. So one model for all is wrong everywhere, and most sites are too small to learn alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

SEED = 12
COLUMNS = 12
SITES = {
    "aster": 1300, "birch": 950, "cedar": 750, "dahlia": 650, "elm": 550, "fern": 450,
    "gorse": 375, "hazel": 325, "iris": 260, "juniper": 215, "kelp": 175, "larch": 150, "west": 400,
}  # fmt: skip
CLASSES = ("healthy", "cardiac", "renal", "infection")
LEFT_OUT = 0.02
"""Share of marker_01 that was never measured."""


def main(folder: Path, seed: int = SEED) -> None:
    """Draw all sites and write `records.toml` and a CSV for each."""
    rng = np.random.default_rng(seed)
    hidden = 0.3 * rng.standard_normal((COLUMNS, COLUMNS))
    weights = 0.9 * rng.standard_normal((COLUMNS, len(CLASSES)))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.toml").write_text(description(), encoding="utf-8")
    for name, size in SITES.items():
        (folder / f"{name}.csv").write_text(site(rng, size, hidden, weights), encoding="utf-8")


def site(rng: np.random.Generator, size: int, hidden: np.ndarray, weights: np.ndarray) -> str:
    """One hospital's records as CSV."""
    prior = 0.9 * rng.standard_normal(len(CLASSES))
    gain, shift = np.exp(0.2 * rng.standard_normal(COLUMNS)), 0.6 * rng.standard_normal(COLUMNS)
    z = rng.standard_normal((size, COLUMNS))
    logits = (z + np.tanh(z @ hidden)) @ weights + prior + rng.gumbel(size=(size, len(CLASSES)))
    texts = np.char.mod("%.2f", z * gain + shift)
    texts[rng.random(size) < LEFT_OUT, 0] = ""
    sex = rng.choice(["f", "m"], size)
    rows = [
        f"{','.join(numbers)},{s},{CLASSES[k]}"
        for numbers, s, k in zip(texts.tolist(), sex, logits.argmax(axis=1), strict=True)
    ]
    return "\n".join([",".join((*markers(), "sex", "diagnosis")), *rows]) + "\n"


def markers() -> list[str]:
    """Names of the columns of numbers."""
    return [f"marker_{i:02}" for i in range(1, COLUMNS + 1)]


def description() -> str:
    """What the hospitals agreed on before anybody looked at a record."""
    values = ", ".join(f'"{name}"' for name in CLASSES)
    lines = ['task = "classes"', "", "[target]", 'column = "diagnosis"', f"values = [{values}]"]
    for name in markers():
        lines += ["", f"[columns.{name}]", 'kind = "number"', "low = -6", "high = 6", "mean = 0", "std = 1"]
        lines += ['missing = "middle"'] if name == "marker_01" else []
    lines += ["", "[columns.sex]", 'kind = "category"', 'values = ["f", "m"]']
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Generate a folder of hospitals.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=SEED, help=f"default: {SEED}")
    chosen = parser.parse_args()
    main(chosen.folder, chosen.seed)
