"""One account for each client of a folder of sites: simulations, onboarding and federations add up in it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from sottovoce.data import load
from sottovoce.data.clients import NAMED
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding.client import obtain_model, personalize
from sottovoce.federation.onboarding.server import FinishedRun
from sottovoce.federation.site.recovery import opened
from sottovoce.machine.rollback import Memory
from sottovoce.privacy.ledger import OWN_RECORDS, Charge, Ledger, Overspent, client_scope
from sottovoce.privacy.terms import Price, Terms
from sottovoce.run.training import train
from sottovoce.training.accounts import Account, folder_ledger
from tests.run.test_folder import planned, sites


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sites and a run on it whose models depend on contexts, side by side."""
    place = tmp_path_factory.mktemp("trained")
    folder = sites(place / "sites")
    plan = planned(
        folder, epsilon=2, future_clients="west", context="moments", context_records=15, generated=0.5
    )
    train(plan, place / "run")
    return place


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    """A copy, for whose ledger its owner has vouched."""
    copy = Path(shutil.copytree(trained, tmp_path / "place"))
    with Ledger.open(shared(copy), scope=NAMED) as book:
        book.trust_copy()
    return copy


def shared(place: Path) -> Path:
    return place / "sites" / "ledger.sqlite"


def spent(place: Path, client: str) -> float:
    with Ledger.open(shared(place), scope=NAMED) as book:
        return book.spent(client)


def ask(place: Path, client: str = "north", **terms: Any) -> dict[str, Any]:
    records = place / "sites" / f"{client}.csv"
    return personalize(place / "run", records, place / "model", terms=Terms(**terms))


def context_price(place: Path) -> float:
    return FinishedRun.load(place / "run").blueprint.releases["context"].mu_squared


def test_training_and_onboarding_of_a_client_add_up_in_the_account_of_its_folder(place: Path) -> None:
    before, other, asked = spent(place, "north"), spent(place, "001"), list[Price]()
    assert before > 0
    answer = ask(place, agree=asked.append)
    assert answer["ledger"] == str(shared(place))
    assert not (place / "sites" / "north.ledger.sqlite").exists()
    assert spent(place, "north") == pytest.approx(before + context_price(place))
    assert [price.before for price in asked] == [before]
    assert answer["epsilon_total"] == pytest.approx(asked[0].together)
    assert answer["epsilon_total"] > asked[0].epsilon
    assert spent(place, "001") == other


def test_asking_again_sends_the_stored_bytes_and_each_client_has_its_own(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, honest = list[bytes](), FinishedRun.coefficients

    def spy(server: FinishedRun, private: bytes, message: bytes) -> Tensor:
        sent.append(message)
        return honest(server, private, message)

    monkeypatch.setattr(FinishedRun, "coefficients", spy)
    totals = [ask(place, client)["epsilon_total"] for client in ("north", "west", "north", "west")]
    assert totals[:2] == totals[2:]
    assert sent[:2] == sent[2:]
    assert sent[0] != sent[1]


def test_a_context_that_only_its_key_remembers_is_charged_to_its_own_client(place: Path) -> None:
    ask(place, "west")
    after = {client: spent(place, client) for client in ("north", "west")}
    for end in ("", "-wal", "-shm", ".witness", ".lock"):
        Path(f"{shared(place)}{end}").unlink(missing_ok=True)
    with Ledger.open(shared(place), scope=NAMED) as book:
        book.commit(Charge("x", "north", "context", 0, 0.1, 1.0), b"", book.allowed)
    ask(place, "north")
    assert spent(place, "west") == 0
    ask(place, "west")
    assert spent(place, "west") == pytest.approx(2 * context_price(place))
    assert after["north"] > 0


def test_what_the_folders_budget_does_not_cover_is_not_released(place: Path) -> None:
    with Ledger.open(shared(place), scope=NAMED) as book:
        assert book.budget is None
        book.raise_budget(1.6)
    before = spent(place, "north")
    with pytest.raises(Overspent, match=r"together .* of 1.6 at δ = 1e-5, which the budget does not cover"):
        ask(place)
    assert spent(place, "north") == before


def test_without_a_word_no_budget_is_set_for_the_other_clients_of_the_folder(place: Path) -> None:
    assert ask(place)["budget"] == 8.0
    with Ledger.open(shared(place), scope=NAMED) as book:
        assert book.budget is None
    assert ask(place, epsilon=6.0)["budget"] == 6.0
    with Ledger.open(shared(place), scope=NAMED) as book:
        assert book.budget is not None


def test_what_was_spent_in_a_ledger_of_ones_own_counts_in_the_folders(place: Path) -> None:
    own, before = place / "sites" / "north.ledger.sqlite", spent(place, "north")
    with Ledger.open(own, scope=client_scope("north")) as book:
        book.commit(Charge("r", OWN_RECORDS, "context", 0, 0.5, 1.0), b"", book.allowed)
    for _ in range(2):
        ask(place)
        assert spent(place, "north") == pytest.approx(before + 0.25 + context_price(place))
    with pytest.raises(Overspent, match="north has spent"):
        train(planned(place / "sites", epsilon=1, budget=2.2), place / "again")


def test_a_run_on_the_folder_counts_what_clients_have_spent_in_ledgers_of_their_own(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites")
    with Ledger.open(folder / "north.ledger.sqlite", scope=client_scope("north")) as book:
        book.commit(Charge("r", OWN_RECORDS, "context", 0, 1.0, 1.0), b"", book.allowed)
    with pytest.raises(Overspent, match="north has spent ε=4"):
        train(planned(folder, epsilon=4), tmp_path / "run")


def test_a_node_whose_records_lie_in_the_folder_counts_what_was_simulated_on_them(place: Path) -> None:
    own = Account.alone(place / "sites" / "north.csv", Terms(), place / "node")
    for _ in range(2):
        with opened(own, place / "node") as book:
            assert book.spent(OWN_RECORDS) == pytest.approx(spent(place, "north"))
            assert book.past.lost == []
    before = spent(place, "north")
    ask(place)
    after = spent(place, "north")
    assert after == pytest.approx(before + context_price(place))  # nothing comes back as if it were new
    with opened(own, place / "node") as book:
        assert book.spent(OWN_RECORDS) == pytest.approx(after)


def test_a_ledger_of_several_clients_wants_the_name_of_one_of_them(place: Path, tmp_path: Path) -> None:
    elsewhere = Path(shutil.copy(place / "sites" / "north.csv", tmp_path / "today.csv"))
    with pytest.raises(SottovoceError, match="'today' is none of them: name the client"):
        Account.of(elsewhere, Terms(ledger=shared(place)))
    before, server = spent(place, "north"), FinishedRun.load(place / "run")
    obtain_model(server, elsewhere, tmp_path / "model", Terms(shared(place), "north"))
    assert spent(place, "north") == pytest.approx(before + context_price(place))


def test_a_client_without_a_folder_or_with_nothing_simulated_has_a_ledger_of_its_own(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites")
    alone = Account.of(folder / "north.csv", Terms())
    assert (alone.path, alone.name, alone.client) == (folder / "north.ledger.sqlite", OWN_RECORDS, "north")
    with Ledger.open(folder / "ledger.sqlite", scope=NAMED):
        assert Account.of(folder / "north.csv", Terms()).name == "north"
    (folder / "records.toml").unlink()
    assert not Account.of(folder / "north.csv", Terms()).shared


def test_the_folders_ledger_is_known_by_its_witness_or_by_itself(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites")
    path, north = folder / "ledger.sqlite", folder / "north.csv"
    Ledger.open(path, scope=NAMED).close()
    kept = path.read_bytes()
    for leftover in folder.glob("ledger.sqlite*"):
        if leftover.suffix != ".witness":
            leftover.unlink()
    assert Account.of(north, Terms()).name == "north"  # deleted, and not forgotten
    with pytest.raises(SottovoceError, match="'today' is none of them"):
        Account.of(north, Terms(client="today"))
    Memory(path).path.unlink()
    assert not Account.of(north, Terms()).shared
    path.write_bytes(kept)
    assert Account.of(north, Terms()).name == "north"
    for leftover in folder.glob("ledger.sqlite*"):
        leftover.unlink()
    Ledger.open(path, scope="something else").close()
    assert not Account.of(north, Terms()).shared
    Memory(path).path.unlink()
    assert not Account.of(north, Terms()).shared


def test_clients_of_a_ledger_without_its_folder_are_those_that_were_charged_in_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, scope=NAMED) as book:
        book.commit(Charge("r", "north", "context", 0, 0.5, 1.0), b"", book.allowed)
    today = tmp_path / "today.csv"
    assert Account.of(today, Terms(ledger=path, client="north")).name == "north"
    with pytest.raises(
        SottovoceError, match=r"'nrth' is none of them: name the client, did you mean 'north'"
    ):
        Account.of(today, Terms(ledger=path, client="nrth"))


DECOMPOSED, COMPOSED = "Zu\u0308rich", "Z\u00fcrich"


def test_a_file_name_in_decomposed_unicode_has_the_account_of_the_same_name(tmp_path: Path) -> None:
    """As macOS writes names. The folder's account, the node and onboarding know one client."""
    folder = sites(tmp_path / "sites")
    records = (folder / "north.csv").rename(folder / f"{DECOMPOSED}.csv")
    train(planned(folder, epsilon=2), tmp_path / "run")
    with Ledger.open(folder / "ledger.sqlite", scope=NAMED) as book:
        simulated = book.spent(COMPOSED)
    assert simulated > 0
    own = Account.alone(records, Terms(), tmp_path / "node")
    with own.open() as book:
        assert book.spent(OWN_RECORDS) == pytest.approx(simulated)
        assert book.scope == client_scope(COMPOSED)
    for said in (None, COMPOSED, DECOMPOSED):
        assert Account.of(records, Terms(client=said)).name == COMPOSED
    assert own.client == COMPOSED


@pytest.mark.parametrize("gone", [False, True])
def test_a_ledger_is_found_under_either_form_of_its_name(tmp_path: Path, gone: bool) -> None:
    """A folder that moved between machines: the names changed their bytes, and nothing else."""
    before = tmp_path / f"{DECOMPOSED}.ledger.sqlite"
    with Ledger.open(before, scope="client:" + DECOMPOSED) as book:  # as version 0.1 called it
        book.commit(Charge("r", OWN_RECORDS, "context", 0, 0.5, 1.0), b"", book.allowed)
    if gone:
        before.unlink()  # its witness is still there
    (tmp_path / "other.ledger.sqlite").touch()
    records = tmp_path / f"{COMPOSED}.csv"
    account = Account.of(records, Terms())
    with account.open() as book:
        assert book.spent(OWN_RECORDS) == 0.25
    with Account.alone(records, Terms()).open() as book:
        assert book.spent(OWN_RECORDS) == 0.25
    assert account.path == before
    assert Account.of(tmp_path / "Zurich.csv", Terms()).path == tmp_path / "Zurich.ledger.sqlite"


def test_one_ledger_lies_beside_the_records_unless_its_owner_says_where(tmp_path: Path) -> None:
    records = tmp_path / "north.npz"
    for terms, path, name in (
        (Terms(), tmp_path / "north.ledger.sqlite", "north"),
        (Terms(ledger="elsewhere.sqlite"), Path("elsewhere.sqlite"), "north"),
        (Terms(client="south"), tmp_path / "north.ledger.sqlite", "south"),
    ):
        account, own = Account.of(records, terms), Account.alone(records, terms, tmp_path / "node")
        assert (account.path, account.scope) == (path, client_scope(name))
        assert (own.path, own.client) == (path, name)


def charge_own(path: Path, mu: float, name: str = "north") -> None:
    with Ledger.open(path, scope=client_scope(name)) as book:
        book.commit(Charge("r", OWN_RECORDS, "context", 0, mu, 1.0), b"", book.allowed)


def test_a_link_has_no_budget_of_its_own(tmp_path: Path) -> None:
    """One file under two names: what is released through either is charged to one ledger."""
    records, link = tmp_path / "data" / "north.csv", tmp_path / "links" / "mine.csv"
    for path in (records, link):
        path.parent.mkdir()
    records.touch()
    link.symlink_to(records)
    charge_own(tmp_path / "data" / "north.ledger.sqlite", 0.5)
    with Account.of(link, Terms()).open() as book:
        assert book.spent(OWN_RECORDS) == 0.25
    node = Account.alone(link, Terms(), tmp_path / "node")
    with node.open() as book:
        assert book.path == tmp_path / "data" / "north.ledger.sqlite"
        assert book.spent(OWN_RECORDS) == 0.25
    assert node.client == "north"
    charge_own(tmp_path / "links" / "mine.ledger.sqlite", 1.0, "mine")  # as earlier versions did
    with Account.of(link, Terms()).open() as book:
        assert book.spent(OWN_RECORDS) == 1.25


def test_a_folder_of_links_counts_what_was_spent_where_they_lead(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites")
    links = tmp_path / "links"
    links.mkdir()
    for file in folder.iterdir():
        (links / file.name).symlink_to(file)
    with Ledger.open(folder / "ledger.sqlite", scope=NAMED) as book:
        book.commit(Charge("r", "north", "context", 0, 0.5, 1.0), b"", book.allowed)
    charge_own(folder / "north.ledger.sqlite", 0.6)
    for _ in range(2):
        with Account.alone(folder / "north.csv", Terms()).open() as book:
            assert book.spent(OWN_RECORDS) == pytest.approx(0.25 + 0.36)
        with Account.of(folder / "north.csv", Terms()).open() as book:
            assert book.spent("north") == pytest.approx(0.25 + 0.36)
    with pytest.raises(Overspent, match="north has spent ε=3"):
        train(planned(links, epsilon=2), tmp_path / "refused")
    train(planned(links, epsilon=2, budget=8), tmp_path / "run")
    with Ledger.open(links / "ledger.sqlite", scope=NAMED) as book:
        here = book.past.total_in(
            json.loads((tmp_path / "run" / "run.json").read_text())["run"], "north"
        ).spent
        assert here > 0
        assert book.spent("north") == pytest.approx(here + 0.25 + 0.36)
    for _ in range(2):
        with Account.of(links / "north.csv", Terms()).open() as book:
            assert (book.path, book.spent("north")) == (
                links / "ledger.sqlite",
                pytest.approx(here + 0.25 + 0.36),
            )


@pytest.mark.parametrize("form", [COMPOSED, DECOMPOSED])
def test_a_context_that_only_its_key_remembers_is_charged_whoever_opens_the_ledger(
    place: Path, tmp_path: Path, form: str
) -> None:
    """A node, or a run on the folder, knows of it as onboarding does."""
    records = tmp_path / f"{form}.csv"
    shutil.copy(place / "sites" / "north.csv", records)
    price, server = context_price(place), FinishedRun.load(place / "run")
    obtain_model(server, records, tmp_path / "model", Terms(client=None))
    for file in tmp_path.glob("*.ledger.sqlite*"):
        if file.suffix != ".key":
            file.unlink()
    for _ in range(2):
        with Account.alone(records, Terms()).open() as book:
            assert book.spent(OWN_RECORDS) == pytest.approx(price)


def test_a_run_on_a_folder_counts_contexts_that_only_their_keys_remember(place: Path) -> None:
    before = spent(place, "north")
    ask(place, "north")
    both = spent(place, "north")
    for end in ("", "-wal", "-shm", ".witness", ".lock"):
        Path(f"{shared(place)}{end}").unlink(missing_ok=True)
    train(planned(place / "sites", epsilon=1, budget=20), place / "again")
    with Ledger.open(shared(place), scope=NAMED) as book:
        contexts = [entry.charge for entry in book.charges("north") if "/" in entry.charge.run]
        assert [charge.mu_squared for charge in contexts] == [pytest.approx(both - before)]


def test_a_path_is_said_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites(tmp_path / "sites")
    monkeypatch.chdir(tmp_path)
    records = Path("sites/north.csv")
    assert Account.of(records, Terms()).path == Path("sites/north.ledger.sqlite")
    with Ledger.open("sites/ledger.sqlite", scope=NAMED):
        assert Account.of(records, Terms()).path == Path("sites/ledger.sqlite")


def test_a_folder_has_one_ledger_for_all_runs_that_protect_somebody(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites")
    records = load(str(folder))
    plan = planned(folder, seeded=False)
    assert folder_ledger(plan, records) == folder / "ledger.sqlite"
    assert folder_ledger(replace(plan, seeded=True), records) is None
    assert folder_ledger(plan, replace(records, home=None)) is None
