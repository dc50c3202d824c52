"""A future client gets its model for the price of one context, at home or over the network."""

from __future__ import annotations

import math
import shutil
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from sottovoce import data
from sottovoce.data import Dataset, read_client
from sottovoce.data.tables.checks import UnusableFile
from sottovoce.data.tables.schema import Description
from sottovoce.data.units import of_records, order
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding import client as future_client
from sottovoce.federation.onboarding import remote
from sottovoce.federation.onboarding.client import Keys, personalize
from sottovoce.federation.onboarding.remote import OnboardingError, onboard
from sottovoce.federation.onboarding.server import FinishedRun
from sottovoce.federation.onboarding.service import create_service
from sottovoce.federation.sealing import new_key, public_key
from sottovoce.machine.determinism import derived_seed
from sottovoce.machine.tokens import new_token
from sottovoce.models.architectures import lenet, open_model
from sottovoce.privacy.ledger import OWN_RECORDS, Charge, Ledger, Overspent
from sottovoce.privacy.terms import Terms
from sottovoce.run.training import evaluate, train
from sottovoce.training.accounts import Account
from sottovoce.training.client import Client
from tests.data.hospitals import AGREED, HEADER, ROWS, written
from tests.run.test_folder import planned, sites
from tests.small import SMALL, small_plan, tiny

from .live import live
from .web import get, spent


def test_a_client_gets_its_model_for_one_charge_however_often_it_asks(run: Path, records: Path) -> None:
    token = new_token(run, "alice")
    with live(create_service(run)) as url:
        first = onboard(url, records, records.with_name("one"), token=token)
        again = onboard(url, records, records.with_name("two"), token=token)
        assert b"sottovoce_onboarding_retries_total 1.0" in get(f"{url}/metrics")
    assert first["epsilon"] == again["epsilon"] > 0
    assert spent(records) == 1
    assert records.with_name("one").read_bytes() == records.with_name("two").read_bytes()
    model = open_model("linear", (1, 28, 28), 10, 0)
    model.load_state_dict(load_file(records.with_name("one")))


def test_the_service_and_personalize_give_models_of_equal_price(run: Path, records: Path) -> None:
    other = Path(shutil.copy(records, records.with_name("other.npz")))
    with live(create_service(run, open_to_all=True)) as url:
        over_http = onboard(url, records, records.with_name("one"))
    at_home = personalize(run, other, records.with_name("two"))
    assert over_http["epsilon"] == at_home["epsilon"]


def test_two_processes_on_one_ledger_send_the_same_bytes(run: Path, records: Path) -> None:
    honest, sent = Ledger.commit_many, list[bytes]()

    class Spy(remote.Connection):
        def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
            sent.append(body)
            return super().post(path, body, headers)

    def slowly(ledger: Ledger, *arguments: Any) -> None:
        threading.Event().wait(0.5)
        honest(ledger, *arguments)

    def ask(out: str) -> None:
        onboard(url, records, records.with_name(out))

    with pytest.MonkeyPatch.context() as patch, live(create_service(run, open_to_all=True)) as url:
        patch.setattr(remote, "Connection", Spy)
        patch.setattr(Ledger, "commit_many", slowly)
        threads = [threading.Thread(target=ask, args=(out,)) for out in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # Not the models: threads of one process disturb each other's seeds.
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert spent(records) == 1
    assert records.with_name("one").exists()
    assert records.with_name("two").exists()


@pytest.fixture(scope="module")
def images() -> Dataset:
    return data.load("mnist-small")


class TestPersonalization:
    @pytest.fixture
    def run(self, tmp_path, images):
        train(small_plan(model="lenet", coefficients=4096, rounds=2), tmp_path / "run", dataset=images)
        mine = images.records(torch.arange(200, 300))
        np.savez(tmp_path / "mine.npz", x=images.x[200:300].numpy(), y=mine.y.numpy())
        np.savez(tmp_path / "unlabelled.npz", x=images.x[200:300].numpy())
        return tmp_path

    def test_a_future_client_gets_a_plain_state_dict_and_pays_for_one_context(self, run, images) -> None:
        answer = personalize(run / "run", run / "mine.npz", run / "mine.safetensors")
        module = lenet((1, 28, 28), 10)
        module.load_state_dict(load_file(run / "mine.safetensors"))
        x = images.x[200:300]
        seed = derived_seed(small_plan().seed, "context")
        drawn = order(of_records(x, torch.zeros(100).long()), seed)  # by x alone
        held_out = images.records(200 + drawn[50:])
        hits = (module(held_out.x).argmax(1) == held_out.y).float().mean()
        assert 100 * float(hits) == pytest.approx(answer["accuracy"])
        assert 0 < answer["epsilon"] < 8

    def test_asking_again_costs_nothing_new_and_gives_the_same_model(self, run) -> None:
        first = personalize(run / "run", run / "mine.npz", run / "a.safetensors")
        second = personalize(run / "run", run / "mine.npz", run / "b.safetensors")
        assert first["epsilon"] == second["epsilon"]
        assert (run / "a.safetensors").read_bytes() == (run / "b.safetensors").read_bytes()

    def test_the_noise_of_a_future_client_is_never_seeded(self, run) -> None:
        personalize(
            run / "run", run / "mine.npz", run / "a.safetensors", terms=Terms(ledger=run / "a.sqlite")
        )
        personalize(
            run / "run", run / "mine.npz", run / "b.safetensors", terms=Terms(ledger=run / "b.sqlite")
        )
        assert (run / "a.safetensors").read_bytes() != (run / "b.safetensors").read_bytes()

    def test_labels_are_not_needed_for_a_context_without_them(self, run) -> None:
        answer = personalize(run / "run", run / "unlabelled.npz", run / "mine.safetensors")
        assert answer["accuracy"] is None
        assert answer["uses_labels"] is False

    @pytest.mark.parametrize(
        ("arrays", "hint"),
        [
            ({"x": np.zeros((60, 3, 32, 32), np.uint8), "y": np.zeros(60, int)}, "shape"),
            ({"x": np.zeros((20, 1, 28, 28), np.uint8), "y": np.zeros(20, int)}, "needs 50"),
            ({"y": np.zeros(20, int)}, "no array 'x'"),
        ],
    )
    def test_records_that_do_not_fit_the_run_are_refused(self, run, arrays, hint) -> None:
        np.savez(run / "bad.npz", **arrays)
        with pytest.raises(Exception, match=hint):
            personalize(run / "run", run / "bad.npz", run / "bad.safetensors")
        assert not (run / "bad.safetensors").exists()
        assert not (run / "bad.ledger.sqlite").exists()


def test_a_run_of_an_own_module_is_used_with_that_module_only(tmp_path, images) -> None:
    torch.manual_seed(5)
    own = tiny((1, 28, 28), 10).double().train()
    plan = small_plan(model="lenet", rounds=2)
    result = train(plan, tmp_path / "run", dataset=images, module=own)
    assert own.training
    assert next(own.parameters()).dtype == torch.float64
    np.savez(tmp_path / "mine.npz", x=images.x[:60].numpy(), y=images.y[:60].numpy())
    with pytest.raises(Exception, match="pass it again"):
        evaluate(tmp_path / "run", dataset=images)
    with pytest.raises(Exception, match="names model=python:Sequential"):
        personalize(tmp_path / "run", tmp_path / "mine.npz", tmp_path / "mine.safetensors")
    assert not (tmp_path / "mine.ledger.sqlite").exists()
    assert evaluate(tmp_path / "run", dataset=images, module=own)["accuracy"] == result["accuracy"]
    personalize(tmp_path / "run", tmp_path / "mine.npz", tmp_path / "mine.safetensors", module=own)
    assert set(load_file(tmp_path / "mine.safetensors")) == set(own.state_dict())


def test_a_future_client_sets_its_own_budget(tmp_path, images) -> None:
    train(small_plan(), tmp_path / "run", dataset=images)
    np.savez(tmp_path / "mine.npz", x=images.x[:60].numpy(), y=images.y[:60].numpy())
    words = (tmp_path / "run", tmp_path / "mine.npz", tmp_path / "mine.safetensors")
    with pytest.raises(Exception, match="budget"):
        personalize(*words, terms=Terms(epsilon=0.1), module=SMALL["model"])
    answer = personalize(
        *words, terms=Terms(ledger=tmp_path / "other.sqlite", epsilon=7.0), module=SMALL["model"]
    )
    assert answer["epsilon"] == pytest.approx(answer["epsilon_total"]) == pytest.approx(answer["epsilon"])


def test_ablations_without_privacy_personalize_nobody(tmp_path, images) -> None:
    train(small_plan(epsilon=float("inf")), tmp_path / "run", dataset=images)
    np.savez(tmp_path / "mine.npz", x=images.x[:60].numpy(), y=images.y[:60].numpy())
    words = (tmp_path / "run", tmp_path / "mine.npz", tmp_path / "mine.safetensors")
    with pytest.raises(Exception, match="name it yourself"):
        personalize(*words)
    with pytest.raises(Exception, match="personalizes nobody"):
        personalize(*words, module=SMALL["model"])


def test_where_no_context_is_released_nothing_is_charged_and_all_records_judge_the_model(
    tmp_path, images
) -> None:
    train(small_plan(method="direct", context="public", rounds=2), tmp_path / "run", dataset=images)
    np.savez(tmp_path / "mine.npz", x=images.x[:3].numpy(), y=images.y[:3].numpy())
    words = (tmp_path / "run", tmp_path / "mine.npz", tmp_path / "mine.safetensors")
    never: list[object] = []
    answer = personalize(*words, terms=Terms(agree=never.append), module=SMALL["model"])
    assert (answer["epsilon"], answer["epsilon_total"], answer["context_bytes"]) == (0.0, 0.0, 0)
    assert never == []
    module = tiny((1, 28, 28), 10)
    module.load_state_dict(load_file(tmp_path / "mine.safetensors"))
    mine = images.records(torch.arange(3))
    hits = (module(mine.x).argmax(1) == mine.y).float().mean()
    assert 100 * float(hits) == pytest.approx(answer["accuracy"])
    np.savez(tmp_path / "mine.npz", x=images.x[:1].numpy(), y=images.y[:1].numpy())
    assert personalize(*words, module=SMALL["model"])["accuracy"] in (0.0, 100.0)


def test_one_record_beside_those_of_the_context_judges_the_model_and_none_does_not(
    run: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, judging = Client.evaluate, list[int]()
    monkeypatch.setattr(
        Client,
        "evaluate",
        lambda mine, model: (judging.append(len(mine._records.held_out)), evaluate(mine, model))[1],
    )
    with np.load(records) as file:
        arrays = dict(file)
    server = FinishedRun.load(run)
    needed = server.blueprint.context_size(None)
    for count, judged in ((needed, False), (needed + 1, True)):
        some = records.with_name(f"some-{count}.npz")
        np.savez(some, **{**arrays, "x": arrays["x"][:count], "y": arrays["y"][:count]})
        answer = personalize(run, some, records.with_name(f"model-{count}"))
        assert (answer["accuracy"] in (0.0, 100.0)) is judged
        assert (answer["accuracy"] is None) is not judged
        with safe_open(records.with_name(f"model-{count}"), "pt") as file:
            assert f"some-{count}" in str(file.metadata())
    assert judging == [1]  # a model need not be one for no record at all


def tabled(at: Path, *, context: str, **changes: Any) -> Path:
    """A finished run on a folder of tables, whose future clients come later."""
    plan = planned(sites(at / "sites"), context=context, context_records=16, context_share=0.1, **changes)
    train(plan, at / "run")
    return at / "run"


def future_table(at: Path, missing: int, records: int = 400) -> Path:
    """A future client's table whose first records lack their target."""
    rng, path = np.random.default_rng(1), at / f"east-{missing}" / "east.csv"
    path.parent.mkdir()
    rows = [f"{a:.3f},2,{'' if i < missing else 'no'}" for i, a in enumerate(rng.normal(size=records))]
    path.write_text("a,b,ill\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


class Watched(Client):
    """A client that shows what it is about to release."""

    seen: ClassVar[list[np.ndarray]] = []

    def release_context(self, coefficients: torch.Tensor | None = None) -> bytes:
        message = super().release_context(coefficients)
        assert self.signal is not None
        self.seen.append(self.signal)
        return message


@pytest.mark.parametrize("context", ["moments", "shares"])
def test_one_missing_label_more_switches_no_other_record_on_or_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str
) -> None:
    monkeypatch.setattr(future_client, "Client", Watched)
    monkeypatch.setattr(Watched, "seen", [])
    run = tabled(tmp_path, context=context)
    answers = []
    for missing in (20, 21):  # 5 % of 400 may be unusable
        source = future_table(tmp_path, missing)
        answers.append(personalize(run, source, source.with_name("model")))
    charged = FinishedRun.load(run).blueprint.releases["context"].sensitivity
    assert np.linalg.norm(Watched.seen[0] - Watched.seen[1]) <= charged
    # Its labels are not asked for, so that even these statistics are equal, and lacking ones count as all.
    assert (Watched.seen[0] == Watched.seen[1]).all()
    assert all(answer["accuracy"] is not None for answer in answers)  # at home any number of labels judges


def test_a_context_without_labels_never_reads_them_and_one_of_labels_refuses(tmp_path: Path) -> None:
    """A service that names any column as target learns nothing of it, and chooses nothing by it."""
    facts = Description.parse(AGREED, "records.toml").facts()
    useless = written(tmp_path, HEADER + ROWS.replace("malignant", "unknown").replace("benign", ""))
    whole = written(tmp_path, HEADER + ROWS, "whole.csv")
    for path in (useless, whole):
        records = read_client(path, facts=facts, needed=2, labels=False)
        assert records.usable.all()
        assert records.y.tolist() == [0, 0]
    with pytest.raises(UnusableFile, match="diagnosis"):
        read_client(useless, facts=facts, needed=2)


def test_labels_of_an_npz_are_not_read_for_a_context_without_them(tmp_path: Path, images) -> None:
    facts = images.facts
    for name, labels in (("fits", images.y[:60].numpy()), ("wrong", np.full(60, 12)), ("odd", np.ones(7))):
        np.savez(tmp_path / name, x=images.x[:60].numpy(), y=labels)
        assert not read_client(tmp_path / f"{name}.npz", facts=facts, needed=60, labels=False).y.any()


def test_what_the_budget_does_not_cover_is_neither_shown_nor_drafted(run: Path, records: Path) -> None:
    shown: list[object] = []
    with pytest.raises(Overspent, match="which the budget does not cover"):
        personalize(run, records, records.with_name("one"), terms=Terms(epsilon=0.01, agree=shown.append))
    assert shown == []
    assert not list(records.parent.glob("*.draft"))


# A future client's key for one run, and what it tells about a restored ledger.


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
