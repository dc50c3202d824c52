"""Texts for an encoder: tokens by its own tokenizer, padded to 32, 64, 128, … by their number; and BERT.

How long a text is decides its shape, nothing else does: what is filled up is masked out. BERT (Devlin and
others 2019) runs here by forty lines of ours, other architectures by transformers, without code of theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sottovoce.errors import extra
from sottovoce.models.encoders import Description, EncoderError, Network, Prepared

SHORTEST = 32
"""Places of the smallest tile."""
MOST_LETTERS = 20_000
"""Of a text; what follows is not read."""
_FAR = -1e9


class Texts(Network):
    """A network of texts: `vectors` gives one for each token, and `pooling` makes one of them."""

    def __init__(self, described: Description, device: str) -> None:
        super().__init__(described, device)
        tokenizers = extra("tokenizers", "texts need tokenizers", "encoders")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(described.folder / "tokenizer.json"))
        except Exception as error:  # of Rust
            raise EncoderError(f"{described.name} has no tokenizer that can be read: {error}") from None
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(described.preparation.tokens)

    def prepare(self, item: Any) -> Prepared | None:
        """Tokens and which of them count, (L,) each; a text without letters cannot be read."""
        if isinstance(item, str):
            if not item.strip():
                return None
            ids = self._tokenizer.encode(item[:MOST_LETTERS]).ids
        elif bool((item < 0).any()):  # outside its vocabulary
            return None
        else:
            ids = item[item > 0][: self.described.preparation.tokens].tolist()
        if not ids:
            return None
        places = min(self.described.preparation.tokens, max(SHORTEST, 1 << (len(ids) - 1).bit_length()))
        tokens = torch.zeros(places, dtype=torch.int64)
        tokens[: len(ids)] = torch.tensor(ids)
        return tokens, torch.arange(places) < len(ids)

    def run(self, *tile: Tensor) -> Tensor:
        tokens, counts = tile
        vectors = self.vectors(tokens, counts)
        if vectors.ndim == 2:
            return vectors
        if self.described.preparation.pooling == "first":
            return vectors[:, 0]
        weights = counts.unsqueeze(2).to(vectors.dtype)
        return (vectors * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)

    def vectors(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """(b, L) to (b, L, width), or to (b, size) where the network makes one vector itself."""
        raise NotImplementedError


class Bert(Texts):
    """BERT as its authors' weights have it: absolute places, GELU, normalization after each part."""

    def __init__(self, described: Description, device: str, weights: Mapping[str, Tensor]) -> None:
        super().__init__(described, device)
        config = json.loads((described.folder / "config.json").read_text())
        self._heads, self._layers = int(config["num_attention_heads"]), int(config["num_hidden_layers"])
        self._epsilon = float(config["layer_norm_eps"])
        plain = {name.removeprefix("bert."): value.to(device) for name, value in weights.items()}
        self._weights = {name: value.float() for name, value in plain.items() if value.is_floating_point()}
        vocabulary = len(self._weights["embeddings.word_embeddings.weight"])
        if self._tokenizer.get_vocab_size() > vocabulary:
            raise EncoderError(f"{described.name} has a tokenizer of another model: add both again")

    def vectors(self, tokens: Tensor, counts: Tensor) -> Tensor:
        weights, (records, places) = self._weights, tokens.shape
        kept = weights["embeddings.word_embeddings.weight"]
        x = kept[tokens.clamp(max=len(kept) - 1)] + weights["embeddings.position_embeddings.weight"][:places]
        x = self._normed(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        far = torch.zeros_like(counts, dtype=x.dtype).masked_fill(~counts, _FAR)[:, None, None, :]
        for layer in range(self._layers):
            at = f"encoder.layer.{layer}."
            query, key, value = (
                self._linear(x, f"{at}attention.self.{part}")
                .view(records, places, self._heads, -1)
                .transpose(1, 2)
                for part in ("query", "key", "value")
            )
            seen = functional.scaled_dot_product_attention(query, key, value, far)
            seen = self._linear(seen.transpose(1, 2).reshape(x.shape), f"{at}attention.output.dense")
            x = self._normed(seen + x, f"{at}attention.output.LayerNorm")
            inner = functional.gelu(self._linear(x, f"{at}intermediate.dense"))
            x = self._normed(self._linear(inner, f"{at}output.dense") + x, f"{at}output.LayerNorm")
        return x

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _normed(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return functional.layer_norm(x, weight.shape, weight, bias, self._epsilon)


class Transformer(Texts):
    """Any other architecture that transformers knows by itself."""

    def __init__(self, described: Description, device: str) -> None:
        super().__init__(described, device)
        transformers = extra("transformers", f"{described.name} needs transformers", "transformers")
        try:
            self._module = transformers.AutoModel.from_pretrained(
                str(described.folder), local_files_only=True, trust_remote_code=False, use_safetensors=True
            )
        except Exception as error:  # of configurations that it does not know, in many ways
            reason = " ".join(str(error).split())[:200]
            raise EncoderError(f"transformers cannot open {described.name}: {reason}") from None
        self._module = self._module.float().eval().to(device)

    def vectors(self, tokens: Tensor, counts: Tensor) -> Tensor:
        found: Tensor = self._module(input_ids=tokens, attention_mask=counts.long()).last_hidden_state
        return found


def runs_as_bert(folder: Path) -> bool:
    """Returns whether a configuration is that of a BERT as `Bert` computes it."""
    try:
        config = json.loads((folder / "config.json").read_text())
        return bool(
            config["model_type"] == "bert"
            and config.get("hidden_act") == "gelu"
            and config.get("position_embedding_type", "absolute") == "absolute"
            and not config.get("is_decoder", False)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False
