"""What a finished run promises, spent, sent and achieved: the content of its `result.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from sottovoce import __version__
from sottovoce.data import FederatedDataset
from sottovoce.data.tables.schema import protected_unit
from sottovoce.models.features.encoded import references
from sottovoce.models.features.local import pretrained
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
from sottovoce.report.result import (
    FORMAT_VERSION,
    Accuracy,
    Described,
    Downlink,
    Known,
    Metrics,
    Reliability,
    RunResult,
    Site,
    Uplink,
)

COEFFICIENT_BYTES = 4  # a coefficient as float32, the way it travels to clients and would travel uncoded


def assemble(
    blueprint: Blueprint,
    rounds: Sequence[Mapping[str, Any]],
    seen: Mapping[str, Evaluation],
    future: Mapping[str, Evaluation],
    clients: Sequence[Site],
    once_bytes: Mapping[str, int],
    *,
    metrics: bool,
    own: Own | None,
) -> RunResult:
    """The result of a run from its blueprint, its lines of rounds.jsonl, its evaluations and its `site_rows`.

    Without `metrics` models are judged by their accuracy alone, which takes a tenth of the time; `own` ones
    of the user's join those of the task.
    """
    spent = {row["name"]: row["epsilon"] for row in clients if row["role"] == "participant"}
    known = of_rounds(blueprint, rounds, clients, spent)
    known["epsilon"]["add_remove"] = epsilon_add_remove(blueprint) if blueprint.plan.private else None
    return {
        **known,
        "alpha": blueprint.plan.alpha,
        "class_names": list(blueprint.facts.class_names),
        "accuracy": accuracies(seen, future),
        "metrics": measured(seen, future, own) if metrics else {},
        "reliability": reliability(seen, future) if metrics else {},
        "confusion": {
            name: evaluation.confusion.tolist()
            for name, evaluation in {**seen, **future}.items()
            if evaluation.confusion is not None
        },
        "uplink": uplink(blueprint, rounds, once_bytes),
    }


def uplink(
    blueprint: Blueprint, rounds: Sequence[Mapping[str, Any]], once_bytes: Mapping[str, int]
) -> Uplink:
    """Returns what participants sent; what is released once, but for contexts, under its kind."""
    releases = sum(len(line["clients"]) for line in rounds)
    sent = sum(line.get("bytes", 0) for line in rounds)
    counted = all("bytes" in line for line in rounds)
    contexts = sum(line["context_bytes"] for line in rounds)
    total: Uplink = {
        "bytes": sent,
        "releases": releases,
        "bits_per_coefficient": 8 * sent / (releases * blueprint.coefficients) if counted else None,
        "context_bytes": contexts,
        "total_bytes": sent + contexts + sum(once_bytes.values()),
        "fp32_bytes": COEFFICIENT_BYTES * releases * blueprint.coefficients,
    }
    once = {f"{kind}_bytes": count for kind, count in once_bytes.items()}
    return cast(Uplink, {**total, **once})


def downlink(blueprint: Blueprint, rounds: Sequence[Mapping[str, Any]]) -> Downlink:
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


def site_rows(blueprint: Blueprint, federation: FederatedDataset, ledger: Ledger | None = None) -> list[Site]:
    """Each client's number of records (units), σ and ε: of the ledger where there is one, else as planned."""
    plan, rows = blueprint.plan, list[Site]()
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


def description(blueprint: Blueprint) -> Described:
    """Returns what was run, for results of every engine."""
    plan = blueprint.plan
    return {
        "version": FORMAT_VERSION,
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


def of_rounds(
    blueprint: Blueprint,
    rounds: Sequence[Mapping[str, Any]],
    clients: Sequence[Site],
    spent: Mapping[str, float | None],
) -> Known:
    """Returns what was run, and what every engine knows of it: the lines of rounds.jsonl, its clients, and ε
    that its participants have spent."""
    plan = blueprint.plan
    private = {name: value for name, value in spent.items() if value is not None}
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
        "epsilon": {
            "target": plan.epsilon if plan.private else None,
            "spent_max": max(private.values(), default=0.0) if plan.private else None,
            "accounting": plan.accounting,
            "per_client": {**private},
            "future_context": blueprint.epsilon(blueprint.future_counts) if plan.private else None,
        },
        "clients": list(clients),
    }


def accuracies(seen: Mapping[str, Evaluation], future: Mapping[str, Evaluation]) -> Accuracy:
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
    return cast(Accuracy, result)


def measured(
    seen: Mapping[str, Evaluation], future: Mapping[str, Evaluation], own: Own | None = None
) -> Metrics:
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
    return cast(Metrics, {**means, "constant": constants, "per_client": each})


def reliability(seen: Mapping[str, Evaluation], future: Mapping[str, Evaluation]) -> Reliability:
    """The `reliability` object: by role how often held-out records were what was stated of them."""
    curves = Curves()
    for role, evaluations in (("seen", seen), ("future", future)):
        for one in evaluations.values():
            curves.add(role, one.task, one.outputs, one.y)
    return cast(Reliability, curves.told())


def epsilon_add_remove(blueprint: Blueprint) -> float:
    """ε of this run's busiest participant for one record added or removed, to be read beside other work."""
    calls = call_counts(blueprint.schedule, blueprint.plan.participants)
    kinds = {int(i): blueprint.participant_counts(int(count)) for i, count in enumerate(calls)}
    if blueprint.uniform:
        kinds = {int(calls.argmax()): kinds[int(calls.argmax())]}
    return max(blueprint.epsilon(counts, i, removal=True) for i, counts in kinds.items())
