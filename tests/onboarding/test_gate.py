"""Who is let in, how often, and how many at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.datastructures import Address
from starlette.exceptions import HTTPException

from sottovoce.onboarding.gate import Gate, Limits
from sottovoce.onboarding.tokens import Tokens, new_token

HERE, THERE = Address("10.0.0.1", 1), Address("10.0.0.2", 1)


def _gate(folder: Path, open_to_all: bool = False, **limits: float) -> Gate:
    return Gate(Limits(**limits), Tokens(folder), open_to_all)  # type: ignore[arg-type]


def _status(refused: pytest.ExceptionInfo[HTTPException]) -> int:
    return refused.value.status_code


def test_a_token_names_its_client_and_a_wrong_one_nobody(tmp_path: Path) -> None:
    token = new_token(tmp_path, "alice")
    gate = _gate(tmp_path)
    assert gate.check(HERE, f"Bearer {token}") == "alice"
    for wrong in ("", f"Basic {token}", f"Bearer {token}x", "Bearer "):
        with pytest.raises(HTTPException) as refused:
            gate.check(HERE, wrong)
        assert _status(refused) == 401


def test_strangers_are_counted_by_address_and_clients_by_name(tmp_path: Path) -> None:
    token = new_token(tmp_path, "alice")
    gate = _gate(tmp_path, per_second=1e-6, burst=2, strangers_per_second=1e-6, strangers_burst=1)
    assert gate.glance(HERE, "") == ""
    with pytest.raises(HTTPException) as refused:
        gate.glance(HERE, "")
    assert _status(refused) == 429
    assert gate.glance(THERE, "") == ""
    for address in (HERE, THERE):
        assert gate.check(address, f"Bearer {token}") == "alice"
    with pytest.raises(HTTPException) as refused:
        gate.check(HERE, f"Bearer {token}")
    assert _status(refused) == 429


def test_a_place_is_free_again_however_its_holder_leaves(tmp_path: Path) -> None:
    gate = _gate(tmp_path, open_to_all=True, waiting=1)

    def break_off() -> None:
        with gate:
            assert gate.waiting == 1
            with pytest.raises(HTTPException) as refused:
                gate.look()
            assert _status(refused) == 503
            raise ValueError("broke")

    with pytest.raises(ValueError, match="broke"):
        break_off()
    assert gate.waiting == 0
    gate.look()


def test_who_finds_no_place_takes_none(tmp_path: Path) -> None:
    gate = _gate(tmp_path, open_to_all=True, waiting=2)
    with gate, gate:
        with pytest.raises(HTTPException) as refused, gate:
            raise AssertionError("was let in")
        assert _status(refused) == 503
        assert gate.waiting == 2
    assert gate.waiting == 0


def test_without_an_address_strangers_share_one_and_an_open_service_counts_nobody(tmp_path: Path) -> None:
    gate = _gate(tmp_path, strangers_per_second=1e-6, strangers_burst=1)
    assert gate.glance(None, "") == ""
    with pytest.raises(HTTPException) as refused:
        gate.glance(None, "")
    assert _status(refused) == 429
    free = _gate(tmp_path, open_to_all=True, strangers_per_second=1e-6, strangers_burst=1)
    for _ in range(3):
        assert free.glance(HERE, "") == free.check(HERE, "") == ""


def test_the_limits_are_those_of_the_documentation() -> None:
    limits = Limits()
    assert (limits.waiting, limits.per_second, limits.burst) == (64, 5.0, 10)
    assert (limits.strangers_per_second, limits.strangers_burst) == (20.0, 100)
