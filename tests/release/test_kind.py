"""A release states what it is once: the same Δ and σ bound the statistic, noise it and are charged."""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from sottovoce.channel import ChannelError
from sottovoce.channel.direct import Integers
from sottovoce.channel.wire import SeededRandomness, SystemRandomness
from sottovoce.data import Facts, Records
from sottovoce.errors import SottovoceError
from sottovoce.privacy import accounting
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.kind import Release, server_randomness, spending
from sottovoce.release.places import IMPOSSIBLE
from sottovoce.release.places.shared import Shares
from sottovoce.training.server import class_priors
from tests.small import built, small_plan

SECRET = bytes(range(32))
FACTS = Facts((1, 28, 28), 10)
CONTEXTS = [{"context": "moments"}, {"context": "labels"}, {"context": "predictions", "context_round": 2}]


def blueprint(**changes: object) -> Blueprint:
    return built(small_plan(gradient_records=40, **changes), Facts((1, 28, 28), 10))


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
    records = some_records(40 if kind == "gradient" else 50, scale=3.0)
    statistic = release.statistic(records, coefficients)
    assert statistic.shape == (release.size,)
    moved = [
        float((statistic - release.statistic(n, coefficients)).double().norm()) for n in neighbours(records)
    ]
    assert 0 < max(moved) <= release.sensitivity * (1 + 1e-12)  # rounding of a float64 sum
    left_out = moved[-1]  # a record that is not finite contributes zero
    assert 0 < left_out <= release.removal * (1 + 1e-12)
    assert release.removal < release.sensitivity


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
    made = blueprint(accounting=accounting_name, epsilon=3.0, context="labels", context_noise=0.5)
    spent = spending(made.releases, made.participant_counts(made.releases_max))
    assert accounting.epsilon(spent, made.plan.delta, accounting_name) == pytest.approx(3.0, rel=1e-6)
    assert made.budget.covers(spent)
    assert made.releases["context"].sigma == pytest.approx(0.5 * made.releases["gradient"].sigma)


def test_a_public_context_is_not_released_and_controls_have_the_noise_of_those_that_pay() -> None:
    assert set(blueprint(context="public").releases) == {"gradient"}
    assert blueprint(context="public").sigma == blueprint(context="moments").sigma
    assert blueprint(method="global").sigma < blueprint(context="moments").sigma


def test_without_noise_nothing_is_added_and_nothing_charged() -> None:
    release, noisy = (blueprint(epsilon=e).releases["gradient"] for e in (float("inf"), 8.0))
    assert (release.place, release.mu_squared, release.sigma) == ("nowhere", 0.0, 0.0)
    assert noisy.place == "client"
    assert noisy.mu_squared == pytest.approx((noisy.sensitivity / noisy.sigma) ** 2)
    longest = np.full(release.size, noisy.radius / math.sqrt(release.size))
    assert release.plausible(longest)
    assert not release.plausible(1.001 * longest)
    u = np.linspace(-1, 1, release.size)
    message = release.encode(u, secret=SECRET, stream=("s",))
    assert np.allclose(release.decode(message, secret=SECRET, stream=("s",)), u)


def test_no_message_is_longer_than_the_release_says() -> None:
    for channel in ("direct", "direct-q12", "polar", "integers"):
        release: Release = blueprint(channel=channel).releases["gradient"]
        wild = np.random.default_rng(0).normal(size=release.size) * 50 * release.sigma
        assert len(release.encode(wild, secret=SECRET, stream=("s",))) <= release.largest_message


@pytest.mark.parametrize("size", [1, 2, 10, 256, 16_384, 121_182])
@pytest.mark.parametrize("ratio", [0.0, 0.1, 10.0])
def test_an_honest_release_is_refused_with_a_probability_of_1e_12_at_most(size: int, ratio: float) -> None:
    """‖u + n‖² is σ² times a noncentral χ², largest in law where ‖u‖ is; |y| ≤ |u| + |n| bounds its tail."""

    class Law:
        sigma, rounding = 0.3, 0.0

        def __init__(self) -> None:
            self.size = size

    release = Release("gradient", None, 1.0, ratio * Law.sigma * math.sqrt(size), Law(), removal=0.5)  # type: ignore[arg-type]
    noise = (release.largest_norm - release.radius) / Law.sigma
    refused = stats.chi2.sf(noise**2, size)
    assert refused <= IMPOSSIBLE
    assert release.largest_norm <= release.radius + Law.sigma * 1.2 * math.sqrt(stats.chi2.isf(1e-12, size))


@pytest.mark.parametrize("channel", ["direct", "direct-q12", "lrsuq", "polar", "integers"])
@pytest.mark.parametrize("kind", ["context", "gradient"])
def test_every_channel_keeps_within_the_law_and_a_ruinous_release_does_not(channel: str, kind: str) -> None:
    release = blueprint(channel=channel).releases[kind]  # type: ignore[index]
    for number in range(20):
        u = np.zeros(release.size)
        u[0] = release.radius
        stream = release.stream("run", "participant-0", number)
        message = release.encode(u, secret=SECRET, stream=stream, seed=number)
        y = release.decode(message, secret=SECRET, stream=stream)
        assert release.plausible(y)
        assert np.linalg.norm(y) > 0.2 * release.largest_norm
    for ruinous in (3e38, release.largest_norm * (1 + 1e-9), math.inf, math.nan):
        y = np.zeros(release.size)
        y[-1] = ruinous
        assert not release.plausible(y)


@pytest.mark.parametrize("context", ["moments", "labels", "predictions"])
def test_no_statistic_is_longer_than_its_radius(context: str) -> None:
    made = blueprint(context=context, context_round=2)
    generator = torch.Generator().manual_seed(0)
    for scale in (0.0, 1.0, 1e6):
        x = scale * torch.randn(50, 1, 28, 28, generator=generator)
        records, start = Records(x, torch.zeros(50).long()), torch.zeros(made.coefficients)
        for kind, release in made.releases.items():
            mine = records[:40] if kind == "gradient" else records
            assert float(release.statistic(mine, start).norm()) <= release.radius * (1 + 1e-12)
    assert made.releases["gradient"].radius == made.plan.clip
    assert blueprint(clip=0.25).releases["gradient"].radius == 0.25


def test_a_quarter_of_the_clip_bound_halves_nothing_but_its_own_release() -> None:
    """σ follows the clip bound, and so does what is charged."""
    one, small = blueprint(context="labels"), blueprint(context="labels", clip=0.25)
    assert small.releases["gradient"].sensitivity == pytest.approx(2 * 0.25 / 40)
    assert one.releases["context"].sensitivity == small.releases["context"].sensitivity
    counts = one.participant_counts(one.releases_max)
    assert one.epsilon(counts) == pytest.approx(one.plan.epsilon)
    assert small.epsilon(counts) == pytest.approx(one.plan.epsilon)


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_the_noise_of_contexts_is_part_of_the_price(noise: float) -> None:
    made = blueprint(context="labels", context_noise=noise)
    context, gradient = made.releases["context"], made.releases["gradient"]
    assert context.sigma == pytest.approx(noise * gradient.sigma) == made.sigma_context
    assert context.mu_squared == pytest.approx((context.sensitivity / context.sigma) ** 2)
    spent = context.mu_squared + made.releases_max * gradient.mu_squared
    assert made.epsilon({"context": 1, "gradient": made.releases_max}) == pytest.approx(made.plan.epsilon)
    assert spent > made.epsilon({}) == 0.0


def test_seeded_noise_depends_on_client_round_kind_and_seed() -> None:
    release = blueprint().releases["gradient"]
    streams = [
        release.stream("run", "participant-0", 1),
        release.stream("run", "participant-1", 1),
        release.stream("run", "participant-0", 2),
        release.stream("other", "participant-0", 1),
    ]
    u = np.zeros(release.size)

    def noise(stream: tuple[str | int, ...], seed: int) -> np.ndarray:
        return release.decode(
            blueprint().releases["gradient"].encode(u, secret=SECRET, stream=stream, seed=seed),
            secret=SECRET,
            stream=stream,
        )

    drawn = [noise(stream, 41) for stream in streams] + [noise(streams[0], 42)]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            correlation = float(np.corrcoef(one, other)[0, 1])
            assert abs(correlation) < 6 / math.sqrt(release.size)
    assert np.array_equal(noise(streams[0], 41), drawn[0])
    context = blueprint().releases["context"].stream("run", "participant-0", 1)
    assert context != streams[0]


def test_a_charge_states_what_the_release_is() -> None:
    release = blueprint(context_noise=2.0).releases["context"]
    charge = release.charge("run", "own records", 3)
    assert (charge.run, charge.client, charge.kind, charge.round) == ("run", "own records", "context", 3)
    assert (charge.sensitivity, charge.sigma) == (release.sensitivity, release.sigma)
    assert release.stream("run", "participant-3", 3) == ("run", "participant-3", "context", 3)


def test_a_message_has_room_for_its_numbers_and_not_for_much_more() -> None:
    for channel in ("direct", "direct-q12", "polar", "integers"):
        for release in blueprint(channel=channel).releases.values():
            stream = release.stream("run", "participant-0", 0)
            message = release.encode(np.zeros(release.size), secret=SECRET, stream=stream)
            assert len(message) <= release.largest_message == 8 * release.size + 4096


def test_seeded_noise_follows_from_seed_and_name_of_a_release_and_of_a_round() -> None:
    """So that any engine, and any later version, repeats a seeded run."""
    release = blueprint().releases["gradient"]
    stream, u = release.stream("run", "participant-0", 1), np.zeros(release.size)
    private = SeededRandomness(hashlib.sha256(f"41:{stream!r}".encode()).digest())
    expected = release.channel.encode(u, secret=SECRET, stream=stream, private=private)
    assert blueprint().releases["gradient"].encode(u, secret=SECRET, stream=stream, seed=41) == expected
    plan = blueprint(seed=43).plan
    name = "43:('run', 'server', 'update', 5)"
    expected_noise = SeededRandomness(hashlib.sha256(name.encode()).digest()).normal(8)
    assert np.array_equal(server_randomness(plan, "run", 5).normal(8), expected_noise)
    assert isinstance(server_randomness(plan.replace(seeded=False), "run", 5), SystemRandomness)


def test_a_release_of_exactly_the_largest_norm_is_plausible() -> None:
    release = blueprint().releases["gradient"]
    y = np.zeros(release.size)
    y[0] = release.largest_norm
    assert release.plausible(y)
    y[0] = math.nextafter(release.largest_norm, math.inf)
    assert not release.plausible(y)


def test_a_model_is_its_reference_plus_what_its_coefficients_lift() -> None:
    made = blueprint()
    a = torch.linspace(-1, 1, made.coefficients)
    assert torch.equal(made.theta(a), made.model.reference + made.basis.lift(a))
    assert not torch.equal(made.theta(a), made.model.reference)


def test_a_removed_record_is_charged_with_half_the_gradients_sensitivity_and_its_own_of_contexts() -> None:
    made = blueprint(context="labels")
    releases, counts = made.releases, {"gradient": 3, "context": 1}
    context, gradient = releases["context"], releases["gradient"]
    assert context.removal == pytest.approx(context.sensitivity / math.sqrt(2))  # one corner of the simplex
    expected = 3 * gradient.mu_squared / 4 + context.mu_squared / 2
    assert spending(releases, counts, removal=True) == pytest.approx(expected, rel=1e-12)
    alone = spending(releases, {"gradient": 2, "context": 0}, removal=True)
    assert alone == pytest.approx(gradient.mu_squared / 2)


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_all_releases_together_stay_below_the_budget_by_more_than_their_sums_can_round(share: float) -> None:
    """Whoever adds charges up, one by one and in any order, does not pass ε without any slack of a ledger."""
    made = blueprint(context="labels", context_share=share)
    allowed = accounting.mu_squared(made.plan.epsilon, made.plan.delta, made.plan.accounting)
    spent = spending(made.releases_of(0), made.participant_counts(made.releases_max))
    assert allowed * (1 - 1e-11) < spent < allowed * (1 - 1e-12)


def test_without_privacy_the_server_adds_no_noise_either() -> None:
    changes = {"method": "blend", "context": "labels", "context_share": 0.05, "individual": 0.2}
    release = blueprint(noise="server", epsilon=math.inf, **changes).releases_of(0)["gradient"]
    assert (release.sigma, release.place) == (0.0, "nowhere")


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_integers_charge_the_rounding_of_their_centres_and_spend_no_more(share: float) -> None:
    """Twelve thousand roundings to 24 bits move two statistics apart, by more than a ledger's slack."""
    plain, made = (
        blueprint(context="labels", context_share=share, channel=channel, coefficients=0)
        for channel in ("direct", "integers")
    )
    for kind, release in made.releases_of(0).items():
        channel, other = release.channel, plain.releases_of(0)[kind]
        assert isinstance(channel, Integers)
        assert release.sensitivity == other.sensitivity + channel.widening
        assert channel.widening == channel.step * math.sqrt(release.size) * 2**-24
        assert release.mu_squared == pytest.approx(other.mu_squared, rel=1e-12)
        assert 1 < release.sigma / other.sigma < 1 + 1e-3
    gradient = made.releases_of(0)["gradient"]
    assert (gradient.sensitivity / gradient.channel.sigma) ** 2 > 1.000001 * (
        plain.releases_of(0)["gradient"].sensitivity / gradient.channel.sigma
    ) ** 2
    counts = made.participant_counts(made.releases_max)
    assert made.epsilon(counts, 0) == pytest.approx(made.plan.epsilon, rel=1e-9)
    assert made.budget.covers(spending(made.releases_of(0), counts))


def test_integers_refuse_a_statistic_that_their_rounding_would_drown() -> None:
    with pytest.raises(SottovoceError, match="cannot carry so small a statistic"):
        blueprint(channel="integers", epsilon=1e-6, delta=1e-9, rounds=4000).releases_of(0)


SHARED = {
    **{"method": "blend", "noise": "shared", "context": "labels", "context_share": 0.05, "individual": 0.0},
    **{"weighting": 1.0, "channel": "integers", "clients_per_round": 6},
}


@pytest.mark.parametrize("sizes", [(40,) * 6, (40, 900, 7, 300, 40, 5)])
def test_one_record_moves_the_centres_of_a_share_by_what_is_charged_at_most(sizes: tuple[int, ...]) -> None:
    made = replace(blueprint(**SHARED), sizes=sizes)
    for participant in (0, 2):
        release, size = made.releases_of(participant)["gradient"], sizes[participant]
        channel = release.channel
        assert isinstance(channel, Shares)
        assert channel.sharing == made.sharing
        assert release.place == "shared"
        charge = release.charge("run", "client", 1)
        assert (charge.place, charge.sensitivity, charge.sigma) == (
            "shared",
            channel.sharing.sensitivity,
            channel.sharing.sigma,
        )
        records, model = some_records(size, scale=3.0), torch.full((made.coefficients,), 0.01)

        def centres(
            given: Records, size: int = size, release: Release = release, a: torch.Tensor = model
        ) -> np.ndarray:
            assert isinstance(release.channel, Shares)
            counted = made.counted[made.sizes.index(size)]
            return release.channel.sharing._rotated(release.statistic(given, a).numpy() * counted)

        step = channel.sharing.step / channel.sharing.records
        moved = [float(np.linalg.norm(centres(records) - centres(n))) * step for n in neighbours(records)]
        assert 0 < max(moved) <= release.sensitivity
        assert moved[-1] <= release.removal  # a record that is not finite
        if size == 40:
            assert max(moved) > 0.3 * release.sensitivity


def test_shared_noise_is_the_same_for_all_clients_and_spends_the_budget() -> None:
    made = replace(blueprint(**SHARED), sizes=(40, 900, 7, 300, 40, 5))
    releases = [made.releases_of(participant)["gradient"] for participant in range(6)]
    assert len({(release.sensitivity, release.sigma) for release in releases}) == 1
    for participant in range(6):
        counts = made.participant_counts(made.releases_max)
        assert made.epsilon(counts, participant) == pytest.approx(made.plan.epsilon, rel=1e-9)
        assert made.budget.covers(spending(made.releases_of(participant), counts))
    assert made.sharing is not None
    assert made.sharing.total > made.sigma


def test_gradients_at_an_own_part_without_noise_would_move_a_share_by_more_than_is_charged() -> None:
    """Why own parts are refused: one record moves the own part, and with it all other records' gradients."""
    made = blueprint(**SHARED)
    release, records = made.releases_of(0)["gradient"], some_records(40, scale=3.0)
    start = torch.zeros(made.coefficients)

    def own(given: Records) -> torch.Tensor:
        """Moved by the raw gradients of two rounds, as "it never leaves the client" would have it."""
        part = start
        for _ in range(2):
            part = part - 200 * release.statistic(given, part).float()
        return part

    def moved(other: Records, at: torch.Tensor, at_other: torch.Tensor) -> float:
        difference = release.statistic(records, at) - release.statistic(other, at_other)
        return 40 * float(difference.norm()) / made.sharing.records  # type: ignore[union-attr]

    published = own(some_records(40, seed=5))  # made of anything but these records: charged releases, say
    same = [moved(other, published, published) for other in neighbours(records)]
    trapped = [moved(other, own(records), own(other)) for other in neighbours(records)]
    assert max(same) <= release.sensitivity
    assert max(trapped) > 2 * release.sensitivity
    with pytest.raises(SottovoceError, match="set individual=0"):
        blueprint(**{**SHARED, "individual": 0.1})


def test_gradients_at_a_prior_without_noise_would_move_a_share_by_more_than_is_charged() -> None:
    """Why priors come of released shares: one label moves a raw prior, and with it all records' gradients."""
    shares = {"context": "shares", "prior": "context", "model": "linear", "coefficients": 7850}
    made = blueprint(**{**SHARED, **shares})
    release, records = made.releases_of(0)["gradient"], some_records(40, scale=0.01)
    records = replace(records, y=torch.zeros(40, dtype=torch.int64))
    one, other = records.y.clone(), records.y.clone()
    one[0], other[0] = 1, 2
    pair = [replace(records, y=labels) for labels in (one, other)]
    priors = class_priors(made, torch.device("cpu"))
    broadcast = 9 * priors.directions[1]  # a shared model to which class 1 is likely

    def raw(given: Records) -> torch.Tensor:
        counted = torch.bincount(given.y, minlength=10) / len(given.y)
        return broadcast + (counted + 1e-6).log() @ priors.directions

    def moved(at: torch.Tensor, at_other: torch.Tensor) -> float:
        difference = release.statistic(pair[0], at) - release.statistic(pair[1], at_other)
        return 40 * float(difference.norm()) / made.sharing.records  # type: ignore[union-attr]

    released = broadcast + priors.coefficients(torch.full((1, 10), 0.1), torch.tensor([0]))[0]
    assert moved(released, released) <= release.sensitivity
    assert moved(raw(pair[0]), raw(pair[1])) > 10 * release.sensitivity
