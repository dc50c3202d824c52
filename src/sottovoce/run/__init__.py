"""What Python calls: a run with all its files, its report included, exactly as the command line makes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from sottovoce.data.python import Clients, Held
from sottovoce.models.features.cache import Progress
from sottovoce.models.metrics import Own
from sottovoce.plan import Plan
from sottovoce.report.result import Result
from sottovoce.report.run import write_report
from sottovoce.run import training
from sottovoce.run.training import OnRound


def train(
    plan: Plan,
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    resume: bool = False,
    dataset: Held = None,
    clients: Clients | None = None,
    records: str | Path | None = None,
    module: nn.Module | None = None,
    device: str = "cpu",
    cache: bool = True,
    masks: bool = False,
    metrics: Own | None = None,
    callbacks: Sequence[object] = (),
    on_round: OnRound = lambda line: None,
    on_features: Progress = lambda done, of: None,
) -> Result:
    """Trains `plan` in the run directory `out`, writes its report there, and returns its result.

    `clients` are records from Python, {name: records, …} or a list: torch datasets, arrays (X, y), or tables
    (DataFrames, Hugging Face datasets) that the file `records`, a records.toml, describes; `from_clients`
    says more. `dataset` is a `Dataset`, a path, or a torch dataset whose records the plan deals out. They and
    `module` replace what the plan names, and are written down: plan.toml and result.json name them, and
    nothing stays of what a preset chose for another dataset. A dataset whose name can be loaded (a path, a
    public name) is repeated from plan.toml alone; any other, and a module, must be given again.
    `ledger` lets budgets add up over several runs on the same records, as those on a folder do by themselves.
    `resume` continues after the last checkpoint. `masks` go on the shares of `noise=shared`. `metrics` are
    functions of your own, {"f1": f}: f(true, decided) as scikit-learn's, of each client's held-out records,
    and with a parameter `probabilities` also of those. `callbacks` have any of the methods `on_plan(plan)`,
    `on_round(line)` and `on_result(result)`, called with what plan.toml, rounds.jsonl and result.json have;
    `sottovoce.report.tracking` has some. The rest changes speed and display only. The result is a dict, and a
    DataFrame by `frame()`.
    """
    result = training.train(
        plan,
        out,
        ledger=ledger,
        resume=resume,
        dataset=dataset,
        clients=clients,
        records=records,
        module=module,
        device=device,
        cache=cache,
        masks=masks,
        metrics=metrics,
        callbacks=callbacks,
        on_round=on_round,
        on_features=on_features,
    )
    write_report(Path(out))
    return result
