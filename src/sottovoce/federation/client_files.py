"""One file of records for each client of a dataset, to try a federation out on one machine.

The files hold exactly the records that the simulator gives to the same clients, so both engines can be
compared. In a real federation nobody could do this: clients bring their own files.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from sottovoce.data import Dataset, division, load
from sottovoce.data.description import NAME
from sottovoce.errors import SottovoceError
from sottovoce.federation.agreement import Agreement
from sottovoce.files import PUBLIC, private_folder, write_atomically
from sottovoce.plan import Plan
from sottovoce.run.prepare import outline


def agree(plan: Plan, dataset: Dataset | None = None) -> Agreement:
    """The agreement of a plan about its own dataset, resolved as the simulator resolves it.

    The clients of a seeded one are played by this machine: a real client refuses it.
    """
    records = load(plan.dataset) if dataset is None else dataset
    if records.home is not None:
        raise SottovoceError(
            f"{records.home} is a folder of sites, which have their files already: give its agreement "
            f"{records.home / NAME} and how many participants, and deal out no dataset",
            "records",
        )
    outlined = outline(plan, records)
    agreed = Agreement(outlined.plan, outlined.blueprint.facts, plan.seeded, outlined.plan.model)
    return agreed.frozen(outlined.trained) if agreed.open else agreed


def write_client_files(
    agreement: Agreement, folder: str | Path, dataset: Dataset | None = None
) -> list[Path]:
    """Writes `client-I.npz` for participants, `future-I.npz` for future clients, and `agreement.toml`."""
    plan, out = agreement.plan, Path(folder)
    records = load(plan.dataset) if dataset is None else dataset
    private_folder(out)
    write_atomically(out / "agreement.toml", agreement.to_toml().encode(), PUBLIC)
    paths = []
    for number, index in enumerate(division(records, plan)):
        future = number - plan.participants
        path = out / (f"client-{number}.npz" if future < 0 else f"future-{future}.npz")
        file = io.BytesIO()
        np.savez(
            file,
            x=records.x[index].numpy(),
            y=records.y[index].numpy(),
            classes=records.facts.classes,
            mean=records.facts.mean,
            std=records.facts.std,
        )
        write_atomically(path, file.getvalue())
        paths.append(path)
    return paths
