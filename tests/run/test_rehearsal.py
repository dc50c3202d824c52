"""A rehearsal shows who gains, charges ledgers of its own, and leaves no model behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce import data
from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan
from sottovoce.run.directory import RunDirectory
from sottovoce.run.rehearsal import AT_HOME, ROWS, compare
from sottovoce.run.training import train
from tests.data.hospitals import AGREED, HEADER, folder

FEW: dict[str, Any] = {"rounds": 4, "epsilon": 4.0, "future_clients": "west"}


def site(seed: int, size: int, shift: float) -> str:
    """Every hospital has a pressure gauge of its own."""
    rng = np.random.default_rng(seed)
    age, pressure = rng.integers(20, 90, size), rng.normal(120, 20, size)
    ill = (age - 55) / 20 + (pressure - 120) / 10 > 0
    rows = [
        f"{a},{p + shift:.1f},f,{'malignant' if i else 'benign'}"
        for a, p, i in zip(age, pressure, ill, strict=True)
    ]
    return "\n".join(["age,pressure,sex,diagnosis", *rows]) + "\n"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    at = tmp_path_factory.mktemp("compare")
    hospitals = folder(at / "hospitals", north=site(1, 200, 30), south=site(2, 80, -30), west=site(3, 60, 0))
    plan = Plan.load(overrides={**FEW, "dataset": str(hospitals)})
    return hospitals, at / "c", compare(plan, at / "c", repeats=2)


def test_three_rows_tell_how_every_client_fares(compared: tuple[Path, Path, dict[str, Any]]) -> None:
    _, out, found = compared
    assert list(found["rows"]) == ["constant", "home_alone", "alone", "shared", "blend", "finished"]
    for row in (found["rows"][name] for name in ROWS):
        assert set(row["per_client"]) == {"north", "south"}
        assert set(row["future_per_client"]) == {"west"}
        assert row["participants"] == pytest.approx(sum(row["per_client"].values()) / 2)
        assert row["future"] == row["future_per_client"]["west"]
        assert 0 <= row["participants"] <= 100
        assert row["epsilon"] == pytest.approx(4.0, abs=1e-3)
    west = found["rows"]["constant"]["future_per_client"]["west"]
    assert (
        30 < west == found["rows"]["constant"]["future"] < 70
    )  # the participants' shares: it tells no label
    assert json.loads((out / "compare.json").read_text()) == found
    assert [(site["name"], site["role"], site["size"]) for site in found["clients"]] == [
        ("north", "participant", 200), ("south", "participant", 80), ("west", "future", 60),
    ]  # fmt: skip


def test_a_rehearsal_says_so_and_that_a_choice_by_it_is_not_covered(
    compared: tuple[Path, Path, dict[str, Any]],
) -> None:
    _, _, found = compared
    assert found["rehearsal"] is True
    assert found["unit"] == "record"
    assert "not covered by ε" in found["warning"]


def test_ledgers_are_its_own_and_no_model_is_written(compared: tuple[Path, Path, dict[str, Any]]) -> None:
    hospitals, out, _ = compared
    assert sorted(path.name for path in hospitals.iterdir()) == [
        "north.csv", "records.toml", "south.csv", "west.csv",
    ]  # fmt: skip
    kinds = {path.suffix for path in out.iterdir()}
    assert ".safetensors" not in kinds
    assert {f"{row}.ledger.sqlite" for row in ROWS} <= {path.name for path in out.iterdir()}


def test_a_comparison_is_never_overwritten(compared: tuple[Path, Path, dict[str, Any]]) -> None:
    hospitals, out, _ = compared
    with pytest.raises(SottovoceError, match="already holds a comparison"):
        compare(Plan.load(overrides={**FEW, "dataset": str(hospitals)}), out)


@pytest.mark.parametrize("file", ["plan_file", "rounds_file", "result_file", "ledger_file", "lock_file"])
def test_the_folder_of_a_run_finished_or_not_is_refused(
    compared: tuple[Path, Path, dict[str, Any]], tmp_path: Path, file: str
) -> None:
    hospitals, _, _ = compared
    own: Path = getattr(RunDirectory(tmp_path), file)
    own.touch()
    with pytest.raises(SottovoceError, match="holds a run: choose another folder"):
        compare(Plan.load(overrides={**FEW, "dataset": str(hospitals)}), tmp_path)
    assert list(tmp_path.iterdir()) == [own]


def test_only_a_blend_can_be_compared(compared: tuple[Path, Path, dict[str, Any]], tmp_path: Path) -> None:
    hospitals, _, _ = compared
    other = {"method": "global", "context": "public", "learning_rate": 0.1}
    plan = Plan.load(overrides={**FEW, "dataset": str(hospitals), **other})
    with pytest.raises(SottovoceError, match="method=blend"):
        compare(plan, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_rehearsals_work_wherever_the_noise_is(
    compared: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    hospitals, _, _ = compared
    for name, changes in (
        ("server", {"preset": "central"}),
        ("clients together", {"preset": "shared", "channel": "integers"}),
        ("nowhere", {"epsilon": float("inf"), "seeded": True}),
    ):
        plan = Plan.load(overrides={**FEW, "dataset": str(hospitals), "channel": "direct", **changes})
        found = compare(plan, tmp_path / name, repeats=1)
        assert set(found["rows"]) == {*ROWS, *AT_HOME}
    assert found["epsilon"] is None
    assert not any(path.suffix == ".sqlite" for path in (tmp_path / "nowhere").iterdir())


def test_a_dataset_of_ones_own_brings_its_own_preset_as_in_train(tmp_path: Path) -> None:
    """H3: what the preset chose for mnist-small was kept for records of somebody's own."""
    hospitals = folder(tmp_path / "hospitals", north=site(1, 60, 30), south=site(2, 60, -30))
    plan, mine = Plan.load(overrides={"rounds": 2, "epsilon": 4.0}), data.load(hospitals)
    compared, trained = (
        compare(plan, tmp_path / "c", dataset=mine, repeats=1),
        train(plan, tmp_path / "t", dataset=mine),
    )
    assert compared["participants"] == trained["participants"] == 2
    told = ("preset", "dataset", "context", "features", "coefficients", "basis")
    assert {key: compared[key] for key in told} == {key: trained[key] for key in told}


def test_what_a_site_makes_at_home_carries_no_noise_and_gains_are_against_it(
    compared: tuple[Path, Path, dict[str, Any]],
) -> None:
    _, _, found = compared
    rows, gain = found["rows"], found["gain"]
    assert rows["home_alone"]["log_loss"] < rows["constant"]["log_loss"]
    for name in ("north", "south"):
        points = rows["finished"]["per_client"][name] - rows["home_alone"]["per_client"][name]
        assert gain["per_client"][name]["points"] == pytest.approx(points)
        assert gain["per_client"][name]["low"] <= points <= gain["per_client"][name]["high"]
    assert gain["sites_gaining"] + gain["sites_losing"] + gain["sites_undecided"] == 2
    for name in ("mean", "median", "worst_decile"):
        low, high = gain[f"{name}_interval"]
        assert low <= gain[name] <= high
    assert {"published", "finished"} == set(found["reliability"])
    assert sum(bin["records"] for bin in found["reliability"]["finished"]) == 2 * (40 + 16)


def test_numbers_are_judged_by_skill_over_all_records_and_not_by_a_mean_of_r2(tmp_path: Path) -> None:
    """A site whose target hardly varies has an R² of minus hundreds, which no mean should carry (M5)."""
    agreed = AGREED.replace('task = "classes"', 'task = "number"').replace(
        'values = ["benign", "malignant"]', "low = 0\nhigh = 100"
    )
    rng = np.random.default_rng(0)

    def numbers(size: int, spread: float) -> str:
        age = rng.integers(20, 90, size)
        target = 50 + spread * (age - 55) / 35 + rng.normal(0, 0.1, size)
        return HEADER + "".join(f"{a},120,f,{t:.3f}\n" for a, t in zip(age, target, strict=True))

    sites = {"flat": numbers(60, 0.0), "steep": numbers(200, 30.0)}
    later = {"level": numbers(60, 0.0), "rising": numbers(120, 30.0)}
    at = folder(tmp_path / "sites", agreed, **sites, **later)
    few = {"rounds": 4, "epsilon": 4.0, "future_clients": "level,rising"}
    plan = Plan.load(overrides={**few, "dataset": str(at)})
    found = compare(plan, tmp_path / "c", repeats=1)
    assert found["gain"]["median_interval"] is None  # one split says nothing about itself
    rows = found["rows"]
    assert rows["constant"]["participants"] == pytest.approx(0.0, abs=1e-6)
    assert rows["home_alone"]["participants"] > 95
    assert rows["shared"]["per_client"]["flat"] < -100 < rows["shared"]["participants"]
    for row in ("shared", "blend"):  # level would take a mean to minus thousands
        of_each, of_all = rows[row]["future_per_client"], rows[row]["future"]
        assert of_each["level"] < -1000
        assert -100 < of_all <= of_each["rising"] < 100
    assert rows["constant"]["future"] == pytest.approx(0.0, abs=20.0)
