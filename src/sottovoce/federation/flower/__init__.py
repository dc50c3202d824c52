"""Flower as the engine: its SuperLink and SuperNodes carry the messages between coordinator and members.

`server_app` and `client_app` make the two halves of a Flower app. `write_app` writes a ready one: two thin
modules, the agreement, and a pyproject.toml for `flwr run`, on Flower's simulation engine or on a SuperLink
with SuperNodes. The app's code is the installed sottovoce package; only the agreement and the server's
settings are in the app itself, so what a client downloads from the server decides nothing about its records.
"""

from __future__ import annotations

import json
from pathlib import Path

from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement
from sottovoce.federation.coordinator import Options
from sottovoce.files import PUBLIC, write_atomically
from sottovoce.models import MODELS

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "sottovoce-app"
version = "1.0.0"
description = "A Sottovoce federation on Flower."
license = {{ file = "LICENSE" }}
# torch and sottovoce are installed beforehand on every machine, never by 'flwr run'.
dependencies = ["flwr>=1.41,<1.42"]

[tool.hatch.build.targets.wheel]
packages = ["sottovoce_app"]

[tool.flwr.app]
publisher = "sottovoce"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "sottovoce_app.server_app:app"
clientapp = "sottovoce_app.client_app:app"

[tool.flwr.app.config]
# The server's own directory: store, checkpoints, and the finished run.
run-directory = {directory}
# Seconds after which a round continues without the clients that are missing.
patience = {patience}
# Seconds after which an unanswered request is made again.
retry = {retry}
# Messages are padded to multiples of so many bytes; 0: not padded.
bucket = {bucket}
# Log bytes, norms and accuracies per client. Private to the server, and charged to nobody.
diagnostics = {diagnostics}
# CPU threads of both ends. Equal results bit for bit need equal threads.
threads = {threads}
{simulated}"""

_SERVER = '''\
"""The server of this federation."""

from pathlib import Path

from sottovoce.federation.flower.server_app import server_app

app = server_app(Path(__file__).with_name("agreement.toml"))
'''

_CLIENT = '''\
"""A client of this federation."""

from sottovoce.federation.flower.client_app import client_app

app = client_app()
'''

_LICENSE = "This app was written by 'sottovoce federate' and is under the Apache License, Version 2.0.\n"


def write_app(
    agreement: Agreement,
    app: str | Path,
    *,
    run_directory: str | Path,
    options: Options | None = None,
    retry: float = 60.0,
    threads: int = 1,
    simulated_clients: str | Path | None = None,
) -> Path:
    """Writes the app directory `app` and returns it; an existing one is not overwritten.

    `simulated_clients` is the folder of client files for Flower's simulation engine.
    """
    folder, chosen = Path(app), options or Options()
    if (folder / "pyproject.toml").exists():
        raise SottovoceError(f"{folder} already holds an app: choose another folder, or run that one", "out")
    package = folder / "sottovoce_app"
    package.mkdir(parents=True, exist_ok=True)
    simulated = ""
    if agreement.plan.seeded and simulated_clients is None:
        raise SottovoceError(
            "a seeded plan is for clients that this machine plays: deal them their records, or set "
            "seeded=false for real ones",
            "deal",
        )
    own = {"model": agreement.plan.model not in MODELS, "features": ":" in agreement.plan.features}
    for name in (name for name, code in own.items() if code):
        simulated += f"# The operators' own {name}; clients name it in their node config.\n"
        simulated += f"{name} = {json.dumps(getattr(agreement.plan, name))}\n"
    if simulated_clients is not None:
        where = json.dumps(str(Path(simulated_clients).resolve()))
        simulated += f"# Client files for Flower's simulation engine.\nsimulated-clients = {where}\n"
    files = {
        "sottovoce_app/__init__.py": '"""A Sottovoce federation on Flower."""\n',
        "sottovoce_app/server_app.py": _SERVER,
        "sottovoce_app/client_app.py": _CLIENT,
        "sottovoce_app/agreement.toml": agreement.to_toml(),
        "LICENSE": _LICENSE,
        "pyproject.toml": _PYPROJECT.format(
            directory=json.dumps(str(Path(run_directory).resolve())),
            patience=float(chosen.patience),
            retry=float(retry),
            bucket=chosen.bucket,
            diagnostics=json.dumps(chosen.diagnostics),
            threads=threads,
            simulated=simulated,
        ),
    }
    for name, text in files.items():
        write_atomically(folder / name, text.encode(), PUBLIC)
    return folder
