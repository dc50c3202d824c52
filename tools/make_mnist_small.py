"""Make the subset of MNIST that ships with the package: 10,000 training images, drawn with a stated seed.

Run `python tools/make_mnist_small.py`; it fetches MNIST if needed and rewrites the shipped file, byte for
byte the same each time for one version of zlib.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sottovoce.data import fetch

SEED, RECORDS = 41, 10_000
TARGET = Path(__file__).parents[1] / "src/sottovoce/data/shipped/mnist-small.npz"


def main() -> None:
    """Draw without replacement from the 60,000 training examples, keep their order, compress."""
    with np.load(fetch("mnist", print)) as mnist:
        chosen = np.sort(np.random.default_rng(SEED).choice(len(mnist["y"]), RECORDS, replace=False))
        subset = {"x": mnist["x"][chosen], "y": mnist["y"][chosen]}
        public = {field: mnist[field] for field in ("classes", "mean", "std")}
    np.savez_compressed(TARGET, **subset, **public)
    print(f"{TARGET}: {TARGET.stat().st_size / 1e6:.2f} MB, per class {np.bincount(subset['y']).tolist()}")


if __name__ == "__main__":
    main()
