"""Your own records: an `.npz` file, or any torch dataset.

A file holds `x` (N, ...) and `y` (N,), optionally a `client` column for records that already have owners,
and the public constants `classes`, `mean` and `std`. With three axes, bytes are gray pictures (N, height,
width) and numbers series (N, T, F) of T steps with F values each. Anything unusable is refused with one line
that says what to change; records that are merely not finite pass, since they later contribute zero.
"""

from __future__ import annotations

import math
import pickle
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib import format as format_
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from sottovoce.data.dataset import Dataset, Facts
from sottovoce.data.section import DataError

Array = npt.NDArray[Any]

LONGEST = 100
"""Letters of a client's name."""
PART_BYTES = 2**23
"""Of an array that is read in parts."""
_HINT = "write it with numpy.savez(path, x=..., y=...)"
_FIELDS = ("x", "y", "client", "classes", "mean", "std")
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, pickle.UnpicklingError)


def read_npz(
    path: Path, name: str | None = None, *, labels: bool = True, shape: tuple[int, ...] | None = None
) -> Dataset:
    """The dataset in an `.npz` file (see docs/data.md); Python objects in it are never unpickled.

    With `labels=False` labels are not read, and all records are in class 0. `shape` is what a record is known
    to be, for files that could be read in two ways.
    """
    arrays = read_arrays(path, [field for field in _FIELDS if labels or field != "y"])
    if not labels and "x" in arrays:
        arrays["y"] = np.zeros(len(arrays["x"]), np.int64)
    for field in ("x", "y"):
        if field not in arrays:
            raise DataError(f"{path} has no array '{field}': {_HINT}")
    return from_arrays(name or str(path), **arrays, shape=shape)


def from_torch(
    dataset: TorchDataset[Any],
    *,
    classes: int | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    name: str = "own data",
) -> Dataset:
    """The dataset of a map-style torch dataset whose items are (x, label), all x of one shape.

    `mean` and `std` are public constants for `x` as the items give it (bytes: after division by 255).

    >>> from torch.utils.data import TensorDataset
    >>> from_torch(TensorDataset(torch.rand(6, 3, 8, 8), torch.arange(6)), classes=10).facts.shape
    (3, 8, 8)
    """
    return from_arrays(name, *items_of(dataset, name), classes=classes, mean=mean, std=std)


def items_of(dataset: TorchDataset[Any], name: str) -> tuple[Array, Array]:
    """All items (x, label) of a map-style torch dataset, stacked."""
    try:
        items = [dataset[i] for i in range(len(cast(Sized, dataset)))]
        xs, ys = [np.asarray(x) for x, _ in items], [np.asarray(y) for _, y in items]
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: give a dataset with a length and items (x, label): {error}") from error
    if not items:
        raise DataError(f"{name} has no records: give at least one")
    if len({x.shape for x in xs}) > 1:
        raise DataError(f"records of {name} differ in shape: resize them to one shape in the dataset")
    return stacked(xs, f"records of {name}"), np.stack(ys)


def stacked(xs: Sequence[Array], which: str) -> Array:
    """Records of one shape as one array: none of them decides how others are read."""
    if len({x.dtype == np.uint8 for x in xs}) > 1:
        raise DataError(
            f"{which} are bytes, which count from 0 to 1, and other numbers: bring all to one kind of number"
        )
    return np.stack(xs)


def from_arrays(
    name: str,
    x: Array,
    y: Array,
    client: Array | None = None,
    classes: Any = None,
    mean: Any = (0.0,),
    std: Any = (1.0,),
    shape: tuple[int, ...] | None = None,
) -> Dataset:
    """A checked dataset; bytes (N, height, width) get one gray channel, `classes` defaults to max(y) + 1."""
    x = _checked_x(name, x, shape)
    if y.ndim != 1 or len(y) != len(x):
        raise DataError(f"{name}: x has {len(x)} records but y has shape {y.shape}: give one label a record")
    labels = whole_labels(name, y)
    known = int(labels.max()) + 1 if classes is None else _whole(name, classes)
    if labels.min() < 0 or labels.max() >= known:
        wrong = int(labels.min() if labels.min() < 0 else labels.max())
        raise DataError(f"{name} has label {wrong}: number the {known} classes 0 to {known - 1}")
    channels = 1 if x.ndim == 3 else x.shape[1]
    means, stds = _constants(name, "mean", mean, channels), _constants(name, "std", std, channels)
    if min(stds) <= 0:
        raise DataError(f"{name}: std is {min(stds)}: give positive numbers")
    facts = Facts(x.shape[1:], known, means, stds)
    owners, names = _owners(name, client, len(x))
    return Dataset(name, torch.from_numpy(x), labels, facts, owners, names)


def read_arrays(path: Path, fields: Iterable[str]) -> dict[str, Array]:
    """Those of the named arrays that an `.npz` has."""
    with explained(path):
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise DataError(f"{path} is a single array, not an .npz: {_HINT}")
        with file:
            return {field: file[field] for field in fields if field in file}


def array_names(path: Path) -> list[str]:
    """Returns what the arrays of an `.npz` are called."""
    with explained(path), np.load(path, allow_pickle=False) as file:
        return list(file)


def read_array_parts(path: Path, field: str) -> Iterator[Array]:
    """One array of an `.npz`, in parts of bounded size along its first axis and in its order."""
    with explained(path):
        with zipfile.ZipFile(path) as archive:
            if f"{field}.npy" not in archive.namelist():
                raise DataError(f"{path} has no array '{field}': {_HINT}")
            with archive.open(f"{field}.npy") as file:
                read_header = {(1, 0): format_.read_array_header_1_0, (2, 0): format_.read_array_header_2_0}
                shape, by_column, dtype = read_header[format_.read_magic(file)](file)
                if dtype.hasobject:
                    raise ValueError("Object arrays cannot be loaded")
                size = dtype.itemsize * math.prod(shape[1:])
                if shape and size and not (by_column and len(shape) > 1):
                    most = max(1, PART_BYTES // size)
                    for start in range(0, shape[0], most):
                        rows = min(most, shape[0] - start)
                        data = file.read(rows * size)
                        yield np.frombuffer(bytearray(data), dtype).reshape(rows, *shape[1:])
                    return
        yield read_arrays(path, [field])[field]


def read_stored_parts(path: Path, shape: tuple[int, ...]) -> Iterator[Array]:
    """`x` of an `.npz` whose records must have that shape, in parts of bounded size; labels are not read."""
    for part in read_array_parts(path, "x"):
        x = _checked_x(str(path), part, shape)
        if x.shape[1:] != shape:
            raise DataError(f"{path} holds records of shape {x.shape[1:]}, the model is about {shape}")
        yield x


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Errors of numpy and the operating system while an `.npz` is read become ours."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: check the path, or name a dataset") from None
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror or error}): check the path") from None
    except DAMAGED as error:
        if "Object arrays" in str(error):
            raise DataError(
                f"{path} holds pickled Python objects, which are refused because they can run code: "
                "save plain numeric arrays (equal shapes, dtype not object)"
            ) from None
        raise DataError(f"{path} is not an .npz file or is damaged: {_HINT}") from None


def _checked_x(name: str, x: Array, shape: tuple[int, ...] | None) -> Array:
    """Records as they are kept; `shape` of one, where it is known, tells gray pictures from series."""
    if x.ndim < 2 or x.size == 0:
        raise DataError(f"{name}: x has shape {x.shape}: give (N, channels, height, width) or (N, features)")
    if x.ndim == 3 and (x.dtype == np.uint8 if shape is None else shape == (1, *x.shape[1:])):
        x = x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3) and min(x.shape[1:3]) > 3:
        raise DataError(
            f"{name}: x has shape {x.shape}, channels last: save x.transpose(0, 3, 1, 2), channels first"
        )
    if x.dtype != np.uint8:
        if x.dtype.kind != "f":
            raise DataError(
                f"{name}: x is {x.dtype}: save pictures as uint8 (0 to 255), numbers as floating point, "
                'or put tokens into a folder whose records.toml says kind = "tokens"'
            )
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
    return np.ascontiguousarray(x)


def whole_labels(name: str, y: Array) -> Tensor:
    """Labels (n,), int64: whole numbers, whichever."""
    if y.dtype.kind not in "iu":
        raise DataError(f"{name}: y is {y.dtype}: labels must be integers 0, 1, 2, …")
    return torch.from_numpy(y.astype(np.int64))


def check_name(client: str) -> None:
    """Refuses what cannot name a client."""
    if not 0 < len(client) <= LONGEST or not client.isprintable():
        raise DataError(f"{client[:LONGEST]!a} cannot name a client: use 1 to {LONGEST} letters")


def _owners(name: str, client: Array | None, records: int) -> tuple[Tensor | None, tuple[str, ...]]:
    if client is None:
        return None, ()
    if client.shape != (records,) or client.dtype.kind not in "iuUS":
        raise DataError(
            f"{name}: client is {client.dtype} of shape {client.shape}: "
            f"give one integer or string for each of the {records} records"
        )
    found, owner = np.unique(client, return_inverse=True)
    names = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in found.tolist())
    for one in names:
        check_name(one)
    return torch.from_numpy(owner.astype(np.int64)), names


def _whole(name: str, classes: Any) -> int:
    value = np.asarray(classes)
    if value.size != 1 or value.dtype.kind not in "iu" or value.item() < 1:
        raise DataError(f"{name}: classes is {value.tolist()}: give one positive integer")
    return int(value.item())


def _constants(name: str, field: str, values: Any, channels: int) -> tuple[float, ...]:
    constants = np.atleast_1d(np.asarray(values))
    if constants.dtype.kind not in "iuf" or constants.shape not in ((1,), (channels,)):
        more = f"one for each of the {channels} channels" if channels > 1 else "be stated in a records.toml"
        raise DataError(f"{name}: {field} must be one number, or {more}")
    if not np.isfinite(constants).all():
        raise DataError(f"{name}: {field} is not finite: give public constants")
    return tuple(float(value) for value in constants)
