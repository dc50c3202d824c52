"""What a plan will cost, said before any training: noise, ε of every client, bytes each way, and time.

Noise and ε follow from the plan alone. Bytes and time are measured: one release on made-up records of the
right shape, through the real gradients and the real channel, times the number of releases.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from typing import Any

import numpy as np
import torch

from sottovoce import data
from sottovoce.data.tables.schema import protected_unit, random_records
from sottovoce.models.tasks import open_task
from sottovoce.plan import Plan
from sottovoce.plan.schedule import call_counts
from sottovoce.privacy import accounting
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.kind import spending
from sottovoce.run import prepare
from sottovoce.run.summary import site_rows

# In training the clipped mean of LeNet gradients has a norm of 0.1 to 0.6 of the clip bound.
TYPICAL_NORM = 0.3
SENSIBLE_EPSILON = 20.0
DEPLOYED_ROUND_SECONDS = 8.0
"""Of a round on Flower over a network: nearly all of it is waiting for nodes that ask for messages."""
ALONE = (
    "one client trains, and learns from nobody: its noise is for those who see its releases; a model that "
    "it makes for itself needs none"
)


def outline(plan: Plan) -> dict[str, Any]:
    """The costs of a plan, as `sottovoce plan --json` prints them."""
    outlined = prepare.outline(plan)
    blueprint, resolved = outlined.blueprint, outlined.plan
    clients = [] if outlined.federation is None else site_rows(blueprint, outlined.federation)
    counts = call_counts(blueprint.schedule, resolved.participants)
    releases = int(counts.sum())
    message, seconds = _one_release(blueprint)
    sent = blueprint.downlink("gradient")
    made_up = torch.randn(sent.size, generator=torch.Generator().manual_seed(resolved.seed))
    downlink = len(sent.encode(made_up))
    private, busiest, idlest = resolved.private, int(counts.argmax()), int(counts.argmin())

    def spent(participant: int) -> float | None:
        kinds = blueprint.participant_counts(int(counts[participant]))
        return blueprint.epsilon(kinds, participant) if private else None

    return {
        "model_parameters": blueprint.basis.size,
        "coefficients": blueprint.coefficients,
        "basis": blueprint.basis.kind,
        "sigma": blueprint.sigma,
        "sigma_context": blueprint.sigma_context,
        "releases_context": resolved.releases_context,
        "sharing": _sharing(blueprint),
        "shared_gain": _shared_gain(resolved),
        "sigma_carried": blueprint.releases_of(0)["gradient"].channel.sigma,
        "releases": releases,
        "releases_min": int(counts.min()),
        "releases_max": blueprint.releases_max,
        "releases_once": [phase.kind for phase in blueprint.once],
        "promise": promise(blueprint),
        "doubts": doubts(blueprint),
        "epsilon": spent(busiest),
        "epsilon_min": spent(idlest),
        "epsilon_future": blueprint.epsilon(blueprint.future_counts) if private else None,
        "delta": resolved.delta,
        "accounting": resolved.accounting,
        "uplink_bytes": releases * message,
        "message_bytes": message,
        "downlink_bytes": releases * downlink,
        "downlink_message_bytes": downlink,
        "downlink_once_bytes": blueprint.once_downlink_bytes,
        "seconds": releases * seconds,
        "seconds_deployed": resolved.rounds * DEPLOYED_ROUND_SECONDS,
        "unit": protected_unit(blueprint.facts),
        "clients": clients,
        "plan": dataclasses.asdict(resolved),
    }


def doubts(blueprint: Blueprint) -> list[str]:
    """Returns what a plan allows and hardly anybody means: a δ, an ε or a σ that is too large."""
    plan = blueprint.plan
    said: list[str] = []
    sigma = min(blueprint.releases_of(i)["gradient"].sigma for i in range(plan.participants))
    if plan.participants == 1:
        said.append(ALONE)
    agreed = data.schema.of(blueprint.facts.source or blueprint.facts)
    said += [] if agreed is None else agreed.uncovered
    if not plan.private:
        return said
    said += data.delta_doubt(plan.delta, min(blueprint.sizes))
    if plan.epsilon > SENSIBLE_EPSILON:
        mu = math.sqrt(accounting.mu_squared(plan.epsilon, plan.delta, plan.accounting))
        right = 50 * (1 + math.erf(mu / 2 / math.sqrt(2)))
        said.append(
            f"ε = {plan.epsilon:g} promises little: "
            f"a guess about a record may be right {right:.1f} times in 100"
        )
    if blueprint.sharing is not None and blueprint.sharing.honest == 1:
        said.append(
            "threshold − colluding = 1: the noise of one client is all that protects, and nothing is gained "
            "over noise=client"
        )
    if sigma > plan.clip and not plan.place.summed:
        said.append(
            f"σ = {sigma:.3g} is above the clip bound {plan.clip:g}: a release is nearly all noise; "
            "more records, a larger ε or fewer rounds help"
        )
    return said


def promise(blueprint: Blueprint) -> str:
    """Returns the promise of a plan in one sentence: who learns almost nothing about a record."""
    plan, unit = blueprint.plan, protected_unit(blueprint.facts)
    if not plan.private:
        return "none: nothing gets noise, and nobody is protected"
    if plan.place.shared:
        clients = "1 client" if plan.may_collude == 1 else f"{plan.may_collude} clients"
        others = f", {plan.helpers - 1} of {plan.helpers} helpers" if plan.helpers > 1 else ""
        return (
            f"who sees every sum of a round, generator and model (the server{others} and {clients} "
            f"of a round together) learns almost the same if one {unit} were another (ε = "
            f"{plan.epsilon:g}, δ = {plan.delta:g}), while cryptography holds and one helper is honest"
        )
    if plan.place.at_server:
        who = "every generator and model, but no release, which the server alone may see,"
    else:
        who = "every release, generator and model"
    return (
        f"who sees {who} learns almost the same if one {unit} were another "
        f"(ε = {plan.epsilon:g}, δ = {plan.delta:g})"
    )


def _sharing(blueprint: Blueprint) -> dict[str, Any] | None:
    """Returns what shared noise rests on, what a helper does, and ε where fewer are honest than planned."""
    sharing, plan = blueprint.sharing, blueprint.plan
    if sharing is None:
        return None
    counts = blueprint.participant_counts(blueprint.releases_max)
    once = spending(blueprint.releases_of(0), {**counts, "gradient": 0})
    few = {max(1, round(sharing.honest * share)) for share in (0.75, 0.5, 0.25)}
    honest = sorted({sharing.clients, sharing.threshold, sharing.honest, *few, 1}, reverse=True)
    return {
        "clients": sharing.clients,
        "threshold": sharing.threshold,
        "colluding": sharing.colluding,
        "honest": sharing.honest,
        "helpers": plan.helpers,
        "word": sharing.word,
        "sigma_total": sharing.total,
        "helper_up_bytes": sharing.size * sharing.word // 8,
        "helper_down_bytes": 32 * sharing.clients,  # the keys with which their messages begin
        "epsilon_by_honest": {
            count: accounting.epsilon(
                once + blueprint.releases_max * sharing.weakened(count), plan.delta, plan.accounting
            )
            for count in honest
        },
    }


def _shared_gain(plan: Plan) -> float | None:
    """Returns how much less noise a round's mean would have if clients shared it: √H times.

    Each then adds σ²/H to a sum that needs σ², instead of all of it.
    """
    if plan.place.summed or not plan.private or not plan.traits.bounded:
        return None
    honest = plan.in_every_sum - plan.may_collude
    return math.sqrt(honest) if 1 < honest < plan.clients_per_round else None


def _one_release(blueprint: Blueprint) -> tuple[int, float]:
    """Bytes and seconds of one gradient release, the second of two, so that nothing is compiled in it.

    The bytes are those of a client of middle size: a large one adds less noise, and needs more of them.
    """
    middle = int(np.argsort(blueprint.sizes)[len(blueprint.sizes) // 2])
    plan, release = blueprint.plan, blueprint.releases_of(middle)["gradient"]
    generator = torch.Generator().manual_seed(plan.seed)
    x = random_records(blueprint.facts, max(blueprint.sizes), generator)
    outputs = torch.randn(len(x), blueprint.facts.classes, generator=generator)
    y = open_task(blueprint.facts).decisions(outputs)
    u = np.random.default_rng(plan.seed).normal(size=release.size)
    u *= TYPICAL_NORM * plan.clip / np.linalg.norm(u)
    secret = secrets.token_bytes(32)
    for attempt in ("warm-up", "measured"):
        started = time.perf_counter()
        release.statistic(data.Records(x, y), torch.zeros(release.size))
        message = release.encode(u, secret=secret, stream=(attempt,))
        release.decode(message, secret=secret, stream=(attempt,))
        seconds = time.perf_counter() - started
    return len(message), seconds
