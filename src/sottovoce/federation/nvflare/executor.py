"""The site's half: an NVFlare executor that hands each task to this site's member, and its answer back.

What its owner decides stands in the node.toml that the kit's `local` folder names; the executor takes no
argument, since the server writes a job's. A kit that lets lines of a log or code of others through gets no
answer from it, and the reason is noted for the owner alone, in a file that nobody sends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from sottovoce.federation import Agreement
from sottovoce.federation.nvflare import RECORD
from sottovoce.federation.nvflare.kit import KitError, settings_of
from sottovoce.federation.settings import CANNOT, Member, Settings, answer
from sottovoce.machine.files import PRIVATE

REFUSALS = "sottovoce.log"


class Site(Executor):
    """Answers the server's tasks."""

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        local = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_site_config_dir())
        reply = Shareable()
        reply[RECORD] = answered(local, task_name, shareable[RECORD])
        return reply


def answered(local: Path, what: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of the site with this `local` folder."""
    try:
        known = settings_of(local)
    except KitError as error:  # a logger's line might be streamed
        _note(local, str(error))
        return {"error": CANNOT}

    def member_of() -> Member:
        settings = _meant(known, asked)
        torch.set_num_threads(settings.threads or 1)
        return settings.member()

    return answer(member_of, what, asked)


def _meant(known: Sequence[Settings], asked: Mapping[str, Any]) -> Settings:
    """The settings under whose agreement the server asks; the last ones where it is that of none."""
    for settings in known if len(known) > 1 else ():
        if settings.agreement is None:
            continue
        mine = Agreement.load(
            settings.agreement,
            simulation=settings.simulated,
            model=settings.model,
            features=settings.features,
        )
        sizes = [int(size) for size in asked.get("sizes", ())]
        mine = mine.frozen(sizes) if mine.open and len(sizes) == mine.plan.participants else mine
        if mine.digest() == asked.get("agreement"):
            return settings
    return known[-1]


def _note(local: Path, text: str) -> None:
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} refused to answer: {text}\n"
    with os.fdopen(
        os.open(local / REFUSALS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE), "a", encoding="utf-8"
    ) as file:
        file.write(line)
