"""The ledger under overspending, racing processes, kill -9 and a full disk."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.privacy.accounting import SLACK, calibrate, epsilon, mu_squared
from sottovoce.privacy.ledger import (
    AlreadyDelivered,
    Budget,
    Charge,
    Ledger,
    Overspent,
    StreamReused,
)
from sottovoce.privacy.ledger_file import LedgerError

PLENTY = Budget(epsilon=1e6, delta=1e-5, accounting="exact")
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.open(path, scope="records") as opened:
        yield opened


def gradient(round_number: int, *, client: int | str = 0, run: str = "run", mu: float = 0.1) -> Charge:
    return Charge(run, client, "gradient", round_number, sensitivity=mu, sigma=1.0)


def streams(ledger: Ledger) -> list[tuple[str, int | str, str, int]]:
    return [(e.charge.run, e.charge.client, e.charge.kind, e.charge.round) for e in ledger.charges()]


def together(work: Callable[[int], None], processes: int) -> None:
    """Runs `work(0)`, `work(1)`, … at once in processes of their own; an exception in one fails the test."""
    children = [FORK.Process(target=work, args=(number,)) for number in range(processes)]
    for child in children:
        child.start()
    for child in children:
        child.join(1200)
    assert [child.exitcode for child in children] == [0] * processes


def test_a_commit_stores_the_charge_and_the_message(ledger: Ledger, path: Path) -> None:
    charge = Charge("run", "alice", "context", 0, sensitivity=2 / 333, sigma=0.0137)
    ledger.commit(charge, b"codeword", PLENTY)
    with Ledger.open(path, scope="records") as reopened:
        assert reopened.stored("run", "alice", "context", 0) == b"codeword"
        [entry] = reopened.charges()
        assert entry.charge == charge
        assert timedelta(0) <= datetime.now(UTC) - entry.time < timedelta(minutes=1)


def test_spending_adds_up_over_runs_and_kinds_but_not_over_clients(ledger: Ledger) -> None:
    charges = [
        Charge("first", 1, "context", 0, sensitivity=0.02, sigma=0.1),
        Charge("first", 1, "gradient", 0, sensitivity=0.01, sigma=0.1),
        Charge("second", 1, "gradient", 0, sensitivity=0.03, sigma=0.1),
        Charge("second", 2, "gradient", 0, sensitivity=0.01, sigma=0.1),
    ]
    ledger.commit_many([(charge, b"m") for charge in charges], PLENTY)
    assert ledger.spent(1) == pytest.approx(0.04 + 0.01 + 0.09)
    assert ledger.spent(2) == pytest.approx(0.01)
    assert ledger.spent(3) == 0
    assert ledger.clients() == ["1", "2"]
    assert [ledger.releases(client) for client in (1, 2, 3)] == [3, 1, 0]
    assert [ledger.releases(client, run="first") for client in (1, 2)] == [2, 0]
    assert [ledger.releases(client, run="second") for client in (1, 2)] == [1, 1]
    assert ledger.epsilon(2, 1e-5, "rdp") == epsilon(ledger.spent(2), 1e-5, "rdp")


def test_an_empty_ledger_has_cost_nothing(ledger: Ledger) -> None:
    assert ledger.clients() == []
    assert list(ledger.charges()) == []
    assert ledger.stored("run", 0, "gradient", 0) is None


def test_a_client_has_one_budget_whether_named_by_number_or_by_text(ledger: Ledger) -> None:
    ledger.commit(gradient(0, client=3), b"m", PLENTY)
    with pytest.raises(StreamReused):
        ledger.commit(gradient(0, client="3"), b"m", PLENTY)
    assert ledger.spent(3) == ledger.spent("3") > 0


def test_charges_are_read_in_the_order_of_their_commits(ledger: Ledger) -> None:
    ledger.commit_many([(gradient(r, client=r % 50), b"") for r in range(1200)], PLENTY)
    assert [stream[3] for stream in streams(ledger)] == list(range(1200))
    assert [entry.charge.round for entry in ledger.charges(client=1)] == list(range(1, 1200, 50))


def test_a_stream_is_used_once_for_ever(ledger: Ledger) -> None:
    ledger.commit(gradient(7), b"first", PLENTY)
    with pytest.raises(StreamReused, match="round 7 of run run was charged before"):
        ledger.commit(gradient(7), b"second", PLENTY)
    assert ledger.stored("run", 0, "gradient", 7) == b"first"
    ledger.forget("run", before_round=8)
    with pytest.raises(StreamReused):
        ledger.commit(gradient(7), b"third", PLENTY)
    assert len(streams(ledger)) == 1


@pytest.mark.parametrize("accounting", ["rdp", "exact"])
@pytest.mark.parametrize("releases", [1, 26, 44, 1001])
def test_a_calibrated_run_spends_all_of_its_budget_and_not_one_release_more(
    ledger: Ledger, accounting: str, releases: int
) -> None:
    step, budget = 2 / 333, Budget(epsilon=16, delta=1e-5, accounting=accounting)
    sigma = calibrate(epsilon=16, delta=1e-5, accounting=accounting, squared_sensitivity=releases * step**2)
    for start in range(0, releases, 13):
        batch = [
            Charge("run", 0, "gradient", r, step, sigma) for r in range(start, min(start + 13, releases))
        ]
        ledger.commit_many([(charge, b"m") for charge in batch], budget)
    assert ledger.epsilon(0, 1e-5, accounting) == pytest.approx(16, rel=1e-9)
    with pytest.raises(Overspent):
        ledger.commit(Charge("another run", 0, "gradient", releases, step / 100, sigma), b"m", budget)
    ledger.commit(Charge("run", 1, "gradient", releases, step, sigma), b"m", budget)
    assert ledger.releases(0) == releases


def test_the_budget_is_kept_to_a_billionth(ledger: Ledger) -> None:
    budget = Budget(epsilon=2, delta=1e-6, accounting="exact")
    limit = mu_squared(2, 1e-6, "exact")
    with pytest.raises(Overspent):
        ledger.commit(gradient(0, mu=(limit * (1 + 2 * SLACK)) ** 0.5), b"m", budget)
    assert ledger.spent(0) == 0
    ledger.commit(gradient(0, mu=limit**0.5), b"m", budget)


def test_a_refused_release_says_who_what_and_what_to_do(ledger: Ledger) -> None:
    budget = Budget(epsilon=1, delta=1e-5, accounting="exact")
    ledger.commit(gradient(0, client="alice", mu=0.2), b"m", budget)
    with pytest.raises(Overspent) as refused:
        ledger.commit(gradient(1, client="alice", mu=0.2), b"m", budget)
    text = str(refused.value)
    assert "client alice" in text
    assert f"from {epsilon(0.04, 1e-5, 'exact'):.4f} to {epsilon(0.08, 1e-5, 'exact'):.4f}" in text
    assert "budget of 1 at δ = 1e-05" in text
    assert "fewer rounds" in text
    assert "\n" not in text


@pytest.mark.parametrize("fault", ["reused", "overspent"])
def test_one_refused_release_leaves_none_of_its_batch(ledger: Ledger, fault: str) -> None:
    ledger.commit(gradient(0), b"m", PLENTY)
    bad = gradient(0) if fault == "reused" else gradient(3, mu=1e6)
    with pytest.raises(SottovoceError):
        ledger.commit_many([(gradient(1), b"m"), (gradient(2, client=5), b"m"), (bad, b"m")], PLENTY)
    assert streams(ledger) == [("run", "0", "gradient", 0)]
    assert ledger.stored("run", 0, "gradient", 1) is None


def test_releases_of_one_batch_share_the_budget(ledger: Ledger) -> None:
    budget = Budget(epsilon=1, delta=1e-5, accounting="exact")
    mu = (mu_squared(1, 1e-5, "exact") * 0.6) ** 0.5
    with pytest.raises(Overspent):
        ledger.commit_many([(gradient(0, mu=mu), b"m"), (gradient(1, mu=mu), b"m")], budget)
    assert ledger.spent(0) == 0


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_charge_without_a_meaning_is_refused(value: float) -> None:
    with pytest.raises(SottovoceError, match="sensitivity"):
        Charge("run", 0, "gradient", 0, sensitivity=value, sigma=1.0)
    with pytest.raises(SottovoceError, match="sigma"):
        Charge("run", 0, "gradient", 0, sensitivity=1.0, sigma=value)


@pytest.mark.parametrize("kind", ["", "two words", "k" * 65])
def test_a_kind_is_one_short_word(kind: str) -> None:
    with pytest.raises(SottovoceError, match="one short word"):
        Charge("run", 0, kind, 0, sensitivity=1.0, sigma=1.0)


def test_forgetting_removes_the_bytes_from_the_disk_and_keeps_the_charges(ledger: Ledger, path: Path) -> None:
    messages = [os.urandom(70_000) for _ in range(4)]
    for round_number, message in enumerate(messages):
        ledger.commit(gradient(round_number), message, PLENTY)
    ledger.commit(gradient(0, run="another"), b"kept", PLENTY)
    with Ledger.open(path, scope="records"):  # an idle reader must not hold the bytes back
        ledger.forget("run", before_round=3)
        on_disk = b"".join(file.read_bytes() for file in path.parent.iterdir())
    for message in messages[:3]:
        assert not any(message[at : at + 32] in on_disk for at in range(0, len(message) - 32, 500))
    assert ledger.stored("run", 0, "gradient", 3) == messages[3]
    assert ledger.stored("another", 0, "gradient", 0) == b"kept"
    assert ledger.releases(0) == 5
    with pytest.raises(AlreadyDelivered, match="round 2 of run run was applied"):
        ledger.stored("run", 0, "gradient", 2)


def test_a_forgetful_ledger_does_not_grow_with_its_messages(ledger: Ledger, path: Path) -> None:
    for round_number in range(60):
        ledger.commit(gradient(round_number), os.urandom(65_536), PLENTY)
        ledger.forget("run", before_round=round_number + 1)
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < 400_000


def test_forgetting_much_at_once_gives_the_space_back(ledger: Ledger, path: Path) -> None:
    ledger.commit_many([(gradient(number), os.urandom(500_000)) for number in range(20)], PLENTY)
    ledger.forget("run", before_round=20)
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < 400_000
    assert ledger.releases(0) == 20


def test_racing_processes_use_a_stream_once(path: Path) -> None:
    def race(number: int) -> None:
        with Ledger.open(path, scope="records") as mine:
            for round_number in range(40):
                try:
                    mine.commit(gradient(round_number), b"of %d" % number, PLENTY)
                    (path.parent / f"{round_number} won by {number}").touch()
                except StreamReused:
                    pass

    together(race, 4)
    with Ledger.open(path, scope="records") as ledger:
        assert sorted(stream[3] for stream in streams(ledger)) == list(range(40))
        for round_number in range(40):
            [won] = path.parent.glob(f"{round_number} won by *")
            assert ledger.stored("run", 0, "gradient", round_number) == b"of " + won.name[-1:].encode()


def test_racing_processes_share_a_budget(path: Path) -> None:
    budget = Budget(epsilon=4, delta=1e-5, accounting="exact")
    mu = (mu_squared(4, 1e-5, "exact") / 50) ** 0.5  # pays for 50 releases

    def race(number: int) -> None:
        with Ledger.open(path, scope="records") as mine:
            for round_number in range(25):
                try:
                    mine.commit(gradient(round_number, run=f"run {number}", mu=mu), b"m", budget)
                except Overspent:
                    (path.parent / "refused").touch()

    together(race, 4)
    with Ledger.open(path, scope="records") as ledger:
        assert ledger.releases(0) == 50
        assert (path.parent / "refused").exists()


def release_for_ever(path: Path, wire: Path) -> None:
    """A client as it should be: charge, then send; after a restart, resend what was charged."""
    with Ledger.open(path, scope="records") as ledger:
        sent = wire.read_text().splitlines() if wire.exists() else []
        round_number = int(sent[-1].split()[0]) if sent else 0
        with wire.open("a", buffering=1) as line:
            while True:
                message = ledger.stored("run", 0, "gradient", round_number)
                if message is None:
                    message = os.urandom(20_000)
                    ledger.commit(gradient(round_number), message, PLENTY)
                line.write(f"{round_number} {hashlib.sha256(message).hexdigest()}\n")
                ledger.forget("run", before_round=round_number - 5)
                round_number += 1


def test_kill_9_leaves_nothing_uncharged_and_nothing_charged_twice(path: Path) -> None:
    wire, generator = path.parent / "wire", random.Random(41)
    for _ in range(30):
        before = wire.stat().st_size if wire.exists() else 0
        child = FORK.Process(target=release_for_ever, args=(path, wire))
        child.start()
        while wire.exists() is False or wire.stat().st_size == before:
            assert child.is_alive()
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.03))
        child.kill()
        child.join()
        sent = [line.split() for line in wire.read_text().splitlines()]
        with Ledger.open(path, scope="records") as ledger:
            charged = [stream[3] for stream in streams(ledger)]
            assert charged == list(range(len(charged)))
            assert {int(round_number) for round_number, _ in sent} <= set(charged)
            assert len(charged) - len({round_number for round_number, _ in sent}) <= 1
            assert ledger.spent(0) == pytest.approx(0.01 * len(charged))
        # One stream, one encoding, however often it was sent.
        assert len({digest for _, digest in sent}) == len({round_number for round_number, _ in sent})


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond `size` fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_charges_nothing_and_loses_nothing(ledger: Ledger) -> None:
    def fill() -> None:
        for round_number in range(100):
            ledger.commit(gradient(round_number), b"m" * 65_536, PLENTY)

    with largest_file(1_000_000), pytest.raises(LedgerError, match="free some space") as refused:
        fill()
    assert "\n" not in str(refused.value)
    written = ledger.releases(0)
    assert 3 < written < 100
    assert ledger.stored("run", 0, "gradient", written - 1) == b"m" * 65_536
    assert ledger.stored("run", 0, "gradient", written) is None
    ledger.commit(gradient(written), b"after cleaning up", PLENTY)
    assert ledger.spent(0) == pytest.approx(0.01 * (written + 1))


def test_no_ledger_appears_on_a_full_disk(path: Path) -> None:
    with largest_file(5_000), pytest.raises(LedgerError, match="free some space"):
        Ledger.open(path, scope="records")
    assert list(path.parent.iterdir()) == []


def test_what_another_process_is_reading_is_forgotten_when_it_has_ended(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sottovoce.machine.files._READER_MILLISECONDS", 50)
    log = Path(f"{path}-wal")
    secret = b"a message that reveals more than its release" * 10
    reader = sqlite3.connect(path, isolation_level=None)
    ledger.commit(gradient(1), secret, PLENTY)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM release").fetchall()
    ledger.forget("run", before_round=2)
    assert "is being read by another process" in caplog.text
    assert secret in log.read_bytes()
    reader.execute("COMMIT")
    ledger.forget("run", before_round=2)
    assert log.stat().st_size == 0
    assert secret not in path.read_bytes()
    reader.close()


def test_a_short_reader_is_waited_for(ledger: Ledger, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger.commit(gradient(1), b"message" * 100, PLENTY)
    reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM release").fetchall()
    end = threading.Timer(0.3, lambda: reader.execute("COMMIT"))
    end.start()
    ledger.forget("run", before_round=2)
    end.join()
    reader.close()
    assert caplog.text == ""
    assert Path(f"{path}-wal").stat().st_size == 0


def test_a_charge_says_where_its_noise_is() -> None:
    for place in ("client", "server"):
        assert Charge("run", 0, "context", 0, sensitivity=0.1, sigma=1.0, place=place).place == place  # type: ignore[arg-type]
    with pytest.raises(SottovoceError, match="unknown place of noise 'nowhere'"):
        Charge("run", 0, "context", 0, sensitivity=0.1, sigma=1.0, place="nowhere")  # type: ignore[arg-type]
