"""Encoders: what a description says, and that no record changes a digit of another's numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sottovoce.data.section import DescriptionError
from sottovoce.errors import SottovoceError
from sottovoce.models.encoders import Description, Encoder, EncoderError, Network, Prepared, Reference, store
from sottovoce.models.encoders.adding import add
from tests.models.encoders import tiny

ELSEWHERE = "cpu:0"
"""A device that is not known to encode records alone."""
SENTENCES = [
    "A good film.",
    "the plot was not good " * 12,
    "Pain in the left arm",
    "bad",
    "a film, a plot " * 5,
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(params=["bert", "onnx pictures", "onnx texts"])
def encoder(request: pytest.FixtureRequest, tmp_path: Path) -> Encoder:
    if request.param == "bert":
        return store.opened(add("tiny", tiny.bert(tmp_path / "bert")))
    if request.param == "onnx texts":
        return store.opened(add("tiny", tiny.text_graph(tmp_path / "graph")))
    return store.opened(add("tiny", tiny.picture_graph(tmp_path / "tiny.onnx")))


def _records(encoder: Encoder, count: int) -> list[Any]:
    if encoder.described.kind == "text":
        return [SENTENCES[place % len(SENTENCES)] + " plot" * (place % 7) for place in range(count)]
    rng = torch.Generator().manual_seed(1)
    return list(torch.rand(count, 3, 20, 24, generator=rng))


def test_no_record_changes_a_digit_of_another(encoder: Encoder) -> None:
    records = _records(encoder, 23)
    together, alone = encoder(records), torch.cat([encoder([record]) for record in records])
    assert together.shape == (23, encoder.size)
    assert bool(together.isfinite().all())
    assert len(together.unique(dim=0)) > 10
    assert torch.equal(together, alone)
    assert torch.equal(encoder(records[::-1]).flip(0), together)
    assert torch.equal(encoder([*records[:5], records[11]])[-1], together[11])


def test_a_tile_is_always_full_and_filled_with_nothing_of_records(encoder: Encoder) -> None:
    seen: list[tuple[int, ...]] = []
    tiled = Encoder(_Watched(encoder._network, seen), tile=8)
    records = _records(encoder, 11)
    assert torch.allclose(tiled(records), encoder(records), atol=1e-5)
    assert {shape[0] for shape in seen} == {8}


def test_where_a_network_mixes_records_a_device_with_tiles_encodes_them_alone(encoder: Encoder) -> None:
    mixing = Encoder(_Mixing(encoder._network, ELSEWHERE))
    assert mixing.tile == 1
    assert Encoder(_Mixing(encoder._network, ELSEWHERE, share=0.0)).tile > 1


def test_what_cannot_be_read_is_a_row_of_nan_and_moves_no_other(encoder: Encoder) -> None:
    records = _records(encoder, 6)
    broken: Any = "  " if encoder.described.kind == "text" else b"no picture"
    found = encoder([*records[:3], broken, *records[3:]])
    assert bool(found[3].isnan().all())
    assert torch.equal(found[[0, 1, 2, 4, 5, 6]], encoder(records))


def test_progress_counts_records(encoder: Encoder) -> None:
    seen: list[tuple[int, int]] = []
    encoder(_records(encoder, 40), lambda done, of: seen.append((done, of)))
    assert seen[-1] == (40, 40)
    assert len(seen) > 1


def test_a_description_survives_its_file(encoder: Encoder) -> None:
    described = encoder.described
    again = Description.parse(described.to_toml(), "encoder.toml")
    assert again == replace(described, folder=again.folder)
    assert again.digest == described.digest
    assert Reference.parse(str(described.reference)) == described.reference


def test_the_digest_is_of_all_that_decides_numbers_and_of_nothing_else(encoder: Encoder) -> None:
    described = encoder.described
    assert replace(described, name="other", version="9", licence="MIT").digest == described.digest
    file = next(iter(described.files))
    for changed in (
        replace(described, size=described.size + 1),
        replace(described, preparation=replace(described.preparation, side=77, tokens=77)),
        replace(described, files={**described.files, file: "0" * 64}),
    ):
        assert changed.digest != described.digest


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kind = "text"', 'kind = "sound"', "kind"),
        ("size = 16", "size = 0", "whole number"),
        ("format = 1", "format = 2", "update"),
        ('"model.safetensors"', '"../model.safetensors"', "SHA-256"),
        ('network = "bert"', 'network = "code"', "network"),
        ('name = "tiny"', 'name = "Tiny one"', "cannot name an encoder"),
        ('"pooling" = "mean"', '"pooling" = "mean"\nrun = "me"', "unknown"),
    ],
)
def test_a_description_of_a_stranger_is_bounded(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = add("tiny", tiny.bert(tmp_path / "bert")).to_toml()
    assert old in text
    with pytest.raises(SottovoceError, match=said):
        Description.parse(text.replace(old, new), "encoder.toml")


@pytest.mark.parametrize(
    "text", ["", "minilm", "minilm 1 384 xyz", "Mini 1 384 " + "0" * 32, "m 1 99999 " + "0" * 32]
)
def test_a_reference_of_a_stranger_is_bounded(text: str) -> None:
    with pytest.raises(EncoderError, match="which encoder"):
        Reference.parse(text)


def test_a_file_of_nothing_is_one_line() -> None:
    with pytest.raises(DescriptionError, match="format is missing"):
        Description.parse("", "encoder.toml")


class _Watched(Network):
    def __init__(self, inner: Network, seen: list[tuple[int, ...]], device: str = "cpu") -> None:
        super().__init__(inner.described, device)
        self.inner, self.seen = inner, seen

    def prepare(self, item: Any) -> Prepared | None:
        return self.inner.prepare(item)

    def run(self, *tile: Tensor) -> Tensor:
        self.seen += [tuple(part.shape) for part in tile]
        return self.inner.run(*tile)


class _Mixing(_Watched):
    """A device whose products depend on what lies beside a record."""

    def __init__(self, inner: Network, device: str, share: float = 1e-7) -> None:
        super().__init__(inner, [], device)
        self.share = share

    def run(self, *tile: Tensor) -> Tensor:
        rows = super().run(*tile)
        return rows * (1 + self.share * torch.arange(len(rows)).unsqueeze(1)) if self.share else rows
