"""What splits of the records say of a rehearsal's rows: their scores, and what joining gains, with intervals.

Every split trains all rows anew and judges them on other held-out records. A row's score is its mean over
splits; what finishing gains a site over what it has alone at home has an interval of 95 % over them, and so
have mean, median and worst tenth of the sites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sottovoce.models.metrics import Evaluation, mean_known, student
from sottovoce.models.tasks import Task

_HELD_OUT = 0.25
"""Held-out records for each that trains: splits overlap, and their mean is less sure than 1/repeats says."""

STATISTICS: dict[str, Callable[..., Any]] = {
    "mean": np.mean,
    "median": np.median,
    "worst_decile": partial(np.quantile, q=0.1),
}
"""What a summary says of the gains of all sites."""
_DRAWS = 1_000
"""Gains of all sites, drawn from what each may be."""
ITSELF = "itself"
"""Future clients' held-out mean, against which their numbers are judged: who tells no target has no other."""


@dataclass(frozen=True)
class Scored:
    """One model on one site's held-out records."""

    metric: float | None
    loss: float
    error: float
    """The sum of all losses."""
    records: int


Split = dict[str, dict[str, Scored]]
"""Of one split: rows, and the participants in each."""


def scored(task: Task, found: Evaluation) -> Scored:
    outputs, y = found.outputs.float(), found.y
    if not len(y):
        return Scored(None, float("nan"), 0.0, 0)
    bounded = outputs.clamp(-1.0, 1.0) if task.name == "number" else outputs
    losses = task.losses(bounded, y)
    return Scored(found.accuracy, float(losses.mean()), float(losses.sum()), len(y))


def row_of(name: str, splits: Sequence[Split], task: Task) -> dict[str, Any]:
    """The means of one row over all splits."""
    clients = [client for client in splits[0][name] if all(client in split[name] for split in splits)]
    points = {client: [_points(split, name, client, task) for split in splits] for client in clients}
    losses = {client: [split[name][client].loss for split in splits] for client in clients}
    per_client = {client: mean_known(values) for client, values in points.items()}
    participants = mean_known(list(per_client.values()))
    if task.name == "number":
        participants = mean_known(
            [_skill(split[name].values(), split["constant"].values()) for split in splits]
        )
    known = {
        client: float(np.nanmean(values)) for client, values in losses.items() if np.isfinite(values).any()
    }
    return {
        "participants": participants,
        "log_loss": float(np.mean(list(known.values()))) if known else None,
        "per_client": per_client,
        "log_loss_per_client": known,
    }


def _points(split: Split, row: str, client: str, task: Task) -> float | None:
    """A site's metric in percent; of numbers the skill against its own mean."""
    if task.name == "number":
        return _skill([split[row][client]], [split["constant"][client]])
    return split[row][client].metric


def _skill(rows: Iterable[Scored], constants: Iterable[Scored]) -> float | None:
    """100 · (1 − squared error / that of each site's mean), over all records."""
    error, least = (sum(scored.error for scored in scores) for scores in (rows, constants))
    return 100.0 * (1.0 - error / least) if least > 0 else None


def future_of(row: str, splits: Sequence[Split], task: Task) -> dict[str, Any]:
    """Returns what future clients get, by name; who joins later may differ from split to split."""
    names = sorted({name for split in splits for name in split[row]})
    each = {
        name: mean_known([split[row][name].metric for split in splits if name in split[row]])
        for name in names
    }
    whole = mean_known(list(each.values()))
    if task.name == "number":
        whole = mean_known([_skill(split[row].values(), split[ITSELF].values()) for split in splits])
    return {"future": whole, "future_per_client": each}


def gain_of(splits: Sequence[Split], task: Task) -> dict[str, Any]:
    """Finished against alone at home, in points, for each site with an interval of 95 % over the splits."""
    sites: dict[str, dict[str, Any]] = {}
    each, least = list[list[float]](), list[float]()
    for client in row_of("finished", splits, task)["per_client"]:
        pairs = [
            (_points(split, "finished", client, task), _points(split, "home_alone", client, task))
            for split in splits
        ]
        gains = [one - other for one, other in pairs if one is not None and other is not None]
        if not gains:
            continue
        one_record = 100 / max(split["finished"][client].records for split in splits)
        if len(gains) == len(splits):
            each.append(gains)
            least.append(one_record)
        mean, reach = float(np.mean(gains)), _reach(gains, one_record)
        losses = [split["finished"][client].loss - split["home_alone"][client].loss for split in splits]
        low, high = (None, None) if reach is None else (mean - reach, mean + reach)
        sites[client] = {"points": mean, "low": low, "high": high, "log_loss": float(np.nanmean(losses))}
    points = [site["points"] for site in sites.values()]
    told: dict[str, Any] = {}
    for name, statistic in STATISTICS.items():
        told[name] = float(statistic(points)) if points else None
        told[f"{name}_interval"] = _interval(told[name], each, least, statistic)
    worst, median = told["worst_decile_interval"], told["median_interval"]
    if worst is not None:  # a tenth of the sites gains at most what half of them do
        worst[1] = min(worst[1], median[1])
    gaining = sum(site["low"] is not None and site["low"] > 0 for site in sites.values())
    losing = sum(site["high"] is not None and site["high"] < 0 for site in sites.values())
    return {
        "per_client": sites,
        **told,
        "sites_gaining": gaining,
        "sites_losing": losing,
        "sites_undecided": len(sites) - gaining - losing,
    }


def _interval(
    value: float | None,
    gains: Sequence[Sequence[float]],
    least: Sequence[float],
    statistic: Callable[..., Any],
) -> list[float] | None:
    """An interval of 95 % around a statistic of the sites' mean gains, from what it is without each split.

    It is never narrower than the sites' own doubts allow (`_floor`); `least` is what one held-out record of
    each is worth.
    """
    by_split = np.array(gains, ndmin=2).T
    many = len(by_split)
    if value is None or not gains or many < 2:
        return None
    whole = statistic(by_split.mean(axis=0))
    without = [statistic(np.delete(by_split, split, axis=0).mean(axis=0)) for split in range(many)]
    floor = _floor(by_split, np.array(least), statistic)
    reach = _reach([many * whole - (many - 1) * left for left in without], floor)
    return None if reach is None else [value - reach, value + reach]


def _floor(by_split: np.ndarray, least: np.ndarray, statistic: Callable[..., Any]) -> float:
    """Half of an interval of 95 % for a statistic of sites, each for itself as unsure as its splits say.

    Gains are (splits, sites). Splits often agree on a median by chance: it is 0 in each where many small
    sites gain nothing, and says nothing of how far it would move with other records.
    """
    many, sites = by_split.shape
    t = student(sites * (many - 1))
    unsure = np.maximum(by_split.std(axis=0, ddof=1) * np.sqrt(1 / many + _HELD_OUT), least / t)
    draws = np.random.default_rng(0).standard_normal((_DRAWS, sites))
    return t * float(np.std(statistic(by_split.mean(axis=0) + unsure * draws, axis=1)))


def _reach(gains: Sequence[float], least: float) -> float | None:
    """Half of an interval of 95 % for a mean over splits that overlap (Nadeau and Bengio, 2003).

    Splits that agree by chance are not surer than `least`: for a site what one held-out record is worth.
    None for a single split, which says nothing about itself.
    """
    if len(gains) < 2:
        return None
    t = student(len(gains) - 1)
    return max(least, t * float(np.std(gains, ddof=1)) * float(np.sqrt(1 / len(gains) + _HELD_OUT)))
