"""A future client's way in: one context from its own records, one model back, no fine-tuning (Alg. 1).

There are two ways to reach a server, a finished run in this process (`personalize`) and a service over the
network (`onboard`), and one client: its records are charged for the context alone, in a ledger that lies
beside them, under a lock, with noise from the operating system even where the run was a seeded simulation.
A ledger that was restored from a backup is charged for the lost context first. Asking again resends the
stored context and costs nothing new.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from sottovoce import data
from sottovoce.blueprint import Blueprint
from sottovoce.catalog import CONTEXTS
from sottovoce.client import OWN_RECORDS, Client
from sottovoce.data import ClientRecords
from sottovoce.features.kept import described_client
from sottovoce.federation.keys import agreed_secret, new_key
from sottovoce.files import locked, write_atomically
from sottovoce.modelfile import personal_model
from sottovoce.onboarding.keys import Keys
from sottovoce.onboarding.server import FinishedRun
from sottovoce.onboarding.specification import NAME
from sottovoce.privacy.ledger import Budget, Ledger


class Reached(Protocol):
    """A server that a future client has reached and may trust."""

    @property
    def run(self) -> str: ...
    @property
    def blueprint(self) -> Blueprint: ...
    @property
    def key(self) -> bytes:
        """Its X25519 public key."""

    def context_model(self) -> Tensor | None:
        """The shared coefficients behind contexts that use a model, None for other statistics."""

    def coefficients(self, private: bytes, message: bytes) -> Tensor:
        """Coefficients (k,) for the context in a message."""


def personalize(
    run: str | Path,
    records_file: str | Path,
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    budget: float | None = None,
    module: nn.Module | None = None,
) -> dict[str, Any]:
    """Writes a future client's model of a run in this machine's folder; see `obtain_model`.

    `module` is the run's own, if it was trained with one from Python.
    """
    return obtain_model(FinishedRun.load(run, module), records_file, out, ledger=ledger, budget=budget)


def obtain_model(
    server: Reached,
    records_file: str | Path,
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    budget: float | None = None,
) -> dict[str, Any]:
    """Writes a future client's model to `out`, a safetensors state dict, and returns what it cost.

    The context is made of the first m_c records of the file; where there are more and they have labels, the
    model's accuracy on the others is returned too. It stays with the client. `budget` is the ε that the
    client's ledger may reach, by default the run's own.
    """
    source, blueprint, plan = Path(records_file), server.blueprint, server.blueprint.plan
    uses_labels = CONTEXTS[plan.future_context].uses_labels
    model = server.context_model()
    records = described_client(source, plan, blueprint.facts, needed=plan.context_records, labels=uses_labels)
    split = ClientRecords(records[:0], records[plan.context_records :], records[: plan.context_records])
    ledger_file = Path(ledger) if ledger is not None else source.with_suffix(".ledger.sqlite")
    allowed = Budget(budget or plan.epsilon, plan.delta, plan.accounting)
    keys, lock = Keys(ledger_file, server.run, server.key), ledger_file.with_name(f"{ledger_file.name}.lock")
    with Ledger.open(ledger_file, scope=data.fingerprint(source)) as book, locked(lock):
        private = new_key()
        if plan.releases_context:
            if book.stored(server.run, OWN_RECORDS, "context", 0) is None:
                keys.renew(book, blueprint.releases["context"], allowed)
            private = keys.private()
        client = Client(
            NAME,
            split,
            blueprint,
            book,
            run=server.run,
            secret=agreed_secret(private, server.key, run=server.run, name=NAME),
            account=OWN_RECORDS,
            budget=allowed,
        )
        message = client.release_context(model) if plan.releases_context else b""
        keys.keep()
        total = book.epsilon(OWN_RECORDS, plan.delta, plan.accounting)
    coefficients = server.coefficients(private, message)
    write_atomically(Path(out), personal_model(blueprint, coefficients))
    labelled = _labelled(source) and bool(split.held_out)
    return {
        "model": str(out),
        "ledger": str(ledger_file),
        "epsilon": blueprint.epsilon(blueprint.future_counts),
        "epsilon_total": total,
        "delta": plan.delta,
        "accounting": plan.accounting,
        "context": plan.context,
        "context_bytes": len(message),
        "uses_labels": uses_labels,
        "accuracy": client.evaluate(coefficients).accuracy if labelled else None,
    }


def _labelled(path: Path) -> bool:
    """Whether an .npz says what class its records are of."""
    with np.load(path, allow_pickle=False) as file:
        return "y" in file
