"""Runs on published splits train on exactly the split's records, and rivals pay what they say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from studies.own_splits import Rival, padded, rival, rival_scores, run

from sottovoce.privacy.accounting import epsilon as epsilon_of
from studies import heart, scatternet, school, series

ROOT = Path(__file__).parents[2]


def test_flambys_choice_of_rows_gives_its_numbers_of_patients() -> None:
    dataset = heart.records("flamby")
    assert dataset.client is not None
    counts = dict(zip(heart.SITES, torch.bincount(dataset.client).tolist(), strict=True))
    assert counts == {"cleveland": 303, "hungarian": 261, "switzerland": 46, "va": 130}


def test_the_package_trains_on_the_records_of_the_split_and_spends_its_epsilon() -> None:
    divided = heart.split("all", 0)
    assert [len(y) for _, y in divided.train] == [round(0.66 * n) for n in (294, 303, 200, 123)]
    laid_out = divided.laid_out(0)
    assert len(laid_out) == sum(-(-5 * len(y) // 4) for _, y in divided.train)
    ran = run(divided, {"epsilon": 1.0, "delta": 1e-3, "rounds": 2}, 0)  # asserts which records train
    assert ran.spent == pytest.approx(1.0, abs=1e-6)
    assert ran.thetas.shape == (4, 76)


def test_the_published_split_of_schools_is_scikit_learns() -> None:
    from sklearn.model_selection import train_test_split

    for place in (0, 17, 138):
        x, y = school.schools()[place]
        wanted = train_test_split(np.arange(len(y)), test_size=0.3, random_state=3)
        divided = school.split(3)
        assert torch.equal(divided.test[place][1], y[wanted[1]])
        assert torch.equal(divided.train[place][0], x[wanted[0]])
    assert sum(len(y) for _, y in school.schools()) == 15_362


def test_rivals_without_noise_learn_and_their_noise_costs_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    divided = heart.split("all", 1)
    chosen = Rival(steps=30, rate=1.0, clip=1.0, prox=0.3)
    assert np.mean(rival_scores(divided, rival(divided, chosen, 1e6, 1e-3, 0))) > 78
    drawn: list[float] = []
    calibrate = rival.__globals__["calibrate"]

    def noted(**given: float) -> float:
        sigma: float = calibrate(**given)
        drawn.append(given["squared_sensitivity"] / sigma**2)
        return sigma

    monkeypatch.setitem(rival.__globals__, "calibrate", noted)
    rival(divided, chosen, 1.0, 1e-3, 0)
    assert [epsilon_of(mu_squared, 1e-3, "exact") for mu_squared in drawn] == pytest.approx(
        [1.0] * 4, rel=1e-6
    )


@pytest.mark.parametrize("prox", [-1.0, 0.0, 0.5])
def test_one_model_for_all_is_one_and_means_draw_models_together(prox: float) -> None:
    divided = heart.split("all", 2)
    found = rival(divided, Rival(20, 0.5, 1.0, prox), 5.0, 1e-3, 0)
    apart = float((found - found.mean(0)).norm())
    alone = rival(divided, Rival(20, 0.5, 1.0, 0.0), 5.0, 1e-3, 0)
    if prox < 0:
        assert apart == pytest.approx(0, abs=1e-6)
    elif prox:
        assert apart < float((alone - alone.mean(0)).norm())
    assert not math.isnan(apart)


@pytest.mark.parametrize("study", [heart, school, scatternet, series])
def test_the_pages_show_the_figures_that_are_committed(study: Any) -> None:
    figures = json.loads(study.RESULTS.read_text(encoding="utf-8"))
    page = "benchmarks.md" if study is series else "comparisons.md"
    assert study.table(figures) in (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_the_figures_asked_for_are_reached() -> None:
    """In the committed runs: heart at ε = 1, schools at ε = 6, home models not below alone."""
    lines = json.loads(heart.RESULTS.read_text(encoding="utf-8"))
    [at_one] = [line for line in lines if (line["part"], line["epsilon"], line["splits"]) == ("all", 1.0, 50)]
    assert at_one["published"]["mean"] >= 78
    assert at_one["finished − alone"]["mean"] >= -at_one["finished − alone"]["half"]
    lines = json.loads(school.RESULTS.read_text(encoding="utf-8"))
    [at_six] = [line for line in lines if (line["part"], line["epsilon"], line["seeds"]) == ("best", 6.0, 5)]
    assert at_six["published"]["mean"] <= 0.0228


def test_padding_adds_no_record() -> None:
    divided = heart.split("all", 0)
    x, _, counts = padded(divided)
    assert counts.tolist() == [len(y) for _, y in divided.train]
    assert [int(row.any(dim=1).sum()) for row in x] == counts.tolist()
