"""The encoders that have a name: fetched once, and what they say of pictures and texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sottovoce import data
from sottovoce.errors import SottovoceError
from sottovoce.models.encoders import Encoder, store
from sottovoce.models.encoders.named import NAMED, _without_pickle
from sottovoce.plan.catalog import ENCODERS


def test_the_catalog_names_those_that_can_be_fetched_and_says_what_each_is() -> None:
    assert set(ENCODERS) == set(NAMED)
    for name, package in NAMED.items():
        described = package.described
        assert described.name == name
        assert "==" in package.requirement
        assert "not stated" not in (described.licence, described.origin, described.trained_on)
        assert package.members.keys() == described.files.keys()
    assert "Quora" in NAMED["minilm"].described.trained_on


def test_a_pickle_that_holds_more_than_tensors_is_not_opened(tmp_path: Path) -> None:
    torch.save({"_conv_stem.weight": _Runs(tmp_path / "ran")}, tmp_path / "evil.pth")
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        _without_pickle((tmp_path / "evil.pth").read_bytes())
    assert not (tmp_path / "ran").exists()


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("SOTTOVOCE_DATA", str(folder))
        yield folder


def _fetched(name: str) -> Encoder:
    try:
        return store.opened(store.fetch(name))
    except SottovoceError as error:
        if "could not download" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.slow
@pytest.mark.network
def test_minilm_tells_what_sentences_are_about(cache: Path) -> None:
    encoder = _fetched("minilm")
    assert encoder.described.digest == NAMED["minilm"].described.digest
    sentences = ["A man is eating food.", "A man eats something.", "The stock market fell today."]
    rows = torch.nn.functional.normalize(encoder(sentences), dim=1)
    assert rows.shape == (3, 384)
    near, far = float(rows[0] @ rows[1]), float(rows[0] @ rows[2])
    assert near > 0.7
    assert far < 0.2
    assert torch.equal(encoder(sentences[::-1]).flip(0), encoder(sentences))


@pytest.mark.slow
@pytest.mark.network
def test_minilm_is_transformers_own_to_five_digits(cache: Path) -> None:
    transformers = pytest.importorskip("transformers")
    encoder = _fetched("minilm")
    folder = encoder.described.folder
    module = transformers.AutoModel.from_pretrained(str(folder), local_files_only=True).eval()
    texts = ["A man is eating food.", "Pain in the left arm, worse at night; " * 12]
    for text in texts:
        prepared = encoder._network.prepare(text)
        assert prepared is not None
        tokens, counts = (part[None] for part in prepared)
        with torch.no_grad():
            theirs = module(input_ids=tokens, attention_mask=counts.long()).last_hidden_state[counts].mean(0)
        assert torch.allclose(encoder([text])[0], theirs, atol=1e-5)


@pytest.mark.slow
@pytest.mark.network
def test_a_linear_model_on_lite0_tells_digits_and_no_order_matters(cache: Path) -> None:
    encoder = _fetched("efficientnet-lite0")
    assert encoder.described.digest == NAMED["efficientnet-lite0"].described.digest
    digits = data.load("mnist-small")
    pictures, labels = list(digits.x[:300]), digits.y[:300]
    rows = torch.nn.functional.normalize(encoder(pictures), dim=1)
    assert rows.shape == (300, 1280)
    assert torch.equal(encoder(pictures[:20][::-1]).flip(0), encoder(pictures[:20]))
    hot = torch.nn.functional.one_hot(labels[:200], 10).float()
    ridge = rows[:200].T @ rows[:200] + 0.01 * torch.eye(1280)
    weights = torch.linalg.solve(ridge, rows[:200].T @ hot)
    assert float(((rows[200:] @ weights).argmax(1) == labels[200:]).float().mean()) > 0.75


@pytest.mark.slow
@pytest.mark.network
def test_what_a_thousand_take(cache: Path) -> None:
    sentences = [f"Sentence {place} of a thousand is about pain in the left arm." for place in range(200)]
    begun = time.perf_counter()
    _fetched("minilm")(sentences)
    spoken = time.perf_counter() - begun
    begun = time.perf_counter()
    _fetched("efficientnet-lite0")(list(torch.rand(100, 3, 224, 224)))
    print(f"1,000 sentences {5 * spoken:.1f} s, 1,000 pictures {10 * (time.perf_counter() - begun):.1f} s")
    assert spoken < 60
