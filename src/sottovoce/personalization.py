"""A future client's way in: one context from its own records, one model back, no fine-tuning (Alg. 1).

Its records are charged for the context alone, in a ledger that lies beside them, with noise from the
operating system even where the run was a seeded simulation. Asking again resends the same context and
costs nothing new.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import Tensor

from sottovoce import data
from sottovoce.blueprint import Blueprint, draw
from sottovoce.client import OWN_RECORDS, Client, release_stream
from sottovoce.data import ClientRecords, Records
from sottovoce.errors import SottovoceError
from sottovoce.models import state_dict_at
from sottovoce.plan import Plan
from sottovoce.privacy.ledger import Ledger
from sottovoce.run import RunDirectory, load_tensors, write_atomically
from sottovoce.server import Server


@dataclass(frozen=True)
class Personalizer:
    """A finished run, ready to turn decoded contexts into coefficients."""

    blueprint: Blueprint
    server: Server
    run: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def load(cls, run: str | Path) -> Personalizer:
        """From the run directory of a finished run."""
        state, metadata = load_tensors(RunDirectory(run).model_file)
        try:
            plan = Plan.load(overrides=json.loads(metadata["plan"])).replace(seeded=False)
            shape = tuple(json.loads(metadata["shape"]))
            classes = int(metadata["classes"])
            mean, std = tuple(json.loads(metadata["mean"])), tuple(json.loads(metadata["std"]))
        except (KeyError, ValueError) as error:
            raise SottovoceError(f"{run} holds an incomplete model: {error}") from None
        blueprint = draw(plan, shape, classes)
        server = Server(blueprint)
        server.load_state(state)
        return cls(blueprint, server, metadata["run"], mean, std)

    def context_model(self) -> Tensor | None:
        """The shared coefficients behind `context=predictions`, None for other statistics."""
        return self.server.open_contexts()

    def records(self, path: Path) -> Records:
        """The client's records from an .npz, normalized with the run's public constants."""
        blueprint = self.blueprint
        return data.read_client(
            path,
            shape=blueprint.shape,
            classes=blueprint.classes,
            mean=self.mean,
            std=self.std,
            needed=blueprint.plan.context_records,
            labels=blueprint.statistic.uses_labels,
        )

    @staticmethod
    def labelled(path: Path) -> bool:
        """Whether the file says what class its records are of."""
        with np.load(path, allow_pickle=False) as file:
            return "y" in file


def personalize(
    run: str | Path, records_file: str | Path, out: str | Path, *, ledger: str | Path | None = None
) -> dict[str, Any]:
    """Writes a future client's model to `out`, a safetensors state dict, and returns what it cost.

    The context is made of the first m_c records of the file; where there are more and they have labels, the
    model's accuracy on the others is returned too. It stays with the client.
    """
    source = Path(records_file)
    personalizer = Personalizer.load(run)
    blueprint, plan = personalizer.blueprint, personalizer.blueprint.plan
    records = personalizer.records(source)
    split = ClientRecords(records[:0], records[plan.context_records :], records[: plan.context_records])
    ledger_file = Path(ledger) if ledger is not None else source.with_suffix(".ledger.sqlite")
    name, context, size = "future client", None, 0
    with Ledger.open(ledger_file, scope=data.fingerprint(source)) as book:
        client = Client(
            name,
            split,
            blueprint,
            book,
            run=personalizer.run,
            secret=_kept_secret(ledger_file),
            account=OWN_RECORDS,
        )
        if plan.releases_context:
            message = client.release_context(personalizer.context_model())
            stream = release_stream(personalizer.run, name, "context", 0)
            context = blueprint.context_channel.decode(
                message, secret=_kept_secret(ledger_file), stream=stream
            )
            size = len(message)
        epsilon = book.epsilon(OWN_RECORDS, plan.delta, plan.accounting)
    coefficients = personalizer.server.personalize(context)
    state = state_dict_at(blueprint.module, blueprint.theta(coefficients))
    write_atomically(Path(out), save({key: value.contiguous() for key, value in state.items()}))
    evaluated = len(split.held_out) > 0 and personalizer.labelled(source)
    return {
        "model": str(out),
        "ledger": str(ledger_file),
        "epsilon": epsilon,
        "delta": plan.delta,
        "accounting": plan.accounting,
        "context": plan.context,
        "context_bytes": size,
        "uses_labels": plan.releases_context and blueprint.statistic.uses_labels,
        "accuracy": client.evaluate(coefficients).accuracy if evaluated else None,
    }


def _kept_secret(ledger_file: Path) -> bytes:
    """The client's channel secret, kept beside its ledger so that a stored message can be decoded again."""
    path = ledger_file.with_name(ledger_file.name + ".secret")
    if not path.exists():
        write_atomically(path, secrets.token_bytes(32), mode=0o600)
    return path.read_bytes()
