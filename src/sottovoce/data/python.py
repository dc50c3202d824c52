"""Records given from Python: torch datasets, arrays, tables and Hugging Face datasets, one client or several.

What somebody holds becomes one `Dataset` whose clients have names. Arrays and torch datasets are taken as
they are; a table (pandas, polars, pyarrow, Hugging Face) is read by a `records.toml`, exactly as a file of it
would be, because nothing about a column may be guessed from records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from sottovoce.data import DataError, Dataset, Description, load, read_site
from sottovoce.data.arrays import Array, check_name, from_arrays, items_of, stacked
from sottovoce.data.dataset import joined
from sottovoce.data.section import canonical
from sottovoce.data.sites import NONE, Copies
from sottovoce.data.tables.columns import ArrowColumns, arrow
from sottovoce.data.tables.readers import known_columns
from sottovoce.data.tables.schema import NAME

OWN = "own data"
PICTURES = ("Image", "Array2D", "Array3D", "Array4D", "List", "Sequence")
"""Features of a Hugging Face dataset that may be what a model sees."""

Held = Any
"""A client's records: a torch dataset, arrays (X, y), a `Dataset`, a table, or a file."""
Clients = Mapping[Any, Held] | Sequence[Held]


def given(
    dataset: Held = None,
    clients: Clients | None = None,
    records: str | Path | Description | None = None,
    encoders: Mapping[str, str] = NONE,
) -> Dataset | None:
    """Returns what an entry point was given in the place of the plan's records; None if nothing.

    `encoders` as in `load`.
    """
    if dataset is not None and clients is not None:
        raise DataError("dataset and clients are two ways to give records: leave one of them out")
    if isinstance(dataset, Mapping | list):
        dataset, clients = None, dataset
    if clients is not None:
        return from_clients(clients, records=records, encoders=encoders)
    if records is not None:
        raise DataError("records describes the tables of clients={name: table, …}: give those too")
    if dataset is None or isinstance(dataset, Dataset):
        return dataset
    if isinstance(dataset, str | Path):
        return load(dataset, encoders)
    if _hugging_face(dataset):
        return from_huggingface(dataset)
    _check_arrays("dataset", dataset)
    return from_arrays(OWN, *_pair(OWN, dataset))


def from_clients(
    clients: Clients,
    *,
    records: str | Path | Description | None = None,
    classes: int | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    name: str = OWN,
    encoders: Mapping[str, str] = NONE,
) -> Dataset:
    """The dataset of several clients by name; those of a list are client-0, client-1, …

    Each holds a torch dataset, arrays (X, y), a `Dataset`, or a Hugging Face dataset. `classes`, `mean` and
    `std` are public constants, as in `from_torch`; the labels of all clients say how many classes there are,
    unless you do. With `records`, a `records.toml`, each holds a table (a DataFrame of pandas or polars, a
    pyarrow table, a Hugging Face dataset) or the file of one, encoded as that says.

    >>> west, east = (torch.rand(6, 3), torch.arange(6) % 2), (torch.rand(4, 3), [1, 1, 0, 1])
    >>> both = from_clients({"west": west, "east": east})
    >>> both.clients, len(both), both.facts.classes
    (('east', 'west'), 10, 2)
    """
    held = _named(clients)
    if records is not None:
        return _different(_tables(name, held, records, encoders))
    for client, one in held.items():
        if isinstance(one, str | Path):
            held[client] = load(one, encoders)
        elif _hugging_face(one):
            held[client] = from_huggingface(one)
    if any(isinstance(one, Dataset) for one in held.values()):
        return _different(_joined(name, held))
    for client, one in held.items():
        _check_arrays(client, one)
    pairs = {client: _pair(client, one) for client, one in held.items()}
    x, y = next(iter(pairs.values()))
    for client, (other, targets) in pairs.items():
        if other.shape[1:] != x.shape[1:] or (other.dtype == np.uint8) != (x.dtype == np.uint8):
            raise DataError(
                f"{client} holds {other.dtype} of shape {other.shape[1:]}, {next(iter(pairs))} {x.dtype} of "
                f"shape {x.shape[1:]}: bring all records to one shape and kind of number"
            )
        if targets.shape != other.shape[:1]:
            raise DataError(
                f"{client}: X has {len(other)} records but y has shape {targets.shape}: give one label "
                "a record"
            )
    x, y = (np.concatenate([pair[i] for pair in pairs.values()]) for i in (0, 1))
    owner = np.repeat(list(pairs), [len(targets) for _, targets in pairs.values()])
    return _different(from_arrays(name, x, y, owner, classes=classes, mean=mean, std=std))


def from_huggingface(
    dataset: Any,
    *,
    x: str | None = None,
    y: str | None = None,
    client: str | None = None,
    name: str = OWN,
) -> Dataset:
    """The dataset of a Hugging Face dataset of pictures, or arrays, with class labels.

    `x` and `y` are its columns, by default its only picture or array and its only class label; `client` is
    the column that says who holds which record. Classes are those that its features name.
    """
    features = dataset.features
    x = x or _only(features, PICTURES, "picture or array")
    y = y or _only(features, ("ClassLabel",), "class label")
    for column in (x, y, *([client] if client else [])):
        if column not in features:
            raise DataError(f"the dataset has no column '{column}': it has {', '.join(features)}")
    records = [np.asarray(one) for one in dataset[x]]
    if len({one.shape for one in records}) != 1:
        raise DataError(f"records of column '{x}' differ in shape, or there are none: bring them to one")
    pictures = stacked(records, f"records of column '{x}'")
    if type(features[x]).__name__ == "Image" and pictures.ndim == 4:
        pictures = np.moveaxis(pictures, 3, 1)
    owner = None if client is None else np.asarray([str(one) for one in dataset[client]])
    classes = getattr(features[y], "num_classes", None)
    found = from_arrays(name, _array(x, pictures), _array(y, dataset[y]), owner, classes=classes)
    return replace(found, facts=replace(found.facts, class_names=tuple(getattr(features[y], "names", ()))))


def _named(clients: Clients) -> dict[str, Held]:
    """Clients by name, in the order of their names."""
    if isinstance(clients, list | tuple):
        digits = len(str(len(clients) - 1))
        clients = {f"client-{i:0{digits}}": one for i, one in enumerate(clients)}
    if not isinstance(clients, Mapping) or not clients:
        raise DataError("clients are a dict {name: records, …} or a list of records: give at least one")
    named: dict[str, Held] = {}
    for key, one in clients.items():
        client = canonical(str(key))
        check_name(client)
        if client in named:
            raise DataError(f"two clients are called '{client}': give each a name of its own")
        named[client] = one
    return dict(sorted(named.items()))


def _check_arrays(client: str, held: Held) -> None:
    """Refuses what is neither arrays (X, y) nor a torch dataset, and says what to do with a table."""
    if isinstance(held, tuple | TorchDataset):
        return
    if hasattr(held, "columns") or hasattr(held, "__arrow_c_stream__"):
        raise DataError(
            f"{client}: a table says neither its bounds nor its target by itself: describe the tables of "
            "clients={name: table, …} with records='records.toml', or give arrays (X, y)"
        )
    items = hasattr(held, "__getitem__") and hasattr(held, "__len__")
    if not items or isinstance(held, np.ndarray | Tensor | str):
        raise DataError(
            f"{client}: {type(held).__name__} is not known as records: give a torch dataset, arrays (X, y), "
            "or a table with records='records.toml'"
        )


def _pair(client: str, held: Held) -> tuple[Array, Array]:
    if not isinstance(held, tuple):
        return items_of(held, client)
    if len(held) != 2:
        raise DataError(f"{client}: {len(held)} arrays are no pair: give (X, y)")
    return _array(client, held[0]), _array(client, held[1])


def _array(client: str, values: Any) -> Array:
    """Numbers of an array, a tensor, a list or a DataFrame; whole numbers of inputs are numbers too."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind not in "iufb":
        raise DataError(
            f"{client}: an array of {array.dtype} holds no numbers: encode texts, or describe a table with "
            "records='records.toml'"
        )
    return array.astype(np.float32) if array.ndim > 1 and array.dtype.kind in "ib" else array


def _tables(
    name: str, held: Mapping[str, Held], records: str | Path | Description, encoders: Mapping[str, str]
) -> Dataset:
    """Tables, and files of them, encoded by the agreement."""
    if isinstance(records, Description):
        agreed = records
    else:
        agreed = Description.load(Path(records) / NAME if Path(records).is_dir() else Path(records))
    agreed = agreed.encoded_by(encoders)
    facts, sites = agreed.facts(), {}
    for client, one in held.items():
        if isinstance(one, str | Path):
            site = read_site(Path(one), agreed)
        else:
            site = read_site(Path(client), agreed, given=_columns(client, one))
        sites[client] = site.dataset(facts)
    return joined(name, sites)


def _columns(client: str, table: Any) -> ArrowColumns:
    pa, _ = arrow()
    try:
        found = pa.table(table.with_format("arrow")[:] if _hugging_face(table) else _days_as_texts(table))
    except (TypeError, ValueError, AttributeError) as error:  # also pyarrow's own
        kind, reason = type(table).__name__, str(error).strip().splitlines()[0][:100]
        raise DataError(
            f"{client}: {kind} is no table ({reason}): give a DataFrame, a pyarrow table or a file"
        ) from None
    names = found.column_names
    return ArrowColumns(found, known_columns(client, names, names))


def _days_as_texts(table: Any) -> Any:
    """A DataFrame of pandas whose days and instants, where they are objects, are texts.

    Of such a column pyarrow would take the first record's kind and time zone for all.
    """
    if not hasattr(table, "select_dtypes"):
        return table
    table = table.copy(deep=False)
    for place, kind in enumerate(table.dtypes):
        if str(kind) == "object":
            column = table.iloc[:, place]
            cells = [str(cell) if isinstance(cell, date | time) else cell for cell in column]
            table.isetitem(place, type(column)(cells, column.index, dtype=object))
    return table


def _joined(name: str, held: Mapping[str, Held]) -> Dataset:
    """Datasets that agree on what a record is, each in one client's hands."""
    first, like = next(iter(held.items()))
    for client, one in held.items():
        if not isinstance(one, Dataset) or not isinstance(like, Dataset):
            raise DataError(f"{client} and {first} hold records of unlike kinds: give all clients the same")
        units = (one.unit is None) == (like.unit is None)
        if one.facts != like.facts or one.x.dtype != like.x.dtype or not units:
            raise DataError(
                f"records of {client} are described otherwise than those of {first}: make all datasets with "
                "the same shape, classes, mean, std and unit"
            )
    return joined(name, held)


def _different(dataset: Dataset) -> Dataset:
    """Refuses the same records under two names: both accounts would spend their privacy."""
    copies = Copies()
    assert dataset.client is not None
    sizes = torch.bincount(dataset.client).tolist()  # of one client after another
    parts = (torch.split(values, sizes) for values in (dataset.x, dataset.y))
    for client, x, y in zip(dataset.clients, *parts, strict=True):
        first = copies.first(client, x, y)
        if first is not None:
            raise DataError(f"{client} and {first} hold the same records, charged twice: leave one out")
    return dataset


def _hugging_face(held: object) -> bool:
    return hasattr(held, "features") and hasattr(held, "with_format") and hasattr(held, "column_names")


def _only(features: Mapping[str, Any], kinds: Sequence[str], what: str) -> str:
    found = [column for column, feature in features.items() if type(feature).__name__ in kinds]
    if len(found) != 1:
        has = f"{len(found)} ({', '.join(found)})" if found else "none"
        raise DataError(f"the dataset has not one {what} but {has}: name the columns, x=… and y=…")
    return found[0]
