"""Every name of a plan can be opened, and every opener refuses every other name."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest
import torch
from torch import nn

from sottovoce.channel import open_channel
from sottovoce.data import Facts
from sottovoce.errors import SottovoceError
from sottovoce.models.architectures import open_model
from sottovoce.models.bases import open_basis
from sottovoce.models.tasks import open_task
from sottovoce.plan import Plan, catalog
from sottovoce.plan.schedule import open_schedule
from sottovoce.privacy.accounting import epsilon
from sottovoce.release.once.context import STATISTICS, open_statistic
from sottovoce.release.recipe import blending
from sottovoce.training.generator import GENERATORS, open_generator
from sottovoce.training.optimizers import open_optimizer
from tests.test_mirror import CLONE

BLENDING = blending(
    Plan.load(overrides={"preset": "tuned", "method": "blend", "context": "public", "learning_rate": 0.1}),
    [9],
    [1.0],
    releases=1,
)
OPENERS: dict[str, tuple[tuple[str, ...], Callable[[str], object]]] = {
    "method": (
        tuple(catalog.METHODS),
        lambda name: open_generator(
            name, torch.ones(4), 3, layers=1, coefficients=5, seed=0, blending=BLENDING
        ),
    ),
    "context": (tuple(catalog.CONTEXTS), lambda name: open_statistic(name, (1, 4, 4), 3)),
    "channel": (tuple(catalog.CHANNELS), lambda name: open_channel(name, size=8, sigma=1.0)),
    "basis": (catalog.BASES, lambda name: open_basis(name, nn.Linear(9, 9), 60, seed=0)),
    "schedule": (
        catalog.SCHEDULES,
        lambda name: open_schedule(name, clients=4, per_round=2, rounds=3, seed=0),
    ),
    "task": (tuple(catalog.TASKS), lambda name: open_task(Facts((4,), 1, task=name))),
    "optimizer": (tuple(catalog.OPTIMIZERS), lambda name: open_optimizer(name, nn.Linear(2, 1), 0.1, 0.9)),
    "accounting": (tuple(catalog.ACCOUNTINGS), lambda name: epsilon(1.0, 1e-5, name)),
}


@pytest.mark.parametrize("what", OPENERS)
def test_every_name_of_the_catalog_opens(what: str) -> None:
    names, opener = OPENERS[what]
    for name in names:
        assert opener(name) is not None


@pytest.mark.parametrize("what", OPENERS)
def test_an_unknown_name_is_an_error_that_helps(what: str) -> None:
    names, opener = OPENERS[what]
    with pytest.raises(SottovoceError, match=f"did you mean '{names[0]}'"):
        opener(f"{names[0]}x")


def test_an_unknown_model_is_an_error_too() -> None:
    with pytest.raises(SottovoceError, match="did you mean 'lenet'"):
        open_model("lenett", (1, 28, 28), 10, seed=0)


def test_registries_and_catalog_have_the_same_names() -> None:
    assert STATISTICS.keys() == catalog.CONTEXTS.keys()
    assert GENERATORS.keys() == catalog.METHODS.keys()


def test_every_name_that_a_report_puts_in_words_has_words_of_its_own() -> None:
    registries = (catalog.METHODS, catalog.CONTEXTS, catalog.CHANNELS, catalog.METRICS, catalog.PLACES)
    for entries in registries:
        phrases = [entry.phrase for entry in entries.values()]
        assert all(phrases)
        assert len(set(phrases)) == len(phrases)
    assert all(catalog.ACCOUNTINGS.values())


def asked_of(node: ast.expr) -> str:
    """The last name in `plan.noise`, `costs["noise"]` or `values.get("noise")`."""
    if isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    if isinstance(node, ast.Subscript):
        node = node.slice
    return str(getattr(node, "attr", getattr(node, "value", "")))


def test_code_asks_for_capabilities_and_never_for_names() -> None:
    registries = {"method": catalog.METHODS, "context": catalog.CONTEXTS, "channel": catalog.CHANNELS}
    registries |= {"noise": catalog.PLACES, "optimizer": catalog.OPTIMIZERS}
    for path in sorted((CLONE / "src" / "sottovoce").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                texts = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                named = texts & registries.get(asked_of(node.left), {}).keys()
                assert not named, f"{path.name}:{node.lineno} asks for {named}"
