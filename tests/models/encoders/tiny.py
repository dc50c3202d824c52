"""Encoders small enough to be made in a test: a BERT of two layers, and graphs of ONNX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

_KNOWN = "[PAD] [UNK] [CLS] [SEP] a good bad film the plot was not pain in left arm , ."
WORDS = _KNOWN.split(" ")
CONFIG: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 16,
    "intermediate_size": 32,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": len(WORDS),
}


def bert(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A folder as transformers writes it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    tokenizer(folder)
    save_file(_weights(seed), folder / "model.safetensors")
    return folder


def tokenizer(folder: Path) -> None:
    """A tokenizer of whole words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    places = {word: place for place, word in enumerate(WORDS)}
    made = Tokenizer(models.WordPiece(places, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(folder / "tokenizer.json"))


def _weights(seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    width, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(WORDS), width),
        "embeddings.position_embeddings.weight": (CONFIG["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": (2, width),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        parts = [f"attention.self.{part}" for part in ("query", "key", "value")] + ["attention.output.dense"]
        for name, shape in [
            *((part, (width, width)) for part in parts),
            ("intermediate.dense", (inner, width)),
            ("output.dense", (width, inner)),
        ]:
            shapes[f"{at}{name}.weight"], shapes[f"{at}{name}.bias"] = shape, shape[:1]
        norms += [f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"]
    weights = {name: 0.3 * torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    for name in norms:
        weights[f"{name}.weight"] = 1 + 0.1 * torch.randn(width, generator=rng)
        weights[f"{name}.bias"] = 0.1 * torch.randn(width, generator=rng)
    return weights


def picture_graph(path: Path, size: int = 12, seed: int = 0) -> Path:
    """An ONNX file for pictures of 16 pixels, and its description."""
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(seed)
    kernel = rng.standard_normal((size, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "kernel"], ["y"], strides=[2, 2]),
            helper.make_node("Relu", ["y"], ["z"]),
            helper.make_node("GlobalAveragePool", ["z"], ["out"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", size, 1, 1])],
        [numpy_helper.from_array(kernel, "kernel")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    save(model, path)
    path.with_suffix(".toml").write_text(
        'kind = "image"\nlicence = "CC0"\ntrained_on = "nothing"\n'
        "[preparation]\nside = 16\nmean = 0.5\nstd = [0.5, 0.25, 0.5]\n"
    )
    return path


def text_graph(folder: Path, size: int = 8) -> Path:
    """A folder with an ONNX graph that looks up a vector for each token."""
    from onnx import TensorProto, helper, numpy_helper, save

    folder.mkdir(parents=True)
    tokenizer(folder)
    table = np.random.default_rng(0).standard_normal((len(WORDS), size)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["out"])],
        "tiny",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "l"])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", "l", size])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    save(model, folder / "model.onnx")
    (folder / "description.toml").write_text('kind = "text"\n[preparation]\ntokens = 64\n')
    return folder
