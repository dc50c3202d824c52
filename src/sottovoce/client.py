"""The client: holder of records, and the only place from which bytes derived from records leave.

It releases its context once (Eq. 2) and, when chosen, the clipped mean of its coefficient gradients (Eq. 5).
Each release goes through a channel, and its bytes are returned only after the ledger has durably recorded
charge and message together; a release asked for again is answered with the stored bytes. The same class
runs under every engine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sottovoce.blueprint import Blueprint
from sottovoce.catalog import TASKS
from sottovoce.channel.wire import Stream
from sottovoce.data import ClientRecords, Records
from sottovoce.errors import SottovoceError
from sottovoce.evaluation import Evaluation
from sottovoce.models import logits
from sottovoce.privacy.ledger import Budget, Kind, Ledger
from sottovoce.seeding import derived_seed
from sottovoce.tasks import open_task


class Client:
    """One client of a run; `run` names the run in streams, `secret` is shared with the server.

    `account` is the name under which the ledger charges it, by default its own. A ledger that is about one
    client's records only has one account, `OWN_RECORDS`, whatever the client is called in its runs.
    `budget` is what that account may have spent, by default what the plan allows; `entry` is the run's name
    in the ledger, by default its own. `seal` is put on every message before it is stored, so that the ledger
    holds nothing that this client could read again.
    """

    def __init__(
        self,
        name: str,
        records: ClientRecords,
        blueprint: Blueprint,
        ledger: Ledger | None,
        *,
        run: str,
        secret: bytes,
        participant: int | None = None,
        account: str | None = None,
        budget: Budget | None = None,
        entry: str | None = None,
        seal: Callable[[bytes, Stream], bytes] = lambda message, stream: message,
    ) -> None:
        self.name = name
        self.participant = participant
        """Its number among the participants; None for a future client."""
        self._account = account or name
        self._records = records
        self._blueprint = blueprint
        self._ledger = ledger
        self._run = run
        self._secret = secret
        self._budget = budget or blueprint.budget
        self._entry = entry or run
        self._seal = seal
        self.signal: np.ndarray | None = None
        """The last statistic before its channel. It stays here; only a simulator looks at it."""

    def release_context(self, coefficients: Tensor | None = None) -> bytes:
        """The context as a channel message, charged once for ever.

        `coefficients` (k,) of the model behind a statistic that uses one, None for other statistics.
        """
        return self._release("context", 0, lambda: self._records.context, coefficients)

    def release_confusion(self, coefficients: Tensor) -> bytes:
        """How the shared model confuses the classes of m_g training records, charged once, at the end."""
        return self._release("confusion", 0, lambda: self.training_records(0), coefficients)

    def training_records(self, round_number: int) -> Records:
        """The m_g training records of a round, or of a confusion (0), drawn without looking at them."""
        sizes = self._blueprint.sizes
        wanted = max(sizes) if self.participant is None else sizes[self.participant]
        records = self._records.train
        if wanted == records.units:
            return records
        seed = derived_seed(self._blueprint.plan.seed, f"subset:{self.name}:{round_number}")
        order = np.random.default_rng(seed).permutation(records.units)
        return records.of_units(torch.from_numpy(order[:wanted]))

    def release_gradient(
        self, round_number: int, coefficients: Tensor, clipped: Tensor | None = None
    ) -> bytes:
        """The clipped mean gradient at coefficients (k,), as a channel message for this round.

        `clipped` is that mean where an engine has computed it for many clients at once.
        """
        return self._release(
            "gradient", round_number, lambda: self.training_records(round_number), coefficients, clipped
        )

    def evaluate(self, coefficients: Tensor) -> Evaluation:
        """The personal model on the held-out records.

        Not a release: it is neither noised nor charged, and leaves the client only in a simulation.
        """
        held_out, facts = self._records.held_out, self._blueprint.facts
        held_out = held_out[held_out.usable]
        with torch.no_grad():
            theta = self._blueprint.theta(coefficients)
            output = logits(self._blueprint.module, theta, held_out.x.to(theta.device))
        owned = None
        if TASKS[facts.task].class_shares:
            owned = torch.zeros(facts.classes, dtype=torch.bool, device=held_out.y.device)
            for records in (self._records.train, self._records.context, held_out):
                owned[records.y[records.usable]] = True
        return Evaluation.of(open_task(facts), output, held_out.y, owned)

    def _release(
        self,
        kind: Kind,
        round_number: int,
        records: Callable[[], Records],
        coefficients: Tensor | None,
        given: Tensor | None = None,
    ) -> bytes:
        """The one way out: what was charged before is sent as stored, all else is charged first."""
        self.signal = None
        release, plan = self._blueprint.releases_of(self.participant)[kind], self._blueprint.plan
        if self._ledger is None and release.place != "nowhere":
            raise SottovoceError("nothing is released without a ledger, except in the ablation epsilon=inf")
        if self._ledger is not None:
            stored = self._ledger.stored(self._entry, self._account, kind, round_number)
            if stored is not None:
                return stored
        u = release.statistic(records(), coefficients) if given is None else given
        self.signal = u.double().cpu().numpy()
        stream = release.stream(self._run, self.name, round_number)
        seed = plan.seed if plan.seeded else None
        message = self._seal(
            release.encode(self.signal, secret=self._secret, stream=stream, seed=seed), stream
        )
        if self._ledger is not None:
            charge = release.charge(self._entry, self._account, round_number)
            self._ledger.commit(charge, message, self._budget)
        return message
