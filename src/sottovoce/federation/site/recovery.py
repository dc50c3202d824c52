"""What a client remembers of a run beside its ledger, so that it leaves the run when it was put back.

A directory or ledger that was restored from a backup, or copied, does not know what has left since, and
nobody else can be asked: the server may lie. So before a release leaves, the directory notes how many the
ledger holds of that run and what they cost together, and so does a witness outside of the machine if there
is one (`witness`). Where the note is a copy or gone, or the ledger holds less, the client has left the run
for as long as that is so: it answers nothing. A machine put back as a whole shows at a witness alone.

Its owner alone can end that, by `rejoin`. What may have left is then charged: all that the run was ever to
cost, of which the ledger charges what it does not know yet as a sum. Whatever this client releases from then
on has noise of its own and costs its own, so the releases that the ledger does not hold are to be paid for
once more, and a budget that does not cover both is a refusal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.federation.site.directory import Enrolment
from sottovoce.federation.site.witness import Witness
from sottovoce.machine.rollback import Memory
from sottovoce.plan.catalog import Kind
from sottovoce.privacy.accounting import SLACK, Budget, Charge, Total
from sottovoce.privacy.ledger import OWN_RECORDS, Ledger, Overspent
from sottovoce.privacy.terms import Price
from sottovoce.release.blueprint import Blueprint
from sottovoce.training.accounts import Account

LEFT = "this client was put back, from a backup or a copy, and has left this run until its owner rejoins it"
"""What the server is told."""


class LedgerBehind(SottovoceError):
    """The ledger was restored, and the release may have left before."""


class Left(SottovoceError):
    """This client was put back and has left its run; says to its owner what to rejoin costs."""


@contextmanager
def opened(account: Account, directory: Path, witness: Path | None = None) -> Iterator[Ledger]:
    """The client's ledger, locked, and charged for what any run of the directory, or its witness, knows and
    it does not."""
    outside = [] if witness is None else Witness(witness, account.client).totals()
    with account.open() as ledger:
        for total in outside:
            ledger.past.expect(total)
        for path in sorted(directory.glob("trace-*")):
            run, noted = path.stem.removeprefix("trace-"), _noted(path)
            if noted.get("spent") is not None:
                ledger.past.expect(Total.of({**noted, "client": OWN_RECORDS, "run": run}))
            elif noted.get("releases", 0) > ledger.past.total_in(run).releases:  # version 0.1 noted no price
                raise LedgerBehind(f"{account.path} lacks releases of run {run}: restore its newest backup")
        yield ledger


def _noted(path: Path) -> dict[str, Any]:
    """Returns what a client remembers of a run, wherever the file is from; nothing if it is unreadable."""
    if path.suffix == ".witness":
        return (Memory(path.with_suffix("")).recall() or [{}])[-1]
    try:
        noted = json.loads(path.read_text())  # as version 0.1 kept it
    except ValueError:
        return {}
    return noted if isinstance(noted, dict) else {}


def told_cost(directory: Path, enrolment: Enrolment) -> float:
    """Σ (Δ/σ)² that a run may come to by its end, as its owner was told at enrolment or when it rejoined."""
    noted = _noted(directory / f"trace-{enrolment.run}.witness")
    return max(float(noted.get("cost", 0.0)), enrolment.cost)


class Recovery:
    """One client's part in one run, as its ledger and its memory know it."""

    def __init__(
        self, directory: Path, ledger: Ledger, enrolment: Enrolment, witness: Witness | None = None
    ) -> None:
        self._ledger = ledger
        self._enrolment = enrolment
        self._run = enrolment.run
        self._memory = Memory(directory / f"trace-{self._run}", directory / "lock")
        self._noted: dict[str, Any] = (self._memory.recall() or [{}])[-1]
        self._witness = witness
        self._witnessed = {} if witness is None else witness.runs().get(self._run, {})

    @property
    def put_back(self) -> bool:
        """Returns whether the ledger, or the memory of the run, was put back since its last release."""
        now, noted = self._now(), self._noted
        if not noted or self._memory.copied or noted["releases"] > now["releases"]:
            return True
        if now["copy"] not in (0, noted["copy"]):  # a ledger that stays a copy becomes one once
            return True
        return self.outrun or bool(noted.get("witnessed") and self._witness and not self._witnessed)

    @property
    def outrun(self) -> bool:
        """Returns whether the witness has seen more leave than this machine knows of, or be rejoined."""
        seen, rejoined = self._witnessed.get("releases", 0), float(self._witnessed.get("cost", 0.0))
        return seen > self._ledger.releases(OWN_RECORDS, run=self._run) or rejoined > self._told * (1 + SLACK)

    @property
    def cost(self) -> float:
        """Σ (Δ/σ)² that the run may come to by its end, as this client's owner was told last."""
        return max(self._told, float(self._witnessed.get("cost", 0.0)))

    @property
    def _told(self) -> float:
        return max(float(self._noted.get("cost", 0.0)), self._enrolment.cost)

    def check(self, blueprint: Blueprint, budget: Budget) -> None:
        """Refuses every answer of a client that was put back."""
        if self.put_back:
            price = self._price(self._unmade(blueprint), budget)
            raise Left(
                f"this directory or its ledger was put back, from a backup or a copy: what has left since is "
                f"not known, and this client has left run {self._run}; to take part again start it once with "
                f"the option rejoin ({price})",
                "rejoin",
            )

    def note(self) -> None:
        """Makes the run's memory true, before anything leaves; also where a killed process could not."""
        self._remember(self.cost)

    def rejoin(self, blueprint: Blueprint, budget: Budget) -> str:
        """Charges all that may have left, up to the end of the run, and takes part again; what it comes to,
        in a line.

        Refused, with nothing charged, where the budget does not cover that and what is still to be released.
        """
        unmade, past = self._unmade(blueprint), self._ledger.past
        price = self._price(unmade, budget)
        if not price.affordable:
            raise Overspent(price.refusal(self._ledger.path))
        before, again = past.total_in(self._run), _spent(unmade)
        lost = price.cost - again
        times = lost / again if again else 0.0  # of whatever may have left, where it was more than once
        counts = before.releases + round(times * len(unmade)), before.spent + lost
        at_server = before.server + round(times * sum(charge.place == "server" for charge in unmade))
        masked = before.masked + times * math.fsum(charge.masked for charge in unmade)
        past.expect(Total(OWN_RECORDS, self._run, *counts, at_server, masked))
        past.note([past.total_in(self._run)])
        self._remember(before.spent + price.cost)
        said = f"rejoins run {self._run}; {price}"
        if past.copied:
            said += (
                "; what its records have released elsewhere since is not known: nothing else goes on "
                f"before its owner says 'sottovoce ledger vouch {self._ledger.path}'"
            )
        return said

    def _remember(self, cost: float) -> None:
        now = {**self._now(), "cost": cost, "witnessed": bool(self._witnessed)}
        if self._memory.copied or any(self._noted.get(name) != value for name, value in now.items()):
            self._memory.trust([now])
            self._noted = now
        fact = {name: value for name, value in now.items() if name not in ("copy", "witnessed")}
        if self._witness is not None and fact != self._witnessed:
            self._witness.note(self._run, fact)
            self._witnessed = fact

    def _now(self) -> dict[str, Any]:
        """Returns how much of the run the ledger holds, one by one and in all, and as which copy."""
        past, run = self._ledger.past, self._run
        released, total = self._ledger.releases(OWN_RECORDS, run=run), past.total_in(run)
        spent = {"spent": total.spent, "server": total.server, "masked": total.masked}
        return {"releases": released, **spent, "copy": past.copy}

    def _price(self, unmade: list[Charge], budget: Budget) -> Price:
        """What may have left and is not charged, and what this client is still to release."""
        lost = max(self.cost - self._ledger.past.total_in(self._run).spent, 0.0)
        return Price("to rejoin", lost + _spent(unmade), self._ledger.spent(OWN_RECORDS), budget)

    def _unmade(self, blueprint: Blueprint) -> list[Charge]:
        """Every release that the run holds for this client and that its ledger does not, one by one."""
        participant = self._enrolment.participant
        releases = blueprint.releases_of(participant)
        charges = (entry.charge for entry in self._ledger.charges(OWN_RECORDS))
        made = {(charge.kind, charge.round) for charge in charges if charge.run == self._run}
        due: list[tuple[Kind, int]] = [(phase.kind, 0) for phase in blueprint.once]
        called = enumerate(blueprint.schedule, start=1)
        due += [("gradient", number) for number, clients in called if participant in clients]
        return [
            releases[kind].charge(self._run, OWN_RECORDS, number)
            for kind, number in due
            if (kind, number) not in made
        ]


def _spent(charges: Iterable[Charge]) -> float:
    return math.fsum(charge.mu_squared for charge in charges)
