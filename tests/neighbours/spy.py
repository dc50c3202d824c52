"""Runs one of our commands, and notes what its clients are about to release.

`federation FOLDER STATE` stands for a federation whose nodes hold the files of a folder.

Clients are made to see the same coefficients in the same round, whatever was released before.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from sottovoce.audit.hostile import Hostile
from sottovoce.audit.sensitivity import Leaving, What, weight
from sottovoce.channel.direct import Integers
from sottovoce.cli import main
from sottovoce.data import Description
from sottovoce.federation import Agreement
from sottovoce.federation.keys import Parties, SiteKey, fingerprint
from sottovoce.federation.node import Node
from sottovoce.federation.server import Coordinator
from sottovoce.federation.store import Store
from sottovoce.federation.sums import HelperNode
from sottovoce.plan import Plan
from sottovoce.privacy.terms import Terms
from sottovoce.run.prepare import complete
from sottovoce.training.client import Asked, Client


class Notes:
    """Statistics before noise, in parts of their charge, and what everybody sees of each release."""

    def __init__(self) -> None:
        self.vectors: list[np.ndarray] = []
        self.seen: list[dict[str, Any]] = []

    @contextmanager
    def taken(self) -> Iterator[Notes]:
        """Notes all releases that are made in the block."""
        statistic, draft = Client.statistic, Client._draft

        def noted(client: Client, asked: Asked) -> torch.Tensor:
            given = asked.coefficients
            if given is not None:
                given = _sent(client, asked.round, len(given))
            vector = statistic(client, replace(asked, coefficients=given))
            release = client._release(asked)
            part = weight(client._blueprint, client.participant, release) / release.sensitivity
            self.vectors.append(vector.numpy() * part)
            self.seen.append(
                {
                    "client": client.name,
                    "kind": asked.kind,
                    "place": release.place,
                    "round": asked.round,
                    "charged": release.sensitivity,
                    "sigma": release.sigma,
                }
            )
            return vector

        def measured(client: Client, asked: Asked) -> bytes:
            message = draft(client, asked)
            if isinstance(client._release(asked).channel, Integers):
                return message  # as long as the released numbers make it, which tells no more than they
            for one in self.seen:
                if (one["client"], one["kind"], one["round"]) == (client.name, asked.kind, asked.round):
                    one["bytes"] = len(message)
            return message

        with patch.object(Client, "statistic", noted), patch.object(Client, "_draft", measured):
            yield self

    def write(self, path: Path) -> None:
        np.savez(path, *self.vectors, seen=json.dumps(self.seen))

    @classmethod
    def read(cls, path: Path) -> Notes:
        notes = cls()
        with np.load(path) as file:
            notes.seen = json.loads(str(file["seen"]))
            notes.vectors = [file[f"arr_{i}"] for i in range(len(notes.seen))]
        return notes

    def leaving(self, command: str) -> Leaving:
        """What a command lets out: its releases, and in public their numbers, lengths and noise."""
        names = [
            What(one["client"], f"{one['kind']} ({command})", one["place"], one["round"]) for one in self.seen
        ]
        pairs = sorted(zip(names, self.vectors, self.seen, strict=True), key=lambda pair: repr(pair[0]))
        return Leaving(
            {what: vector for what, vector, _ in pairs},
            {what: one["charged"] for what, _, one in pairs},
            {"which releases happen, their noise and lengths": [one for _, _, one in pairs]},
        )


def _sent(client: Client, round_number: int, size: int) -> torch.Tensor:
    """What all clients are made to see: far coefficients, or an adversary's; and behind them a centre."""
    far = 2.0 * torch.randn(size, generator=torch.Generator().manual_seed(round_number))
    if round_number % 2:
        blueprint = client._blueprint
        recipe = Hostile.drawn(blueprint.module, Random(round_number))
        far[: blueprint.coefficients] = recipe.coefficients(blueprint.model)
    return far


def federation(folder: Path, state: Path) -> None:
    """A federation of the files in a folder, nodes, helpers and coordinator in this process, to its end."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".csv", ".parquet", ".npz"))
    plan, facts = complete(Plan.load(folder / "plan.toml"), Description.load(folder / "records.toml").facts())
    state.mkdir()
    parties, terms, helpers = None, Terms(noise_at_server=plan.place.summed), []
    keys: list[SiteKey | None] = [None] * len(files)
    if plan.place.shared:
        parties = Parties.dealt(state, plan)
        keys = [SiteKey.read(state / f"{name}.key") for name, _ in parties.sites]
        marks = frozenset(fingerprint(public).replace(" ", "") for _, public in parties.helpers)
        terms = Terms(noise_shared=True, honest=1, helpers=marks)
    agreed = Agreement(plan, facts, parties=parties)
    if parties is not None:
        names = [name for name, _ in parties.helpers]
        helpers = [HelperNode(state / name, agreed, SiteKey.read(state / f"{name}.key")) for name in names]
    coordinator = Coordinator(agreed, Store.open(state / "server.sqlite", agreed, timeout=0.0))
    nodes = [
        Node(state / path.stem, path, agreed, wish=i, terms=terms, key=keys[i])
        for i, path in enumerate(files)
    ]
    for i, member in enumerate([*nodes, *helpers]):
        coordinator.roster.enrol(member.enrol(coordinator.roster.offer()), str(i))
    coordinator.advance()
    while not coordinator.done:
        for who, kind in list(coordinator.missing().items()):
            if who in coordinator.missing():  # still
                request = coordinator.request(who, kind)
                answer = helpers[who - len(nodes)].masks if kind == "masks" else nodes[who].release
                coordinator.accept(who, answer(request))
        coordinator.advance()


def run(notes: Path, command: list[str]) -> None:
    with Notes().taken() as taken:
        try:
            if command[0] == "federation":
                federation(Path(command[1]), Path(command[2]))
            else:
                sys.argv = ["sottovoce", *command]
                main()
        finally:
            taken.write(notes)


def run_apart(notes: Path, command: list[str], said: Path) -> None:
    """The same in a process that is only for it; what it says goes to a file."""
    with said.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        torch.set_num_threads(1)
        run(notes, command)
