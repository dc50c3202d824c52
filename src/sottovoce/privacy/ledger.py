"""The durable, append-only record of what each client's records have spent, one row per release.

A release is charged, and its message stored, in one transaction that is on the disk before `commit` returns;
only then may bytes leave. So a process killed at any moment has either charged nothing and sent nothing, or
has charged once and resends the stored bytes. The ledger refuses a stream (run, client, kind, round) used
twice, and a release after which the client's Σ (Δ/σ)² over all runs would exceed the budget (the paper's
ε_i ≤ ε for every client i), the caller's or the one that the ledger's owner has set. Every opening compares
the ledger with what is remembered of its `past`: what it has lost is charged again, as a sum for each run.

A budget is (ε, δ) under an accounting; spending is Σ (Δ/σ)², which knows no δ. So budgets and prices at
different δ are compared by the spending that they allow, and nobody gains by stating a large δ.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from sottovoce.errors import SottovoceError
from sottovoce.machine.rollback import Memory
from sottovoce.privacy.accounting import Budget, Charge, Client, Entry, epsilon
from sottovoce.privacy.history import Past, Remembered
from sottovoce.privacy.ledger_file import CLIENT, LedgerError, LedgerFile, other_scope, same_scope
from sottovoce.privacy.ledger_file import OWN_RECORDS as OWN_RECORDS

UNSAID = Budget(epsilon=8.0, delta=1e-5, accounting="exact")
"""What a client is willing to spend if its owner says nothing."""
_HELD = """SELECT epsilon, delta, accounting FROM budget
WHERE id >= (SELECT coalesce(max(id), 0) FROM budget WHERE raised)"""
"""The budgets since one was last raised."""
LARGEST_DELTA = 1e-2
_STREAM = "client = ? AND run = ? AND kind = ? AND round = ?"


class StreamReused(SottovoceError):
    """The stream was charged before; send what `Ledger.stored` returns, never a new encoding."""


class Overspent(SottovoceError):
    """The release would take its client beyond the budget; nothing was charged."""


class AlreadyDelivered(SottovoceError):
    """The release was charged, applied, and its message forgotten; it cannot be sent again."""


def client_scope(name: str) -> str:
    """The scope of the ledger that lies with a client: its name, whatever its records are by now."""
    return CLIENT + name


class Ledger:
    """An open ledger; several processes may have the same file open.

    >>> from tempfile import TemporaryDirectory
    >>> budget = Budget(epsilon=1.0, delta=1e-5, accounting="exact")
    >>> with TemporaryDirectory() as folder, Ledger.open(f"{folder}/ledger.sqlite", scope="demo") as ledger:
    ...     ledger.commit(Charge("run", 0, "context", 0, sensitivity=0.01, sigma=0.1), b"message", budget)
    ...     print(ledger.stored("run", 0, "context", 0), round(ledger.epsilon(0, 1e-5, "exact"), 3))
    b'message' 0.341
    """

    def __init__(self, file: LedgerFile, memory: Memory) -> None:
        self._file = file
        self.past = Past(file, memory)
        self.path = file.path
        self.name = file.name
        """The random word by which this ledger is told from every other."""
        self.scope = file.scope
        """Whose records it is about."""

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, scope: str | None) -> Self:
        """Opens the ledger at `path`, or creates it, readable by its owner only.

        `scope` says whose records it is about, and a ledger of another scope is refused: that of a client is
        `client_scope(name)`; in a simulation it is a fingerprint of how records are divided into clients,
        since budgets add up only where client i means the same records. None: of whichever records, and the
        ledger must be there.
        """
        path = Path(path)
        memory, known = Memory(path), Remembered.beside(path)
        if memory.lost:
            raise LedgerError(
                f"the ledger {path} and its witness are gone, and a lock file shows that they were there: "
                "restore both, because a new ledger would forget what was spent"
            )
        if not path.exists() and known is not None:
            if scope is not None and not same_scope(scope, known.scope):
                raise other_scope(path, known.scope, scope)
            scope = known.scope
        file = LedgerFile.open(path, scope, "" if known is None else known.ledger)
        ledger = cls(file, memory)
        try:
            with file.transaction():  # or a budget that is raised meanwhile would be taken back
                budget = ledger.past.compare()
                if budget is not None:
                    ledger._set(budget, raised=False)
        except BaseException:
            file.close()
            raise
        return ledger

    @classmethod
    def peek(cls, path: str | os.PathLike[str]) -> Self:
        """The ledger at `path` as it stands, for whoever only looks: no lock, no write, nothing compared.

        What its witness knows and it has lost is not counted, and whatever would change it is refused.
        """
        path = Path(path)
        return cls(LedgerFile.peek(path), Memory(path))

    def close(self) -> None:
        """Closes the file; charges and stored messages stay."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
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
        self.past.note_charges(charge for charge, _ in releases)

    def recover(self, charges: Sequence[Charge], run: str) -> None:
        """Charges releases of a run that left before the ledger was restored, whatever the budget is.

        What is known of them one by one is no longer charged as a part of the sum that was lost.
        """
        with self._file.transaction():
            for charge in charges:
                self._append(charge, b"", None)
                self.past.found(charge, run)
        self.past.note_charges(charges)

    def trust_copy(self) -> None:
        """Takes the files as they are for the true ones, by the word of their owner."""
        self.past.trust(self.budget)

    def count(self, client: Client, others: Mapping[Path, Client]) -> None:
        """Charges a client, as a sum, with what it has spent in other ledgers, as far as they are there.

        `others` says what the client is called in each; this ledger itself is passed over.
        """
        with ExitStack() as stack:
            books = dict[Past, Client]()
            for path, there in others.items():
                if path.resolve() != self.path.resolve() and Memory(path).begun:
                    known = Remembered.beside(path)
                    book = Ledger.open(path, scope=None if known is None else known.scope)
                    books[stack.enter_context(book).past] = there
            for past, there in books.items():
                self.past.count_in(past, client, there, besides=books.keys() - {past})

    @property
    def budget(self) -> Budget | None:
        """The budget that holds: the strictest since it was last raised; None if none was ever set."""
        budgets = (Budget(*row) for row in self._file.query(_HELD))
        return min(budgets, key=lambda budget: budget.mu_squared, default=None)

    @property
    def allowed(self) -> Budget:
        """The budget that holds, or ε = 8 at δ = 10⁻⁵ where none was ever set."""
        return self.budget or UNSAID

    def willing(self, epsilon: float | None = None, delta: float | None = None) -> Budget:
        """Sets what the owner is willing to spend, and returns what holds: the strictest ever set.

        What is not said is as it was set before, or ε = 8 at δ = 10⁻⁵.
        """
        return self._set(self._wanted(epsilon, delta), raised=False)

    def raise_budget(self, epsilon: float, delta: float | None = None) -> Budget:
        """Sets a budget in place of a stricter one, as only the ledger's owner may decide."""
        return self._set(self._wanted(epsilon, delta), raised=True)

    def budgets(self) -> list[tuple[Budget, bool, datetime]]:
        """Every budget that was set, whether it was a raise, and when."""
        rows = self._file.query("SELECT epsilon, delta, accounting, raised, time FROM budget ORDER BY id")
        return [(Budget(*row[:3]), bool(row[3]), datetime.fromisoformat(row[4])) for row in rows]

    def _wanted(self, epsilon: float | None, delta: float | None) -> Budget:
        held = self.allowed
        return Budget(
            held.epsilon if epsilon is None else float(epsilon),
            held.delta if delta is None else float(delta),
            held.accounting,
        )

    def _set(self, budget: Budget, *, raised: bool) -> Budget:
        if not budget.delta <= LARGEST_DELTA:
            raise SottovoceError(
                f"delta = {budget.delta:g} promises little: take one well below 1/records, like 1e-5"
            )
        allowed = budget.mu_squared  # refuses what is no budget
        with self._file.transaction():
            held = self.budget
            if held is not None and not raised and allowed >= held.mu_squared:
                return held
            self._file.query(
                "INSERT INTO budget (epsilon, delta, accounting, raised, time) VALUES (?, ?, ?, ?, ?)",
                *(budget.epsilon, budget.delta, budget.accounting, int(raised)),
                datetime.now(UTC).isoformat(),
            )
            self.past.note([], budget)
        return budget

    def _append(self, charge: Charge, message: bytes, budget: Budget | None) -> None:
        stream = (str(charge.client), charge.run, charge.kind, int(charge.round))
        if self._file.query(f"SELECT 1 FROM release WHERE {_STREAM}", *stream):
            raise StreamReused(f"the {charge} was charged before: send its stored message, or use a new run")
        if budget is not None:
            self._check(charge, budget)
        self._file.query(
            "INSERT INTO release (client, run, kind, round, sensitivity, sigma, place, honest, share,"
            " helpers, time) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(*stream, float(charge.sensitivity), float(charge.sigma), charge.place),
            *(charge.honest, float(charge.share), charge.helpers),
            datetime.now(UTC).isoformat(),
        )
        self._file.query("INSERT INTO message VALUES (last_insert_rowid(), ?)", message)

    def _check(self, charge: Charge, budget: Budget) -> None:
        before, held = self.spent(charge.client), self.budget
        after = before + charge.mu_squared
        for limit in (budget, *(() if held is None else (held,))):
            if not limit.covers(after):
                advice = "use fewer rounds, more noise or more epsilon"
                if limit == held:
                    advice = f"its owner can raise it with 'sottovoce ledger raise {self.path}'"
                raise Overspent(
                    f"the {charge} would take ε from {limit.price(before):.4f} to {limit.price(after):.4f}, "
                    f"beyond the budget of {limit.epsilon:g} at δ = {limit.delta:g}: {advice}"
                )

    def stored(self, run: str, client: Client, kind: str, round: int) -> bytes | None:
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
                " forgotten: continue with a later round"
            )
        return body

    def forget(self, run: str, *, before_round: int) -> None:
        """Removes the messages of rounds before `before_round`, contexts included; their charges stay.

        Only for messages that the receiver has durably applied. A message reveals more than the release it
        decodes to, so its bytes are overwritten in the file and cut from the write-ahead log. Where another
        process reads the ledger for seconds on end, the log is cut the next time, and a warning says so.
        """
        self._file.query(
            "DELETE FROM message WHERE"
            " (SELECT run = ? AND round < ? FROM release WHERE release.id = message.release)",
            *(run, int(before_round)),
        )
        self._file.checkpoint()

    def spent(self, client: Client) -> float:
        """Σ (Δ/σ)² over all releases of the client, in all runs of this ledger, for readers of models.

        For readers of releases it is the same unless some have their noise `at_server`.
        """
        return self._total("spent", client)

    def masked(self, client: Client) -> float:
        """Returns how much more `spent` is if all helpers of shared noise fail."""
        return self._total("masked", client)

    def at_server(self, client: Client) -> int:
        """Releases of the client whose noise is at the server: who reads them has no finite ε."""
        return int(self._total("server", client))

    def epsilon(self, client: Client, delta: float, accounting: str) -> float:
        """ε that the client's records have spent at `delta`."""
        return epsilon(self.spent(client), delta, accounting)

    def releases(self, client: Client, *, run: str | None = None) -> int:
        """Returns how many releases the client was ever charged for, in all runs, or one by one in one run.

        The number only grows: a receiver that remembers a larger one is facing a restored backup.
        """
        if run is None:
            return int(self._total("releases", client))
        query = "SELECT COUNT(*) FROM release WHERE client = ? AND run = ?"
        return int(self._file.query(query, str(client), run)[0][0])

    def _total(self, what: str, client: Client) -> float:
        query = f"SELECT TOTAL({what}) FROM spending WHERE client = ?"
        return float(self._file.query(query, str(client))[0][0])

    def by_kind(self, run: str) -> dict[tuple[str, str], tuple[int, float]]:
        """How many releases each client was charged for one by one in a run, and their Σ (Δ/σ)², by kind."""
        rows = self._file.query(
            "SELECT client, kind, COUNT(*), SUM((sensitivity / sigma) * (sensitivity / sigma)) FROM release"
            " WHERE run = ? GROUP BY client, kind",
            run,
        )
        return {(client, kind): (count, spent) for client, kind, count, spent in rows}

    def clients(self) -> list[str]:
        """The clients with at least one charge, sorted as text."""
        return [client for (client,) in self._file.query("SELECT DISTINCT client FROM spending ORDER BY 1")]

    def charges(self, client: Client | None = None) -> Iterator[Entry]:
        """The rows of the ledger (or of one client) in the order in which they were committed."""
        last = 0
        # Page by page: a ledger of many runs need not fit into memory.
        while page := self._file.query(
            "SELECT id, time, run, client, kind, round, sensitivity, sigma, place, honest, share, helpers"
            " FROM release WHERE id > ? AND client = coalesce(?, client) ORDER BY id LIMIT 1000",
            *(last, None if client is None else str(client)),
        ):
            for _, time, *charge in page:
                yield Entry(Charge(*charge), datetime.fromisoformat(time))
            last = page[-1][0]
