"""How far one unit of given records moves everything that would leave, in parts of what is charged for it.

Clients that have files of their own get neighbours of these files, in a folder that is gone afterwards. Where
records are dealt, one of them becomes another one in its place.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import torch

from sottovoce import catalog, data
from sottovoce.audit.leaving import Largest, Leaving, coefficients, leaving, opened
from sottovoce.audit.neighbours import Table, array_like, family
from sottovoce.data import Dataset, Description
from sottovoce.data.description import NAME
from sottovoce.data.folder import described as has_agreement
from sottovoce.errors import SottovoceError
from sottovoce.features.kept import described
from sottovoce.plan import Plan
from sottovoce.run.prepare import prepare

Progress = Callable[[int, int], None]


def ratios(
    plan: Plan,
    *,
    families: int = 20,
    size: int = 8,
    seed: int = 0,
    progress: Progress = lambda done, of: None,
) -> Largest:
    """The largest ratio of each kind of release, over `families` of `size` files, any two of them a pair.

    Nothing leaves, and nothing is charged. `faults` of the answer says what breaks the promise.
    """
    found, path = Largest(), Path(plan.dataset).expanduser()
    own = path.is_dir() or has_agreement(path) or (path.exists() and plan.partition == "client")
    for number in range(families):
        random = Random(f"{seed}:{number}")
        found.compare(list((_files if own else _dealt)(plan, path, random, size)))
        progress(number + 1, families)
    return found


def _files(plan: Plan, path: Path, random: Random, size: int) -> Iterator[Leaving | str]:
    """What would leave of files that differ in one unit of one client."""
    clients = data.client_files(path) if path.is_dir() else {path.stem: path}
    name = random.choice(list(clients))
    agreed = (path if path.is_dir() else path.parent) / NAME
    described_by = Description.load(agreed) if path.is_dir() or has_agreement(path) else None
    with tempfile.TemporaryDirectory(prefix="sottovoce-audit-") as folder:
        copies = {client: Path(folder, file.name) for client, file in clients.items()}
        for client, file in clients.items():
            shutil.copyfile(file, copies[client])
        if described_by is not None:
            shutil.copyfile(agreed, Path(folder, NAME))
        at = None
        in_place = plan.partition != "client"
        for table in family(Table.read(clients[name]), described_by, random, size, in_place=in_place):
            table.write(copies[name])
            try:
                records = data.load(folder if path.is_dir() else copies[name])
                blueprint, federation = opened(plan, records)
            except SottovoceError as error:
                if at is None:  # the given file itself
                    raise
                yield str(error)
                continue
            everybody = [*federation.names, *federation.future_names]
            others = [client for client in everybody if client != name]
            at = at or coefficients(blueprint, random.getrandbits(32))
            yield leaving(blueprint, federation, at, {name, *others[:1]} if path.is_dir() else None)


def _dealt(plan: Plan, path: Path, random: Random, size: int) -> Iterator[Leaving]:
    """What would leave of a dataset of which one record becomes another one in its place."""
    stored = data.load(plan.dataset)
    ready = prepare(plan, stored, trusted=True)
    plan, dataset = ready.plan, ready.dataset
    index, names = data.division(dataset, plan), (*ready.federation.names, *ready.federation.future_names)
    # A public dataset that is dealt by labels is a simulation of clients who have their records already.
    by_labels = catalog.PARTITIONS[plan.partition].looks_at_labels
    owner = random.randrange(len(index))
    place = int(random.choice(index[owner].tolist()))
    rows = [{"x": stored.x[i].numpy()} for i in random.sample(range(len(stored)), min(len(stored), 32))]
    at = None
    for number in range(size):
        changed = dataset
        if number:
            x = torch.from_numpy(array_like(stored.x[place].numpy(), random, rows))[None]
            y = stored.y[random.randrange(len(stored))][None]
            new = described(Dataset("one", x, y, stored.facts), plan, cache=False, local=plan.features)
            changed = replace(dataset, x=dataset.x.clone(), y=dataset.y.clone())
            changed.x[place], changed.y[place] = new.x[0], new.y[0]
        blueprint, federation = opened(plan, changed, index if by_labels else None)
        at = at or coefficients(blueprint, random.getrandbits(32))
        yield leaving(blueprint, federation, at, {names[owner], names[owner - 1]})
