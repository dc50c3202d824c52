"""What a federation's server and clients say of themselves (`status.json`), and what brings a run to its end.

A client notes each message that it has answered or refused. All of it is its owner's own and stays on this
machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.federation.site.directory import Enrolment
from sottovoce.federation.site.recovery import told_cost
from sottovoce.machine.files import FileError
from sottovoce.plan import Plan
from sottovoce.report.look import stored
from sottovoce.report.status import Status
from sottovoce.training.accounts import Account


def note_contact(
    directory: Path,
    account: Account,
    witness: Path | None,
    plan: Plan,
    what: str,
    asked: Mapping[str, Any],
    refused: str = "",
) -> None:
    """Notes that a message of the server came and what became of it; a client without a directory has none.

    A note that cannot be written is no reason not to answer.
    """
    if not directory.is_dir():
        return
    before, enrolment = None, None
    run, number = str(asked.get("run", "")), int(asked.get("round", 0) or 0)
    with suppress(SottovoceError, OSError, TypeError):
        before = stored(directory)
    with suppress(SottovoceError, OSError):
        enrolment = Enrolment.read(directory, run)
    state, why = "waiting", "for the server's next request"
    if refused:
        state, why = "failed", f"it refused: {refused}"
    elif what == "model":
        state, why = "finished", "it has its model"
    told = Status.of(
        plan,
        "client",
        state,
        why,
        run=run or None,
        client=account.client,
        ledger=str(account.path.absolute()),
        account=account.name,
        cost=0.0 if enrolment is None else told_cost(directory, enrolment),
        witness=None if witness is None else str(witness.absolute()),
        round=max(number, before.round if before and before.run == run else 0),
        since=time.time(),
        epsilon={},
        answers=(before.answers if before else 0) + (not refused),
        refusals=(before.refusals if before else 0) + bool(refused),
    )
    with suppress(FileError):
        told.write(directory)
