"""Texts for an encoder: shapes by their own length, what is filled up counts nothing, and BERT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sottovoce.errors import SottovoceError
from sottovoce.models.encoders import Encoder, store
from sottovoce.models.encoders.adding import add
from tests.models.encoders import tiny


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Encoder:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    return store.opened(add("tiny", tiny.bert(tmp_path / "bert")))


@pytest.mark.parametrize(("words", "places"), [(1, 32), (30, 32), (31, 64), (62, 64), (500, 64)])
def test_a_text_is_filled_up_by_its_own_length(encoder: Encoder, words: int, places: int) -> None:
    tokens, counts = encoder._network.prepare("plot " * words) or ()
    assert tokens.shape == counts.shape == (places,)
    assert int(counts.sum()) == min(words + 2, 64)
    assert not tokens[~counts].any()


def test_what_is_filled_up_counts_nothing(encoder: Encoder) -> None:
    tokens, counts = encoder._network.prepare("a good film , the plot was not bad") or ()
    longer = torch.zeros(64, dtype=torch.int64)
    longer[: len(tokens)] = tokens
    kept = torch.zeros(64, dtype=torch.bool)
    kept[: len(counts)] = counts
    with torch.no_grad():
        short, long = (
            encoder._network.run(tokens[None], counts[None]),
            encoder._network.run(longer[None], kept[None]),
        )
        longer[-1] = 5  # behind what counts
        other = encoder._network.run(longer[None], kept[None])
    assert torch.allclose(short, long, atol=1e-6)
    assert torch.equal(other, long)


def test_tokens_are_their_text(encoder: Encoder) -> None:
    ids = torch.tensor([2, 4, 5, 7, 3, 0, 0])
    assert torch.equal(encoder([ids]), encoder(["a good film"]))
    assert bool(encoder([torch.tensor([2, -1, 3])]).isnan().all())
    assert bool(encoder([torch.tensor([0, 0])]).isnan().all())


def test_our_bert_is_that_of_transformers(encoder: Encoder, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    module = transformers.AutoModel.from_pretrained(str(tmp_path / "bert"), local_files_only=True).eval()
    for text in ("a good film", "the plot was not good , pain in left arm " * 4):
        tokens, counts = (part[None] for part in encoder._network.prepare(text) or ())
        with torch.no_grad():
            theirs = module(input_ids=tokens, attention_mask=counts.long()).last_hidden_state[counts].mean(0)
        assert torch.allclose(encoder([text])[0], theirs, atol=1e-5)


def test_another_architecture_is_run_by_transformers_and_comes_out_alike_in_any_order(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = tiny.bert(tmp_path / "other", hidden_act="relu")
    described = add("other", folder)
    assert described.network == "transformers"
    encoder = store.opened(described)
    texts = ["a good film", "bad , bad", "the plot was not good " * 5]
    assert encoder.size == 16
    assert torch.equal(encoder(texts[::-1]).flip(0), encoder(texts))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = tiny.bert(tmp_path / "bert", vocab_size=3)
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] = weights["embeddings.word_embeddings.weight"][:3].clone()
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(SottovoceError, match="tokenizer of another model"):
        add("tiny", folder)
