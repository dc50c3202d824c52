"""The client half of the Flower app: hands each message to this site's member, and its answer back.

Where records, directory and agreement lie is said by the site's own owner, in the node.toml that the node
config names as `settings`, or in the node config itself; the server cannot choose them. In Flower's
simulation engine, where nodes have no config, they lie side by side in the folder that
`sottovoce federate --deal` made, and only there may a plan be seeded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sottovoce.federation import Agreement
from sottovoce.federation.keys import SiteKey
from sottovoce.federation.node import Node
from sottovoce.federation.settings import Member, Settings, answer
from sottovoce.federation.sums import HelperNode

RECORD = "sottovoce"
"""The name of our record in every message."""


def client_app() -> ClientApp:
    """A ClientApp that enrols, releases, and keeps its model at the end."""
    app = ClientApp()
    show_log()
    app.query("enrol")(_answering("enrolment"))
    app.query("refused")(_answering("refusal"))
    app.train("release")(_answering("release"))
    app.query("masks")(_answering("masks"))
    app.query("model")(_answering("model"))
    return app


def member_of(context: Context) -> Member:
    """The client, or the helper, that a node's own settings describe.

    Flower's simulation engine states the number of partitions, in place of a config; a real node that plays
    one of the clients of a folder must say so in its own.
    """
    node, run = context.node_config, context.run_config
    if "settings" in node:
        settings = Settings.load(str(node["settings"]))
    else:
        settings = Settings.given(node, "the node config")
    torch.set_num_threads(settings.threads or int(run.get("threads", 1)))
    played = "num-partitions" in node or settings.simulated
    if played and settings.directory is None and "simulated-clients" in run:
        return _played(context, Path(str(run["simulated-clients"])))
    return settings.member()


def _played(context: Context, folder: Path) -> Member:
    """A client, or after them a helper, that this machine plays."""
    code = {name: str(context.run_config.get(name, "")) or None for name in ("model", "features")}
    agreement = Agreement.load(folder / "agreement.toml", simulation=True, **code)
    number = int(context.node_config["partition-id"])
    helper = number - agreement.plan.participants
    own = folder / (f"client-{number}" if helper < 0 else f"helper-{helper}")
    if helper >= 0:
        return HelperNode(own, agreement, SiteKey.read(own.with_suffix(".key")))
    key = None if agreement.parties is None else SiteKey.read(own.with_suffix(".key"))
    return Node(own, own.with_suffix(".npz"), agreement, wish=number, simulated=True, key=key)


def show_log() -> None:
    """Lets our log appear where Flower's does."""
    ours, flower = logging.getLogger("sottovoce"), logging.getLogger("flwr")
    ours.setLevel(logging.INFO)
    ours.handlers = flower.handlers
    ours.propagate = flower.propagate


def _answering(what: str) -> Callable[[Message, Context], Message]:
    """The replies to one kind of message."""

    def reply(message: Message, context: Context) -> Message:
        fields = answer(partial(member_of, context), what, message.content.config_records[RECORD])
        return Message(RecordDict({RECORD: ConfigRecord(fields)}), reply_to=message)

    return reply
