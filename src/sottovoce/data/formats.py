"""Reading public datasets in the formats they are published in.

MNIST and Fashion-MNIST come as idx files; CIFAR-10 as pickled batches in the original archive, or as
lossless PNG with one record in each row of pixels. Both forms of CIFAR-10 decode to the same arrays,
x uint8 (N, 3, 32, 32) and y uint8 (N,), in the original order.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

IDX_IMAGES, IDX_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
CIFAR_ARCHIVE = "cifar-10-python.tar.gz"
CIFAR_ARCHIVE_MD5 = "c58f30108f718f92721af3b95e74349a"  # as published beside the archive
CIFAR_PNGS = tuple(f"data_batch_{i}.png" for i in range(1, 6))
CIFAR_LABELS = "train_lables.json"  # spelled so in the package


def read_idx_folder(folder: Path) -> tuple[Bytes, Bytes]:
    """Training images (N, 1, height, width) and labels (N,) from idx files, gzipped or not."""
    return read_idx(_content(folder, IDX_IMAGES))[:, None], read_idx(_content(folder, IDX_LABELS))


def read_idx(data: bytes) -> Bytes:
    """The uint8 array of an idx file: magic 0, 0, 8, ndim; big-endian sizes; values.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 7]))
    array([5, 7], dtype=uint8)
    """
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError("not an idx file of bytes")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def read_cifar_folder(folder: Path) -> tuple[Bytes, Bytes]:
    """Training images (50000, 3, 32, 32) and labels from the original archive, or from PNG and JSON."""
    if (folder / CIFAR_ARCHIVE).exists():
        return _read_cifar_archive((folder / CIFAR_ARCHIVE).read_bytes())
    labels = np.asarray(json.loads(_content(folder, CIFAR_LABELS)), np.uint8)
    rows = np.concatenate([read_png(_content(folder, name)) for name in CIFAR_PNGS])
    return np.ascontiguousarray(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)), labels


def read_png(data: bytes) -> Bytes:
    """Pixels (height, width, 3) of an 8-bit RGB PNG without interlacing.

    A few lines instead of an imaging library: these files are the only images that are ever decoded, and
    the checksum of the result says whether it is right. Filters that they do not use are refused.
    """
    header, body, at = b"", [], 8
    while at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IHDR":
            header = data[at + 8 : at + 8 + size]
        elif kind == b"IDAT":
            body.append(data[at + 8 : at + 8 + size])
        at += size + 12
    if header[8:] != bytes([8, 2, 0, 0, 0]):
        raise ValueError("not an 8-bit RGB PNG")
    width, height = struct.unpack_from(">II", header)
    lines = np.frombuffer(zlib.decompress(b"".join(body)), np.uint8).reshape(height, 1 + 3 * width)
    image = lines[:, 1:].reshape(height, width, 3).copy()
    above = np.zeros((width, 3), np.uint8)
    for row, kind in zip(image, lines[:, 0].tolist(), strict=True):
        if kind == 1:
            np.cumsum(row, axis=0, dtype=np.uint8, out=row)
        elif kind == 4:
            _undo_paeth(row, above)
        elif kind != 0:
            raise ValueError(f"PNG filter {kind} is not used by these files")
        above = row
    return image


def _undo_paeth(row: Bytes, above: Bytes) -> None:
    """Adds to each byte whichever of left, above, above-left is nearest to left + above − above-left."""
    for channel in range(3):
        left = corner = 0
        for x, up in enumerate(above[:, channel].tolist()):
            guess = left + up - corner
            nearest = min((left, up, corner), key=lambda value: abs(guess - value))
            left, corner = (int(row[x, channel]) + nearest) % 256, up
            row[x, channel] = left


def _content(folder: Path, name: str) -> bytes:
    if (folder / name).exists():
        return (folder / name).read_bytes()
    if (folder / f"{name}.gz").exists():
        return gzip.decompress((folder / f"{name}.gz").read_bytes())
    raise FileNotFoundError(f"no {name} there")


class _ArraysOnly(pickle.Unpickler):
    """Unpickles dictionaries of byte arrays and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {"_reconstruct": np.zeros(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}
        if not module.startswith("numpy") or name not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a CIFAR-10 batch")
        return allowed[name]


def _read_cifar_archive(archive: bytes) -> tuple[Bytes, Bytes]:
    if hashlib.md5(archive, usedforsecurity=False).hexdigest() != CIFAR_ARCHIVE_MD5:
        raise ValueError(f"{CIFAR_ARCHIVE} has the wrong checksum")
    batches = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for i in range(1, 6):
            member = tar.extractfile(f"cifar-10-batches-py/data_batch_{i}")
            assert member is not None  # a regular file, by the checksum
            batches.append(_ArraysOnly(member, encoding="bytes").load())
    x = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
    return x, np.concatenate([np.asarray(batch[b"labels"], np.uint8) for batch in batches])
