"""The formats public datasets are published in are read exactly, and carry no code."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from sottovoce.data import formats

RNG = np.random.default_rng(0)


def png(image: np.ndarray, filters: list[int]) -> bytes:
    """An 8-bit RGB PNG with the given filter on each row, written from the specification."""
    height, width, _ = image.shape
    wide = np.zeros((height + 1, width + 1, 3), int)
    wide[1:, 1:] = image
    lines = b""
    for y, kind in enumerate(filters, start=1):
        row = []
        for x in range(1, width + 1):
            left, up, corner = wide[y, x - 1], wide[y - 1, x], wide[y - 1, x - 1]
            distance = [abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)]
            paeth = np.where(
                (distance[0] <= distance[1]) & (distance[0] <= distance[2]),
                left,
                np.where(distance[1] <= distance[2], up, corner),
            )
            row.append((wide[y, x] - {0: 0 * left, 1: left, 2: up, 4: paeth}[kind]) % 256)
        lines += bytes([kind]) + np.array(row, np.uint8).tobytes()
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))]
    packed = zlib.compress(lines)
    chunks += [(b"IDAT", packed[:20]), (b"IDAT", packed[20:]), (b"IEND", b"")]
    body = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def test_a_png_is_read_back_exactly_under_every_filter_in_use() -> None:
    image = RNG.integers(0, 256, (60, 17, 3), dtype=np.uint8)
    image[30:] //= 64  # many ties, where Paeth's order of preference matters
    filters = RNG.choice([0, 1, 4], 60).tolist()
    assert np.array_equal(formats.read_png(png(image, filters)), image)


def test_a_png_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="filter 2"):
        formats.read_png(png(np.zeros((2, 2, 3), np.uint8), [0, 2]))
    with pytest.raises(ValueError, match="not an 8-bit RGB PNG"):
        formats.read_png(b"GIF89a" + bytes(100))


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_gzipped_or_not(tmp_path: Path, packed: bool) -> None:
    images, labels = RNG.integers(0, 256, (5, 4, 3), dtype=np.uint8), np.arange(5, dtype=np.uint8)
    for name, array in [(formats.IDX_IMAGES, images), (formats.IDX_LABELS, labels)]:
        content = idx(array)
        (tmp_path / f"{name}.gz" if packed else tmp_path / name).write_bytes(
            gzip.compress(content) if packed else content
        )
    x, y = formats.read_idx_folder(tmp_path)
    assert np.array_equal(x, images[:, None])
    assert np.array_equal(y, labels)


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", idx(np.zeros(9, np.uint8))[:-1]])
def test_what_is_no_idx_file_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"not an idx|reshape"):
        formats.read_idx(content)


def batch(images: np.ndarray, labels: list[int]) -> bytes:
    """A pickle as Python 2 wrote the original batches: protocol 0, byte strings, numpy's old module names."""
    raw = repr(images.tobytes())[1:]
    lines = ["(dp1", "S'data'", "p2", "cnumpy.core.multiarray", "_reconstruct", "p3", "(cnumpy", "ndarray"]
    lines += ["p4", "(I0", "tp5", "S'b'", "p6", "tp7", "Rp8", "(I1", f"(I{len(images)}", "I3072", "tp9"]
    lines += ["cnumpy", "dtype", "p10", "(S'u1'", "p11", "I0", "I1", "tp12", "Rp13", "(I3", "S'|'", "p14"]
    lines += ["NNNI-1", "I-1", "I0", "tp15", "bI00", f"S{raw}", "p16", "tp17", "bsS'labels'", "p18", "(lp19"]
    return ("\n".join(lines) + "\n" + "".join(f"I{label}\na" for label in labels) + "s.").encode()


def archive(batches: list[bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for i, content in enumerate(batches, start=1):
            member = tarfile.TarInfo(f"cifar-10-batches-py/data_batch_{i}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def test_the_archive_and_the_png_form_of_cifar10_give_the_same_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = RNG.integers(0, 256, (10, 3, 32, 32), dtype=np.uint8)
    labels = RNG.integers(0, 10, 10).tolist()
    parts = [slice(2 * i, 2 * i + 2) for i in range(5)]
    packed = archive([batch(images[part].reshape(2, 3072), labels[part]) for part in parts])
    monkeypatch.setattr(formats, "CIFAR_ARCHIVE_MD5", hashlib.md5(packed).hexdigest())
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / formats.CIFAR_ARCHIVE).write_bytes(packed)
    (tmp_path / "b").mkdir()
    for name, part in zip(formats.CIFAR_PNGS, parts, strict=True):
        rows = images[part].transpose(0, 2, 3, 1).reshape(2, 1024, 3)
        (tmp_path / "b" / name).write_bytes(png(rows, [0, 1]))
    (tmp_path / "b" / formats.CIFAR_LABELS).write_text(json.dumps(labels))
    for folder in ("a", "b"):
        x, y = formats.read_cifar_folder(tmp_path / folder)
        assert np.array_equal(x, images)
        assert y.tolist() == labels


def test_an_archive_with_another_checksum_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / formats.CIFAR_ARCHIVE).write_bytes(archive([pickle.dumps({})] * 5))
    with pytest.raises(ValueError, match="wrong checksum"):
        formats.read_cifar_folder(tmp_path)


def test_code_in_a_batch_is_refused_even_behind_the_right_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    packed = archive([pickle.dumps(Trap(), protocol=0)] * 5)
    (tmp_path / formats.CIFAR_ARCHIVE).write_bytes(packed)
    monkeypatch.setattr(formats, "CIFAR_ARCHIVE_MD5", hashlib.md5(packed).hexdigest())
    with pytest.raises(pickle.UnpicklingError, match="no place in a CIFAR-10 batch"):
        formats.read_cifar_folder(tmp_path)
    assert not (tmp_path / "sprung").exists()
