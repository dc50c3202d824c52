"""A release states what it is once: the same Δ and σ bound the statistic, noise it and are charged."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from sottovoce.blueprint import Blueprint, draw
from sottovoce.channel import ChannelError, open_channel
from sottovoce.data import Facts, Records
from sottovoce.errors import SottovoceError
from sottovoce.privacy import accounting
from sottovoce.release import Release, spending
from tests.small import small_plan

SECRET = bytes(range(32))
FACTS = Facts((1, 28, 28), 10)
CONTEXTS = [{"context": "moments"}, {"context": "labels"}, {"context": "predictions", "context_round": 2}]


def blueprint(**changes: object) -> Blueprint:
    return draw(small_plan(gradient_records=40, context_records=40, **changes), FACTS)


def some_records(count: int = 40, seed: int = 0, scale: float = 1.0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(count, 1, 28, 28, generator=generator)
    return Records(x, torch.randint(10, (count,), generator=generator))


def neighbours(records: Records) -> list[Records]:
    """The records with the first one replaced by something else, extremes included."""
    found = []
    for value, label in ((0.0, 1), (1e6, 2), (-1e6, 3), (float("nan"), 4)):
        x, y = records.x.clone(), records.y.clone()
        x[0], y[0] = value, label
        found.append(Records(x, y))
    return found


@pytest.mark.parametrize("changes", CONTEXTS, ids=lambda changes: changes["context"])
@pytest.mark.parametrize("kind", ["context", "gradient"])
def test_replacing_one_record_moves_the_statistic_by_at_most_the_stated_sensitivity(
    kind: str, changes: dict[str, object]
) -> None:
    made = blueprint(**changes)
    release = made.releases[kind]
    model = torch.full((made.coefficients,), 0.01)
    coefficients = model if kind == "gradient" or made.plan.context_traits.uses_model else None
    records = some_records(scale=3.0)
    statistic = release.statistic(records, coefficients)
    assert statistic.shape == (release.size,)
    moved = [
        float((statistic - release.statistic(n, coefficients)).double().norm()) for n in neighbours(records)
    ]
    assert 0 < max(moved) <= release.sensitivity * (1 + 1e-12)  # rounding of a float64 sum


@pytest.mark.parametrize("kind", ["context", "gradient"])
def test_the_charge_states_the_noise_that_the_channel_adds(kind: str) -> None:
    made = blueprint()
    release = made.releases[kind]
    charge = release.charge("run", "me", 3)
    assert (charge.kind, charge.round, charge.client) == (kind, 3, "me")
    assert charge.sensitivity == release.sensitivity
    assert charge.sigma == release.sigma == release.channel.sigma
    assert charge.mu_squared == release.mu_squared
    errors = [
        release.decode(
            release.encode(np.zeros(release.size), secret=SECRET, stream=(kind, i)),
            secret=SECRET,
            stream=(kind, i),
        )
        for i in range(20000 // release.size)
    ]
    # A mean of about 20,000 squares: eight standard deviations.
    assert np.mean(np.square(errors)) == pytest.approx(charge.sigma**2, rel=0.08)


def test_no_two_releases_share_their_randomness() -> None:
    releases = blueprint().releases.values()
    streams = [
        release.stream(run, client, number)
        for release, run, client, number in itertools.product(
            releases, ("run", "other"), ("participant-0", "participant-1"), (0, 1, 10)
        )
    ]
    assert len(set(streams)) == len(streams) == 24
    release = blueprint().releases["gradient"]
    message = release.encode(np.zeros(release.size), secret=SECRET, stream=release.stream("run", "me", 1))
    for stream in (release.stream("run", "me", 2), release.stream("run", "you", 1)):
        with pytest.raises(ChannelError, match="tag"):
            release.decode(message, secret=SECRET, stream=stream)


def test_seeded_noise_repeats_and_other_noise_does_not() -> None:
    def message(seed: int | None) -> bytes:
        release = blueprint().releases["gradient"]
        return release.encode(np.zeros(release.size), secret=SECRET, stream=("s",), seed=seed)

    assert message(1) == message(1) != message(2)
    assert message(None) != message(None)


@pytest.mark.parametrize("accounting_name", ["exact", "rdp"])
def test_the_busiest_participant_spends_the_target_and_not_more(accounting_name: str) -> None:
    made = blueprint(accounting=accounting_name, epsilon=3.0, context_noise=0.5)
    spent = spending(made.releases, made.participant_counts(made.releases_max))
    assert accounting.epsilon(spent, made.plan.delta, accounting_name) == pytest.approx(3.0, rel=1e-6)
    assert made.budget.covers(spent)
    assert made.releases["context"].sigma == pytest.approx(0.5 * made.releases["gradient"].sigma)


def test_a_public_context_is_not_released_and_controls_have_the_noise_of_those_that_pay() -> None:
    assert set(blueprint(context="public").releases) == {"gradient"}
    assert blueprint(context="public").sigma == blueprint(context="moments").sigma
    assert blueprint(method="global").sigma < blueprint(context="moments").sigma


def test_without_noise_nothing_is_added_and_nothing_charged() -> None:
    release = blueprint(epsilon=float("inf")).releases["gradient"]
    assert release.place == "nowhere"
    assert release.mu_squared == 0.0
    u = np.linspace(-1, 1, release.size)
    message = release.encode(u, secret=SECRET, stream=("s",))
    assert np.allclose(release.decode(message, secret=SECRET, stream=("s",)), u)
    assert blueprint().releases["gradient"].place == "client"


def test_no_message_is_longer_than_the_release_says() -> None:
    for channel in ("direct", "direct-q12", "polar"):
        release: Release = blueprint(channel=channel).releases["gradient"]
        wild = np.random.default_rng(0).normal(size=release.size) * 50 * release.sigma
        assert len(release.encode(wild, secret=SECRET, stream=("s",))) <= release.largest_message


def test_an_unknown_kind_or_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        blueprint(context="public").releases["context"]
    with pytest.raises(SottovoceError, match="did you mean 'polar'"):
        open_channel("polr", size=3, sigma=1.0)
    with pytest.raises(SottovoceError, match="did you mean 'moments'"):
        blueprint(context="moment")
