"""The client half of the Flower app: hands each message to this node's `Node`, and its answer back.

Where records, directory and agreement lie is said by the node's own operator in the node config, and so are
the names of model and feature map where they are code of their own; the server cannot choose them. In
Flower's simulation engine, where nodes have no config, they lie side by side in the folder that
`sottovoce federate --deal` made, and only there may a plan be seeded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sottovoce.federation.agreement import Agreement
from sottovoce.federation.keys import EnrolmentError
from sottovoce.federation.node import Declined, Node
from sottovoce.privacy.ledger import Overspent
from sottovoce.privacy.terms import Terms

log = logging.getLogger("sottovoce.federation")

RECORD = "sottovoce"
"""The name of our record in every message."""

TOLD = (EnrolmentError, Declined)
"""Errors that say nothing about records, nor about what is on this machine."""


def client_app() -> ClientApp:
    """A ClientApp that enrols, releases, and keeps its model at the end."""
    app = ClientApp()
    show_log()

    @app.query("enrol")
    def enrol(message: Message, context: Context) -> Message:
        return _answered(message, context, "enrolment", Node.enrol)

    @app.query("refused")
    def refused(message: Message, context: Context) -> Message:
        def note(node: Node, fields: Mapping[str, Any]) -> dict[str, Any]:
            node.refused(str(fields["run"]), str(fields["reason"]))
            return {"noted": True}

        return _answered(message, context, "refusal", note)

    @app.train("release")
    def release(message: Message, context: Context) -> Message:
        return _answered(message, context, "release", Node.release)

    @app.query("model")
    def model(message: Message, context: Context) -> Message:
        return _answered(message, context, "model", Node.keep_model)

    return app


def node_of(context: Context) -> Node:
    """The node that its own config describes."""
    node = context.node_config
    torch.set_num_threads(int(context.run_config.get("threads", 1)))
    # Flower's simulation engine states the number of partitions; a real node must say so in its own config.
    played = "num-partitions" in node or bool(node.get("simulated", False))
    if played and "directory" not in node and "simulated-clients" in context.run_config:
        folder = Path(str(context.run_config["simulated-clients"]))
        code = {name: str(context.run_config.get(name, "")) or None for name in ("model", "features")}
        client = folder / f"client-{node['partition-id']}"
        return Node(
            client,
            client.with_suffix(".npz"),
            Agreement.load(folder / "agreement.toml", simulation=True, **code),
            wish=int(node["partition-id"]),
            simulated=True,
        )
    for name in ("directory", "records", "agreement"):
        if name not in node:
            raise EnrolmentError(f"the node config lacks '{name}': start the SuperNode with {name}=\"PATH\"")
    return Node(
        str(node["directory"]),
        str(node["records"]),
        Agreement.load(
            str(node["agreement"]),
            model=str(node["model"]) if "model" in node else None,
            features=str(node["features"]) if "features" in node else None,
        ),
        wish=int(node["partition-id"]) if "partition-id" in node else None,
        diagnostics=bool(node.get("diagnostics", False)),
        terms=Terms(
            ledger=str(node["ledger"]) if "ledger" in node else None,
            client=str(node["client"]) if "client" in node else None,
            epsilon=float(node["epsilon"]) if "epsilon" in node else None,
            delta=float(node["delta"]) if "delta" in node else None,
            noise_at_server=node.get("noise-at-server") is True,
            looked_up=node.get("looked-up") is True,
        ),
        simulated=bool(node.get("simulated", False)),
        finish=node.get("finish") is True,
    )


def show_log() -> None:
    """Lets our log appear where Flower's does."""
    ours, flower = logging.getLogger("sottovoce"), logging.getLogger("flwr")
    ours.setLevel(logging.INFO)
    ours.handlers = flower.handlers
    ours.propagate = flower.propagate


Handler = Callable[[Node, Mapping[str, Any]], dict[str, Any]]


def _answered(message: Message, context: Context, what: str, handle: Handler) -> Message:
    """The reply; a refusal is logged here, and told to the server unless it may be about records."""
    asked, node = message.content.config_records[RECORD], None
    refused = str(asked["reason"]) if what == "refusal" else ""
    try:
        node = node_of(context)
        fields = handle(node, asked)
    except TOLD as error:
        log.error("answered with a refusal: %s", error)
        fields, refused = {"error": str(error)}, str(error)
    except Overspent as error:  # names a ledger, what it has spent and its budget: the owner's own
        log.error("refused: %s", error)
        fields, refused = {"error": "refused"}, str(error)
    except Exception as error:  # Flower would tell the server all of it
        log.error("cannot answer", exc_info=error)
        refused = "this client cannot answer: its own log says why"
        fields = {"error": refused}
    if node is not None:
        node.contacted(what, asked, refused)
    return Message(RecordDict({RECORD: ConfigRecord(fields)}), reply_to=message)
