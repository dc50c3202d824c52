"""Recipes tried side by side: their runs are the package's, and who is left out has no say."""

import numpy as np
import pytest
from studies.real_tables import trained
from studies.recipes import CHOSEN, RECIPES, Draws, table
from studies.table_grid import prepared_plan

from sottovoce import data
from sottovoce.models.tasks import open_task
from sottovoce.run.prepare import prepare


@pytest.mark.parametrize("preset", ["best", "central"])
def test_draws_train_and_calibrate_as_the_server_does(preset: str) -> None:
    records = data.load("heart")
    prepared = prepare(prepared_plan("heart", preset, 1e7, 3, rounds=10), records)
    assert prepared.blueprint.blending.individual.all()
    server, task, found = trained(prepared), open_task(records.facts), []
    for i, mine in enumerate(prepared.federation.participants):
        theta = prepared.blueprint.theta(server.coefficients([i])[0]).detach()
        weight, bias = theta[:-2].view(2, -1), theta[-2:]
        found.append(float(task.losses(mine.held_out.x @ weight.T + bias, mine.held_out.y).mean()))
    run = Draws(prepared, 3)
    assert run.loss(run.calibrated(run.trained(2))) == pytest.approx(float(np.mean(found)), rel=1e-3)


def test_a_table_that_is_left_out_has_no_say() -> None:
    def line(name: str, best: int) -> dict[str, object]:
        losses = [0.5 + 0.01 * abs(index - best) for index in range(len(RECIPES))]
        return {"table": name, "place": "client", "epsilon": 2.0, "over_constant": losses}

    chosen = RECIPES.index(CHOSEN)
    told = table([line("one", chosen), line("two", chosen), line("odd", 0)]).splitlines()
    odd = next(row for row in told if row.startswith("| odd |"))
    assert odd.count(", ".join(f"{value:g}" for value in CHOSEN)) == 1
    assert odd.endswith("0.500 (1, 0.15, 0.3) |")
