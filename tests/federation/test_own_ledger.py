"""One ledger for each client, over all runs and for onboarding too, under the budget of its owner."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.data import read_client
from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement
from sottovoce.federation.node import Node
from sottovoce.federation.onboarding.client import personalize
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.federation.server import Coordinator
from sottovoce.federation.site.recovery import LEFT, LedgerBehind, opened
from sottovoce.federation.status.progress import write_run
from sottovoce.federation.store import Store
from sottovoce.machine.rollback import Memory
from sottovoce.privacy.ledger import OWN_RECORDS, Charge, Ledger, client_scope
from sottovoce.privacy.terms import Terms
from sottovoce.release.blueprint import build
from sottovoce.training.accounts import Account

from .world import World


class Site:
    """A client with its own directory and records, everything where it lies by default."""

    def __init__(self, world: World, index: int = 0) -> None:
        self.records = world.folder / "clients" / f"client-{index}.npz"
        self.directory = self.records.with_suffix("")
        self.ledger = self.records.with_suffix(".ledger.sqlite")
        self.index = index

    def node(self, agreement: Agreement, **terms: Any) -> Node:
        return Node(self.directory, self.records, agreement, wish=self.index, terms=Terms(**terms))

    def spent(self) -> float:
        with Ledger.open(self.ledger, scope=client_scope(self.records.stem)) as ledger:
            return ledger.spent(OWN_RECORDS)

    def lose_the_ledger(self) -> None:
        for end in ("", "-wal", "-shm"):
            Path(f"{self.ledger}{end}").unlink(missing_ok=True)

    def lose_the_witness(self) -> None:
        for end in (".witness", ".lock"):
            Path(f"{self.ledger}{end}").unlink()


def run(world: World, name: str) -> Coordinator:
    """Another run on the same records, with a server of its own."""
    return Coordinator(world.agreement, Store.open(world.folder / f"{name}.sqlite", world.agreement))


def train(site: Site, coordinator: Coordinator, agreement: Agreement, **terms: Any) -> None:
    """The site releases its context."""
    member = site.node(agreement, **terms)
    coordinator.roster.enrol(member.enrol(coordinator.roster.offer()), "0")
    coordinator.accept(0, member.release(coordinator.request(0, "context")))


def world_of(tmp_path: Path, **changes: Any) -> World:
    return World(tmp_path, seeded=False, **changes)


@pytest.mark.parametrize("gone", ["ledger", "ledger and witness"])
def test_a_ledger_deleted_between_runs_is_charged_for_the_run_before(tmp_path: Path, gone: str) -> None:
    world = world_of(tmp_path)
    site = Site(world)
    train(site, run(world, "one"), world.agreement, epsilon=100.0)
    one = site.spent()
    assert one > 0
    site.lose_the_ledger()
    if gone == "ledger and witness":
        site.lose_the_witness()  # the traces in the directory tell
    train(site, run(world, "two"), world.agreement, epsilon=100.0)
    assert site.spent() == pytest.approx(2 * one)


def test_an_enrolled_run_does_not_make_a_restored_ledger_a_true_one(tmp_path: Path) -> None:
    """All files are put back, and what another run has spent since is known to nobody here."""
    world = world_of(tmp_path, clients_per_round=3)
    site, one, two = Site(world), run(world, "one"), run(world, "two")
    member = site.node(world.agreement, epsilon=100.0)
    one.roster.enrol(member.enrol(one.roster.offer()), "0")
    shutil.copytree(site.records.parent, tmp_path / "backup")
    train(site, two, world.agreement)
    one.accept(0, member.release(one.request(0, "context")))
    shutil.rmtree(site.records.parent)
    shutil.copytree(tmp_path / "backup", site.records.parent)
    with Ledger.open(site.ledger, scope=None) as ledger:
        ledger.raise_budget(200.0)
    assert site.node(world.agreement).release(one.request(0, "context"))["left"] == LEFT
    site.node(world.agreement).rejoin()  # pays for its own run, and knows nothing of the other
    assert "release" in site.node(world.agreement).release(one.request(0, "context"))
    with Ledger.open(site.ledger, scope=None) as ledger:
        assert ledger.past.total_in(two.run).releases == 0
        assert ledger.past.copied
    with pytest.raises(SottovoceError, match="was copied or restored from a backup"):
        site.node(world.agreement).enrol(run(world, "three").roster.offer())
    with Ledger.open(site.ledger, scope=None) as ledger:
        ledger.trust_copy()
    site.node(world.agreement).enrol(run(world, "three").roster.offer())


def test_training_and_onboarding_of_one_client_add_up_in_one_ledger(tmp_path: Path) -> None:
    world = World(tmp_path, context="labels")
    for index in range(3):
        site = Site(world, index)
        member = Node(site.directory, site.records, world.agreement, wish=index, simulated=True)
        world.coordinator.roster.enrol(member.enrol(world.coordinator.roster.offer()), str(index))
    while not world.coordinator.done:
        for participant, kind in list(world.coordinator.missing().items()):
            site = Site(world, participant)
            member = Node(site.directory, site.records, world.agreement, wish=participant, simulated=True)
            answer = member.release(world.coordinator.request(participant, kind))
            world.coordinator.accept(participant, answer)
        world.coordinator.advance()
    write_run(tmp_path / "run", world.coordinator)
    site = Site(world)
    training = site.spent()
    model = tmp_path / "model"
    with pytest.raises(SottovoceError, match="the budget does not cover"):
        personalize(tmp_path / "run", site.records, model)
    with Ledger.open(site.ledger, scope=None) as ledger:
        ledger.raise_budget(20.0)
    answer = personalize(tmp_path / "run", site.records, model)
    assert site.spent() == pytest.approx(
        training + world.coordinator.blueprint.releases["context"].mu_squared
    )
    assert answer["epsilon_total"] > 8 > answer["epsilon"]
    assert personalize(tmp_path / "run", site.records, model)["epsilon_total"] == answer["epsilon_total"]


def test_records_saved_again_or_grown_keep_their_ledger(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    site = Site(world)
    train(site, run(world, "one"), world.agreement, epsilon=100.0)
    one = site.spent()
    with np.load(site.records) as file:
        fields = dict(file)
    fields["x"], fields["y"] = (np.concatenate([fields[name], fields[name][:20]]) for name in ("x", "y"))
    np.savez_compressed(site.records, **fields)
    train(site, run(world, "two"), world.agreement)
    assert site.spent() == pytest.approx(2 * one)


def test_the_ledger_of_another_client_is_refused_by_name(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    train(Site(world, 0), run(world, "one"), world.agreement)
    other, two = Site(world, 1), run(world, "two")
    stolen = other.node(world.agreement, ledger=Site(world, 0).ledger)
    with pytest.raises(SottovoceError, match="is the ledger of the client 'client-0', not of 'client-1'"):
        stolen.enrol(two.roster.offer())


def test_a_ledger_exchanged_after_enrolment_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    site, one = Site(world), run(world, "one")
    member = site.node(world.agreement)
    one.roster.enrol(member.enrol(one.roster.offer()), "0")
    site.lose_the_ledger()
    site.lose_the_witness()
    with pytest.raises(EnrolmentError, match="not the ledger with which this client enrolled"):
        member.release(one.request(0, "context"))


def test_a_run_beyond_the_owners_budget_is_refused_before_enrolment(tmp_path: Path) -> None:
    world = world_of(tmp_path, context="labels")
    site, one = Site(world), run(world, "one")
    with pytest.raises(EnrolmentError, match="would exceed the budget of this client"):
        site.node(world.agreement, epsilon=2.0).enrol(one.roster.offer())
    assert not list(site.directory.glob("enrolment-*"))
    said = (site.directory / "client.log").read_text()
    assert "this run: ε 8, together 8 of 2 at δ = 1e-5, which the budget does not cover" in said
    with pytest.raises(EnrolmentError):  # the strictest that was ever said holds
        site.node(world.agreement, epsilon=50.0).enrol(one.roster.offer())
    with Ledger.open(site.ledger, scope=None) as ledger:
        ledger.raise_budget(9.0)
    site.node(world.agreement).enrol(one.roster.offer())
    assert (
        "as participant-0; this run: ε 8, together 8 of 9 at δ = 1e-5"
        in (site.directory / "client.log").read_text()
    )


def test_a_large_delta_of_the_plan_buys_nothing(tmp_path: Path) -> None:
    world = world_of(tmp_path, epsilon=6.0)
    largest = 1 / world.agreement.plan.gradient_records  # no agreement has more
    greedy = world.agreement.plan.replace(delta=largest)
    world.agreement = dataclasses.replace(world.agreement, plan=greedy)
    one = run(world, "one")
    with pytest.raises(EnrolmentError, match="would exceed the budget of this client"):
        Site(world).node(world.agreement).enrol(one.roster.offer())


def test_a_seeded_agreement_is_refused_outside_simulations(tmp_path: Path) -> None:
    world = World(tmp_path, seeded=True)
    site = Site(world)
    with pytest.raises(EnrolmentError, match="protects nobody"):
        site.node(world.agreement).enrol(world.coordinator.roster.offer())
    world.enrol_all()  # as a simulation
    with pytest.raises(EnrolmentError, match="protects nobody"):
        site.node(world.agreement).release(world.coordinator.request(0, "context"))
    assert not site.ledger.exists()


def test_a_ledger_of_version_01_in_the_directory_is_still_the_clients(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.enrol_all()
    world.step()
    old = world.folder / "clients" / "client-0" / "ledger.sqlite"
    with Ledger.open(old, scope=None) as ledger:
        ledger.raise_budget(20.0)
    train(Site(world), run(world, "two"), world.agreement)
    assert not Site(world).ledger.exists()
    with Ledger.open(old, scope=client_scope("client-0")) as ledger:
        assert len(ledger.past.totals()) == 2


def test_restored_files_open_to_all_are_closed_again(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    site = Site(world)
    train(site, run(world, "one"), world.agreement)
    site.directory.chmod(0o755)
    for path in site.directory.iterdir():
        path.chmod(0o644)
    site.node(world.agreement).refused("0" * 16, "nothing")
    assert site.directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in site.directory.iterdir()} == {0o600}
    [trace] = site.directory.glob("trace-*.witness")
    assert json.loads(trace.read_text().splitlines()[-1])["releases"] == 1


def test_fewer_records_than_the_agreement_averages_over_are_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path, gradient_records=50)
    facts, path = world.agreement.facts, Site(world).records
    with np.load(path) as file:
        fields = dict(file)
    fields["x"], fields["y"] = fields["x"][:50], fields["y"][:50]  # 40 to train on
    np.savez(path, **fields)
    with pytest.raises(EnrolmentError, match="not ready"):
        train(Site(world), run(world, "one"), world.agreement)
    assert "holds 50 records: this run needs 63" in (Site(world).directory / "client.log").read_text()
    assert len(read_client(path, facts=facts, needed=50)) == 50
    assert build(world.agreement.plan, facts).releases["gradient"].sensitivity == 2 / 50


def test_a_trace_of_version_0_1_without_a_price_wants_the_newest_ledger(tmp_path: Path) -> None:
    directory = tmp_path / "client"
    directory.mkdir()
    own = Account.alone(tmp_path / "mine.npz", Terms(), directory)
    trace = directory / f"trace-{'0' * 16}.json"
    for releases, fine in ((0, True), (1, False)):
        trace.write_text(json.dumps({"lock": 1, "releases": releases, "time": 1}))
        refused = contextlib.nullcontext() if fine else pytest.raises(LedgerBehind, match="lacks releases")
        with refused, opened(own, directory) as ledger:
            assert ledger.spent(OWN_RECORDS) == 0.0
    charge = Charge("0" * 16, OWN_RECORDS, "context", 0, 0.1, 1.0)
    with Ledger.open(own.path, scope=client_scope("mine")) as ledger:
        ledger.recover([charge], "0" * 16)
    with opened(own, directory) as ledger:
        assert ledger.releases(OWN_RECORDS) == 1
    for damage in ("", "[]", "{"):
        trace.write_text(damage)
        with opened(own, directory) as ledger:
            assert ledger.releases(OWN_RECORDS) == 1


def test_an_enrolment_that_the_server_refused_is_forgotten_unless_something_may_have_left(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path)
    site, one = Site(world), run(world, "one")
    member = site.node(world.agreement, epsilon=100.0)
    member.refused("0" * 16, "who are you")  # and no ledger is begun for it
    assert not site.ledger.exists()
    for gone in ([], [site.lose_the_ledger, site.lose_the_witness]):
        one.roster.enrol(member.enrol(one.roster.offer()), "0")
        one.accept(0, member.release(one.request(0, "context")))
        for lose in gone:
            lose()  # the directory remembers
        member.refused(one.store.run, "the federation is full")
        assert len(list(site.directory.glob("enrolment-*"))) == 1


def test_a_model_lies_beside_the_ledger_under_the_clients_name_where_there_are_others(tmp_path: Path) -> None:
    own = Account.alone(tmp_path / "mine.npz", Terms())
    assert own.client == "mine"
    own.path.touch()
    assert own.model_file == tmp_path / "personal.safetensors"
    (tmp_path / "other.ledger.sqlite").touch()
    assert own.model_file == tmp_path / "mine.personal.safetensors"
    named = Account.alone(tmp_path / "mine.npz", Terms(client="north"))
    assert named.client == "north"
    assert named.model_file == tmp_path / "north.personal.safetensors"


def test_a_ledger_of_version_01_that_was_deleted_is_still_missed_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "client").mkdir()
    old = tmp_path / "client" / "ledger.sqlite"

    def path() -> Path:
        return Account.alone(tmp_path / "mine.npz", Terms(), tmp_path / "client").path

    assert path() == tmp_path / "mine.ledger.sqlite"
    for there in (old, Memory(old).path):
        there.touch()
        assert path() == old
        there.unlink()
