"""The durable, append-only record of what each client's records have spent, one row per release.

A release is charged, and its message stored, in one transaction that is on the disk before `commit` returns;
only then may bytes leave. So a process killed at any moment has either charged nothing and sent nothing, or
has charged once and resends the stored bytes. The ledger refuses a stream (run, client, kind, round) used
twice, and a release after which the client's Σ (Δ/σ)² over all runs would exceed the budget (the paper's
ε_i ≤ ε for every client i).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

from sottovoce.errors import SottovoceError, nearest
from sottovoce.privacy.accounting import epsilon, mu_squared
from sottovoce.privacy.ledger_file import LedgerFile

Kind = Literal["context", "gradient", "confusion"]
Client = int | str

# Relative. Floats are added up here in another order than in calibration, and a run that was calibrated to ε
# must be able to spend all of it.
SLACK = 1e-9

_SPENDING = "TOTAL((sensitivity / sigma) * (sensitivity / sigma))"
_STREAM = "client = ? AND run = ? AND kind = ? AND round = ?"


class StreamReused(SottovoceError):
    """The stream was charged before; send what `Ledger.stored` returns, never a new encoding."""


class Overspent(SottovoceError):
    """The release would take its client beyond the budget; nothing was charged."""


class AlreadyDelivered(SottovoceError):
    """The release was charged, applied, and its message forgotten; it cannot be sent again."""


@dataclass(frozen=True)
class Budget:
    """What all releases of any one client together may cost: (ε, δ) under an accounting."""

    epsilon: float
    delta: float
    accounting: str

    def covers(self, spending: float) -> bool:
        """Whether a client may have spent Σ (Δ/σ)² = `spending`.

        >>> Budget(epsilon=16, delta=1e-5, accounting="exact").covers(2.9**2)
        True
        """
        return spending <= mu_squared(self.epsilon, self.delta, self.accounting) * (1 + SLACK)


@dataclass(frozen=True)
class Charge:
    """One release: its stream (run, client, kind, round), its L2 sensitivity Δ and its noise scale σ.

    Clients are compared as text: 3 and "3" are the same client, with one budget.
    """

    run: str
    client: Client
    kind: Kind
    round: int
    sensitivity: float
    sigma: float

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise SottovoceError(
                f"unknown kind of release '{self.kind}': {nearest(self.kind, get_args(Kind))}"
            )
        for name, value in (("sensitivity", self.sensitivity), ("sigma", self.sigma)):
            if not (math.isfinite(value) and value > 0):
                raise SottovoceError(f"{name} = {value} cannot be charged: give a positive, finite number")

    @property
    def mu_squared(self) -> float:
        """(Δ/σ)², the release's share of the client's spending."""
        return (self.sensitivity / self.sigma) ** 2

    def __str__(self) -> str:
        return f"{self.kind} of client {self.client} in round {self.round} of run {self.run}"


@dataclass(frozen=True)
class Entry:
    """A row of the ledger: the charge and when it was committed (UTC)."""

    charge: Charge
    time: datetime


class Ledger:
    """An open ledger; several processes may have the same file open.

    >>> from tempfile import TemporaryDirectory
    >>> budget = Budget(epsilon=1.0, delta=1e-5, accounting="exact")
    >>> with TemporaryDirectory() as folder, Ledger.open(f"{folder}/ledger.sqlite", scope="demo") as ledger:
    ...     ledger.commit(Charge("run", 0, "context", 0, sensitivity=0.01, sigma=0.1), b"message", budget)
    ...     print(ledger.stored("run", 0, "context", 0), round(ledger.epsilon(0, 1e-5, "exact"), 3))
    b'message' 0.341
    """

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, scope: str) -> Self:
        """Opens the ledger at `path`, or creates it, readable by its owner only.

        `scope` is a fingerprint of how the records are divided into clients: budgets add up only where
        client i means the same records, so a ledger of another scope is refused.
        """
        return cls(LedgerFile.open(Path(path), scope))

    @property
    def path(self) -> Path:
        """Where the ledger is kept."""
        return self._file.path

    def close(self) -> None:
        """Closes the file; charges and stored messages stay."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def commit(self, charge: Charge, message: bytes, budget: Budget) -> None:
        """Charges one release and stores its message, durably; only after this may the message leave."""
        self.commit_many([(charge, message)], budget)

    def commit_many(self, releases: Sequence[tuple[Charge, bytes]], budget: Budget) -> None:
        """Charges several releases in one durable transaction: all of them, or none and an error.

        Raises `StreamReused` or `Overspent` if one of them may not be made.
        """
        with self._file.transaction():
            for charge, message in releases:
                self._append(charge, message, budget)

    def _append(self, charge: Charge, message: bytes, budget: Budget) -> None:
        stream = (str(charge.client), charge.run, charge.kind, int(charge.round))
        if self._file.query(f"SELECT 1 FROM release WHERE {_STREAM}", *stream):
            raise StreamReused(f"the {charge} was charged before: send its stored message, or use a new run")
        before = self.spent(charge.client)
        after = before + charge.mu_squared
        if not budget.covers(after):
            spent, needed = (epsilon(total, budget.delta, budget.accounting) for total in (before, after))
            raise Overspent(
                f"the {charge} would take ε from {spent:.4f} to {needed:.4f}, beyond the budget of"
                f" {budget.epsilon:g} at δ = {budget.delta:g}: use fewer rounds, more noise or more epsilon"
            )
        self._file.query(
            "INSERT INTO release (client, run, kind, round, sensitivity, sigma, time)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(*stream, float(charge.sensitivity), float(charge.sigma), datetime.now(UTC).isoformat()),
        )
        self._file.query("INSERT INTO message VALUES (last_insert_rowid(), ?)", message)

    def stored(self, run: str, client: Client, kind: Kind, round: int) -> bytes | None:
        """The message to send again for a stream that was charged; None if it never was.

        Raises `AlreadyDelivered` if the message has been forgotten.
        """
        rows = self._file.query(
            f"SELECT body FROM release LEFT JOIN message ON message.release = release.id WHERE {_STREAM}",
            *(str(client), run, kind, int(round)),
        )
        if not rows:
            return None
        body: bytes | None = rows[0][0]
        if body is None:
            raise AlreadyDelivered(
                f"the {kind} of client {client} in round {round} of run {run} was applied and its message"
                " forgotten: go on with a later round"
            )
        return body

    def forget(self, run: str, *, before_round: int) -> None:
        """Removes the messages of rounds before `before_round`, contexts included; their charges stay.

        Only for messages that the receiver has durably applied. A message reveals more than the release it
        decodes to, so its bytes are overwritten in the file and cut from the write-ahead log. Where another
        process reads the ledger for seconds on end, the log is cut the next time, and a warning says so.
        """
        with self._file.transaction():
            self._file.query(
                "DELETE FROM message WHERE"
                " (SELECT run = ? AND round < ? FROM release WHERE release.id = message.release)",
                *(run, int(before_round)),
            )
        self._file.settle()

    def spent(self, client: Client) -> float:
        """Σ (Δ/σ)² over all releases of the client, in all runs of this ledger."""
        [(total,)] = self._file.query(f"SELECT {_SPENDING} FROM release WHERE client = ?", str(client))
        return float(total)

    def epsilon(self, client: Client, delta: float, accounting: str) -> float:
        """ε that the client's records have spent at `delta`."""
        return epsilon(self.spent(client), delta, accounting)

    def worst(self, delta: float, accounting: str) -> float:
        """ε of the client that has spent most; 0 for an empty ledger."""
        totals = self._file.query(f"SELECT {_SPENDING} FROM release GROUP BY client")
        return epsilon(max((total for (total,) in totals), default=0.0), delta, accounting)

    def releases(self, client: Client, *, run: str | None = None) -> int:
        """How many releases the client was ever charged for, in all runs or in one.

        The number only grows: a receiver that remembers a larger one is facing a restored backup.
        """
        [(count,)] = self._file.query(
            "SELECT COUNT(*) FROM release WHERE client = ? AND run = coalesce(?, run)", str(client), run
        )
        return int(count)

    def clients(self) -> list[str]:
        """The clients with at least one charge, sorted as text."""
        return [
            client for (client,) in self._file.query("SELECT DISTINCT client FROM release ORDER BY client")
        ]

    def charges(self, client: Client | None = None) -> Iterator[Entry]:
        """The rows of the ledger (or of one client) in the order in which they were committed."""
        last = 0
        # Page by page: a ledger of many runs need not fit into memory.
        while page := self._file.query(
            "SELECT id, time, run, client, kind, round, sensitivity, sigma FROM release"
            " WHERE id > ? AND client = coalesce(?, client) ORDER BY id LIMIT 1000",
            *(last, None if client is None else str(client)),
        ):
            for _, time, *charge in page:
                yield Entry(Charge(*charge), datetime.fromisoformat(time))
            last = page[-1][0]
