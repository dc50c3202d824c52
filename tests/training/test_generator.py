from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sottovoce.training.generator import Generator, MeanRegularized, RadialTrunk, open_generator
from sottovoce.training.optimizers import Descent
from sottovoce.training.server import update_generator

START = torch.full((6,), 0.4)


def trained(method: str, hidden: int = 8) -> Generator:
    """A small generator away from its start, in float64."""
    generator = open_generator(method, START, hidden, 2, 12, seed=3).double()
    assert isinstance(generator, Generator)
    torch.manual_seed(0)
    with torch.no_grad():
        generator.weight.normal_()
    return generator


def jacobian(generator: Generator, context: Tensor) -> Tensor:
    """J = ∂a/∂ω for one context, (k, parameters), row by row with autograd."""
    rows = []
    for coefficient in generator(context[None])[0]:
        gradients = torch.autograd.grad(coefficient, list(generator.parameters()), retain_graph=True)
        rows.append(torch.cat([g.reshape(-1) for g in gradients]))
    return torch.stack(rows)


def test_the_update_moves_coefficients_by_the_papers_kernel() -> None:
    generator = trained("factorized")
    contexts = torch.rand(2, 6, dtype=torch.float64)
    first, second = (jacobian(generator, context) for context in contexts)
    kernel = second @ first.T
    h = generator.trunk(contexts).detach()
    weight = generator.weight.detach()

    def hidden_jacobian(context: Tensor) -> Tensor:
        rows = []
        for value in generator.trunk(context[None])[0]:
            gradients = torch.autograd.grad(value, list(generator.trunk.parameters()), retain_graph=True)
            rows.append(torch.cat([g.reshape(-1) for g in gradients]))
        return torch.stack(rows)

    correction = weight @ hidden_jacobian(contexts[1]) @ hidden_jacobian(contexts[0]).T @ weight.T
    expected = float(h[1] @ h[0]) * torch.eye(12, dtype=torch.float64) + correction
    assert torch.allclose(kernel, expected, atol=1e-10)
    assert torch.linalg.matrix_rank(correction) <= 8


def test_one_step_follows_the_jacobian_of_each_client() -> None:
    generator = trained("factorized")
    contexts = torch.rand(2, 6, dtype=torch.float64)
    releases = torch.randn(2, 12, dtype=torch.float64)
    expected = sum(jacobian(generator, c).T @ g for c, g in zip(contexts, releases, strict=True)) / 2
    before = torch.cat([p.detach().reshape(-1).clone() for p in generator.parameters()])
    update_generator(generator, Descent(generator, learning_rate=0.3, momentum=0.0), contexts, releases)
    after = torch.cat([p.detach().reshape(-1) for p in generator.parameters()])
    assert torch.allclose(after, before - 0.3 * expected, atol=1e-12)


@pytest.mark.parametrize("method", ["factorized", "radial", "deep-linear"])
def test_the_effective_gain_is_how_far_a_small_step_moves_coefficients_along_the_releases(
    method: str,
) -> None:
    generator, rate = trained(method), 1e-7
    contexts = torch.rand(3, 6, dtype=torch.float64)
    releases = torch.randn(3, 12, dtype=torch.float64)
    before = generator(contexts).detach()
    descent = Descent(generator, learning_rate=rate, momentum=0.0)
    effective = update_generator(generator, descent, contexts, releases)
    moved = (before - generator(contexts).detach()) * 3 / rate
    assert effective == pytest.approx(float((moved * releases).sum() / releases.square().sum()), rel=1e-4)


def test_the_effective_gain_of_one_client_starts_at_the_norm_of_h() -> None:
    generator = open_generator("factorized", START, 8, 1, 12, seed=3)
    context = torch.rand(1, 6)
    gain = generator.gain(context).item()
    effective = update_generator(generator, Descent(generator, 0.1, 0.0), context, torch.randn(1, 12))
    assert effective == pytest.approx(gain, rel=1e-5)


def test_two_successive_generators_reveal_every_single_release() -> None:
    """Why every release must be private by itself: averaging over the round hides nothing.

    The step of W is −(η/|S|) Σ g̃_i h_iᵀ, and whoever knows the contexts knows the h_i.
    """
    generator = trained("factorized", hidden=100)
    contexts = torch.rand(5, 6, dtype=torch.float64)
    releases = torch.randn(5, 12, dtype=torch.float64)
    before = generator.weight.detach().clone()
    h = generator.trunk(contexts).detach()
    update_generator(generator, Descent(generator, learning_rate=0.1, momentum=0.0), contexts, releases)
    step = (before - generator.weight.detach()) * 5 / 0.1
    recovered = torch.linalg.lstsq(h.T, step.T).solution
    assert torch.allclose(recovered, releases, atol=1e-8)


@pytest.mark.parametrize("method", ["global", "direct", "deep-linear", "factorized", "radial"])
def test_every_generator_starts_at_the_reference_model(method: str) -> None:
    generator = open_generator(method, START, 8, 1, 12, seed=3)
    assert torch.equal(generator(torch.rand(4, 6)), torch.zeros(4, 12))
    assert generator.gain(torch.rand(4, 6)).shape == (4,)


def test_radial_keeps_its_hidden_direction_while_its_norm_evolves() -> None:
    generator = trained("radial")
    assert isinstance(generator.trunk, RadialTrunk)
    context = START.double()[None]
    start = generator.trunk(context).detach()
    descent = Descent(generator, learning_rate=0.005, momentum=0.0)
    for _ in range(5):
        update_generator(generator, descent, context, torch.randn(1, 12, dtype=torch.float64))
    end = generator.trunk(context).detach()
    assert float(torch.cosine_similarity(start, end)) == pytest.approx(1.0, abs=1e-12)
    assert abs(float(end.norm() / start.norm()) - 1) > 0.001


def test_radial_and_factorized_start_with_the_same_gain() -> None:
    factorized, radial = trained("factorized"), trained("radial")
    context = START.double()[None]
    assert torch.allclose(factorized.gain(context), radial.gain(context))


def test_the_trunk_has_the_layers_that_were_asked_for() -> None:
    for layers in (1, 2, 3):
        generator = open_generator("factorized", START, 8, layers, 12, seed=3)
        assert sum(isinstance(m, torch.nn.Linear) for m in generator.modules()) == layers


def mean_regularized(attraction: float) -> MeanRegularized:
    return MeanRegularized(4, attraction)


def stepped(generator: MeanRegularized, releases: Tensor, participants: list[int], steps: int) -> None:
    descent = Descent(generator, learning_rate=0.5, momentum=0.0)
    for _ in range(steps):
        update_generator(generator, descent, torch.ones(len(participants), 2), releases, participants)


def test_mean_regularized_models_move_by_their_own_release_and_towards_their_mean() -> None:
    generator, releases = mean_regularized(0.2), torch.randn(3, 4)
    stepped(generator, releases, [0, 1, 2], steps=1)
    first = generator(torch.ones(3, 2), [0, 1, 2]).detach()
    assert torch.allclose(first, -0.5 * releases)
    stepped(generator, torch.zeros(3, 4), [0, 1, 2], steps=1)
    second = generator(torch.ones(3, 2), [0, 1, 2]).detach()
    assert torch.allclose(second, first - 0.5 * 0.2 * (first - first.mean(dim=0)), atol=1e-6)


def test_mean_regularized_ends_are_every_client_alone_and_one_shared_model() -> None:
    releases = torch.randn(3, 4)
    alone, shared = mean_regularized(0.0), mean_regularized(2.0)
    for generator in (alone, shared):
        stepped(generator, releases, [0, 1, 2], steps=6)
    assert torch.allclose(alone(torch.ones(3, 2), [0, 1, 2]), -3 * releases, atol=1e-5)
    apart = shared(torch.ones(3, 2), [0, 1, 2]) - shared(torch.ones(1, 2))
    assert torch.allclose(apart, -0.5 * (releases - releases.mean(dim=0)), atol=1e-5)  # of the last step


def test_who_has_not_released_has_the_mean_of_the_mean_regularized_models() -> None:
    generator, releases = mean_regularized(0.1), torch.randn(2, 4)
    assert torch.equal(generator(torch.ones(2, 2)), torch.zeros(2, 4))
    stepped(generator, releases, [0, 2], steps=1)
    mean = -0.5 * releases.mean(dim=0)
    for participants in (None, [1]):
        assert torch.allclose(generator(torch.ones(1, 2), participants)[0], mean)


def test_mean_regularized_models_survive_saving_and_loading() -> None:
    generator, again = mean_regularized(0.1), mean_regularized(0.1)
    stepped(generator, torch.randn(2, 4), [0, 2], steps=2)
    again.load_state_dict(generator.state_dict())
    assert torch.equal(generator(torch.ones(2, 2), [0, 2]), again(torch.ones(2, 2), [0, 2]))
