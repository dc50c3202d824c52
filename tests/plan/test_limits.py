"""What a stranger may say, bound by bound; `test_foreign_files` mutates whole files and messages."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

from sottovoce.data import Facts
from sottovoce.errors import SottovoceError
from sottovoce.machine.documents import ForeignError, foreign_name
from sottovoce.models import architectures
from sottovoce.models.architectures import check_model, check_sizes
from sottovoce.plan import Plan
from sottovoce.plan.limits import foreign_plan

MILLION, THOUSANDS = 1_000_000, 16_384
BOUNDS = {
    **dict.fromkeys(("participants", "future_clients", "clients_per_round"), MILLION),
    **dict.fromkeys(("rounds", "context_round"), MILLION),
    "classes_per_client": 2**16,
    **dict.fromkeys(("evaluate_every", "records_per_client", "repeat"), 2_147_483_648),
    **dict.fromkeys(("context_records", "gradient_records", "counted_records"), 2_147_483_648),
    **dict.fromkeys(("hidden", "feature_size"), THOUSANDS),
    "coefficients": 16_777_216,
    "trunk_layers": 64,
    "context_groups": 1024,
    "seed": 9_223_372_036_854_775_807,
    "downlink_bits": 32,
    "threshold": 1_000_000,
    "colluding": 1_000_000,
    "helpers": 1000,
}


def plan(**changes: object) -> Plan:
    return Plan.load(overrides={"preset": "tuned", "context": "moments", **changes})


def impossible(name: str, value: object) -> bool:
    """Whether a value is refused as such, whatever the rest of a plan says."""
    try:
        foreign_plan({name: value})
    except SottovoceError as refused:
        return isinstance(refused, ForeignError) and "cannot be in a plan" in str(refused)
    return False


def test_every_whole_number_of_a_plan_has_a_bound() -> None:
    whole = {field.name for field in dataclasses.fields(Plan) if type(field.default) is int}
    assert whole == set(BOUNDS)
    for name, most in BOUNDS.items():
        assert not impossible(name, most), name
        assert impossible(name, most + 1), name
        assert not impossible(name, 0), name
        assert impossible(name, -1), name
        assert impossible(name, 1.0), name


def test_numbers_of_a_plan_are_neither_huge_nor_tiny() -> None:
    for fine in (1e-30, 0, 0.0, 1, 1e9):
        assert not impossible("clip", fine)
    below, above = math.nextafter(1e-30, 0), math.nextafter(1e9, math.inf)
    for wrong in (below, above, -1.0, -1e-30, math.inf, math.nan, "1", True, None):
        assert impossible("clip", wrong), wrong
    assert not impossible("epsilon", math.inf)
    assert impossible("epsilon", -1)
    assert impossible("epsilon", -math.inf)
    assert impossible("epsilon", above)
    assert not impossible("individual", -1)
    assert impossible("individual", -2)
    assert impossible("individual", math.inf)


def test_texts_of_a_plan_are_short_and_printable_and_switches_are_true_or_false() -> None:
    assert not impossible("dataset", "x" * 200)
    for wrong in ("x" * 201, "a\nb", 1, None, ["x"]):
        assert impossible("dataset", wrong)
    assert not impossible("seeded", True)
    assert impossible("seeded", 1)
    assert impossible("seeded", "true")


def test_a_plan_has_a_million_releases_at_most() -> None:
    size = {"participants": 1024, "clients_per_round": 1024}
    assert foreign_plan({**size, "rounds": 1024}).rounds == 1024
    with pytest.raises(ForeignError, match="more than 1048576 releases"):
        foreign_plan({**size, "rounds": 1025})


def test_what_is_no_table_and_keys_that_no_plan_has_are_refused() -> None:
    for wrong in (None, [], "rounds"):
        with pytest.raises(ForeignError, match="holds no plan"):
            foreign_plan(wrong)
    with pytest.raises(ForeignError, match="unknown plan key 'round'"):
        foreign_plan({"round": 3})


def test_code_is_named_by_this_machines_owner_alone() -> None:
    code = "subprocess:call"
    for model in (None, "os:system", "lenet"):
        with pytest.raises(ForeignError, match="no built-in one"):
            foreign_plan({"model": code}, model=model)
    assert foreign_plan({"model": code}, model=code).model == code
    assert foreign_plan({"model": code}, model=nn.Linear(1, 1)).model == code
    assert foreign_plan({"model": "linear"}, model="mlp").model == "linear"
    for features in (None, "os:system", "scattering"):
        with pytest.raises(ForeignError, match="no built-in map"):
            foreign_plan({"features": code}, features=features)
    assert foreign_plan({"features": code}, features=code).features == code
    assert foreign_plan({"features": "none"}, features=code).features == "none"


@pytest.mark.parametrize(
    ("groups", "fits", "too_large"),
    [
        (1, (8, 128, 128), (8, 128, 129)),  # 8 bytes · 2¹⁷ numbers · (8 + 8) groups are 16 MiB
        (1, (8, 16384), (8, 16385)),
        (1, (233016,), (233017,)),  # one group, and eight
        (4, (1, 295, 296), (1, 296, 296)),  # sixteen, and eight
    ],
)
def test_moments_of_a_stranger_take_sixteen_mebibytes_at_most(
    groups: int, fits: tuple[int, ...], too_large: tuple[int, ...]
) -> None:
    asked = plan(context_groups=groups)
    check_sizes(asked, Facts(fits, 10), model="lenet")
    with pytest.raises(ForeignError, match="too much memory"):
        check_sizes(asked, Facts(too_large, 10), model="lenet")
    for other in ("labels", "predictions"):
        check_sizes(plan(context=other, context_round=2), Facts(too_large, 10), model="lenet")


def test_models_of_a_stranger_have_half_a_million_parameters_at_most() -> None:
    linear = plan(model="linear", context="labels")
    check_sizes(linear, Facts((55_923,), 10))  # 55,924 · 10 = 559,240 = 64 MiB / 60 / 2
    with pytest.raises(ForeignError, match="more than a plan from elsewhere may ask for"):
        check_sizes(linear, Facts((55_924,), 10))
    check_sizes(linear, Facts((55_924,), 10), model="linear")  # named here


def test_a_model_is_counted_without_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []

    def spy(shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
        devices.append(torch.empty(0).device.type)
        return nn.Linear(3, classes)

    monkeypatch.setattr(architectures, "linear", spy)
    check_model(plan(model="linear"), Facts((3,), 2))
    assert devices == ["meta"]


def test_pictures_that_a_map_describes_have_a_quarter_of_a_million_numbers_at_most() -> None:
    def described(shape: tuple[int, ...]) -> Facts:
        return Facts((12,), 3, source=Facts(shape, 3))

    check_model(plan(), described((1, 512, 512)), model="linear")
    with pytest.raises(ForeignError, match="larger than a map"):
        check_model(plan(), described((1, 512, 513)), model="linear")


def test_the_name_of_a_run_is_one_short_word() -> None:
    for fine in ("a", "0123456789abcdef", "A-b_9", "x" * 64):
        assert foreign_name(fine) == fine
    for wrong in ("", "x" * 65, "../../etc", "a b", "a/b", "a\n", None, 3, b"a"):
        with pytest.raises(ForeignError, match="cannot name a run"):
            foreign_name(wrong)
