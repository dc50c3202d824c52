"""A witness outside of a machine knows what a machine that was put back as a whole does not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.node import Node
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.federation.server import Fields
from sottovoce.federation.site.recovery import LEFT
from sottovoce.federation.site.witness import Witness, WitnessError
from sottovoce.privacy.ledger import OWN_RECORDS
from sottovoce.report.look import look

from ..world import QUICK, World, charged, ledger, roll_back


class Watched:
    """A world whose client 0 may have a witness outside of its machine."""

    def __init__(self, folder: Path, *, witness: bool, rounds: int = 4) -> None:
        self.world = World(folder, **{**QUICK, "rounds": rounds}, clients_per_round=3, seeded=False)
        self.mine, self._backup = folder / "clients" / "client-0", folder / "backup"
        self.outside = folder / "outside"
        self.outside.mkdir()
        self._witness = self.outside if witness else None
        self.world.coordinator.roster.enrol(self.node.enrol(self.world.coordinator.roster.offer()), "0")
        with ledger(self.world, 0) as book:
            book.raise_budget(60.0)
        for index in (1, 2):
            self.world.enrol(index)

    @property
    def node(self) -> Node:
        return replace(self.world.node(0), witness=self._witness)

    def answer(self) -> Fields:
        """Client 0 answers what is open, and then all others do."""
        coordinator = self.world.coordinator
        answer = self.node.release(coordinator.request(0, coordinator.missing()[0]))
        coordinator.accept(0, answer)
        self.world.step()
        return answer

    def back_up(self) -> None:
        shutil.copytree(self.mine, self._backup)

    def put_back(self, patch: pytest.MonkeyPatch) -> None:
        """As a virtual machine is, of which a snapshot is restored: nothing on it shows that."""
        roll_back(patch, self._backup, self.mine)

    def spent(self) -> float:
        with ledger(self.world, 0) as book:
            return book.spent(OWN_RECORDS)

    @property
    def prices(self) -> tuple[float, float]:
        releases = self.world.coordinator.blueprint.releases_of(0)
        return releases["context"].mu_squared, releases["gradient"].mu_squared


@pytest.fixture
def mend(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


def test_a_machine_put_back_as_a_whole_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, mend: pytest.MonkeyPatch
) -> None:
    """Admitted: what the lying server has is twice what is charged, and status said so beforehand."""
    here = Watched(tmp_path, witness=False)
    here.answer()
    here.back_up()
    request = here.world.coordinator.request(0, "gradient")
    first = here.answer()
    before = here.spent()
    here.put_back(mend)
    second = here.node.release(request)
    assert second["release"] != first["release"]
    assert here.spent() == before
    here.node.contacted("release", request)
    said = look(here.mine)
    context, each = here.prices
    with ledger(here.world, 0) as book:
        doubled = book.allowed.price(context + each + 2 * 3 * each)
    assert said.epsilon["put_back"] == pytest.approx(doubled)
    assert (
        f"is not noticed: the rest of this run may be spent twice, together ε {doubled:.3g}" in said.restores
    )


def test_a_witness_outside_shows_that_a_machine_was_put_back_as_a_whole(
    tmp_path: Path, mend: pytest.MonkeyPatch
) -> None:
    here = Watched(tmp_path, witness=True)
    here.answer()
    here.back_up()
    request = here.world.coordinator.request(0, "gradient")
    here.answer()
    before = here.spent()
    here.put_back(mend)
    assert here.node.release(request) == {"kind": "gradient", "round": 1, "left": LEFT}
    assert here.spent() == pytest.approx(before)  # what the witness knows of it is charged at once
    assert charged(here.world, 0) == [("context", 0)]
    here.node.contacted("release", request)
    said = look(here.mine)
    assert said.restores == f"a machine put back as a whole is noticed by the witness {here.outside}"
    assert "put_back" not in said.epsilon


@pytest.mark.parametrize("witness", [True, False])
def test_a_second_restore_that_forgets_the_first_rejoin_is_caught_by_a_witness_and_admitted_without(
    tmp_path: Path, mend: pytest.MonkeyPatch, witness: bool
) -> None:
    here = Watched(tmp_path, witness=witness)
    here.answer()
    here.back_up()
    context, each = here.prices
    rest, told = 4 * each, list[str]()
    for _ in range(2):
        here.answer()
        if witness:
            here.put_back(mend)
        else:  # or there would be nothing to rejoin: a copy, as every restored backup is
            shutil.rmtree(here.mine)
            shutil.copytree(here.world.folder / "backup", here.mine)
        told += here.node.rejoin()
    assert len(told) == 2
    # What may have left: the run to its end, and after the first rejoin the rest of it once more.
    assert here.spent() == pytest.approx(context + (2 * rest if witness else rest))
    assert "release" in here.answer()


def test_a_rejoin_alone_is_forgotten_by_no_witness(tmp_path: Path, mend: pytest.MonkeyPatch) -> None:
    """Nothing has left since the first rejoin, but its owner has said it."""
    here = Watched(tmp_path, witness=True)
    here.answer()
    here.back_up()
    for _ in range(2):
        shutil.rmtree(here.mine)
        shutil.copytree(here.world.folder / "backup", here.mine)
        assert len(here.node.rejoin()) == 1
    context, each = here.prices
    assert here.spent() == pytest.approx(context + 2 * 4 * each)
    here.put_back(mend)
    assert here.node.release(here.world.coordinator.request(0, "gradient"))["left"] == LEFT


def test_what_the_witness_knows_of_a_run_is_charged_in_every_other(
    tmp_path: Path, mend: pytest.MonkeyPatch
) -> None:
    here = Watched(tmp_path, witness=True)
    here.back_up()
    here.answer()
    before = here.spent()
    here.put_back(mend)
    another = {**here.world.coordinator.roster.offer(), "run": "0" * 16}
    here.node.enrol(another)
    assert here.spent() == pytest.approx(before)


def test_a_machine_put_back_to_before_its_enrolment_does_not_enrol_in_that_run_again(
    tmp_path: Path, mend: pytest.MonkeyPatch
) -> None:
    here = Watched(tmp_path, witness=True)
    here.back_up()
    for path in (tmp_path / "backup").glob("*-*"):
        path.unlink()
    offer = here.world.coordinator.roster.offer()
    here.answer()
    here.put_back(mend)
    with pytest.raises(EnrolmentError, match="put back to before it took part in this run"):
        here.node.enrol(offer)


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_nothing_leaves_while_the_witness_cannot_be_asked(tmp_path: Path, harm: str) -> None:
    here = Watched(tmp_path, witness=True)
    request = here.world.coordinator.request(0, "context")
    if harm == "gone":
        here.outside.rename(tmp_path / "elsewhere")
    else:
        [file] = here.outside.iterdir()
        file.write_text("{}")
    with pytest.raises(WitnessError, match="nothing leaves until it"):
        here.node.release(request)
    assert charged(here.world, 0) == []
    if harm == "gone":
        (tmp_path / "elsewhere").rename(here.outside)
        assert "release" in here.node.release(request)


def test_a_message_leaves_when_the_witness_has_it_and_not_before(
    tmp_path: Path, mend: pytest.MonkeyPatch
) -> None:
    here = Watched(tmp_path, witness=True)
    request = here.world.coordinator.request(0, "context")

    def broken(*_: object) -> None:
        raise SottovoceError("the share is full")

    with mend.context() as patch:
        patch.setattr(Witness, "note", broken)
        for _ in range(2):
            with pytest.raises(SottovoceError, match="the share is full"):
                here.node.release(request)
    assert charged(here.world, 0) == [("context", 0)]
    assert here.node.release(request)["release"]  # as it was stored
    [file] = here.outside.iterdir()
    assert json.loads(file.read_text())["releases"] == 1
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_witness_that_has_lost_its_file_is_no_proof(tmp_path: Path) -> None:
    here = Watched(tmp_path, witness=True)
    here.answer()
    [file] = here.outside.iterdir()
    kept = file.read_bytes()
    file.unlink()  # or the share is not mounted
    assert here.node.release(here.world.coordinator.request(0, "gradient"))["left"] == LEFT
    file.write_bytes(kept)
    assert "release" in here.answer()


def test_a_witness_may_come_later_and_be_taken_away(tmp_path: Path) -> None:
    here = Watched(tmp_path, witness=False)
    here.answer()
    for folder in (here.outside, None, here.outside):
        here._witness = folder
        assert "release" in here.answer()
    [file] = here.outside.iterdir()
    assert json.loads(file.read_text())["releases"] == 4


def test_clients_that_share_a_folder_have_files_of_their_own_without_anything_of_records(
    tmp_path: Path,
) -> None:
    here = Watched(tmp_path, witness=True)
    replace(here.world.node(1), witness=here.outside).enrol(here.world.coordinator.roster.offer())
    Witness(here.outside, "a/../b").note("3f2a", {"releases": 1, "spent": 0.1})
    names = sorted(path.name for path in here.outside.iterdir())
    assert names == sorted(["a____b.3f2a.json", f"client-0.{here.world.store.run}.json"])
    here.answer()
    known = Witness(here.outside, "client-0").runs()[here.world.store.run]
    assert known.keys() == {"releases", "spent", "server", "masked", "cost"}
