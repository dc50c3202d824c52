"""Masks hide all but the sum that all helpers answered for, and bind everything that was agreed."""

from __future__ import annotations

import hashlib
import hmac
import itertools
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.release.places import masks
from sottovoce.release.places.masks import (
    MaskingError,
    MaskTerms,
    RoundKey,
    derived,
    ephemeral_of,
    prefixed,
    public_hex,
    stream,
    unmasked,
)
from tests.masks import Circle, circle, keys_of, named

RUN = ("3f2a", "gradient")


def _values(clients: int, size: int, largest: int = 500) -> np.ndarray:
    return np.random.default_rng(5).integers(-largest, largest + 1, (clients, size))


@pytest.mark.parametrize("word", [16, 32])
def test_the_sum_is_exact_for_every_pattern_of_clients_that_vanish(tmp_path: Path, word: int) -> None:
    patterns = [p for count in range(3, 7) for p in itertools.combinations(range(6), count)]
    everybody = tuple(range(6))
    made = circle(word=word, schedule=(everybody,) * len(patterns))
    values = _values(6, 20)
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        for number, came in enumerate(patterns, start=1):
            keys = keys_of(helpers)
            sent = {i: made.message(i, number, keys, values[i]) for i in range(6)}
            messages = {i: sent[i] for i in came}
            answers = [helper.answer(*RUN, number, named(messages)) for helper in helpers]
            found = unmasked(made.terms, messages, answers)
            np.testing.assert_array_equal(found, values[list(came)].sum(axis=0))


def test_coordinator_colluding_client_and_all_helpers_but_one_see_the_sum_of_the_honest_and_no_less(
    tmp_path: Path,
) -> None:
    """Helper 0 is honest, helpers 1 and 2 are the adversary's, and so is client 5, which knows its share."""
    made = circle(helpers=3, size=4000, threshold=5)
    values = _values(6, 4000)
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        keys = keys_of(helpers)
        messages = {i: made.message(i, 1, keys, values[i]) for i in range(6)}
        left = {}
        for client, message in messages.items():
            words = made.terms.words(message[32:])
            for h in (1, 2):  # whoever has a helper's keys takes its mask off every single message
                words = words - made.terms.words(helpers[h]._masks(
                    helpers[h]._private(1), 1, {client: ephemeral_of(message)}
                ))  # fmt: skip
            left[client] = words
        chosen = (0, 2, 3, 4, 5)
        answer = made.terms.words(helpers[0].answer(*RUN, 1, named({i: messages[i] for i in chosen})))
        for smaller in itertools.combinations(chosen, 4):
            with pytest.raises(MaskingError):
                helpers[0].answer(*RUN, 1, named({i: messages[i] for i in smaller}))
        with pytest.raises(MaskingError):  # the difference of two sums would be clients 1 and 0
            helpers[0].answer(*RUN, 1, named({i: messages[i] for i in (1, 2, 3, 4, 5)}))
    honest = sum(left[i].astype(np.int64) for i in chosen) - answer.astype(np.int64) - values[5]
    np.testing.assert_array_equal(honest % 2**16, values[[0, 2, 3, 4]].sum(axis=0) % 2**16)
    for client in range(5):  # each alone is uniform: the mean of 4,000 words, 6 standard deviations
        mean = float(left[client].astype(float).mean()) / 2**16
        assert abs(mean - 0.5) < 6 / np.sqrt(12 * 4000)
        assert len(np.unique(left[client])) > 3700


@pytest.mark.parametrize("word", [16, 32])
def test_sums_at_the_edge_of_a_word_hold_and_beyond_it_wrap(tmp_path: Path, word: int) -> None:
    made = circle(clients=3, word=word, size=3)
    edge = 2 ** (word - 1)
    values = np.array([[edge - 3, -edge + 2, edge - 1], [1, -1, 1], [1, -1, 0]])
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        messages = {i: made.message(i, 1, keys_of(helpers), values[i]) for i in range(3)}
        answers = [helper.answer(*RUN, 1, named(messages)) for helper in helpers]
    found = unmasked(made.terms, messages, answers)
    assert found.tolist() == [edge - 1, -edge, -edge]


def test_what_a_client_sends_is_uniform_whatever_its_values(tmp_path: Path) -> None:
    """Of 2²⁰ bits under masks as many are ones as of random bits: |z| below 6, for zeros and for ones.

    Keys are drawn anew each time: by chance this fails once in 10⁸ runs.
    """
    made = circle(size=65_536)
    with ExitStack() as stack:
        keys = keys_of(made.opened(tmp_path, stack))
        for values in (np.zeros(65_536, np.int64), np.full(65_536, -1)):
            sent = made.message(0, 1, keys, values)[32:]
            ones = int(np.unpackbits(np.frombuffer(sent, np.uint8)).sum())
            assert abs(ones - 2**19) < 6 * 2**9
            counts = np.bincount(np.frombuffer(sent, np.uint8), minlength=256)
            chi2 = float(((counts - 512.0) ** 2 / 512).sum())
            assert chi2 < 255 + 7 * (2 * 255) ** 0.5


def test_nothing_opens_without_the_answers_of_all_helpers_for_exactly_this_set(tmp_path: Path) -> None:
    made = circle()
    values = _values(6, 20)
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        messages = {i: made.message(i, 1, keys_of(helpers), values[i]) for i in range(6)}
        most = {i: messages[i] for i in range(5)}
        answers = [helpers[0].answer(*RUN, 1, named(messages))]
        answers.append(helpers[1].answer(*RUN, 1, named(most)))  # the coordinator told it another set
    with pytest.raises(MaskingError, match="nothing opens"):
        unmasked(made.terms, messages, answers[:1])
    for opened in (messages, most, {i: messages[i] for i in range(4)}, {5: messages[5]}):
        total = values[list(opened)].sum(axis=0)
        assert (unmasked(made.terms, opened, answers) != total).sum() > 15


def _opens(made: Circle, folder: Path, terms: MaskTerms) -> bool:
    """Whether anything opens where helper 0 holds these terms, and all others the true ones."""
    values = _values(6, 20)
    with ExitStack() as stack:
        helpers = made.opened(folder, stack, terms)
        keys = keys_of(helpers)
        # A man in the middle signs nothing: the helper's own signature is over its own terms.
        with pytest.raises(MaskingError, match="not signed"):
            made.message(0, 1, keys, values[0])
        forged = [
            RoundKey.signed(made.terms, h, 1, key.public, made.helpers[h][1]) for h, key in enumerate(keys)
        ]
        messages = {i: made.message(i, 1, forged, values[i]) for i in range(6)}
        answers = [helper.answer(terms.run, "gradient", 1, named(messages)) for helper in helpers]
    return bool((unmasked(made.terms, messages, answers) == values.sum(axis=0)).any())


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold": 2},
        {"colluding": 2},
        {"schedule": ((0, 1, 2, 3, 4, 5),) * 4},
        {"rest": "another γ"},
        {"run": "other"},
    ],
    ids=str,
)
def test_a_helper_with_another_agreement_opens_nothing(tmp_path: Path, changes: dict[str, object]) -> None:
    """Also where its keys are signed as if they were of this agreement: the masks are others."""
    made = circle()
    assert not _opens(made, tmp_path, made.changed(**changes))


def test_a_helper_with_another_size_or_word_answers_what_nobody_can_use(tmp_path: Path) -> None:
    made = circle()
    with pytest.raises(MaskingError, match="words"):
        _opens(made, tmp_path, made.changed(size=21))


@pytest.mark.parametrize("field", ["clients", "helpers"])
def test_two_equal_keys_are_refused(field: str) -> None:
    made = circle()
    twice = getattr(made.terms, field)
    with pytest.raises(MaskingError, match="one key or one name"):
        made.changed(**{field: (*twice, twice[0])})


def test_two_helpers_of_one_name_are_refused() -> None:
    first, second = (terms := circle().terms).helpers
    with pytest.raises(MaskingError, match="one name"):
        replace(terms, helpers=(first, replace(second, name=first.name)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"threshold": 1}, "protects nobody"),
        ({"colluding": 0}, "protects nobody"),
        ({"colluding": 3}, "protects nobody"),
        ({"threshold": 7}, "protects nobody"),
        ({"schedule": ((0, 1, 2), (0, 1))}, "protects nobody"),
        ({"schedule": ((0, 0, 1),)}, "protects nobody"),
        ({"word": 24}, "protects nobody"),
        ({"helpers": ()}, "at least one"),
        ({"clients": ("ab",)}, "32 bytes"),
    ],
)
def test_terms_that_protect_nobody_are_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(MaskingError, match=reason):
        circle().changed(**changes)


def test_a_client_refuses_rounds_and_keys_that_were_not_agreed(tmp_path: Path) -> None:
    made = circle(schedule=((0, 1, 2, 3, 4, 5), (0, 1, 2)))
    values = np.zeros(20, np.int64)
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        first = keys_of(helpers)
        messages = {i: made.message(i, 1, first, values) for i in range(3)}
        for helper in helpers:
            helper.answer(*RUN, 1, named(messages))
        keys = keys_of(helpers)
    made.message(2, 2, keys, values)
    for client, number, given, reason in (
        (3, 2, keys, "not planned"),
        (0, 3, keys, "not in the schedule"),
        (0, 0, keys, "not in the schedule"),
        (0, 2, first, "does not serve"),
        (0, 2, keys[:1], "every helper"),
        (0, 2, [keys[1], keys[0]], "every helper"),
        (0, 2, [keys[0], replace(keys[1], signature=bytes(64))], "not signed"),
        (0, 2, [keys[0], replace(keys[1], public=keys[0].public)], "not signed"),
        (0, 2, [replace(first[0], round=2), keys[1]], "not signed"),
    ):
        with pytest.raises(MaskingError, match=reason):
            made.message(client, number, given, values)
    with pytest.raises(MaskingError, match="not planned"):
        masks.masked(made.terms, X25519PrivateKey.generate(), 1, first, values)


def test_the_key_of_a_stranger_for_a_helpers_round_is_refused() -> None:
    made = circle()
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    RoundKey.signed(made.terms, 1, 1, public, made.helpers[1][1]).check(made.terms)
    for key in (
        RoundKey.signed(made.terms, 1, 1, public, Ed25519PrivateKey.generate()),
        RoundKey.signed(made.changed(rest="x"), 1, 1, public, made.helpers[1][1]),
        RoundKey.signed(made.changed(run="x"), 1, 1, public, made.helpers[1][1]),
        RoundKey(7, 1, public, bytes(64)),
    ):
        with pytest.raises(MaskingError, match="not signed"):
            key.check(made.terms)


def test_a_key_of_small_order_is_refused(tmp_path: Path) -> None:
    made = circle()
    with ExitStack() as stack:
        helper = made.opened(tmp_path, stack)[0]
        with pytest.raises(MaskingError, match="not an X25519"):
            helper.answer(*RUN, 1, dict.fromkeys(range(6), bytes(32)))


TERMS = MaskTerms(
    "run", 3, 16, 2, 1,
    clients=tuple(bytes([i] * 32).hex() for i in (1, 2)),
    helpers=(masks.HelperKeys("h", bytes([3] * 32).hex(), bytes([4] * 32).hex()),),
    schedule=((0, 1),),
)  # fmt: skip


def test_known_answers() -> None:
    """HKDF and the digest once more, by hashlib and hmac alone; all of it pinned."""
    text = (
        '["sottovoce masks 1",{"clients":["' + "01" * 32 + '","' + "02" * 32 + '"],"colluding":1,'
        '"helpers":[{"exchange":"' + "03" * 32 + '","name":"h","signing":"' + "04" * 32 + '"}],"rest":"",'
        '"run":"run","schedule":[[0,1]],"size":3,"threshold":2,"word":16}]'
    )
    assert TERMS.digest == hashlib.sha256(text.encode()).digest()
    found = derived(b"secrets", TERMS, 1, 0, 0, b"e" * 32, b"H" * 32)
    info = prefixed(
        "sottovoce masks 1", "run", "gradient", 1, "client", 0, "helper", 0, 3, 16, b"e" * 32, b"H" * 32
    )
    extracted = hmac.digest(TERMS.digest, b"secrets", "sha256")
    assert found == hmac.digest(extracted, info + b"\x01", "sha256")
    assert found.hex() == "96fe4688fc6736b8c6caccb9ed265e26125bca98a06baa5a2cac70e139107f2a"
    # RFC 8439, 2.3.2 and appendix A.1, test vector 1: the first block under a key and nonce of zeros.
    assert stream(bytes(32), 16).hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert stream(found, 6).hex() == "4fe6f6f34aeb"


def test_no_two_masks_of_a_run_come_of_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = circle()
    seen: list[tuple[bytes, bytes]] = []
    true = masks.HKDF

    def noting(algorithm: object, length: int, salt: bytes, info: bytes) -> object:
        seen.append((salt, info))
        return true(algorithm, length, salt, info)  # type: ignore[arg-type]

    monkeypatch.setattr(masks, "HKDF", noting)
    with ExitStack() as stack:
        helpers = made.opened(tmp_path, stack)
        for number in (1, 2, 3):
            messages = {
                i: made.message(i, number, keys_of(helpers), np.zeros(20, np.int64)) for i in range(6)
            }
            clients = len(seen)
            for helper in helpers:
                helper.answer(*RUN, number, named(messages))
            assert sorted(seen[clients - 12 : clients]) == sorted(seen[clients:])  # helpers compute the same
            del seen[clients:]
    assert len(set(seen)) == len(seen) == 3 * 6 * 2
    assert {salt for salt, _ in seen} == {made.terms.digest}


def test_parts_that_differ_never_give_the_same_bytes() -> None:
    assert len({prefixed("a", "b"), prefixed("ab", ""), prefixed("", "ab"), prefixed("ab")}) == 4


def test_public_halves_are_hexadecimal() -> None:
    assert len(bytes.fromhex(public_hex(X25519PrivateKey.generate()))) == 32
