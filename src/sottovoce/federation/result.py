"""The run directory of a finished federation: the files of a simulated run, less what only a simulator sees.

`plan.toml`, `rounds.jsonl`, `model.safetensors` and `result.json` are as everywhere; accuracies, norms and
byte counts are missing, because a server learns them only as uncharged diagnostics. ε follows from the
releases that the server received.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sottovoce.blueprint import participant_name
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.store import Store
from sottovoce.files import private_folder, write_atomically
from sottovoce.modelfile import GeneratorFile
from sottovoce.run.directory import RunDirectory
from sottovoce.run.result import description, downlink, protected_unit


def write_run(
    path: str | Path, coordinator: Coordinator, store: Store, *, engine: str = "flower"
) -> dict[str, Any]:
    """Writes the directory of a federation whose last round is closed, and returns its result.

    `engine` is the name of what carried the messages.
    """
    agreement, server = coordinator.agreement, coordinator.server
    directory = RunDirectory(path)
    private_folder(directory.path)
    write_atomically(directory.plan_file, agreement.plan.to_toml().encode())
    names = {participant_name(index): name for index, name in enumerate(coordinator.names)}
    lines = [{**line, "clients": [names[client] for client in line["clients"]]} for line in store.lines()]
    rounds = "".join(json.dumps(line) + "\n" for line in lines).encode()
    write_atomically(directory.rounds_file, rounds)
    file = GeneratorFile.of(coordinator.blueprint, store.run, server.state(), coordinator.names)
    file.write(directory.model_file)
    result = {**_result(coordinator, store, lines), "engine": engine}
    write_atomically(directory.result_file, (json.dumps(result, indent=1) + "\n").encode())
    return result


def _result(coordinator: Coordinator, store: Store, lines: list[dict[str, Any]]) -> dict[str, Any]:
    blueprint, plan = coordinator.blueprint, coordinator.agreement.plan
    names, spent, clients = coordinator.names, dict[str, float](), []
    for participant in sorted(coordinator.enrolled):
        counts = Counter(kind for kind, _ in store.received(participant))
        name, size = names[participant], blueprint.sizes[participant]
        spent[name] = blueprint.epsilon(counts, participant)
        sigma = blueprint.releases_of(participant)["gradient"].sigma
        clients.append({"name": name, "role": "participant", "size": size, "sigma": sigma})
    return {
        **description(blueprint),
        "future_clients": plan.future_clients,
        "rounds": len(lines),
        **(
            {"masks": True, "given_up": sum("given_up" in line for line in lines)}
            if plan.place.shared
            else {}
        ),
        "releases": sum(len(line["clients"]) for line in lines),
        "releases_max": blueprint.releases_max,
        "epsilon": {
            "target": plan.epsilon,
            "spent_max": max(spent.values(), default=0.0),
            "accounting": plan.accounting,
            "per_client": spent,
            "future_context": blueprint.epsilon(blueprint.future_counts),
        },
        "delta": plan.delta,
        "clients": clients,
        "unit": protected_unit(blueprint.facts),
        "sigma": blueprint.sigma,
        "sigma_context": blueprint.sigma_context,
        "downlink": downlink(blueprint, lines),
        "seconds": sum(line["seconds"] for line in lines),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
