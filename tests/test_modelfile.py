"""Files of tensors explain themselves, and are refused where they are damaged or another run's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save_file

from sottovoce.data import Facts
from sottovoce.modelfile import GeneratorFile, ModelFileError, load_tensors, personal_model, save_tensors
from sottovoce.server import Server
from tests.small import SMALL, drawn, small_plan

FACTS = Facts((1, 28, 28), 10, mean=(0.1307,), std=(0.3081,))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    blueprint = drawn(small_plan(gradient_records=40, momentum=0.5, averaging=0.5, context="public"), FACTS)
    server = Server(blueprint)
    server.receive_round({})
    GeneratorFile.of(blueprint, "0123", server.state()).write(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_a_generators_file_says_all_that_is_needed_to_use_it(written: Path) -> None:
    file = GeneratorFile.read(written, model=SMALL["model"])
    assert (file.run, file.facts) == ("0123", FACTS)
    again = drawn(file.plan, file.facts)
    assert again.reference_digest == file.reference
    Server(again).load_state(file.state)


def test_what_only_training_needs_is_not_in_the_file_of_a_finished_run(written: Path) -> None:
    state, _ = load_tensors(written)
    assert not any(name.startswith(("momentum.", "average.")) for name in state)


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_file_is_refused(written: Path, damage: bytes | None) -> None:
    written.write_bytes(written.read_bytes()[:-40] if damage is None else damage)
    with pytest.raises(ModelFileError, match="damaged"):
        GeneratorFile.read(written)


def test_a_missing_foreign_or_incomplete_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(ModelFileError, match="missing"):
        load_tensors(path)
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(ModelFileError, match="was not written by this version"):
        load_tensors(path)
    save_tensors(path, {"x": torch.zeros(2)}, {"run": "0123"})
    with pytest.raises(ModelFileError, match="incomplete"):
        GeneratorFile.read(path)


def test_the_file_of_another_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_tensors(path, {"x": torch.arange(3)}, {"run": "0123"})
    tensors, metadata = load_tensors(path, {"run": "0123"})
    assert torch.equal(tensors["x"], torch.arange(3))
    assert metadata["run"] == "0123"
    with pytest.raises(ModelFileError, match="its run differs"):
        load_tensors(path, {"run": "4567"})


def test_a_personal_model_is_a_plain_state_dict_at_reference_plus_lifted_coefficients() -> None:
    blueprint = drawn(small_plan(gradient_records=40), FACTS)
    a = torch.randn(blueprint.coefficients)
    state = load(personal_model(blueprint, a))
    assert state.keys() == blueprint.module.state_dict().keys()
    flat = torch.cat([state[name].reshape(-1) for name in blueprint.module.state_dict()])
    assert torch.allclose(flat, blueprint.theta(a))
