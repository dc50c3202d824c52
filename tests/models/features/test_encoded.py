"""`features=NAME` of an encoder: one key, whose version and digest travel with whatever carries the plan."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sottovoce import data
from sottovoce.data import Dataset, Facts
from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement, agree
from sottovoce.federation.onboarding.client import personalize
from sottovoce.models.encoders import Description, store
from sottovoce.models.encoders.adding import add
from sottovoce.models.features.cache import clean, described, described_facts
from sottovoce.models.features.encoded import references
from sottovoce.personal import PersonalModel
from sottovoce.personal.card import model_card
from sottovoce.personal.finishing import finish
from sottovoce.personal.prediction import predict
from sottovoce.plan import Plan
from sottovoce.privacy.terms import Terms
from sottovoce.run.models import write_models
from sottovoce.run.prepare import complete, prepare
from sottovoce.run.training import evaluate, train
from tests.models.encoders import tiny

SMALL = {
    "participants": 3,
    "clients_per_round": 3,
    "future_clients": 1,
    "records_per_client": 60,
    "rounds": 2,
    "channel": "direct",
    "evaluate_every": 0,
    "features": "tiny",
}
OWN = "tests.models.features.test_encoded:corner"


def corner(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """The first numbers of a record."""
    return lambda x: x.flatten(1)[:, :9]


@pytest.fixture(autouse=True)
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Description:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    return add("tiny", tiny.picture_graph(tmp_path / "tiny.onnx"))


@pytest.fixture
def pictures() -> Dataset:
    whole = data.load("mnist-small")
    return replace(whole, x=whole.x[:240], y=whole.y[:240])


def _plan(**changes: object) -> Plan:
    return Plan.load(overrides={**SMALL, **changes})


def _other(tmp_path: Path) -> Description:
    """Another version in the place of the encoder that was there."""
    shutil.rmtree(tmp_path / "cache" / "encoders")
    return add("tiny", tiny.picture_graph(tmp_path / "other.onnx", seed=1))


@pytest.mark.parametrize("preset", ["best", "central", "shared", "tuned"])
def test_one_key_is_all_that_is_said(pictures: Dataset, encoder: Description, preset: str) -> None:
    model = {} if preset != "tuned" else {"model": "linear", "rounds": 2, "context_records": 0}
    ready = prepare(
        _plan(preset=preset, channel="integers" if preset == "shared" else "direct", **model), pictures
    )
    assert (ready.plan.feature_size, ready.plan.mirror) == (0, False)
    assert ready.federation.facts.shape == (12,)
    assert ready.blueprint.coefficients == 13 * 10
    assert ready.plan.encoders == str(encoder.reference)


def test_features_are_unit_vectors_whatever_lies_beside_them(pictures: Dataset) -> None:
    plan, _ = complete(_plan(), pictures.facts)
    x = described(pictures, plan, cache=False).x.float()
    assert torch.allclose(x.norm(dim=1), torch.ones(240), atol=1e-2)
    order = torch.randperm(240, generator=torch.Generator().manual_seed(0))
    mixed = replace(pictures, x=pictures.x[order], y=pictures.y[order])
    assert torch.equal(described(mixed, plan, cache=False).x.float(), x[order])
    few = replace(pictures, x=pictures.x[7:8], y=pictures.y[7:8])
    assert torch.equal(described(few, plan, cache=False).x.float(), x[7:8])


def test_a_record_that_cannot_be_used_stays_so_and_moves_no_other(pictures: Dataset) -> None:
    plan, _ = complete(_plan(), pictures.facts)
    whole = replace(pictures, x=pictures.x[:9] / 255, y=pictures.y[:9])
    broken = replace(whole, x=whole.x.clone())
    broken.x[4] = torch.nan
    before, after = (described(one, plan, cache=False).x for one in (whole, broken))
    assert bool(after[4].isnan().all())
    kept = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(before[kept], after[kept])


def test_the_mirror_image_may_count_too_and_nothing_else_is_set(pictures: Dataset) -> None:
    plan, _ = complete(_plan(mirror=True), pictures.facts)
    flipped = replace(pictures, x=pictures.x.flip(-1))
    assert torch.allclose(described(pictures, plan).x.float(), described(flipped, plan).x.float(), atol=1e-3)
    with pytest.raises(SottovoceError, match="leave out feature_size"):
        described(pictures, complete(_plan(feature_size=4), pictures.facts)[0])


def test_kept_features_are_those_of_this_very_encoder_and_one_call_removes_them(
    pictures: Dataset, tmp_path: Path
) -> None:
    plan, _ = complete(_plan(), pictures.facts)
    first = described(pictures, plan).x
    assert torch.equal(described(pictures, plan).x, first)
    _other(tmp_path)
    renewed, _ = complete(_plan(), pictures.facts)
    assert not torch.equal(described(pictures, renewed).x, first)
    assert clean() > 0
    assert not list((tmp_path / "cache" / "features").glob("*.npy"))


def test_a_run_its_models_and_its_commands_find_the_encoder_by_themselves(
    pictures: Dataset, tmp_path: Path, encoder: Description
) -> None:
    result = train(_plan(), tmp_path / "run", dataset=pictures)
    assert result["features"] == "tiny"
    assert result["public_pretraining"] == f"tiny 1 ({encoder.digest[:8]})"
    assert f'encoders = "{encoder.reference}"' in (tmp_path / "run" / "plan.toml").read_text()
    again = evaluate(tmp_path / "run", dataset=pictures)
    assert again["accuracy"]["seen"] == result["accuracy"]["seen"]
    path = _exported(tmp_path)
    card = path.with_name(path.stem + ".card.md").read_text()
    assert "the public encoder `tiny` 1" in card
    assert "Its licence: CC0" in card
    assert "nothing. ε is about the clients' records" in card
    np.savez(tmp_path / "new.npz", x=pictures.x[:20].numpy())
    assert predict(path, tmp_path / "new.npz", tmp_path / "out.csv").records == 20
    np.savez(tmp_path / "mine.npz", x=pictures.x[:60].numpy(), y=pictures.y[:60].numpy())
    home = finish(path, tmp_path / "mine.npz", tmp_path / "home.safetensors")
    assert home


def _exported(tmp_path: Path) -> Path:
    """The model of one participant."""
    return Path(write_models(tmp_path / "run", tmp_path / "models")[0]["model"])


def test_another_version_is_refused_in_one_line_before_anything_is_computed(
    pictures: Dataset, tmp_path: Path, encoder: Description
) -> None:
    train(_plan(), tmp_path / "run", dataset=pictures)
    path = _exported(tmp_path)
    np.savez(tmp_path / "new.npz", x=pictures.x[:60].numpy(), y=pictures.y[:60].numpy())
    other = _other(tmp_path)
    said = f"tiny 1 with digest {encoder.digest[:8]} is needed and this machine's is {other.digest[:8]}"
    asked: list[Callable[[], object]] = [
        lambda: evaluate(tmp_path / "run", dataset=pictures),
        lambda: predict(path, tmp_path / "new.npz", tmp_path / "out.csv"),
        lambda: finish(path, tmp_path / "new.npz", tmp_path / "home.safetensors"),
        lambda: train(Plan.load(tmp_path / "run" / "plan.toml"), tmp_path / "again", dataset=pictures),
    ]
    for ask in asked:
        with pytest.raises(SottovoceError, match=said):
            ask()
    assert not (tmp_path / "out.csv").exists()
    assert not (tmp_path / "again").exists() or not list((tmp_path / "again").glob("ledger*"))


def test_the_digest_travels_in_an_agreement_which_a_server_without_the_encoder_reads(
    pictures: Dataset, tmp_path: Path, encoder: Description
) -> None:
    agreed = agree(_plan(seeded=True), pictures)
    shutil.rmtree(tmp_path / "cache" / "encoders")
    read = Agreement.parse(agreed.to_toml(), simulation=True)
    assert references(read.plan)["tiny"].digest == encoder.digest
    assert read.facts.shape == (12,)
    other = replace(read, plan=read.plan.replace(encoders=read.plan.encoders[:-1] + "0"))
    assert other.digest() != read.digest()
    assert "encoders is" in str(read.difference(other))
    with pytest.raises(SottovoceError, match="which tiny it means"):
        Agreement.parse(agreed.to_toml().replace(agreed.plan.encoders, ""), simulation=True)


def test_a_future_client_is_told_what_is_missing_and_pays_nothing(pictures: Dataset, tmp_path: Path) -> None:
    train(_plan(), tmp_path / "run", dataset=pictures)
    np.savez(tmp_path / "mine.npz", x=pictures.x[:60].numpy(), y=pictures.y[:60].numpy())
    shutil.rmtree(tmp_path / "cache" / "encoders")
    with pytest.raises(SottovoceError, match="it is not on this machine"):
        personalize(tmp_path / "run", tmp_path / "mine.npz", tmp_path / "model", terms=Terms(epsilon=9.0))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("features", "shape", "said"),
    [
        ("tiny", (20,), "is for pictures"),
        ("words", (1, 28, 28), "is for texts, or their tokens"),
        ("minilm", (1, 28, 28), "'sottovoce encoder fetch minilm'"),
        ("tyny", (1, 28, 28), "did you mean 'tiny'"),
    ],
)
def test_what_does_not_fit_is_said_when_a_plan_is_completed(
    tmp_path: Path, features: str, shape: tuple[int, ...], said: str
) -> None:
    add("words", tiny.bert(tmp_path / "bert"))
    with pytest.raises(SottovoceError, match=said):
        complete(_plan(features=features), Facts(shape, 10))


def test_token_ids_are_encoded_as_the_text_they_are(tmp_path: Path) -> None:
    add("words", tiny.bert(tmp_path / "bert"))
    text = 'task = "classes"\n[target]\ncolumn = "y"\nvalues = ["0", "1"]\n'
    text += f'[array]\nkind = "tokens"\nshape = [8]\nvocabulary = {len(tiny.WORDS)}\n'
    facts = data.Description.parse(text).facts()
    tokens = torch.tensor([[2, 4, 5, 7, 3, 0, 0, 0], [2, 9, 3, 0, 0, 0, 0, 0]])
    plan, seen = complete(_plan(features="words"), facts)
    assert seen.shape == (16,)
    found = described(Dataset("tokens", tokens, torch.zeros(2).long(), facts), plan).x.float()
    wanted = torch.nn.functional.normalize(store.opened(store.named("words"))(["a good film", "plot"]), dim=1)
    assert torch.allclose(found, wanted, atol=1e-3)


def test_a_map_of_ones_own_has_a_version_that_travels_and_is_compared(
    pictures: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corner, "version", "one", raising=False)
    train(_plan(features=OWN), tmp_path / "run", dataset=pictures)
    evaluate(tmp_path / "run", dataset=pictures, features=OWN)
    monkeypatch.setattr(corner, "version", "two")
    with pytest.raises(SottovoceError, match="is another version here"):
        evaluate(tmp_path / "run", dataset=pictures, features=OWN)


def test_a_model_says_which_encoder_it_wants_and_not_which_maps_we_ship(
    pictures: Dataset, tmp_path: Path, encoder: Description
) -> None:
    train(_plan(), tmp_path / "run", dataset=pictures)
    path = _exported(tmp_path)
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    [told] = json.loads(header["encoders"])
    assert told["digest"] == encoder.digest
    assert "map" not in header
    assert described_facts(PersonalModel.read(path).records, PersonalModel.read(path).plan).shape == (12,)
    assert "encoders:" in model_card(content)
