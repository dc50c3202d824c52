"""Finishing at home: what is chosen and told, what is left alone, and that a home model goes nowhere."""

from __future__ import annotations

import copy
import functools
import json
import shutil
import stat
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.data import Facts, Records, copy_shipped, read_client
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding.client import NotFinished, personalize
from sottovoce.models.architectures import open_model
from sottovoce.models.features import open_features
from sottovoce.models.imports import ModelError
from sottovoce.models.parameters import flat_parameters
from sottovoce.models.tasks import open_task
from sottovoce.models.tensors import HomeModel, load_tensors, save_tensors
from sottovoce.personal import Origin, PersonalModel, finishing
from sottovoce.personal.finishing import (
    CannotFinish,
    Worth,
    constant,
    deal_folds,
    divided,
    finish,
    finish_records,
    finished_outputs,
    worth,
)
from sottovoce.personal.fitting import Choice, LinearFamily
from sottovoce.personal.prediction import predict
from sottovoce.plan import Plan
from sottovoce.privacy.terms import Terms
from sottovoce.run.finished import GeneratorFile
from sottovoce.run.models import write_models
from sottovoce.run.prepare import prepare
from sottovoce.run.rehearsal import compare
from sottovoce.run.training import evaluate, train

AGREED = """
task = "classes"
unusable = 0.05

[target]
column = "ill"
values = ["no", "yes"]

[columns.a]
kind = "number"
low = -3
high = 3

[columns.b]
kind = "number"
low = -3
high = 3
"""


def model(task: str = "classes", inputs: int = 4, outputs: int = 3, weight: float = 1.0) -> PersonalModel:
    facts = Facts((inputs,), outputs, task=task)
    module = open_model("linear", (inputs,), outputs, 0)
    with torch.no_grad():
        module[1].weight.copy_(weight * torch.eye(outputs, inputs))
    plan = Plan.load(overrides={"model": "linear"})
    return PersonalModel(module, plan, facts, Origin("run", "north", 1.0, 1e-5, "exact", "client"))


def records(count: int, task: str = "classes", seed: int = 0, inputs: int = 4, outputs: int = 3) -> Records:
    """Records for which the published model of `model` is right but for noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, inputs, generator=generator)
    scores = x[:, :outputs] + 0.5 * torch.randn(count, outputs, generator=generator)
    y = {"classes": scores.argmax(dim=1), "labels": (scores > 0).float(), "number": scores[:, 0] / 4}[task]
    return Records(x, y)


@pytest.mark.parametrize("task", ["classes", "labels", "number"])
def test_a_site_of_few_records_gains_by_a_published_model_that_is_right(task: str) -> None:
    outputs, weight = (1, 0.25) if task == "number" else (3, 2.0)
    mine, others = (records(n, task, seed, outputs=outputs) for n, seed in ((30, 1), (4000, 2)))
    finished = finish_records(model(task, outputs=outputs, weight=weight), mine, others)
    losses = {name: row["loss"] for name, row in finished.rows.items()}
    assert losses["finished"] < losses["alone"] < losses["constant"]
    assert finished.worth.low > 0
    assert str(finished.worth).startswith("joining is worth")
    assert finished.choice.share > 0
    assert (finished.records, finished.held_out) == (4030, 4000)


def test_a_published_model_that_is_wrong_does_no_harm() -> None:
    finished = finish_records(model(weight=-5.0), records(200), records(2000, seed=1))
    assert finished.rows["finished"]["loss"] < finished.rows["alone"]["loss"] + 0.02
    assert finished.rows["published"]["loss"] > finished.rows["constant"]["loss"]


def test_a_gain_that_is_hardly_more_than_luck_is_left_and_the_site_keeps_what_it_has_alone() -> None:
    task, chosen, cost = (
        open_task(Facts((4,), 3)),
        {0.0: 0, finishing.DOUBT: 0},
        {0.0: 0.0, finishing.DOUBT: 0.0},
    )
    for seed in range(40):
        mine, judged = records(40, seed=seed), records(500, seed=1000 + seed)
        wrong = 0.5 * torch.randn(15, generator=torch.Generator().manual_seed(seed))
        for doubt in chosen:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(finishing, "DOUBT", doubt)
                outputs = finished_outputs(open_model("linear", (4,), 3, 0), wrong, mine, judged, task)
            worse = task.losses(outputs["finished"], judged.y) - task.losses(outputs["alone"], judged.y)
            chosen[doubt] += bool((worse != 0).any())
            cost[doubt] += float(worse.mean())
    assert chosen[finishing.DOUBT] < 0.7 * chosen[0.0]
    assert cost[finishing.DOUBT] < cost[0.0]


def test_records_of_one_unit_count_once_against_luck() -> None:
    # Twenty copies of each record as one unit choose the model of random parameters no more often than one.
    task, chosen = open_task(Facts((4,), 3)), {"once": 0, "often": 0}
    for seed in range(40):
        mine, judged = records(30, seed=seed), records(200, seed=1000 + seed)
        copied = Records(mine.x.repeat(20, 1), mine.y.repeat(20), torch.arange(30).repeat(20))
        wrong = 0.5 * torch.randn(15, generator=torch.Generator().manual_seed(seed))
        for name, each in {"once": mine, "often": copied}.items():
            outputs = finished_outputs(open_model("linear", (4,), 3, 0), wrong, each, judged, task)
            chosen[name] += bool((outputs["finished"] != outputs["alone"]).any())
    assert chosen["often"] <= chosen["once"] + 2


@dataclass(frozen=True, eq=False)
class Broken(LinearFamily):
    """Fits that ran away: those with a share in `shares` come to nothing finite."""

    shares: tuple[float, ...] = ()

    def out_of_fold(
        self, folds: torch.Tensor, progress: Callable[[float], None]
    ) -> dict[Choice, torch.Tensor]:
        found = super().out_of_fold(folds, progress)
        away = {choice: torch.full_like(each, torch.inf) for choice, each in found.items()}
        # The first one that `min` looks at is one of them.
        return {
            choice: away[choice] if choice.share in self.shares else found[choice]
            for choice in reversed(found)
        }


@pytest.mark.parametrize("shares", [(0.3,), (1.0,), (0.3, 0.6, 1.0)])
def test_a_fit_that_is_not_finite_is_never_chosen(
    shares: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishing, "open_family", lambda *given: Broken(*given[:4], shares=shares))
    found = finish_records(model("number", outputs=1, weight=0.25), records(30, "number", outputs=1))
    assert found.choice.share not in shares
    assert (found.choice.share > 0) == (len(shares) == 1)  # the published model helps such a site


def test_a_site_of_which_no_fit_stays_finite_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        finishing, "open_family", lambda *given: Broken(*given[:4], shares=LinearFamily.SHARES)
    )
    with pytest.raises(CannotFinish, match="no fit to these records alone stays finite"):
        finish_records(model("number", outputs=1), records(30, "number", outputs=1))


def test_without_held_out_records_rows_are_cross_validated() -> None:
    finished = finish_records(model(), records(60))
    assert finished.held_out == 0
    assert finished.rows["alone"]["loss"] > 0


def test_a_worth_whose_interval_holds_nothing_says_nothing() -> None:
    assert "nothing" in str(Worth(0.5, -0.2, 1.2))
    assert str(Worth(2.2, 0.9, 3.5)) == "joining is worth 2.2 points to you, 0.9 to 3.5"
    assert str(Worth(-2.2, -3.5, -0.9)) == "joining costs you 2.2 points, 0.9 to 3.5"
    assert str(Worth(0.0, 0.0, 0.0)).endswith("nothing to you: your own records alone were chosen")
    assert str(Worth(100.0, None, None)).endswith("there is one record to judge by")


def test_an_interval_is_never_narrower_than_what_one_record_is_worth() -> None:
    task, few = open_task(Facts((4,), 3)), records(16)
    right = torch.nn.functional.one_hot(few.y, 3).float()
    agreeing = {"constant": right, "alone": right, "finished": 2 * right}
    found = worth(task, agreeing, few)
    assert (found.points, found.low, found.high) == (0.0, -100 / 16, 100 / 16)
    assert worth(task, agreeing, few[:1]) == Worth(0.0, None, None)
    assert worth(task, {**agreeing, "finished": right}, few) == Worth(0.0, 0.0, 0.0)


def test_an_interval_for_numbers_is_no_narrower_either() -> None:
    task, few = open_task(Facts((4,), 1, task="number")), records(16, "number", outputs=1)
    right = few.y[:, None]
    agreeing = {"constant": torch.zeros(16, 1), "alone": right, "finished": right + 1e-6}
    found = worth(task, agreeing, few)
    assert found.points == pytest.approx(0.0, abs=1e-3)
    assert (found.low, found.high) == pytest.approx((-100 / 16, 100 / 16), abs=1e-3)


def test_units_stay_together_in_folds_and_every_fold_has_its_share_of_classes() -> None:
    y = torch.arange(100) % 2
    unit = torch.arange(100) // 4
    folds = deal_folds(Records(torch.zeros(100, 1), (unit % 2), unit))
    assert all(len(torch.unique(folds[unit == one])) == 1 for one in range(25))
    alone = deal_folds(Records(torch.zeros(100, 1), y))
    assert all(int(y[alone == fold].sum()) == 5 for fold in range(10))


def test_units_count_once_in_the_interval() -> None:
    # Ten copies of each record as one unit say no more than one of each.
    mine, others = records(40), records(50, seed=3)
    tenfold = Records(others.x.repeat(10, 1), others.y.repeat(10), torch.arange(50).repeat(10))
    once, often = finish_records(model(), mine, others).worth, finish_records(model(), mine, tenfold).worth
    assert often.high - often.low == pytest.approx(once.high - once.low, rel=0.05)


def test_a_constant_has_the_sites_shares_with_one_record_more_of_each_class() -> None:
    task = open_task(Facts((1,), 3))
    shares = constant(task, torch.tensor([0, 0, 0, 1]), 2).exp()
    assert torch.allclose(shares, torch.tensor([[4 / 7, 2 / 7, 1 / 7]] * 2))


def test_records_that_cannot_say_anything_are_refused() -> None:
    with pytest.raises(CannotFinish, match="4 records to choose by are too few, 5 are the fewest"):
        finish_records(model(), records(4))
    with pytest.raises(CannotFinish, match="same target"):
        finish_records(model(), Records(torch.randn(20, 4), torch.zeros(20).long()))


def site_file(path: Path, rows: int, seed: int, missing: int = 0) -> Path:
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(2, rows))
    ill = np.where(a + 0.5 * random.normal(size=rows) > 0, "yes", "no")
    ill[:missing] = ""
    lines = (f"{x:.4f},{z:.4f},{y}\n" for x, z, y in zip(a, b, ill, strict=True))
    path.write_text("a,b,ill\n" + "".join(lines))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three sites, with their models."""
    folder = tmp_path_factory.mktemp("finish")
    sites = folder / "sites"
    sites.mkdir()
    (sites / "records.toml").write_text(AGREED)
    for seed, name in enumerate(("east", "north", "west")):
        site_file(sites / f"{name}.csv", 120, seed)
    plan = Plan.load(overrides={"dataset": str(sites), "rounds": 5, "channel": "direct", "epsilon": 4})
    train(plan, folder / "run")
    write_models(folder / "run", folder / "models")
    return folder


def test_published_is_judged_on_the_records_that_the_run_held_out(run: Path, tmp_path: Path) -> None:
    published = PersonalModel.read(run / "models/north.safetensors")
    told = finish(published, run / "sites/north.csv", tmp_path / "north.home.safetensors")
    accuracy = evaluate(run / "run")["accuracy"]["seen_per_client"]["north"]
    assert told["rows"]["published"]["accuracy"] == pytest.approx(accuracy)
    assert (told["held_out"], told["records"], told["left_out"]) == (24, 120, 0)


def test_each_shipped_hospital_is_judged_on_the_records_that_its_run_held_out(tmp_path: Path) -> None:
    """A run once divided them by their places, and a file is divided by what its records are."""
    plan = Plan.load(overrides={"dataset": "heart", "future_clients": 0, "rounds": 2, "channel": "direct"})
    train(plan, tmp_path / "run")
    write_models(tmp_path / "run", tmp_path / "models")
    copy_shipped("heart", tmp_path / "sites")
    federation = prepare(plan).federation
    for name, mine in zip(federation.names, federation.participants, strict=True):
        model = PersonalModel.read(tmp_path / f"models/{name}.safetensors")
        file = read_client(tmp_path / f"sites/{name}.csv", facts=model.facts, needed=0)
        for at_home, in_run in zip(divided(file, model.division), (mine.train, mine.held_out), strict=True):
            assert sorted(at_home.x.tolist()) == sorted(in_run.x.tolist())


def test_a_home_file_is_its_owners_and_predicts(run: Path, tmp_path: Path) -> None:
    home = tmp_path / "north.home.safetensors"
    published = PersonalModel.read(run / "models/north.safetensors")
    before = (run / "models/north.safetensors").read_bytes()
    finish(published, run / "sites/north.csv", home)
    assert stat.S_IMODE(home.stat().st_mode) == 0o600
    assert (run / "models/north.safetensors").read_bytes() == before
    model = PersonalModel.read(home, home=True)
    assert model.home
    assert predict(model, run / "sites/north.csv", tmp_path / "p.csv").records == 120


def test_records_without_a_target_are_left_out_and_counted(run: Path, tmp_path: Path) -> None:
    published = PersonalModel.read(run / "models/north.safetensors")
    few = site_file(tmp_path / "north.csv", 120, 1, missing=100)
    told = finish(published, few, tmp_path / "home.safetensors")
    assert (told["left_out"], told["records"]) == (100, 20)


def test_columns_of_cells_that_say_nothing_to_the_model_are_counted(run: Path, tmp_path: Path) -> None:
    whole = site_file(tmp_path / "whole.csv", 60, 1)
    odd, lines = tmp_path / "odd.csv", whole.read_text().splitlines()
    cells = [line.split(",") for line in lines[1:]]
    cells = [["?" if place % 2 else a, "", ill] for place, (a, _, ill) in enumerate(cells)]
    odd.write_text("\n".join([lines[0], *map(",".join, cells), ""]))
    north, nothing = run / "models/north.safetensors", {"unknown": {}, "unreadable": {}, "empty": []}
    for data, expected in {whole: nothing, odd: {**nothing, "unreadable": {"a": 30}, "empty": ["b"]}}.items():
        told = finish(north, data, tmp_path / "home.safetensors")
        assert {name: told[name] for name in nothing} == expected
        _, metadata = load_tensors(tmp_path / "home.safetensors", home=True)
        assert "unreadable" not in metadata["home"]


def with_module(north: Path, to: Path, name: str, module: torch.nn.Module) -> Path:
    """A published file of a module, by a header that names it so."""
    _, metadata = load_tensors(north)
    metadata["model"] = json.dumps({**json.loads(metadata["model"]), "model": name})
    save_tensors(to, module.state_dict(), metadata)
    return to


def hidden_layer(seed: int) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
        return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def test_nothing_is_imported_by_the_word_of_a_models_file_where_a_module_is_given(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = "from pathlib import Path\nPath('imported').touch()\ndef f(*given): Path('called').touch()\n"
    (tmp_path / "evilmod.py").write_text(marks)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    evil = with_module(run / "models/north.safetensors", Path("m.safetensors"), "evilmod:f", hidden_layer(1))
    told = finish(evil, run / "sites/north.csv", module=hidden_layer(2))
    assert "evilmod" not in sys.modules
    assert not Path("imported").exists()
    assert PersonalModel.read(told["model"], home=True, model=hidden_layer(3)).home
    assert "evilmod" not in sys.modules


def test_a_site_alone_starts_from_the_given_module_as_it_was_whatever_was_published(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = types.ModuleType("factory")
    factory.made = lambda *shape: hidden_layer(2)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "factory", factory)
    begun, alone = [], []
    family = finishing.open_family
    monkeypatch.setattr(finishing, "open_family", lambda *given: [begun.append(given[-1]), family(*given)][1])
    for name, given, seed in (
        ("python:Sequential", hidden_layer(2), 1),
        ("python:Sequential", hidden_layer(2), 3),
        ("factory:made", "factory:made", 3),
    ):
        published = tmp_path / "north.safetensors"
        with_module(run / "models/north.safetensors", published, name, hidden_layer(seed))
        alone.append(finish(published, run / "sites/north.csv", module=given)["rows"]["alone"])
    assert all(torch.equal(start, flat_parameters(hidden_layer(2))) for start in begun)
    assert alone[0] == alone[1] == alone[2]


WAYS_OUT: dict[str, Callable[[Path, Path], object]] = {
    "read as a published model": lambda home, run: PersonalModel.read(home),
    "read as a generator": lambda home, run: GeneratorFile.read(home),
    "loaded as a state": lambda home, run: load_tensors(home),
    "finished again": lambda home, run: finish(
        PersonalModel.read(home, home=True), run / "sites/north.csv", home.with_name("again")
    ),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_home_model_is_refused_by_whatever_could_let_it_out(way: str, run: Path, tmp_path: Path) -> None:
    home = tmp_path / "north.home.safetensors"
    finish(PersonalModel.read(run / "models/north.safetensors"), run / "sites/north.csv", home)
    with pytest.raises((HomeModel, CannotFinish)) as refusal:
        WAYS_OUT[way](home, run)
    assert "\n" not in str(refusal.value)
    assert not home.with_name("again").exists()


def test_a_run_does_not_start_from_or_end_with_a_home_model(run: Path, tmp_path: Path) -> None:
    # As a run's model it is neither evaluated, nor exported, nor served.
    from sottovoce.federation.onboarding.server import FinishedRun

    home = tmp_path / "north.home.safetensors"
    finish(PersonalModel.read(run / "models/north.safetensors"), run / "sites/north.csv", home)
    model_file = run / "run/model.safetensors"
    kept = model_file.read_bytes()
    try:
        model_file.write_bytes(home.read_bytes())
        for way in (
            lambda: evaluate(run / "run"),
            lambda: write_models(run / "run", tmp_path / "out"),
            lambda: FinishedRun.load(run / "run"),
        ):
            with pytest.raises(HomeModel):
                way()
    finally:
        model_file.write_bytes(kept)
    assert not (tmp_path / "out").exists()


def test_no_run_starts_warm_from_a_home_models_module(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients at a model that saw a record without noise would move by more than is charged."""
    home = tmp_path / "north.home.safetensors"
    finish(run / "models/north.safetensors", run / "sites/north.csv", home)
    mine = PersonalModel.read(home, home=True).module
    plan = Plan.load(overrides={"dataset": str(run / "sites"), "rounds": 1, "channel": "direct"})
    hidden, shared = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(2)), torch.nn.Linear(2, 2)
    hidden.kept = [mine]
    shared.weight = next(iter(mine.parameters()))
    whole = (mine, copy.deepcopy(mine), torch.nn.Sequential(mine, torch.nn.Identity()))
    for module in (*whole, hidden, torch.nn.Sequential(shared)):
        with pytest.raises(ModelError, match="finished at home, on records without noise, and no run starts"):
            train(plan, tmp_path / "again", module=module)
        with pytest.raises(ModelError, match="finished at home"):
            compare(plan, tmp_path / "compared", module=module)
    factory = types.ModuleType("factory")
    factory.made = lambda *shape: mine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "factory", factory)
    with pytest.raises(ModelError, match="finished at home"):
        train(plan.replace(model="factory:made"), tmp_path / "again", module="factory:made")
    assert not (tmp_path / "again").exists()
    for used in (mine, mine.forward, lambda x: mine(x), functools.partial(torch.nn.Module.__call__, mine)):
        factory.described = lambda shape, used=used: used  # type: ignore[attr-defined]
        with pytest.raises(SottovoceError, match="finished at home, on records without noise: give it"):
            open_features("factory:described", (2,), local="factory:described")
    published = PersonalModel.read(run / "models/north.safetensors").module
    seeded = plan.replace(seeded=True)
    assert train(seeded, tmp_path / "again", module=published)["rounds"] == 1


def test_bad_input_gets_one_line_and_writes_nothing(run: Path, tmp_path: Path) -> None:
    published = PersonalModel.read(run / "models/north.safetensors")
    out = tmp_path / "home.safetensors"
    data = site_file(tmp_path / "north.csv", 50, 1)
    without = tmp_path / "without.csv"
    without.write_text("a,b\n1,2\n")
    other = tmp_path / "other.csv"
    other.write_text("c,ill\n1,yes\n")
    single = tmp_path / "single.csv"
    single.write_text("a,b,ill\n" + "1,2,yes\n" * 30)
    unknown = tmp_path / "unknown.csv"
    unknown.write_text("a,b,ill\n" + "1,2,perhaps\n" * 30)
    commas = tmp_path / "commas.csv"
    commas.write_text("a;b;ill\n" + "1,5;2,5;yes\n1,5;2,5;no\n" * 20)
    faults = {
        without: "no column 'ill'",
        other: "no column 'a'",
        single: "same target",
        unknown: "none of 30 records can be used",
        commas: "column 'a' holds nothing that the model could read",
        data: "holds the records",
    }
    for source, fault in faults.items():
        target = data if source == data else out
        before = source.read_bytes()
        with pytest.raises(SottovoceError, match=fault) as refusal:
            finish(published, source, target)
        assert "\n" not in str(refusal.value)
        assert source.read_bytes() == before
        assert not out.exists()


def test_what_is_no_path_or_no_clients_model_is_refused_in_one_line(run: Path, tmp_path: Path) -> None:
    north, data = run / "models/north.safetensors", run / "sites/north.csv"
    checkpoint = tmp_path / "checkpoint.safetensors"
    save_tensors(checkpoint, {"round": torch.zeros(1)}, {"run": "0123"})
    for model_file, records_file, out, says in (
        (north, [1, 2], "home.safetensors", r"data=\[1, 2\] is no path: say where its file lies"),
        ([north], data, "home.safetensors", "model=.* is no path"),
        (north, data, 7, "out=7 is no path"),
        (north, None, None, "data=None is no path"),
        (checkpoint, data, None, "holds no client's model: give a file that 'sottovoce models'"),
    ):
        with pytest.raises(SottovoceError, match=says) as refusal:
            finish(model_file, records_file, out)  # type: ignore[arg-type]
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("out", "fault"),
    [("nowhere/x.safetensors", "cannot write .*nowhere/x.safetensors: No such"), ("x.csv", "not as x.csv")],
)
def test_a_home_model_that_could_not_be_written_as_one_is_refused_before_anything_is_fitted(
    out: str, fault: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fitted(*_: object) -> None:
        raise AssertionError("records were read for it")

    monkeypatch.setattr(finishing, "described_client", fitted)
    with pytest.raises(SottovoceError, match=fault):
        finish(run / "models/north.safetensors", run / "sites/north.csv", tmp_path / out)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_charged_for_a_model_that_could_not_be_written(run: Path, tmp_path: Path) -> None:
    data = site_file(tmp_path / "south.csv", 50, 5)
    with pytest.raises(SottovoceError, match=r"cannot write .*No such file or directory; check the path"):
        personalize(run / "run", data, tmp_path / "nowhere/south.safetensors", terms=Terms(client="south"))
    assert list(tmp_path.iterdir()) == [data]


def test_a_model_takes_the_place_of_no_file_but_a_model(run: Path, tmp_path: Path) -> None:
    published = PersonalModel.read(run / "models/north.safetensors")
    data, ledger = site_file(tmp_path / "north.csv", 50, 1), site_file(tmp_path / "ledger.sqlite", 9, 2)
    before = ledger.read_bytes()
    with pytest.raises(SottovoceError, match="exists and is no model: choose another file"):
        finish(published, data, ledger)
    with pytest.raises(SottovoceError, match="exists and is no model: choose another file"):
        personalize(run / "run", data, ledger, terms=Terms(client="south"))
    assert ledger.read_bytes() == before
    for _ in range(2):
        finish(published, data, tmp_path / "home.safetensors")


def test_a_home_model_takes_the_place_of_no_published_one_and_of_no_generator(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run / "models", tmp_path / "models")
    shutil.copytree(run / "run", tmp_path / "run")
    north, data = tmp_path / "models/north.safetensors", run / "sites/north.csv"
    for place, kind in {
        tmp_path / "models/east.safetensors": "a published model",
        tmp_path / "run/model.safetensors": "a run's generator",
    }.items():
        before = place.read_bytes()
        with pytest.raises(SottovoceError, match=f"exists and is {kind}: choose another file"):
            finish(north, data, place)
        assert place.read_bytes() == before
    finish(north, data)
    home = tmp_path / "models/north.home.safetensors"
    data = site_file(tmp_path / "south.csv", 50, 1)
    before = home.read_bytes()
    with pytest.raises(SottovoceError, match="exists and is a home model: choose another file"):
        personalize(run / "run", data, home, terms=Terms(client="south"))
    assert home.read_bytes() == before


def test_from_python_a_home_model_lies_beside_its_published_one(run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "models/north.safetensors", tmp_path)
    told = finish(tmp_path / "north.safetensors", run / "sites/north.csv")
    assert told["model"] == str(tmp_path / "north.home.safetensors")
    assert PersonalModel.read(told["model"], home=True).home
    with pytest.raises(CannotFinish, match="say where its home model goes") as refusal:
        finish(PersonalModel.read(tmp_path / "north.safetensors"), run / "sites/north.csv")
    assert refusal.value.options == ("out",)


def test_models_are_finished_beside_themselves(run: Path, tmp_path: Path) -> None:
    rows = write_models(run / "run", tmp_path, clients=["east"], finish=True)
    assert (tmp_path / "east.home.safetensors").exists()
    assert rows[0]["home"]["rows"]["finished"]["accuracy"] > 60
    with pytest.raises(HomeModel):
        PersonalModel.read(tmp_path / "east.home.safetensors")


def test_which_models_are_published_does_not_follow_from_what_can_be_finished(
    run: Path, tmp_path: Path
) -> None:
    east = run / "sites/east.csv"
    given = east.read_text()
    east.write_text(given.replace("no", "yes"))
    try:
        rows = write_models(run / "run", tmp_path, finish=True)
    finally:
        east.write_text(given)
    assert "every record has the same target" in rows[0]["unfinished"]
    assert ["home" in row for row in rows] == [False, True, True]
    assert all(Path(row["model"]).exists() for row in rows)
    assert len(list(tmp_path.glob("*.home.safetensors"))) == 2


def test_models_take_the_place_of_no_home_model_and_of_no_generator(run: Path, tmp_path: Path) -> None:
    home = tmp_path / "models/west.safetensors"
    home.parent.mkdir()
    finish(run / "models/west.safetensors", run / "sites/west.csv", home)
    with pytest.raises(SottovoceError, match="exists and is a home model: choose another file"):
        write_models(run / "run", home.parent)
    assert [path.name for path in home.parent.iterdir()] == ["west.safetensors"]


def test_a_newcomer_that_cannot_finish_is_told_what_was_released(run: Path, tmp_path: Path) -> None:
    bare, out = tmp_path / "south.csv", tmp_path / "south.safetensors"
    bare.write_text("a,b\n" + "1,2\n" * 50)
    with pytest.raises(NotFinished, match="is written, but was not finished at home: south has no col") as no:
        personalize(run / "run", bare, out, terms=Terms(client="south"), finish=True)
    assert no.value.found["model"] == str(out)
    assert PersonalModel.read(out).origin.client == "south"
    home = tmp_path / "south.home.safetensors"
    assert not home.exists()
    home.write_text("my notes")
    out.unlink()
    with pytest.raises(SottovoceError, match=r"south\.home\.safetensors exists and is no model"):
        personalize(run / "run", bare, out, terms=Terms(client="south"), finish=True)
    assert not out.exists()


def test_a_newcomers_labels_enter_its_home_file_alone(run: Path, tmp_path: Path) -> None:
    """The default preset of tables has a public context: nothing of the file is released, labels least."""
    published = []
    for missing in (0, 80):
        data = site_file(tmp_path / f"{missing}.csv", 100, 5, missing=missing)
        out = tmp_path / f"south-{missing}.safetensors"
        found = personalize(run / "run", data, out, terms=Terms(client="south"), finish=True)
        assert found["home"]["left_out"] == missing
        assert found["accuracy"] > 0  # the few judge the published model, too
        published.append(out.read_bytes())
        assert (tmp_path / f"south-{missing}.home.safetensors").exists()
    assert published[0] == published[1]
    homes = [(tmp_path / f"south-{missing}.home.safetensors").read_bytes() for missing in (0, 80)]
    assert homes[0] != homes[1]


def test_where_nothing_can_be_fitted_the_published_model_stays() -> None:
    published, others = model(), records(50, seed=1)
    theta = flat_parameters(published.module)
    one_class = Records(torch.randn(20, 4), torch.zeros(20).long())
    found = finished_outputs(published.module, theta, one_class, others, open_task(published.facts))
    assert torch.equal(found["finished"], found["published"])
    assert torch.equal(found["alone"], found["constant"])


def test_a_finish_between_two_runs_changes_nothing_that_leaves(run: Path, tmp_path: Path) -> None:
    """No feedback: with and without a home model lying about, a run makes the same messages and charges."""
    ledgers = shutil.ignore_patterns("*.sqlite*")
    sites = Path(shutil.copytree(run / "sites", tmp_path / "sites", ignore=ledgers))
    settings = {"dataset": str(sites), "rounds": 2, "channel": "direct", "epsilon": 4, "seeded": True}
    plan, found = Plan.load(overrides=settings), []
    for name in ("before", "after"):
        result = train(plan, tmp_path / name)
        state, _ = load_tensors(tmp_path / name / "model.safetensors")
        found.append((result["epsilon"]["per_client"], {key: value.tolist() for key, value in state.items()}))
        finish(run / "models/north.safetensors", sites / "north.csv", sites / "north.home.safetensors")
    assert found[0] == found[1]
