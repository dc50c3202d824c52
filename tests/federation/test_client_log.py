"""What a client's own log says, and what it never says."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.client_log import ClientLog

from .world import World, charged


def test_what_strangers_say_is_one_short_line_of_a_log(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    long = "x\n2026 ERROR all is lost\x1b[2J" * 1000
    for refused in (
        lambda: world.coordinator.accept(0, {"error": long}),
        lambda: world.coordinator.accept(0, {"kind": "context", "round": long, "release": b""}),
        lambda: world.coordinator.enrol({"error": long}, "9"),
        lambda: world.coordinator.enrol(
            {"agreement": world.agreement.digest(), "participant": long, "key": b"", "proof": b""}, "9"
        ),
    ):
        with pytest.raises(SottovoceError) as error:
            refused()
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 300
    request = world.coordinator.request(0, "context")
    world.node(0).release({**request, "refused": long})
    world.node(0).refused(world.store.run, long)
    with pytest.raises(SottovoceError):
        world.node(0).release({**request, "kind": long, "agreement": long})
    lines = (tmp_path / "clients" / "client-0" / "client.log").read_text().splitlines()
    assert len(lines) == 5
    assert all(line.isprintable() and len(line) < 600 for line in lines)


def test_a_client_reads_in_its_own_log_why_its_answer_was_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrol_all()
    answer = world.answer(0)
    damaged = answer["release"][:-1] + bytes([answer["release"][-1] ^ 1])
    with pytest.raises(SottovoceError, match="does not match its seal"):
        world.coordinator.accept(0, {**answer, "release": damaged})
    assert world.answer(0) == answer
    log = tmp_path / "clients" / "client-0" / "client.log"
    assert "ERROR the server refused an answer: message does not match its seal" in log.read_text()
    assert world.coordinator.request(0, "context")["refused"] == ""
    assert charged(world, 0) == [("context", 0)]


def test_lines_are_appended_for_their_owner_and_errors_are_noted_and_raised(tmp_path: Path) -> None:
    own = ClientLog(tmp_path / "client.log")
    own.note("enrols")
    with pytest.raises(ZeroDivisionError), own.refusals("the context of round 0"):
        raise ZeroDivisionError("1/0")
    first, second = (tmp_path / "client.log").read_text().splitlines()
    assert first.endswith(" INFO enrols")
    assert second.endswith(" ERROR refused the context of round 0: ZeroDivisionError('1/0')")
    assert stat.S_IMODE((tmp_path / "client.log").stat().st_mode) == 0o600
