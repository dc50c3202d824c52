"""A helper answers each round once, forgets its key for ever, and refuses everything else."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.errors import SottovoceError
from sottovoce.release.places.helper import Helper
from sottovoce.release.places.masks import MaskingError, RoundKey, derived, exchanged, stream, unmasked
from tests.masks import Circle, circle, keys_of, named

RUN = ("3f2a", "gradient")
ZEROS = np.zeros(20, np.int64)


def _asked(
    made: Circle, round_number: int, keys: list[RoundKey], clients: range = range(6)
) -> dict[int, bytes]:
    return named({i: made.message(i, round_number, keys, ZEROS) for i in clients})


def test_a_helper_refuses_all_but_one_set_of_enough_planned_clients(tmp_path: Path) -> None:
    made = circle(schedule=((0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5)))
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        helper, keys = helpers[0], keys_of(helpers)
        told = _asked(made, 1, keys, range(5))
        stranger = {**told, 5: told[0]}
        for run, kind, number, named_clients, reason in (
            (*RUN, 1, {i: told[i] for i in range(2)}, "at least 3"),
            (*RUN, 1, {0: told[0]}, "at least 3"),
            (*RUN, 1, {}, "at least 3"),
            (*RUN, 1, stranger, "planned for its round"),
            (*RUN, 1, {**told, -1: told[0]}, "planned for its round"),
            (*RUN, 2, told, "no key of round 2"),
            (*RUN, 3, told, "not in the schedule"),
            ("other", "gradient", 1, told, "another run"),
            ("3f2a", "confusion", 1, told, "another kind"),
        ):
            with pytest.raises(MaskingError, match=reason):
                helper.answer(run, kind, number, named_clients)
        helper.answer(*RUN, 1, told)
        for other in ({i: told[i] for i in range(4)}, {i: told[i] for i in (0, 1, 2)}):
            with pytest.raises(MaskingError, match="answered before"):
                helper.answer(*RUN, 1, other)
        with pytest.raises(MaskingError, match="no key of round 1"):
            helper.give_up(1)


def test_the_same_set_gets_the_same_answer_whatever_keys_come_with_it(tmp_path: Path) -> None:
    made = circle()
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        told = _asked(made, 1, keys_of(helpers))
        first = helpers[0].answer(*RUN, 1, told)
        again = helpers[0].answer(*RUN, 1, {i: told[5 - i] for i in range(6)})
    assert first == again


def test_a_replaced_ephemeral_key_opens_nothing(tmp_path: Path) -> None:
    """The coordinator names keys of its own for all clients but one, to know their masks."""
    made = circle()
    values = np.random.default_rng(1).integers(-9, 10, (6, 20))
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        keys = keys_of(helpers)
        messages = {i: made.message(i, 1, keys, values[i]) for i in range(6)}
        own = {i: X25519PrivateKey.generate() for i in range(1, 6)}
        told = {i: key.public_key().public_bytes_raw() for i, key in own.items()} | {0: messages[0][:32]}
        answers = [helper.answer(*RUN, 1, told) for helper in helpers]
        # What it would take off if the exchange of long-term keys were not there.
        guessed = np.zeros(20, np.uint16)
        for i, key in own.items():
            for h, one in enumerate(keys):
                seed = derived(exchanged(key, one.public), made.terms, 1, i, h, told[i], one.public)
                guessed = guessed + made.terms.words(stream(seed, made.terms.length))
    opened = unmasked(made.terms, {0: messages[0]}, answers) + guessed.astype(np.int64)
    assert ((opened - values[0]) % 2**16 != 0).sum() > 15


def test_keys_exist_one_round_ahead_and_after_the_last_none(tmp_path: Path) -> None:
    made = circle()
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        for number in (1, 2, 3):
            keys = keys_of(helpers)
            assert {key.round for key in keys} == {number} == {helper.round for helper in helpers}
            told = _asked(made, number, keys)
            for helper in helpers:
                helper.answer(*RUN, number, told)
        assert [helper.round for helper in helpers] == [0, 0]
        assert [helper.key() for helper in helpers] == [None, None]


def test_a_round_that_is_given_up_is_never_answered_and_gives_the_next_key(tmp_path: Path) -> None:
    made = circle()
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        told = _asked(made, 1, keys_of(helpers))
        for helper in helpers:
            helper.give_up(1)
        following = keys_of(helpers)
        assert [key.round for key in following] == [2, 2]
        for helper in helpers:
            helper.give_up(1)
        assert following == keys_of(helpers)
        with pytest.raises(MaskingError, match="given up"):
            helpers[0].answer(*RUN, 1, told)
        helpers[0].answer(*RUN, 2, _asked(made, 2, keys_of(helpers)))


def _holds(folder: Path, secret: bytes) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]


@pytest.mark.parametrize("end", ["answer", "give up"])
def test_no_file_holds_a_key_of_a_closed_round_not_even_a_copy_of_yesterday(tmp_path: Path, end: str) -> None:
    made, path = circle(), tmp_path / "helper-0.sqlite"
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-yesterday"))
        told = _asked(made, 1, keys_of(helpers))
        helpers[0].answer(*RUN, 1, told)
        second = _private(path)
        assert _holds(tmp_path, second)
        if end == "answer":
            helpers[1].give_up(1)
            helpers[0].answer(*RUN, 2, _asked(made, 2, keys_of(helpers)))
        else:
            helpers[0].give_up(2)
        assert not _holds(tmp_path, second)  # the write-ahead log is open here, and empty
    assert not _holds(tmp_path, second)
    # Keys are made one round ahead: yesterday's copy has the key of round 1, and none of any later round.
    assert not _holds(tmp_path.with_name(f"{tmp_path.name}-yesterday"), second)


def _private(path: Path) -> bytes:
    with sqlite3.connect(path) as reader:
        [(private,)] = reader.execute("SELECT private FROM key").fetchall()
    reader.close()
    return bytes(private)


def test_a_reader_of_the_store_keeps_an_answer_from_leaving(tmp_path: Path) -> None:
    """While somebody reads, the log cannot be emptied, and the erased key is still in it."""
    made = circle()
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        helpers[0].query("PRAGMA busy_timeout = 50")
        told = _asked(made, 1, keys_of(helpers))
        reader = sqlite3.connect(tmp_path / "helper-0.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM key").fetchall()
        with pytest.raises(MaskingError, match="being read"):
            helpers[0].answer(*RUN, 1, told)
        reader.close()
        assert len(helpers[0].answer(*RUN, 1, told)) == made.terms.length


def test_a_helper_killed_between_store_and_answer_says_the_same_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = circle()
    values = np.random.default_rng(1).integers(-9, 10, (6, 20))
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        keys = keys_of(helpers)
        messages = {i: made.message(i, 1, keys, values[i]) for i in range(6)}
        answers = [helpers[1].answer(*RUN, 1, named(messages))]

        def killed(self: Helper) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Helper, "_settle", killed)
        with pytest.raises(KeyboardInterrupt):
            helpers[0].answer(*RUN, 1, named(messages))
        monkeypatch.undo()
    with ExitStack() as stack:
        helper = made.opened(tmp_path, stack)[0]
        with pytest.raises(MaskingError, match="answered before"):
            helper.answer(*RUN, 1, named({i: messages[i] for i in range(5)}))
        answers.insert(0, helper.answer(*RUN, 1, named(messages)))
    np.testing.assert_array_equal(unmasked(made.terms, messages, answers), values.sum(axis=0))


def test_a_helper_killed_before_it_has_stored_has_said_nothing_and_kept_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = circle()
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        keys = keys_of(helpers)
        told = _asked(made, 1, keys)
        monkeypatch.setattr(Helper, "_new_key", lambda self, number: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            helpers[0].answer(*RUN, 1, told)
        monkeypatch.undo()
    with ExitStack() as stack:
        helper = made.opened(tmp_path, stack)[0]
        assert helper.key() == keys[0]
        helper.answer(*RUN, 1, told)


@pytest.mark.parametrize("files", [["*.sqlite"], ["*"]], ids=str)
def test_a_helper_that_was_restored_refuses_its_run_for_ever(tmp_path: Path, files: list[str]) -> None:
    made, folder, backup = circle(), tmp_path / "helper", tmp_path / "backup"
    folder.mkdir()
    with ExitStack() as stack:
        made.opened(folder, stack)
    shutil.copytree(folder, backup)
    with ExitStack() as stack:
        helpers = made.opened(folder, stack)
        helpers[0].answer(*RUN, 1, _asked(made, 1, keys_of(helpers)))
    for pattern in files:
        for path in backup.glob(pattern):
            shutil.copy2(path, folder)
    for _ in range(2):
        with ExitStack() as stack, pytest.raises(MaskingError, match="never answers for this run again"):
            made.opened(folder, stack)


def test_a_copied_helper_refuses_and_so_does_one_whose_store_is_gone(tmp_path: Path) -> None:
    made, folder = circle(), tmp_path / "helper"
    folder.mkdir()
    with ExitStack() as stack:
        made.opened(folder, stack)
    shutil.copytree(folder, tmp_path / "copy")
    with ExitStack() as stack, pytest.raises(MaskingError, match="never answers"):
        made.opened(tmp_path / "copy", stack)
    (folder / "helper-0.sqlite").unlink()
    with ExitStack() as stack, pytest.raises(MaskingError, match="never will again"):
        made.opened(folder, stack)


def test_a_store_serves_one_agreement_one_helper_and_one_process(tmp_path: Path) -> None:
    made = circle()
    with ExitStack() as stack:
        made.opened(tmp_path, stack)
        with ExitStack() as other, pytest.raises(SottovoceError, match="another process"):
            made.opened(tmp_path, other)
    with ExitStack() as stack, pytest.raises(MaskingError, match="another agreement"):
        made.opened(tmp_path, stack, made.changed(threshold=2))
    strangers = (X25519PrivateKey.generate(), Ed25519PrivateKey.generate())
    with pytest.raises(MaskingError, match="no helper"), Helper.open(tmp_path / "x", made.terms, *strangers):
        pass
    assert (tmp_path / "helper-0.sqlite").stat().st_mode & 0o777 == 0o600


def test_for_every_strategy_nothing_but_one_sum_of_enough_honest_clients_opens(tmp_path: Path) -> None:
    """Four clients, one of them the adversary's; helper 1 is its too. It names any set and any keys, true or
    false, to helper 0, and has all messages. Which sums of messages and the answer are free of masks?

    Each mask of helper 0, by client and key, is an unknown of its own: shown below for what it answers.
    """
    terms = {"threshold": 3, "colluding": 1, "size": 2}
    found = 0
    for number, choice in enumerate(itertools.product(("absent", "true", "false"), repeat=4)):
        made = circle(clients=4, **terms)  # type: ignore[arg-type]
        folder = tmp_path / str(number)
        folder.mkdir()
        with ExitStack() as stack:
            helpers = made.opened(folder, stack)
            keys = keys_of(helpers)
            messages = {i: made.message(i, 1, keys, np.zeros(2, np.int64)) for i in range(4)}
            fresh = X25519PrivateKey.generate().public_key().public_bytes_raw()
            told = {
                i: messages[i][:32] if what == "true" else fresh
                for i, what in enumerate(choice)
                if what != "absent"
            }
            private = X25519PrivateKey.from_private_bytes(_private(folder / "helper-0.sqlite"))
            if len(told) < 3:
                with pytest.raises(MaskingError, match="at least 3"):
                    helpers[0].answer(*RUN, 1, told)
                continue
            answer = helpers[0].answer(*RUN, 1, told)
        # The answer is the sum of one mask for each client and key that was named, and of nothing else.
        expected = np.zeros(2, np.uint16)
        for i, e in told.items():
            both = exchanged(private, e) + exchanged(made.helpers[0][0], bytes.fromhex(made.terms.clients[i]))
            expected = expected + made.terms.words(
                stream(derived(both, made.terms, 1, i, 0, e, keys[0].public), made.terms.length)
            )
        np.testing.assert_array_equal(made.terms.words(answer), expected)
        # Rows over ℤ₂: three honest messages Y_i + M_i, and the answer; unknowns: M_i and M'_i of false keys.
        rows = [[int(i == j) for j in range(6)] for i in range(3)]
        rows.append([int(choice[i % 3] == ("true" if i < 3 else "false")) for i in range(6)])
        free = [
            combination
            for combination in itertools.product((0, 1), repeat=4)
            if any(combination)
            and not any(
                sum(c * row[j] for c, row in zip(combination, rows, strict=True)) % 2 for j in range(6)
            )
        ]
        assert len(free) <= 1
        for combination in free:
            found += 1
            assert sum(combination[:3]) >= 3 - 1
    assert found > 0


def test_a_helper_needs_no_torch() -> None:
    script = "import sys; import sottovoce.release.places.helper; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)
