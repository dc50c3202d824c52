"""For people who do not believe us: is an ε as large as the ledger says, and no larger?

An audit of a plan on given records tells what would leave, how far one record moves it (`neighbours`,
`leaving`), and whether guesses of an adversary who knows everything else stay within what is charged (`game`,
`guessing`). Nothing leaves, and nothing is charged. `recount` adds a finished run's ledger up again, by code
that is not ours.
"""

from __future__ import annotations

from typing import Any

from sottovoce.audit.guessing import Progress, check_runs, guess_canaries, guess_pair
from sottovoce.audit.leaving import ratios
from sottovoce.audit.pair import busiest, given_pair, worst_pair
from sottovoce.blueprint import Blueprint
from sottovoce.data import FederatedDataset
from sottovoce.errors import SottovoceError
from sottovoce.features.kept import Progress as OnFeatures
from sottovoce.plan import Plan
from sottovoce.privacy import schedule
from sottovoce.release import spending
from sottovoce.run.prepare import prepare

FAMILIES = 20
"""Of neighbouring files, each of which is compared with each of its own."""


def audit(
    plan: Plan,
    runs: int = 0,
    *,
    progress: Progress = lambda done, of: None,
    on_features: OnFeatures = lambda done, of: None,
) -> dict[str, Any]:
    """Audits what clients would release under a plan; with `runs` the game is played so often.

    One run carries many canaries; more are played with the worst pair that can be made up, and as often with
    the worst pair of the given records. `faults` lists what breaks the promise.
    """
    if not plan.private:
        raise SottovoceError("epsilon=inf adds no noise and promises nothing: set a finite epsilon")
    if runs < 0:
        raise SottovoceError(f"the game cannot be played {runs} times: give 1, or 100 and more")
    blueprint, federation = opened(plan, on_features)
    plan, who = blueprint.plan, busiest(blueprint)
    calls = int(schedule.counts(blueprint.schedule, plan.participants)[who])
    promised = spending(blueprint.releases_of(who), blueprint.participant_counts(calls)) ** 0.5
    games = []
    if runs == 1:
        games = [guess_canaries(blueprint, federation)]
    elif runs:
        check_runs(runs, promised)
        pairs = (worst_pair(blueprint, federation), given_pair(blueprint, federation))
        games = [guess_pair(pair, runs, progress) for pair in pairs]
    moved = ratios(plan, families=FAMILIES, progress=progress)
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
        "releases": moved.releases,
        "largest": max((row["ratio"] for row in moved.releases), default=0.0),
        "games": games,
        "faults": [*moved.faults, *(fault for game in games for fault in game["faults"])],
    }
    if games:
        found["epsilon_lower"] = games[0]["epsilon_lower"]
    return found


def opened(plan: Plan, on_features: OnFeatures = lambda done, of: None) -> tuple[Blueprint, FederatedDataset]:
    """The blueprint of a plan, and its clients with their records."""
    prepared = prepare(plan, trusted=True, progress=on_features)
    return prepared.blueprint, prepared.federation
