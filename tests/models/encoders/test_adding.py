"""Encoders of one's own: what is taken from a folder, and what is refused because it could be code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sottovoce.errors import SottovoceError
from sottovoce.models.encoders import store
from sottovoce.models.encoders.adding import add
from tests.models.encoders import tiny


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.bert(tmp_path / "bert")


def test_a_folder_says_by_itself_what_it_is(folder: Path) -> None:
    described = add("tiny", folder)
    assert (described.kind, described.network, described.size) == ("text", "bert", 16)
    assert (described.preparation.tokens, described.preparation.pooling) == (64, "mean")
    assert set(described.files) == {"config.json", "tokenizer.json", "model.safetensors"}


def test_sentence_transformers_say_how_they_pool_and_how_far_they_read(folder: Path) -> None:
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48}))
    (folder / "1_Pooling").mkdir()
    modes = {
        "word_embedding_dimension": 16,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    described = add("first", folder)
    assert (described.preparation.tokens, described.preparation.pooling) == (48, "first")
    mean = add("mean", tiny.bert(folder.parent / "plain"))
    assert not torch.equal(store.opened(described)(["a film"]), store.opened(mean)(["a film"]))
    modes |= {"pooling_mode_cls_token": False, "pooling_mode_max_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    with pytest.raises(SottovoceError, match="pools by pooling_mode_max_tokens"):
        add("most", folder)
    modules = [{"type": "sentence_transformers.models.Dense"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(SottovoceError, match="a part 'Dense', which is not known"):
        add("dense", folder)


def test_a_description_beside_it_is_kept(folder: Path) -> None:
    (folder / "description.toml").write_text(
        'kind = "text"\nversion = "2.1"\nlicence = "MIT"\n[preparation]\ntokens = 20\npooling = "first"\n'
    )
    described = add("tiny", folder)
    assert (described.version, described.licence, described.preparation.tokens) == ("2.1", "MIT", 20)


def test_pickles_and_remote_code_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    torch.save({}, tmp_path / "net.pt")
    with pytest.raises(SottovoceError, match="is a pickle, which runs code"):
        add("net", tmp_path / "net.pt")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(SottovoceError, match=r"pytorch_model\.bin is a pickle"):
        add("net", folder)
    other = tiny.bert(tmp_path / "remote", auto_map={"AutoModel": "mine.Model"})
    with pytest.raises(SottovoceError, match="code of its own"):
        add("net", other)
    assert store.installed() == []


def test_what_is_missing_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SottovoceError, match="does not exist: give an ONNX file, or a folder"):
        add("net", tmp_path / "nothing")
    graph = tiny.picture_graph(tmp_path / "tiny.onnx")
    graph.with_suffix(".toml").unlink()
    with pytest.raises(SottovoceError, match=r"write .*tiny.toml with kind = \"image\""):
        add("net", graph)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SottovoceError, match=r"no tokenizer\.json"):
        add("net", folder)
    with pytest.raises(SottovoceError, match="cannot name an encoder"):
        add("../net", folder)
