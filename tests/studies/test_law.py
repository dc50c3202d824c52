"""Releases by law: the noise that messages would decode to, charged as they are, and nothing on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from studies.law import LawSimulation, has_law, session_of
from studies.sweep import Job, run_batch

from sottovoce import data
from sottovoce.channel.wire import SystemRandomness
from sottovoce.errors import SottovoceError
from sottovoce.models.tensors import load_tensors
from sottovoce.plan import Plan
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.places.server import noised_sum
from sottovoce.run.directory import RunDirectory
from sottovoce.run.prepare import prepare
from sottovoce.run.session import Session
from sottovoce.run.simulation import Simulation
from sottovoce.run.training import train
from sottovoce.training.server import Server
from studies import sweep
from tests.small import small_plan

WHOLE = data.load("mnist-small")
FEW = replace(WHOLE, x=WHOLE.x[:960], y=WHOLE.y[:960])
LINEAR = {
    "model": "linear",
    "method": "blend",
    "coefficients": 7850,
    "learning_rate": 0.0,
    "context": "public",
}
SUMMED = {**LINEAR, "noise": "server", "weighting": 1.0}
SHARED = {**LINEAR, "noise": "shared", "weighting": 1.0, "channel": "integers", "individual": 0.0}


def run(plans: list[Plan], folder: Path, **options: Any) -> list[dict[str, Any]]:
    jobs = [Job(plan, folder / str(i)) for i, plan in enumerate(plans)]
    results: dict[str, dict[str, Any]] = {}
    run_batch(
        jobs,
        on_run=lambda job, result: results.update({job.out.name: result}),
        dataset=FEW,
        law=True,
        **options,
    )
    return [results[str(i)] for i in range(len(plans))]


def state(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "model.safetensors")[0]


def opened(plan: Plan, out: Path) -> Session:
    return session_of(plan).open(prepare(plan, FEW, trusted=True), out)


def releases_of_nothing(
    plan: Plan, out: Path, monkeypatch: pytest.MonkeyPatch, rounds: int = 2
) -> tuple[Session, list[np.ndarray]]:
    """What the server receives where all clipped means are zero: the noise of each round."""
    seen: list[np.ndarray] = []
    real = Server.receive_round

    def listening(self: Server, releases: dict[int, torch.Tensor]) -> float | None:
        seen.append(torch.stack([releases[i] for i in sorted(releases)]).numpy())
        return real(self, releases)

    monkeypatch.setattr(Server, "receive_round", listening)
    session = opened(plan, out)
    for _ in range(rounds):
        ready = session.simulation.open_round()
        zero = torch.zeros(len(ready.clients), session.simulation.blueprint.coefficients, dtype=torch.float64)
        session.simulation.close_round(ready, zero)
    session.close()
    return session, seen


def test_noise_has_the_scale_that_is_charged_and_is_drawn_afresh_for_every_release(tmp_path, monkeypatch):
    draws = []
    for epsilon in (8.0, 2.0):  # of one seed
        plan = small_plan(**LINEAR, epsilon=epsilon)
        session, seen = releases_of_nothing(plan, tmp_path / f"{epsilon}", monkeypatch)
        draws.append(np.concatenate(seen[-2:]) / session.simulation.blueprint.sigma)
    drawn = np.concatenate(draws)
    assert drawn.shape == (12, 7850)
    # A mean of 7,850 squares is off by 1.6 %: 6 deviations are 10 %, and a correlation of 0.08 is 7.
    assert np.allclose(drawn.var(axis=1), 1.0, atol=0.1)
    assert np.abs(np.corrcoef(drawn) - np.eye(12)).max() < 0.08


def test_noise_at_the_server_has_its_scale_in_every_column(tmp_path) -> None:
    session = opened(small_plan(**SUMMED, individual=0.3), tmp_path / "run")
    simulation = session.simulation
    assert isinstance(simulation, LawSimulation)
    ready, k = simulation.open_round(), simulation.blueprint.coefficients
    noise = simulation._noised_sum(ready, torch.zeros(3, k, dtype=torch.float64)).columns
    assert noise.shape == (k, 4)  # shared, and an own one of each
    assert np.allclose((noise / simulation.blueprint.sigma).var(dim=0), 1.0, atol=0.1)
    given = torch.randn(3, k, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    h, weights = simulation.server.counted(ready.participants)
    nothing = torch.zeros(k, 4, dtype=torch.float64)
    without = noised_sum(given, h, torch.from_numpy(weights), nothing)
    alike = noised_sum(given.numpy(), h.numpy(), weights, nothing.numpy())
    assert np.allclose(alike, without.numpy(), atol=1e-12)
    summed = simulation._noised_sum(ready, given).columns
    assert torch.allclose(summed - noise, without.float(), atol=1e-5)
    session.close()


def test_shares_have_the_noise_of_all_of_them_in_their_sum(tmp_path) -> None:
    session = opened(small_plan(**SHARED), tmp_path / "run")
    simulation = session.simulation
    assert isinstance(simulation, LawSimulation)
    sharing, k = simulation.blueprint.sharing, simulation.blueprint.coefficients
    assert sharing is not None
    ready = simulation.open_round()
    nothing = torch.zeros(3, k, dtype=torch.float64)
    assert not simulation._noise(ready, nothing).any()
    noise = simulation._noised_sum(ready, nothing).columns
    assert noise.shape == (k, 1)
    # 7,850 squares: six deviations of their mean are 10 %.
    assert float((noise / sharing.total).var()) == pytest.approx(1.0, abs=0.1)
    drawn = sum(sharing.share(np.zeros(k), 40, SystemRandomness()) for _ in range(3))
    assert float((sharing.columns(drawn) / sharing.total).var()) == pytest.approx(1.0, abs=0.1)
    session.close()


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
    ],
)
def test_what_a_run_draws_does_not_depend_on_the_runs_beside_it(tmp_path, device) -> None:
    mine, other = small_plan(seed=1, **LINEAR), small_plan(seed=2, **LINEAR)
    [alone] = run([mine], tmp_path / "alone", device=device)
    _, together = run([other, mine], tmp_path / "together", device=device)
    first, second = (
        RunDirectory(tmp_path / path).rounds() for path in (Path("alone") / "0", Path("together") / "1")
    )
    assert [line["noise_norm"] for line in first] == [line["noise_norm"] for line in second]
    assert alone["epsilon"] == together["epsilon"]
    before, after = state(tmp_path / "alone" / "0"), state(tmp_path / "together" / "1")
    assert all(torch.allclose(before[name].double(), after[name].double(), atol=1e-5) for name in before)
    assert state(tmp_path / "together" / "0")["generator.shared"].ne(before["generator.shared"]).any()


@pytest.mark.parametrize(
    "changes",
    [{}, {"method": "full"}, {**LINEAR, "context": "labels"}, SUMMED, SHARED],
    ids=["ours", "full", "blend", "sum", "shares"],
)
def test_a_run_by_law_charges_counts_and_tells_what_one_with_messages_does(tmp_path, changes) -> None:
    plan = small_plan(**changes)
    [drawn] = run([plan], tmp_path)
    sent = train(plan, tmp_path / "sent", dataset=FEW)
    assert drawn["epsilon"] == sent["epsilon"]
    same = ("uplink", "downlink", "sigma", "releases_max", "rounds")
    assert {key: drawn[key] for key in same} == {key: sent[key] for key in same}
    lines, others = RunDirectory(tmp_path / "0").rounds(), RunDirectory(tmp_path / "sent").rounds()
    assert [list(line) for line in lines] == [list(line) for line in others]
    for mine, theirs in zip(lines, others, strict=True):
        assert mine["bytes"] == theirs["bytes"]
        if theirs["noise_norm"] is not None:
            assert mine["noise_norm"] == pytest.approx(theirs["noise_norm"], rel=0.1)
    if lines[0]["signal_norm"] is not None:  # before any noise was applied
        assert lines[0]["signal_norm"] == pytest.approx(others[0]["signal_norm"])
    with Ledger.open(tmp_path / "0" / "ledger.sqlite", scope=None) as ledger:
        charges = {str(entry.charge): entry.charge for entry in ledger.charges()}
    with Ledger.open(tmp_path / "sent" / "ledger.sqlite", scope=None) as ledger:
        assert charges == {str(entry.charge): entry.charge for entry in ledger.charges()}


def test_all_charges_of_a_round_are_one_transaction(tmp_path, monkeypatch) -> None:
    counts: list[int] = []
    real = Ledger.commit_many

    def counted(self, releases, budget):
        if releases[0][0].kind == "gradient":
            counts.append(len(releases))
        real(self, releases, budget)

    monkeypatch.setattr(Ledger, "commit_many", counted)
    run([small_plan(**LINEAR)], tmp_path)
    assert counts == [3, 3, 3, 3]


@pytest.mark.parametrize("changes", [LINEAR, SUMMED], ids=["blend", "sum"])
@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["checkpoints", "none"])
def test_a_killed_run_goes_on_to_the_same_result(tmp_path, monkeypatch, changes, seconds) -> None:
    monkeypatch.setattr(sweep, "CHECKPOINT_SECONDS", seconds)
    plan = small_plan(**changes)

    def stop(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([plan], tmp_path / "killed", on_round=stop)
    [resumed] = run([plan], tmp_path / "killed")
    [whole] = run([plan], tmp_path / "whole")
    assert resumed["epsilon"] == whole["epsilon"]
    before, after = state(tmp_path / "killed" / "0"), state(tmp_path / "whole" / "0")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_round_that_was_charged_before_a_kill_is_not_charged_again(tmp_path) -> None:
    session = opened(small_plan(**LINEAR), tmp_path / "run")
    simulation = session.simulation
    assert isinstance(simulation, LawSimulation)
    ready = simulation.open_round()
    simulation._commit(ready.number, ready.clients[:2])  # as a ledger that is ahead of its checkpoint has it
    simulation._charge(ready)
    assert simulation._ledger is not None
    assert [simulation._ledger.releases(client.name) for client in ready.clients] == [1, 1, 1]


def test_only_a_seeded_run_is_in_memory_all_others_are_on_the_disk_round_by_round(tmp_path) -> None:
    charged: dict[bool, list[int]] = {True: [], False: []}
    for seeded in charged:
        plan = small_plan(seeded=seeded, **LINEAR)

        def look(number: int, seeded: bool = seeded) -> None:
            with Ledger.open(tmp_path / f"{seeded}" / "0" / "ledger.sqlite", scope=None) as ledger:
                charged[seeded].append(sum(ledger.releases(client) for client in ledger.clients()))

        run([plan], tmp_path / f"{seeded}", on_round=look)
    assert charged == {True: [0, 0, 0, 0], False: [3, 6, 9, 12]}


@pytest.mark.parametrize("changes", [{"channel": "direct-q12"}, {"channel": "polar"}, {"seeded": False}])
def test_what_has_no_such_law_is_sent(tmp_path, changes) -> None:
    plan = small_plan(**LINEAR, **changes)
    assert not has_law(plan)
    session = opened(plan, tmp_path / "run")
    assert type(session.simulation) is Simulation
    session.close()


def test_an_ablation_without_noise_is_exact(tmp_path) -> None:
    plan = small_plan(**LINEAR, epsilon=float("inf"))
    [drawn] = run([plan], tmp_path)
    train(plan, tmp_path / "sent", dataset=FEW)
    assert drawn["epsilon"]["spent_max"] is None
    mine, theirs = state(tmp_path / "0"), state(tmp_path / "sent")
    assert all(torch.allclose(mine[name].double(), theirs[name].double(), atol=1e-5) for name in mine)


def test_a_run_alone_is_told_to_train_in_a_batch(tmp_path) -> None:
    session = opened(small_plan(**LINEAR), tmp_path / "run")
    with pytest.raises(SottovoceError, match="train in a batch"):
        session.simulation.step()
    session.close()
