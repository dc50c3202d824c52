"""Two files that differ in one record, or one unit: what the adversary of the game has to tell apart.

The worst pair is made up: a public linear model takes both records for what they are not, for ever, so that
their gradients are as long as the clip allows and opposite in each round, and their contexts and confusions,
or their centres, are as far apart as those of any two records. Of the given records that pair is taken which
the plan's own model tells apart best at its start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sottovoce.data import ClientRecords, FederatedDataset, Records
from sottovoce.plan.catalog import Kind
from sottovoce.plan.schedule import call_counts
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.blueprint import Blueprint, build
from sottovoce.training.client import Asked, Client

CERTAIN = 1e9
"""A logit (or a number) that no training moves to the other side."""
LONG, SLIGHT = 20.0, 0.01
"""A worst record's coordinates, against the clip, and the one that tells two records of two classes apart."""
MOST_COORDINATES = 64
"""Of the records of the worst pair. More would show noise alone: schedule, σ, Δ and clip are those of the
plan with any number of coordinates."""
MOST_TRIED = 64
"""Given records among which a pair is looked for."""


@dataclass(frozen=True, eq=False)
class Pair:
    """One participant with two files, of which it holds one; `blueprint` has the model of the run."""

    about: str
    blueprint: Blueprint
    name: str
    participant: int
    files: tuple[ClientRecords, ClientRecords]

    def client(
        self, file: ClientRecords, ledger: Ledger | None = None, run: str = "", secret: bytes = b""
    ) -> Client:
        """The participant, holding a file."""
        return Client(
            self.name,
            file,
            self.blueprint,
            ledger,
            run=run,
            secret=secret,
            participant=self.participant,
        )


def busiest(blueprint: Blueprint) -> int:
    """The participant that is charged most; among equals the first."""
    counts = call_counts(blueprint.schedule, blueprint.plan.participants).tolist()
    spent = [blueprint.epsilon(blueprint.participant_counts(count), i) for i, count in enumerate(counts)]
    return max(range(len(spent)), key=spent.__getitem__)


def worst_pair(blueprint: Blueprint, federation: FederatedDataset) -> Pair:
    """The made-up pair, in the place of a record of the busiest participant."""
    coordinates = min(MOST_COORDINATES, math.prod(blueprint.facts.shape))
    worst, participant = worst_blueprint(blueprint, coordinates), busiest(blueprint)
    held = narrowed(federation.participants[participant], coordinates)
    first, second = worst_records(worst, torch.ones(1, coordinates))
    files = (with_unit(held, first), with_unit(held, second))
    return Pair("worst", worst, federation.names[participant], participant, files)


def given_pair(blueprint: Blueprint, federation: FederatedDataset) -> Pair:
    """Those two of the busiest participant's records that its releases tell apart best at the start."""
    participant = busiest(blueprint)
    held, name = federation.participants[participant], federation.names[participant]
    units = [
        part.of_units(torch.tensor([place]))
        for part in (held.train, held.held_out)
        for place in range(min(MOST_TRIED // 2, part.units))
    ]
    files = [with_unit(held, unit) for unit in units]
    pair = Pair("given", blueprint, name, participant, (files[0], files[0]))
    calls = int(call_counts(blueprint.schedule, blueprint.plan.participants)[participant])
    counts = blueprint.participant_counts(calls)
    distance = torch.zeros(len(files), len(files), dtype=torch.float64)
    zero, clients = torch.zeros(blueprint.coefficients), [pair.client(file) for file in files]
    sent = zero
    if blueprint.inputs:  # all files have nearly the same centre
        sent = torch.cat([zero, clients[0].statistic(clients[0].once("centre")).float()])
    for kind, count in counts.items():
        at = sent if kind == "gradient" else zero
        stacked = torch.stack([client.statistic(ask(client, kind, 1, at)) for client in clients])
        sigma = blueprint.releases_of(participant)[kind].sigma
        distance += count * (torch.cdist(stacked, stacked) / sigma) ** 2
    first, second = divmod(int(distance.argmax()), len(files))
    return replace(pair, files=(files[first], files[second]))


def ask(client: Client, kind: Kind, round_number: int, coefficients: Tensor | None) -> Asked:
    """One release of a client, by its kind; `coefficients` are of the model that it is made with, if any."""
    if kind != "gradient":
        return client.once(kind, coefficients)
    assert coefficients is not None
    return client.gradient(round_number, coefficients)


def worst_blueprint(blueprint: Blueprint, coordinates: int) -> Blueprint:
    """The same run, on records of so many coordinates, with a linear model that takes worst records for what
    they are not."""
    facts = replace(blueprint.facts, source=None, columns="", shape=(coordinates,))
    layer = nn.Linear(coordinates, facts.classes)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
        if is_by_class(blueprint):
            layer.weight[0, -1], layer.weight[1, -1] = -CERTAIN / SLIGHT, CERTAIN / SLIGHT
        else:
            layer.bias[-1] = CERTAIN
    linear = {"model": "linear", "coefficients": 0, "features": "none", "feature_size": 0, "mirror": False}
    built = build(blueprint.plan.replace(**linear), facts, nn.Sequential(layer), blueprint.sizes)
    return replace(built, context_sizes=blueprint.context_sizes)


def worst_records(blueprint: Blueprint, directions: Tensor) -> tuple[Records, Records]:
    """Records whose gradients under a worst blueprint are opposite, row by row along `directions` (n, …).

    Where classes are released those of a row are of two classes and nearly the same x, and each is taken for
    the other: (e₁ − e₀)xᵀ against (e₀ − e₁)xᵀ. Elsewhere they are x and −x, with one target that is missed
    wherever inputs are measured from.
    """
    facts, count = blueprint.facts, len(directions)
    x = LONG * max(1.0, blueprint.plan.clip) * directions
    if not is_by_class(blueprint):
        shape = (count, facts.classes) if facts.task == "labels" else (count,)
        target = torch.zeros(shape, dtype=torch.int64 if facts.task == "classes" else torch.float32)
        return Records(x, target), Records(-x, target)
    first, second = x.clone(), x.clone()
    first.view(count, -1)[:, -1], second.view(count, -1)[:, -1] = SLIGHT, -SLIGHT
    return Records(first, torch.zeros(count).long()), Records(second, torch.ones(count).long())


def is_by_class(blueprint: Blueprint) -> bool:
    """Returns whether records of two classes are the worst: something of single classes is released, their
    shares or how sure a model is, and no centre.

    Gradients δxᵀ are opposite where x are alike and δ opposite, which takes two classes, or where x are
    opposite and δ alike, which takes one. A centre knows x alone, so no pair is the worst for all: opposite x
    show all that is charged for a centre, two classes a quarter of a calibration's μ². By default the first
    is more.
    """
    if blueprint.plan.centring:
        return False
    calibrated = blueprint.plan.calibration > 0 and blueprint.facts.task == "classes"
    return blueprint.plan.context_traits.class_shares or calibrated


def narrowed(held: ClientRecords, coordinates: int) -> ClientRecords:
    """The file, of whose records only the first coordinates are left."""
    train, held_out, context = (
        replace(records, x=records.x.flatten(1)[:, :coordinates])
        for records in (held.train, held.held_out, held.context)
    )
    return replace(held, train=train, held_out=held_out, context=context)


def with_unit(held: ClientRecords, unit: Records) -> ClientRecords:
    """The file with another unit in the place of the first to train on, which is the context's first too."""
    train, context = (
        put(records, torch.arange(min(len(records), records.rows_of(1))), unit)
        for records in (held.train, held.context)
    )
    return replace(held, train=train, context=context)


def put(records: Records, rows: Tensor, others: Records) -> Records:
    """`records` with others in these rows, from the first again where there are fewer of them."""
    x, y = records.x.to(others.x.dtype, copy=True), records.y.clone()
    source = torch.arange(len(rows)) % len(others)
    x[rows], y[rows] = others.x[source], others.y[source].to(y.dtype)
    return replace(records, x=x, y=y, copied=True)
