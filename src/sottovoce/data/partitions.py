"""Dividing a dataset among clients: Dirichlet over labels, a few classes each, independently, or by owner.

The Dirichlet partition gives every client the same number of records with its own class proportions,
p ~ Dirichlet(α, …, α): small α makes clients that know few classes. Clients are shuffled at the end, so
that those who come last (the future clients) are not made of left-overs. The partition by classes gives
every client k classes and alike many records of each, as FedRep, CENTAUR and PFLlib do. Every partition is a
function of its arguments: the same seed gives the same records.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.data.dataset import Dataset
from sottovoce.errors import SottovoceError, nearest
from sottovoce.plan.catalog import PARTITIONS

Ints = npt.NDArray[np.int64]


def partition(
    dataset: Dataset, *, kind: str, clients: int, records: int, alpha: float, seed: int, classes: int = 2
) -> list[Tensor]:
    """Disjoint index tensors, one for each client, in shuffled order within and between clients.

    All but `client` give every client exactly `records` records (0: as many as the dataset allows, the same
    for all); `client` gives `clients` of the natural owners all they have, and wants `records=0`. `alpha`
    matters for `dirichlet` only, and `classes`, how many of them a client has, for `classes`.

    >>> from sottovoce.data.dataset import Facts
    >>> data = Dataset("toy", torch.zeros(100, 1), torch.arange(100) % 4, Facts((1,), classes=4))
    >>> parts = partition(data, kind="dirichlet", clients=5, records=20, alpha=0.5, seed=0)
    >>> [len(part) for part in parts], len(torch.cat(parts).unique())
    ([20, 20, 20, 20, 20], 100)
    """
    if kind not in PARTITIONS:
        raise SottovoceError(f"unknown partition '{kind}': {nearest(kind, PARTITIONS)}")
    if clients < 1 or records < 0:
        raise SottovoceError(
            f"cannot divide a dataset into {clients} clients of {records} records: use positive numbers"
        )
    rng = np.random.default_rng(seed)
    if kind == "client":
        return _by_owner(dataset, clients, records, rng)
    if kind == "classes":
        return _by_classes(dataset, clients, records, classes, rng)
    records = records or len(dataset) // clients
    if records == 0 or clients * records > len(dataset):
        raise SottovoceError(
            f"{clients} clients × {max(records, 1)} records is more than the {len(dataset)} of "
            f"{dataset.name}: lower participants, future_clients or records_per_client"
        )
    if kind == "iid":
        parts = rng.permutation(len(dataset))[: clients * records].reshape(clients, records)
    else:
        parts = _dirichlet(dataset, clients, records, alpha, rng)
    return list(torch.from_numpy(parts).unbind())


def _by_owner(dataset: Dataset, clients: int, records: int, rng: np.random.Generator) -> list[Tensor]:
    if dataset.client is None:
        raise SottovoceError(
            f"{dataset.name} has no client column: add an array 'client' to the .npz, or choose partition=iid"
        )
    if records:
        raise SottovoceError(
            "partition=client gives each client the records it has: set records_per_client=0"
        )
    order = rng.permutation(len(dataset))
    owner = dataset.client.numpy()[order]
    sizes = np.bincount(owner)
    if len(sizes) < clients:
        raise SottovoceError(
            f"{dataset.name} has {len(sizes)} clients, {clients} were asked for: "
            "lower participants or future_clients"
        )
    parts = np.split(order[np.argsort(owner, kind="stable")], np.cumsum(sizes)[:-1])
    return [torch.from_numpy(parts[i]) for i in rng.permutation(len(sizes))[:clients]]


def _by_classes(
    dataset: Dataset, clients: int, records: int, classes: int, rng: np.random.Generator
) -> list[Tensor]:
    known = dataset.facts.classes
    if dataset.facts.task != "classes" or classes > known:
        raise SottovoceError(
            f"classes_per_client={classes} is more than {dataset.name} has, {known}: give 1 to {known}"
            if dataset.facts.task == "classes"
            else f"records of {dataset.name} are of no classes: choose another partition"
        )
    chosen = _classes_of(clients, classes, known, rng)
    order = rng.permutation(len(dataset))
    label = dataset.y.cpu().numpy()[order]
    pools = [order[label == one] for one in range(known)]
    used, holders = np.unique(chosen, return_counts=True)
    most = classes * min(len(pools[one]) // count for one, count in zip(used, holders, strict=True))
    records = records or most
    if not classes <= records <= most or records % classes:
        raise SottovoceError(
            f"{clients} clients of {classes} classes have at most {most} records of {dataset.name} each, a "
            f"multiple of {classes}, not {records}: change records_per_client, participants or future_clients"
        )
    each, taken = records // classes, np.zeros(known, dtype=np.int64)
    parts = []
    for mine in chosen:
        dealt = [pools[one][taken[one] : taken[one] + each] for one in mine]
        taken[mine] += each
        parts.append(torch.from_numpy(rng.permutation(np.concatenate(dealt))))
    return parts


def _classes_of(clients: int, classes: int, known: int, rng: np.random.Generator) -> Ints:
    """The classes of each client (clients, classes), all different; each class as often, or once more.

    One client after another takes those that fewest have so far, by lot where as many have them.
    """
    holders = np.zeros(known, dtype=np.int64)
    chosen = np.zeros((clients, classes), dtype=np.int64)
    for row in chosen:
        row[:] = np.lexsort((rng.random(known), holders))[:classes]
        holders[row] += 1
    return rng.permutation(chosen)


def _dirichlet(dataset: Dataset, clients: int, records: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Indices (clients, records): class counts are drawn first, then filled from each shuffled class."""
    if not 0 < alpha < float("inf"):
        raise SottovoceError(f"alpha={alpha} is no Dirichlet concentration: use a positive number, e.g. 0.5")
    order = rng.permutation(len(dataset))
    label = dataset.y.cpu().numpy()[order]
    pools = np.bincount(label, minlength=dataset.facts.classes)
    counts = _class_counts(pools, clients, records, alpha, rng)
    rng.shuffle(counts)
    by_class = np.split(order[np.argsort(label, kind="stable")], np.cumsum(pools)[:-1])
    index = np.concatenate([pool[:n] for pool, n in zip(by_class, counts.sum(0), strict=True)])
    owner = np.concatenate([np.repeat(np.arange(clients), column) for column in counts.T])
    # A client's records arrive sorted by class; mixing before the stable sort by owner undoes that.
    mixed = rng.permutation(len(index))
    return index[mixed][np.argsort(owner[mixed], kind="stable")].reshape(clients, records)


def _class_counts(pools: Ints, clients: int, records: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Records of each class for each client (clients, classes), drawn without replacement from `pools`."""
    left = pools.copy()
    counts = np.zeros((clients, len(pools)), dtype=np.int64)
    proportions = rng.dirichlet(np.full(len(pools), alpha), size=clients)
    for row, p in zip(counts, proportions, strict=True):
        while missing := records - int(row.sum()):
            available = np.where(left > 0, p, 0.0)
            if available.sum() < 1e-300:
                # p was 0 in floating point on all that is left. Renormalized Dirichlet proportions are
                # Dirichlet again and independent of the rest, so a new draw has the right distribution.
                p = np.zeros(len(pools))
                p[left > 0] = rng.dirichlet(np.full(int((left > 0).sum()), alpha))
                continue
            drawn = np.minimum(rng.multinomial(missing, available / available.sum()), left)
            row += drawn
            left -= drawn
    return counts
