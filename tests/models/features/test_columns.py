"""Tables with texts and pictures: a row is of its record alone, and commands find the encoders."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sottovoce import data
from sottovoce.data import Dataset, Description
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding.client import personalize
from sottovoce.models.encoders import Encoder
from sottovoce.models.encoders.adding import add
from sottovoce.models.features.cache import described, described_client
from sottovoce.models.features.encoded import loaded, references
from sottovoce.personal.finishing import finish
from sottovoce.personal.prediction import predict
from sottovoce.plan import Plan
from sottovoce.privacy.terms import Terms
from sottovoce.run.models import write_models
from sottovoce.run.prepare import complete, prepare
from sottovoce.run.training import evaluate, train
from sottovoce.training.accounts import Account
from tests.models.encoders import tiny

RECORDS = 24
HEAD = 'task = "classes"\nunusable = 0.5\n[target]\ncolumn = "y"\nvalues = ["no", "yes"]\n'
NOTE = '[columns.note]\nkind = "text"\n'
PHOTO = '[columns.photo]\nkind = "image"\nencoder = "eyes"\n'
AGE = '[columns.age]\nkind = "number"\nlow = 0\nhigh = 100\n'
SHORT = {"rounds": 2, "channel": "direct", "evaluate_every": 0, "epsilon": 8}


@pytest.fixture(autouse=True)
def encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    add("words", tiny.bert(tmp_path / "bert"))
    add("eyes", tiny.picture_graph(tmp_path / "eyes.onnx"))


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Three sites, each a table with notes, photos and ages."""
    folder = tmp_path / "sites"
    (folder / "photos").mkdir(parents=True)
    rng = np.random.default_rng(0)
    (folder / "records.toml").write_text(HEAD + NOTE + PHOTO + AGE)
    for site in ("east", "north", "west"):
        with (folder / f"{site}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["y", "note", "photo", "age"])
            for place in range(RECORDS):
                words = " ".join(rng.choice(tiny.WORDS[4:], rng.integers(1, 40)))
                photo = f"photos/{site}{place}.png"
                pixels = rng.integers(0, 256, (20, 18, 3), np.uint8)
                Image.fromarray(pixels).save(folder / photo)
                writer.writerow([["no", "yes"][place % 2], words, photo, rng.integers(1, 99)])
    return folder


def _plan(folder: Path, **changes: object) -> Plan:
    return Plan.load(overrides={"dataset": str(folder), "features": "words", **SHORT, **changes})


def test_texts_pictures_and_numbers_are_one_record_and_each_counts_alike(sites: Path) -> None:
    ready = prepare(_plan(sites), loaded(_plan(sites)))
    assert ready.plan.features == "words+eyes"
    assert set(references(ready.plan)) == {"words", "eyes"}
    assert ready.federation.facts.shape == (16 + 12 + 1,)
    x = ready.dataset.x.float()
    assert torch.allclose(x[:, :16].norm(dim=1), torch.tensor(3**-0.5), atol=1e-3)
    assert torch.allclose(x[:, 16:28].norm(dim=1), torch.tensor(3**-0.5), atol=1e-3)
    stored = data.load(sites, {"text": "words"})
    assert torch.allclose(x[:, 28], stored.x[:, -1] / stored.facts.std[0], atol=1e-3)


def test_no_record_moves_another_bit_for_bit_in_two_orders_alone_and_kept_or_not(sites: Path) -> None:
    plan, dataset = _plan(sites), loaded(_plan(sites))
    plan, _ = complete(plan, dataset.facts)
    first = described(dataset, plan, cache=False).x
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    mixed = replace(dataset, x=dataset.x[order], y=dataset.y[order], client=None)
    assert torch.equal(described(mixed, plan, cache=False).x, first[order])
    assert torch.equal(described(mixed, plan).x, first[order])
    assert torch.equal(described(dataset, plan).x, first)
    alone = replace(dataset, x=dataset.x[5:6], y=dataset.y[5:6], client=None)
    assert torch.equal(described(alone, plan, cache=False).x, first[5:6])


def test_what_cannot_be_read_is_nothing_and_moves_no_other(sites: Path) -> None:
    plan, dataset = _plan(sites), loaded(_plan(sites))
    plan, _ = complete(plan, dataset.facts)
    whole = described(dataset, plan, cache=False).x
    (sites / "photos" / "east3.png").write_bytes((sites / "photos" / "east4.png").read_bytes()[:120])
    lines = (sites / "east.csv").read_text().splitlines()
    cells = next(csv.reader([lines[6]]))
    lines[6] = f"{cells[0]},{'long ' * 30_000},{cells[2]},{cells[3]}"
    (sites / "east.csv").write_text("\n".join(lines) + "\n")
    broken = described(loaded(_plan(sites)), plan, cache=False).x
    others = [place for place in range(len(dataset)) if place not in (3, 5)]
    assert torch.equal(broken[others], whole[others])
    assert not broken[3, 16:28].any()
    assert torch.equal(broken[3, :16], whole[3, :16])
    assert not broken[5, :16].any()


def test_a_record_of_which_nothing_can_be_read_cannot_be_used(sites: Path) -> None:
    (sites / "records.toml").write_text(HEAD + PHOTO)
    plan, dataset = _plan(sites, features="auto"), data.load(sites)
    plan, _ = complete(plan, dataset.facts)
    assert plan.features == "eyes"
    (sites / "photos" / "east3.png").write_bytes((sites / "photos" / "east4.png").read_bytes()[:120])
    x = described(data.load(sites), plan, cache=False).x
    assert bool(x[3].isnan().all())
    assert bool(x[[0, 1, 2, 4]].isfinite().all())


def test_nothing_is_encoded_twice(sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, dataset = _plan(sites), loaded(_plan(sites))
    plan, _ = complete(plan, dataset.facts)
    seen: list[int] = []
    encode = Encoder.__call__

    def watched(self: Encoder, items: list[object], *more: object) -> torch.Tensor:
        seen.append(len(items))
        return encode(self, items, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Encoder, "__call__", watched)
    first = described(dataset, plan).x
    assert sum(seen) == len(set(dataset.contents))
    seen.clear()
    assert torch.equal(described(dataset, plan).x, first)
    assert sum(seen) == 0
    photo = sites / "photos" / "east3.png"
    Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(photo)
    described(loaded(_plan(sites)), plan)
    assert sum(seen) == 1, "a changed file is another content"


def test_a_clients_own_file_is_read_as_the_run_reads_it(sites: Path) -> None:
    ready = prepare(_plan(sites))
    own = described_client(sites / "east.csv", ready.plan, ready.federation.facts, needed=2)
    assert torch.equal(own.x, ready.dataset.x[:RECORDS].float())


def test_a_run_on_a_folder_its_models_and_later_commands_need_no_word_more(
    sites: Path, tmp_path: Path
) -> None:
    result = train(_plan(sites, future_clients="west"), tmp_path / "run")
    assert "words 1 (" in str(result["public_pretraining"])
    assert "eyes 1 (" in str(result["public_pretraining"])
    assert evaluate(tmp_path / "run")["accuracy"]["seen"] == result["accuracy"]["seen"]
    rows = write_models(tmp_path / "run", tmp_path / "models")
    model = Path(rows[0]["model"])
    done = predict(model, sites / "west.csv", tmp_path / "out.csv", keep=["age"])
    assert (done.records, done.unusable) == (RECORDS, 0)
    assert finish(model, sites / "east.csv", tmp_path / "east.home.safetensors")
    terms = Terms(epsilon=20.0, ledger=tmp_path / "ledger.sqlite")
    joined = personalize(tmp_path / "run", sites / "west.csv", tmp_path / "west.safetensors", terms=terms)
    assert joined["accuracy"] is not None
    shutil.rmtree(tmp_path / "cache" / "encoders")
    add("words", tiny.bert(tmp_path / "other", seed=1))
    for asked in (
        lambda: predict(model, sites / "west.csv", tmp_path / "again.csv"),
        lambda: evaluate(tmp_path / "run"),
        lambda: finish(model, sites / "east.csv", tmp_path / "more.home.safetensors"),
    ):
        with pytest.raises(SottovoceError, match="is needed and"):
            asked()
    assert not (tmp_path / "again.csv").exists()


def test_a_table_from_python_takes_the_key_too(sites: Path) -> None:
    pandas = pytest.importorskip("pandas")
    (sites / "records.toml").write_text(HEAD + NOTE + AGE)
    tables = {name: pandas.read_csv(sites / f"{name}.csv") for name in ("east", "north")}
    few = {**SHORT, "features": "words", "partition": "client", "participants": 0}
    few |= {"future_clients": 0, "clients_per_round": 0}
    plan = Plan.load(overrides=few)
    result = train(
        plan, sites.parent / "run", clients=tables, records=sites / "records.toml", ledger=sites / "l.sqlite"
    )
    assert result["features"] == "words"


def test_folders_of_pictures_train_and_predict(sites: Path, tmp_path: Path) -> None:
    clinics = tmp_path / "clinics"
    for number, photo in enumerate(sorted((sites / "photos").iterdir())):
        place = clinics / ("a" if number < 36 else "b") / ("cat" if number % 2 else "dog") / photo.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(photo, place)
    (clinics / "records.toml").write_text(
        'task = "classes"\nsites = "folders"\n[target]\ncolumn = "class"\nvalues = ["cat", "dog"]\n'
        '[columns.picture]\nkind = "image"\n'
    )
    with pytest.raises(SottovoceError, match=r"column 'picture' is of pictures.*say features=NAME"):
        prepare(_plan(clinics, features="auto"))
    result = train(_plan(clinics, features="eyes"), tmp_path / "run")
    assert result["features"] == "eyes"
    rows = write_models(tmp_path / "run", tmp_path / "models", finish=True)
    assert all("home" in row for row in rows)
    done = predict(rows[0]["model"], sites / "photos", tmp_path / "out.csv", keep=["picture"])
    assert done.records == 3 * RECORDS
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("east0.png,")


def test_a_folder_with_a_dot_in_its_name_has_one_account_whoever_counts(sites: Path, tmp_path: Path) -> None:
    clinics = tmp_path / "clinics"
    for number, photo in enumerate(sorted((sites / "photos").iterdir())):
        place = clinics / ("a.v1" if number < 36 else "a.v2") / ("cat" if number % 2 else "dog") / photo.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(photo, place)
    (clinics / "records.toml").write_text(
        'task = "classes"\nsites = "folders"\n[target]\ncolumn = "class"\nvalues = ["cat", "dog"]\n'
        '[columns.picture]\nkind = "image"\n'
    )
    train(_plan(clinics, features="eyes"), clinics / "run")
    account = Account.of(clinics / "a.v2", Terms())
    assert (account.path, account.name) == (clinics / "ledger.sqlite", "a.v2")
    with account.open() as ledger:
        assert ledger.spent("a.v2") > 0
    assert Account.alone(clinics / "a.v2", Terms()).path.name == "a.v2.ledger.sqlite"
    assert data.load(clinics).clients == ("a.v1", "a.v2"), "a run that lies there is no site"


@pytest.mark.parametrize(
    ("toml", "features", "said"),
    [
        (HEAD + AGE, "words", "is for texts"),
        (HEAD + NOTE + 'encoder = "eyes"\n', "auto", "eyes is for pictures, not for a column of texts"),
        (HEAD + PHOTO, "words", "features=words has no column to describe"),
        (HEAD + NOTE + 'encoder = "absent"\n', "auto", "no encoder here is called 'absent'"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_computed(
    sites: Path, toml: str, features: str, said: str
) -> None:
    (sites / "records.toml").write_text(toml)
    with pytest.raises(SottovoceError, match=said):
        prepare(_plan(sites, features=features))


def test_without_an_encoder_texts_stay_hashed(sites: Path) -> None:
    (sites / "records.toml").write_text(HEAD + NOTE + AGE)
    ready = prepare(_plan(sites, features="auto"))
    assert (ready.plan.features, ready.plan.encoders) == ("none", "")
    assert ready.federation.facts.shape == (513,)
    assert isinstance(ready.dataset, Dataset)
    assert not Description.load(sites / "records.toml").held
