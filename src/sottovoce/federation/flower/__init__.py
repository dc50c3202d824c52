"""Flower as the engine: its SuperLink and SuperNodes carry the messages between coordinator and members.

`server_app` and `client_app` make the two halves of a Flower app. `write_app` writes a ready one: two thin
modules, the agreement, and a pyproject.toml for `flwr run`, on Flower's simulation engine or on a SuperLink
with SuperNodes. The app's code is the installed sottovoce package; only the agreement and the server's
settings are in the app itself, so what a client downloads from the server decides nothing about its records.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement
from sottovoce.federation.server import Options
from sottovoce.machine.files import PUBLIC, write_atomically
from sottovoce.plan.catalog import MODELS


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
        simulated += f"# The operators' own {name}; clients name it in their node.toml.\n"
        simulated += f"{name} = {json.dumps(getattr(agreement.plan, name))}\n"
    if simulated_clients is not None:
        where = json.dumps(str(Path(simulated_clients).resolve()))
        simulated += f"# Client files for Flower's simulation engine.\nsimulated-clients = {where}\n"
    texts = {
        "sottovoce_app/__init__.py": '"""A Sottovoce federation on Flower."""\n',
        "sottovoce_app/server_app.py": _template("server_app.py"),
        "sottovoce_app/client_app.py": _template("client_app.py"),
        "sottovoce_app/agreement.toml": agreement.to_toml(),
        "LICENSE": _template("LICENSE"),
        "pyproject.toml": _template("pyproject.toml").format(
            directory=json.dumps(str(Path(run_directory).resolve())),
            patience=float(chosen.patience),
            retry=float(retry),
            bucket=chosen.bucket,
            diagnostics=json.dumps(chosen.diagnostics),
            threads=threads,
            simulated=simulated,
        ),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode(), PUBLIC)
    return folder


def _template(name: str) -> str:
    return (files(__package__) / "app" / f"{name}.in").read_text(encoding="utf-8")
