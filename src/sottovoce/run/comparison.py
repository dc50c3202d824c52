"""A rehearsal: every client alone, one shared model, and a blend of both, side by side before a run.

It is for records of which nothing is published: synthetic, public or retrospective ones. Each row is a run of
its own, charged to a ledger of its own; no model is written, and nothing enters the ledger of a folder. A
choice made by looking at accuracies is not covered by any ε (docs/sharp-edges.md), and the result says so.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from sottovoce import data
from sottovoce.blueprint import seeded_master
from sottovoce.central import DrawnRounds
from sottovoce.data import Dataset
from sottovoce.errors import SottovoceError
from sottovoce.features.kept import Progress
from sottovoce.files import private_folder, write_atomically
from sottovoce.plan import Plan, PlanError
from sottovoce.privacy.ledger import Ledger
from sottovoce.run.prepare import Prepared, Shared, prepare
from sottovoce.run.result import accuracies, description, site_rows
from sottovoce.run.rounds import Simulation
from sottovoce.run.updates import Updates
from sottovoce.server import Server

RESULT = "compare.json"
WARNING = (
    "A rehearsal: its accuracies are made of held-out records without noise, so a choice made by looking at "
    "them is not covered by ε. Use records of which nothing is published."
)
ROWS: dict[str, dict[str, Any]] = {
    "alone": {"individual": 1.0, "generated": 0.0},
    "shared": {"individual": 0.0, "generated": 0.0},
    "blend": {},
}
"""What each row changes in the plan."""

OnRound = Callable[[str, dict[str, Any]], None]


def compare(
    plan: Plan,
    out: str | Path,
    *,
    dataset: Dataset | None = None,
    module: nn.Module | None = None,
    cache: bool = True,
    on_round: OnRound = lambda row, line: None,
    on_features: Progress = lambda done, of: None,
) -> dict[str, Any]:
    """Rehearses a plan of method `blend` and returns what `compare.json` in the folder `out` then holds.

    `rows` has for each of `ROWS` the mean over `participants` of accuracy (or of the task's own metric) in
    percent, `per_client`, `future` (a mean too, None without future clients), `future_per_client` and
    `epsilon`, the most that a participant has spent.
    """
    if not plan.traits.individual:
        raise PlanError(f"compare is about method=blend, not {plan.method}: omit method, or use preset=best")
    folder = Path(out)
    if (folder / RESULT).exists():
        raise SottovoceError(f"{folder} already holds a comparison: choose another folder", "out")
    # Nothing travels in a rehearsal, and the noise of all channels has one law.
    plan = plan.replace(channel="direct", evaluate_every=0)
    ready = partial(prepare, module=module, trusted=True, cache=cache, progress=on_features, shared=Shared())
    rows = {name: ready(plan.replace(**changes), dataset) for name, changes in ROWS.items()}
    try:
        private_folder(folder)
    except OSError as error:
        raise SottovoceError(f"cannot create {folder}: {error.strerror}") from None
    found: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for name, prepared in rows.items():
        ledger = folder / f"{name}.ledger.sqlite"
        found[name], told = _rehearse(prepared, ledger, partial(on_round, name))
    result = {**told, "rehearsal": True, "warning": WARNING, "rows": found}
    write_atomically(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode())
    return result


def _rehearse(
    prepared: Prepared, ledger: Path, on_round: Callable[[dict[str, Any]], None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """How one run went, and what it was."""
    plan, blueprint, federation = prepared.plan, prepared.blueprint, prepared.federation
    run = plan.digest() if plan.seeded else secrets.token_hex(8)
    master = seeded_master(plan) if plan.seeded else secrets.token_bytes(32)
    with ExitStack() as stack:
        book = None
        if plan.private:
            book = stack.enter_context(Ledger.open(ledger, scope=data.scope(plan, prepared.dataset)))
        updates = None
        if plan.place.at_server and not plan.seeded:  # kept for as long as it takes: it is not resumed
            folder = Path(stack.enter_context(TemporaryDirectory()))
            updates = Updates(folder / "updates", {"run": run}, DrawnRounds.begin(folder / "run", run))
        server = Server(blueprint)
        simulation = Simulation(blueprint, federation, server, book, run=run, master=master, updates=updates)
        while not simulation.done:
            on_round(simulation.step())
        simulation.finish()
        found = accuracies(*simulation.evaluate())
        sites = site_rows(blueprint, federation, book)
    spent = [site["epsilon"] for site in sites if site["role"] == "participant"]
    row = {
        "participants": found["seen"],
        "per_client": found["seen_per_client"],
        "future": found["future"],
        "future_per_client": found["future_per_client"],
        "epsilon": max(spent) if plan.private else None,
    }
    target = plan.epsilon if plan.private else None
    told = {"rounds": plan.rounds, "epsilon": target, "delta": plan.delta, "clients": sites}
    return row, {**description(blueprint), **told}
