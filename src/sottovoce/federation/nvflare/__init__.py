"""NVFlare as the engine: its server and sites carry the messages between coordinator and members.

For cohorts that stay, such as hospitals: mutual TLS and startup kits are NVFlare's, and a round takes a
fraction of a second. `write_job` writes a job folder. It holds no code: the two classes that it names are the
installed package's, and its settings and agreement are for the server's part alone.
"""

from __future__ import annotations

import json
from pathlib import Path

from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement
from sottovoce.federation.server import Options
from sottovoce.machine.files import PUBLIC, write_atomically

CONTROLLER = "sottovoce.federation.nvflare.controller.Federation"
EXECUTOR = "sottovoce.federation.nvflare.executor.Site"
RECORD = "sottovoce"
"""The name of our record in every message."""
META = "meta.json"
LOST = "lost"
"""The file of the run directory that names the site for which a job ended."""
SERVER_CONFIG = "app/config/config_fed_server.json"


def members(agreement: Agreement) -> int:
    """How many sites and helpers an agreement has."""
    return agreement.plan.participants + len(agreement.parties.helpers if agreement.parties else ())


def poll_seconds(sites: int) -> float:
    """After how long a site asks for work again: two hundred sites cost a server 0.6 of a core."""
    return max(0.1, sites / 200)


def write_job(
    agreement: Agreement,
    job: str | Path,
    *,
    run_directory: str | Path,
    options: Options | None = None,
    retry: float = 60.0,
    threads: int = 1,
    simulated: bool = False,
) -> Path:
    """Writes the job folder `job` and returns it; an existing one is not overwritten.

    `simulated` says that this machine plays all sites, so that a seeded plan may run.
    """
    folder, chosen, plan = Path(job), options or Options(), agreement.plan
    if (folder / META).exists():
        raise SottovoceError(f"{folder} already holds a job: choose another folder, or run that one", "out")
    if plan.seeded and not simulated:
        raise SottovoceError(
            "a seeded plan is for clients that this machine plays: deal them their records, or set "
            "seeded=false for real ones",
            "deal",
        )
    settings = {
        "run_directory": str(Path(run_directory).resolve()),
        "patience": float(chosen.patience),
        "bucket": chosen.bucket,
        "diagnostics": chosen.diagnostics,
        "retry": float(retry),
        "threads": threads,
        "simulation": simulated,
        "model": agreement.model,
        "features": agreement.features,
    }
    common = {"format_version": 2, "task_data_filters": [], "task_result_filters": [], "components": []}
    server = {
        **common,
        "server": {"task_request_interval": poll_seconds(members(agreement))},
        "workflows": [{"id": "federation", "path": CONTROLLER, "args": settings}],
    }
    site = {**common, "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {}}}]}
    files = {
        SERVER_CONFIG: json.dumps(server, indent=1),
        "app/config/agreement.toml": agreement.to_toml(),
        "app/config/config_fed_client.json": json.dumps(site, indent=1),
        META: meta_of([], members(agreement)),
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode(), PUBLIC)
    return folder


def meta_of(sites: list[str], wanted: int) -> str:
    """The job's own description: whom it is for, by name; by default for all who are connected."""
    meta = {
        "name": "sottovoce",
        "resource_spec": {},
        "min_clients": len(sites) or wanted,
        "deploy_map": {"app": ["server", *sites] if sites else ["@ALL"]},
    }
    return json.dumps(meta, indent=1)
