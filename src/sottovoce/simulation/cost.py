"""What a plan will cost, said before any training: noise, ε of every client, bytes each way, and time.

Noise and ε follow from the plan alone. Bytes and time are measured: one release on made-up records of the
right shape, through the real gradients and the real channel, times the number of releases.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import numpy as np
import torch

from sottovoce import data
from sottovoce.blueprint import Blueprint, draw
from sottovoce.gradients import clipped_mean
from sottovoce.plan import Plan, PlanError
from sottovoce.privacy import schedule
from sottovoce.simulation.result import COEFFICIENT_BYTES
from sottovoce.simulation.session import deal, resolve

# In training the clipped mean of LeNet gradients has a norm of 0.1 to 0.6 of the clip bound.
TYPICAL_NORM = 0.3


def blueprint_for(plan: Plan) -> Blueprint:
    """The blueprint of a plan; the dataset is read only where its facts are not public knowledge."""
    facts = data.PUBLIC.get(plan.dataset)
    if facts is not None and plan.partition != "client":
        clients = plan.participants + plan.future_clients
        size = plan.records_per_client or facts.records // clients
        if clients * size > facts.records or size == 0:
            raise PlanError(
                f"{clients} clients × {max(size, 1)} records is more than the {facts.records} of "
                f"{plan.dataset}: lower participants, future_clients or records_per_client"
            )
        data.check_sizes(plan.context_records, size, size if plan.future_clients else None)
        return draw(resolve(plan, size), facts.shape, facts.classes)
    federation = deal(plan, data.load(plan.dataset))
    return draw(resolve(plan, min(federation.participants.sizes)), federation.shape, federation.classes)


def outline(plan: Plan) -> dict[str, Any]:
    """The costs of a plan, as `sottovoce plan --json` prints them."""
    blueprint = blueprint_for(plan)
    resolved = blueprint.plan
    counts = schedule.counts(blueprint.schedule, resolved.participants)
    releases = int(counts.sum())
    message, seconds = _one_release(blueprint)
    context = resolved.releases_context
    private = resolved.private
    return {
        "model_parameters": blueprint.basis.size,
        "coefficients": blueprint.coefficients,
        "basis": blueprint.basis.kind,
        "sigma": blueprint.sigma,
        "sigma_context": blueprint.sigma_context,
        "releases": releases,
        "releases_min": int(counts.min()),
        "releases_max": blueprint.releases_max,
        "epsilon": blueprint.epsilon(blueprint.releases_max, context=context) if private else None,
        "epsilon_min": blueprint.epsilon(int(counts.min()), context=context) if private else None,
        "epsilon_future": blueprint.epsilon(0, context=context) if private else None,
        "delta": resolved.delta,
        "accounting": resolved.accounting,
        "uplink_bytes": releases * message,
        "message_bytes": message,
        "downlink_bytes": COEFFICIENT_BYTES * releases * blueprint.coefficients,
        "seconds": releases * seconds,
        "plan": {name: getattr(resolved, name) for name in vars(resolved)},
    }


def _one_release(blueprint: Blueprint) -> tuple[int, float]:
    """Bytes and seconds of one gradient release, the second of two, so that nothing is compiled in it."""
    plan = blueprint.plan
    generator = torch.Generator().manual_seed(plan.seed)
    x = torch.randn(plan.gradient_records, *blueprint.shape, generator=generator)
    y = torch.randint(blueprint.classes, (plan.gradient_records,), generator=generator)
    u = np.random.default_rng(plan.seed).normal(size=blueprint.coefficients)
    u *= TYPICAL_NORM * plan.clip / np.linalg.norm(u)
    secret = secrets.token_bytes(32)
    for attempt in ("warm-up", "measured"):
        started = time.perf_counter()
        clipped_mean(
            blueprint.module,
            blueprint.reference,
            blueprint.basis,
            x,
            y,
            clip=plan.clip,
            denominator=plan.gradient_records,
        )
        message = blueprint.gradient_channel.encode(u, secret=secret, stream=(attempt,))
        blueprint.gradient_channel.decode(message, secret=secret, stream=(attempt,))
        seconds = time.perf_counter() - started
    return len(message), seconds
