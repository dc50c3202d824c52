"""The recipes of docs/architecture.md, each tried once with a toy that really runs.

A toy does what the recipe says with what the recipe names, and nothing else of the package knows it.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from studies.exactness import STATISTICS, collect
from torch import Tensor, nn

from sottovoce import channel, data
from sottovoce.channel import Channel
from sottovoce.channel.wire import PrivateRandomness, SharedRandomness
from sottovoce.data import Facts, public
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding.client import personalize
from sottovoce.federation.server import Fields
from sottovoce.federation.status.progress import write_run
from sottovoce.models.tasks import Task
from sottovoce.models.tensors import load_tensors
from sottovoce.plan import catalog
from sottovoce.release.once import Statistic, context
from sottovoce.report.run import write_report
from sottovoce.report.table import measure
from sottovoce.run.cost import outline
from sottovoce.run.directory import RunDirectory
from sottovoce.run.training import evaluate, train
from sottovoce.training import generator
from sottovoce.training.generator import Generator
from sottovoce.training.optimizers import Optimizer
from sottovoce.training.server import Server
from tests.federation.world import World, everyone_paid, same
from tests.small import built, small_plan

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
RECIPES = (
    "a dataset",
    "a context",
    "a channel",
    "a method",
    "an optimizer",
    "a metric",
    "a model",
    "an engine",
)
SOURCE = Path(__file__).parents[1] / "src" / "sottovoce"


def trained(out: Path, **changes: Any) -> dict[str, Any]:
    """A seeded run that also outlines its cost, is evaluated again and takes in a future client."""
    plan = small_plan(**changes)
    said = outline(plan)
    result = train(plan, out / "run")
    assert said["epsilon"] == pytest.approx(result["epsilon"]["spent_max"])
    assert evaluate(out / "run", module=plan.model)["accuracy"] == result["accuracy"]
    if plan.dataset == "mnist-small":
        records = data.load(plan.dataset)
        np.savez(out / "mine.npz", x=records.x[:60].numpy(), y=records.y[:60].numpy())
        found = personalize(out / "run", out / "mine.npz", out / "model", module=plan.model)
        assert found["epsilon"] <= plan.epsilon
    return result


# A dataset: one entry of data.public.PUBLIC


def test_a_dataset_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (960, 1, 28, 28), dtype=np.uint8)
    y = (np.arange(960) % 10).astype(np.uint8)
    np.savez(tmp_path / "published.npz", x=x, y=y)

    def read(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        with np.load(folder / "published.npz") as file:
            return file["x"], file["y"]

    toy = public.PublicDataset(
        records=960,
        facts=Facts((1, 28, 28), 10, mean=(0.5,), std=(0.25,)),
        sha256=public.array_sha256(x, y),
        files=("published.npz",),
        read=read,
        sources=(str(tmp_path),),
    )
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(public.PUBLIC, "toys", toy)
    result = trained(tmp_path, dataset="toys", learning_rate=0.2, epsilon=8)
    assert result["dataset"] == "toys"
    assert (tmp_path / "cache" / "toys.npz").exists()


# A context: its statistic in context.py, its entry in catalog.CONTEXTS and context.STATISTICS


class Brightness(Statistic):
    """Shares of dark and bright records, told apart by the mean of their inputs."""

    size = 2
    spread = 2.0**0.5

    def per_record(self, x: Tensor, y: Tensor, logits: Tensor | None) -> Tensor:
        bright = x.reshape(len(x), -1).mean(dim=1) > 0
        shares = nn.functional.one_hot(bright.long(), 2).double()
        return torch.where(torch.isfinite(x).reshape(len(x), -1).all(dim=1, keepdim=True), shares, 0.0)


def test_a_context_is_one_statistic_and_two_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        catalog.CONTEXTS, "brightness", catalog.Context(phrase="its brightness", rescaled="together")
    )
    monkeypatch.setitem(context.STATISTICS, "brightness", lambda shape, classes, groups: Brightness())
    result = trained(tmp_path, context="brightness")
    assert (result["context"], result["uses_future_labels"]) == ("brightness", False)
    state, _ = load_tensors(tmp_path / "run" / "model.safetensors")
    assert state["contexts"].shape == (6, 2)


# A channel: its class in a module of channel/, its entries in CHANNELS and the catalog


class Doubles(Channel):
    """The noised statistic in float64: twice the bytes of `direct`, and no rounding."""

    formats: ClassVar = {"doubles": 15}

    def _encode(self, u: NDArray[np.float64], shared: SharedRandomness, private: PrivateRandomness) -> bytes:
        return (u + self.sigma * private.normal(self.size)).astype("<f8").tobytes()

    def _decode(self, payload: bytes, shared: SharedRandomness) -> NDArray[np.float64]:
        return np.frombuffer(payload, "<f8").astype(np.float64)


def test_a_channel_is_one_class_and_two_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(channel.CHANNELS, "doubles", f"{__name__}:Doubles")
    monkeypatch.setitem(catalog.CHANNELS, "doubles", catalog.Channel(phrase="numbers of 64 bits"))
    result = trained(tmp_path, channel="doubles")
    assert result["uplink"]["bits_per_coefficient"] == pytest.approx(64, rel=0.01)
    opened = channel.open_channel("doubles", size=1000, sigma=0.01)
    for evidence in collect(opened, next(iter(STATISTICS)), 20):
        assert abs(evidence.worst()[1]) < 5.5  # by chance once in a million
    message = opened.encode(np.zeros(1000), secret=bytes(32), stream=("s",))
    assert message[0] & 15 == 15
    with pytest.raises(SottovoceError, match="damaged"):
        opened.decode(message[:-1] + b"\x00", secret=bytes(32), stream=("s",))


# A method: its generator in generator.py, its entry in catalog.METHODS and generator.GENERATORS


def test_a_method_is_one_generator_and_two_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waves(start: Tensor, hidden: int, layers: int, coefficients: int, blending: object) -> Generator:
        class Sine(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.frequencies = nn.Linear(len(start), hidden)

            def forward(self, contexts: Tensor) -> Tensor:
                return torch.sin(self.frequencies(contexts))

        return Generator(Sine(), hidden, coefficients)

    monkeypatch.setitem(catalog.METHODS, "waves", catalog.Method(phrase="waves", context="optional"))
    monkeypatch.setitem(generator.GENERATORS, "waves", waves)
    result = trained(tmp_path, method="waves")
    assert result["method"] == "waves"
    assert "generator.trunk.frequencies.weight" in load_tensors(tmp_path / "run" / "model.safetensors")[0]


# An optimizer: its class, and its entry in catalog.OPTIMIZERS


class Signs(Optimizer):
    """Steps of one length in every coordinate, along the sign of a running mean of gradients."""

    def direction(self, name: str, gradient: Tensor) -> Tensor:
        mean = self.state.setdefault(f"mean of {name}", torch.zeros_like(gradient))
        return mean.mul_(0.9).add_(gradient, alpha=0.1).sign()


def test_an_optimizer_is_one_class_and_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = catalog.Optimizer("tests.test_recipes:Signs", linear=False)
    monkeypatch.setitem(catalog.OPTIMIZERS, "signs", toy)
    result = trained(tmp_path, optimizer="signs", learning_rate=0.01, rounds=2, averaging=0)
    assert RunDirectory(tmp_path / "run").plan().optimizer == "signs"
    assert result["rounds"] == 2
    state, _ = load_tensors(tmp_path / "run" / "model.safetensors")
    steps = (state["generator.weight"] / 0.01).round(decimals=3).unique().tolist()
    assert set(steps) <= {-2.0, -1.0, 0.0, 1.0, 2.0}
    assert len(steps) > 2
    with pytest.raises(SottovoceError, match="set learning_rate above 0"):
        small_plan(optimizer="signs", method="blend", learning_rate=0)


def test_a_resumed_run_remembers_what_its_optimizer_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = catalog.Optimizer("tests.test_recipes:Signs", linear=False)
    monkeypatch.setitem(catalog.OPTIMIZERS, "signs", toy)
    plan = small_plan(optimizer="signs", learning_rate=0.01, rounds=4, averaging=0)
    blueprint = built(plan.replace(gradient_records=96), data.load(plan.dataset).facts)
    rng = np.random.default_rng(0)
    rounds = [{0: rng.normal(size=blueprint.coefficients)} for _ in range(4)]
    whole, half, rest = (Server(blueprint) for _ in range(3))
    for number, releases in enumerate(rounds):
        whole.receive_round(releases)
        (half if number < 2 else rest).receive_round(releases)
        if number == 1:
            rest.load_state(half.state())
    assert same(whole.state(), rest.state())


# A metric: its function, and its entry in catalog.METRICS


def worst_recall(task: Task, outputs: Tensor, y: Tensor) -> float | None:
    found = [float((task.decisions(outputs)[y == c] == c).double().mean()) for c in y.unique()]
    return 100.0 * min(found) if found else None


def test_a_metric_is_one_function_and_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"classes": "tests.test_recipes:worst_recall"}
    toy = catalog.Metric("recall of the worst class", measured, percent=True)
    monkeypatch.setitem(catalog.METRICS, "worst_recall", toy)
    result = trained(tmp_path)
    for role in ("seen", "future"):
        assert 0 <= result["metrics"][role]["worst_recall"] <= result["accuracy"][role]
    text = write_report(tmp_path / "run").read_text()
    assert "recall of the worst class" in text
    assert measure("worst_recall", 12.0).endswith("%")


# A model: its function and entry in catalog.MODELS, or no file of ours at all


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


@pytest.mark.parametrize("name", ["linear", "tests.test_recipes:linear"])
def test_a_model_is_one_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if ":" not in name:
        monkeypatch.setitem(catalog.MODELS, name, f"{__name__}:linear")
    result = trained(tmp_path, model=name)
    assert result["model_parameters"] == 7850


# An engine: a module that carries messages between `Coordinator` and clients


class Pigeons:
    """An engine whose messages are lost, doubled and late, one in three of each; seeded, so that it ends."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._luck = random.Random(0)
        self._late: list[tuple[int, Fields]] = []

    def carry(self) -> None:
        coordinator = self._world.coordinator
        while not coordinator.done:
            for participant, kind in coordinator.missing().items():
                self._deliver(participant, coordinator.request(participant, kind))
            coordinator.advance()

    def _deliver(self, participant: int, request: Fields) -> None:
        luck = self._luck.choice(["lost", "doubled", "late"])
        if luck == "lost":
            return
        answer = self._world.node(participant).release(request)
        if luck == "late":
            self._late.append((participant, answer))
            return
        for sender, fields in [*self._late, (participant, answer), (participant, answer)]:
            try:
                self._world.coordinator.accept(sender, fields)
            except SottovoceError as error:
                assert "not open" in str(error)  # noqa: PT017
        self._late.clear()


def test_an_engine_carries_messages_and_gives_the_simulators_bits(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    Pigeons(world).carry()
    train(world.agreement.plan, tmp_path / "simulated")
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert same(simulated, world.coordinator.server.state())
    assert everyone_paid(world)
    result = write_run(tmp_path / "run", world.coordinator, engine="pigeons")
    assert result["engine"] == "pigeons"
    with pytest.raises(SottovoceError, match="only they can evaluate"):
        evaluate(tmp_path / "run")


# The page itself


def recipes() -> dict[str, list[str]]:
    """By heading, the files of src/sottovoce that a recipe touches."""
    found = {}
    for section in PAGE.read_text().split("\n### ")[1:]:
        heading, _, body = section.partition("\n")
        touched = re.search(r"^Touches: (.*)$", body, flags=re.M)
        found[heading] = re.findall(r"`([\w/]+\.py|[\w/]+/)`", touched.group(1)) if touched else []
    return found


def test_each_recipe_touches_at_most_three_files_which_are_there() -> None:
    found = recipes()
    assert list(found) == [f"Add {what}" for what in RECIPES]
    for heading, files in found.items():
        assert 1 <= len(files) <= 3, heading
        assert all((SOURCE / file).exists() for file in files), heading


def test_the_page_shows_the_tree_as_it_is() -> None:
    tree = re.search(r"```\nsrc/sottovoce/\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert tree is not None
    shown = {word for line in tree.group(1).splitlines() for word in line.split("  ")[1].split()}
    there = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in SOURCE.iterdir()
        if not path.name.startswith("__") and path.name != "py.typed"
    }
    assert shown == there


def test_the_page_states_the_layers_of_the_contract() -> None:
    project = tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    shown = re.search(r"```\n(cli\n.*?)```", PAGE.read_text(), flags=re.S)
    assert shown is not None
    assert ["__main__", *shown.group(1).split("\n")[:-1]] == layers


def test_the_house_has_no_more_rooms_and_no_larger_ones_than_the_page_allows() -> None:
    """Modules, lines and files on a way are printed, and no test counts them."""
    heads = {"root": "names at the root", "room": "entries of the largest room"}
    script = [sys.executable, str(PAGE.parents[1] / "tools" / "rooms.py")]
    found = json.loads(subprocess.run(script, check=True, capture_output=True).stdout)
    for name, head in heads.items():
        goal = re.search(rf"^\| {head} \|.* (\d+) \|$", PAGE.read_text(), flags=re.M)
        assert goal is not None
        assert found[name] <= int(goal[1]), name


@pytest.mark.parametrize(
    "toy",
    [{"method": "waves"}, {"context": "brightness"}, {"channel": "doubles"}, {"optimizer": "signs"}],
    ids=str,
)
def test_a_toy_is_gone_when_its_test_is_over(toy: dict[str, str]) -> None:
    with pytest.raises(SottovoceError, match="is not known"):
        small_plan(**toy)
