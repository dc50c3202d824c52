"""What the calibration of published models gives on real tables: log loss with it and without.

`python -m studies.calibrated --source DATA` writes `results/calibrated.json`, from which the table of
docs/models.md is made: tables of classes of `site_tables`, ε = 1, 2, 8, two seeds. Runs are those of
`studies.real_tables`; losses are means over sites, on the fifth that each holds out. *As trained* are the
same runs before slope and shifts; *newcomer* is the model of everybody, on the same records.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sottovoce.data import Dataset
from sottovoce.models.metrics import constant
from sottovoce.models.parameters import logits
from sottovoce.models.tasks import open_task
from sottovoce.run.prepare import prepare
from studies.real_tables import PRESETS, loaded, trained
from studies.site_tables import TABLES
from studies.table_grid import prepared_plan

RESULTS = Path(__file__).parents[1] / "results" / "calibrated.json"
ROWS = ("constant", "as trained", "calibrated", "newcomer as trained", "newcomer calibrated")
EPSILONS, SEEDS = (1.0, 2.0, 8.0), (71, 72)
SOME = ("heart", "breast cancer", "wine")


def measured(records: Dataset, preset: str, epsilon: float, seed: int) -> dict[str, float]:
    """Mean losses of one run, by row, and its slope."""
    prepared = prepare(prepared_plan(records.name, preset, epsilon, seed), records)
    blueprint, sites = prepared.blueprint, prepared.federation.participants
    server, task = trained(prepared), open_task(records.facts)
    [calibration] = [phase for phase in blueprint.once if phase.kind == "calibration"]
    found: dict[str, list[float]] = {row: [] for row in ROWS}
    for i, mine in enumerate(sites):
        before = server.model_of(calibration, i)
        assert before is not None
        models = before, server.coefficients([i])[0], server.shared_coefficients(), server.personalize(None)
        with torch.no_grad():
            outputs = [logits(blueprint.module, blueprint.theta(one), mine.held_out.x) for one in models]
        outputs = [constant(task, mine.train.y, len(mine.held_out)), *outputs]
        for row, output in zip(ROWS, outputs, strict=True):
            found[row].append(float(task.losses(output, mine.held_out.y).mean()))
    scaling = server.scaling()
    assert scaling is not None
    return {"slope": scaling.slope, **{row: float(np.mean(losses)) for row, losses in found.items()}}


def table(figures: list[dict[str, Any]]) -> str:
    """The figures in Markdown."""
    lines = ["| | noise | ε | " + " | ".join(ROWS) + " | slope |", "|---" * (4 + len(ROWS)) + "|"]
    for one in figures:
        losses = " | ".join(f"{one[row]:.3f}" for row in ROWS)
        lines.append(
            f"| {one['table']} | {one['place']} | {one['epsilon']:g} | {losses} | {one['slope']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, help="folder with heart/")
    parser.add_argument("--folder", type=Path, default=Path("build/real_tables"))
    parser.add_argument("--tables", nargs="+", default=list(SOME))
    parser.add_argument("--table", action="store_true", help="print the table of what was measured before")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(RESULTS.read_text(encoding="utf-8"))))
        return
    torch.set_num_threads(1)
    figures: list[dict[str, Any]] = []
    for name in options.tables:
        if not (options.folder / name).exists():
            TABLES[name].write(options.source, options.folder / name)
        for place, preset in PRESETS.items():
            for epsilon in EPSILONS:
                runs = [measured(loaded(options.folder, name), preset, epsilon, seed) for seed in SEEDS]
                means = {row: float(np.mean([run[row] for run in runs])) for row in runs[0]}
                figures.append({"table": name, "place": place, "epsilon": epsilon, **means})
                print(table(figures[-1:]).splitlines()[-1], flush=True)
                RESULTS.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
