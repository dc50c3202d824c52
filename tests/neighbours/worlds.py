"""Small runs of every kind on files of every kind, and the four ways from a file to a release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Literal
from unittest.mock import Mock, patch

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce import data
from sottovoce.audit.neighbours import Table, family
from sottovoce.audit.sensitivity import Leaving, coefficients, leaving, opened
from sottovoce.data import Description, FederatedDataset, training_size
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding.client import divided, future_records
from sottovoce.federation.site.holdings import Holdings
from sottovoce.plan import Plan
from sottovoce.plan.catalog import PLACES
from sottovoce.release.blueprint import Blueprint

Route = Literal["train", "future", "personalize", "node"]
ROUTES: tuple[Route, ...] = ("train", "future", "personalize", "node")
"""A participant of `train`, a future client of it, one of `personalize` and `onboard`, an enrolled node."""

TABLE = """
[columns.age]
kind = "number"
low = 0
high = 100
missing = "middle"

[columns.dose]
kind = "number"
low = -5
high = 5

[columns.sex]
kind = "category"
values = ["f", "m"]
case = "ignore"
aliases = { female = "f", male = "m" }

[columns.seen]
kind = "date"
since = 2020-01-01
until = 2024-12-31
format = "%d.%m.%Y"
missing = "low"
"""
TARGETS = {
    "classes": 'column = "ill"\nvalues = ["no", "maybe", "yes"]\n',
    "labels": 'columns = ["ill", "old"]\n',
    "number": 'column = "ill"\nlow = 0\nhigh = 10\n',
}
ARRAYS = {
    "picture": "shape = [1, 8, 8]\nmean = 0.5\nstd = 0.5",
    "photo": "shape = [1, 16, 16]\nmean = 0.5\nstd = 0.5",
    "series": "shape = [6, 2]\nmean = 0.5\nstd = 0.5",
    "tokens": 'kind = "tokens"\nshape = [8]\nvocabulary = 40',
}
CONTEXTS: dict[str, dict[str, Any]] = {
    "moments": {"context_share": 0.1},
    "standardized": {"method": "factorized", "context_noise": 0.5, "learning_rate": 0.1},
    "labels": {"context_share": 0.1},
    "predictions": {"method": "factorized", "context_round": 2, "learning_rate": 0.1},
    "public": {"method": "direct", "prior": "none"},
    "shares": {"context_share": 0.1, "confusion_share": 0.1, "prior": "context"},
}
UNITS = {"north": 20, "south": 17, "west": 16}
OWN = "tests.neighbours.worlds:residual"


class Residual(nn.Module):
    """A network with a way of its own, and eight hidden units."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(inputs, 8), nn.Linear(8, 8), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.flatten(1)))
        return self.head(h + torch.relu(self.inner(h)))  # type: ignore[no-any-return]


def residual(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Residual(torch.Size(shape).numel(), classes)


@dataclass(frozen=True)
class Case:
    """One kind of run on one kind of file."""

    suffix: str
    task: str
    unit: bool
    context: str
    noise: str = "client"
    array: str = ""
    features: str = "none"
    edge: bool = False
    """Half of all targets are missing, as many as may be: one more, and the file is refused."""
    fewer: bool = False
    """Rounds are of fewer units than train."""
    model: str = "linear"
    bare: bool = False
    """An npz with a column of clients, and no records.toml."""
    dealt: bool = False
    """Records are dealt with partition=iid: one is replaced in its place."""
    many: bool = False
    """More units than a tile holds, and a rest of them."""

    @property
    def units(self) -> dict[str, int]:
        """Of each client."""
        return {name: (5 if self.many else 1) * count for name, count in UNITS.items()}

    @property
    def plan(self) -> dict[str, Any]:
        chosen = {"preset": "best", "rounds": 3, "channel": "direct", "clip": 0.5, "method": "blend"}
        chosen |= {"partition": "client", "participants": 0, "future_clients": "west", "clients_per_round": 0}
        chosen |= {"records_per_client": 0, "context_records": 8, "gradient_records": 9 if self.fewer else 0}
        chosen |= {"context": self.context, "noise": self.noise, "model": self.model, "coefficients": 0}
        chosen |= {"features": self.features, "feature_size": 24, "evaluate_every": 0}
        chosen |= {"mlp_sizes": "6,5" if self.many else "10"}
        shared = {"channel": "integers", "individual": 0, "generated": 0} if self.noise == "shared" else {}
        dealt = {"partition": "iid", "participants": 2, "future_clients": 1} if self.dealt else {}
        return {**chosen, **CONTEXTS[self.context], **shared, **dealt}


def cases() -> list[Case]:
    """Formats, tasks, units, contexts, places of noise; arrays and their features; files at the edge."""
    found = []
    for suffix, task, unit, context, noise in product(
        (".csv", ".parquet", ".npz", ".tsv", ".xlsx"), TARGETS, (False, True), CONTEXTS, PLACES
    ):
        shares = context in ("labels", "predictions", "shares")
        bounded = CONTEXTS[context].get("method", "blend") in ("blend", "direct")
        if (shares and task != "classes") or (noise != "client" and not bounded):
            continue
        plain = Case(suffix, task, unit, context, noise)
        kinds = plain, replace(plain, edge=True, fewer=True), replace(plain, model="mlp", fewer=True)
        found += (
            [kinds[len(found) % 3], kinds[(len(found) + 1) % 3]]
            if suffix == ".csv"
            else [kinds[len(found) % 2]]
        )
    for suffix, unit, noise in product((".csv", ".npz"), (False, True), PLACES):
        plain = Case(suffix, "classes", unit, "shares", noise, many=True)
        found += [plain, replace(plain, model="mlp"), replace(plain, model=OWN)]
    for array, unit, noise in product(ARRAYS, (False, True), PLACES):
        plain = Case(".npz", "classes", unit, "shares", noise, array)
        if array == "tokens":
            words = replace(plain, model="bag")
            found += [words, replace(words, edge=True), replace(words, context="labels", fewer=True)]
            continue
        if array == "photo":
            found.append(replace(plain, model="lenet", many=True))
            continue
        found += [plain, replace(plain, edge=True), replace(plain, context="moments", fewer=True)]
        if array == "series":
            found += [replace(plain, many=True), replace(plain, model=OWN, many=True)]
        if array == "picture":
            found.append(replace(plain, features="patterns", fewer=True))
    bare = [Case(".npz", "classes", False, context, array="series", bare=True) for context in CONTEXTS]
    dealt = [replace(case, dealt=True) for case in bare]
    tables = [Case(".csv", task, False, "public", noise, dealt=True) for task in TARGETS for noise in PLACES]
    return [*found, *bare, *dealt, *tables]


@dataclass(frozen=True)
class World:
    """A folder of three clients, or one npz of them, its plan and its agreement."""

    case: Case
    source: Path
    plan: Plan
    agreed: Description | None
    blueprint: Blueprint
    federation: FederatedDataset

    def file(self, client: str) -> Path:
        return self.source if self.case.bare else self.source / f"{client}{self.case.suffix}"


@cache
def world(case: Case, at: Path) -> World:
    """A world in a folder of its own."""
    folder = at / f"world-{abs(hash(case))}"
    folder.mkdir()
    rng = np.random.default_rng(len(str(case)))
    if case.bare:
        owners = [name for name, size in case.units.items() for _ in range(size)]
        columns = {**_records(case, rng, len(owners)), "client": owners}
        constants = {"classes": 3}
        source = folder / "all.npz"
        Table({"x": columns["x"], "y": columns["y"], "client": owners}, ".npz", constants).write(source)
    else:
        source = folder
        (folder / "records.toml").write_text(_agreement(case), encoding="utf-8")
        for name, units in case.units.items():
            _write(case, folder / f"{name}{case.suffix}", rng, units)
    plan = Plan.load(overrides={**case.plan, "dataset": str(source)})
    agreed = None if case.bare else Description.load(folder / "records.toml")
    return World(case, source, plan, agreed, *opened(plan, data.load(source)))


@contextmanager
def unbounded() -> Iterator[None]:
    """Clients use coefficients as they were sent, however long."""
    with patch.object(Blueprint, "cut", lambda blueprint, sent: sent):
        yield


def neighbours(
    world: World, route: Route, random: Random, count: int, *, also: Sequence[Tensor] = ()
) -> Iterator[Leaving | str]:
    """What would leave of `count` files that differ in one unit; or why one of them was refused.

    Coefficients are those of `coefficients`, an adversary's among them, and `also` these.
    """
    client = "north" if route in ("train", "node") else "west"
    file = world.file(client)
    given = file.read_bytes()
    at = [*coefficients(world.blueprint, random.getrandbits(32)), *also]
    table = Table.read(file)
    try:
        for variant in family(table, world.agreed, random, count, in_place=world.case.dealt):
            variant.write(file)
            try:
                yield left(world, route, file, at)
            except SottovoceError as error:
                yield str(error)
    finally:
        file.write_bytes(given)


def left(world: World, route: Route, file: Path, at: list[Any]) -> Leaving:
    """What would leave of a file as it is now."""
    blueprint = world.blueprint
    if route in ("train", "future"):
        looked_at = None if world.case.dealt else {"south", "north" if route == "train" else "west"}
        return leaving(*opened(world.plan, data.load(world.source)), at, looked_at)
    if route == "personalize":
        found = Leaving({}, {}, {})
        found.add(blueprint, "west", divided(future_records(file, blueprint), blueprint), None, at)
        return found
    mine = Holdings(file, Mock(features=None)).records(0, blueprint, enrolled=True)
    units = training_size(mine.train.units + mine.held_out.units)
    found = Leaving({}, {}, {"declared": units})
    found.add(blueprint, "north", mine, 0, at)
    return found


def routes(case: Case) -> tuple[Route, ...]:
    """An npz of all clients is nobody's own file, and dealt records are in nobody's."""
    return ("train", "future") if case.bare or case.dealt else ROUTES


def _agreement(case: Case) -> str:
    shape = f"\n[array]\n{ARRAYS[case.array]}\n" if case.array else TABLE
    unit = 'unit = "patient"\n' if case.unit else ""
    return f'task = "{case.task}"\nunusable = 0.5\n{unit}\n[target]\n{TARGETS[case.task]}\n{shape}'


def _write(case: Case, path: Path, rng: np.random.Generator, units: int) -> None:
    columns: dict[str, list[Any]] = {}
    if case.unit:
        ids = [unit for unit in range(units) for _ in range(1 + unit % 3)]
        rng.shuffle(ids)
        columns = {"patient": ids if case.suffix == ".parquet" else [f"p{number}" for number in ids]}
    records = len(columns["patient"]) if case.unit else units
    columns |= _records(case, rng, records)
    if case.edge:
        for place in range(records // 2):
            columns["ill"][place] = None if case.suffix != ".npz" or case.task == "number" else ""
    Table(columns, case.suffix, {}).write(path)


def _records(case: Case, rng: np.random.Generator, records: int) -> dict[str, list[Any]]:
    level = rng.integers(0, 3, records)
    targets: dict[str, list[Any]] = {
        "classes": {"ill": [("no", "maybe", "yes")[place] for place in level]},
        "labels": {"ill": (level > 0).astype(int).tolist(), "old": (level > 1).astype(int).tolist()},
        "number": {"ill": (3.0 * level).tolist()},
    }[case.task]
    if case.array in ("picture", "photo"):
        side = 8 if case.array == "picture" else 16
        x = rng.integers(0, 90, (records, 1, side, side)) + 80 * level[:, None, None, None]
        return {"x": list(x.astype(np.uint8)), **targets}
    if case.array == "tokens":
        return {"x": list(rng.integers(0, 20, (records, 8)) + 10 * level[:, None]), **targets}
    if case.array == "series":
        x = rng.normal(size=(records, 6, 2)) + level[:, None, None]
        return {"x": list(x.astype(np.float32)), "y": level.tolist(), **targets}
    return {
        "age": rng.integers(0, 100, records).tolist(),
        "dose": rng.normal(size=records).round(3).tolist(),
        "sex": [("f", "male")[place] for place in rng.integers(0, 2, records)],
        "seen": [f"{1 + day % 28:02}.{1 + day % 12:02}.2023" for day in rng.integers(0, 999, records)],
        **targets,
    }
