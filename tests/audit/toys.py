"""Records and plans small enough to be audited in seconds: three clients of thirty records, three rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data import FederatedDataset
from sottovoce.plan import Plan
from sottovoce.release.blueprint import Blueprint
from sottovoce.run.prepare import prepare

TOY = {"partition": "client", "participants": 0, "clients_per_round": 0, "future_clients": 0, "rounds": 3}
CLASSES = {"context": "shares", "context_share": 0.05, "prior": "context"}
CENTRED = {**TOY, "seeded": True, "seed": 5, "centring": 0.08}
BEST = {**TOY, **CLASSES, "seeded": True, "seed": 5}
CENTRAL = {**BEST, "preset": "central", "rounds": 3}
SHARED = {**BEST, "preset": "shared", "rounds": 3, "channel": "integers", "threshold": 3, "colluding": 1}
"""Two shares of noise protect."""


def records(folder: Path) -> str:
    """A file of 90 records of four numbers and three classes, with a client column."""
    rng = np.random.default_rng(3)
    path = folder / "toy.npz"
    x, y = rng.normal(size=(90, 4)).astype("float32"), rng.integers(3, size=90)
    np.savez(path, x=x, y=y, client=np.repeat([0, 1, 2], 30))
    return str(path)


def opened(plan: Plan) -> tuple[Blueprint, FederatedDataset]:
    """The blueprint of a plan, and its clients with their records, as an audit opens them."""
    prepared = prepare(plan, trusted=True)
    return prepared.blueprint, prepared.federation


def toy(folder: Path, **keys: Any) -> tuple[Blueprint, FederatedDataset]:
    """What a plan on these records is opened to."""
    return opened(Plan.load(overrides={"dataset": records(folder), **TOY, **keys}))


def quick(plan: dict[str, Any]) -> dict[str, Any]:
    """The same plan with the quickest channel that it can have."""
    return {"channel": "direct", **plan}


def words(folder: Path, keys: dict[str, Any]) -> list[str]:
    """The same as settings of the command line."""
    values = {"dataset": records(folder), **keys}
    return [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()
    ]
