"""Encoders in ONNX: what a graph may take, and that it holds all of itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.errors import SottovoceError
from sottovoce.models.encoders import store
from sottovoce.models.encoders.adding import add
from tests.models.encoders import tiny


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))


def test_a_graph_of_pictures_gives_what_its_layers_give(tmp_path: Path) -> None:
    described = add("tiny", tiny.picture_graph(tmp_path / "tiny.onnx"))
    assert (described.size, described.licence, described.trained_on) == (12, "CC0", "nothing")
    x = torch.rand(3, 16, 16)
    kernel = torch.from_numpy(np.random.default_rng(0).standard_normal((12, 3, 3, 3)).astype(np.float32))
    told = (x - 0.5) / torch.tensor([0.5, 0.25, 0.5]).view(3, 1, 1)
    wanted = torch.conv2d(told[None], kernel, stride=2).relu().mean(dim=(2, 3))
    assert torch.allclose(store.opened(described)([x]), wanted, atol=1e-5)


def test_a_graph_of_texts_is_pooled(tmp_path: Path) -> None:
    described = add("tiny", tiny.text_graph(tmp_path / "graph"))
    table = np.random.default_rng(0).standard_normal((len(tiny.WORDS), 8)).astype(np.float32)
    wanted = torch.from_numpy(table[[2, 4, 5, 7, 3]].mean(axis=0))
    assert torch.allclose(store.opened(described)(["a good film"])[0], wanted, atol=1e-6)


def test_a_graph_that_takes_something_else_is_refused(tmp_path: Path) -> None:
    folder = tiny.text_graph(tmp_path / "graph")
    graph = tiny.picture_graph(tmp_path / "tiny.onnx")
    (folder / "model.onnx").write_bytes(graph.read_bytes())
    with pytest.raises(SottovoceError, match="takes x: export one that takes input_ids"):
        add("mixed", folder)
    assert store.installed() == []


def test_weights_in_another_file_are_never_read(tmp_path: Path) -> None:
    import onnx

    graph = tiny.picture_graph(tmp_path / "tiny.onnx")
    model = onnx.load(graph)
    onnx.save(model, graph, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").exists()
    with pytest.raises(SottovoceError, match="cannot open tiny"):
        add("tiny", graph)
