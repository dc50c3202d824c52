"""Encoders of the owner's own: an ONNX file with a short description, or a folder as transformers writes it.

Of a folder the configuration, the tokenizer and safetensors are taken, and how vectors of tokens are pooled
where sentence-transformers says so. Nothing that could hold code is read: no pickle, and no configuration
that names modules of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sottovoce.data.section import document, text_of
from sottovoce.models.encoders import (
    CONFIG,
    GRAPH,
    KINDS,
    TEXT,
    TOKENIZER,
    WEIGHTS,
    Description,
    EncoderError,
    Preparation,
    check_name,
)
from sottovoce.models.encoders.store import keep
from sottovoce.models.encoders.texts import runs_as_bert

DESCRIPTION = "description.toml"
MOST_BYTES = 2**33
EXAMPLE = (
    'kind = "image", [preparation] side = 224, mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225]'
)
_TOKENS = 256
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_PLAIN = ("Transformer", "Pooling", "Normalize")
"""Modules of sentence-transformers that are known here; features are normalized in any case."""


def add(name: str, path: str | Path) -> Description:
    """Puts an encoder into this machine's cache, tried first; the same one again is the same entry."""
    path = Path(path).expanduser()
    check_name(name)
    if path.is_dir():
        return keep(*_of_folder(name, path))
    if path.suffix.lower() == ".onnx" and path.is_file():
        told = path.with_suffix(".toml")
        if not told.exists():
            raise EncoderError(f"{path.name} says little by itself: write {told} with {EXAMPLE}")
        return keep(_described(name, told, "onnx"), {GRAPH: _content(path)})
    if path.suffix.lower() in _PICKLES:
        raise EncoderError(f"{path} is a pickle, which runs code when it is opened: save safetensors or ONNX")
    what = "is no encoder" if path.exists() else "does not exist"
    raise EncoderError(
        f"{path} {what}: give an ONNX file, or a folder with {CONFIG}, {WEIGHTS} and {TOKENIZER}"
    )


def _described(name: str, told: Path, network: str) -> Description:
    """What an owner says of an encoder: kind and preparation, and what it is where that is known."""
    top = document(text_of(told), str(told))
    kind = top.choice("kind", KINDS)
    preparation = Preparation.parse(top.section("preparation"), kind)
    said = {key: top.text(key, optional=True) for key in ("version", "licence", "origin", "trained_on")}
    top.end()
    known = {key: value for key, value in said.items() if value is not None}
    return Description(name, kind, 1, network, preparation, {}, **known)


def _of_folder(name: str, folder: Path) -> tuple[Description, dict[str, bytes]]:
    if (folder / GRAPH).exists():
        described = _described(name, folder / DESCRIPTION, "onnx")
        wanted = (GRAPH, TOKENIZER) if described.kind == TEXT else (GRAPH,)
        return described, {file: _file(folder, file) for file in wanted}
    files = {file: _file(folder, file) for file in (CONFIG, TOKENIZER, WEIGHTS)}
    config = _json(folder / CONFIG)
    if "auto_map" in config:
        raise EncoderError(
            f"{folder} counts on code of its own (auto_map), which nobody runs here: export it to ONNX"
        )
    network = "bert" if runs_as_bert(folder) else "transformers"
    if (folder / DESCRIPTION).exists():
        return _described(name, folder / DESCRIPTION, network), files
    origin = str(config.get("_name_or_path") or folder.name)
    origin = "".join(letter for letter in origin if letter.isprintable()).strip()[:100] or "not stated"
    preparation = Preparation(tokens=_tokens(folder, config), pooling=_pooling(folder))
    return Description(name, TEXT, 1, network, preparation, {}, origin=origin), files


def _pooling(folder: Path) -> str:
    """How sentence-transformers makes one vector of many; the mean where nothing is said."""
    modules = _json(folder / "modules.json") if (folder / "modules.json").exists() else []
    for module in modules if isinstance(modules, list) else []:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in _PLAIN:
            raise EncoderError(f"{folder} has a part '{kind}', which is not known here: export it to ONNX")
    told = folder / "1_Pooling" / CONFIG
    if not told.exists():
        return "mean"
    modes = [mode for mode, on in _json(told).items() if mode.startswith("pooling_mode") and on is True]
    if modes in (["pooling_mode_mean_tokens"], ["pooling_mode_cls_token"]):
        return "mean" if "mean" in modes[0] else "first"
    raise EncoderError(
        f"{folder} pools by {', '.join(modes)}: only the mean and the first token are known here"
    )


def _tokens(folder: Path, config: dict[str, Any]) -> int:
    told = folder / "sentence_bert_config.json"
    wanted = _json(told).get("max_seq_length") if told.exists() else None
    places = config.get("max_position_embeddings")
    known = [value for value in (wanted or _TOKENS, places) if type(value) is int and value > 0]
    return min(known)


def _json(path: Path) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise EncoderError(f"{path} is not JSON: save the model again") from None
    return found


def _file(folder: Path, name: str) -> bytes:
    if not (folder / name).is_file():
        pickled = next((file for file in sorted(folder.iterdir()) if file.suffix in _PICKLES), None)
        if name == WEIGHTS and pickled is not None:
            raise EncoderError(
                f"{pickled} is a pickle, which runs code when it is opened: save the model as {WEIGHTS}"
            )
        raise EncoderError(
            f"{folder} has no {name}: save the model with its tokenizer, in one file of safetensors"
        )
    return _content(folder / name)


def _content(path: Path) -> bytes:
    if path.stat().st_size > MOST_BYTES:
        raise EncoderError(f"{path} is larger than {MOST_BYTES >> 30} GiB: choose a smaller encoder")
    return path.read_bytes()
