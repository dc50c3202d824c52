"""A ledger cannot lose its past unnoticed: what its witness knows is charged, told, or refused."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.machine.rollback import Memory
from sottovoce.privacy import history as past_module
from sottovoce.privacy.accounting import SLACK, Total
from sottovoce.privacy.history import Copied, Past, Remembered
from sottovoce.privacy.ledger import (
    OWN_RECORDS,
    Budget,
    Charge,
    Ledger,
    Overspent,
    StreamReused,
    client_scope,
)
from sottovoce.privacy.ledger_file import LedgerError

PLENTY = Budget(epsilon=1e6, delta=1e-5, accounting="exact")
MINE = client_scope("mine")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.ledger.sqlite"


def release(path: Path, run: str, *rounds: int, mu: float = 0.5) -> float:
    """Charges gradients of a run; what the ledger says was spent in all."""
    with Ledger.open(path, scope=MINE) as ledger:
        for number in rounds:
            charge = Charge(run, OWN_RECORDS, "gradient", number, sensitivity=mu, sigma=1.0)
            ledger.commit(charge, b"message", PLENTY)
        return ledger.spent(OWN_RECORDS)


def files(path: Path) -> list[Path]:
    """The ledger and its write-ahead log, without its witness."""
    return [Path(f"{path}{end}") for end in ("", "-wal", "-shm") if Path(f"{path}{end}").exists()]


def restore(backup: Path, path: Path) -> None:
    """Only the ledger itself, as an owner would who knows of nothing else."""
    for file in files(path):
        file.unlink()
    shutil.copy(backup, path)


def aged(path: Path, seconds: float) -> None:
    """Makes lines of a witness as old as if they had been written so long ago."""
    file = Memory(path).path
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["time"] -= int(seconds * 1e9)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_deleted_ledger_is_charged_again_for_all_runs(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    release(path, "a", 1, 2)
    spent = release(path, "b", 1)
    for file in files(path):
        file.unlink()
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.spent(OWN_RECORDS) == pytest.approx(spent, rel=SLACK)
        assert ledger.releases(OWN_RECORDS) == 3
        assert ledger.past.lost == [Total(OWN_RECORDS, "a", 2, 0.5), Total(OWN_RECORDS, "b", 1, 0.25)]
    assert "it had lost 2 releases of own records in run a, which are charged again" in caplog.text
    assert release(path, "c", 1) == pytest.approx(spent + 0.25)


def test_a_restored_ledger_is_charged_for_what_it_lacks_and_once_only(path: Path, tmp_path: Path) -> None:
    release(path, "a", 1)
    backup = Path(shutil.copy(path, tmp_path / "backup"))
    spent = release(path, "a", 2, 3)
    for _ in range(2):
        restore(backup, path)
        assert release(path, "a") == pytest.approx(spent, rel=SLACK)
        assert release(path, "a") == pytest.approx(spent, rel=SLACK)


def test_a_ledger_that_lost_its_past_does_not_buy_more(path: Path) -> None:
    budget = Budget(epsilon=1.0, delta=1e-5, accounting="exact")
    release(path, "a", 1, mu=0.25)
    for file in files(path):
        file.unlink()
    with Ledger.open(path, scope=MINE) as ledger, pytest.raises(Overspent):
        ledger.commit(Charge("b", OWN_RECORDS, "context", 0, sensitivity=0.25, sigma=1.0), b"", budget)


def test_the_budget_comes_back_with_the_past(path: Path) -> None:
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.willing(2.0)
    for file in files(path):
        file.unlink()
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.willing(4.0).epsilon == 2.0


def test_another_ledger_in_its_place_is_refused(path: Path, tmp_path: Path) -> None:
    release(path, "a", 1, 2)
    other = tmp_path / "elsewhere" / path.name
    other.parent.mkdir()
    release(other, "a", 1)
    restore(other, path)
    with pytest.raises(LedgerError, match=r"is not the ledger that .* knows: put that one back"):
        Ledger.open(path, scope=MINE)


def test_a_ledger_and_witness_that_are_gone_leave_a_lock_that_tells(path: Path) -> None:
    release(path, "a", 1)
    for file in (*files(path), Memory(path).path):
        file.unlink()
    with pytest.raises(LedgerError, match="a lock file shows that they were there: restore both"):
        Ledger.open(path, scope=MINE)


def test_a_ledger_without_its_witness_is_a_copy(path: Path) -> None:
    release(path, "a", 1)
    Memory(path).path.unlink()
    with Ledger.open(path, scope=MINE) as ledger, pytest.raises(Copied, match="ledger vouch"):
        ledger.past.check()


@pytest.mark.parametrize("what", ["witness", "lock"])
def test_files_put_back_are_noticed_until_their_owner_vouches(path: Path, tmp_path: Path, what: str) -> None:
    release(path, "a", 1)
    shutil.copytree(path.parent, tmp_path / "backup")
    release(path, "a", 2)
    for file in path.parent.glob("mine.*"):
        if what == "lock" or file.suffix != ".lock":
            file.unlink()
            if (tmp_path / "backup" / file.name).exists():
                shutil.copy(tmp_path / "backup" / file.name, file)
    if what == "witness":  # put back half a minute later; sooner, only the lock tells
        aged(path, 30)
    for _ in range(2):  # looking does not make it true
        with Ledger.open(path, scope=MINE) as ledger:
            assert ledger.past.copied
            ledger.willing(1.0)
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.trust_copy()
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.past.check()


@pytest.mark.parametrize("seconds", [0, 30])
def test_an_older_witness_put_back_beside_its_ledger_takes_nothing_away(
    path: Path, tmp_path: Path, seconds: float
) -> None:
    release(path, "a", 1)
    backup = shutil.copy(Memory(path).path, tmp_path / "backup")
    spent = release(path, "a", 2)
    shutil.copy(backup, Memory(path).path)
    aged(path, seconds)
    assert release(path, "a") == spent
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.past.copied == (seconds > 0)


def test_an_untouched_ledger_is_no_copy(path: Path) -> None:
    for number in range(5):
        release(path, "a", number)
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.past.check()
        assert ledger.past.lost == []


def test_a_process_killed_between_charge_and_note_is_charged_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(path, "a", 1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Past, "note_charges", killed)
        with pytest.raises(KeyboardInterrupt):
            release(path, "a", 2)
    spent = release(path, "a")  # opening it tells the witness
    assert spent == pytest.approx(0.5)
    for file in files(path):
        file.unlink()
    assert release(path, "a") == pytest.approx(spent)


@pytest.mark.parametrize("half", ["{", '{"ledger": "half a li'])
def test_a_line_cut_off_by_a_crash_is_no_past(path: Path, half: str) -> None:
    spent = release(path, "a", 1)
    with Memory(path).path.open("a") as file:
        file.write(half)
    assert release(path, "a") == spent
    assert release(path, "a", 2) == pytest.approx(2 * spent)
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.past.check()
        assert ledger.past.lost == []


def test_a_damaged_witness_is_a_copy_until_its_owner_vouches(path: Path) -> None:
    spent = release(path, "a", 1)
    said = Memory(path).path
    said.write_bytes(b"garbage\n" + said.read_bytes())
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.past.copied
        ledger.trust_copy()
        ledger.past.check()  # from now on, not only when it is opened again
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.past.check()
        assert ledger.spent(OWN_RECORDS) == spent


@pytest.mark.parametrize(
    "line", [{"ledger": "name"}, {"ledger": "n", "scope": "s", "client": "c", "run": "r"}]
)
def test_a_fact_that_is_none_about_a_ledger_makes_it_a_copy(path: Path, line: dict[str, str]) -> None:
    spent = release(path, "a", 1)
    said = Memory(path).path
    said.write_text(json.dumps({**line, "time": 1}) + "\n" + said.read_text())
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.past.copied
        assert ledger.spent(OWN_RECORDS) == spent
        assert ledger.past.copy == Memory(path).lock_time() > 0
        ledger.trust_copy()
        assert ledger.past.copy == 0


def test_a_run_whose_releases_were_lost_does_not_go_on_and_others_do(path: Path) -> None:
    release(path, "a", 1)
    for file in files(path):
        file.unlink()
    release(path, "b", 1)
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.past.check()
        ledger.past.check("b")
        ledger.past.check("c")
        with pytest.raises(LedgerError, match="has lost releases of this run"):
            ledger.past.check("a")


def test_what_was_never_charged_is_a_sum_of_nothing(path: Path) -> None:
    release(path, "a", 1)
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.past.total_in("b") == ledger.past.lost_in("b") == Total(OWN_RECORDS, "b", 0, 0.0)
        assert ledger.past.total_in("a", "other") == Total("other", "a", 0, 0.0)


def test_the_witness_is_told_before_a_release_may_leave(path: Path) -> None:
    with Ledger.open(path, scope=MINE) as ledger:
        for number in range(3):
            ledger.commit(Charge("a", OWN_RECORDS, "gradient", number, 0.5, 1.0), b"m", PLENTY)
            said = Remembered.beside(path)
            assert said is not None
            assert said.totals == {(OWN_RECORDS, "a"): ledger.past.total_in("a")}


def test_a_long_witness_is_shortened_and_says_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_module, "_LONG", 3)
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.willing(3.0)
    release(path, "a", *range(20), mu=0.01)
    release(path, "b", 1, mu=0.01)
    with Ledger.open(path, scope=MINE) as ledger:
        totals = {(total.client, total.run): total for total in ledger.past.totals()}
    memory = Memory(path)
    said = Remembered.of(memory.recall() or [])
    assert (len(memory.recall() or []), said.totals, memory.copied) == (4, totals, False)
    assert said.budget == Budget(3.0, 1e-5, "exact")


def test_only_its_owner_reads_any_file_of_it_also_after_a_restore(path: Path) -> None:
    release(path, "a", 1)
    for file in path.parent.iterdir():
        file.chmod(0o644)
    with Ledger.open(path, scope=MINE):
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_a_release_explained_by_the_server_is_not_charged_twice(path: Path) -> None:
    spent = release(path, "a", 1, 2, 3)
    for file in files(path):
        file.unlink()
    with Ledger.open(path, scope=MINE) as ledger:
        charges = [Charge("a", OWN_RECORDS, "gradient", number, 0.5, 1.0) for number in (1, 2)]
        ledger.recover(charges, "a")
        assert ledger.spent(OWN_RECORDS) == pytest.approx(spent)
        assert ledger.releases(OWN_RECORDS) == 3
        assert ledger.past.lost_in("a").releases == 1
        ledger.recover([Charge("a", OWN_RECORDS, "gradient", 4, 0.5, 1.0)], "b")  # of no run that lost any
        assert ledger.spent(OWN_RECORDS) == pytest.approx(spent + 0.25)
    assert release(path, "a") == pytest.approx(spent + 0.25)


def old_format(path: Path, scope: str, account: str) -> None:
    """A ledger as version 0.1 wrote it."""
    with sqlite3.connect(path) as database:
        database.executescript(f"""
            PRAGMA journal_mode = WAL; PRAGMA application_id = {0x536F7474}; PRAGMA user_version = 1;
            CREATE TABLE ledger (scope TEXT NOT NULL);
            CREATE TABLE release (id INTEGER PRIMARY KEY, client TEXT NOT NULL, run TEXT NOT NULL,
                kind TEXT NOT NULL, round INTEGER NOT NULL, sensitivity REAL NOT NULL CHECK (sensitivity > 0),
                sigma REAL NOT NULL CHECK (sigma > 0), time TEXT NOT NULL, UNIQUE (client, run, kind, round));
            CREATE TABLE message (release INTEGER PRIMARY KEY REFERENCES release (id), body BLOB NOT NULL);
            INSERT INTO ledger VALUES ('{scope}');
            INSERT INTO release VALUES (1, '{account}', 'a', 'context', 0, 0.5, 1.0, '2026-01-01T00:00:00');
            INSERT INTO message VALUES (1, x'00');
        """)
    database.close()


def test_a_clients_ledger_of_version_01_is_its_ledger_whatever_its_records_are_by_now(path: Path) -> None:
    old_format(path, "0" * 32, OWN_RECORDS)
    assert release(path, "b", 1) == pytest.approx(0.5)
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.past.check()
        assert ledger.stored("a", OWN_RECORDS, "context", 0) == b"\0"
    with pytest.raises(LedgerError, match="the ledger of the client 'mine', not of 'other'"):
        Ledger.open(path, scope=client_scope("other"))


def test_a_ledger_of_version_01_is_given_a_name_that_it_keeps(path: Path) -> None:
    old_format(path, "0" * 32, OWN_RECORDS)
    with Ledger.open(path, scope=MINE) as ledger:
        name = ledger.name
    assert len(name) == 32
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.name == name
        with pytest.raises(LedgerError, match="NOT NULL"):
            ledger._file.query("UPDATE ledger SET name = NULL")


def test_a_simulations_ledger_of_version_01_keeps_its_scope(path: Path) -> None:
    old_format(path, "division", "participant-0")
    for scope in (MINE, "another division"):
        with pytest.raises(LedgerError, match="about other records"):
            Ledger.open(path, scope=scope)
    with Ledger.open(path, scope="division") as ledger:
        assert ledger.spent("participant-0") == 0.25


def test_a_backup_of_version_01_beside_a_witness_is_a_restored_ledger(path: Path) -> None:
    old_format(path, "0" * 32, OWN_RECORDS)
    backup = Path(shutil.copy(path, path.with_name("backup")))
    spent = release(path, "b", 1)
    restore(backup, path)
    assert release(path, "b") == pytest.approx(spent)


def test_who_comes_second_when_a_ledger_is_created_takes_the_first(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, spent = os.link, []

    def faster(draft: Path, target: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "link", link)
            spent.append(release(path, "first", 1))
        link(draft, target)

    monkeypatch.setattr(os, "link", faster)
    assert release(path, "second") == spent[0] > 0


def test_releases_of_one_run_under_several_names_are_lost_once(path: Path) -> None:
    release(path, "a", 1)
    spent = release(path, "a/onboarding", 0)
    for file in files(path):
        file.unlink()
    for _ in range(2):
        assert release(path, "a") == pytest.approx(spent)
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.past.lost_in("a").releases == 2


def test_a_deleted_ledger_comes_back_for_its_own_client_only(path: Path) -> None:
    release(path, "a", 1)
    path.unlink()
    with pytest.raises(LedgerError, match="the ledger of the client 'mine', not of 'other'"):
        Ledger.open(path, scope=client_scope("other"))
    assert not path.exists()


def test_the_witness_is_on_the_disk_and_closed_to_others_before_a_commit_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, honest = list[str](), os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(os.readlink(f"/proc/self/fd/{file}")), honest(file))
    )
    before = os.umask(0)
    try:
        release(path, "a")
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
        assert str(path.parent) in synced
        synced.clear()
        release(path, "a", 1)
    finally:
        os.umask(before)
    assert synced == [str(Memory(path).path)]


def test_a_total_exceeds_another_by_releases_or_by_spending_beyond_rounding() -> None:
    known = Total("mine", "run", 2, 1.0)
    assert Total("mine", "run", 3, 1.0).exceeds(known)
    assert Total("mine", "run", 3, 0.5).exceeds(known)
    assert Total("mine", "run", 1, 1.001).exceeds(known)
    assert not Total("mine", "run", 2, 1.0 + SLACK / 2).exceeds(known)
    assert not Total("mine", "run", 1, 0.5).exceeds(known)
    assert not Total("mine", "run", 0, 0.0).exceeds(Total("mine", "run", 0, 0.0))


def test_a_ledger_that_is_refused_is_not_left_open(path: Path, tmp_path: Path) -> None:
    release(path, "a", 1)
    other = tmp_path / "other.ledger.sqlite"
    release(other, "a", 1)
    restore(other, path)
    with pytest.raises(LedgerError) as refused:  # which holds on to everything in the frames it passed
        Ledger.open(path, scope=MINE)
    assert "is not the ledger" in str(refused.value)
    assert str(path) not in {
        os.path.realpath(f"/proc/self/fd/{file}") for file in os.listdir("/proc/self/fd")
    }


def recovered(*rounds: int) -> list[Charge]:
    return [Charge("a", OWN_RECORDS, "gradient", number, sensitivity=0.5, sigma=1.0) for number in rounds]


def test_releases_are_recovered_all_or_none(path: Path) -> None:
    release(path, "a", 2)
    with Ledger.open(path, scope=MINE) as ledger:
        with pytest.raises(StreamReused):
            ledger.recover(recovered(1, 2), "a")
        assert ledger.releases(OWN_RECORDS) == 1
        assert ledger.stored("a", OWN_RECORDS, "gradient", 1) is None


@pytest.mark.parametrize(("releases", "spent"), [(0, 0.25), (1, 0.0), (1, 0.25)])
def test_what_is_recovered_is_no_longer_part_of_a_lost_sum(path: Path, releases: int, spent: float) -> None:
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.past.expect(Total(OWN_RECORDS, "a", releases, spent))
        ledger.recover(recovered(1), "a")
        assert ledger.past.lost_in("a") == Total(OWN_RECORDS, "a", 0, 0.0)
        assert ledger.past.total_in("a") == Total(OWN_RECORDS, "a", 1, 0.25)


def test_what_was_recovered_is_known_to_the_witness(path: Path) -> None:
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.recover(recovered(1, 2), "a")
    for file in files(path):
        file.unlink()
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.spent(OWN_RECORDS) == pytest.approx(0.5)
        assert ledger.past.lost == [Total(OWN_RECORDS, "a", 2, 0.5)]


def at_server(run: str, number: int) -> Charge:
    return Charge(run, OWN_RECORDS, "gradient", number, 0.5, 1.0, "server")


def test_a_row_says_where_the_noise_is_and_so_does_what_was_lost(path: Path) -> None:
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.commit(Charge("a", OWN_RECORDS, "context", 0, 0.5, 1.0), b"", PLENTY)
        ledger.commit_many([(at_server("a", number), b"") for number in (1, 2)], PLENTY)
        assert [entry.charge.place for entry in ledger.charges()] == ["client", "server", "server"]
        assert ledger.at_server(OWN_RECORDS) == 2
    for file in files(path):
        file.unlink()
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.past.lost == [Total(OWN_RECORDS, "a", 3, 0.75, server=2)]
        assert ledger.at_server(OWN_RECORDS) == 2
        ledger.recover([at_server("a", 1)], "a")
        assert ledger.at_server(OWN_RECORDS) == 2
        assert ledger.spent(OWN_RECORDS) == pytest.approx(0.75)


def test_a_ledger_of_format_2_has_all_its_noise_at_the_client(path: Path) -> None:
    release(path, "a", 1, 2)
    with sqlite3.connect(path) as database:
        database.executescript("""
            DROP VIEW spending; ALTER TABLE release DROP COLUMN place; ALTER TABLE lost DROP COLUMN server;
            ALTER TABLE release DROP COLUMN honest; ALTER TABLE release DROP COLUMN share;
            ALTER TABLE release DROP COLUMN helpers; ALTER TABLE lost DROP COLUMN masked;
            CREATE VIEW spending AS SELECT client, run, 1 AS releases, 0.25 AS spent FROM release;
            PRAGMA user_version = 2;
        """)
    database.close()
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.at_server(OWN_RECORDS) == 0
        assert [entry.charge.place for entry in ledger.charges()] == ["client", "client"]
    assert release(path, "a", 3) == pytest.approx(0.75)


def test_what_was_lost_at_the_server_is_counted_apart_from_what_is_still_known(
    path: Path, tmp_path: Path
) -> None:
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.commit(at_server("a", 1), b"", PLENTY)
    shutil.copy(path, tmp_path / "backup")
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.commit_many([(at_server("a", number), b"") for number in (2, 3)], PLENTY)
    restore(tmp_path / "backup", path)
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.past.lost == [Total(OWN_RECORDS, "a", 2, 0.5, server=2)]
        assert ledger.at_server(OWN_RECORDS) == 3


def refuses_others(path: Path) -> None:
    """Another process cannot write to the ledger now."""
    other = sqlite3.connect(path, timeout=0)
    with closing(other), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")


def test_nobody_else_writes_the_ledger_while_its_witness_is_told_or_a_loss_is_charged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    with Ledger.open(path, scope=MINE) as ledger:
        monkeypatch.setattr(Memory, "note", lambda *_: calls.append(refuses_others(path)))
        monkeypatch.setattr(Past, "_lose", lambda *_: calls.append(refuses_others(path)))
        ledger.commit(Charge("a", OWN_RECORDS, "context", 0, 0.5, 1.0), b"", PLENTY)
        ledger.past.expect(Total(OWN_RECORDS, "a", 5, 9.0))
    assert len(calls) == 2


def test_nobody_else_writes_the_ledger_while_it_is_compared_vouched_for_given_a_budget_or_counts_another(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, recall, note, trust = [], Memory.recall, Memory.note, Memory.trust
    with Ledger.open(path, scope=MINE) as ledger, Ledger.open(tmp_path / "other", scope="other") as other:
        other.commit(Charge("b", "north", "context", 0, 0.3, 1.0), b"", PLENTY)
        for honest in (recall, note, trust):
            monkeypatch.setattr(
                Memory,
                honest.__name__,
                lambda *told, honest=honest: (calls.append(refuses_others(path)), honest(*told))[1],
            )
        ledger.past.compare()
        assert len(calls) == 1
        ledger.trust_copy()
        ledger.willing(2.0)
        ledger.past.count_in(other.past, OWN_RECORDS, "north")
    assert len(calls) == 4


def test_nobody_else_writes_the_ledger_from_the_comparison_to_the_budget_that_is_put_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a budget that is raised meanwhile would be taken back."""
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.willing(2.0)
    calls, compare = [], Past.compare

    def compared(past: Past) -> Budget | None:
        found = compare(past)
        calls.append(refuses_others(path))
        return found

    monkeypatch.setattr(Past, "compare", compared)
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.willing(3.0).epsilon == 2.0
    assert len(calls) == 1


def test_nobody_else_sets_a_budget_between_a_look_at_the_strictest_and_a_stricter_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(path, scope=MINE) as ledger:
        calls, strict = [], ledger.willing(4.0)
        seen = property(lambda _: (calls.append(refuses_others(path)), strict)[1])
        monkeypatch.setattr(Ledger, "budget", seen)
        assert ledger._set(Budget(2.0, 1e-5, "exact"), raised=False).epsilon == 2.0
    assert len(calls) == 1


def test_a_witness_that_cannot_be_written_is_an_error_of_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with Ledger.open(path, scope=MINE) as ledger:
        monkeypatch.setattr(Memory, "note", broken)
        with pytest.raises(LedgerError, match="Input/output error"):
            ledger.commit(Charge("a", OWN_RECORDS, "context", 0, 0.5, 1.0), b"", PLENTY)
        monkeypatch.setattr(Memory, "trust", broken)
        with pytest.raises(LedgerError, match="Input/output error"):
            ledger.trust_copy()


def test_a_witness_from_before_noise_at_the_server_knows_of_none(path: Path) -> None:
    release(path, "a", 1, 2)
    file = Memory(path).path
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line.pop("server", None)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for part in files(path):
        part.unlink()
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.past.lost == [Total(OWN_RECORDS, "a", 2, 0.5, server=0)]


def test_two_ledgers_count_what_the_other_knows_and_never_what_it_counts_of_them(tmp_path: Path) -> None:
    one, two = tmp_path / "one.sqlite", tmp_path / "two.sqlite"
    with Ledger.open(one, scope="one") as here, Ledger.open(two, scope="two") as there:
        here.commit(Charge("a", "north", "gradient", 1, 0.5, 1.0), b"", PLENTY)
        here.commit(Charge("a", "south", "gradient", 1, 0.5, 1.0), b"", PLENTY)
        there.commit(Charge("b", OWN_RECORDS, "context", 0, 0.3, 1.0), b"", PLENTY)
        there.commit(Charge("c", OWN_RECORDS, "gradient", 1, 0.4, 1.0, "server"), b"", PLENTY)
        for _ in range(2):
            here.past.count_in(there.past, "north", OWN_RECORDS)
            there.past.count_in(here.past, OWN_RECORDS, "north")
        for ledger, client in ((here, "north"), (there, OWN_RECORDS)):
            assert ledger.spent(client) == pytest.approx(0.25 + 0.09 + 0.16)
            assert sum(total.releases for total in ledger.past.totals() if total.client == client) == 3
            assert sum(total.server for total in ledger.past.totals() if total.client == client) == 1
        assert here.spent("south") == 0.25
        assert here.past.lost == there.past.lost == []  # counted, not lost
    for path in files(one):
        path.unlink()
    with Ledger.open(one, scope="one") as back:  # its witness knows what it had counted
        assert back.spent("north") == pytest.approx(0.5)


def test_what_was_counted_is_known_to_the_witness_at_once(path: Path, tmp_path: Path) -> None:
    with Ledger.open(path, scope=MINE) as ledger, Ledger.open(tmp_path / "other", scope="other") as other:
        other.commit(Charge("b", "north", "context", 0, 0.3, 1.0), b"", PLENTY)
        ledger.past.count_in(other.past, OWN_RECORDS, "north")
    for file in files(path):
        file.unlink()
    assert release(path, "a") == pytest.approx(0.09)


def test_what_was_spent_beyond_the_known_releases_is_lost_without_a_release(path: Path) -> None:
    release(path, "a", 1, 2)
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.past.expect(Total(OWN_RECORDS, "a", 1, 2.0))
        assert ledger.past.lost == [Total(OWN_RECORDS, "a", 0, 1.5)]
        ledger.past.expect(Total(OWN_RECORDS, "a", 3, 1.0))
        assert ledger.past.lost[1:] == [Total(OWN_RECORDS, "a", 1, 0.0)]
        assert ledger.spent(OWN_RECORDS) == pytest.approx(2.0)


def test_another_ledger_is_counted_if_it_was_ever_there(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.count("north", {other: OWN_RECORDS, path: OWN_RECORDS})
        assert ledger.clients() == []
        assert not other.exists()
    with Ledger.open(other, scope=client_scope("other")) as book:
        book.commit(Charge("b", OWN_RECORDS, "context", 0, 0.3, 1.0), b"", PLENTY)
    for file in files(other):
        file.unlink()  # what its witness knows is charged again, under its own scope
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.count("north", {other: OWN_RECORDS, path: OWN_RECORDS})
        assert ledger.spent("north") == pytest.approx(0.09)
    Memory(other).path.unlink()
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.count("south", {other: OWN_RECORDS})
        assert ledger.spent("south") == pytest.approx(0.09)


def of_shares(run: str, number: int) -> Charge:
    """A part of a sum whose noise is that of four shares of 1 each, but for what rounding takes."""
    return Charge(run, OWN_RECORDS, "gradient", number, 1.0, 3.99**0.5, "shared", 4, 1.0, "board, lab")


def test_a_row_says_on_whose_shares_and_masks_its_price_rests_and_a_lost_one_costs_the_same(
    path: Path,
) -> None:
    """One share is left of four if all helpers fail: σ² is then 0.99, not 3.99."""
    price, alone = 1 / 3.99, 1 / 0.99
    with Ledger.open(path, scope=MINE) as ledger:
        ledger.commit_many([(of_shares("a", number), b"") for number in (1, 2)], PLENTY)
        assert [entry.charge for entry in ledger.charges()] == [of_shares("a", 1), of_shares("a", 2)]
        assert ledger.spent(OWN_RECORDS) == pytest.approx(2 * price)
        assert ledger.spent(OWN_RECORDS) + ledger.masked(OWN_RECORDS) == pytest.approx(2 * alone)
    for file in files(path):
        file.unlink()
    with Ledger.open(path, scope=MINE) as ledger:
        [lost] = ledger.past.lost
        assert lost.spent + lost.masked == pytest.approx(2 * alone)
        ledger.recover([of_shares("a", 1)], "a")
        assert ledger.spent(OWN_RECORDS) == pytest.approx(2 * price)
        assert ledger.spent(OWN_RECORDS) + ledger.masked(OWN_RECORDS) == pytest.approx(2 * alone)


def test_a_row_of_format_3_rests_on_nobodys_shares(path: Path) -> None:
    release(path, "a", 1, 2)
    with sqlite3.connect(path) as database:
        database.executescript("""
            DROP VIEW spending; ALTER TABLE release DROP COLUMN honest; ALTER TABLE release DROP COLUMN share;
            ALTER TABLE release DROP COLUMN helpers; ALTER TABLE lost DROP COLUMN masked;
            CREATE VIEW spending AS
            SELECT client, run, 1 AS releases, 0.25 AS spent, 0 AS server FROM release;
            PRAGMA user_version = 3;
        """)
    database.close()
    with Ledger.open(path, scope=MINE) as ledger:
        assert ledger.masked(OWN_RECORDS) == 0
        assert ledger.spent(OWN_RECORDS) == pytest.approx(0.5)
        assert {(entry.charge.honest, entry.charge.helpers) for entry in ledger.charges()} == {(0, "")}


@pytest.mark.parametrize(("honest", "share"), [(4, 2.0), (0, 1.0), (5, 1.0)])
def test_shares_that_cannot_make_the_noise_are_not_charged(honest: int, share: float) -> None:
    with pytest.raises(SottovoceError, match="are no noise of"):
        Charge("a", OWN_RECORDS, "gradient", 1, 1.0, 3.99**0.5, "shared", honest, share)
