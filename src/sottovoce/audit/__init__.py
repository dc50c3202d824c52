"""For people who do not believe us: is an ε as large as the ledger says, and no larger?

An audit of a plan on given records tells what would leave, how far one record moves it (`neighbours`,
`leaving`), and whether guesses of an adversary who knows everything else stay within what is charged (`game`,
`guessing`). Nothing leaves, and nothing is charged.

A finished run's ε is recounted from the rows of its ledger, by code that is not ours: rows are composed by
dp-accounting's PLD accountant, which knows nothing of Gaussian composition. Then result.json, plan.toml,
rounds.jsonl and the ledger are held against one another, and its models are made again by its recipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn

from sottovoce.audit.bounds import check_runs
from sottovoce.audit.company import by_company
from sottovoce.audit.guessing import guess_canaries, guess_pair
from sottovoce.audit.noise import independence
from sottovoce.audit.order import by_order, climbed
from sottovoce.audit.pair import busiest, given_pair, worst_pair
from sottovoce.audit.sensitivity import ratios
from sottovoce.data import load
from sottovoce.errors import SottovoceError
from sottovoce.models.features.cache import Progress
from sottovoce.plan import Plan
from sottovoce.plan.recipes import UnknownRecipe
from sottovoce.plan.schedule import call_counts
from sottovoce.privacy.accounting import Charge, Entry
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.blueprint import phases
from sottovoce.release.kind import spending
from sottovoce.release.recipe import counted_sizes
from sottovoce.run.directory import RunDirectory
from sottovoce.run.finished import faults as not_made_again
from sottovoce.run.prepare import prepare

FAMILIES = 20
"""Of neighbouring files, each of which is compared with each of its own."""
AGREEMENT = 1e-3
"""Relative: PLD accounting rounds up."""
SEEDED = (
    "seeded = true: the noise is drawn from the seed, and whoever knows that takes it off. A simulation "
    "protects nobody: train with seeded=false"
)
_EXACT = 1e-9
_APART = {"centre": 2 * 1.3, "confusion": 2**0.5}
"""How far two records are apart in what is released once, as docs/method.md states it."""


def audit(
    plan: Plan,
    runs: int = 0,
    *,
    progress: Progress = lambda done, of: None,
    on_features: Progress = lambda done, of: None,
) -> dict[str, Any]:
    """Audits what clients would release under a plan; with `runs` the game is played so often.

    One run carries many canaries; more are played with the worst pair that can be made up, and as often with
    the worst pair of the given records. `faults` lists what breaks the promise.
    """
    if not plan.private:
        raise SottovoceError("epsilon=inf adds no noise and promises nothing: set a finite epsilon")
    if runs < 0:
        raise SottovoceError(f"the game cannot be played {runs} times: give 1, or 100 and more")
    prepared = prepare(plan, trusted=True, progress=on_features)
    blueprint, federation = prepared.blueprint, prepared.federation
    plan, who = blueprint.plan, busiest(blueprint)
    calls = int(call_counts(blueprint.schedule, plan.participants)[who])
    promised = spending(blueprint.releases_of(who), blueprint.participant_counts(calls)) ** 0.5
    games, common = list[dict[str, Any]](), None
    if runs:
        common = independence(blueprint, federation)
    if runs == 1:
        games = [guess_canaries(blueprint, federation)]
    elif runs:
        check_runs(runs, promised)
        pairs = (worst_pair(blueprint, federation), given_pair(blueprint, federation))
        games = [guess_pair(pair, runs, progress) for pair in pairs]
    random = Random("0:order")
    mixed = by_company(plan, load(plan.dataset), random)
    at = [torch.zeros(blueprint.coefficients), climbed(blueprint, federation, random)]
    moved = ratios(plan, families=FAMILIES, also=at[1:], progress=progress)
    order, misplaced = by_order(blueprint, federation, at, random)
    found = {
        "dataset": plan.dataset,
        "preset": plan.preset,
        "noise": plan.noise,
        "epsilon": blueprint.epsilon(blueprint.participant_counts(calls), who),
        "delta": plan.delta,
        "accounting": plan.accounting,
        "seeded": plan.seeded,
        "pairs": moved.pairs,
        "refused": moved.refused,
        "releases": [{**row, "order": order.get((row["kind"], row["place"]))} for row in moved.releases],
        "largest": max((row["ratio"] for row in moved.releases), default=0.0),
        "games": games,
        "faults": [*_seeded(plan), *mixed, *misplaced, *moved.faults],
    }
    for one in games:
        found["faults"] += one["faults"]
    if common is not None:
        found["common"] = common
        found["faults"] += common["faults"]
    if games:
        found["epsilon_lower"] = games[0]["epsilon_lower"]
    return found


def _seeded(plan: Plan) -> list[str]:
    return [SEEDED] if plan.seeded else []


def recount(
    run: str | Path, *, module: nn.Module | str | None = None, features: str | None = None
) -> dict[str, Any]:
    """ε of every client of a finished run, recomputed, and everything in which its files do not agree.

    The run's recipe is taken at its word, and its models are made again of what was released. `module` and
    `features` are the run's own, if it was trained with such.
    """
    directory = RunDirectory(run)
    result, plan = directory.result(), directory.plan()
    if "engine" in result:
        raise SottovoceError(
            f"{run} was trained by clients that keep their ledgers themselves: only they can recount"
        )
    if not plan.private:
        raise SottovoceError(f"{run} was trained without noise: nothing was charged, and nothing is promised")
    name, path = directory.identity()
    rows, lost = read_ledger(path)
    ended = datetime.fromisoformat(result["created"]) + timedelta(seconds=1)  # it is written in seconds
    before = [row.charge for row in rows if row.time < ended]
    mine = [row.charge for row in rows if row.charge.run == name]
    clients, faults = list[dict[str, Any]](), _seeded(plan)
    for client, stated in result["epsilon"]["per_client"].items():
        multipliers = [row.sigma / row.sensitivity for row in before if row.client == client]
        multipliers += [spent**-0.5 for who, spent in lost if who == client]
        found = pld_epsilon(multipliers, plan.delta)
        own = pld_epsilon([row.sigma / row.sensitivity for row in mine if row.client == client], plan.delta)
        clients.append({"client": client, "stated": stated, "recomputed": found, "this_run": own})
        # The closed form of rdp accounting states more than is spent.
        apart = abs(found - stated) if plan.accounting == "exact" else found - stated
        if apart > AGREEMENT * max(stated, 1e-3):
            faults.append(f"result.json says ε = {stated:.4f} of {client}, its ledger has {found:.4f}")
        if own > plan.epsilon * (1 + AGREEMENT):
            faults.append(f"{client} spent ε = {own:.4f} in this run, and its plan allows {plan.epsilon:g}")
    faults += not_made_again(run, module=module, features=features)
    with suppress(UnknownRecipe):  # which was said: without it nobody knows what was to be released
        faults += _disagreements(plan, result, directory.rounds(), mine)
    return {
        "run": str(run),
        "ledger": str(path),
        "delta": plan.delta,
        "accounting": plan.accounting,
        "epsilon": max((one["recomputed"] for one in clients), default=0.0),
        "stated": result["epsilon"]["spent_max"],
        "releases": len(mine),
        "clients": clients,
        "faults": faults,
    }


def read_ledger(path: Path) -> tuple[list[Entry], list[tuple[str, float]]]:
    """All rows, and for each client what is charged of releases that the ledger has lost (their Σ(Δ/σ)²)."""
    if not path.exists():
        raise SottovoceError(f"the run's ledger {path} is missing: restore it from a backup")
    with Ledger.peek(path) as ledger:
        lost = [ledger.past.lost_in(total.run, total.client) for total in ledger.past.totals()]
        return list(ledger.charges()), [(total.client, total.spent) for total in lost if total.spent > 0]


def pld_epsilon(multipliers: Sequence[float], delta: float) -> float:
    """ε at δ of Gaussian releases with these σ/Δ, by dp-accounting; 0 for none."""
    return _composed(tuple(sorted(Counter(multipliers).items())), delta) if multipliers else 0.0


@lru_cache
def _composed(releases: tuple[tuple[float, int], ...], delta: float) -> float:
    try:
        import dp_accounting
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise SottovoceError(
            "recomputing ε by other code needs dp-accounting: pip install 'sottovoce[audit]'"
        ) from None
    # Under replace-one the accountant would double Δ, which the ledger's is already.
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for multiplier, count in releases:
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier), count)
    return float(accountant.get_epsilon(delta))


def _disagreements(
    plan: Plan, result: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], rows: Sequence[Charge]
) -> list[str]:
    """Returns what plan, result, rounds and the rows of this run say differently."""
    stated = {"epsilon": result["epsilon"]["target"], "delta": result["delta"], "noise": result["noise"]}
    faults = [
        f"result.json says {key} = {value}, plan.toml says {getattr(plan, key)}"
        for key, value in stated.items()
        if value != getattr(plan, key)
    ]
    training = {site["name"]: site["training"] for site in result["clients"] if site["training"]}
    made = {("gradient", client, line["round"]) for line in rounds for client in line["clients"]}
    once = [phase.kind for phase in phases(plan) if phase.by == "participants"]
    made |= {(kind, client, 0) for kind in once for client in training}
    charged = {(row.kind, row.client, row.round) for row in rows if row.client in training}
    for kind, client, number in sorted(made - charged)[:1]:
        more = f" (and {len(made - charged) - 1} more)" if len(made - charged) > 1 else ""
        faults.append(f"the {kind} of {client} in round {number} is in no row of the ledger{more}")
    for kind, client, number in sorted(charged - made)[:1]:
        faults.append(f"the ledger charges a {kind} of {client} in round {number} that no round made")
    counted = dict(zip(training, counted_sizes(plan, list(training.values())), strict=True))
    smallest = min((sum(counted[client] for client in line["clients"]) for line in rounds), default=0)
    apart = {**_APART, "gradient": 2 * plan.clip}
    for row in rows:
        if row.kind not in apart or row.client not in training:
            continue
        summed = row.kind == "gradient" and plan.place.summed
        wanted = apart[row.kind] / (smallest if summed else training[row.client])
        place = plan.noise if row.kind == "gradient" else "client"
        # What a code or a grid may add to it is charged too.
        near = 1 - _EXACT <= row.sensitivity / wanted <= 1 + AGREEMENT
        if not near or row.place != place:
            faults.append(
                f"the ledger charges Δ = {row.sensitivity:.6g} at the {row.place} for the {row.kind} of "
                f"{row.client} in round {row.round}, and plan and records make it {wanted:.6g} at the {place}"
            )
            break
    return faults
