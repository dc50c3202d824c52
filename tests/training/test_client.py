from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.data import ClientRecords, Facts, Records
from sottovoce.errors import SottovoceError
from sottovoce.gradients import clipped_mean
from sottovoce.machine.determinism import beside_others, derived_seed
from sottovoce.privacy import accounting
from sottovoce.privacy.ledger import Budget, Charge, Ledger, Overspent
from sottovoce.release.blueprint import Blueprint
from sottovoce.training.client import Client, release_together
from tests.small import SMALL, built, small_plan

SECRET = bytes(range(32))


def blueprint(**changes: object) -> Blueprint:
    return built(small_plan(gradient_records=40, **changes), Facts((1, 28, 28), 10), SMALL["model"])


def some_records(count: int, seed: int = 0) -> ClientRecords:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 28, 28, generator=generator)
    records = Records(x, torch.randint(10, (count,), generator=generator))
    return ClientRecords(records[:80], records[80:], records[:50])


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite", scope="test") as opened:
        yield opened


def client(ledger: Ledger | None, made: Blueprint, **changes: object) -> Client:
    return Client("participant-0", some_records(100), made, ledger, run="run", secret=SECRET)


def test_no_byte_leaves_before_its_charge_is_in_the_ledger(ledger: Ledger, monkeypatch) -> None:
    def full_disk(*_: object) -> None:
        raise SottovoceError("disk full")

    made = blueprint()
    monkeypatch.setattr(Ledger, "commit_many", full_disk)
    with pytest.raises(SottovoceError, match="disk full"):
        client(ledger, made).release_gradient(1, torch.zeros(made.coefficients))


def several(ledger: Ledger, made: Blueprint, count: int = 4, budget: Budget | None = None) -> list[Client]:
    options: dict[str, Any] = {"run": "run", "secret": SECRET, "budget": budget}
    return [Client(f"participant-{i}", some_records(100, i), made, ledger, **options) for i in range(count)]


def test_clients_together_release_what_each_releases_alone(ledger: Ledger, tmp_path: Path) -> None:
    made = blueprint()
    here = torch.zeros(made.coefficients)
    with Ledger.open(tmp_path / "other.sqlite", scope="test") as other:
        alone = [one.release_gradient(1, here) for one in several(other, blueprint())]
    clients = several(ledger, made)
    stored = clients[2].release_gradient(1, here)
    assert release_together([one.gradient(1, here) for one in clients]) == alone
    assert stored == alone[2]
    assert [ledger.releases(one.name) for one in clients] == [1, 1, 1, 1]


@pytest.mark.parametrize("cores", [1, 3, 4, 5])
def test_clients_are_side_by_side_where_they_are_enough_to_keep_all_cores_busy(
    ledger: Ledger, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: set[bool] = set()
    draft, before = Client._draft, torch.get_num_threads()
    monkeypatch.setattr(Client, "_draft", lambda *asked: (beside.add(beside_others()), draft(*asked))[1])
    made = blueprint()
    try:
        torch.set_num_threads(cores)
        release_together([one.gradient(1, torch.zeros(made.coefficients)) for one in several(ledger, made)])
    finally:
        torch.set_num_threads(before)
    assert beside == {cores in (3, 4)}


def test_if_one_of_them_may_not_release_none_is_charged_and_nothing_leaves(ledger: Ledger) -> None:
    made = blueprint()
    here = torch.zeros(made.coefficients)
    several(ledger, made, 3)[2].release_gradient(1, here)
    one_more = Budget(accounting.epsilon(ledger.spent("participant-2") * 1.5, 1e-5, "exact"), 1e-5, "exact")
    with pytest.raises(Overspent, match="participant-2"):
        release_together([one.gradient(2, here) for one in several(ledger, made, 3, one_more)])
    assert ledger.clients() == ["participant-2"]


def test_every_clients_own_budget_counts_whoever_stands_before_it(ledger: Ledger) -> None:
    made = blueprint()
    half = made.releases["gradient"].mu_squared / 2
    little = Budget(accounting.epsilon(half, 1e-5, "exact"), 1e-5, "exact")
    mixed = [several(ledger, made)[0], several(ledger, made, budget=little)[1]]
    with pytest.raises(Overspent, match="participant-1"):
        release_together([one.gradient(1, torch.zeros(made.coefficients)) for one in mixed])


def test_many_releases_are_one_transaction(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    committed: list[int] = []
    commit = Ledger.commit_many

    def counted(self: Ledger, releases: Sequence[tuple[Charge, bytes]], budget: Budget) -> None:
        committed.append(len(releases))
        commit(self, releases, budget)

    monkeypatch.setattr(Ledger, "commit_many", counted)
    made = blueprint()
    release_together([one.gradient(1, torch.zeros(made.coefficients)) for one in several(ledger, made)])
    assert committed == [4]


def test_every_release_is_charged_with_its_stated_sensitivity_and_noise(ledger: Ledger) -> None:
    made = blueprint()
    sender = client(ledger, made)
    sender.release_context()
    sender.release_gradient(1, torch.zeros(made.coefficients))
    context, gradient = (entry.charge for entry in ledger.charges("participant-0"))
    assert (context.kind, context.sensitivity, context.sigma) == (
        "context",
        math.sqrt(2) / 50,
        made.sigma_context,
    )
    assert (gradient.kind, gradient.sensitivity, gradient.sigma) == ("gradient", 2 / 40, made.sigma)
    assert ledger.spent("participant-0") == pytest.approx(
        (math.sqrt(2) / 50 / made.sigma_context) ** 2 + (2 / 40 / made.sigma) ** 2
    )


def test_a_release_asked_for_again_is_the_stored_message_and_costs_nothing(ledger: Ledger) -> None:
    made = blueprint(seeded=False)
    first = client(ledger, made).release_gradient(1, torch.zeros(made.coefficients))
    spent = ledger.spent("participant-0")
    again = client(ledger, made).release_gradient(1, torch.ones(made.coefficients))
    assert first == again
    assert ledger.spent("participant-0") == spent


def test_unseeded_releases_draw_fresh_noise_and_seeded_ones_repeat(tmp_path) -> None:
    def messages(seeded: bool) -> list[bytes]:
        made, sent = blueprint(seeded=seeded), []
        for name in ("a", "b"):
            with Ledger.open(tmp_path / f"{seeded}-{name}.sqlite", scope="test") as ledger:
                sent.append(client(ledger, made).release_gradient(1, torch.zeros(made.coefficients)))
                made = blueprint(seeded=seeded)
        return sent

    same, other = messages(True)
    assert same == other
    one, two = messages(False)
    assert one != two


def test_a_release_past_the_budget_is_refused_and_not_charged(ledger: Ledger) -> None:
    made = blueprint(rounds=2, clients_per_round=1, participants=6)
    sender = client(ledger, made)
    sender.release_context()
    sender.release_gradient(1, torch.zeros(made.coefficients))
    spent = ledger.spent("participant-0")
    with pytest.raises(Overspent, match="participant-0"):
        sender.release_gradient(2, torch.zeros(made.coefficients))
    assert ledger.spent("participant-0") == spent


def test_what_the_server_decodes_is_the_statistic_plus_noise_of_the_stated_scale(ledger: Ledger) -> None:
    made = blueprint()
    sender = client(ledger, made)
    message = sender.release_gradient(1, torch.zeros(made.coefficients))
    release = made.releases["gradient"]
    stream = release.stream("run", "participant-0", 1)
    decoded = release.decode(message, secret=SECRET, stream=stream)
    assert sender.signal is not None
    error = (decoded - sender.signal) / made.sigma
    # χ² with 800 degrees of freedom: outside these bounds with probability below 1e-6.
    assert 0.77 < float(np.mean(error**2)) < 1.27
    assert np.linalg.norm(sender.signal) <= made.plan.clip


def test_the_records_of_a_round_are_drawn_without_looking_at_them(ledger: Ledger) -> None:
    made = blueprint()
    one = Client("participant-0", some_records(100, seed=1), made, ledger, run="run", secret=SECRET)
    two = Client("participant-0", some_records(100, seed=2), made, ledger, run="run", secret=SECRET)
    for number in (1, 2):
        chosen = [
            [
                int(torch.where((owner._records.train.x == record).flatten(1).all(1))[0])
                for record in owner_records.x
            ]
            for owner, owner_records in (
                (one, one.training_records(number)),
                (two, two.training_records(number)),
            )
        ]
        assert chosen[0] == chosen[1]
        assert len(set(chosen[0])) == 40
    assert not torch.equal(one.training_records(1).x, one.training_records(2).x)


def test_nothing_is_released_without_a_ledger() -> None:
    made = blueprint()
    with pytest.raises(SottovoceError, match="without a ledger"):
        client(None, made).release_gradient(1, torch.zeros(made.coefficients))
    free = blueprint(epsilon=float("inf"))
    assert client(None, free).release_gradient(1, torch.zeros(free.coefficients))


def test_a_context_of_predictions_depends_on_the_model_it_is_given(tmp_path) -> None:
    made = blueprint(context="predictions", context_round=2)
    sent = []
    for shift in (0.0, 1.0):
        with Ledger.open(tmp_path / f"{shift}.sqlite", scope="test") as ledger:
            sender = client(ledger, blueprint(context="predictions", context_round=2))
            sender.release_context(torch.full((made.coefficients,), shift))
            sent.append(sender.signal)
    assert not np.allclose(sent[0], sent[1])
    assert made.releases["context"].sensitivity == pytest.approx(np.sqrt(2) / 50)


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_a_context_of_other_noise_is_charged_for_it_and_all_together_cost_epsilon(
    ledger: Ledger, noise: float
) -> None:
    made = blueprint(
        context="labels", context_noise=noise, rounds=2, clients_per_round=6, participants=6, epsilon=3.0
    )
    assert made.sigma_context == noise * made.sigma == made.releases["context"].sigma
    sender = client(ledger, made)
    message = sender.release_context()
    for number in (1, 2):
        sender.release_gradient(number, torch.zeros(made.coefficients))
    context = next(entry.charge for entry in ledger.charges())
    assert (context.sensitivity, context.sigma) == (made.releases["context"].sensitivity, noise * made.sigma)
    assert ledger.epsilon("participant-0", 1e-5, "exact") == pytest.approx(3.0, rel=1e-6)
    stream = made.releases["context"].stream("run", "participant-0", 0)
    decoded = made.releases["context"].decode(message, secret=SECRET, stream=stream)
    assert sender.signal is not None
    assert decoded.shape == (made.statistic.size,)


def test_a_mean_over_fewer_records_than_agreed_is_over_the_agreed_number(ledger: Ledger) -> None:
    """Dividing by the records that are there would move by more than the sensitivity that is charged."""
    made = built(small_plan(gradient_records=50, clip=1e-3), Facts((1, 28, 28), 10))
    few = some_records(100)
    few = ClientRecords(few.train[:40], few.held_out, few.context)
    sender = Client("participant-0", few, made, ledger, run="run", secret=SECRET)
    with contextlib.suppress(SottovoceError):  # or refused
        sender.release_gradient(1, torch.zeros(made.coefficients))
        assert sender.signal is not None
        assert np.linalg.norm(sender.signal) <= 1e-3 * 40 / 50
    short = ClientRecords(few.train, few.held_out, few.context[:40])
    sender = Client("participant-1", short, made, ledger, run="run", secret=SECRET)
    with contextlib.suppress(SottovoceError):
        sender.release_context()
        full = made.statistic.mean(short.context.x, short.context.y, 50)
        assert np.allclose(sender.signal, full)


def test_a_tiny_clip_bounds_what_leaves_and_what_is_charged(ledger: Ledger) -> None:
    made = blueprint(clip=1e-6)
    sender = client(ledger, made)
    sender.release_gradient(1, torch.zeros(made.coefficients))
    assert sender.signal is not None
    assert 0 < np.linalg.norm(sender.signal) <= 1e-6
    [entry] = ledger.charges()
    assert entry.charge.sensitivity == 2e-6 / 40


def test_too_few_records_count_as_zero_or_are_summed_over_the_fixed_denominator(ledger: Ledger) -> None:
    """The denominators are the plan's m_c and m_g, whatever a client holds: Δ is stated with them."""
    made = blueprint()
    few = some_records(100)
    fewer = ClientRecords(few.train[:20], few.held_out, few.context[:40])
    sender = Client("participant-0", fewer, made, ledger, run="run", secret=SECRET)
    sender.release_context()
    assert sender.signal is not None
    assert not sender.signal.any()
    assert "exactly 50 records, not 40" in sender.faults[0]
    assert ledger.releases("participant-0") == 1
    sender.release_gradient(1, torch.zeros(made.coefficients))
    assert sender.signal is not None
    theta, train = made.theta(torch.zeros(made.coefficients)), fewer.train
    expected = clipped_mean(
        made.module, theta, made.basis, train.x, train.y, clip=made.plan.clip, denominator=40
    )
    assert np.allclose(sender.signal, expected.numpy(), rtol=1e-12, atol=1e-15)
    assert np.linalg.norm(sender.signal) <= made.plan.clip * 20 / 40


SHARED = {
    **{"method": "blend", "individual": 0.0, "weighting": 1.0, "channel": "integers", "context_share": 0.0},
    "clients_per_round": 6,
}


@pytest.mark.parametrize("noise", ["client", "server", "shared"])
@pytest.mark.parametrize("how", ["reading", "statistic", "not finite"])
def test_whatever_fails_gives_a_charged_message_of_the_usual_length_around_zero(
    ledger: Ledger, noise: str, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it fails depends on records: a refusal would be a release that nobody charges."""
    changes = SHARED if noise == "shared" else {"method": "direct"}
    made = blueprint(**changes, context="public", noise=noise)
    zero = torch.zeros(made.coefficients)

    def unreadable() -> ClientRecords:
        raise OSError("the file of patient 7 is gone")

    def failing(*given: object, **options: object) -> torch.Tensor:
        if how == "not finite":
            return torch.full((made.coefficients,), torch.nan)
        raise RuntimeError("the record of patient 7 is odd")

    whole = Client("a", some_records(100), made, ledger, run="run", secret=SECRET, participant=0)
    broken = Client(
        "b",
        unreadable if how == "reading" else some_records(100),
        made,
        ledger,
        run="run",
        secret=SECRET,
        participant=0,
    )
    usual = whole.release_gradient(1, zero)
    if how != "reading":
        monkeypatch.setattr("sottovoce.release.blueprint.clipped_mean", failing)
    message = broken.release_gradient(1, zero)
    assert broken.signal is not None
    assert not broken.signal.any()
    assert len(message) == len(usual)
    charges = {entry.charge.client: entry.charge for entry in ledger.charges()}
    assert charges["a"].sensitivity == charges["b"].sensitivity
    assert (charges["a"].sigma, charges["a"].place) == (charges["b"].sigma, charges["b"].place)
    decoded = made.releases_of(0)["gradient"].decode(
        message, secret=SECRET, stream=("run", "b", "gradient", 1)
    )
    carried = 8 if noise == "shared" else made.releases_of(0)["gradient"].channel.sigma
    # χ² of the coefficients: 6 standard deviations.
    assert abs((decoded**2).sum() / carried**2 / len(decoded) - 1) < 6 * np.sqrt(2 / len(decoded))
    assert broken.release_gradient(1, zero) == message
    assert ("patient 7" in broken.faults[0]) is (how != "not finite")
    assert broken.faults[0] in caplog.text


@pytest.mark.parametrize("clip", [1e-3, 1.0])
def test_no_gradient_is_longer_than_the_clip_bound(ledger: Ledger, clip: float) -> None:
    made = blueprint(clip=clip)
    sender = client(ledger, made)
    sender.release_gradient(1, torch.zeros(made.coefficients))
    assert sender.signal is not None
    assert 0.01 * clip < np.linalg.norm(sender.signal) <= clip
    [entry] = ledger.charges("participant-0")
    assert entry.charge.sensitivity == pytest.approx(2 * clip / 40)


def test_an_account_of_its_own_and_a_budget_of_its_own(ledger: Ledger) -> None:
    made = blueprint()
    small = Budget(epsilon=0.5, delta=1e-5, accounting="exact")
    records = some_records(100)
    own = Client(
        "participant-0", records, made, ledger, run="run", secret=SECRET, account="own records", budget=small
    )
    with pytest.raises(Overspent, match=r"budget of 0\.5"):
        own.release_gradient(1, torch.zeros(made.coefficients))
    assert own.signal is not None
    again = blueprint()  # its channels have used no stream
    large = Client("participant-0", records, again, ledger, run="run", secret=SECRET, account="own records")
    large.release_gradient(1, torch.zeros(made.coefficients))
    assert ledger.clients() == ["own records"]
    stored = ledger.stored("run", "own records", "gradient", 1)
    assert large.release_gradient(1, torch.zeros(made.coefficients)) == stored
    assert large.signal is None  # nothing was computed


def test_what_is_stored_is_what_is_sealed(ledger: Ledger) -> None:
    made = blueprint()
    sender = Client(
        "participant-0", some_records(100), made, ledger, run="run", secret=SECRET,
        seal=lambda message, stream: repr(stream).encode() + bytes(byte ^ 255 for byte in message),
    )  # fmt: skip
    sent = sender.release_context()
    assert sent.startswith(b"('run', 'participant-0', 'context', 0)")
    assert ledger.stored("run", "participant-0", "context", 0) == sent
    assert sender.release_context() == sent


def test_a_share_is_masked_once_and_another_round_has_another(ledger: Ledger) -> None:
    """The same noise in two sums would cancel in their difference, and leave a client with its own alone."""
    made = blueprint(**SHARED, context="public", noise="shared")
    drawn: list[bytes] = []

    def under_new_keys(message: bytes, stream: object) -> bytes:
        drawn.append(message)
        return bytes([len(drawn)]) + message

    sender = Client(
        "participant-0", some_records(100), made, ledger, run="run", secret=SECRET, participant=0,
        seal=under_new_keys,
    )  # fmt: skip
    zero = torch.zeros(made.coefficients)
    first, again, second = (sender.release_gradient(number, zero) for number in (1, 1, 2))
    assert first == again
    assert len(drawn) == 2
    one, other = (np.frombuffer(message[1:], "<i2").astype(float) for message in (first, second))
    # Two independent shares around nearly the same centres: 6 standard deviations.
    assert abs(((one - other) ** 2).mean() / 128 - 1) < 6 * np.sqrt(2 / len(one))


@pytest.mark.parametrize("noise", ["client", "shared"])
def test_a_client_differentiates_at_what_it_was_sent_whatever_its_records(
    ledger: Ledger, noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prior or an own part made of records would move all of their gradients, uncharged."""
    made = blueprint(**(SHARED if noise == "shared" else {}), context="public", noise=noise)
    seen: list[torch.Tensor] = []

    def spied(module: object, theta: torch.Tensor, *given: object, **options: object) -> torch.Tensor:
        seen.append(theta)
        return clipped_mean(module, theta, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("sottovoce.release.blueprint.clipped_mean", spied)
    sent = torch.full((made.coefficients,), 0.01)
    for number, seed in enumerate((0, 1)):
        name, records = f"participant-{number}", some_records(100, seed)
        sender = Client(name, records, made, ledger, run="run", secret=SECRET, participant=number)
        for turn in (1, 2):
            sender.release_gradient(turn, sent)
    assert len(seen) == 4
    assert all(torch.equal(theta, made.theta(sent)) for theta in seen)


def test_a_given_mean_is_released_in_the_place_of_the_clients_own(ledger: Ledger) -> None:
    made = blueprint()
    sender = client(ledger, made)
    given = torch.full((made.coefficients,), 0.01)
    release_together([sender.gradient(1, torch.zeros(made.coefficients), given)])
    assert sender.signal is not None
    assert np.array_equal(sender.signal, given.double().numpy())


def test_seeded_noise_differs_between_clients_and_rounds(tmp_path) -> None:
    made = blueprint()
    given = torch.zeros(made.coefficients)
    noises = []
    with Ledger.open(tmp_path / "all.sqlite", scope="test") as ledger:
        for name, number in (("participant-0", 1), ("participant-0", 2), ("participant-1", 1)):
            sender = Client(name, some_records(100), made, ledger, run="run", secret=SECRET)
            [message] = release_together([sender.gradient(number, given, given)])
            release = made.releases["gradient"]
            stream = release.stream("run", name, number)
            noises.append(release.decode(message, secret=SECRET, stream=stream))
    for i, one in enumerate(noises):
        for other in noises[:i]:
            assert abs(float(np.corrcoef(one, other)[0, 1])) < 6 / np.sqrt(made.coefficients)


def test_an_evaluation_counts_classes_of_all_its_records(ledger: Ledger) -> None:
    made = blueprint()
    records = some_records(100)
    held_out = Records(records.held_out.x, torch.zeros(20).long())
    own = Client(
        "participant-0", ClientRecords(records.train, held_out, records.context), made, ledger,
        run="run", secret=SECRET,
    )  # fmt: skip
    result = own.evaluate(torch.zeros(made.coefficients))
    assert 0.0 <= result.accuracy <= result.masked_accuracy <= 100.0


@pytest.mark.parametrize("held", [40, 80])
def test_a_confusion_is_of_as_many_training_records_as_agreed_and_charged_once(
    ledger: Ledger, held: int
) -> None:
    made = blueprint(context="shares", context_share=0.05, prior="context")
    records = some_records(100)
    records = ClientRecords(records.train[:held], records.held_out, records.context)
    sender = Client("participant-0", records, made, ledger, run="run", secret=SECRET, participant=0)
    start = torch.zeros(made.coefficients)
    message = sender.release_once("confusion", start)
    labels = sender.training_records(0).y
    assert len(labels) == made.sizes[0] == 40
    assert sender.signal is not None
    of_labels = torch.from_numpy(sender.signal).reshape(10, 10).sum(dim=1)
    assert torch.allclose(of_labels, torch.bincount(labels, minlength=10).double() / 40)
    [entry] = ledger.charges("participant-0")
    assert (entry.charge.kind, entry.charge.round) == ("confusion", 0)
    assert entry.charge.sensitivity == pytest.approx(math.sqrt(2) / 40)
    assert sender.release_once("confusion", start) == message


def test_the_records_of_a_round_follow_from_seed_name_and_round() -> None:
    """Every engine draws the same ones, and so does a run that is continued."""
    made = blueprint()
    seed = derived_seed(made.plan.seed, "subset:participant-0:3")
    order = np.random.default_rng(seed).permutation(80)[:40]
    chosen = client(None, made).training_records(3)
    assert torch.equal(chosen.x, some_records(100).train.x[torch.from_numpy(order)])


def test_a_masked_evaluation_chooses_among_the_classes_that_the_client_has(ledger: Ledger) -> None:
    made, records = blueprint(), some_records(100)
    for part, others in ((0, 7), (1, 3), (2, 5)):
        y = [torch.full((len(x),), 9) for x in (records.train.x, records.held_out.x, records.context.x)]
        y[part][:] = others
        changed = [
            Records(r.x, labels)
            for r, labels in zip((records.train, records.held_out, records.context), y, strict=True)
        ]
        own = Client("participant-0", ClientRecords(*changed), made, ledger, run="run", secret=SECRET)
        result = own.evaluate(torch.zeros(made.coefficients))
        assert result.owned is not None
        assert result.owned.nonzero().flatten().tolist() == [others, 9]
