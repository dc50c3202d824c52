"""`result.json`: what a finished run promises, spent, sent and achieved, for other programs to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sottovoce import __version__
from sottovoce.data import FederatedDataset
from sottovoce.data.tables.schema import protected_unit
from sottovoce.errors import extra
from sottovoce.models.features import pretrained
from sottovoce.models.features.encoded import references
from sottovoce.models.metrics import (
    Curves,
    Evaluation,
    Own,
    known_targets,
    mean_accuracy,
    mean_known,
    own_metrics,
)
from sottovoce.models.tasks import mean_metrics, open_task
from sottovoce.plan import Plan
from sottovoce.plan.catalog import names_encoder
from sottovoce.plan.schedule import call_counts
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.blueprint import Blueprint

COEFFICIENT_BYTES = 4  # a coefficient as float32, the way it travels to clients and would travel uncoded


class Result(dict[str, Any]):
    """A result as `result.json` or `compare.json` has it, which can also be a table."""

    def frame(self) -> Any:
        """A pandas DataFrame with a row for each client: its size, σ, ε, accuracy and metrics.

        Of a comparison it has a row for each of its rows and clients.
        """
        pandas = extra("pandas", "tables of results need pandas", "pandas")
        if "rows" in self:
            parts = {"points": "per_client", "log_loss": "log_loss_per_client"}
            return pandas.DataFrame(
                {"row": row, "client": name, **{what: told[key].get(name) for what, key in parts.items()}}
                for row, told in self["rows"].items()
                for name in told["per_client"]
            )
        accuracy, metrics = self["accuracy"], self.get("metrics", {}).get("per_client", {})
        score = {**accuracy["seen_per_client"], **accuracy["future_per_client"]}
        rows = [
            {**client, self["metric"]: score.get(client["name"]), **metrics.get(client["name"], {})}
            for client in self["clients"]
        ]
        return pandas.DataFrame(rows)


def assemble(
    blueprint: Blueprint,
    rounds: Sequence[Mapping[str, Any]],
    seen: Mapping[str, Evaluation],
    future: Mapping[str, Evaluation],
    clients: Sequence[Mapping[str, Any]],
    once_bytes: Mapping[str, int],
    *,
    metrics: bool,
    own: Own | None,
) -> dict[str, Any]:
    """The result of a run from its blueprint, its lines of rounds.jsonl, its evaluations and its `site_rows`.

    Without `metrics` models are judged by their accuracy alone, which takes a tenth of the time; `own` ones
    of the user's join those of the task.
    """
    releases = sum(len(line["clients"]) for line in rounds)
    sent = sum(line.get("bytes", 0) for line in rounds)
    counted = all("bytes" in line for line in rounds)
    contexts = sum(line["context_bytes"] for line in rounds)
    once = {f"{kind}_bytes": count for kind, count in once_bytes.items()}
    dense = COEFFICIENT_BYTES * releases * blueprint.coefficients
    return {
        **of_rounds(blueprint, rounds),
        "alpha": blueprint.plan.alpha,
        "epsilon": _epsilon(blueprint, clients),
        "clients": list(clients),
        "class_names": list(blueprint.facts.class_names),
        "accuracy": accuracies(seen, future),
        "metrics": measured(seen, future, own) if metrics else {},
        "reliability": reliability(seen, future) if metrics else {},
        "confusion": {
            name: evaluation.confusion.tolist()
            for name, evaluation in {**seen, **future}.items()
            if evaluation.confusion is not None
        },
        "uplink": {
            "bytes": sent,
            "releases": releases,
            "bits_per_coefficient": 8 * sent / (releases * blueprint.coefficients) if counted else None,
            "context_bytes": contexts,
            **once,
            "total_bytes": sent + contexts + sum(once.values()),
            "fp32_bytes": dense,
        },
    }


def downlink(blueprint: Blueprint, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what participants were sent: coefficients in rounds, a centre behind them where there is one,
    and coefficients once for contexts and confusions.

    Each message counts once, however often an engine has repeated it.
    """
    messages = sum(len(chosen) for chosen in blueprint.schedule[: len(rounds)])
    numbers = messages * blueprint.downlink("gradient").size
    dense = COEFFICIENT_BYTES * numbers
    # Version 0.1 sent float32 and did not count.
    sent = sum(line.get("downlink_bytes", dense // len(rounds)) for line in rounds)
    return {
        "bytes": sent,
        "messages": messages,
        "bits_per_coefficient": 8 * sent / numbers,
        "once_bytes": blueprint.once_downlink_bytes,
        "total_bytes": sent + blueprint.once_downlink_bytes,
        "fp32_bytes": dense,
    }


def site_rows(
    blueprint: Blueprint, federation: FederatedDataset, ledger: Ledger | None = None
) -> list[dict[str, Any]]:
    """Each client's number of records (units), σ and ε: of the ledger where there is one, else as planned."""
    plan, rows = blueprint.plan, []
    counts = call_counts(blueprint.schedule, plan.participants)
    for i, name in enumerate(federation.names):
        spent = None
        if ledger is not None:
            spent = ledger.epsilon(name, plan.delta, plan.accounting)
        elif plan.private:
            spent = blueprint.epsilon(blueprint.participant_counts(int(counts[i])), i)
        rows.append(
            {
                "name": name,
                "role": "participant",
                "size": federation.participants.sizes[i],
                "training": blueprint.sizes[i],
                "sigma": blueprint.releases_of(i)["gradient"].sigma,
                "epsilon": spent,
            }
        )
    for name, size in zip(federation.future_names, federation.future.sizes, strict=True):
        cost = blueprint.epsilon(blueprint.future_counts) if plan.private else None
        rows.append(
            {"name": name, "role": "future", "size": size, "training": 0, "sigma": None, "epsilon": cost}
        )
    return rows


def public_pretraining(plan: Plan) -> str | bool:
    """Returns which encoders have learned from other people's public data, with version and digest; or False.

    Of a map of one's own its owner says whether it has.
    """
    if names_encoder(plan.features):
        return ", ".join(f"{one.name} {one.version} ({one.digest[:8]})" for one in references(plan).values())
    return plan.features if ":" in plan.features and pretrained(plan.features) else False


def description(blueprint: Blueprint) -> dict[str, Any]:
    """Returns what was run, for results of every engine."""
    plan = blueprint.plan
    return {
        "version": 1,
        "sottovoce": __version__,
        "method": plan.method,
        "dataset": plan.dataset,
        "seed": plan.seed,
        "preset": plan.preset,
        "context": plan.context,
        "uses_future_labels": plan.context_traits.future_uses_labels,
        "channel": plan.channel,
        "noise": plan.noise,
        "features": plan.features if blueprint.facts.source else "none",
        "public_pretraining": public_pretraining(plan),
        "task": blueprint.facts.task,
        "metric": open_task(blueprint.facts).metric,
        "basis": blueprint.basis.kind,
        "seeded": plan.seeded,
        "model_parameters": blueprint.basis.size,
        "coefficients": blueprint.coefficients,
        "participants": plan.participants,
    }


def of_rounds(blueprint: Blueprint, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what was run, and what every engine knows of its rounds, from the lines of rounds.jsonl."""
    plan = blueprint.plan
    return {
        **description(blueprint),
        "future_clients": plan.future_clients,
        "rounds": len(rounds),
        "releases_max": blueprint.releases_max,
        "delta": plan.delta,
        "unit": protected_unit(blueprint.facts),
        "sigma": blueprint.sigma,
        "sigma_context": blueprint.sigma_context,
        "downlink": downlink(blueprint, rounds),
        "seconds": sum(line["seconds"] for line in rounds),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def accuracies(seen: Mapping[str, Evaluation], future: Mapping[str, Evaluation]) -> dict[str, Any]:
    """The `accuracy` object: means over clients and each client's own, unmasked and masked, in percent.

    Where the task has no accuracy it is the task's `metric`, on a scale of 100.
    """
    result: dict[str, Any] = {}
    for role, evaluations in (("seen", seen), ("future", future)):
        masked = {name: evaluation.masked_accuracy for name, evaluation in evaluations.items()}
        result[role] = mean_accuracy(evaluations)
        result[f"{role}_masked"] = mean_known(list(masked.values()))
        result[f"{role}_per_client"] = {name: e.accuracy for name, e in evaluations.items()}
        result[f"{role}_masked_per_client"] = masked
    return result


def measured(
    seen: Mapping[str, Evaluation], future: Mapping[str, Evaluation], own: Own | None = None
) -> dict[str, Any]:
    """The `metrics` object: means over clients by role, and each client's.

    `own` are metrics of the user's (`metrics.own_metrics`). The `constant` of a future client that tells no
    targets is made of all participants'.
    """
    pooled = known_targets(seen.values())
    each = {
        name: {**one.metrics(), **own_metrics(one.task, one.outputs, one.y, own)}
        for name, one in {**seen, **future}.items()
    }
    roles = {"seen": seen, "future": future}
    means = {role: mean_metrics([each[name] for name in names]) for role, names in roles.items()}
    constants = {
        role: mean_metrics([one.knowing(pooled).constant for one in of.values()])
        for role, of in roles.items()
    }
    return {**means, "constant": constants, "per_client": each}


def reliability(seen: Mapping[str, Evaluation], future: Mapping[str, Evaluation]) -> dict[str, Any]:
    """The `reliability` object: by role how often held-out records were what was stated of them."""
    curves = Curves()
    for role, evaluations in (("seen", seen), ("future", future)):
        for one in evaluations.values():
            curves.add(role, one.task, one.outputs, one.y)
    return curves.told()


def _epsilon(blueprint: Blueprint, clients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """ε that was spent (`site_rows`); JSON has no infinity, so a run without noise says null."""
    plan, private = blueprint.plan, blueprint.plan.private
    spent = {row["name"]: row["epsilon"] for row in clients if private and row["role"] == "participant"}
    return {
        "target": plan.epsilon if private else None,
        "spent_max": max(spent.values()) if private else None,
        "accounting": plan.accounting,
        "per_client": spent,
        "future_context": blueprint.epsilon(blueprint.future_counts) if private else None,
        "add_remove": epsilon_add_remove(blueprint) if private else None,
    }


def epsilon_add_remove(blueprint: Blueprint) -> float:
    """ε of this run's busiest participant for one record added or removed, to be read beside other work."""
    calls = call_counts(blueprint.schedule, blueprint.plan.participants)
    kinds = {int(i): blueprint.participant_counts(int(count)) for i, count in enumerate(calls)}
    if blueprint.uniform:
        kinds = {int(calls.argmax()): kinds[int(calls.argmax())]}
    return max(blueprint.epsilon(counts, i, removal=True) for i, counts in kinds.items())
