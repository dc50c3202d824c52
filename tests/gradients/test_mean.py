"""Every way of computing a clipped mean is the same function, and that function is bounded."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sottovoce import gradients
from sottovoce.errors import SottovoceError
from sottovoce.gradients import clipped_mean, clipped_means, sensitivity, vmap
from sottovoce.gradients.identity import squares
from sottovoce.gradients.layers import Linear, capture, stack
from sottovoce.models.bases import Basis, BasisKind, Identity, open_basis
from sottovoce.models.tiles import TILE

from . import models
from .test_gpu import like_a_card

KINDS = ("structured", "unstructured", "identity")
STACKS: list[tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = [
    (models.lenet, (3, 32, 32), 10, 16384),
    (lambda: models.lenet(1, 28), (1, 28, 28), 10, 4000),
    (models.tiny, (1, 6, 6), 3, 60),
    (models.mixed, (4, 9, 8), 4, 301),
    (models.perceptron, (3, 4), 4, 77),
    (models.convolutional, (6, 7, 7), 4, 333),
]
OTHERS: list[tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = [
    (models.Residual, (5,), 3, 30),
    (models.tied, (5,), 3, 30),
    (models.hooked, (5,), 3, 30),
    (models.sequence, (3, 5), 3, 40),
    (models.depthwise, (4, 5, 5), 3, 200),
]


def expected(module: nn.Module, theta: Tensor, basis: Basis, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """The definition, in float64, one record after another."""
    exact = copy.deepcopy(module).double()
    chunks = vmap.record_gradients(exact, theta.double(), basis, x.double(), y)
    total = torch.zeros(basis.coefficients, dtype=torch.float64)
    for chunk, _ in chunks:
        for g in chunk:
            total += g * min(1.0, clip / float(g.norm()))
    return total / len(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("build", "shape", "classes", "k"), STACKS + OTHERS)
def test_every_path_agrees_with_the_oracle(
    build: Callable[[], nn.Module], shape: tuple[int, ...], classes: int, k: int, kind: str
) -> None:
    module = models.seeded(build)
    theta, (x, y) = models.flat(module), models.records(shape, classes, 11)
    basis = open_basis(kind, module, k, seed=1)
    assert basis.kind == kind
    norms = torch.cat([g.norm(dim=1) for g, _ in vmap.record_gradients(module, theta, basis, x, y)])
    clip = float(norms.median())  # half of the records are clipped
    want = expected(module, theta, basis, x, y, clip)
    got = clipped_mean(module, theta, basis, x, y, clip=clip, denominator=11)
    assert got.dtype == torch.float64
    assert (got - want).norm() <= 1e-6 * clip
    exact = clipped_mean(
        copy.deepcopy(module).double(), theta.double(), basis, x.double(), y, clip=clip, denominator=11
    )
    assert (exact - want).norm() <= 1e-11 * clip


@pytest.mark.parametrize(("build", "shape", "classes", "k"), STACKS + OTHERS[:1])
def test_a_scaled_bias_is_clipped_with_the_length_it_has(
    build: Callable[[], nn.Module], shape: tuple[int, ...], classes: int, k: int
) -> None:
    module = models.seeded(build)
    theta, (x, y) = models.flat(module), models.records(shape, classes, 11)
    basis = Identity(len(theta), biases=list(module.parameters())[-1].numel(), bias_scale=0.3)
    norms = torch.cat([g.norm(dim=1) for g, _ in vmap.record_gradients(module, theta, basis, x, y)])
    clip = float(norms.median())
    want = expected(module, theta, basis, x, y, clip)
    got = clipped_mean(module, theta, basis, x, y, clip=clip, denominator=11, remember=True)
    assert (got - want).norm() <= 1e-6 * clip
    plain = expected(module, theta, Identity(len(theta)), x, y, clip)
    assert (got - plain).norm() > 1e-3 * clip
    two = (theta.expand(2, -1), [basis, Identity(len(theta))], x.expand(2, *x.shape), y.expand(2, -1))
    with pytest.raises(SottovoceError, match="of one kind"):
        clipped_means(module, *two, clip=clip, denominator=11)


@pytest.mark.parametrize(("build", "shape", "classes", "k"), STACKS)
def test_stacks_of_known_layers_take_the_fast_path(
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    classes: int,
    k: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the oracle was used")

    monkeypatch.setattr(vmap, "clipped_sum", never)
    module = build()
    x, y = models.records(shape, classes, 3)
    for kind in KINDS:
        basis = open_basis(kind, module, k, seed=0)
        clipped_mean(module, models.flat(module), basis, x, y, clip=1.0, denominator=3)


@pytest.mark.parametrize("build", [models.Residual, models.tied, models.hooked, models.depthwise])
def test_unusual_models_are_no_stacks(build: Callable[[], nn.Module]) -> None:
    assert stack(build()) is None


@pytest.mark.parametrize(
    ("norm", "training"),
    [
        (nn.BatchNorm2d(4), True),
        (nn.SyncBatchNorm(4), True),
        (nn.InstanceNorm2d(4, track_running_stats=True), True),
        (nn.BatchNorm2d(4, track_running_stats=False), False),
    ],
)
def test_layers_that_mix_records_are_refused(norm: nn.Module, training: bool) -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Flatten(), nn.Linear(64, 3)).train(training)
    x, y = models.records((1, 6, 6), 3, 4)
    basis = open_basis("unstructured", module, 20, seed=0)
    with pytest.raises(SottovoceError, match="mixes records"):
        clipped_mean(module, models.flat(module), basis, x, y, clip=1.0, denominator=4)


def test_dropout_in_training_is_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.Dropout(0.5)).train()
    x, y = models.records((1, 6, 6), 3, 4)
    with pytest.raises(SottovoceError, match="eval"):
        clipped_mean(
            module, models.flat(module), open_basis("identity", module, 0, 0), x, y, clip=1.0, denominator=4
        )


@pytest.mark.parametrize(("clip", "denominator"), [(0.0, 4), (-1.0, 4), (float("nan"), 4), (1.0, 0)])
def test_senseless_bounds_are_refused(clip: float, denominator: int) -> None:
    module = models.tiny()
    x, y = models.records((1, 6, 6), 3, 4)
    basis = open_basis("identity", module, 0, 0)
    with pytest.raises(SottovoceError, match="positive"):
        clipped_mean(module, models.flat(module), basis, x, y, clip=clip, denominator=denominator)


@pytest.mark.parametrize("build", [models.tiny, models.Residual])
def test_the_module_is_neither_read_nor_changed(build: Callable[[], nn.Module]) -> None:
    module = models.seeded(build)
    theta = models.flat(module)
    x, y = models.records((1, 6, 6) if build is models.tiny else (5,), 3, 4)
    basis = open_basis("unstructured", module, 30, seed=0)
    before = clipped_mean(module, theta, basis, x, y, clip=1.0, denominator=4)
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(torch.nan)
    kept_theta, kept_x = theta.clone(), x.clone()
    assert torch.equal(clipped_mean(module, theta, basis, x, y, clip=1.0, denominator=4), before)
    assert all(p.isnan().all() and p.grad is None for p in module.parameters())
    assert torch.equal(theta, kept_theta)
    assert torch.equal(x, kept_x)


def test_a_record_with_a_token_outside_the_vocabulary_contributes_nothing() -> None:
    module = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    theta = models.flat(module)
    basis = open_basis("identity", module, len(theta), seed=0)
    x, y = torch.tensor([[0, 1], [2, -1], [-1, -1], [3, 4]]), torch.tensor([0, 1, 0, 1])
    total = torch.zeros(len(theta), dtype=torch.float64)
    for record in (0, 3):
        module.zero_grad()
        nn.functional.cross_entropy(module(x[record : record + 1]), y[record : record + 1]).backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).double()
        total += gradient * min(1.0, 0.3 / float(gradient.norm()))
    found = clipped_mean(module, theta, basis, x, y, clip=0.3, denominator=4)
    assert torch.allclose(found, total / 4, atol=1e-7)


def test_the_denominator_is_fixed_whatever_the_number_of_records() -> None:
    module = models.seeded(models.tiny)
    theta, basis = models.flat(module), open_basis("structured", module, 60, seed=0)
    x, y = models.records((1, 6, 6), 3, 5)
    fifth = clipped_mean(module, theta, basis, x, y, clip=1.0, denominator=5)
    tenth = clipped_mean(module, theta, basis, x, y, clip=1.0, denominator=10)
    assert torch.allclose(fifth, 2 * tenth, rtol=1e-15)
    assert not clipped_mean(module, theta, basis, x[:0], y[:0], clip=1.0, denominator=5).any()
    nobody = clipped_means(
        module, theta.repeat(2, 1), [basis] * 2, x[None, :0].repeat(2, 1, 1, 1, 1), y[None, :0].repeat(2, 1),
        clip=1.0, denominator=5,
    )  # fmt: skip
    assert torch.equal(nobody, torch.zeros(2, 60, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_several_clients_at_once_give_what_each_gives_alone(
    kind: BasisKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = gradients._chunks
    module = models.seeded(models.mixed)
    clients, m = 5, 7
    thetas = torch.stack([models.flat(models.seeded(models.mixed, seed)) for seed in range(clients)])
    bases = [open_basis(kind, module, 301, seed) for seed in range(clients)]
    x, y = models.records((4, 9, 8), 4, clients * m)
    x, y = x.unflatten(0, (clients, m)), y.unflatten(0, (clients, m))
    alone = torch.stack(
        [
            clipped_mean(module, *client, clip=0.5, denominator=m)
            for client in zip(thetas, bases, x, y, strict=True)
        ]
    )
    for count in (1, 2, clients):
        some = (thetas[:count], bases[:count], x[:count], y[:count])
        assert torch.equal(clipped_means(module, *some, clip=0.5, denominator=m), alone[:count])
    # As on a GPU, which has room for several clients in a chunk.
    monkeypatch.setattr(gradients, "_chunks", lambda *sizes, on_cpu: chunks(*sizes, on_cpu=False))
    for room in (1, 100_000, 2**20, 2**30):
        monkeypatch.setattr(gradients, "_GPU_BYTES", room)
        together = clipped_means(module, thetas, bases, x, y, clip=0.5, denominator=m)
        assert (together - alone).abs().max() <= 1e-7


def test_several_clients_of_an_unusual_model_give_what_each_gives_alone() -> None:
    module = models.seeded(models.Residual)
    thetas = torch.stack([models.flat(models.seeded(models.Residual, seed)) for seed in range(3)])
    bases = [open_basis("unstructured", module, 20, seed) for seed in range(3)]
    x, y = models.records((5,), 3, 12)
    x, y = x.unflatten(0, (3, 4)), y.unflatten(0, (3, 4))
    together = clipped_means(module, thetas, bases, x, y, clip=0.5, denominator=4)
    for row, *client in zip(together, thetas, bases, x, y, strict=True):
        assert torch.equal(row, clipped_mean(module, *client, clip=0.5, denominator=4))


def test_clients_with_different_kinds_of_bases_are_refused() -> None:
    module = models.tiny()
    x, y = models.records((1, 6, 6), 3, 4)
    bases = [open_basis(kind, module, 60, 0) for kind in ("structured", "unstructured")]
    with pytest.raises(SottovoceError, match="one kind"):
        clipped_means(
            module, models.flat(module).repeat(2, 1), bases, x.reshape(2, 2, 1, 6, 6), y.reshape(2, 2),
            clip=1.0, denominator=2,
        )  # fmt: skip


def test_a_basis_of_another_model_is_refused() -> None:
    module = models.tiny()
    x, y = models.records((1, 6, 6), 3, 4)
    basis = open_basis("identity", models.perceptron(), 0, 0)
    with pytest.raises(SottovoceError, match="does not fit"):
        clipped_mean(module, models.flat(module), basis, x, y, clip=1.0, denominator=4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_what_the_cpu_gives(kind: str) -> None:
    module = models.seeded(models.lenet)
    thetas = models.flat(module).repeat(3, 1)
    bases = [open_basis(kind, module, 16384, seed) for seed in range(3)]
    x, y = models.records((3, 32, 32), 10, 60)
    x, y = x.unflatten(0, (3, 20)), y.unflatten(0, (3, 20))
    here = clipped_means(module, thetas, bases, x, y, clip=1.0, denominator=20)
    there = clipped_means(module, thetas.cuda(), bases, x.cuda(), y.cuda(), clip=1.0, denominator=20)
    assert (there.cpu() - here).norm(dim=1).max() <= 1e-6


def test_the_sensitivity_is_twice_the_clip_over_the_denominator() -> None:
    assert sensitivity(0.5, 333) == 1.0 / 333


@pytest.mark.parametrize("kind", KINDS)
def test_cores_share_out_chunks_and_change_nothing_else(
    kind: BasisKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = models.seeded(models.lenet)
    theta, (x, y) = models.flat(module), models.records((3, 32, 32), 10, 70)
    basis, before = open_basis(kind, module, 16384, seed=1), torch.get_num_threads()

    def on(threads: int) -> Tensor:
        torch.set_num_threads(threads)
        got = clipped_mean(module, theta, basis, x, y, clip=0.5, denominator=70)
        seen: list[int] = []
        fresh = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        fresh.start()
        fresh.join()
        assert [torch.get_num_threads(), *seen] == [threads, threads]
        return got

    workers = set()

    def spied(*arguments: Any) -> Any:
        workers.add(threading.current_thread().name.rpartition("_")[0])
        return capture(*arguments)

    monkeypatch.setattr("sottovoce.gradients.capture", spied)
    try:
        alone = on(1)
        assert workers == {""}
        assert torch.equal(alone, on(3))
        assert workers == {"", "sottovoce-core"}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("clients", "records", "mebibytes", "on_cpu", "blocks"),
    [
        (1, 100, 0.9, True, [(0, 1, 0, 64, 64), (0, 1, 64, 96, 32), (0, 1, 96, 100, 32)]),  # 66 take 60 MiB
        (1, 40, 10, True, [(0, 1, 0, 32, 32), (0, 1, 32, 40, 32)]),  # never less than a tile
        (2, 10, 0.1, True, [(0, 1, 0, 10, 32), (1, 2, 0, 10, 32)]),  # one client each, however small
        (1, 64, 0.1, True, [(0, 1, 0, 64, 64)]),
        (3, 10, 32, False, [(0, 3, 0, 10, 32)]),  # 128 records on a GPU
        (5, 16, 64, False, [(0, 2, 0, 16, 32), (2, 4, 0, 16, 32), (4, 5, 0, 16, 32)]),
        (1, 2, 10000, False, [(0, 1, 0, 2, 32)]),
        (1, 100, 64, False, [(0, 1, 0, 64, 64), (0, 1, 64, 100, 64)]),  # all of a client in one shape
        (1, 70, 128, False, [(0, 1, 0, 32, 32), (0, 1, 32, 64, 32), (0, 1, 64, 70, 32)]),
    ],
)
def test_records_fall_into_the_same_blocks_in_every_version(
    clients: int,
    records: int,
    mebibytes: float,
    on_cpu: bool,
    blocks: list[tuple[int, ...]],
) -> None:
    """Sums over blocks of another size are rounded differently, and seeded runs repeat bit for bit."""
    sizes = clients, records, int(mebibytes * 2**20)
    found = list(gradients._chunks(*sizes, (Linear("weight", None),), TILE, on_cpu=on_cpu))
    assert [(c.start, c.stop, r.start, r.stop, length) for c, r, length in found] == blocks
    alone = [range(*c.records.indices(records)) for c in gradients._chunks(*sizes, (), 1, on_cpu=True)]
    assert [[*some] for some in alone] == [[record] for record in range(records)] * clients


def test_a_chunk_with_convolutions_is_one_tile_on_a_cpu() -> None:
    layers = stack(models.tiny())
    assert layers is not None
    found = [chunk.length for chunk in gradients._chunks(1, 100, 1, layers, TILE, on_cpu=True)]
    assert found == [TILE] * 4


def test_a_record_takes_what_its_layers_put_out_and_its_gradient_writes() -> None:
    module = models.seeded(models.tiny)
    layers, thetas = stack(module), models.flat(module).repeat(2, 1)
    assert layers is not None
    x = torch.zeros(2, 3, 1, 6, 6)
    outputs, weights = 64 + 16 + 16 + 16 + 6 + 6 + 3, 4 * 9  # pooled before they are rectified
    expected = {"identity": 6 * weights, "structured": 3 * 60, "unstructured": 3 * 60 + thetas.shape[1]}
    for kind, written in expected.items():
        basis = open_basis(kind, module, 60, seed=0)
        assert gradients._floats_per_record(layers, module, thetas, x, basis) == 2 * outputs + written
    series = models.seeded(models.sequence)
    several = stack(series)
    assert several is not None
    flat, identity = models.flat(series)[None], open_basis("identity", series, 0, 0)
    assert gradients._floats_per_record(several, series, flat, torch.zeros(1, 3, 3, 5), identity) is None


def test_a_record_on_a_gpu_also_takes_its_patches_and_the_inputs_of_linear_layers() -> None:
    module = models.seeded(models.tiny)
    layers, thetas = stack(module), models.flat(module)[None]
    assert layers is not None
    outputs, weights, patches, inputs = 64 + 16 + 16 + 16 + 6 + 6 + 3, 4 * 9, 9 * 16, 16 + 6
    with like_a_card(None):
        found = gradients._floats_per_record(
            layers, module, thetas, torch.zeros(1, 3, 1, 6, 6), open_basis("identity", module, 0, seed=0)
        )
    assert found == 2 * outputs + patches + 6 * (weights + inputs)


def test_what_a_record_takes_is_remembered_for_records_of_its_shape() -> None:
    module = models.seeded(
        lambda: nn.Sequential(nn.LayerNorm(5), nn.AdaptiveAvgPool2d((1, 5)), nn.Flatten(), nn.Linear(5, 3))
    )
    layers, thetas, basis = stack(module), models.flat(module)[None], open_basis("identity", module, 0, 0)
    assert layers is not None
    for rows in (4, 7, 4):
        x = torch.zeros(1, 2, rows, 5)
        found = gradients._remembered_stack(module, thetas, x, basis)
        assert found is not None
        assert found[1] == gradients._floats_per_record(layers, module, thetas, x, basis)
        assert found[1] == 2 * (rows * 5 + 5 + 5 + 3)


@pytest.mark.parametrize("part", range(4))
def test_clients_together_need_one_of_each_input(part: int) -> None:
    module = models.tiny()
    x, y = models.records((1, 6, 6), 3, 4)
    inputs = [
        models.flat(module).repeat(2, 1),
        [open_basis("identity", module, 0, 0)] * 2,
        x.reshape(2, 2, 1, 6, 6),
        y.reshape(2, 2),
    ]
    inputs[part] = inputs[part][:1]  # type: ignore[index]
    with pytest.raises(SottovoceError, match="one of each input"):
        clipped_means(module, *inputs, clip=1.0, denominator=2)  # type: ignore[arg-type]


def test_norms_of_inputs_are_remembered_until_the_records_change() -> None:
    module = models.seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 4)))
    theta, (x, y) = models.flat(module), models.records((3, 4), 4, 30)
    basis = open_basis("identity", module, 0, seed=0)

    def check() -> None:
        found = clipped_mean(module, theta, basis, x, y, clip=0.1, denominator=30, remember=True)
        assert torch.allclose(found, expected(module, theta, basis, x, y, 0.1), atol=1e-6)

    check()
    check()
    x.mul_(100.0)  # with the norms of before, gradients would be clipped far too little
    check()
    with torch.inference_mode():
        x = x.clone()  # whose changes nobody counts
    check()


def test_a_clipped_mean_keeps_its_bound_where_memory_is_changed_behind_torch() -> None:
    """Norms of an earlier round would be those of other records, and nothing tells torch."""
    module = models.seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 4)))
    theta, (shared, y) = models.flat(module), models.records((3, 4), 4, 30)
    memory = shared.numpy().copy()
    x, basis = torch.from_numpy(memory), open_basis("identity", module, 0, seed=0)
    for factor in (1.0, 100.0):
        memory *= factor
        found = clipped_mean(module, theta, basis, x, y, clip=0.1, denominator=30)
        assert torch.allclose(found, expected(module, theta, basis, x, y, 0.1), atol=1e-6)


def test_norms_of_records_are_asked_for_where_they_are_those_of_the_inputs_of_a_whole_model() -> None:
    module = models.seeded(models.perceptron)
    theta, (x, y) = models.flat(module)[None], models.records((3, 4), 4, 5)
    asked: list[str] = []
    for kind in KINDS:
        known = partial(lambda kind: (asked.append(kind), squares(x[None].flatten(2)))[1], kind)
        inputs = (module, theta, [open_basis(kind, module, 77, seed=0)], x[None], y[None])
        told = clipped_means(*inputs, clip=0.1, denominator=5, squares=known)
        assert torch.equal(told, clipped_means(*inputs, clip=0.1, denominator=5))
    assert asked == ["identity"]


@pytest.mark.parametrize(
    ("before", "shape"),
    [((nn.Flatten(), nn.Tanh()), (3, 4)), ((nn.Tanh(),), (12,)), ((nn.Tanh(), nn.Flatten()), (3, 4))],
)
def test_norms_of_records_are_not_taken_for_those_of_a_layer_that_sees_something_else(
    before: tuple[nn.Module, ...], shape: tuple[int, ...]
) -> None:
    module = models.seeded(lambda: nn.Sequential(*before, nn.Linear(12, 4)))
    theta, (x, y) = models.flat(module), models.records(shape, 4, 30)
    basis = open_basis("identity", module, 0, seed=0)
    found = clipped_mean(module, theta, basis, 5 * x, y, clip=0.1, denominator=30)
    assert torch.allclose(found, expected(module, theta, basis, 5 * x, y, 0.1), atol=1e-6)
