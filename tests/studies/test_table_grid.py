"""Settings that train side by side move as the package moves its models."""

from __future__ import annotations

import pytest
import torch
from studies.real_tables import trained
from studies.table_grid import Setting, Tried, prepared_plan, settings

from sottovoce import data
from sottovoce.models.tasks import open_task
from sottovoce.personal.finishing import constant
from sottovoce.run.prepare import prepare


@pytest.mark.parametrize("preset", ["best", "central"])
def test_without_noise_a_setting_is_a_run_of_the_package(preset: str) -> None:
    """At ε = 10⁴, in ten rounds without own parts: the same step, clip and momentum give the same loss."""
    changes = {
        "rounds": 10,
        "clip": 0.7,
        "learning_rate": 1.0,
        "individual": 0.0,
        "momentum": 0.5,
        "calibration": 0.0,
        "bias_scale": 1.0,
    }
    prepared = prepare(prepared_plan("heart", preset, 1e4, 3, **changes), data.load("heart"))
    server, task = trained(prepared), open_task(prepared.blueprint.facts)
    found = []
    for i, mine in enumerate(prepared.federation.participants):
        theta = prepared.blueprint.theta(server.coefficients([i])[0]).detach()
        weight, bias = theta[:-2].view(2, -1), theta[-2:]
        found.append(float(task.losses(mine.held_out.x @ weight.T + bias, mine.held_out.y).mean()))
    (loss,) = Tried(prepared).losses([Setting(0.7, 20.0, 0.0, 0.0)], 10, 0.5, seed=1)
    assert loss == pytest.approx(sum(found) / len(found), rel=2e-3)


def test_every_setting_of_the_grid_is_tried_once_and_one_of_them_beats_the_constant() -> None:
    grid = list(settings("classes", summed=False))
    assert len(set(grid)) == len(grid) == 96
    prepared = prepare(prepared_plan("heart", "best", 8.0, 3), data.load("heart"))
    losses = Tried(prepared).losses(grid[48 + 8 : 48 + 12], 10, 0.9, seed=1)
    task, sites = open_task(prepared.blueprint.facts), prepared.federation.participants
    constants = [
        task.losses(constant(task, mine.train.y, len(mine.held_out)), mine.held_out.y).mean()
        for mine in sites
    ]
    assert min(losses) < float(torch.stack(constants).mean())
