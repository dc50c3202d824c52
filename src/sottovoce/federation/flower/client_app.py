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

from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement
from sottovoce.federation.keys import SiteKey, accepted
from sottovoce.federation.node import Node
from sottovoce.federation.sealing import Declined, EnrolmentError
from sottovoce.federation.sums import HelperNode
from sottovoce.privacy.ledger import Overspent
from sottovoce.privacy.terms import Terms

log = logging.getLogger("sottovoce.federation")

RECORD = "sottovoce"
"""The name of our record in every message."""

FLAGS = ("simulated", "helper", "diagnostics", "noise-at-server", "looked-up", "noise-shared", "finish")
"""Settings of a node that are true or false, which its owner says and nobody else."""

TOLD = (EnrolmentError, Declined)
"""Errors that say nothing about records, nor about what is on this machine."""
Handler = Callable[[Node | HelperNode, Mapping[str, Any]], dict[str, Any]]


def client_app() -> ClientApp:
    """A ClientApp that enrols, releases, and keeps its model at the end."""
    app = ClientApp()
    show_log()
    app.query("enrol")(_answering("enrolment", lambda member, asked: member.enrol(asked)))
    app.query("refused")(_answering("refusal", _noting))
    app.train("release")(_answering("release", lambda member, asked: member.release(asked)))
    app.query("masks")(_answering("masks", lambda member, asked: member.masks(asked)))
    app.query("model")(_answering("model", lambda member, asked: member.keep_model(asked)))
    return app


def member_of(context: Context) -> Node | HelperNode:
    """The client, or the helper, that a node's own config describes.

    Flower's simulation engine states the number of partitions, in place of a config; a real node that plays
    one of the clients of a folder must say so in its own.
    """
    node, run = context.node_config, context.run_config
    torch.set_num_threads(int(run.get("threads", 1)))
    says = {name: _flag(context, name) for name in FLAGS}
    simulated = says["simulated"]
    if ("num-partitions" in node or simulated) and "directory" not in node and "simulated-clients" in run:
        return _played(context, Path(str(run["simulated-clients"])))
    if says["helper"]:
        _needs(context, "directory", "agreement", "key")
        return HelperNode(str(node["directory"]), _agreement(context), SiteKey.read(str(node["key"])))
    _needs(context, "directory", "records", "agreement")
    return Node(
        Path(str(node["directory"])),
        Path(str(node["records"])),
        _agreement(context),
        wish=int(node["partition-id"]) if "partition-id" in node else None,
        diagnostics=says["diagnostics"],
        terms=Terms(
            ledger=_text(context, "ledger"),
            client=_text(context, "client"),
            epsilon=float(node["epsilon"]) if "epsilon" in node else None,
            delta=float(node["delta"]) if "delta" in node else None,
            noise_at_server=says["noise-at-server"],
            looked_up=says["looked-up"],
            noise_shared=says["noise-shared"],
            honest=int(node.get("honest", 0)),
            helpers=accepted(str(node.get("helpers", ""))),
        ),
        simulated=simulated,
        finish=says["finish"],
        key=SiteKey.read(str(node["key"])) if "key" in node else None,
    )


def _played(context: Context, folder: Path) -> Node | HelperNode:
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


def _agreement(context: Context) -> Agreement:
    path, model, features = (_text(context, name) for name in ("agreement", "model", "features"))
    return Agreement.load(str(path), model=model, features=features)


def _text(context: Context, name: str) -> str | None:
    node = context.node_config
    return str(node[name]) if name in node else None


def _flag(context: Context, name: str) -> bool:
    """A setting that is true or false, and nothing that somebody might take for it."""
    said = context.node_config.get(name, False)
    if not isinstance(said, bool):
        raise EnrolmentError(
            f"the node config's '{name}' is neither true nor false: start the SuperNode with {name}=true or "
            f"{name}=false"
        )
    return said


def _needs(context: Context, *names: str) -> None:
    for name in names:
        if name not in context.node_config:
            raise EnrolmentError(f"the node config lacks '{name}': start the SuperNode with {name}=\"PATH\"")


def show_log() -> None:
    """Lets our log appear where Flower's does."""
    ours, flower = logging.getLogger("sottovoce"), logging.getLogger("flwr")
    ours.setLevel(logging.INFO)
    ours.handlers = flower.handlers
    ours.propagate = flower.propagate


def _noting(member: Node | HelperNode, asked: Mapping[str, Any]) -> dict[str, Any]:
    member.refused(str(asked["run"]), str(asked["reason"]))
    return {"noted": True}


def _answering(what: str, handle: Handler) -> Callable[[Message, Context], Message]:
    """The replies to one kind of message.

    A refusal is logged here, and told to the server unless it may be about records.
    """

    def answer(message: Message, context: Context) -> Message:
        asked, member = message.content.config_records[RECORD], None
        refused = str(asked["reason"]) if what == "refusal" else ""
        try:
            member = member_of(context)
            fields = handle(member, asked)
        except TOLD as error:
            log.error("answered with a refusal: %s", error)
            fields, refused = {"error": str(error)}, str(error)
        except Overspent as error:  # names a ledger, what it has spent and its budget: the owner's own
            log.error("refused: %s", error)
            fields, refused = {"error": "refused"}, str(error)
        except Exception as error:  # Flower would tell the server all of it
            ours = isinstance(error, SottovoceError)
            log.error("cannot answer: %s", error, exc_info=None if ours else error)
            refused = "this client cannot answer: its own log says why"
            fields = {"error": refused}
        if member is not None:
            member.contacted(what, asked, refused)
        return Message(RecordDict({RECORD: ConfigRecord(fields)}), reply_to=message)

    return answer
