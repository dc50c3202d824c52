"""One unit of a file becomes another: no statistic moves further than its charge, nothing else changes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sottovoce import data
from sottovoce.audit.hostile import Hostile
from sottovoce.audit.neighbours import Table, family
from sottovoce.audit.order import by_order
from sottovoce.audit.sensitivity import Largest, coefficients, leaving, opened
from sottovoce.plan import Plan
from sottovoce.plan.checks import PlanError

from .worlds import Case, cases, left, neighbours, routes, unbounded, world

CASES = cases()
NARROW = [case for case in CASES if case.many or case.array]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worlds")


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    case=st.sampled_from(CASES),
    route=st.integers(0, 3),
    bounded=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_one_unit_moves_every_statistic_by_at_most_its_charge(
    place: Path, case: Case, route: int, bounded: bool, random: Random
) -> None:
    ways = routes(case)
    seen = Largest()
    with nullcontext() if bounded else unbounded():
        seen.compare(list(neighbours(world(case, place), ways[route % len(ways)], random, 4)))
    assert seen.faults == []


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(case=st.sampled_from(NARROW), random=st.randoms(use_true_random=False))
def test_the_order_of_a_file_moves_nothing_at_coefficients_of_an_adversary(
    place: Path, case: Case, random: Random
) -> None:
    here = world(case, place)
    at = [Hostile.drawn(here.blueprint.module, random).coefficients(here.blueprint.model) for _ in range(2)]
    with unbounded():
        _, faults = by_order(here.blueprint, here.federation, at, random)
    assert faults == []


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("route", ["personalize", "node"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_one_target_more_that_is_missing_decides_about_no_other_record(
    place: Path, suffix: str, route: Literal["personalize", "node"], unit: bool
) -> None:
    """Of files at the edge of what may be unusable, every record that has a target loses it."""
    seen = Largest()
    for context in ("moments", "shares"):
        here = world(Case(suffix, "classes", unit, context, edge=True), place)
        file, at = here.file("west" if route == "personalize" else "north"), coefficients(here.blueprint, 1)
        table, given_file = Table.read(file), file.read_bytes()
        try:
            edge = left(here, route, file, at)
            for number in [i for i, row in enumerate(table.rows) if row["ill"]][:4]:
                rows = table.rows
                rows[number]["ill"] = "" if suffix == ".npz" else None
                table.of(rows).write(file)
                seen.compare([edge, left(here, route, file, at)])
        finally:
            file.write_bytes(given_file)
    assert seen.faults == []
    assert seen.pairs == 8


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_a_unit_that_lost_its_name_after_enrolment_decides_about_no_other(place: Path, suffix: str) -> None:
    here = world(Case(suffix, "classes", True, "shares"), place)
    file, at = here.file("north"), coefficients(here.blueprint, 0)
    table, content = Table.read(file), file.read_bytes()
    names = table.columns["patient"]
    for alone in [name for name in names if names.count(name) == 1]:
        nameless = None if suffix == ".parquet" else ""
        rows = [{**row, "patient": nameless} if row["patient"] == alone else row for row in table.rows]
        seen, pair = Largest(), [left(here, "node", file, at)]
        table.of(rows).write(file)
        try:
            pair.append(left(here, "node", file, at))
        finally:
            file.write_bytes(content)
        seen.compare(pair)
        assert (seen.pairs, seen.faults, seen.refused) == (1, [], {})


def test_records_of_units_are_refused_rather_than_dealt(place: Path) -> None:
    here = world(Case(".csv", "classes", True, "public"), place)
    dealt_to = {"partition": "iid", "participants": 3, "clients_per_round": 3, "future_clients": 0}
    plan = Plan.load(overrides={**here.case.plan, **dealt_to, "dataset": str(here.source)})
    given_file = here.file("north").read_bytes()

    def dealt() -> list[str]:
        seen, files = Largest(), []
        for variant in family(Table.read(here.file("north")), here.agreed, Random(3), 6):
            variant.write(here.file("north"))
            files.append(leaving(*opened(plan, data.load(here.source)), coefficients(here.blueprint, 0)))
        seen.compare(files)
        return seen.faults

    try:
        with pytest.raises(PlanError, match="split units"):
            pytest.fail(f"dealt, and so: {dealt()}")
    finally:
        here.file("north").write_bytes(given_file)
