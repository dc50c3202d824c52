"""One file of records for each client of a dataset, to try a federation out on one machine.

The files hold exactly the records that the simulator gives to the same clients, so both engines can be
compared. In a real federation nobody could do this: clients bring their own files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sottovoce.data import Dataset, division, load, resolve
from sottovoce.federation.agreement import Agreement
from sottovoce.files import write_atomically
from sottovoce.plan import Plan


def agree(plan: Plan, dataset: Dataset | None = None) -> Agreement:
    """The agreement of a plan about its own dataset, resolved as the simulator resolves it."""
    records = load(plan.dataset) if dataset is None else dataset
    sizes = [len(index) for index in division(records, plan)[: plan.participants]]
    return Agreement(resolve(plan, [min(sizes)]), records.facts)


def write_client_files(
    agreement: Agreement, folder: str | Path, dataset: Dataset | None = None
) -> list[Path]:
    """Writes `client-I.npz` for participants, `future-I.npz` for future clients, and `agreement.toml`."""
    plan, out = agreement.plan, Path(folder)
    records = load(plan.dataset) if dataset is None else dataset
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "agreement.toml", agreement.to_toml().encode())
    paths = []
    for number, index in enumerate(division(records, plan)):
        future = number - plan.participants
        path = out / (f"client-{number}.npz" if future < 0 else f"future-{future}.npz")
        np.savez(
            path,
            x=records.x[index].numpy(),
            y=records.y[index].numpy(),
            classes=records.facts.classes,
            mean=records.facts.mean,
            std=records.facts.std,
        )
        path.chmod(0o600)
        paths.append(path)
    return paths
