"""What would leave: equal to what a run makes, compared with what is charged, and loud where it is more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce import data
from sottovoce.audit.sensitivity import Largest, Leaving, What, coefficients, leaving, opened
from sottovoce.training.client import Client
from tests.neighbours.measuring import add
from tests.run.test_folder import planned, sites

SHARES = {
    "context": "shares",
    "context_records": 12,
    "context_share": 0.1,
    "confusion_share": 0.1,
    "prior": "context",
}


def left(folder: Path, **changes: object) -> Leaving:
    blueprint, federation = opened(planned(folder, **changes), data.load(folder))
    return leaving(blueprint, federation, coefficients(blueprint, 0))


@pytest.mark.parametrize("noise", ["client", "server"])
def test_statistics_are_in_parts_of_what_is_charged(tmp_path: Path, noise: str) -> None:
    folder = sites(tmp_path / "sites")
    plan = planned(folder, noise=noise, future_clients="west", **SHARES)
    blueprint, federation = opened(plan, data.load(folder))
    at = coefficients(blueprint, 0)
    found = leaving(blueprint, federation, at)
    kinds = {(what.client, what.kind, what.place) for what in found.statistics}
    assert ("north", "gradient", noise) in kinds
    assert ("north", "confusion", "client") in kinds
    assert ("north", "calibration", "client") in kinds
    assert ("north", "centre", "client") in kinds
    assert ("west", "context shares of a future client", "client") in kinds
    assert not any(client == "west" and kind == "gradient" for client, kind, _ in kinds)
    who = federation.names.index("north")
    client = Client(
        "north", federation.participants[who], blueprint, None, run="", secret=b"", participant=who
    )
    # Behind the coefficients a centre, which an audit makes of them.
    centre = at[1][:1].expand(blueprint.downlink("gradient").size - len(at[1]))
    signal = client.statistic(client.gradient(1, torch.cat([at[1], centre]))).numpy()
    counted = found.statistics[What("north", "gradient", noise, 1, 1)]
    weight = 1.0
    if noise == "server":
        assert blueprint.round_sum is not None
        weight = blueprint.sizes[who] / blueprint.round_sum.records
    charge = blueprint.releases_of(who)["gradient"].sensitivity
    assert np.allclose(counted, signal * weight / charge)
    # 2C/m of one client alone, or 2C/Σm of the sum in which it counts with m/Σm.
    assert np.allclose(counted, signal * blueprint.sizes[who] / (2 * blueprint.plan.clip))
    alone = Leaving({}, {}, {})
    alone.add(blueprint, "north", federation.participants[who], who, at)
    assert all((vector == found.statistics[what]).all() for what, vector in alone.statistics.items())


def vector(*numbers: float, client: str = "a", **public: object) -> Leaving:
    what = What(client, "gradient", "client", 1)
    return Leaving({what: np.array(numbers)}, {what: 0.25}, public)


def test_what_moves_further_than_its_charge_is_a_fault() -> None:
    seen = Largest()
    seen.compare([vector(0.0, 0.0), vector(0.6, 0.8), vector(0.0, 0.5)])
    assert (seen.pairs, seen.faults) == (3, [])
    assert seen.releases == [
        {"kind": "gradient", "place": "client", "charged": 0.25, "ratio": 1.0, "compared": 3}
    ]
    seen.compare([vector(0.0), vector(1.1)])
    assert seen.faults == ["gradient of a moves by 1.100 of what is charged"]
    seen.compare([vector(0.0), vector(np.nan)])
    assert "moves by nan" in seen.faults[1]


def test_what_two_have_seen_adds_up() -> None:
    one, two = Largest(), Largest()
    one.compare([vector(0.0), vector(0.5), "north has 3 records"])
    two.compare([vector(0.0), vector(2.0), "north has 4 records"])
    add(one, two)
    assert one.releases[0]["ratio"] == 2.0
    assert (one.pairs, one.releases[0]["compared"], one.refused) == (2, 2, {"north has … records": 4})
    assert one.faults == two.faults != []


def test_what_is_public_and_who_releases_may_not_change() -> None:
    seen = Largest()
    seen.compare([vector(0.0, sizes=3), vector(0.0, sizes=4)])
    seen.compare([vector(0.0), vector(0.0, client="b")])
    one, two = vector(0.0), vector(0.1)
    both = [
        replace(v, statistics={**v.statistics, What("b", "gradient", "client", 1): v.statistics[w]})
        for v in (one, two)
        for w in v.statistics
    ]
    for v in both:
        v.charged[What("b", "gradient", "client", 1)] = 0.25
    seen.compare(both)
    assert seen.faults == [
        "sizes is public, and changes with one unit",
        "which releases happen changes with one unit",
        "one unit moves releases of 2 clients",
    ]


def test_pairs_of_which_one_was_refused_are_counted_apart() -> None:
    seen = Largest()
    seen.compare([vector(0.0), "north has 3 of 40 records", "north has 4 of 41 records", vector(0.5)])
    assert (seen.pairs, seen.refused) == (1, {"north has … of … records": 4})


def test_one_changed_cell_moves_one_client_and_nothing_public(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites")
    before = left(folder, **SHARES)
    file = folder / "north.csv"
    rows = file.read_text().splitlines()
    rows[1] = "3,-3,yes,0,1,p0"
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    seen = Largest()
    seen.compare([before, left(folder, **SHARES)])
    assert seen.faults == []
    assert 0 < max(row["ratio"] for row in seen.releases) <= 1
