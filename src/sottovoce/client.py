"""The client: holder of records, and the only place from which bytes derived from records leave.

It releases its context once (Eq. 2) and, when chosen, the clipped mean of its coefficient gradients (Eq. 5).
Each release goes through a channel, and its bytes are returned only after the ledger has durably recorded
charge and message together; a release asked for again is answered with the stored bytes. The same class
runs under every engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sottovoce.blueprint import Blueprint, derived_seed
from sottovoce.channel import Channel
from sottovoce.channel.noiseless import Noiseless
from sottovoce.channel.randomness import SeededRandomness
from sottovoce.data import ClientRecords, Records
from sottovoce.errors import SottovoceError
from sottovoce.evaluation import Evaluation
from sottovoce.gradients import clipped_mean
from sottovoce.models import logits
from sottovoce.privacy.ledger import Budget, Charge, Kind, Ledger

Stream = tuple[str | int, ...]

OWN_RECORDS = "own records"
"""The one account of a ledger that lies with a client."""


class Client:
    """One client of a run; `run` names the run in streams, `secret` is shared with the server.

    `account` is the name under which the ledger charges it, by default its own. A ledger that is about one
    client's records only has one account, `OWN_RECORDS`, whatever the client is called in its runs.
    `budget` is what that account may have spent, by default what the plan allows.
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
        account: str | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.name = name
        self._account = account or name
        self._records = records
        self._blueprint = blueprint
        self._ledger = ledger
        self._run = run
        self._secret = secret
        self._budget = budget or blueprint.budget
        self.signal: np.ndarray | None = None
        """The last statistic before its channel. It stays here; only a simulator looks at it."""

    def release_context(self, coefficients: Tensor | None = None) -> bytes:
        """The context as a channel message, charged once for ever.

        `coefficients` (k,) of the model behind `context=predictions`, None for other statistics.
        """
        blueprint = self._blueprint

        def statistic() -> Tensor:
            x, y = self._records.context.x, self._records.context.y
            output = None
            if coefficients is not None:
                with torch.no_grad():
                    theta = blueprint.theta(coefficients)
                    output = logits(blueprint.module, theta, x.to(theta.device)).to(x.device)
            return blueprint.statistic.mean(x, y, blueprint.plan.context_records, output)

        return self._release(
            "context", 0, statistic, blueprint.context_channel, blueprint.context_sensitivity
        )

    def training_records(self, round_number: int) -> Records:
        """The m_g training records of a round, drawn without looking at them."""
        records, wanted = self._records.train, self._blueprint.plan.gradient_records
        if wanted == len(records):
            return records
        seed = derived_seed(self._blueprint.plan.seed, f"subset:{self.name}:{round_number}")
        return records[torch.from_numpy(np.random.default_rng(seed).permutation(len(records))[:wanted])]

    def release_gradient(
        self, round_number: int, coefficients: Tensor, clipped: Tensor | None = None
    ) -> bytes:
        """The clipped mean gradient at coefficients (k,), as a channel message for this round.

        `clipped` is that mean where an engine has computed it for many clients at once.
        """
        blueprint, plan = self._blueprint, self._blueprint.plan

        def statistic() -> Tensor:
            if clipped is not None:
                return clipped
            theta = blueprint.theta(coefficients)
            records = self.training_records(round_number)
            return clipped_mean(
                blueprint.module,
                theta,
                blueprint.basis,
                records.x.to(theta.device),
                records.y.to(theta.device),
                clip=plan.clip,
                denominator=plan.gradient_records,
            )

        return self._release(
            "gradient", round_number, statistic, blueprint.gradient_channel, blueprint.gradient_sensitivity
        )

    def evaluate(self, coefficients: Tensor) -> Evaluation:
        """The personal model on the held-out records.

        Not a release: it is neither noised nor charged, and leaves the client only in a simulation.
        """
        held_out, classes = self._records.held_out, self._blueprint.classes
        with torch.no_grad():
            theta = self._blueprint.theta(coefficients)
            output = logits(self._blueprint.module, theta, held_out.x.to(theta.device))
        y = held_out.y.to(theta.device)
        owned = torch.zeros(classes, dtype=torch.bool, device=theta.device)
        for records in (self._records.train, self._records.context, held_out):
            owned[records.y.to(theta.device)] = True
        return Evaluation.of(output, y, owned)

    def _release(
        self,
        kind: Kind,
        round_number: int,
        statistic: Callable[[], Tensor],
        channel: Channel | Noiseless,
        sensitivity: float,
    ) -> bytes:
        self.signal = None
        if self._ledger is None and self._blueprint.plan.private:
            raise SottovoceError("nothing is released without a ledger, except in the ablation epsilon=inf")
        if self._ledger is not None:
            stored = self._ledger.stored(self._run, self._account, kind, round_number)
            if stored is not None:
                return stored
        blueprint = self._blueprint
        stream = release_stream(self._run, self.name, kind, round_number)
        self.signal = statistic().double().cpu().numpy()
        message = channel.encode(
            self.signal, secret=self._secret, stream=stream, private=_private_draws(blueprint, stream)
        )
        if self._ledger is not None:
            charge = Charge(
                run=self._run,
                client=self._account,
                kind=kind,
                round=round_number,
                sensitivity=sensitivity,
                sigma=channel.sigma,
            )
            self._ledger.commit(charge, message, self._budget)
        return message


def release_stream(run: str, client: str, kind: str, round_number: int) -> Stream:
    """The name of one release's randomness, used once for ever."""
    return (run, client, kind, round_number)


def _private_draws(blueprint: Blueprint, stream: Stream) -> SeededRandomness | None:
    """The seeded draws of a simulation; None lets the channel ask the operating system."""
    if not blueprint.plan.seeded:
        return None
    return SeededRandomness(hashlib.sha256(f"{blueprint.plan.seed}:{stream!r}".encode()).digest())
