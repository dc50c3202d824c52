"""Has each release noise of its own? That of two clients in two runs, each release against all others.

ε adds up releases as if the noise of each had nothing in common with that of any other: not with the same
client's in another round, not with another client's, not with another run's. What is decoded, less what went
in, is noise, and an audit knows both. Independent Gaussian noise points anywhere, so the square of the
correlation of two vectors of n numbers is Beta(½, (n − 1)/2), however long they are; one that chance explains
in fewer than one of 10,000 audits is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce.audit.bounds import FALSE_ALARM, stats
from sottovoce.audit.game import Vector, new_master, play
from sottovoce.audit.pair import Pair, busiest
from sottovoce.data import FederatedDataset
from sottovoce.models.features.cache import Progress
from sottovoce.release.blueprint import Blueprint

RUNS = CLIENTS = 2


@dataclass(frozen=True, eq=False)
class Noise:
    """The noise of one release, and whose it is."""

    run: int
    client: str
    what: str
    numbers: Vector

    def beside(self, other: Noise) -> str:
        """Returns between what the two were drawn anew."""
        if self.run != other.run:
            return "runs"
        return "rounds" if self.client == other.client else "clients"


@dataclass(frozen=True, eq=False)
class Common:
    """What two noises have in common: their correlation, and its chance if they are independent."""

    one: Noise
    other: Noise
    correlation: float
    numbers: int

    @property
    def chance(self) -> float:
        """Of a correlation so large, either way."""
        if self.numbers < 2:
            return 1.0
        return float(stats().beta.sf(self.correlation**2, 0.5, (self.numbers - 1) / 2))

    def __str__(self) -> str:
        one, other = (f"the {noise.what} of {noise.client}" for noise in (self.one, self.other))
        where = " in another run" if self.one.run != self.other.run else ""
        how = f"a correlation of {self.correlation:+.3f} over {self.numbers:,} numbers"
        return f"{one} and {other}{where} have noise in common, {how}"


def independence(
    blueprint: Blueprint, federation: FederatedDataset, progress: Progress = lambda done, of: None
) -> dict[str, Any]:
    """What noises have in common at most, between rounds, clients and runs, and whether that is chance."""
    return compared(noises(blueprint, federation, progress))


def noises(
    blueprint: Blueprint, federation: FederatedDataset, progress: Progress = lambda done, of: None
) -> list[Noise]:
    """What participants add to all that they release, with the records they hold, in several runs."""
    first, names, found = busiest(blueprint), federation.names, list[Noise]()
    others = [i for i in range(len(names)) if i != first]
    who = [first, *([] if blueprint.plan.place.at_server else others)][:CLIENTS]  # one server draws for all
    for run in range(RUNS):
        master = new_master(blueprint.plan)
        for place, participant in enumerate(who):
            progress(run * len(who) + place, RUNS * len(who))
            held = federation.participants[participant]
            pair = Pair("own", blueprint, names[participant], participant, (held, held))
            seen = play(pair, f"noise-{run}", held, master=master, keep=True)
            for (kind, number), numbers in seen.noises.items():
                what = f"{kind} of round {number}" if number else str(kind)
                found.append(Noise(run, names[participant], what, numbers))
    progress(RUNS * len(who), RUNS * len(who))
    return found


def compared(found: Sequence[Noise]) -> dict[str, Any]:
    """Of each sort of two noises those that chance explains least; they are a fault if it hardly does."""
    pairs, least = len(found) * (len(found) - 1) // 2, dict[str, Common]()
    for between, common in _largest(found):
        if between not in least or common.chance < least[between].chance:
            least[between] = common
    return {
        "pairs": pairs,
        "common": {between: common.correlation for between, common in least.items()},
        "faults": [
            f"{common}: whoever subtracts one from the other takes it away"
            for common in least.values()
            if common.chance * pairs < FALSE_ALARM
        ],
    }


def _largest(found: Sequence[Noise]) -> Iterator[tuple[str, Common]]:
    """Yields for each sort, and each number of numbers, the two noises that are most alike."""
    for size in sorted({len(noise.numbers) for noise in found}):
        # The longer one's first numbers: a generator that starts anew gives the same ones first.
        these = [noise for noise in found if len(noise.numbers) >= size]
        matrix = np.stack([noise.numbers[:size] for noise in these])
        matrix = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), np.finfo(float).tiny)
        alike = np.triu(matrix @ matrix.T, 1)
        exact = np.array([len(noise.numbers) == size for noise in these])
        alike[~(exact[:, None] | exact)] = 0.0
        sort = np.array([[one.beside(other) for other in these] for one in these])
        for between in ("rounds", "clients", "runs"):
            of_sort = np.where(sort == between, alike, 0.0)
            one, other = np.unravel_index(np.abs(of_sort).argmax(), of_sort.shape)
            if of_sort[one, other]:
                common = float(np.clip(of_sort[one, other], -1.0, 1.0))
                yield between, Common(these[one], these[other], common, size)
