"""A client's home model, finished where its records are when its published model has come.

The server learns nothing of it, not even how long it takes, which depends on the records: it is made by a
process of its own, which outlives the answer to the server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sottovoce.machine.files import PRIVATE
from sottovoce.plan import Plan
from sottovoce.plan.catalog import MODELS


def begin_to_finish(published: Path, records: Path, plan: Plan) -> str:
    """Begins to fit a published model to records; returns where the home model will be, and what is said."""
    home = published.with_name(published.name.removesuffix("personal.safetensors") + "home.safetensors")
    command = [sys.executable, "-c", "from sottovoce.cli import main; main()", "finish", str(published)]
    command += ["--data", str(records), "--out", str(home)]
    command += [] if plan.model in MODELS else ["--model", plan.model]
    command += ["--features", plan.features] if ":" in plan.features else []
    said = home.with_suffix(".log")
    with os.fdopen(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE), "ab") as log:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return f"{home}: see {said}"
