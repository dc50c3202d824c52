"""The server's state: contexts in, releases in, coefficients out, and the same again after a restart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sottovoce.channel.wire import SeededRandomness
from sottovoce.data import Facts, load
from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan
from sottovoce.run.prepare import prepare
from sottovoce.training.generator import SharedCoefficients
from sottovoce.training.optimizers import Descent
from sottovoce.training.server import Server, update_generator
from tests.small import built, small_plan


def server(**changes: object) -> Server:
    return Server(built(small_plan(gradient_records=40, **changes), Facts((1, 28, 28), 10)))


def contexts(made: Server, seed: int = 0) -> np.ndarray:
    size = (made.blueprint.plan.participants, made.blueprint.statistic.size)
    return np.random.default_rng(seed).normal(0.3, 0.2, size)


def with_contexts(made: Server) -> Server:
    for phase in made.blueprint.once:
        made.model_of(phase)
    for participant, context in enumerate(contexts(made)):
        made.receive_context(participant, context)
    made.close_contexts()
    return made


def releases(made: Server, seed: int) -> dict[int, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {participant: generator.normal(size=made.blueprint.coefficients) for participant in (0, 2, 4)}


def test_training_starts_at_the_reference_for_everybody() -> None:
    made = with_contexts(server())
    assert not made.coefficients(range(6)).any()


def test_contexts_are_due_until_all_are_in_and_never_for_a_public_one() -> None:
    made = server()
    assert made.owes_context(0)
    made.receive_context(0, contexts(made)[0])
    assert (made.owes_context(0), made.owes_context(1)) == (False, True)
    assert not with_contexts(made).owes_context(1)
    assert not server(context="public").owes_context(0)
    late = server(context="predictions", context_round=2)
    assert not late.owes_context(0)
    late.receive_round({})
    assert late.owes_context(0)


def test_a_phase_is_open_until_its_releases_are_in_or_its_round_is_over() -> None:
    made = server(context="predictions", context_round=2)
    first, contexts_phase, second = (p for p in made.blueprint.phases[:4] if p.by != "future")
    assert [made.has(phase) for phase in (first, contexts_phase, second)] == [False, False, False]
    made.receive_round({})
    assert [made.has(phase) for phase in (first, contexts_phase, second)] == [True, False, False]
    made.receive("context", 0, contexts(made)[0])
    assert not made.has(contexts_phase)
    made.receive_round({})  # who was not there in time is not waited for
    assert [made.has(phase) for phase in (first, contexts_phase, second)] == [True, True, True]
    early = with_contexts(server(context="predictions", context_round=1))
    assert early.has(early.blueprint.once[0])


def test_confusions_are_received_once_and_made_with_the_last_shared_model() -> None:
    shares = {"method": "blend", "context": "shares", "context_share": 0.05, "learning_rate": 0.5}
    made = server(**shares)
    _, confusions = made.blueprint.once
    assert not made.has(confusions)
    model = made.model_of(confusions)
    assert model is not None
    assert model.equal(made.shared_coefficients())
    made.receive("confusion", 1, np.eye(10).ravel() / 10)
    assert made.has(confusions)
    assert made.has_confusion


def test_a_step_on_shared_coefficients_is_plain_descent_on_the_mean_release() -> None:
    generator = SharedCoefficients(5)
    descent = Descent(generator, 0.5, 0.0)
    given = torch.randn(3, 5)
    gain = update_generator(generator, descent, torch.ones(3, 2), given)
    assert torch.allclose(generator.shared.detach(), -0.5 * given.mean(dim=0), atol=1e-6)
    assert 0 < gain <= 3.0


def test_the_order_in_which_releases_arrive_changes_nothing() -> None:
    one, two = with_contexts(server()), with_contexts(server())
    given = releases(one, 1)
    one.receive_round(given)
    two.receive_round(dict(reversed(given.items())))
    assert torch.equal(one.coefficients(range(6)), two.coefficients(range(6)))


def test_a_round_in_which_nobody_releases_counts_and_moves_nothing() -> None:
    made = with_contexts(server())
    before = made.coefficients(range(6))
    assert made.receive_round({}) is None
    assert made.round == 1
    assert torch.equal(made.coefficients(range(6)), before)


@pytest.mark.parametrize("changes", [{}, {"momentum": 0.9}, {"averaging": 0.5}, {"context": "standardized"}])
def test_a_server_that_continues_from_its_state_gives_the_same_bits(changes: dict[str, object]) -> None:
    steady, stopped = with_contexts(server(**changes)), with_contexts(server(**changes))
    for number in range(4):
        steady.receive_round(releases(steady, number))
        stopped.receive_round(releases(stopped, number))
        fresh = server(**changes)
        fresh.load_state(stopped.state())
        stopped = fresh
    steady.finish()
    stopped.finish()
    assert steady.state().keys() == stopped.state().keys()
    for name, value in steady.state().items():
        assert torch.equal(value, stopped.state()[name]), name


def test_the_state_of_another_plan_is_refused_in_one_line() -> None:
    with pytest.raises(SottovoceError, match="does not belong to this plan") as error:
        server(hidden=7).load_state(server().state())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("context", ["standardized", "predictions"])
def test_rescaled_contexts_have_about_unit_norm_and_noise_is_not_blown_up(context: str) -> None:
    made = with_contexts(server(context=context, context_round=int(context == "predictions")))
    inputs = made.inputs(range(6))
    assert inputs.mean(dim=0).abs().max() < 1e-5
    assert 0.5 < float(inputs.norm(dim=1).mean()) < 1.5
    calm = server(context=context, context_round=int(context == "predictions"))
    for participant in range(6):
        calm.receive_context(participant, contexts(calm)[0] + 1e-9 * participant)
    calm.close_contexts()
    assert calm.inputs(range(6)).norm(dim=1).max() < 1e-3


def test_a_future_client_is_given_what_a_participant_with_its_context_has() -> None:
    made = with_contexts(server(context="standardized"))
    for number in range(3):
        made.receive_round(releases(made, number))
    known = contexts(made)[2]
    assert torch.allclose(made.personalize(known), made.coefficients([2])[0], atol=1e-6)
    assert not torch.allclose(made.personalize(None), made.coefficients([2])[0], atol=1e-3)


def test_averaging_ends_at_the_mean_of_the_last_generators() -> None:
    made, seen = with_contexts(server(averaging=0.5)), []
    for number in range(4):
        made.receive_round(releases(made, number))
        seen.append(made.generator.weight.detach().clone())
    made.finish()
    assert torch.allclose(made.generator.weight.detach(), (seen[2] + seen[3]) / 2, atol=1e-6)


def test_own_parts_of_a_table_are_shrunk_once_after_the_last_round() -> None:
    """Releases of noise alone: what the recipe keeps of own parts in any case is all that stays."""
    records = load("heart")
    plan = Plan.load(overrides={"preset": "best", "dataset": "heart", "seeded": True, "rounds": 10})
    blueprint, noise = prepare(plan, records).blueprint, np.random.default_rng(3)
    made, again = Server(blueprint), Server(blueprint)
    for _ in range(10):
        sigmas = [blueprint.releases_of(i)["gradient"].sigma for i in range(4)]
        made.receive_round({i: s * noise.normal(size=blueprint.coefficients) for i, s in enumerate(sigmas)})
    means = made._descent.final_means()
    before = [float(means[f"own.{i}"].norm()) for i in range(4)]
    made.finish()
    after = [float(made.generator.own[str(i)].detach().norm()) for i in range(4)]
    assert all(now < 0.9 * then for now, then in zip(after, before, strict=True))
    again.load_state(made.state())
    again.finish()
    assert torch.equal(made.coefficients(range(4)), again.coefficients(range(4)))


SHARED = {
    **{"method": "blend", "noise": "shared", "context": "public", "individual": 0.0, "weighting": 1.0},
    **{"channel": "integers", "clients_per_round": 6, "learning_rate": 0.25},
}


@pytest.mark.parametrize("came", [range(6), range(5)])
def test_a_sum_of_shares_moves_the_generator_over_the_planned_records_whoever_came(came: range) -> None:
    made = server(**SHARED)
    sharing = made.blueprint.sharing
    assert sharing is not None
    mean = np.random.default_rng(2).normal(size=made.blueprint.coefficients)
    mean *= 0.1 / np.linalg.norm(mean)
    counted = made.blueprint.counted
    total = sum(sharing.share(mean, counted[i], SeededRandomness(bytes([i]))) for i in came)
    assert isinstance(total, np.ndarray)
    update = made.share_out(total, list(came))
    assert update.participants == tuple(came)
    step = sharing.step / sharing.records
    assert float(update.columns.norm()) == pytest.approx(float(np.linalg.norm(total)) * step, rel=1e-5)
    made.receive_update(update)
    assert torch.allclose(made.generator.shared.detach(), -0.25 * update.columns[:, 0], atol=1e-7)
    # Five of six clients: five sixths of the mean, and the noise of five shares.
    projected = float(update.columns[:, 0].double().numpy() @ mean) / float(mean @ mean)
    noise = 8 * len(came) ** 0.5 * step / float(np.linalg.norm(mean))
    assert abs(projected - len(came) / 6) < 5 * noise


def test_a_sum_that_cannot_be_one_is_thrown_away_and_counts_as_a_round() -> None:
    made = server(**SHARED)
    update = made.share_out(np.full(made.blueprint.coefficients, 2**15 - 1), range(6))
    assert update.participants == ()
    made.receive_update(update)
    assert made.round == 1
    assert not made.generator.shared.any()


def test_a_share_alone_moves_nothing() -> None:
    made = server(**SHARED)
    with pytest.raises(SottovoceError, match="noise=shared are not private"):
        made.receive_round({0: np.zeros(made.blueprint.coefficients)})
