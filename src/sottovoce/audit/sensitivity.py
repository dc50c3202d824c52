"""Everything that would leave: each client's statistics before noise, for given coefficients, and all that is
public; and how far one unit of given records moves it, in parts of what is charged.

Two files that differ in one unit may differ by what is charged, in one client, and in nothing else. Clients
that have files of their own get neighbours of these files, in a folder that is gone afterwards. Where records
are dealt, one of them becomes another one in its place. Nothing leaves here, and nothing is charged.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce import data
from sottovoce.audit.hostile import Hostile
from sottovoce.audit.neighbours import Table, array_like, family
from sottovoce.data import ClientRecords, Dataset, Description, FederatedDataset
from sottovoce.data.sites import described as has_agreement
from sottovoce.data.tables.schema import NAME
from sottovoce.errors import SottovoceError
from sottovoce.models.features.cache import Progress, described
from sottovoce.models.features.encoded import by_kind
from sottovoce.plan import Plan, catalog
from sottovoce.plan.catalog import Kind
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.kind import Release
from sottovoce.run.prepare import Shared, prepare
from sottovoce.training.client import Asked, Client

TOLERANCE = 1e-9
"""By how much the rounding of sums may pass a ratio of 1, as in the ledger."""
ROUNDS = 2
"""Rounds of a client that are looked at: each has its own records, where it does not take all."""


@dataclass(frozen=True)
class What:
    """A statistic that would leave: whose, of which kind, in which round, at which coefficients."""

    client: str
    kind: str
    """As a table names it: a context says which, and whether it is a future client's."""
    place: str
    round: int = 0
    at: int = 0


@dataclass(frozen=True, eq=False)
class Leaving:
    """Statistics before noise, in parts of the Δ that is charged for each, and what is public about a run."""

    statistics: dict[What, np.ndarray]
    charged: dict[What, float]
    public: Mapping[str, Any]

    def add(
        self,
        blueprint: Blueprint,
        name: str,
        records: ClientRecords,
        participant: int | None,
        at: Sequence[Tensor],
    ) -> None:
        """Adds what one client would release, a participant or a future one (None)."""
        client = Client(name, records, blueprint, None, run="audit", secret=b"", participant=participant)
        releases = blueprint.releases_of(participant)
        for number, model in enumerate(at):
            for asked in _asked(client, blueprint, participant, model, records.train.units):
                release, plan = releases[asked.kind], blueprint.plan
                kind: str = asked.kind
                if kind == "context":
                    kind = f"context {plan.context}" + (" of a future client" if participant is None else "")
                what = What(name, kind, release.place, asked.round, number)
                part = weight(blueprint, participant, release) / release.sensitivity
                self.statistics[what] = client.statistic(asked).numpy() * part
                self.charged[what] = release.sensitivity


@dataclass
class Largest:
    """The largest ratio of each kind of release that was seen, how often, and what broke the promise."""

    rows: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """By kind of release and place of its noise: the largest Δ and ratio, and how many were compared."""
    pairs: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Pairs of which one file was refused, by what its owner was told, numbers left out."""
    faults: list[str] = field(default_factory=list)

    def compare(self, files: Sequence[Leaving | str]) -> None:
        """Takes files, any two of which are neighbours; a text says why one was refused."""
        for one, other in combinations(files, 2):
            if isinstance(one, Leaving) and isinstance(other, Leaving):
                self.pairs += 1
                self._pair(one, other)
            elif isinstance(one, Leaving) or isinstance(other, Leaving):
                why = re.sub(r"\d+", "…", one if isinstance(one, str) else str(other))
                self.refused[why] = self.refused.get(why, 0) + 1

    def _pair(self, one: Leaving, other: Leaving) -> None:
        for name in one.public.keys() | other.public.keys():
            if one.public.get(name) != other.public.get(name):
                self._fault(f"{name} is public, and changes with one unit")
        if one.statistics.keys() != other.statistics.keys():
            self._fault("which releases happen changes with one unit")
            return
        moved = set()
        for what, vector in one.statistics.items():
            ratio = float(np.linalg.norm(vector - other.statistics[what]))
            if not (vector == other.statistics[what]).all():
                moved.add(what.client)
            self.note((what.kind, what.place), one.charged[what], ratio)
            if not ratio <= 1 + TOLERANCE:
                self._fault(f"{what.kind} of {what.client} moves by {ratio:.3f} of what is charged")
        if len(moved) > 1:
            self._fault(f"one unit moves releases of {len(moved)} clients")

    def note(self, kind: tuple[str, str], charged: float, ratio: float, compared: int = 1) -> None:
        """Adds what was seen of releases of one kind and place."""
        row = self.rows.setdefault(kind, {"charged": 0.0, "ratio": 0.0, "compared": 0})
        row["charged"] = max(row["charged"], charged)
        row["ratio"] = row["ratio"] if ratio <= row["ratio"] else ratio  # what is no number counts as large
        row["compared"] += compared

    def _fault(self, text: str) -> None:
        if text not in self.faults:
            self.faults.append(text)

    @property
    def releases(self) -> list[dict[str, Any]]:
        """A row for each kind of release and place of noise."""
        return [{"kind": kind, "place": place, **self.rows[kind, place]} for kind, place in sorted(self.rows)]


def opened(
    plan: Plan, dataset: Dataset, index: list[Tensor] | None = None
) -> tuple[Blueprint, FederatedDataset]:
    """A run as `train` opens it, before its first release; `index` says who holds which record, if known."""
    named = replace(dataset, name=plan.dataset)
    prepared = prepare(plan, named, trusted=True, cache=False, shared=_shared, index=index)
    return prepared.blueprint, prepared.federation


_shared = Shared()


def leaving(
    blueprint: Blueprint,
    federation: FederatedDataset,
    at: Sequence[Tensor],
    only: Collection[str] | None = None,
) -> Leaving:
    """Returns what clients of a run, all or `only` some, would release for all coefficients (k,)."""
    found = Leaving({}, {}, _public(blueprint, federation))
    roles = (federation.names, federation.participants), (federation.future_names, federation.future)
    for role, (names, clients) in enumerate(roles):
        for i, name in enumerate(names):
            if only is None or name in only:
                found.add(blueprint, name, clients[i], i if role == 0 else None, at)
    return found


def coefficients(blueprint: Blueprint, seed: int) -> list[Tensor]:
    """Coefficients (k,) that a client may be sent: none yet, some far away, and an adversary's."""
    far = torch.randn(blueprint.coefficients, generator=torch.Generator().manual_seed(seed))
    recipe = Hostile.drawn(blueprint.module, Random(seed))
    return [torch.zeros_like(far), 3.0 * far, recipe.coefficients(blueprint.model)]


def weight(blueprint: Blueprint, participant: int | None, release: Release) -> float:
    """Returns the share of a client's statistic in the noised sum: 1 where its own noise protects it."""
    place = catalog.PLACES.get(release.place)
    if place is None or not place.summed or blueprint.round_sum is None or participant is None:
        return 1.0
    return float(blueprint.round_sum.weights([blueprint.counted[participant]])[0])


def _asked(
    client: Client, blueprint: Blueprint, participant: int | None, model: Tensor, trained: int
) -> Iterator[Asked]:
    """Every release that a client is asked for; rounds up to `ROUNDS`, one where all are of all units."""
    for phase in blueprint.future if participant is None else blueprint.once:
        yield client.once(phase.kind, None if phase.model == "none" else model)
    if participant is None:
        return
    # Behind the coefficients a made-up centre of any length: one that is too long is cut.
    centre = model[:1].expand(blueprint.downlink("gradient").size - len(model))
    rounds: Iterable[int] = np.flatnonzero((blueprint.schedule == participant).any(axis=1)) + 1
    for number in list(rounds)[: ROUNDS if blueprint.sizes[participant] < trained else 1]:
        yield client.gradient(int(number), torch.cat([model, centre]))


def _public(blueprint: Blueprint, federation: FederatedDataset) -> dict[str, Any]:
    """Returns what neighbours must have in common to the last bit."""

    def noise(participant: int | None) -> dict[Kind, tuple[object, ...]]:
        releases = blueprint.releases_of(participant).items()
        return {kind: (r.sensitivity, r.sigma, r.size, r.place, r.largest_message) for kind, r in releases}

    return {
        "the plan": blueprint.plan,
        "what a record is": blueprint.facts,
        "the number of units": (federation.participants.sizes, federation.future.sizes),
        "the names of clients": (federation.names, federation.future_names),
        "the schedule": blueprint.schedule.tolist(),
        "the model": blueprint.reference_digest,
        "noise and lengths": [noise(i) for i in [*range(blueprint.plan.participants), None]],
    }


def ratios(
    plan: Plan,
    *,
    families: int,
    size: int = 8,
    also: Sequence[Tensor] = (),
    progress: Progress = lambda done, of: None,
) -> Largest:
    """The largest ratio of each kind of release, over `families` of `size` files, any two of them a pair.

    Nothing leaves, and nothing is charged. `faults` of the answer says what breaks the promise. Coefficients
    are those of `coefficients`, and `also` these.
    """
    found, path = Largest(), Path(plan.dataset).expanduser()
    own = path.is_dir() or has_agreement(path) or (path.exists() and plan.partition == "client")
    for number in range(families):
        random = Random(f"0:{number}")
        files = _files(plan, path, random, size, also) if own else _dealt(plan, random, size, also)
        found.compare(list(files))
        progress(number + 1, families)
    return found


def _files(
    plan: Plan, path: Path, random: Random, size: int, also: Sequence[Tensor]
) -> Iterator[Leaving | str]:
    """Yields what would leave of files that differ in one unit of one client."""
    clients = data.client_files(path) if path.is_dir() else {path.stem: path}
    name = random.choice(list(clients))
    agreed = (path if path.is_dir() else path.parent) / NAME
    described_by = Description.load(agreed) if path.is_dir() or has_agreement(path) else None
    if described_by is not None and any(one.kind == "image" for one in described_by.held.values()):
        raise SottovoceError(
            f"{path} has pictures, which this part of an audit cannot make anew: audit a dataset of arrays"
        )
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
                records = data.load(folder if path.is_dir() else copies[name], by_kind(plan))
                blueprint, federation = opened(plan, records)
            except SottovoceError as error:
                if at is None:  # the given file itself
                    raise
                yield str(error)
                continue
            everybody = [*federation.names, *federation.future_names]
            others = [client for client in everybody if client != name]
            at = at or [*coefficients(blueprint, random.getrandbits(32)), *also]
            yield leaving(blueprint, federation, at, {name, *others[:1]} if path.is_dir() else None)


def _dealt(plan: Plan, random: Random, size: int, also: Sequence[Tensor]) -> Iterator[Leaving]:
    """Yields what would leave of a dataset of which one record becomes another one in its place."""
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
            if dataset.identity is not None:  # by which a client's records are drawn
                as_stored = replace(stored, x=stored.x.clone(), y=stored.y.clone(), identity=None)
                as_stored.x[place], as_stored.y[place] = x[0], y[0]
                changed = replace(changed, identity=as_stored.identified().identity)
        blueprint, federation = opened(plan, changed, index if by_labels else None)
        at = at or [*coefficients(blueprint, random.getrandbits(32)), *also]
        yield leaving(blueprint, federation, at, {names[owner], names[owner - 1]})
