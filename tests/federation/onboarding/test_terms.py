"""A future client's budget is its own, and its ledger forgets nothing between runs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding.client import obtain_model
from sottovoce.federation.onboarding.server import FinishedRun
from sottovoce.machine.rollback import Memory
from sottovoce.privacy.history import Copied
from sottovoce.privacy.ledger import OWN_RECORDS, Ledger, Overspent, client_scope
from sottovoce.privacy.terms import Price, Terms
from sottovoce.release.blueprint import build
from tests.federation.world import World


@pytest.fixture
def records(finished: World, tmp_path: Path) -> Path:
    return Path(shutil.copy(finished.folder / "clients" / "future-0.npz", tmp_path / "mine.npz"))


def served(run: Path, name: str | None = None, **changes: object) -> FinishedRun:
    """A server of a run, or of one with another name and other promises."""
    server = FinishedRun.load(run)
    blueprint = build(server.blueprint.plan.replace(**changes), server.blueprint.facts)
    return replace(server, run=name or server.run, blueprint=blueprint)


def ask(server: FinishedRun, records: Path, **terms: object) -> dict[str, object]:
    return obtain_model(server, records, records.with_name("model"), Terms(**terms))  # type: ignore[arg-type]


def spent(records: Path) -> float:
    with Ledger.open(records.with_suffix(".ledger.sqlite"), scope=client_scope("mine")) as ledger:
        return ledger.spent(OWN_RECORDS)


def lose(records: Path, *ends: str) -> None:
    for end in ("", "-wal", "-shm", *ends):
        Path(f"{records.with_suffix('.ledger.sqlite')}{end}").unlink(missing_ok=True)


def test_a_server_that_states_a_large_delta_is_paid_at_the_clients_own(run: Path, records: Path) -> None:
    greedy = served(run, delta=0.9, epsilon=5.0)
    with pytest.raises(Overspent, match=r"of 1 at δ = 1e-5, which the budget does not cover"):
        ask(greedy, records, epsilon=1.0)
    assert spent(records) == 0
    assert not records.with_name("model").exists()


def test_without_a_word_a_client_is_charged_at_most_8_at_a_delta_of_1e_5(run: Path, records: Path) -> None:
    with pytest.raises(Overspent, match="of 8 at δ = 1e-5"):
        ask(served(run, epsilon=535.0), records)
    assert spent(records) == 0


def test_a_budget_is_remembered_and_only_its_owner_raises_it(run: Path, records: Path) -> None:
    with pytest.raises(Overspent):
        ask(served(run), records, epsilon=0.5)
    with pytest.raises(Overspent, match=r"of 0.5 at"):
        ask(served(run, delta=1e-3), records, epsilon=50.0)
    with Ledger.open(records.with_suffix(".ledger.sqlite"), scope=None) as ledger:
        ledger.raise_budget(6.0)
    answer = ask(served(run), records)
    assert (answer["budget"], answer["delta"]) == (6.0, 1e-5)


def test_nothing_is_released_before_the_owner_agrees_to_the_price(run: Path, records: Path) -> None:
    asked: list[Price] = []

    def decline(price: Price) -> None:
        asked.append(price)
        raise SottovoceError("declined")

    with pytest.raises(SottovoceError, match="declined"):
        ask(served(run), records, agree=decline)
    assert spent(records) == 0
    answer = ask(served(run), records, agree=asked.append)
    assert len(asked) == 2
    assert asked[0] == asked[1]
    assert asked[1].together == pytest.approx(answer["epsilon_total"])
    ask(served(run), records, agree=decline)  # resending costs nothing, so nobody is asked


@pytest.mark.parametrize("gone", [(), (".witness", ".lock")])
def test_contexts_of_other_runs_are_charged_when_the_ledger_is_gone(
    run: Path, records: Path, gone: tuple[str, ...]
) -> None:
    """With the witness gone too, the key of each run tells, and what its context cost."""
    for count, name in enumerate(("a" * 16, "b" * 16, "c" * 16), 1):
        ask(served(run, name), records, epsilon=30.0)
        price = served(run).blueprint.releases["context"].mu_squared
        assert spent(records) == pytest.approx(count * price)
        lose(records, *gone)
    ask(served(run, "a" * 16), records, epsilon=30.0)
    assert spent(records) == pytest.approx(4 * price)


def test_a_restored_folder_is_refused_until_its_owner_vouches(run: Path, records: Path) -> None:
    ask(served(run, "a" * 16), records, epsilon=30.0)
    ledger = records.with_suffix(".ledger.sqlite")
    for file in (Memory(ledger).path, Memory(ledger).lock):
        shutil.copy(file, file.with_suffix(".copy"))
        file.unlink()
        file.with_suffix(".copy").rename(file)
    with pytest.raises(Copied, match="sottovoce ledger vouch"):
        ask(served(run, "b" * 16), records)
    with Ledger.open(ledger, scope=None) as book:
        book.trust_copy()
    ask(served(run, "b" * 16), records)


def test_records_saved_again_keep_their_ledger(run: Path, records: Path) -> None:
    ask(served(run, "a" * 16), records, epsilon=30.0)
    once = spent(records)
    with np.load(records) as file:
        fields = dict(file)
    np.savez_compressed(records, **fields)
    ask(served(run, "b" * 16), records)
    assert spent(records) == pytest.approx(2 * once)


def test_records_under_another_name_are_another_client(run: Path, records: Path) -> None:
    ask(served(run), records)
    renamed = Path(shutil.copy(records, records.with_name("theirs.npz")))
    ledger = records.with_suffix(".ledger.sqlite")
    with pytest.raises(SottovoceError, match="name the client mine"):
        ask(served(run), renamed, ledger=ledger)
    ask(served(run), renamed, ledger=ledger, client="mine")


def test_a_service_whose_plan_is_seeded_gets_nothing(run: Path, records: Path) -> None:
    with pytest.raises(SottovoceError, match="protects nobody"):
        ask(served(run, seeded=True), records)
    assert not records.with_suffix(".ledger.sqlite").exists()


def test_keys_are_closed_again_where_a_restore_left_them_open(run: Path, records: Path) -> None:
    ask(served(run), records)
    [key] = records.parent.glob("*.key")
    key.chmod(0o644)
    ask(served(run), records)
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_key_of_version_01_still_sends_its_stored_context(
    run: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    honest = FinishedRun.coefficients

    def spy(server: FinishedRun, private: bytes, message: bytes) -> Tensor:
        sent.append(message)
        return honest(server, private, message)

    monkeypatch.setattr(FinishedRun, "coefficients", spy)
    with monkeypatch.context() as patch:  # as version 0.1 named and kept it
        patch.setattr("sottovoce.federation.onboarding.client.onboarding_entry", lambda name: name)
        ask(served(run), records)
    [key] = records.parent.glob("*.key")
    key.write_bytes(key.read_bytes()[:64])
    once = spent(records)
    ask(served(run), records)
    assert sent[0] == sent[1]
    assert spent(records) == once


def test_the_context_is_of_the_agreed_number_of_records(run: Path, records: Path) -> None:
    with np.load(records) as file:
        fields = dict(file)
    needed = served(run).blueprint.plan.context_records
    fields["x"], fields["y"] = fields["x"][: needed - 1], fields["y"][: needed - 1]
    np.savez(records, **fields)
    with pytest.raises(SottovoceError, match=f"this run needs {needed}"):
        ask(served(run), records)
