"""Encoders in ONNX, run by ONNX Runtime on one core, as files that hold all of themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import extra
from sottovoce.models.encoders import GRAPH, Description, EncoderError, Network, Prepared
from sottovoce.models.encoders.pictures import picture
from sottovoce.models.encoders.texts import Texts


class _Session:
    """A graph that runs: named inputs to its first output."""

    def __init__(self, described: Description) -> None:
        runtime = extra("onnxruntime", f"{described.name} needs ONNX Runtime", "encoders")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        content = (described.folder / GRAPH).read_bytes()  # as bytes, no other file can be a part of it
        try:
            self._session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of a runtime in C++
            reason = " ".join(str(error).split())[:200]
            raise EncoderError(f"ONNX Runtime cannot open {described.name}: {reason}") from None
        self._name = described.name
        self.inputs = [one.name for one in self._session.get_inputs()]

    def __call__(self, values: dict[str, Any]) -> Tensor:
        try:
            found = self._session.run(None, values)[0]
        except Exception as error:  # of a runtime in C++
            reason = " ".join(str(error).split())[:200]
            raise EncoderError(f"{self._name} fails: {reason}") from None
        return torch.from_numpy(np.asarray(found, np.float32))


class Pictures(Network):
    """A graph with one input, pictures (b, 3, side, side); its first output is flattened."""

    def __init__(self, described: Description, device: str) -> None:
        super().__init__(described, "cpu")
        self._session = _Session(described)
        if len(self._session.inputs) != 1:
            raise EncoderError(
                f"{described.name} has {len(self._session.inputs)} inputs: export one that takes "
                "pictures alone"
            )

    def prepare(self, item: Any) -> Prepared | None:
        return picture(item, self.described.preparation)

    def run(self, *tile: Tensor) -> Tensor:
        return self._session({self._session.inputs[0]: tile[0].numpy()}).flatten(1)


class Graph(Texts):
    """A graph that takes input_ids, and attention_mask and token_type_ids where it names them."""

    def __init__(self, described: Description, device: str) -> None:
        super().__init__(described, "cpu")
        self._session = _Session(described)
        if not {"input_ids"} <= {*self._session.inputs} <= {"input_ids", "attention_mask", "token_type_ids"}:
            raise EncoderError(
                f"{described.name} takes {', '.join(self._session.inputs)}: export one that takes input_ids "
                "and attention_mask"
            )

    def vectors(self, tokens: Tensor, counts: Tensor) -> Tensor:
        given = {
            "input_ids": tokens.numpy(),
            "attention_mask": counts.long().numpy(),
            "token_type_ids": torch.zeros_like(tokens).numpy(),
        }
        return self._session({name: given[name] for name in self._session.inputs})
