"""The client: holder of records, and the only place from which bytes derived from records leave.

It releases its context once (Eq. 2) and, when chosen, the clipped mean of its coefficient gradients (Eq. 5).
Each release goes through a channel, and its bytes are returned only after the ledger has durably recorded
charge and message together; a release asked for again is answered with the stored bytes. The same class
runs under every engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sottovoce.channel.wire import Stream
from sottovoce.data import ClientRecords, Records
from sottovoce.errors import SottovoceError
from sottovoce.machine.determinism import available, derived_seed, one_core, side_by_side
from sottovoce.models.metrics import Evaluation
from sottovoce.models.parameters import logits
from sottovoce.models.tasks import open_task
from sottovoce.plan.catalog import TASKS, Kind
from sottovoce.privacy.accounting import Budget, Charge
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.kind import Release, asked_for
from sottovoce.release.once.centre import told_apart

Seal = Callable[[bytes, Stream], bytes]
"""What is put on the message of a stream before it is stored."""


def unsealed(message: bytes, stream: Stream) -> bytes:
    """The message as it is."""
    return message


class Client:
    """One client of a run; `run` names the run in streams, `secret` is shared with the server.

    `records` may be a function that reads them when they are needed.
    `account` is the name under which the ledger charges it, by default its own. A ledger that is about one
    client's records only has one account, `OWN_RECORDS`, whatever the client is called in its runs.
    `budget` is what that account may have spent, by default what the plan allows; `entry` is the run's name
    in the ledger, by default its own. `seal` is put on every message before it is stored, so that the ledger
    holds nothing that this client could read again; `helpers` are the names of those whose masks are in it.
    `sealed_for` is the key of the request for whose holder that is, where there is one.
    """

    def __init__(
        self,
        name: str,
        records: ClientRecords | Callable[[], ClientRecords],
        blueprint: Blueprint,
        ledger: Ledger | None,
        *,
        run: str,
        secret: bytes,
        participant: int | None = None,
        account: str | None = None,
        budget: Budget | None = None,
        entry: str | None = None,
        seal: Seal = unsealed,
        sealed_for: bytes = b"",
        helpers: str = "",
    ) -> None:
        self.name = name
        self.participant = participant
        """Its number among the participants; None for a future client."""
        self._account = account or name
        self._given = records
        self._blueprint = blueprint
        self._releases = blueprint.releases_of(participant)
        self._ledger = ledger
        self._run = run
        self._secret = secret
        self._budget = budget or blueprint.budget
        self._entry = entry or run
        self._seal = seal
        self._sealed_for = sealed_for
        self._helpers = helpers
        self.signal: np.ndarray | None = None
        """The last statistic before its channel. It stays here; only a simulator looks at it."""
        self.faults: list[str] = []
        """What kept a statistic from being computed; for the owner of the records."""

    @cached_property
    def _records(self) -> ClientRecords:
        return self._given() if callable(self._given) else self._given

    def release_context(self, coefficients: Tensor | None = None) -> bytes:
        """The context as a channel message, charged once for ever."""
        return self.release_once("context", coefficients)

    def release_once(self, kind: Kind, coefficients: Tensor | None = None) -> bytes:
        """A release that is made once in a run, as a channel message."""
        return release_together([self.once(kind, coefficients)])[0]

    def release_gradient(self, round_number: int, coefficients: Tensor) -> bytes:
        """The clipped mean gradient as a channel message for this round."""
        return release_together([self.gradient(round_number, coefficients)])[0]

    def once(self, kind: Kind, coefficients: Tensor | None = None) -> Asked:
        """A release that is made once: a context of the m_c records for it, others of m_g training records.

        `coefficients` (k,) of the model behind a statistic that uses one, None for other statistics.
        """
        return Asked(self, kind, 0, coefficients)

    def gradient(self, round_number: int, coefficients: Tensor, clipped: Tensor | None = None) -> Asked:
        """The release of the clipped mean gradient at coefficients (k,).

        `clipped` is that mean where an engine has computed it for many clients at once.
        """
        return Asked(self, "gradient", round_number, coefficients, clipped)

    def training_records(self, round_number: int) -> Records:
        """The m_g training records of a round, or of a confusion (0), drawn without looking at them."""
        sizes = self._blueprint.sizes
        wanted = max(sizes) if self.participant is None else sizes[self.participant]
        records = self._records.train
        if wanted == records.units:
            return records
        seed = derived_seed(self._blueprint.plan.seed, f"subset:{self.name}:{round_number}")
        return records.of_units(records.order(seed)[:wanted])

    def evaluate(self, coefficients: Tensor) -> Evaluation:
        """The personal model on the held-out records, at coefficients as a server sends them.

        Not a release: it is neither noised nor charged, and leaves the client only in a simulation.
        """
        held_out, facts = self._records.held_out, self._blueprint.facts
        held_out = held_out[held_out.usable]
        coefficients, seen = told_apart(
            coefficients, self._blueprint.coefficients, held_out, self._blueprint.recipe.longest
        )
        with torch.no_grad():
            theta = self._blueprint.theta(coefficients)
            output = logits(self._blueprint.module, theta, seen.x.to(theta.device)).cpu()
        owned = None
        if TASKS[facts.task].class_shares:
            owned = torch.zeros(facts.classes, dtype=torch.bool)
            for records in (self._records.train, self._records.context, held_out):
                owned[records.y[records.usable].cpu()] = True
        told = self._records.train if len(self._records.train) else self._records.context
        return Evaluation(open_task(facts), output, held_out.y.cpu(), owned, told.y[told.usable].cpu())

    def statistic(self, asked: Asked) -> Tensor:
        """Returns what a release is about, before its noise: float64 (size,). It stays here.

        Zero if it cannot be computed: that may depend on records, so a release happens all the same, is
        charged, and looks like any other. Why is for the owner alone (`faults`).
        """
        release, u = self._release(asked), asked.given
        try:
            if u is None:
                context = asked.kind == "context"
                records = self._records.context if context else self.training_records(asked.round)
                sent = asked.coefficients
                u = release.statistic(records, None if sent is None else self._blueprint.cut(sent))
            if u.shape == (release.size,) and bool(u.isfinite().all()):
                return u.double().cpu()
            fault = "its statistic is not finite"
        except Exception as error:  # whatever records, files and a stranger's model raise
            fault = str(error) or type(error).__name__
        self.faults.append(f"the {asked.kind} of round {asked.round} counts as zero: {fault}")
        logging.getLogger("sottovoce.client").error("%s: %s", self.name, self.faults[-1])
        return torch.zeros(release.size, dtype=torch.float64)

    def _stored(self, asked: Asked) -> bytes | None:
        """The message of a release that was charged before; None if it is to be made."""
        self.signal = None
        if self._ledger is None:
            if self._release(asked).place != "nowhere":
                raise SottovoceError(
                    "nothing is released without a ledger, except in the ablation epsilon=inf"
                )
            return None
        return self._ledger.stored(self._entry, self._account, asked.kind, asked.round)

    def _draft(self, asked: Asked) -> bytes:
        """The message of a release that is not charged yet."""
        release, plan = self._release(asked), self._blueprint.plan
        self.signal = self.statistic(asked).numpy()
        stream = release.stream(self._run, self.name, asked.round)
        seed, request = plan.seed if plan.seeded else None, asked.request
        message = release.encode(self.signal, secret=self._secret, stream=stream, request=request, seed=seed)
        return self._seal(message, stream)

    def _charge(self, asked: Asked) -> Charge:
        return self._release(asked).charge(self._entry, self._account, asked.round, self._helpers)

    def _release(self, asked: Asked) -> Release:
        return self._releases[asked.kind]


@dataclass(frozen=True, eq=False)
class Asked:
    """A release that a client is asked for, and that has not left: only `release_together` makes a message of
    it."""

    client: Client
    kind: Kind
    round: int
    coefficients: Tensor | None
    given: Tensor | None = None
    """The statistic, where it is known already."""

    @property
    def request(self) -> bytes:
        """The digest that its message is bound to."""
        return asked_for(self.coefficients, self.client._sealed_for)


@one_core()
def release_together(asked: Sequence[Asked]) -> list[bytes]:
    """The one way out, for one client or many of one ledger: the messages, in order.

    What was charged before is sent as stored. All else is made, clients side by side where they are enough
    to keep all cores busy; then it is charged, in one transaction; and then it is returned.
    """
    messages = [one.client._stored(one) for one in asked]
    fresh = [i for i, message in enumerate(messages) if message is None]

    def draft(i: int) -> bytes:
        return asked[i].client._draft(asked[i])

    made = side_by_side(draft, fresh) if len(fresh) >= available() else [draft(i) for i in fresh]
    charged: dict[tuple[Ledger, Budget], list[tuple[Charge, bytes]]] = {}
    for i, message in zip(fresh, made, strict=True):
        client, messages[i] = asked[i].client, message
        if client._ledger is not None:
            account = charged.setdefault((client._ledger, client._budget), [])
            account.append((client._charge(asked[i]), message))
    for (ledger, budget), releases in charged.items():
        ledger.commit_many(releases, budget)
    return [message for message in messages if message is not None]
