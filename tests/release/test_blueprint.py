"""Both ends build the same blueprint from a plan and the facts about records."""

from __future__ import annotations

import pytest
import torch

from sottovoce.data import Facts
from sottovoce.models.architectures import lenet
from sottovoce.release.secrets import client_secret, participant_name, seeded_master
from tests.small import built as built_by
from tests.small import small_plan

FACTS = Facts((1, 28, 28), 10)


def built(**changes: object):
    return built_by(small_plan(gradient_records=40, **changes), FACTS)


def test_two_ends_build_the_same_blueprint() -> None:
    here, there = built(), built()
    assert here.reference_digest == there.reference_digest
    assert (here.schedule == there.schedule).all()
    a = torch.randn(here.coefficients)
    assert torch.equal(here.theta(a), there.theta(a))
    assert here.sigma == there.sigma


def test_another_seed_or_model_is_another_reference() -> None:
    digests = {
        built().reference_digest,
        built(seed=7).reference_digest,
        built(model="lenet").reference_digest,
    }
    assert len(digests) == 3
    module = lenet((1, 28, 28), 10)
    with torch.no_grad():
        other = lenet((1, 28, 28), 10)
        other.load_state_dict(module.state_dict())
        next(other.parameters())[0] += 1e-3
    plan = small_plan(gradient_records=40)
    assert built_by(plan, FACTS, module).reference_digest != built_by(plan, FACTS, other).reference_digest


def test_zero_coefficients_are_the_reference_and_steps_keep_their_length() -> None:
    made = built()
    assert torch.equal(made.theta(torch.zeros(made.coefficients)), made.model.reference)
    a = torch.randn(made.coefficients)
    assert (made.theta(a) - made.model.reference).norm() == pytest.approx(float(a.norm()), rel=1e-5)


def test_methods_that_adapt_every_parameter_release_as_many_numbers() -> None:
    made = built(method="global")
    assert made.coefficients == made.basis.size == 12_730


def test_the_callers_own_module_stays_as_it_was() -> None:
    own = lenet((1, 28, 28), 10).double().train()
    made = built_by(small_plan(gradient_records=40), FACTS, own)
    assert own.training
    assert next(own.parameters()).dtype == torch.float64
    assert made.module is not own


def test_epsilon_grows_with_every_release_and_a_future_client_pays_for_its_context_alone() -> None:
    made = built(context="labels")
    busy = made.epsilon(made.participant_counts(made.releases_max))
    idle = made.epsilon(made.participant_counts(1))
    future = made.epsilon(made.future_counts)
    assert 0 < future < idle < busy == pytest.approx(made.plan.epsilon, rel=1e-6)
    assert built(context="public").future_counts == {}


def test_secrets_of_clients_and_runs_differ() -> None:
    plan = small_plan()
    masters = [seeded_master(plan), seeded_master(plan.replace(seed=7)), bytes(32)]
    secrets = {client_secret(master, participant_name(i)) for master in masters for i in range(3)}
    assert len(secrets) == 9
    assert {len(secret) for secret in secrets} == {32}


@pytest.mark.parametrize("context", ["labels", "shares"])
def test_a_future_client_has_all_of_its_budget_for_its_one_release(context: str) -> None:
    made = built(context=context, context_share=0.05)
    assert made.epsilon(made.future_counts) == pytest.approx(8.0)
    assert made.epsilon(made.participant_counts(made.releases_max), 0) == pytest.approx(8.0)
    assert made.releases["context"].sigma < 0.3 * made.releases_of(0)["context"].sigma
