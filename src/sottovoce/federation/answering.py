"""A site's answer to a message of the server, whatever engine brought it, and what is told of errors.

A refusal is logged at the site, and told to the server unless it may be about records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.federation.node import Node
from sottovoce.federation.sealing import Declined, EnrolmentError
from sottovoce.federation.sums import HelperNode
from sottovoce.privacy.ledger import Overspent

log = logging.getLogger("sottovoce.federation")
Member = Node | HelperNode

TOLD = (EnrolmentError, Declined)
"""Errors that say nothing about records, nor about what is on this machine."""
CANNOT = "this client cannot answer: its own log says why"


def _noted(member: Member, asked: Mapping[str, Any]) -> dict[str, Any]:
    member.refused(str(asked["run"]), str(asked["reason"]))
    return {"noted": True}


HANDLERS: dict[str, Callable[[Member, Mapping[str, Any]], dict[str, Any]]] = {
    "enrolment": lambda member, asked: member.enrol(asked),
    "refusal": _noted,
    "release": lambda member, asked: member.release(asked),
    "masks": lambda member, asked: member.masks(asked),
    "model": lambda member, asked: member.keep_model(asked),
}
"""What a server may ask of a member."""


def answer(member_of: Callable[[], Member], what: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an answer; `member_of` makes who answers, and may fail as answering may."""
    member, refused = None, str(asked["reason"]) if what == "refusal" else ""
    try:
        member = member_of()
        fields = HANDLERS[what](member, asked)
    except TOLD as error:
        log.error("answered with a refusal: %s", error)
        fields, refused = {"error": str(error)}, str(error)
    except Overspent as error:  # names a ledger, what it has spent and its budget: the owner's own
        log.error("refused: %s", error)
        fields, refused = {"error": "refused"}, str(error)
    except Exception as error:  # an engine would tell the server all of it
        log.error("cannot answer: %s", error, exc_info=None if isinstance(error, SottovoceError) else error)
        fields, refused = {"error": CANNOT}, CANNOT
    if member is not None:
        member.contacted(what, asked, refused)
    return fields
