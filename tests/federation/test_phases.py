"""What the server opens and closes, and when: contexts, rounds, confusions, the end; each in an instant."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.server import Options
from sottovoce.models.tensors import load_tensors
from sottovoce.release.kind import Release
from sottovoce.run.training import train

from .world import QUICK, World, same

IMPATIENT = Options(patience=0.0)


def enrolled(folder: Path, options: Options | None = None, **changes: Any) -> World:
    """All three are there, and all are asked in every round."""
    world = World(folder, options=options, **{**QUICK, "clients_per_round": 3, **changes})
    world.enrol_all()
    return world


@pytest.mark.parametrize(
    "changes",
    [{}, {"context": "predictions", "context_round": 2}, {"context": "shares", "context_share": 0.05}],
    ids=["moments", "predictions", "shares"],
)
def test_contexts_rounds_confusions_and_the_average_come_as_in_the_simulator(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    world = enrolled(tmp_path, averaging=1.0, **changes)
    world.finish()
    train(world.agreement.plan, tmp_path / "simulated")
    simulated, _ = load_tensors(tmp_path / "simulated" / "model.safetensors")
    assert same(simulated, world.coordinator.server.state())


def test_contexts_are_asked_for_when_they_are_due_and_not_before(tmp_path: Path) -> None:
    world = enrolled(tmp_path, context="predictions", context_round=2)
    asked = []
    while not world.coordinator.done:
        asked.append(world.coordinator.missing())
        world.step()
    assert asked == [dict.fromkeys(range(3), kind) for kind in ("gradient", "context", "gradient")]


def test_between_rounds_no_gradient_is_taken(tmp_path: Path) -> None:
    world = enrolled(tmp_path, context="predictions", context_round=2)
    world.step()
    assert set(world.coordinator.missing().values()) == {"context"}
    world.store.ask(0, "gradient")  # even one that has a key
    release = world.coordinator.blueprint.releases["gradient"]
    stream = release.stream(world.store.run, "participant-0", 2)
    secret = world.coordinator.roster.secret(0)
    codeword = release.encode(np.zeros(release.size), secret=secret, stream=stream)
    with pytest.raises(SottovoceError, match="participant-0 was not chosen for round 2"):
        world.coordinator.accept(0, world.sealed(0, {"kind": "gradient", "round": 2}, codeword))
    assert ("gradient", 2) not in world.store.received(0)


def test_what_is_neither_a_release_nor_left_out_is_refused(tmp_path: Path) -> None:
    world = enrolled(tmp_path)
    for answer in (
        {"kind": "context", "round": 0},
        {"kind": "context", "round": 0, "release": "text"},
        {"kind": "confusion", "round": 0, "release": bytes(200)},
        {"kind": "confusion", "round": 0, "left_out": "gone"},
    ):
        with pytest.raises(SottovoceError, match="participant-0 sent something other than a release"):
            world.coordinator.accept(0, answer)
    assert world.coordinator.missing()[0] == "context"


def test_an_implausible_release_is_refused_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = enrolled(tmp_path)
    monkeypatch.setattr(Release, "plausible", lambda *_: False)
    with pytest.raises(SottovoceError, match="a context of a norm that its clipping and noise do not reach"):
        world.coordinator.accept(0, world.answer(0))
    assert world.store.received(0) == []
    assert set(world.coordinator.missing()) == {1, 2}


def test_a_gradient_is_left_out_of_its_round_and_a_context_of_the_whole_run(tmp_path: Path) -> None:
    world = enrolled(tmp_path)
    world.coordinator.accept(0, {"kind": "context", "round": 0, "left_out": "gone"})
    world.step()
    assert set(world.coordinator.missing()) == {1, 2}
    world.coordinator.accept(1, {"kind": "gradient", "round": 1, "left_out": "gone"})
    assert set(world.coordinator.missing()) == {2}
    world.step()
    assert set(world.coordinator.missing()) == {1, 2}


def test_the_operator_reads_what_is_continued_without_whom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = enrolled(tmp_path, IMPATIENT)
    for what in ("contexts of", "round 1 without"):
        for participant in (0, 1):
            world.coordinator.accept(participant, world.answer(participant))
        caplog.clear()
        world.coordinator.advance()
        assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
            f"patience is over, continuing: {what} participant-2"
        ]


def test_who_comes_late_can_still_release_its_context_until_the_last_round(tmp_path: Path) -> None:
    world = enrolled(tmp_path, IMPATIENT)
    late = world.answer(2)  # sealed for a key that the server has, and on its way
    keys = [world.store.seal_key(2, "context")]
    while not world.coordinator.done:
        world.coordinator.advance()
        keys.append(world.store.seal_key(2, "context"))
    assert keys == [keys[0]] * 3 + [None]
    with pytest.raises(SottovoceError, match="not open"):
        world.coordinator.accept(2, late)


def test_diagnostics_are_of_the_releases_of_one_round_and_only_if_asked_for(tmp_path: Path) -> None:
    quiet = enrolled(tmp_path / "quiet", rounds=1)
    quiet.step()
    assert "uncharged_diagnostics" not in (quiet.step() or {})
    loud = enrolled(tmp_path / "loud", Options(diagnostics=True))
    loud.step()
    for _ in range(2):
        sent = {}
        for participant in range(3):
            answer = {**loud.answer(participant), "accuracy": 10.0 * participant}
            loud.coordinator.accept(participant, answer)
            sent[f"gradient of participant-{participant}"] = (len(answer["release"]), 10.0 * participant)
        line = loud.coordinator.advance() or {}
        found = line["uncharged_diagnostics"]
        assert {name: (values["bytes"], values["accuracy"]) for name, values in found.items()} == sent
        assert all(values["norm"] > 0 for values in found.values())
        assert 0 <= line["seconds"] < 600
