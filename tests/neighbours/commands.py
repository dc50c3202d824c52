"""Files through whole commands: `train`, `personalize`, `onboard`, and a federation, each in its process."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

from sottovoce.audit.neighbours import Table, family
from sottovoce.audit.sensitivity import Leaving
from sottovoce.federation.onboarding.service import create_service
from sottovoce.personal.finishing import finish
from sottovoce.plan import Plan
from sottovoce.run.models import write_models
from tests.federation.onboarding.live import live

from . import spy
from .spy import Notes
from .worlds import World

Launch = Callable[[Path, list[str]], str]
"""Runs a command under the spy, with its notes; why it was refused, or nothing."""


def process(notes: Path, command: list[str]) -> str:
    """The command in a process of its own, forked from one that has loaded the program."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.neighbours.spy"])
    said = notes.with_suffix(".txt")
    child = context.Process(target=spy.run_apart, args=(notes, command, said))
    child.start()
    child.join()
    if child.exitcode not in (0, 1, 2):
        raise RuntimeError(f"{command[0]} ended with {child.exitcode}: {said.read_text()}")
    return "" if child.exitcode == 0 else said.read_text().strip().splitlines()[-1]


def through(
    world: World,
    command: str,
    at: Path,
    random: Random,
    count: int,
    launch: Launch = process,
    *,
    finished: bool = False,
) -> Iterator[Leaving | str]:
    """What a command lets out of `count` files that differ in one unit.

    With `finished`, each has been finished at home before: a home model of its own lies beside it.
    """
    at.mkdir()
    client = "west" if command in ("personalize", "onboard") else "north"
    file = world.file(client)
    settings = [f"{key}={value}" for key, value in world.case.plan.items()]
    with ExitStack() as stack:
        place = ""
        if finished or command in ("personalize", "onboard"):
            shutil.copytree(world.source, at / "sites")
            trained = ["train", f"dataset={at / 'sites'}", *settings, "future_clients=0"]
            assert not launch(at / "notes.npz", [*trained, "--out", str(at / "run")])
            place = str(at / "run")
            if finished:
                write_models(at / "run", at / "models", clients=["north"])
            if command == "onboard":
                place = stack.enter_context(live(create_service(at / "run", open_to_all=True)))
        for number, variant in enumerate(family(Table.read(file), world.agreed, random, count)):
            here = at / str(number)
            here.mkdir()
            out = str(here / "out")
            if command in ("personalize", "onboard"):
                variant.write(here / file.name)
                words = [command, place, "--data", str(here / file.name), "--out", out, "--yes"]
            else:
                folder = here / "sites"
                shutil.copytree(world.source, folder)
                variant.write(folder / file.name)
                words = ["train", f"dataset={folder}", *settings, "--out", out]
                if command == "federation":
                    fields = {**world.case.plan, "dataset": "records.toml", "future_clients": 0}
                    plan = Plan.load(overrides={**fields, "participants": 3, "clients_per_round": 3})
                    (folder / "plan.toml").write_text(plan.to_toml(), encoding="utf-8")
                    words = ["federation", str(folder), out]
            if finished:
                mine = (folder if command in ("train", "federation") else here) / file.name
                finish(at / "models" / "north.safetensors", mine, mine.with_suffix(".home.safetensors"))
            refused = launch(here / "notes.npz", words)
            yield refused or Notes.read(here / "notes.npz").leaving(command)
            shutil.rmtree(here)
