"""A federation of tables, from a plan and `records.toml` alone: dry first, and a no costs nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sottovoce import data
from sottovoce.cli.application import app
from sottovoce.data import Description, read_folder
from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement
from sottovoce.federation.node import Node
from sottovoce.federation.onboarding import Specification
from sottovoce.federation.onboarding.client import personalize
from sottovoce.federation.onboarding.server import Onboarding
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.federation.server import Coordinator, Options
from sottovoce.federation.status.progress import write_run
from sottovoce.federation.store import Store
from sottovoce.models.tensors import load_tensors
from sottovoce.personal import PersonalModel
from sottovoce.personal.prediction import predict
from sottovoce.plan import Plan
from sottovoce.privacy.ledger import OWN_RECORDS, Ledger, client_scope
from sottovoce.privacy.terms import Terms
from sottovoce.release.secrets import participant_name
from sottovoce.report.run import write_report
from sottovoce.run.prepare import complete
from sottovoce.run.training import train
from tests.run.test_folder import sites
from tests.small import ILL

from .world import World, same

SIZES = {"north": 60, "south": 35, "west": 110}
PLAN: dict[str, Any] = {
    "preset": "tuned",
    "dataset": "records.toml",
    "partition": "client",
    "participants": 3,
    "future_clients": 0,
    "model": "linear",
    "method": "blend",
    "context": "public",
    "coefficients": 12,
    "context_records": 0,
    "rounds": 3,
    "clients_per_round": 3,
    "learning_rate": 0.0,
    "weighting": 1.5,
    "channel": "direct",
    "evaluate_every": 0,
    "seeded": True,
}


def lines(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    ages, sexes = rng.integers(1, 100, count), rng.choice(["f", "m", "x"], count)
    ill = np.where(ages + rng.normal(0, 20, count) > 50, "yes", "no")
    return [f"{age},{sex},{what}" for age, sex, what in zip(ages, sexes, ill, strict=True)]


def write(path: Path, rows: list[str]) -> None:
    path.write_text("\n".join(["age,sex,ill", *rows]) + "\n")


def store_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "rounds.jsonl").read_text().splitlines()]


class Tables(World):
    """Sites with a table each; the server has a plan and `records.toml`."""

    def __init__(self, folder: Path, *, options: Options | None = None, **changes: Any) -> None:
        self.folder, self._options = folder, options
        self.sites = folder / "sites"
        self.sites.mkdir(parents=True)
        (self.sites / "records.toml").write_text(ILL)
        for seed, (name, count) in enumerate(SIZES.items()):
            write(self.sites / f"{name}.csv", lines(count, seed))
        plan = Plan.load(overrides={**PLAN, **changes})
        facts = Description.load(self.sites / "records.toml").facts()
        self.agreement = Agreement(*complete(plan, facts), simulation=True)
        self.names = list(SIZES)
        self.start()

    def node(self, index: int, agreement: Agreement | None = None, directory: str | None = None) -> Node:
        name = self.names[index]
        return Node(
            self.folder / (directory or f"state-{name}"),
            self.sites / f"{name}.csv",
            agreement or self.agreement,
            wish=index,
            simulated=True,
        )

    def log(self, index: int) -> str:
        return (self.folder / f"state-{self.names[index]}" / "client.log").read_text()

    def spent(self, index: int) -> int:
        path = self.sites / f"{self.names[index]}.ledger.sqlite"
        if not path.exists():
            return 0
        with Ledger.open(path, scope=client_scope(self.names[index])) as book:
            return book.releases(OWN_RECORDS)


def test_clients_declare_their_records_and_the_agreement_is_frozen_before_anything_is_asked(
    tmp_path: Path,
) -> None:
    world = Tables(tmp_path)
    assert world.agreement.open
    for index in (0, 1):
        world.enrol(index)
    world.coordinator.advance()
    assert world.coordinator.missing() == {}
    assert not world.coordinator.done
    world.kill()
    world.start()
    assert world.coordinator.roster.enrolled == {0, 1}
    world.enrol(2)
    world.coordinator.advance()
    assert world.coordinator.agreement.sizes == (48, 28, 88)
    assert set(world.coordinator.missing()) == {0, 1, 2}
    sigmas = [world.coordinator.blueprint.releases_of(index)["gradient"].sigma for index in range(3)]
    assert sigmas[2] < sigmas[0] < sigmas[1]
    world.finish()
    world.deliver_models()
    assert len(list(world.sites.glob("*.personal.safetensors"))) == 3
    result = write_run(tmp_path / "run", world.coordinator)
    assert list(result["epsilon"]["per_client"]) == list(SIZES)
    assert store_lines(tmp_path)[0]["clients"] == list(SIZES)
    for epsilon in result["epsilon"]["per_client"].values():
        assert epsilon == pytest.approx(8.0, rel=1e-3)  # each its own noise, and all the same promise


class Hospitals(Tables):
    """The four hospitals that are shipped, each with its own copy of its file."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self._options, self.sites = folder, None, folder / "hospitals"
        data.copy_shipped("heart", self.sites)
        self.names = list(data.client_files(self.sites))
        plan = Plan.load(overrides={**PLAN, "participants": len(self.names), "coefficients": 0, **changes})
        facts = Description.load(self.sites / "records.toml").facts()
        self.agreement = Agreement(*complete(plan, facts), simulation=True)
        self.start()


@pytest.mark.parametrize("shipped", [False, True], ids=["own", "heart"])
def test_tables_of_unlike_size_train_as_in_the_simulator_bit_for_bit(tmp_path: Path, shipped: bool) -> None:
    """Alike are who holds what, what each trains on, and all bytes; a run calls its sites by their files."""
    # A seeded run is named by its plan: what is left to a recipe is 0 in an open agreement, another name.
    world = (Hospitals if shipped else Tables)(tmp_path, preset="best", clip=1.0, bias_scale=0.5)
    sites = data.load("heart") if shipped else read_folder(world.sites)
    assert list(sites.clients) == world.names
    called = replace(
        sites, name="records.toml", clients=tuple(map(participant_name, range(len(world.names))))
    )
    world.enrol_all()
    world.coordinator.advance()
    world.finish()
    train(world.agreement.plan, tmp_path / "simulated", dataset=called)
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert same(simulated, world.coordinator.server.state())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("age,sex\n50,f\n60,m\n", "no column 'ill'"),
        ("age,sex,ill\nold,f,no\nyoung,m,yes\nmiddle,f,no\n", "column 'age'"),
        ("age,sex,ill\n" + "50,f,perhaps\n" * 10, "column 'ill'"),
        ("age,sex,ill\n50,f,no\n", "holds 1 records"),
    ],
)
def test_what_fails_costs_nothing_and_only_its_owner_reads_why(
    tmp_path: Path, text: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = Tables(tmp_path)
    (world.sites / "north.csv").write_text(text)
    with pytest.raises(EnrolmentError) as refused:
        world.node(0).enrol(world.coordinator.roster.offer())
    assert str(refused.value) == "this client is not ready: its own log says why"
    assert why in world.log(0)
    assert world.spent(0) == 0
    assert not list((tmp_path / "state-north").glob("enrolment-*"))
    write(world.sites / "north.csv", lines(60, 0))  # corrected: it is ready now
    assert world.enrol(0) == 0


def test_a_budget_that_does_not_reach_the_last_round_is_noticed_before_the_first(tmp_path: Path) -> None:
    world = Tables(tmp_path, epsilon=9.0)
    with pytest.raises(EnrolmentError, match="exceed the budget"):
        world.node(0).enrol(world.coordinator.roster.offer())
    assert world.spent(0) == 0


def test_a_model_that_cannot_take_these_records_is_noticed_before_the_first_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Tables(tmp_path)

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("sottovoce.release.blueprint.clipped_mean", broken)
    with pytest.raises(EnrolmentError, match="not ready"):
        world.node(0).enrol(world.coordinator.roster.offer())
    assert "mat1 and mat2" in world.log(0)
    assert world.spent(0) == 0


def test_the_first_frozen_agreement_holds_and_holds_what_the_client_declared(tmp_path: Path) -> None:
    world = Tables(tmp_path)
    world.enrol_all()
    world.coordinator.advance()
    request = world.coordinator.request(0, "gradient")
    for sizes, why in (
        ([49, 28, 88], "another number"),
        ([48, 28], "3 participants"),
        ([], "3 participants"),
    ):
        with pytest.raises(SottovoceError, match=why):
            world.node(0).release({**request, "sizes": sizes})
    with pytest.raises(EnrolmentError, match="another agreement"):
        world.node(0).release({**request, "sizes": [48, 29, 88]})
    assert world.spent(0) == 0
    world.node(0).release(request)
    other = world.agreement.frozen([48, 29, 88])
    with pytest.raises(EnrolmentError, match="frozen the agreement twice"):
        world.node(0).release({**request, "sizes": [48, 29, 88], "agreement": other.digest()})


def test_records_that_were_added_change_no_denominator_and_too_few_count_as_zero(tmp_path: Path) -> None:
    world = Tables(tmp_path, seeded=False)
    world.enrol_all()
    world.coordinator.advance()
    write(world.sites / "north.csv", lines(80, 0))
    world.step()
    with Ledger.open(world.sites / "north.ledger.sqlite", scope=client_scope("north")) as book:
        [entry] = book.charges(OWN_RECORDS)
    assert entry.charge.sensitivity == pytest.approx(2.0 / 48)
    write(world.sites / "north.csv", lines(50, 0))
    world.answer(0)  # whether a file has enough records is not for the server to learn
    with Ledger.open(world.sites / "north.ledger.sqlite", scope=client_scope("north")) as book:
        assert len(list(book.charges(OWN_RECORDS))) == 2


def test_where_a_person_has_several_records_clients_declare_persons(tmp_path: Path) -> None:
    world = Tables(tmp_path)
    text = 'unit = "person"\n' + ILL
    for name in SIZES:
        path = world.sites / f"{name}.csv"
        header, *rows = path.read_text().splitlines()
        path.write_text("\n".join([f"{header},person", *(f"{row},{i // 2}" for i, row in enumerate(rows))]))
    world.kill()
    world.agreement = replace(world.agreement, facts=Description.parse(text).facts())
    (tmp_path / "server.sqlite").unlink()
    world.start()
    world.enrol_all()
    world.coordinator.advance()
    assert world.coordinator.agreement.sizes == (24, 14, 44)
    world.finish()
    with Ledger.open(world.sites / "north.ledger.sqlite", scope=client_scope("north")) as book:
        assert {entry.charge.sensitivity for entry in book.charges(OWN_RECORDS)} == {2.0 / 24}
    assert write_run(tmp_path / "run", world.coordinator)["unit"] == "person"


def test_a_name_that_is_taken_or_could_be_markup_is_replaced_by_a_number(tmp_path: Path) -> None:
    world = Tables(tmp_path)
    answers = [world.node(index).enrol(world.coordinator.roster.offer()) for index in range(3)]
    for answer, name in zip(answers, ("north", "north", "<b>south</b>"), strict=True):
        world.coordinator.roster.enrol({**answer, "name": name}, "9")
    assert world.coordinator.roster.names == ["north", "participant-1", "participant-2"]


def test_a_client_that_declares_nothing_is_refused(tmp_path: Path) -> None:
    world = Tables(tmp_path)
    answer = world.node(0).enrol(world.coordinator.roster.offer())
    for false in (0, -1, 2**40, "48", None, True):
        with pytest.raises(EnrolmentError, match=r"declare|records is not what it must be"):
            world.coordinator.roster.enrol({**answer, "records": false}, "9")
    with pytest.raises(SottovoceError, match="before anything was asked"):
        world.coordinator.accept(0, {"kind": "gradient", "round": 1, "release": b""})


def test_who_is_waited_for_is_said_and_nothing_begins_without_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = Tables(tmp_path, options=Options(patience=0.0))
    world.enrol(1)
    world.coordinator.advance()
    assert "waiting for participant-0, participant-2" in caplog.text
    assert world.coordinator.missing() == {}
    with pytest.raises(SottovoceError, match="have not declared"):
        world.agreement.blueprint()


def test_who_is_waited_for_is_said_once_in_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("sottovoce.federation.server.time.monotonic", lambda: now)
    world = Tables(tmp_path, options=Options(patience=60.0))
    world.enrol(1)
    said = []
    for seconds in (0.0, 59.0, 61.0, 62.0, 120.0, 122.0):
        now = 1000.0 + seconds
        caplog.clear()
        assert world.coordinator.advance() is None
        said.append("waiting for" in caplog.text)
    assert said == [False, False, True, False, False, True]
    assert world.coordinator.round == 0
    assert not world.coordinator.closed


def test_a_frozen_agreement_survives_its_file(tmp_path: Path) -> None:
    world = Tables(tmp_path)
    frozen = world.agreement.frozen([48, 28, 88])
    again = Agreement.parse(frozen.to_toml(), simulation=True)
    assert again == frozen
    assert again.digest() == frozen.digest() != world.agreement.digest()
    assert "sizes" in (world.agreement.difference(frozen) or frozen.difference(world.agreement) or "")
    other = Coordinator(frozen, Store.open(tmp_path / "other.sqlite", frozen))  # a second run, a year later
    assert other.missing()


def test_a_federation_of_unlike_sites_serves_future_clients(tmp_path: Path) -> None:
    shares = {"context": "shares", "context_share": 0.05, "prior": "context"}
    world = Tables(tmp_path, seeded=False, **shares)
    world.agreement = replace(world.agreement, simulation=False)
    world.enrol_all()
    world.coordinator.advance()
    world.finish()
    write_run(tmp_path / "run", world.coordinator)
    service = Onboarding(tmp_path / "run")
    fields = json.loads(json.dumps(service.specification.fields(service.blueprint)))
    told = Specification.parse(fields)
    assert told.agreement.sizes == (48, 28, 88)
    told.check(fields, told.agreement.blueprint())
    (tmp_path / "east").mkdir()
    write(tmp_path / "east" / "east.csv", lines(40, 9))
    answer = personalize(tmp_path / "run", tmp_path / "east" / "east.csv", tmp_path / "east" / "model")
    assert answer["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert PersonalModel.read(tmp_path / "east" / "model").origin.client == "east"


class OtherTask(Tables):
    """Sites whose records have several labels, or a number to predict; the agreement is `federate`'s."""

    def __init__(self, folder: Path, task: str) -> None:
        self.folder, self._options = folder, None
        sizes = {"north": 400, "001": 250, "3": 300, "west": 200}  # so many that noise decides little
        self.sites, self.names = sites(folder / "sites", task, sizes=sizes), ["001", "north", "west"]
        told = ["--records", self.sites / "records.toml", "--out", folder / "app"]
        plan = ["preset=best", "participants=3", "future_clients=0", "rounds=8", "channel=direct"]
        result = CliRunner().invoke(app, ["federate", *plan, *map(str, told)])
        assert result.exit_code == 0, result.output
        self.agreement = Agreement.load(folder / "app" / "sottovoce_app" / "agreement.toml")
        self.start()

    def node(self, index: int, agreement: Agreement | None = None, directory: str | None = None) -> Node:
        name = self.names[index]
        return Node(self.folder / f"state-{name}", self.sites / f"{name}.csv", self.agreement, wish=index)


@pytest.mark.parametrize("task", ["labels", "number"])
def test_other_tasks_are_federated_from_a_plan_and_records_toml(tmp_path: Path, task: str) -> None:
    world = OtherTask(tmp_path, task)
    assert world.agreement.plan.partition == "client"
    world.enrol_all()
    world.coordinator.advance()
    world.finish()
    world.deliver_models()
    result = write_run(tmp_path / "run", world.coordinator)
    assert (result["task"], max(result["epsilon"]["per_client"].values())) == (
        task,
        pytest.approx(8, rel=1e-3),
    )
    write_report(tmp_path / "run")
    model = PersonalModel.read(world.sites / "north.personal.safetensors")
    summary = predict(model, world.sites / "west.csv", tmp_path / "predictions.csv")
    found = np.genfromtxt(tmp_path / "predictions.csv", delimiter=",", names=True)
    truth = np.genfromtxt(world.sites / "west.csv", delimiter=",", names=True, usecols=range(5))
    assert summary.records == len(found) == 200
    if task == "number":
        assert np.corrcoef(found["value"], truth["age"])[0, 1] > 0.7
    else:
        assert np.mean(found["decision_old"] == truth["old"]) > 0.7
    (tmp_path / "east").mkdir()
    later = Path(shutil.copy(world.sites / "3.csv", tmp_path / "east" / "east.csv"))
    answer = personalize(tmp_path / "run", later, tmp_path / "east" / "model")
    assert (answer["epsilon"], answer["metric"]) == (0, "r2" if task == "number" else "accuracy")


def test_what_was_looked_up_in_records_takes_its_owners_word(tmp_path: Path) -> None:
    """The mark of a drafted records.toml is in the agreement, and a node refuses it by itself."""
    world = Tables(tmp_path)
    text = ILL.replace('kind = "number"', 'kind = "number"\nlooked_up = ["low", "high"]', 1)
    plan = Plan.load(overrides={**PLAN, "seeded": False})
    agreement = Agreement(*complete(plan, Description.parse(text).facts()))
    read_again = Agreement.parse(agreement.to_toml())
    files = (tmp_path / "state", world.sites / "north.csv", read_again)
    offer = {**world.coordinator.roster.offer(), "agreement": agreement.digest()}
    with pytest.raises(EnrolmentError, match=r"low and high of age.*looked_up = true in node.toml"):
        Node(*files, wish=0).enrol(offer)
    assert world.spent(0) == 0
    assert Node(*files, wish=0, terms=Terms(looked_up=True)).enrol(offer)["participant"] == 0


def test_a_node_describes_its_records_by_a_map_that_its_owner_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    world = Tables(tmp_path)
    own = "tests.cli.test_newcomers:pairs"
    changes = {"features": own, "feature_size": 0, "coefficients": 0, "seeded": False}
    facts = Description.parse(ILL).facts()
    agreement = Agreement(
        *complete(Plan.load(overrides={**PLAN, **changes}), facts, features=own), features=own
    )
    with pytest.raises(SottovoceError, match="no built-in map"):
        Agreement.parse(agreement.to_toml())
    named = Agreement.parse(agreement.to_toml(), features=own)
    offer = {**world.coordinator.roster.offer(), "agreement": agreement.digest()}
    node = Node(tmp_path / "state", world.sites / "north.csv", named, wish=0)
    assert node.enrol(offer)["records"] == 48
