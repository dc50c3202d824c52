"""A plan is completed in one place, and whoever asks gets the same plan, facts and reference."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from studies.sweep import Job, run_batch
from torch import nn

from sottovoce import data, federation
from sottovoce.data import Dataset
from sottovoce.data.tables.schema import Description
from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement, agree
from sottovoce.plan import Plan, keys
from sottovoce.plan.checks import PlanError
from sottovoce.plan.keys import SHAPES
from sottovoce.release.blueprint import Blueprint
from sottovoce.run import cost, finished, prepare
from sottovoce.run.models import write_models
from sottovoce.run.prepare import complete, outline, resolve
from sottovoce.run.rehearsal import compare
from sottovoce.run.training import evaluate, train
from tests.run.toy import TABLE, pair, records
from tests.small import small_plan
from tests.test_mirror import CLONE

from .test_folder import sites

FACTS = data.Facts((1, 28, 28), 10)
TOKENS = """
task = "classes"
[target]
column = "y"
values = [0, 1]
[array]
kind = "tokens"
shape = [8]
vocabulary = 40
"""
HALVES = "tests.models.features.test_local:halves"

BLEND: dict[str, Any] = {"rounds": 2, "epsilon": 4, "channel": "direct", "evaluate_every": 0, "seeded": True}
PICTURES = data.load("mnist-small")
FEW = replace(PICTURES, x=PICTURES.x[:240], y=PICTURES.y[:240])


@dataclass
class Case:
    """A plan about records, and the ways in that it has: not all know a dataset that has no name."""

    plan: Plan
    dataset: Dataset | None = None
    module: nn.Module | None = None
    named: bool = True
    dealt: bool = True
    """Whether somebody deals the records to clients, rather than finding them in their files."""


def table(at: Path, **more: np.ndarray) -> str:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 6)).astype(np.float32)
    np.savez(at, x=x, y=(x.sum(axis=1) > 0).astype(np.int64), **more)
    return str(at)


def pictures(at: Path) -> str:
    rng = np.random.default_rng(2)
    np.savez(at, x=rng.integers(0, 256, (60, 1, 16, 16), dtype=np.uint8), y=rng.integers(0, 3, 60))
    return str(at)


def made(**changes: Any) -> Plan:
    return Plan.load(overrides={**BLEND, **changes})


def own_module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 2))


CASES: dict[str, Callable[[Path], Case]] = {
    "public pictures, their features": lambda at: Case(
        made(records_per_client=40, participants=4, future_clients=2), FEW
    ),
    "public pictures, a method of the paper": lambda at: Case(
        small_plan(records_per_client=30, context_records=10, rounds=2, evaluate_every=0), FEW
    ),
    "a folder of sites": lambda at: Case(made(dataset=str(sites(at / "sites"))), dealt=False),
    "a folder, a number, one site later": lambda at: Case(
        made(dataset=str(sites(at / "sites", "number")), future_clients="west"), dealt=False
    ),
    "a folder whose records have units": lambda at: Case(
        made(dataset=str(sites(at / "sites", unit=True))), dealt=False
    ),
    "a file of pictures, features as they choose": lambda at: Case(
        made(dataset=pictures(at / "mine.npz"), partition="iid", participants=3, future_clients=0)
    ),
    "a file with a column of clients, unlike sizes": lambda at: Case(
        made(
            dataset=table(at / "mine.npz", client=np.repeat([0, 1, 2], [30, 50, 40])),
            partition="client",
            participants=2,
            future_clients=1,
        )
    ),
    "records and a module from Python": lambda at: Case(
        Plan.load(overrides={"partition": "iid", "participants": 3, "future_clients": 0, **BLEND}),
        replace(data.load(table(at / "mine.npz")), name="mine"),
        own_module(),
        named=False,
    ),
}


def digests(found: Blueprint) -> dict[str, str]:
    """Fingerprints of plan, facts and reference: equal for everybody who prepares the same."""
    facts = json.dumps(found.facts.fields(), sort_keys=True)
    return {
        "plan": found.plan.digest(),
        "facts": hashlib.sha256(facts.encode()).hexdigest()[:32],
        "reference": found.reference_digest,
    }


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Digests of all blueprints that are built, wherever."""
    seen: list[dict[str, str]] = []
    real = prepare.build

    def build(*given: Any) -> Blueprint:
        found = real(*given)
        seen.append(digests(found))
        return found

    for module in (prepare, federation, finished):
        monkeypatch.setattr(module, "build", build)
    return seen


def ways_in(case: Case, at: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every entry point that can take the case, in an order in which each has what it needs."""
    plan, given = case.plan, {"dataset": case.dataset, "module": case.module}
    yield "prepare", lambda: prepare.prepare(plan, **given, trusted=True)
    yield "train", lambda: train(plan, at / "run", **given)
    code = case.module if case.module is not None else (plan.model if ":" in plan.model else None)
    yield "evaluate", lambda: evaluate(at / "run", dataset=case.dataset, module=code)
    yield "models", lambda: write_models(at / "run", at / "models", module=code)
    if plan.traits.individual:
        yield "compare", lambda: compare(plan, at / "compared", repeats=1, **given)
    if case.module is None:
        yield "outline", lambda: outline(plan, case.dataset)
    if case.named:
        yield "plan", lambda: cost.outline(plan)
    sized = prepare.prepare(plan, **given, trusted=True).plan.gradient_records
    if case.module is None and sized and (case.dataset or data.load(plan.dataset)).unit is None:
        yield "sweep", lambda: run_batch([Job(plan, at / "batch")], dataset=case.dataset)
    if case.dealt and case.module is None:
        yield "federate, dealt", lambda: agree(plan, case.dataset).blueprint()


@pytest.mark.parametrize("name", CASES)
def test_every_way_in_completes_a_plan_alike(name: str, tmp_path: Path, built: list[dict[str, str]]) -> None:
    case = CASES[name](tmp_path)
    found: dict[str, list[dict[str, str]]] = {}
    for way, enter in ways_in(case, tmp_path):
        built.clear()
        enter()
        # `compare` prepares the plan itself first, and then its rows.
        found[way] = built[:1] if way == "compare" else [one for one in built if one != built[0]] or built[:1]
    assert len(found) >= 5
    [one] = found.pop("prepare")
    assert found == {way: [one] for way in found}


def test_a_federation_whose_sites_bring_files_completes_the_plan_of_the_folder(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites")
    ready = outline(made(dataset=str(folder)))
    given = {**BLEND, "dataset": "records.toml", "partition": "client", "participants": 4}
    plan = Plan.load(overrides={**given, "future_clients": 0, "clients_per_round": 4})
    open_ = Agreement(*complete(plan, Description.load(folder / "records.toml").facts()), simulation=True)
    frozen = open_.frozen(ready.trained).blueprint()
    assert frozen.plan.replace(dataset=str(folder)).digest() == ready.plan.digest()
    assert frozen.facts == ready.blueprint.facts
    assert frozen.reference_digest == ready.blueprint.reference_digest


ONLY = {
    ("plan", "for_dataset"): {"src/sottovoce/run/prepare.py"},
    ("data", "divide"): {"src/sottovoce/run/prepare.py"},
    ("cache", "described"): {
        "src/sottovoce/run/prepare.py",
        "src/sottovoce/audit/sensitivity.py",  # one record, of a plan that is complete
        "src/sottovoce/audit/company.py",  # the same records in other company
    },
    ("prepare", "with_given"): {"src/sottovoce/run/rehearsal.py"},  # whose rows change that plan
    ("prepare", "complete"): {"src/sottovoce/cli/federation.py"},  # before sites declare their sizes
    ("prepare", "resolve"): {"src/sottovoce/federation/__init__.py"},  # when all have
    ("blueprint", "build"): {
        "src/sottovoce/run/prepare.py",
        "src/sottovoce/federation/__init__.py",  # of a plan that all have agreed on
        "src/sottovoce/run/finished.py",  # of a finished run
        "src/sottovoce/audit/pair.py",  # of a prepared run, with another model
        "benchmarks/predict.py",  # a model without any records
    },
}
"""Who may take a step of completing a plan; all others call `prepare`."""


def test_nobody_else_completes_a_plan() -> None:
    found: dict[tuple[str, str], set[str]] = {step: set() for step in ONLY}
    for root in ("src/sottovoce", "studies", "benchmarks"):
        for path in sorted((CLONE / root).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sottovoce"):
                    steps = {(str(node.module).split(".")[-1], alias.name) for alias in node.names}
                elif isinstance(node, ast.Attribute):
                    steps = {(ast.unparse(node.value), node.attr)}
                else:
                    continue
                for step in steps & ONLY.keys():
                    found[step].add(str(path.relative_to(CLONE)))
    assert found == ONLY


def test_every_key_says_what_it_shapes_and_what_shapes_no_price_changes_none() -> None:
    toy = records()
    for name, _, _ in keys():
        shapes = Plan.__dataclass_fields__[name].metadata["shapes"]
        assert shapes <= set(SHAPES), name
        if name not in TABLE or not shapes.isdisjoint({"records", "features", "division", "accounting"}):
            continue
        first, second = (price(plan, toy) for plan in pair(name))
        assert first == second, f"{name} changes what is charged: say that it shapes accounting"


def price(plan: Plan, toy: Dataset) -> tuple[object, ...]:
    blueprint = outline(plan, toy).blueprint
    spent = blueprint.epsilon(blueprint.participant_counts(blueprint.releases_max), 0)
    return blueprint.sigma, blueprint.sigma_context, blueprint.releases_max, spent


def test_what_shapes_the_price_changes_it() -> None:
    toy = records()
    for name in ("epsilon", "rounds", "gradient_records", "clip", "context", "context_noise", "noise"):
        first, second = (price(plan, toy) for plan in pair(name))
        assert first != second, name


LISTS = {
    "src/sottovoce/report/result.py",  # fields of result.json, which other programs write too
    "src/sottovoce/report/look.py",  # those that a status tells of a run from before
    "studies/tables.py",  # columns of a table of results
}


def test_no_list_of_keys_is_kept_by_hand() -> None:
    known = {name for name, _, _ in keys()}
    for root in ("src/sottovoce", "studies"):
        for path in sorted((CLONE / root).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Tuple | ast.List | ast.Set):
                    continue
                texts = [entry.value for entry in node.elts if isinstance(entry, ast.Constant)]
                values = [entry.attr for entry in node.elts if isinstance(entry, ast.Attribute)]
                listed = known.intersection([text for text in texts if isinstance(text, str)]) or set()
                listed = max(listed, known & set(values), key=len)
                where = str(path.relative_to(CLONE))
                assert len(listed) < 4 or where in LISTS, f"{where}:{node.lineno} lists {sorted(listed)}"


@pytest.mark.parametrize("entry", ["train", "plan", "agree"])
def test_a_delta_that_may_give_a_record_away_is_refused_whoever_asks(entry: str, tmp_path: Path) -> None:
    plan = small_plan(delta=0.5)
    with pytest.raises(PlanError, match=r"delta=0.5 is above one over .* 120: .* set at most 0.0008"):
        {"train": lambda: train(plan, tmp_path), "plan": lambda: outline(plan), "agree": lambda: agree(plan)}[
            entry
        ]()
    assert not list(tmp_path.iterdir())


def test_delta_is_at_most_one_over_the_records_of_the_smallest_client() -> None:
    assert resolve(small_plan(delta=0.01), [80, 400], FACTS).delta == 0.01
    with pytest.raises(PlanError, match="smallest client, 100"):
        resolve(small_plan(delta=0.0101), [80, 400], FACTS)
    without_noise = small_plan(delta=0.5, epsilon="inf", channel="direct")
    assert resolve(without_noise, [80, 400], FACTS).delta == 0.5  # promises nothing, whatever δ


def test_a_delta_that_nobody_set_follows_from_the_number_of_records() -> None:
    plan = small_plan()
    assert "delta" not in plan.given
    assert resolve(plan, [7_999], FACTS).delta == resolve(plan, [8_000], FACTS).delta == 1e-5
    assert resolve(plan, [80_000, 800_000], FACTS).delta == pytest.approx(1e-6)
    assert resolve(plan.replace(delta=1e-5), [80_000], FACTS).delta == 1e-5  # set by somebody


def test_auto_describes_pictures_and_leaves_tables_alone() -> None:
    plan = Plan.load(overrides={"dataset": "mine.npz"})
    assert complete(plan, data.Facts((3, 32, 32), 3))[0].features == "scattering+patterns"
    table, _ = complete(plan, data.Facts((20,), 3))
    assert (table.features, table.feature_size) == ("none", 0)
    assert complete(plan, data.Facts((1, 8, 8), 3))[0].feature_size <= 2048
    smallest, smaller = (complete(plan, data.Facts((1, 28, side), 3))[0].features for side in (8, 7))
    assert (smallest, smaller) == ("scattering+patterns", "none")


@pytest.mark.parametrize(("named", "seen"), [({}, "none"), ({"features": "scattering"}, "scattering")])
def test_a_module_from_python_sees_records_as_they_are_unless_features_are_named(
    named: dict[str, str], seen: str
) -> None:
    plan = Plan.load(overrides={"dataset": "mnist-small", **named})
    assert plan.features != "none"
    assert prepare.with_given(plan, None, nn.Linear(1, 1)).features == seen


def test_auto_counts_words_of_texts(tmp_path: Path) -> None:
    (tmp_path / "records.toml").write_text(TOKENS)
    facts = Description.load(tmp_path / "records.toml").facts()
    plan = Plan.load(overrides={"dataset": "mine.npz"})
    assert complete(plan, facts)[0].features == "ngrams"


def test_a_rehearsal_on_a_public_dataset_reads_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", None)
    given = {"dataset": "cifar10", "features": "none", "context": "moments", "context_round": 0}
    plan = small_plan(records_per_client=100, model="lenet", **given)
    told = outline(plan)
    assert told.federation is None
    assert list(told.trained) == [80] * 6 == list(told.blueprint.sizes)
    assert told.blueprint.facts.shape == (3, 32, 32)
    with pytest.raises(PlanError, match="more than the 50000 of cifar10: lower"):
        outline(plan.replace(records_per_client=10_000))


def test_records_of_nobody_need_a_number_of_participants() -> None:
    plan = small_plan(participants=0, clients_per_round=0, partition="client", records_per_client=0)
    with pytest.raises(PlanError, match="does not say who holds which record: set participants"):
        prepare.prepare(plan, FEW)


def test_code_that_a_plan_names_describes_records_only_if_somebody_trusts_it() -> None:
    named = {"features": HALVES, "feature_size": 0, "model": "linear", "coefficients": 0}
    plan = small_plan(**named, records_per_client=30, context_records=10)
    with pytest.raises(SottovoceError, match="is code: if you trust it"):
        prepare.prepare(plan, FEW, cache=False)
    for given in ({"trusted": True}, {"features": HALVES}):
        made = prepare.prepare(plan, FEW, cache=False, **given)  # type: ignore[arg-type]
        assert made.dataset.facts.shape == (392,)


def test_a_rehearsal_counts_the_records_that_a_run_would_deal() -> None:
    """With as many records for each client as there are."""
    plan = small_plan(records_per_client=0, partition="iid", dataset="mnist-small")
    told, made = outline(plan), prepare.prepare(plan, trusted=True)
    assert told.trained == made.trained
    assert told.blueprint.sizes == made.blueprint.sizes


def test_what_is_kept_for_the_next_preparation_is_that_of_the_same_division() -> None:
    shared, plan = prepare.Shared(), small_plan(records_per_client=30, context_records=10)
    first, again = (shared.divided(FEW, plan) for _ in range(2))
    other = shared.divided(FEW, plan.replace(participants=5))
    assert first is again
    assert (len(first.participants), len(other.participants)) == (6, 5)
    assert shared.divided(replace(FEW), plan) is not first


def test_a_division_is_kept_as_long_as_the_records_that_it_divides() -> None:
    shared, plan = prepare.Shared(), small_plan(records_per_client=30, context_records=10)
    seen = shared.described(FEW, plan, "cpu")
    first = shared.divided(seen, plan)
    for _ in range(prepare.KEPT - 1):
        shared.described(replace(FEW), plan, "cpu")
    assert shared.divided(seen, plan) is first
    shared.described(replace(FEW), plan, "cpu")
    assert shared.divided(seen, plan) is not first


@pytest.mark.parametrize(("later", "left"), [(0, 3), (2, 1), (3, 0)])
def test_no_participants_means_all_clients_that_do_not_join_later(later: int, left: int) -> None:
    three = replace(FEW, client=torch.arange(240) % 3)
    dealt = {"partition": "client", "records_per_client": 0, "context_records": 10}
    plan = small_plan(participants=0, clients_per_round=0, future_clients=later, **dealt)
    if not left:
        with pytest.raises(PlanError, match="nobody is left"):
            prepare.prepare(plan, three, trusted=True)
        return
    made = prepare.prepare(plan, three, trusted=True).blueprint.plan
    assert (made.participants, made.clients_per_round) == (left, left)


def test_all_training_records_means_those_of_the_smallest_participant() -> None:
    assert resolve(small_plan(), [96, 96], FACTS).gradient_records == 96
    with pytest.raises(PlanError, match="at most 96"):
        resolve(small_plan(gradient_records=97), [96, 96], FACTS)
