"""A client's end of a federation: what it answers, what it declines, what it charges."""

from __future__ import annotations

import logging
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.node import Node
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.federation.server import Options
from sottovoce.federation.site import directory
from sottovoce.federation.site.directory import Enrolment
from sottovoce.federation.store import Store, StoreError
from sottovoce.machine.rollback import Memory
from sottovoce.models.parameters import logits
from sottovoce.models.tasks import open_task
from sottovoce.privacy.ledger import OWN_RECORDS, Charge, Overspent

from .world import QUICK, World, charged, ledger, roll_back


def log_of(world: World, index: int) -> list[str]:
    """The lines of a client's own log, without their times."""
    text = (world.folder / "clients" / f"client-{index}" / "client.log").read_text()
    return [line.partition(" ")[2] for line in text.splitlines()]


def test_an_answer_that_was_lost_is_sent_again_byte_for_byte_and_charged_once(tmp_path: Path) -> None:
    world = World(tmp_path, **QUICK, seeded=False)
    world.enrol(0)
    first, said = world.answer(0), log_of(world, 0)
    assert said[-1].startswith("INFO sends the context of round 0, charged: these records have spent ε = ")
    assert world.answer(0) == first
    assert log_of(world, 0) == [*said, "INFO sends the context of round 0 again, as it was stored"]
    assert charged(world, 0) == [("context", 0)]


def test_a_client_that_is_not_enrolled_releases_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol(0)
    stranger = world.node(0, directory="stranger")
    with pytest.raises(EnrolmentError, match="is not enrolled in run"):
        stranger.release(world.coordinator.request(0, "context"))
    with pytest.raises(EnrolmentError, match="is not the name of a run"):
        stranger.release({**world.coordinator.request(0, "context"), "run": "../client-0"})
    mine = tmp_path / "clients" / "stranger"
    assert not (mine / "ledger.sqlite").exists()
    assert (
        "ERROR refused the context of round 0: this client is not enrolled"
        in (mine / "client.log").read_text()
    )


def test_a_client_whose_records_paid_for_another_run_declines_and_training_continues(tmp_path: Path) -> None:
    world = World(tmp_path, clients_per_round=3, options=Options(patience=0.0))
    world.enrol_all()
    with ledger(world, 0) as book:
        earlier = Charge("0" * 16, OWN_RECORDS, "context", 0, sensitivity=1.0, sigma=1.0)
        book.commit(earlier, b"", world.coordinator.blueprint.budget)
    declined = set()
    while not world.coordinator.done:
        for participant in list(world.coordinator.missing()):
            try:
                world.coordinator.accept(participant, world.answer(participant))
            except Overspent:
                declined.add(participant)
        world.coordinator.advance()
    assert declined == {0}
    for index in range(3):
        with ledger(world, index) as book:
            assert book.epsilon(OWN_RECORDS, 1e-5, "exact") <= 8.0 + 1e-6


def test_a_member_releases_only_in_rounds_of_the_schedule(tmp_path: Path) -> None:
    world = World(tmp_path, clients_per_round=1)
    world.enrol_all()
    world.step()
    [chosen] = world.coordinator.missing()
    request = world.coordinator.request(chosen, "gradient")
    with pytest.raises(SottovoceError, match="not due in round 1"):
        world.node((chosen + 1) % 3).release(request)
    with pytest.raises(SottovoceError, match="not due in round 99"):
        world.node(chosen).release({**request, "round": 99})


def test_a_plan_that_differs_is_refused_at_both_ends_and_nothing_is_charged(tmp_path: Path) -> None:
    world = World(tmp_path)
    other = World(tmp_path / "other", epsilon=9.0)
    with pytest.raises(EnrolmentError, match="another agreement"):
        world.node(0, other.agreement).enrol(world.coordinator.roster.offer())
    world.enrol_all()
    request = world.coordinator.request(0, "context")
    with pytest.raises(EnrolmentError, match="nothing is released"):
        world.node(0, other.agreement).release(request)
    answer = world.node(0).enrol(world.coordinator.roster.offer())
    with pytest.raises(EnrolmentError, match="another agreement"):
        world.coordinator.roster.enrol({**answer, "agreement": other.agreement.digest()}, "9")
    assert charged(world, 0) == []
    world.kill()
    with pytest.raises(StoreError, match=r"epsilon is 9\.0 here and 8\.0 there"):
        Store.open(tmp_path / "server.sqlite", other.agreement)


def test_secrets_are_for_their_owner_only_and_never_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world = World(tmp_path, seeded=False)
    world.enrol_all()
    world.finish()
    private = [tmp_path / "server.sqlite", *(tmp_path / "clients" / "client-0").iterdir()]
    assert len(private) >= 4
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert world.store.key.hex() not in caplog.text
    for index in range(3):
        assert world.coordinator.roster.secret(index).hex() not in caplog.text


def test_a_client_is_due_in_the_rounds_of_the_schedule_and_in_no_other() -> None:
    blueprint: Any = SimpleNamespace(schedule=np.array([[0, 1], [1, 2], [0, 2]]))
    due = [
        [number for number in range(-3, 6) if not Node._not_chosen(None, blueprint, participant, number)]  # type: ignore[arg-type]
        for participant in range(3)
    ]
    assert due == [[1, 3], [1, 2], [2, 3]]


def test_a_client_without_a_wish_takes_what_is_proposed_and_nothing_beyond_the_plan(tmp_path: Path) -> None:
    world = World(tmp_path)
    offer = world.coordinator.roster.offer()

    def ask(name: str, proposal: int, wish: int | None = None) -> dict[str, Any]:
        files = tmp_path / name, tmp_path / "clients" / "client-0.npz"
        member = Node(*files, world.agreement, wish=wish, simulated=True)
        return member.enrol({**offer, "proposal": proposal})

    answer = ask("a", 2)
    assert answer["participant"] == 2
    assert answer["records"] == 0  # the plan states how many
    assert ask("b", 2, wish=0)["participant"] == 0
    with pytest.raises(EnrolmentError, match="the federation is full"):
        ask("c", -1)
    with pytest.raises(EnrolmentError, match="there is no participant 3: the agreement has 3"):
        ask("d", 3)


def test_one_request_at_a_time_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, held = World(tmp_path, **QUICK), list[Path]()
    honest = directory.locked

    @contextmanager
    def locked(path: Path) -> Iterator[None]:
        held.append(path)
        with honest(path):
            yield

    monkeypatch.setattr(directory, "locked", locked)
    member = world.node(0)
    world.coordinator.roster.enrol(member.enrol(world.coordinator.roster.offer()), "0")
    member.release(world.coordinator.request(0, "context"))
    for _ in range(2):
        world.node(1).refused(world.store.run, "taken")
    with pytest.raises(EnrolmentError, match="not enrolled"):
        world.node(1).keep_model({"run": world.store.run})
    assert log_of(world, 1)[-1].startswith("ERROR refused its model: this client is not enrolled in run")
    clients = tmp_path / "clients"
    assert held == [clients / "client-0" / "lock"] * 2 + [clients / "client-1" / "lock"] * 3
    assert stat.S_IMODE((clients / "client-1").stat().st_mode) == 0o700


def test_accuracies_leave_a_client_where_both_ends_want_them_and_there_is_a_model(tmp_path: Path) -> None:
    world = World(tmp_path, **QUICK, clients_per_round=3, options=Options(diagnostics=True))
    world.enrol_all()

    def member(diagnostics: bool) -> Node:
        return replace(world.node(0), diagnostics=diagnostics)

    assert not world.node(0).diagnostics
    assert not world.node(0).agreement.open
    assert "accuracy" not in member(True).release(world.coordinator.request(0, "context"))
    world.step()
    request = world.coordinator.request(0, "gradient")
    assert 0 <= member(True).release(request)["accuracy"] <= 100
    assert "accuracy" not in member(False).release(request)
    assert "accuracy" not in member(True).release({**request, "diagnostics": False})


def test_an_accuracy_in_a_centred_round_is_that_of_inputs_from_the_centre(tmp_path: Path) -> None:
    linear = {"method": "blend", "model": "linear", "coefficients": 0, "context": "public", "rounds": 2}
    linear |= {"weighting": 1.0, "learning_rate": 0.0, "clients_per_round": 3, "centring": 0.1}
    world = World(tmp_path, **linear, options=Options(diagnostics=True))
    world.enrol_all()
    while world.coordinator.server.round < 1:
        world.step()
    server, node = world.coordinator.server, replace(world.node(0), diagnostics=True)
    assert server.centre().any()
    found = node.release(world.coordinator.request(0, "gradient"))["accuracy"]
    facts, held_out = world.agreement.facts, node._holdings.records(0, server.blueprint).held_out
    outputs = logits(server.blueprint.module, server.blueprint.theta(server.coefficients([0])[0]), held_out.x)
    assert found == pytest.approx(open_task(facts).score(outputs, held_out.y))


def test_a_client_whose_ledger_is_a_copy_does_not_enrol_until_its_owner_vouches(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol(0)
    world.answer(0)
    Memory(tmp_path / "clients" / "client-0" / "ledger.sqlite").path.unlink()
    another = {**world.coordinator.roster.offer(), "run": "0" * 16}
    with pytest.raises(SottovoceError, match="was copied or restored"):
        world.node(0).enrol(another)
    with ledger(world, 0) as book:
        book.trust_copy()
        book.raise_budget(20.0)
    assert world.node(0).enrol(another)["participant"] == 0


def test_a_client_keeps_its_accuracies_to_itself_unless_its_owner_says_otherwise(tmp_path: Path) -> None:
    agreement: Any = None
    assert Node(tmp_path, tmp_path / "mine.npz", agreement).diagnostics is False
    assert not list(tmp_path.iterdir())  # and does nothing before it is asked


def test_two_records_are_the_least_with_which_a_client_declares_how_many_it_has(tmp_path: Path) -> None:
    world = World(tmp_path, **QUICK)
    plan = world.agreement.plan.replace(gradient_records=0, context_records=0)
    open_ = replace(world.agreement, plan=plan)
    offer = {**world.coordinator.roster.offer(), "agreement": open_.digest()}
    for index, count in enumerate((1, 2)):
        path = world.files[index]
        with np.load(path) as file:
            fields = dict(file)
        np.savez(path, **{**fields, "x": fields["x"][:count], "y": fields["y"][:count]})
    with pytest.raises(EnrolmentError, match="not ready"):
        world.node(0, open_).enrol(offer)
    assert "holds 1 records: this run needs 2" in log_of(world, 0)[0]
    assert world.node(1, open_).enrol(offer)["records"] == 1  # the other one is held out


def test_a_refused_client_forgets_its_enrolment_unless_something_was_released_under_it(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, **QUICK)
    clients = tmp_path / "clients"
    for index in range(3):
        world.enrol(index)
    world.answer(0)
    for trace in (clients / "client-2").glob("[lt]*"):  # nothing is left that says of a release
        trace.unlink()
    kept = []
    for index in range(3):
        world.node(index).refused(world.store.run, "taken")
        kept.append(Enrolment.file(clients / f"client-{index}", world.store.run).exists())
    assert kept == [True, False, False]
    assert not (clients / "client-2" / "ledger.sqlite").exists()


def test_the_folders_above_a_clients_are_made_for_it(tmp_path: Path) -> None:
    world = World(tmp_path, **QUICK)
    member = world.node(0, directory="state/of/mine")
    member.refused(world.store.run, "full")
    assert (tmp_path / "clients" / "state" / "of" / "mine" / "client.log").exists()


@pytest.mark.parametrize("noise", ["client", "server"])
@pytest.mark.parametrize("kind", ["context", "gradient"])
def test_a_file_that_became_unusable_is_nothing_that_the_server_notices(
    tmp_path: Path, noise: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An enrolled client answers for ever: around zero, charged, and as long as always."""
    blend = {
        "method": "blend",
        "context": "shares",
        "context_share": 0.1,
        "prior": "context",
        "basis": "structured",
    }
    world = World(tmp_path, **QUICK, **blend, noise=noise)
    world.enrol_all()
    if kind == "gradient":
        world.step()
    asked = world.coordinator.missing()
    who = next(participant for participant in asked if asked[participant] == kind)
    request = world.coordinator.request(who, kind)
    file = tmp_path / "clients" / f"client-{who}.npz"
    whole = file.read_bytes()
    lengths = {}
    for state, content in (("gone", None), ("damaged", whole[:100]), ("whole", whole)):
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)
        shutil.copytree(tmp_path / "clients" / f"client-{who}", tmp_path / "kept")
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        answer = world.node(who).release(request)
        assert set(answer) == {"kind", "round", "release"}
        lengths[state] = len(answer["release"])
        log = log_of(world, who)
        assert ("counts as zero" in " ".join(log)) is (state != "whole")
        assert (kind, request["round"]) in charged(world, who)
        if state != "whole":
            roll_back(monkeypatch, tmp_path / "kept", tmp_path / "clients" / f"client-{who}")
    assert len(set(lengths.values())) == 1
