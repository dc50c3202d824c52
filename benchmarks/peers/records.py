"""What every contender trains on: the records of the clients of `studies.bench.round`."""

from __future__ import annotations

from functools import cache

from studies.bench.round import SETTINGS, made_up
from torch import Tensor

from sottovoce.plan import Plan
from sottovoce.run.prepare import prepare

CLIENTS: int = SETTINGS["participants"]
CLIENTS_PER_ROUND: int = SETTINGS["clients_per_round"]


@cache
def clients() -> tuple[tuple[Tensor, Tensor], ...]:
    """Every client's training records, normalized, with their labels; kept by each process."""
    plan = Plan.load(overrides=SETTINGS)
    federation = prepare(plan, made_up(CLIENTS * SETTINGS["records_per_client"])).federation
    return tuple((client.train.x, client.train.y) for client in federation.participants)
