"""A federation small enough for tests: 6 participants, 2 future clients, a model of 12,730 parameters."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

from sottovoce.channel.wire import PrivateRandomness
from sottovoce.data import Facts
from sottovoce.plan import Plan
from sottovoce.release.blueprint import Blueprint, build

SMALL = {
    "preset": "tuned",
    "model": "tests.small:tiny",
    "participants": 6,
    "future_clients": 2,
    "records_per_client": 120,
    "context_records": 50,
    "coefficients": 800,
    "clients_per_round": 3,
    "rounds": 4,
    "evaluate_every": 2,
    "channel": "direct",
    "seeded": True,
}


LEARNING = {
    "rounds": 30,
    "learning_rate": 0.5,
    "epsilon": 64.0,
    "evaluate_every": 0,
    "records_per_client": 300,
}
"""Enough to be better than chance."""

FEDERATION = {
    **SMALL,
    "model": "lenet",
    "participants": 3,
    "future_clients": 1,
    "records_per_client": 100,
    "context_records": 40,
    "coefficients": 256,
    "basis": "unstructured",
    "clients_per_round": 2,
    "context": "moments",
    "learning_rate": 0.3,
    "evaluate_every": 0,
}
"""What processes of their own can train, that know nothing of these tests."""


COLUMNS = """
[columns.age]
kind = "number"
low = 0
high = 120
missing = "middle"
[columns.sex]
kind = "category"
values = ["f", "m"]
"""
"""Of `records.toml`: what a small table has beside its target."""
ILL = 'task = "classes"\n[target]\ncolumn = "ill"\nvalues = ["no", "yes"]\n' + COLUMNS


def tiny(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A two-layer network for 28×28 images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, classes))


def small_plan(**changes: object) -> Plan:
    """A seeded plan that trains in a second."""
    return Plan.load(overrides={**SMALL, **changes})


def federated_plan(**changes: object) -> Plan:
    """A plan for a federation of three clients."""
    return Plan.load(overrides={**FEDERATION, **changes})


def built(plan: Plan, facts: Facts, module: nn.Module | str | None = None) -> Blueprint:
    """The blueprint of a plan whose model these tests vouch for."""
    return build(plan, facts, plan.model if module is None else module)


def noise_draws(patch: pytest.MonkeyPatch, module: ModuleType) -> list[int]:
    """The rounds for which `module` draws the noise of a server, as they come."""
    drawn_in: list[int] = []
    real = module.server_randomness

    def noted(plan: Plan, run: str, number: int) -> PrivateRandomness:
        drawn_in.append(number)
        randomness: PrivateRandomness = real(plan, run, number)
        return randomness

    patch.setattr(module, "server_randomness", noted)
    return drawn_in


def aged(notes: Path) -> None:
    """Makes a copy of notes an hour old, as backups are; within seconds it could pass for the original."""
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    old = [{**line, "time": line["time"] - 3600 * 10**9} for line in lines]
    notes.write_text("".join(json.dumps(line) + "\n" for line in old))
