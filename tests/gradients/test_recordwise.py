"""A record's output is its own: modules that mix a batch are refused, and none can mix unnoticed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sottovoce.data import Facts, Records
from sottovoce.errors import SottovoceError
from sottovoce.gradients import check_outputs, check_recordwise, clipped_mean, recordwise_logits, sensitivity
from sottovoce.gradients.layers import stack
from sottovoce.models.architectures import lenet
from sottovoce.models.bases import open_basis
from sottovoce.models.parameters import logits
from sottovoce.models.tasks import open_task
from tests.small import built, small_plan

from . import models

FACTS = Facts((1, 6, 6), 3)


class Own(nn.Module):
    """A module of one's own: linear, with something between."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.between(self.linear(x.flatten(1)))


def centred(h: Tensor) -> Tensor:
    return h - h.mean(0)


class Gated(Own):
    """Mixes records only once its gate, zero at the reference, has moved."""

    def __init__(self) -> None:
        super().__init__(lambda h: h + self.gate * h.mean(0))
        self.gate = nn.Parameter(torch.zeros(1))


class Attentive(nn.Module):
    """Records look at each other, the more the more alike they are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.linear(torch.softmax(x @ x.T / 6, dim=1) @ x)


class AttentiveLater(nn.Module):
    """The same by keys and a gate that are all zero at the reference, and of which large ones end it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.keys = nn.Linear(36, 3), nn.Linear(36, 4, bias=False)
        self.gate = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.keys.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        keys = self.keys(x)
        return self.linear(x + self.gate * (torch.softmax(-torch.cdist(keys, keys), dim=1) @ x))


class OnlyAtReference(Own):
    """Mixes records while its gate is as it was."""

    def __init__(self) -> None:
        super().__init__(lambda h: h + torch.exp(-1e4 * self.gate**2) * h.mean(0))
        self.gate = nn.Parameter(torch.zeros(1))


class BesideMuch(Own):
    """Mixes little, once its gate has moved, beside much that it does not mix."""

    def __init__(self) -> None:
        super().__init__(lambda h: h)
        self.much = nn.Sequential(nn.Linear(36, 2048), nn.ReLU(), nn.Linear(2048, 3))
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.much(x.flatten(1)) + self.gate * super().forward(x).mean(0)


class Stubborn(nn.Sequential):
    """Stays in training mode, whatever it is told."""

    def eval(self) -> Stubborn:
        return self


def own_norm(norm: nn.Module, kind: type[nn.Sequential] = nn.Sequential) -> nn.Module:
    return kind(nn.Conv2d(1, 4, 3), norm, nn.Flatten(), nn.Linear(64, 3))


MIXING: list[Callable[[], nn.Module]] = [
    lambda: Own(centred),
    lambda: Own(lambda h: 1e-4 * centred(h)),
    lambda: Own(lambda h: h.softmax(0)),
    lambda: Own(lambda h: h / h.norm()),
    lambda: Own(lambda h: h.flip(0)),
    lambda: Own(lambda h: h + torch.randn_like(h)),
    lambda: Own(lambda h: h.squeeze()),
    lambda: Own(lambda h: h.sum(1)),
    Gated,
    *(partial(models.seeded, kind) for kind in (Attentive, AttentiveLater, OnlyAtReference, BesideMuch)),
]


@pytest.mark.parametrize("build", MIXING)
def test_a_module_whose_output_depends_on_the_batch_is_refused(build: Callable[[], nn.Module]) -> None:
    with pytest.raises(SottovoceError, match=r"mixes records|outputs of shape"):
        check_recordwise(build().eval(), FACTS)


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (models.Residual, (5,)),
        (models.tied, (5,)),
        (models.hooked, (5,)),
        (models.depthwise, (4, 5, 5)),
        (lambda: Own(torch.relu), (1, 6, 6)),
        (lambda: Own(lambda h: h * torch.nan), (1, 6, 6)),
        (lambda: Own(lambda h: h - h.mean(1, keepdim=True)), (1, 6, 6)),
        (lambda: own_norm(nn.BatchNorm2d(4)), (1, 6, 6)),
        (lambda: own_norm(nn.InstanceNorm2d(4)), (1, 6, 6)),
    ],
)
def test_a_module_that_keeps_records_apart_is_taken(
    build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    module = build().eval()
    assert stack(module) is None
    check_recordwise(module, Facts(shape, 3))
    x, _ = models.records(shape, 3, 70)
    theta = models.flat(module)
    alone, together = recordwise_logits(module, theta, x), logits(module, theta, x)
    assert torch.allclose(alone, together, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("context", ["moments", "predictions"])
def test_a_blueprint_refuses_a_mixing_module_before_anything_can_be_charged(context: str) -> None:
    plan = small_plan(gradient_records=40, context=context, context_round=2, coefficients=20)
    with pytest.raises(SottovoceError, match="Own mixes records"):
        built(plan, FACTS, Own(centred))
    with pytest.raises(SottovoceError, match=r"layer '1' \(BatchNorm2d\) mixes records"):
        built(plan, FACTS, own_norm(nn.BatchNorm2d(4), Stubborn))


def test_a_centring_module_cannot_move_the_predictions_beyond_what_is_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One record shifts the batch's mean, and with it every prediction: 69 times the charge, once."""
    monkeypatch.setattr("sottovoce.release.blueprint.check_recordwise", lambda *_: None)
    plan = small_plan(
        gradient_records=40, context="predictions", context_round=2, context_records=100, coefficients=20
    )
    module = Own(lambda h: h - h.mean(0))
    made = built(plan, FACTS, module)
    release = made.releases_of(0)["context"]
    x, y = models.records((1, 6, 6), 3, 100)
    other = x.clone()
    other[0] = 1e4 * torch.randn(1, 6, 6, generator=torch.Generator().manual_seed(1))
    start = torch.zeros(made.coefficients)
    one, two = (release.statistic(Records(data, y), start) for data in (x, other))
    assert float((one - two).norm()) <= release.sensitivity
    # The module does what it is accused of.
    with torch.no_grad():
        whole = [made.statistic.mean(data, y, 100, made.module(data)) for data in (x, other)]
    assert float((whole[0] - whole[1]).norm()) > 10 * release.sensitivity


@pytest.mark.parametrize("frozen", [True, False])
def test_a_fixed_batch_norm_keeps_the_bound(frozen: bool) -> None:
    module = own_norm(nn.BatchNorm2d(4)).eval()
    norm: Any = module[1]  # type: ignore[index]
    norm.running_mean.normal_(generator=torch.Generator().manual_seed(0))
    norm.running_var.fill_(0.01)
    norm.requires_grad_(not frozen)
    basis = open_basis("identity", module, 0, 0)
    theta = torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])
    x, y = models.records((1, 6, 6), 3, 8)
    statistics = norm.running_mean.clone()
    means = []
    for first in (x[0], 1e6 * x[0]):
        data = torch.cat([first[None], x[1:]])
        means.append(clipped_mean(module, theta, basis, data, y, clip=0.5, denominator=8))
    assert 0 < float((means[0] - means[1]).norm()) <= sensitivity(0.5, 8)
    assert torch.equal(norm.running_mean, statistics)


def test_a_layer_with_a_forward_of_its_own_is_no_known_layer() -> None:
    module = models.tiny()
    assert stack(module) is not None
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.forward = lambda x: x - x.mean(0)  # type: ignore[method-assign]
    assert stack(module) is None


def test_a_known_stack_costs_nothing_to_check() -> None:
    module = lenet((3, 32, 32), 10).eval()
    start = time.process_time()
    for _ in range(20):
        check_recordwise(module, Facts((3, 32, 32), 10))
    assert (time.process_time() - start) / 20 < 0.01


class Recurrent(nn.Module):
    """The last state of a series (T, F)."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.recurrent = kind(3, 6, batch_first=True)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])  # type: ignore[no-any-return]


class Peeking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([row * row.max().item() for row in x])


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (Recurrent(nn.GRU), "layer 'recurrent' (GRU)"),
        (nn.Sequential(nn.Flatten(), Peeking(), nn.Linear(15, 4)), "layer '1' (Peeking)"),
    ],
)
def test_what_cannot_be_differentiated_record_by_record_is_refused_by_name(
    module: nn.Module, named: str
) -> None:
    with pytest.raises(SottovoceError) as refused:
        check_recordwise(module.eval(), Facts((5, 3), 4))
    assert f"torch.func cannot differentiate {named}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_an_lstm_of_a_series_has_the_gradients_of_its_records() -> None:
    module, facts = Recurrent(nn.LSTM).eval(), Facts((5, 3), 4)
    check_recordwise(module, facts)
    x, y = torch.randn(6, *facts.shape), torch.arange(6) % 4
    basis = open_basis("identity", module, 0, 0)
    theta = torch.cat([p.detach().flatten() for p in module.parameters()])
    mean = clipped_mean(module, theta, basis, x, y, clip=1e6, denominator=6)
    loss = nn.functional.cross_entropy(module(x), y)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
    assert torch.allclose(mean.float(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(14, 4)),
            "layer '1' (Linear) fails on records of shape (5, 3)",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(15, 1)), "gives 1 outputs a record"),
        (nn.LSTM(3, 4, batch_first=True), "returns tuple"),
        (nn.Linear(14, 4), "Linear fails on records of shape (5, 3)"),
    ],
)
def test_wrong_widths_one_logit_and_tuples_are_refused_in_a_line(module: nn.Module, said: str) -> None:
    with pytest.raises(SottovoceError) as refused:
        check_outputs(module.eval(), open_task(Facts((5, 3), 4)))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_text_with_a_word_outside_the_vocabulary_has_no_output_and_the_others_their_own() -> None:
    module = models.seeded(lambda: nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 4)))
    x = torch.tensor([[0, 1, 2, 3], [4, 0, 0, 1], [1, -1, 2, 3], [2, 2, 2, 2]])
    outputs = recordwise_logits(module, models.flat(module), x)
    expected = module(x[[0, 1, 3]]).detach()
    assert torch.allclose(outputs[[0, 1, 3]], expected, atol=1e-6)
    assert outputs[2].isnan().all()


def test_trying_a_module_changes_neither_the_generator_nor_the_warnings_of_its_caller() -> None:
    before, filters = torch.random.get_rng_state(), list(warnings.filters)
    check_recordwise(models.seeded(models.Residual).eval(), Facts((5,), 3))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert warnings.filters == filters


def test_a_known_stack_gives_its_records_together_what_it_gives_them_alone() -> None:
    module = models.seeded(models.tiny)
    x, _ = models.records((1, 6, 6), 3, 7)
    assert stack(module) is not None
    outputs = recordwise_logits(module, models.flat(module), x)
    assert torch.allclose(outputs, torch.cat([module(record[None]) for record in x]).detach(), atol=1e-6)
