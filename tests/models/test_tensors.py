"""Files of tensors explain themselves, and are refused where they are damaged or another run's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save_file
from torch import nn

from sottovoce.data import Description, Facts
from sottovoce.errors import SottovoceError
from sottovoce.models.features.cache import described_facts
from sottovoce.models.tensors import ModelFileError, load_tensors, save_tensors
from sottovoce.personal import PersonalModel, personal_model
from sottovoce.run.finished import GeneratorFile
from sottovoce.training.server import Server
from tests.small import COLUMNS, SMALL, built, small_plan

FACTS = Facts((1, 28, 28), 10, mean=(0.1307,), std=(0.3081,))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    blueprint = built(small_plan(gradient_records=40, momentum=0.5, averaging=0.5, context="public"), FACTS)
    server = Server(blueprint)
    server.receive_round({})
    GeneratorFile.of(blueprint, "0123", server.state()).write(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_a_generators_file_says_all_that_is_needed_to_use_it(written: Path) -> None:
    file = GeneratorFile.read(written, model=SMALL["model"])
    assert (file.run, file.facts) == ("0123", FACTS)
    again = built(file.plan, file.facts)
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
    blueprint = built(small_plan(gradient_records=40), FACTS)
    a = torch.randn(blueprint.coefficients)
    state = load(personal_model(blueprint, a, run="0123", client="north", epsilon=4.0))
    assert state.keys() == blueprint.module.state_dict().keys()
    flat = torch.cat([state[name].reshape(-1) for name in blueprint.module.state_dict()])
    assert torch.allclose(flat, blueprint.theta(a))


# Personal models

TABLE = (
    'task = "classes"\nunit = "patient"\n[target]\ncolumn = "diagnosis"\nvalues = ["benign", "malignant"]\n'
    + COLUMNS
)


def personal(path: Path, facts: Facts | None = None, **changes: Any) -> Path:
    """A file with made-up coefficients, of a table unless `facts` say otherwise."""
    values = {"model": "linear", "method": "blend", "context": "public", "gradient_records": 40, **changes}
    facts = Description.parse(TABLE).facts() if facts is None else facts
    values.setdefault("coefficients", (facts.shape[0] + 1) * facts.classes)
    blueprint = built(small_plan(**values), facts)
    a = torch.randn(blueprint.coefficients, generator=torch.Generator().manual_seed(5))
    path.write_bytes(personal_model(blueprint, a, run="0123", client="north", epsilon=3.5))
    return path


def rewritten(path: Path, change: Callable[[dict[str, str]], Any]) -> Path:
    """The same tensors under another header."""
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    change(metadata)
    save_file(load_file(path), path, metadata)
    return path


def test_a_personal_models_file_explains_itself(tmp_path: Path) -> None:
    path = personal(tmp_path / "north.safetensors", epsilon=4.0, delta=1e-6, seeded=False)
    read = PersonalModel.read(path)
    assert (read.origin.run, read.origin.client, read.origin.epsilon) == ("0123", "north", 3.5)
    assert (read.origin.delta, read.origin.accounting, read.origin.noise) == (1e-6, "exact", "client")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", read.origin.created)
    assert read.records.class_names == ("benign", "malignant")
    assert Description.parse(read.records.columns) == Description.parse(TABLE)
    assert read.plan.model == "linear"
    x = torch.randn(7, 5)
    layer = load_file(path)
    assert torch.allclose(read.outputs(x), x @ layer["1.weight"].T + layer["1.bias"])


def test_a_header_is_readable_without_this_package(tmp_path: Path) -> None:
    with safe_open(personal(tmp_path / "north.safetensors"), framework="pt") as file:
        header = file.metadata()
    assert json.loads(header["model"])["model"] == "linear"
    assert json.loads(header["origin"])["client"] == "north"
    assert json.loads(header["class_names"]) == ["benign", "malignant"]
    assert '[columns."age"]' in json.loads(header["columns"])


def test_plain_torch_loads_a_personal_model_in_three_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three lines of docs/models.md."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    [*_, lines] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(lines.splitlines()) == 3
    monkeypatch.chdir(tmp_path)
    path = personal(Path("north.safetensors"), model="mlp", mlp_sizes="6,4", coefficients=40)
    names: dict[str, Any] = {"nn": nn}
    exec(lines, names)
    x = torch.randn(9, 5)
    assert torch.allclose(names["module"](x), PersonalModel.read(path).outputs(x), atol=1e-6)


def test_a_model_of_ones_own_is_built_only_by_the_owners_word(tmp_path: Path) -> None:
    path = personal(tmp_path / "north.safetensors", FACTS, model=SMALL["model"], coefficients=800)
    with pytest.raises(SottovoceError, match="name it yourself"):
        PersonalModel.read(path)
    x = torch.randn(3, 1, 28, 28)
    named = PersonalModel.read(path, model=str(SMALL["model"])).outputs(x)
    given = PersonalModel.read(
        path, model=nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))
    ).outputs(x)
    assert torch.equal(named, given)
    with pytest.raises(ModelFileError, match="does not hold the parameters"):
        PersonalModel.read(path, model=nn.Linear(784, 10))


def test_a_feature_map_and_what_a_picture_was_before_it_are_in_the_file(tmp_path: Path) -> None:
    keys = {"features": "scattering", "feature_size": 30, "model": "linear", "coefficients": 310}
    facts = described_facts(FACTS, small_plan(**keys))
    path = personal(tmp_path / "north.safetensors", facts, **keys)
    read = PersonalModel.read(path)
    assert (read.plan.features, read.plan.feature_size, read.records.shape) == ("scattering", 30, (1, 28, 28))
    with pytest.raises(ModelFileError, match="another version's feature maps"):
        PersonalModel.read(rewritten(path, lambda header: header.update(map="0" * 64)))
    with pytest.raises(ModelFileError, match="contradicts itself"):
        PersonalModel.read(rewritten(path, lambda header: header.pop("source")))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epsilon", "much"), ("epsilon", -1), ("epsilon", float("nan")), ("delta", 2), ("client", 5),
        ("client", "a\nb"), ("client", "x" * 201), ("accounting", "none"), ("noise", []), ("seeded", 1),
        ("run", "../.."), ("created", None), ("more", 1),
    ],
)  # fmt: skip
def test_an_origin_is_typed_and_bounded(tmp_path: Path, key: str, value: Any) -> None:
    def change(header: dict[str, str]) -> None:
        header["origin"] = json.dumps({**json.loads(header["origin"]), key: value})

    with pytest.raises(SottovoceError) as refused:
        PersonalModel.read(rewritten(personal(tmp_path / "north.safetensors"), change))
    assert "\n" not in str(refused.value)


def test_a_generator_is_not_taken_for_a_personal_model_nor_the_other_way(
    written: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match="'sottovoce models'"):
        PersonalModel.read(written)
    with pytest.raises(ModelFileError, match="incomplete"):
        GeneratorFile.read(personal(tmp_path / "north.safetensors"))


def test_tensors_that_are_not_the_models_own_are_refused(tmp_path: Path) -> None:
    path = personal(tmp_path / "north.safetensors")
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    state = load_file(path)
    wrong = [
        {**state, "1.weight": torch.zeros(2, 6)},
        {**state, "1.weight": state["1.weight"].double()},
        {**state, "more": torch.zeros(1)},
        {"1.weight": state["1.weight"]},
        {**state, "1.bias": torch.tensor([0.0, torch.nan])},
    ]
    for tensors in wrong:
        save_file(tensors, path, header)
        with pytest.raises(ModelFileError, match=r"does not hold the parameters|not finite"):
            PersonalModel.read(path)
