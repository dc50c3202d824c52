"""A future client's way in: one context from its own records, one model back, no fine-tuning (Alg. 1).

Its records are charged for the context alone, in a ledger that lies beside them, with noise from the
operating system even where the run was a seeded simulation. Asking again resends the same context and
costs nothing new.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import Tensor, nn

from sottovoce import data
from sottovoce.blueprint import Blueprint, draw
from sottovoce.client import OWN_RECORDS, Client, release_stream
from sottovoce.data import ClientRecords, Records
from sottovoce.errors import SottovoceError
from sottovoce.files import kept_secret, write_atomically
from sottovoce.models import state_dict_at
from sottovoce.plan import Plan
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.server import Server
from sottovoce.simulation.directory import RunDirectory, load_tensors


@dataclass(frozen=True)
class Personalizer:
    """A finished run, ready to turn decoded contexts into coefficients."""

    blueprint: Blueprint
    server: Server
    run: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def load(cls, run: str | Path, module: nn.Module | None = None) -> Personalizer:
        """From the run directory of a finished run; `module` if it was trained with one of the user's own."""
        state, metadata = load_tensors(RunDirectory(run).model_file)
        try:
            plan = Plan.load(overrides=json.loads(metadata["plan"]))
            shape = tuple(json.loads(metadata["shape"]))
            classes = int(metadata["classes"])
            mean, std = tuple(json.loads(metadata["mean"])), tuple(json.loads(metadata["std"]))
        except (KeyError, ValueError) as error:
            raise SottovoceError(f"{run} holds an incomplete model: {error}") from None
        if not plan.private or plan.method == "replay":
            raise SottovoceError(f"{run} is an ablation without privacy of its own: it personalizes nobody")
        # A future client's records are real even where the run was a simulation: its noise is never seeded.
        blueprint = draw(plan.replace(seeded=False), shape, classes, module)
        if metadata.get("reference") != blueprint.reference_digest:
            raise SottovoceError(
                f"{run} was trained with another model than model={plan.model} gives: pass its own module"
            )
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


def personalize(
    run: str | Path,
    records_file: str | Path,
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    budget: float | None = None,
    module: nn.Module | None = None,
) -> dict[str, Any]:
    """Writes a future client's model to `out`, a safetensors state dict, and returns what it cost.

    The context is made of the first m_c records of the file; where there are more and they have labels, the
    model's accuracy on the others is returned too. It stays with the client. `budget` is the ε that the
    client's ledger may reach, by default the run's own.
    """
    source = Path(records_file)
    personalizer = Personalizer.load(run, module)
    blueprint, plan = personalizer.blueprint, personalizer.blueprint.plan
    records = personalizer.records(source)
    split = ClientRecords(records[:0], records[plan.context_records :], records[: plan.context_records])
    ledger_file = Path(ledger) if ledger is not None else source.with_suffix(".ledger.sqlite")
    name, context, message = "future client", None, b""
    with Ledger.open(ledger_file, scope=data.fingerprint(source)) as book:
        secret = kept_secret(ledger_file.with_name(ledger_file.name + ".secret"))
        client = Client(
            name,
            split,
            blueprint,
            book,
            run=personalizer.run,
            secret=secret,
            account=OWN_RECORDS,
            budget=own_budget(plan, budget),
        )
        if plan.releases_context:
            message = client.release_context(personalizer.context_model())
            stream = release_stream(personalizer.run, name, "context", 0)
            context = blueprint.context_channel.decode(message, secret=secret, stream=stream)
        total = book.epsilon(OWN_RECORDS, plan.delta, plan.accounting)
    coefficients = personalizer.server.personalize(context)
    accuracy = client.evaluate(coefficients).accuracy if labelled(source) and split.held_out else None
    return delivered(blueprint, coefficients, Path(out), ledger_file, len(message), total, accuracy)


def own_budget(plan: Plan, epsilon: float | None) -> Budget:
    """What a future client's records may have spent: its own choice, else the run's ε."""
    return Budget(epsilon=epsilon or plan.epsilon, delta=plan.delta, accounting=plan.accounting)


def labelled(path: Path) -> bool:
    """Whether an .npz says what class its records are of."""
    with np.load(path, allow_pickle=False) as file:
        return "y" in file


def delivered(
    blueprint: Blueprint,
    coefficients: Tensor,
    out: Path,
    ledger_file: Path,
    context_bytes: int,
    total: float,
    accuracy: float | None,
) -> dict[str, Any]:
    """Writes the model θ_ref + P a and says what it cost; `total` is the ε that the client's ledger shows."""
    plan = blueprint.plan
    state = state_dict_at(blueprint.module, blueprint.theta(coefficients))
    write_atomically(out, save({name: value.contiguous() for name, value in state.items()}))
    return {
        "model": str(out),
        "ledger": str(ledger_file),
        "epsilon": blueprint.epsilon(0, context=plan.releases_context),
        "epsilon_total": total,
        "delta": plan.delta,
        "accounting": plan.accounting,
        "context": plan.context,
        "context_bytes": context_bytes,
        "uses_labels": plan.releases_context and blueprint.statistic.uses_labels,
        "accuracy": accuracy,
    }
