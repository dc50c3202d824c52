from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sottovoce import data
from sottovoce.data import Facts, read_client
from sottovoce.federation.onboarding.client import divided, personalize
from sottovoce.federation.onboarding.server import FinishedRun
from sottovoce.gradients import clipped_mean
from sottovoce.gradients.layers import stack
from sottovoce.machine.determinism import derived_seed
from sottovoce.models.architectures import import_model, lenet, model_options, open_model
from sottovoce.models.bases import open_basis
from sottovoce.models.imports import ModelError
from sottovoce.models.parameters import flat_parameters, logits, parameters_at, state_dict_at
from sottovoce.release.blueprint import build
from sottovoce.run.training import evaluate, train
from tests.small import small_plan


@pytest.mark.parametrize(("shape", "size"), [((1, 28, 28), 85_822), ((3, 32, 32), 121_182)])
def test_lenet_has_the_papers_number_of_parameters(shape: tuple[int, ...], size: int) -> None:
    assert flat_parameters(lenet(shape, 10)).numel() == size


def test_the_reference_follows_from_the_public_seed_alone() -> None:
    torch.manual_seed(123)
    first = flat_parameters(open_model("lenet", (1, 28, 28), 10, seed=5))
    state = torch.random.get_rng_state()
    again = flat_parameters(open_model("lenet", (1, 28, 28), 10, seed=5))
    assert torch.equal(first, again)
    assert not torch.equal(first, flat_parameters(open_model("lenet", (1, 28, 28), 10, seed=6)))
    assert torch.equal(state, torch.random.get_rng_state())


def test_threads_open_the_same_reference() -> None:
    def reference(_: int) -> torch.Tensor:
        return flat_parameters(open_model("lenet", (1, 28, 28), 10, seed=5))

    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(reference, range(40))
    assert all(torch.equal(first, other) for other in others)


def test_a_flat_vector_and_a_loaded_module_are_the_same_model() -> None:
    module = lenet((1, 28, 28), 10)
    theta = torch.randn(flat_parameters(module).numel()) * 0.05
    x = torch.randn(3, 1, 28, 28)
    fresh = lenet((1, 28, 28), 10)
    fresh.load_state_dict(state_dict_at(module, theta))
    assert torch.allclose(logits(module, theta, x), fresh(x), atol=1e-6)


@pytest.mark.parametrize("name", ["resnet", "no.such.module:build", "sottovoce.models.architectures:nothing"])
def test_unknown_models_are_refused(name: str) -> None:
    for opened in (open_model, import_model):
        with pytest.raises(ModelError):
            opened(name, (1, 28, 28), 10, seed=0)


def test_opening_a_model_imports_nothing_and_importing_one_is_asked_for_by_name() -> None:
    with pytest.raises(ModelError, match="not a built-in"):
        open_model("tests.small:tiny", (1, 28, 28), 10, seed=0)
    assert len(flat_parameters(import_model("tests.small:tiny", (1, 28, 28), 10, seed=0))) == 12_730


def test_a_model_is_found_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed command does not have that folder on its path."""
    text = "from torch import nn\ndef mlp(shape, classes):\n    return nn.Linear(shape[0], classes)\n"
    (tmp_path / "mymodels.py").write_text(text + "def broken(shape, classes):\n    return 1 / 0\n")
    (tmp_path / "syntax.py").write_text("def broken(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    assert len(flat_parameters(import_model("mymodels:mlp", (5,), 2, seed=0))) == 12
    for name, said in (
        ("mymodels:broken", "ZeroDivisionError"),
        ("mymodels:nothing", "AttributeError"),
        ("syntax:broken", "SyntaxError"),
        ("absent:mlp", "current folder"),
    ):
        with pytest.raises(ModelError, match=said) as refused:
            import_model(name, (5,), 2, seed=0)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_mlp_has_the_widths_and_the_activation_of_the_plan(activation: str) -> None:
    plan = small_plan(model="mlp", mlp_sizes="7, 3", mlp_activation=activation)
    module = open_model("mlp", (4, 5), 2, 0, model_options(plan))
    layers = [layer for layer in module if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(20, 7), (7, 3), (3, 2)]
    assert type(module[2]) is {"tanh": nn.Tanh, "relu": nn.ReLU}[activation]
    assert torch.equal(module(torch.randn(6, 4, 5)), torch.zeros(6, 2))  # all classes alike at the start


def test_gradients_of_mlp_take_the_fast_path() -> None:
    assert stack(open_model("mlp", (20,), 4, 0, {"mlp_sizes": "8,8"})) is not None


@pytest.mark.parametrize("sizes", ["", "8,", "-4", "0", "3.5", "999999", ",".join("8" * 17), "²"])
def test_widths_that_cannot_be_are_refused_in_a_line(sizes: str) -> None:
    with pytest.raises(ModelError, match="mlp_sizes"):
        open_model("mlp", (20,), 4, 0, {"mlp_sizes": sizes})


def test_an_mlp_trains(tmp_path: Path) -> None:
    plan = small_plan(model="mlp", mlp_sizes="16", coefficients=800, rounds=3)
    result = train(plan, tmp_path / "run")
    assert result["model_parameters"] == 784 * 16 + 16 + 16 * 10 + 10


def test_records_that_do_not_fit_lenet_are_refused() -> None:
    with pytest.raises(ModelError, match="at least 16"):
        lenet((1, 8, 8), 10)
    with pytest.raises(ModelError, match="images"):
        lenet((20,), 2)


class Tied(nn.Module):
    """One weight under two names, used twice; a frozen layer and a buffer around it."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Linear(784, 12)
        self.fixed.requires_grad_(False)
        self.register_buffer("shift", torch.full((12,), 0.5))
        self.first, self.second, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 10)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.fixed(x.flatten(1)) + self.shift)
        return self.head(torch.tanh(self.second(torch.tanh(self.first(hidden)))))


def tied(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Tied()


def test_tied_parameters_are_one_place_of_theta_under_all_their_names() -> None:
    """In 0.1.0 evaluation dropped the second name, so that training and evaluation had different models."""
    module = Tied()
    theta = torch.randn(flat_parameters(module).numel())
    assert theta.numel() == 12 * 12 + 2 * 12 + 12 * 10 + 10
    views = parameters_at(module, theta)
    assert torch.equal(views["first.weight"], views["second.weight"])
    assert not any(name.startswith(("fixed", "shift")) for name in views)
    state = state_dict_at(module, theta)
    assert state.keys() == module.state_dict().keys()
    other = Tied()
    other.load_state_dict(state)  # strict: in 0.1.0 this state dict did not load
    x = torch.randn(5, 1, 28, 28)
    assert torch.allclose(logits(module, theta, x), other(x), atol=1e-6)
    assert torch.equal(other.fixed.weight, module.fixed.weight)


@pytest.mark.parametrize("basis", ["structured", "unstructured"])
def test_gradients_of_tied_parameters_are_those_of_the_model_that_is_evaluated(basis: str) -> None:
    module = Tied()
    theta = (flat_parameters(module) + 0.1).requires_grad_()
    p = open_basis(basis, module, 150, seed=0)
    x, y = torch.randn(6, 1, 28, 28), torch.arange(6)
    loss = nn.functional.cross_entropy(logits(module, theta, x), y, reduction="sum")
    [gradient] = torch.autograd.grad(loss, theta)
    mean = clipped_mean(module, theta.detach(), p, x, y, clip=1e6, denominator=6)
    assert torch.allclose(mean.float(), p.project(gradient) / 6, atol=1e-5)


def test_a_model_with_tied_and_frozen_parameters_trains_evaluates_exports_and_loads(tmp_path: Path) -> None:
    plan = small_plan(model="tests.models.test_architectures:tied", coefficients=150, rounds=3)
    result = train(plan, tmp_path / "run")
    assert evaluate(tmp_path / "run", module=plan.model)["accuracy"] == result["accuracy"]
    x = data.load("mnist-small").x[:90]
    file, model = tmp_path / "mine.npz", tmp_path / "mine.safetensors"
    np.savez(file, x=x.numpy(), y=np.zeros(90, int))
    personalize(tmp_path / "run", file, model, module=plan.model)
    exported = Tied()
    exported.load_state_dict(load_file(model))
    assert torch.equal(exported.first.weight, exported.second.weight)
    reference = import_model(plan.model, (1, 28, 28), 10, derived_seed(plan.seed, "reference"))
    assert torch.equal(exported.fixed.weight, reference.fixed.weight)
    assert not torch.equal(exported.first.weight, reference.first.weight)
    # It is judged on the records that its context left, drawn without labels: what it says of these, and of
    # no others, becomes their label, and the context that was released already gives the same model.
    blueprint = FinishedRun.load(tmp_path / "run", plan.model).blueprint
    unlabelled = read_client(file, facts=blueprint.facts, needed=50, labels=False)
    held_out = divided(replace(unlabelled, y=torch.arange(90)), blueprint).held_out
    assert len(held_out) == 40
    y = (exported(unlabelled.x).argmax(1) + 1) % 10
    y[held_out.y] = exported(held_out.x).argmax(1)
    np.savez(file, x=x.numpy(), y=y.numpy())
    assert personalize(tmp_path / "run", file, model, module=plan.model)["accuracy"] == 100


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(ModelError, match="frozen"):
        flat_parameters(nn.Linear(3, 2).requires_grad_(False))


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        shorter = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity() if inputs == outputs and stride == 1 else shorter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(h)) + self.shortcut(x))


class FrozenResNet18(nn.Module):
    """ResNet-18 with random weights and fixed statistics, under a head that is trained."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        blocks = [block for i, o, stride in widths for block in (Residual(i, o, stride), Residual(o, o, 1))]
        start = nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
        self.backbone = nn.Sequential(*start, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        for module in self.backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -0.1, 0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def resnet(shape: tuple[int, ...], classes: int) -> nn.Module:
    return FrozenResNet18(shape[0], classes)


def test_a_frozen_resnet_with_batch_norms_is_a_backbone(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (32, 3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "tiny.npz", x=x, y=np.arange(32) % 3, client=np.repeat([0, 1], 16))
    changes = {
        "partition": "client",
        "participants": 2,
        "future_clients": 0,
        "records_per_client": 0,
        "context_records": 5,
    }
    plan = small_plan(
        dataset=str(tmp_path / "tiny.npz"), model="tests.models.test_architectures:resnet", method="blend",
        context="public", coefficients=513 * 3, clients_per_round=2, rounds=1, **changes,
    )  # fmt: skip
    result = train(plan, tmp_path / "run")
    assert result["model_parameters"] == 513 * 3
    assert sum(p.numel() for p in FrozenResNet18(3, 3).parameters()) > 11_000_000
    blueprint = build(plan.replace(gradient_records=12), Facts((3, 8, 8), 3), plan.model)
    fixed = blueprint.module.state_dict()
    moved = state_dict_at(blueprint.module, blueprint.theta(torch.ones(513 * 3)))
    changed = {name for name in fixed if not torch.equal(fixed[name], moved[name])}
    assert changed == {"head.weight", "head.bias"}
