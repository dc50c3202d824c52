"""What another party sends may be anything: no code of theirs runs, nothing grows, every refusal is a line.

Specifications, agreements and model files are mutated, in their structure and in their bytes, and given to
the readers of a client in a process of its own that watches imports and memory.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sottovoce.data import Description, Facts
from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement
from sottovoce.federation.onboarding import Specification
from sottovoce.federation.onboarding.remote import parsed_json
from sottovoce.federation.onboarding.server import FinishedRun
from sottovoce.federation.sealing import new_key, public_key
from sottovoce.models.architectures import MOST_BYTES, MOST_PARAMETERS
from sottovoce.models.features.cache import described_facts, view
from sottovoce.personal import PersonalModel, personal_model
from sottovoce.plan import Plan
from sottovoce.plan.limits import foreign_plan
from sottovoce.release.blueprint import build
from sottovoce.run.finished import GeneratorFile
from sottovoce.training.server import Server

FACTS = Facts((1, 16, 16), 3)
VALUES = {
    "preset": "tuned",
    "participants": 3,
    "clients_per_round": 2,
    "future_clients": 1,
    "coefficients": 40,
    "basis": "unstructured",
    "hidden": 4,
    "context": "moments",
    "context_records": 40,
    "gradient_records": 80,
    "rounds": 4,
    "channel": "direct",
}


def plan(**changes: Any) -> Plan:
    return Plan.load(overrides={**VALUES, **changes})


def agreement(**changes: Any) -> Agreement:
    return Agreement(plan(**changes), FACTS)


def specification() -> dict[str, Any]:
    stated = Specification("0123456789abcdef", agreement(), public_key(new_key()))
    return json.loads(json.dumps(stated.fields(stated.agreement.blueprint())))


def model_file(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    blueprint = build(plan(), FACTS)
    GeneratorFile.of(blueprint, "0123456789abcdef", Server(blueprint).state()).write(
        folder / "model.safetensors"
    )
    return folder / "model.safetensors"


TABLE = """
task = "classes"
[target]
column = "kind"
values = ["a", "b", "c"]
[columns.age]
kind = "number"
low = 0
high = 120
[columns.sex]
kind = "category"
values = ["f", "m"]
"""


def personal_files() -> list[bytes]:
    """Models of a table, by mlp, and of pictures with a feature map."""
    keys = {"method": "blend", "context": "public"}
    table = plan(model="mlp", mlp_sizes="5,4", coefficients=64, **keys), Description.parse(TABLE).facts()
    map_ = {"features": "scattering", "feature_size": 12, "mirror": True}
    pictures = plan(model="linear", coefficients=39, **map_, **keys)
    built = [build(*table), build(pictures, described_facts(FACTS, pictures))]
    told: dict[str, Any] = {"run": "0123456789abcdef", "client": "north", "epsilon": 2.0}
    return [personal_model(one, torch.ones(one.coefficients), **told) for one in built]


def split(file: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and tensors of a safetensors file."""
    [length] = struct.unpack("<Q", file[:8])
    return json.loads(file[8 : 8 + length]), file[8 + length :]


def joined(header: dict[str, Any], tensors: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + tensors


# The readers, as far as a client goes before it would release anything.


def read_specification(data: bytes, folder: Path) -> None:
    stated = parsed_json(data)
    parsed = Specification.parse(stated)
    parsed.check(stated, parsed.agreement.blueprint())


def read_agreement(data: bytes, folder: Path) -> None:
    (folder / "agreement.toml").write_bytes(data)
    assert Agreement.load(folder / "agreement.toml").blueprint().releases


def read_model(data: bytes, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(data)
    FinishedRun.load(folder)


def read_personal(data: bytes, folder: Path) -> None:
    (folder / "personal.safetensors").write_bytes(data)
    model = PersonalModel.read(folder / "personal.safetensors")
    assert model.outputs(torch.zeros(1, *model.facts.shape)).shape == (1, model.facts.classes)
    view(model.plan, model.facts)


# The attack: a name that is imported and called with a shape that is its arguments.


def hostile(marker: Path) -> dict[str, Any]:
    return {"model": "subprocess:call", "shape": ["touch", str(marker)]}


def test_an_agreement_runs_no_command(tmp_path: Path) -> None:
    marker, text = tmp_path / "broken-in", agreement().to_toml()
    attack = hostile(marker)
    text = text.replace('model = "lenet"', 'model = "subprocess:call"')
    for shape in (json.dumps(attack["shape"]), "[1, 16, 16]"):
        with pytest.raises(SottovoceError):
            read_agreement(text.replace("[1, 16, 16]", shape).encode(), tmp_path)
    assert not marker.exists()


def test_a_specification_runs_no_command(tmp_path: Path) -> None:
    marker, stated = tmp_path / "broken-in", specification()
    text = stated["agreement"].replace('model = "lenet"', 'model = "subprocess:call"')
    stated["agreement"] = text.replace("[1, 16, 16]", json.dumps(hostile(marker)["shape"]))
    with pytest.raises(SottovoceError):
        read_specification(json.dumps(stated).encode(), tmp_path)
    assert not marker.exists()


def test_a_model_file_runs_no_command(tmp_path: Path) -> None:
    marker = tmp_path / "broken-in"
    header, tensors = split(model_file(tmp_path / "run").read_bytes())
    values = json.loads(header["__metadata__"]["plan"])
    header["__metadata__"]["plan"] = json.dumps({**values, "model": "subprocess:call"})
    for shape in (json.dumps(hostile(marker)["shape"]), "[1, 16, 16]"):
        header["__metadata__"]["shape"] = shape
        with pytest.raises(SottovoceError):
            read_model(joined(header, tensors), tmp_path / "run")
    assert not marker.exists()


@pytest.mark.parametrize("name", ["subprocess:call", "os:system"])
def test_a_personal_model_runs_no_command(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "broken-in"
    for file in personal_files():
        header, tensors = split(file)
        values = json.loads(header["__metadata__"]["model"])
        header["__metadata__"]["model"] = json.dumps({**values, "model": name})
        header["__metadata__"]["shape"] = json.dumps(hostile(marker)["shape"])
        with pytest.raises(SottovoceError):
            read_personal(joined(header, tensors), tmp_path)
    assert not marker.exists()


def test_a_personal_model_cannot_ask_for_a_large_network_or_picture(tmp_path: Path) -> None:
    table, pictures = map(split, personal_files())
    wide = {"model": "mlp", "mlp_sizes": "16384,16384,16384"}
    table[0]["__metadata__"]["model"] = json.dumps(wide)
    with pytest.raises(SottovoceError, match="name it yourself"):
        read_personal(joined(*table), tmp_path)
    source = {**FACTS.fields(), "shape": [1, 4096, 4096]}
    pictures[0]["__metadata__"]["source"] = json.dumps(source)
    with pytest.raises(SottovoceError, match="larger than a map"):
        read_personal(joined(*pictures), tmp_path)


def test_code_of_our_own_is_imported_only_where_this_machine_names_it(tmp_path: Path) -> None:
    own = "tests.test_foreign_files:tiny"
    text = Agreement(plan(model=own), FACTS).to_toml()
    with pytest.raises(SottovoceError, match="name it yourself"):
        Agreement.parse(text)
    with pytest.raises(SottovoceError, match="name it yourself"):
        Agreement.parse(text, model="tests.small:tiny")
    module = Agreement.parse(text, model=own).blueprint().module
    assert isinstance(module, torch.nn.Sequential)
    with pytest.raises(SottovoceError, match="not a built-in one"):
        build(plan(model=own), FACTS)


def tiny(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, classes))


@pytest.mark.parametrize("code", ["utf-16-be", "utf-16-le", "utf-32-be", "latin-1"])
def test_what_a_service_says_is_utf_8_and_no_other_code(code: str) -> None:
    assert parsed_json('{"é": 1}'.encode()) == {"é": 1}
    with pytest.raises(SottovoceError, match="not an onboarding service"):
        parsed_json('{"é": 1}'.encode(code))


@pytest.mark.parametrize(
    "values",
    [
        {"rounds": "4"},
        {"rounds": 4.0},
        {"rounds": True},
        {"participants": 10**6 + 1},
        {"rounds": 10**6, "clients_per_round": 3, "participants": 3},
        {"hidden": 2**40},
        {"trunk_layers": 65},
        {"clip": float("nan")},
        {"clip": 1e300},
        {"dataset": "x" * 201},
        {"dataset": "a\nERROR all is lost"},
        {"a\nkey": 1},
        {"seeded": 1},
        {"coefficients": 10**400},
        [],
        None,
    ],
)
def test_a_plan_from_elsewhere_has_types_and_bounds(values: Any) -> None:
    with pytest.raises(SottovoceError) as refused:
        foreign_plan(values)
    assert "\n" not in str(refused.value)


def test_a_plan_from_elsewhere_cannot_ask_for_a_large_model() -> None:
    text = Agreement(plan(context="labels"), Facts((1, 4096, 4096), 10)).to_toml()
    with pytest.raises(SottovoceError, match="name it yourself"):
        Agreement.parse(text)
    wide = Agreement(plan(context_groups=64), Facts((3, 512, 512), 10)).to_toml()
    with pytest.raises(SottovoceError, match="too much memory"):
        Agreement.parse(wide)


def test_the_largest_model_that_a_stranger_may_ask_for_fits_into_the_promised_memory(tmp_path: Path) -> None:
    done = fuzz(tmp_path, "largest", 1)
    assert done["grown"] < MOST_BYTES, done
    assert done["parameters"] > 0.6 * MOST_PARAMETERS


def test_mutated_files_and_messages_are_refused_in_one_line(tmp_path: Path) -> None:
    assert_harmless(fuzz(tmp_path, "all", 1_000))


@pytest.mark.slow
def test_a_hundred_thousand_mutated_files_and_messages_are_refused_in_one_line(tmp_path: Path) -> None:
    assert_harmless(fuzz(tmp_path, "all", 100_000))


def assert_harmless(done: dict[str, Any]) -> None:
    assert done["crashes"] == []
    assert done["imported"] == []
    assert done["grown"] < MOST_BYTES, done
    assert done["refused"] > done["cases"] // 2
    assert done["accepted"] > 0  # the mutations are not all hopeless


def fuzz(folder: Path, what: str, cases: int) -> dict[str, Any]:
    """Runs this module as a process of its own, whose memory and modules are nobody else's."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_foreign_files", str(folder), what, str(cases)],
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# The fuzzer.

STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 63, 10**6, 2**31, 2**63, 10**400, 0.0, 0.5, 1e-300, 1e300, float("inf"),
    float("nan"), "", "lenet", "subprocess:call", "os:system", "antigravity:x", "this:s", "..", "\n", "\x00",
    "x" * 500, "é", [], [1], [1, 16, 16], [10**9], [2**20, 2**20], [[1]], ["touch", "x"], {}, {"a": 1},
    "predictions", "labels", "standardized", "public", "polar", "lrsuq", "direct-q12", "random", "structured",
    "paper", "global", "full", "replay", "radial",
]  # fmt: skip


def mutated(value: Any, chance: random.Random) -> Any:
    """A structure with one place changed, dropped, doubled or added."""
    value = copy.deepcopy(value)
    holders = [value]
    for holder in holders:
        inner = holder.values() if isinstance(holder, dict) else holder
        holders += [each for each in inner if isinstance(each, dict | list) and each]
    holder = chance.choice(holders)
    strange = chance.choice(STRANGE)
    if isinstance(holder, dict):
        name = chance.choice(list(holder))
        fate = chance.random()
        if fate < 0.1:
            del holder[name]
        elif fate < 0.15:
            holder[str(strange)] = holder[name]
        elif fate < 0.5 and type(holder[name]) in (int, float):
            holder[name] = chance.choice([-1, 0, 2, 10, 1000, 0.1, 1e5]) * holder[name]
        else:
            holder[name] = strange
    else:
        holder[chance.randrange(len(holder))] = strange
    return value


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8])):
        place, fate = chance.randrange(len(changed) or 1), chance.random()
        if fate < 0.6 and changed:
            changed[place] ^= 1 << chance.randrange(8)
        elif fate < 0.8:
            changed[place:place] = chance.choice([b"[" * 3000, b"9" * 50, b"\x00", b'"', b"{", b"\n"])
        else:
            del changed[place : place + chance.choice([1, 4, 100])]
    return bytes(changed)


def toml(values: dict[str, Any]) -> bytes:
    """TOML of plain values, the strange ones included as well as TOML can say them."""

    def say(value: Any) -> str:
        if isinstance(value, float) and (value != value or abs(value) == float("inf")):
            return "nan" if value != value else "inf"
        return "{}" if isinstance(value, dict) else json.dumps(value, ensure_ascii=False)

    lines = [f"{json.dumps(name)} = {say(value)}" for name, value in values.items() if name != "records"]
    records = values.get("records")
    if isinstance(records, dict):
        lines += ["[records]", *(f"{json.dumps(name)} = {say(value)}" for name, value in records.items())]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def cases(folder: Path, chance: random.Random) -> dict[str, Callable[[], tuple[Callable[..., None], bytes]]]:
    values = {**dataclasses.asdict(plan()), "records": FACTS.fields()}
    stated, file = specification(), model_file(folder).read_bytes()
    header, tensors = split(file)
    said = {name: header["__metadata__"][name] for name in ("plan", "shape", "classes", "mean", "std")}

    def of_agreement() -> tuple[Callable[..., None], bytes]:
        data = toml(mutated(values, chance)) if chance.random() < 0.7 else flipped(toml(values), chance)
        return read_agreement, data

    def of_specification() -> tuple[Callable[..., None], bytes]:
        fields = copy.deepcopy(stated)
        fate = chance.random()
        if fate < 0.5:
            fields["agreement"] = toml(mutated(values, chance)).decode("utf-8", "replace")
        elif fate < 0.8:
            fields = mutated(fields, chance)
        data = json.dumps(fields).encode()
        return read_specification, data if fate < 0.8 else flipped(data, chance)

    def of_model() -> tuple[Callable[..., None], bytes]:
        fate = chance.random()
        if fate < 0.25:
            return read_model, flipped(file, chance)
        changed = copy.deepcopy(header)
        if fate < 0.75:
            name = chance.choice(list(said))
            inner = mutated([json.loads(said[name])], chance)
            changed["__metadata__"][name] = json.dumps(inner[0] if inner else None)
        else:
            changed = mutated(changed, chance)
        return read_model, joined(changed, tensors)

    files = personal_files()

    def of_personal() -> tuple[Callable[..., None], bytes]:
        file, fate = chance.choice(files), chance.random()
        if fate < 0.25:
            return read_personal, flipped(file, chance)
        changed, tensors = split(file)
        kept = changed["__metadata__"]
        if fate < 0.75:
            name = chance.choice(sorted(set(kept) - {"format", "version", "map"}))
            inner = mutated([json.loads(kept[name])], chance)
            kept[name] = json.dumps(inner[0] if inner else None)
        elif fate < 0.85 and "columns" in kept:
            text = flipped(json.loads(kept["columns"]).encode(), chance)
            kept["columns"] = json.dumps(text.decode("utf-8", "replace"))
        else:
            changed = mutated(changed, chance)
        return read_personal, joined(changed, tensors)

    return {
        "agreement": of_agreement,
        "specification": of_specification,
        "model": of_model,
        "personal": of_personal,
    }


def run_fuzzer(folder: Path, what: str, count: int) -> dict[str, Any]:
    import importlib
    import logging

    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    chance = random.Random(7)
    makers = cases(folder, chance)
    for statistic, channel in (("labels", "polar"), ("moments", "lrsuq"), ("predictions", "direct-q12")):
        warm = agreement(context=statistic, channel=channel, context_round=2)  # lazy imports of our own
        assert warm.blueprint().releases
    read_model(model_file(folder).read_bytes(), folder)
    for file in personal_files():
        read_personal(file, folder)
    before = set(sys.modules)
    honest = importlib.import_module

    def watched(name: str, package: str | None = None) -> Any:
        imported.append(name)
        return honest(name, package)

    imported: list[str] = []
    importlib.import_module = watched  # type: ignore[assignment]
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found: dict[str, Any] = {"cases": count, "refused": 0, "accepted": 0, "crashes": []}
    if what == "largest":
        large = Agreement(plan(coefficients=16384, basis="structured"), Facts((3, 56, 56), 10))
        found["parameters"] = sum(
            p.numel() for p in Agreement.parse(large.to_toml()).blueprint().module.parameters()
        )
        count = 0
    for _ in range(count):
        reader, data = chance.choice(list(makers.values()))()
        try:
            reader(data, folder)
            found["accepted"] += 1
        except SottovoceError as refused:
            found["refused"] += 1
            if len(str(refused).splitlines()) != 1 or len(str(refused)) > 2000:
                found["crashes"].append([reader.__name__, str(refused)[:300]])
        except BaseException as crash:
            found["crashes"].append([reader.__name__, repr(crash)[:300], data[:3000].decode("latin-1")])
        if len(found["crashes"]) > 5:
            break
    found["grown"] = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)
    found["imported"] = imported + sorted(set(sys.modules) - before)
    return found


if __name__ == "__main__":
    print(json.dumps(run_fuzzer(Path(sys.argv[1]) / "fuzz", sys.argv[2], int(sys.argv[3]))))
