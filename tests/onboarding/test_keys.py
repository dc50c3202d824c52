"""A future client's key for one run, and what it tells about a restored ledger."""

from __future__ import annotations

import math
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sottovoce.account import Account
from sottovoce.errors import SottovoceError
from sottovoce.federation.keys import new_key, public_key
from sottovoce.onboarding import remote
from sottovoce.onboarding.future_client import personalize
from sottovoce.onboarding.keys import Keys
from sottovoce.onboarding.remote import OnboardingError, onboard
from sottovoce.onboarding.service import create_service
from sottovoce.privacy.ledger import OWN_RECORDS, Charge, Ledger
from sottovoce.privacy.terms import Terms

from .live import live
from .web import get, spent


def test_a_restored_ledger_pays_for_the_lost_context_and_encodes_under_a_new_key(
    run: Path, records: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[bytes] = []

    class Lost(remote.Connection):
        def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
            sent.append(body)
            raise OnboardingError("lost on the way")

    with pytest.MonkeyPatch.context() as patch, live(create_service(run, open_to_all=True)) as url:
        patch.setattr(remote, "Connection", Lost)
        for _ in range(2):
            with pytest.raises(OnboardingError, match="lost on the way"):
                onboard(url, records, records.with_name("model"))
        for file in records.parent.glob("*.ledger.sqlite*"):
            if file.suffix != ".key":
                file.unlink()  # the backup is from before the release
        with pytest.raises(OnboardingError, match="lost on the way"):
            onboard(url, records, records.with_name("model"))
        with pytest.raises(OnboardingError, match="lost on the way"):
            onboard(url, records, records.with_name("model"))
    assert sent[0] == sent[1]
    assert sent[2][:32] != sent[0][:32]
    assert sent[3] == sent[2]
    assert spent(records) == 2
    assert "charged for a context that left" in caplog.text


def test_a_client_killed_before_its_charge_pays_once(run: Path, records: Path) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with live(create_service(run, open_to_all=True)) as url:
        for name in ("commit_many", "keep"):  # before the charge; after it, before anything leaves
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Ledger if name == "commit_many" else Keys, name, killed)
                with pytest.raises(KeyboardInterrupt):
                    onboard(url, records, records.with_name("model"))
        onboard(url, records, records.with_name("model"))
    assert spent(records) == 1
    assert not list(records.parent.glob("*.draft"))


def test_a_context_whose_key_is_gone_is_not_sent(run: Path, records: Path) -> None:
    personalize(run, records, records.with_name("at-home"))
    with live(create_service(run, open_to_all=True)) as url:
        with pytest.raises(SottovoceError, match="was made for another key"):
            onboard(url, records, records.with_name("model"))
        assert b"sottovoce_onboarding_requests_total{" not in get(f"{url}/metrics")


SERVER = bytes(range(32))


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "mine.sqlite", scope="client mine") as opened:
        yield opened


def keys(folder: Path, server: bytes = SERVER) -> Keys:
    path = folder / "mine.sqlite"
    return Keys(Account(path, "client mine", OWN_RECORDS, folder / "mine.csv", Terms()), "run", server)


def known(ledger: Ledger, run: str) -> None:
    ledger.recover([Charge(run, OWN_RECORDS, "gradient", 1, 0.1, 1.0)], run)


def release(mu_squared: float) -> Any:
    def charge(run: str, account: str, number: int) -> Charge:
        return Charge(run, account, "context", number, 3.0, 3.0 / math.sqrt(mu_squared))

    return SimpleNamespace(mu_squared=mu_squared, charge=charge)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_a_draft_until_it_is_kept_and_says_for_whom_and_at_what_price(tmp_path: Path) -> None:
    mine, draft, kept = (
        keys(tmp_path),
        tmp_path / "mine.sqlite.run.key.draft",
        tmp_path / "mine.sqlite.run.key",
    )
    with pytest.raises(SottovoceError, match="has lost its key"):
        mine.private()
    mine.keep()  # nothing to keep
    assert not kept.exists()
    mine.renew(release(0.25))
    content = draft.read_bytes()
    assert content[32:] == SERVER + struct.pack("<d", 0.25)
    assert mine.private() == content[:32]
    assert mode(draft) == 0o600
    mine.keep()
    assert not draft.exists()
    assert kept.read_bytes() == content
    assert mode(kept) == 0o600
    assert mine.private() == content[:32]
    mine.renew(release(0.25))  # another context: its draft comes before the key that was kept
    assert mine.private() != content[:32]
    mine.keep()
    mine.keep()
    assert kept.read_bytes()[:32] == mine.private() != content[:32]
    with pytest.raises(SottovoceError, match="was made for another key"):
        keys(tmp_path, bytes(32)).private()
    kept.write_bytes(content[:32])  # as version 0.1 kept it
    assert keys(tmp_path, bytes(32)).private() == content[:32]


@pytest.mark.parametrize(
    ("length", "charged", "entry"),
    [
        (32, True, "run"),  # kept by version 0.1
        (64, True, "run"),
        (64, False, "run/onboarding"),
        (72, True, "run/onboarding"),
        (0, True, "run/onboarding"),
    ],
)
def test_onboarding_has_an_entry_of_its_own_unless_version_0_1_made_the_context(
    tmp_path: Path, book: Ledger, length: int, charged: bool, entry: str
) -> None:
    if length:
        (tmp_path / "mine.sqlite.run.key").write_bytes(bytes(length))
    if charged:
        known(book, "run")
    assert keys(tmp_path).entry(book) == entry


def test_a_lost_context_is_charged_once_under_a_name_made_of_its_key(tmp_path: Path, book: Ledger) -> None:
    private = new_key()
    path = tmp_path / "mine.sqlite.other.key"
    path.write_bytes(private + SERVER + struct.pack("<d", 0.25))
    path.chmod(0o644)
    for _ in range(2):
        keys(tmp_path).reconcile(book, None)
    [entry] = book.charges(OWN_RECORDS)
    charge = entry.charge
    assert charge.run == f"other/{public_key(private).hex()[:16]}"
    assert (charge.client, charge.kind, charge.round) == (OWN_RECORDS, "context", 0)
    assert (charge.sensitivity, charge.sigma) == (0.5, 1.0)
    assert mode(path) == 0o600


def test_a_lost_context_of_this_run_is_charged_as_its_release_says(tmp_path: Path, book: Ledger) -> None:
    private = new_key()
    (tmp_path / "mine.sqlite.run.key").write_bytes(private + SERVER)  # without a price
    keys(tmp_path).reconcile(book, release(0.09))
    [entry] = book.charges(OWN_RECORDS)
    assert entry.charge.run == f"run/{public_key(private).hex()[:16]}"
    assert (entry.charge.kind, entry.charge.round) == ("context", 0)
    assert book.spent(OWN_RECORDS) == pytest.approx(0.09)


@pytest.mark.parametrize("run", ["other", "run"])
def test_a_lost_context_of_unknown_price_is_not_guessed(tmp_path: Path, book: Ledger, run: str) -> None:
    for length in (32, 64, 65):
        (tmp_path / f"mine.sqlite.{run}.key").write_bytes(bytes(range(length)))
        with pytest.raises(SottovoceError, match=f"a context of run {run} left"):
            keys(tmp_path).reconcile(book, None if run == "run" else release(0.09))
    assert book.releases(OWN_RECORDS) == 0


@pytest.mark.parametrize(
    ("length", "entry", "lost"),
    [
        (72, "other/onboarding", False),
        (64, "other/onboarding", False),
        (64, "other", False),  # version 0.1 charged under the run's own name
        (32, "other", False),
        (72, "other", True),  # that is a release of its training
    ],
)
def test_a_context_that_the_ledger_knows_is_not_charged_again(
    tmp_path: Path, book: Ledger, length: int, entry: str, lost: bool
) -> None:
    known(book, entry)
    content = bytes(range(64)) + struct.pack("<d", 0.25)
    (tmp_path / "mine.sqlite.other.key").write_bytes(content[:length])
    keys(tmp_path).reconcile(book, None)
    assert book.releases(OWN_RECORDS) == 1 + lost
