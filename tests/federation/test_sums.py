"""Masked rounds at the server: only sums open, whoever vanishes, whoever is killed."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from sottovoce.data import Description
from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement
from sottovoce.federation.keys import Parties, SiteKey, fingerprint
from sottovoce.federation.node import Node
from sottovoce.federation.server import Coordinator, Options
from sottovoce.federation.status.progress import write_run
from sottovoce.federation.store import Store
from sottovoce.federation.sums import HelperNode, Sums
from sottovoce.plan import Plan
from sottovoce.privacy.ledger import OWN_RECORDS, Ledger, client_scope
from sottovoce.privacy.terms import Terms
from sottovoce.run.prepare import complete
from tests.run.test_folder import sites

from .overhearing import found, overheard
from .world import SHARED, World, charged, everyone_paid, replayed, same

IMPATIENT = Options(patience=0.0)
PUBLIC = {**SHARED, "context": "public", "prior": "none", "rounds": 2}


def sums(world: World) -> Sums:
    assert world.coordinator._sums is not None
    return world.coordinator._sums


def answer(world: World, *members: int) -> None:
    """These members answer what they are asked; nobody else does."""
    for member in members:
        world.coordinator.accept(member, world.answer(member))


def test_sites_may_vanish_and_rounds_be_given_up_and_the_model_is_that_of_the_sums_that_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One round of four, one that too few answer, then all again: as the simulator would."""
    caplog.set_level(logging.INFO)
    world = World(tmp_path, options=IMPATIENT, **{**SHARED, "rounds": 3})
    world.enrol_all()
    with pytest.MonkeyPatch.context() as patch:
        shares = overheard(patch)  # every message before its masks, and every context
        world.step()
        for came in ([0, 2, 3, 5], [1, 2, 3], [0, 1, 2, 3, 4, 5]):
            while set(world.coordinator.missing().values()) == {"masks"}:
                answer(world, *world.coordinator.missing())
            answer(world, *came)
            held = [bytes(message) for *_, message in world.store.waiting() if message]
            assert not any(share in message for share in shares for message in held)
            world.coordinator.advance()  # the set is fixed, or the round given up
            answer(world, *world.coordinator.missing())
            world.coordinator.advance()
    lines = world.store.lines()
    assert [len(line["clients"]) for line in lines] == [4, 0, 6]
    assert [line.get("given_up", False) for line in lines] == [False, True, False]
    assert "round 2 is given up: 3 messages came" in caplog.text
    assert same(
        replayed(world.agreement.plan, lines, tmp_path / "simulated"), world.coordinator.server.state()
    )
    # What a round cost that was given up, or that somebody sent nothing to, stays as it was.
    assert everyone_paid(world)
    assert ("gradient", 2) in charged(world, 1)
    assert ("gradient", 2) not in charged(world, 0)
    result = write_run(tmp_path / "run", world.coordinator, engine="none")
    assert (result["masks"], result["given_up"], result["noise"]) == (True, 1, "shared")
    world.deliver_models()
    world.kill()
    assert found([*tmp_path.glob("server.sqlite*"), *tmp_path.glob("run/*")], shares) == set()


def test_what_the_server_holds_of_single_clients_is_uniform_even_with_all_helpers_but_one(
    tmp_path: Path,
) -> None:
    """χ² of bytes with 255 degrees of freedom is below 390 but for one time in 10⁷; a share has thousands."""

    def uniform(words: np.ndarray) -> float:
        counts = np.bincount(words.view(np.uint8), minlength=256)
        return float((np.square(counts - counts.mean()) / counts.mean()).sum())

    world = World(tmp_path, **{**PUBLIC, "coefficients": 2000})
    world.enrol_all()
    with pytest.MonkeyPatch.context() as patch:
        shares = overheard(patch)
        world.step()
        world.step()
    terms = sums(world).terms
    held = {client: terms.words(message[32:]) for client, message in world.coordinator._masked().items()}
    assert len(held) == 6
    assert all(uniform(words) < 390 for words in held.values())
    assert len(shares) == 6
    assert all(uniform(terms.words(share)) > 5000 for share in shares)  # the test can tell
    answers = [
        world.helper(number).masks(sums(world).request(world.coordinator._masked()) | frozen(world))
        for number in range(3)
    ]
    for left in range(3):
        total = sum(held.values(), np.zeros_like(held[0]))
        for number in {0, 1, 2} - {left}:
            total = total - terms.words(answers[number]["masks"])
        assert uniform(total) < 390
    assert uniform(total - terms.words(answers[2]["masks"])) > 5000


def frozen(world: World) -> dict[str, object]:
    return {"run": world.coordinator.run, "agreement": world.agreement.digest(), "sizes": []}


def test_a_round_waits_for_a_helper_that_is_away_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, options=IMPATIENT, **PUBLIC)
    world.enrol_all()
    answer(world, 6, 8)
    for _ in range(3):
        assert world.coordinator.advance() is None
        assert world.coordinator.missing() == {7: "masks"}  # nobody else is asked for anything
    assert "round 1 waits for helper helper-1: no sum opens while a helper is away" in caplog.text
    answer(world, 7, *range(6))
    world.coordinator.advance()
    answer(world, 6, 7)
    caplog.clear()
    for _ in range(3):
        assert world.coordinator.advance() is None
    assert "round 1 waits for helper helper-2" in caplog.text
    answer(world, 8)
    line = world.coordinator.advance()
    assert line is not None
    assert len(line["clients"]) == 6


def test_a_server_killed_anywhere_in_a_round_asks_for_the_same_sum(tmp_path: Path) -> None:
    """A message that comes when the set is fixed changes nothing, also after a restart."""
    world = World(tmp_path, **PUBLIC)
    world.enrol_all()
    late = None
    while not world.coordinator.done:
        for member in list(world.coordinator.missing()):
            if member == 5 and not world.coordinator.round:
                late = world.answer(5)
                continue
            answer(world, member)
            world.kill()
            world.start()
        if set(world.coordinator.missing()) == {5} and late:
            world.coordinator._deadline = 0.0  # patience with the last one is over
        world.coordinator.advance()
        if late and sums(world).fixed:
            world.coordinator.accept(5, late)
            assert sums(world).fixed == [0, 1, 2, 3, 4]
            late = None  # it was paid for, and is in no sum
            assert ("gradient", 1) in world.store.received(5)
    lines = world.store.lines()
    assert [len(line["clients"]) for line in lines] == [5, 6]
    assert same(
        replayed(world.agreement.plan, lines, tmp_path / "simulated"), world.coordinator.server.state()
    )
    with sqlite3.connect(tmp_path / "server.sqlite") as store:
        assert store.execute("SELECT COUNT(*) FROM masks").fetchone() == (0,)
        assert store.execute("SELECT COUNT(*) FROM fixed").fetchone() == (0,)


def test_helpers_erase_the_key_of_a_last_round_that_is_given_up(tmp_path: Path) -> None:
    world = World(tmp_path, options=IMPATIENT, **{**PUBLIC, "rounds": 1})
    world.enrol_all()
    answer(world, 6, 7, 8, 0, 1)
    world.coordinator.advance()
    world.coordinator.advance()
    assert world.coordinator.done
    assert Counter(world.coordinator.missing().values()) == {"masks": 3, "model": 2}
    answer(world, 6, 7, 8)
    assert Counter(world.coordinator.missing().values()) == {"model": 2}
    for number in range(3):
        [path] = (tmp_path / "clients" / f"helper-{number}").glob("masks-*.sqlite")
        with sqlite3.connect(path) as store:
            assert store.execute("SELECT COUNT(*) FROM key").fetchone() == (0,)


def test_a_server_restored_from_before_a_round_gives_it_up(tmp_path: Path) -> None:
    """Helpers have closed the round: its sum cannot open a second time, for whichever set."""
    world = World(tmp_path, **PUBLIC)
    world.enrol_all()
    world.kill()
    kept = {path: path.read_bytes() for path in tmp_path.glob("server.sqlite*")}
    world.start()
    for _ in range(3):
        world.step()
    assert world.coordinator.round == 1
    world.kill()
    for path in tmp_path.glob("server.sqlite*"):
        path.unlink()
    for path, content in kept.items():
        path.write_bytes(content)
    world.start()
    world.finish()
    lines = world.store.lines()
    assert [len(line["clients"]) for line in lines] == [0, 6]
    assert lines[0]["given_up"]


def test_what_is_no_answer_of_a_helper_is_refused_and_no_masked_message_left_out(tmp_path: Path) -> None:
    world = World(tmp_path, options=IMPATIENT, **PUBLIC)
    world.enrol_all()
    good = world.answer(6)
    for wrong, match in (
        ({"error": "not today"}, "helper helper-0 declined: not today"),
        ({**good, "signature": bytes(64)}, "not signed"),
        ({**good, "next": 2}, "not signed"),
        ({**good, "next": "1"}, "sent no key"),
        ({**good, "key": None}, "sent no key"),
    ):
        with pytest.raises(SottovoceError, match=match):
            world.coordinator.accept(6, wrong)
    world.coordinator.accept(6, {**good, "round": 7})  # of another round: dropped
    assert set(world.coordinator.missing()) == {6, 7, 8}
    answer(world, 6, 7, 8, 1, 2, 3, 4, 5)
    sent = world.answer(0)
    with pytest.raises(SottovoceError, match="bytes for a masked share"):
        world.coordinator.accept(0, world.sealed(0, sent, world.codeword(0, sent)[:-2]))
    world.coordinator.advance()
    assert sums(world).fixed == [1, 2, 3, 4, 5]
    masks = world.answer(6)
    with pytest.raises(SottovoceError, match="other than masks"):
        world.coordinator.accept(6, {**masks, "masks": masks["masks"][:-1]})
    assert set(world.coordinator.missing()) == {6, 7, 8}


def test_real_sites_that_agree_declare_their_records_and_train_under_masks(tmp_path: Path) -> None:
    """Nothing is seeded, every owner's config consents, and helpers learn the frozen numbers as sites do."""
    sizes = {"east": 40, "north": 60, "south": 35, "west": 50}
    folder = sites(tmp_path / "sites", "classes", sizes=sizes)
    keys = {name: SiteKey.make(tmp_path / name) for name in (*sizes, "board", "lab")}
    marks = [(name, key.public) for name, key in keys.items()]
    overrides = {"preset": "shared", "dataset": "records.toml", "partition": "client", "participants": 4}
    numbers = {"clients_per_round": 4, "threshold": 3, "colluding": 1, "helpers": 2, "rounds": 2}
    plan = Plan.load(overrides={**overrides, **numbers, "future_clients": 0, "evaluate_every": 0})
    agreement = Agreement(
        *complete(plan, Description.load(folder / "records.toml").facts()),
        parties=Parties(tuple(marks[:4]), tuple(marks[4:])),
    )
    assert agreement.open
    helpers = frozenset(fingerprint(public).replace(" ", "") for _, public in marks[4:])
    members: list[Node | HelperNode] = [
        Node(
            tmp_path / f"{name}-state",
            folder / f"{name}.csv",
            agreement,
            terms=Terms(noise_shared=True, honest=2, helpers=helpers),
            key=keys[name],
        )
        for name in sizes
    ]
    members += [HelperNode(tmp_path / f"{name}-state", agreement, keys[name]) for name in ("board", "lab")]
    with closing(Store.open(tmp_path / "server.sqlite", agreement)) as store:
        coordinator = Coordinator(agreement, store)
        for number, member in enumerate(members):
            assert coordinator.roster.enrol(member.enrol(coordinator.roster.offer()), str(number)) == number
        coordinator.advance()
        while not coordinator.closed:
            for number, kind in coordinator.missing().items():
                request, member = coordinator.request(number, kind), members[number]
                if isinstance(member, HelperNode):
                    coordinator.accept(number, member.masks(request))
                else:
                    coordinator.accept(
                        number, (member.keep_model if kind == "model" else member.release)(request)
                    )
            coordinator.advance()
        assert [len(line["clients"]) for line in store.lines()] == [4, 4]
        assert coordinator.roster.names == list(sizes)
    for name in sizes:
        with Ledger.open(folder / f"{name}.ledger.sqlite", scope=client_scope(name)) as ledger:
            [*_, last] = [
                entry.charge for entry in ledger.charges(OWN_RECORDS) if entry.charge.kind == "gradient"
            ]
            assert (last.place, last.honest, last.helpers) == ("shared", 2, "board, lab")
            assert ledger.epsilon(OWN_RECORDS, coordinator.agreement.plan.delta, "exact") == pytest.approx(
                plan.epsilon
            )
