"""The game: which of two files does a participant hold? A simulated run is played, and shows something of it.

The adversary knows both files, everything else and all code, and sees what the place of the noise lets him
see: every decoded release under noise=client; under noise=server the noised sums, under noise=shared the sums
of as few shares as protect, and those releases that are private by themselves. A run is the real one, from
client to channel to ledger to server. Its other participants stay silent, since their answers say nothing
about the file. The best test is the likelihood ratio: for Gaussian noise the projection on the known
difference, added up over all releases.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from torch import Tensor

from sottovoce.audit.pair import Pair, ask
from sottovoce.channel.direct import draw
from sottovoce.data import ClientRecords
from sottovoce.plan import Plan
from sottovoce.plan.catalog import Kind
from sottovoce.privacy.ledger import Ledger
from sottovoce.release.kind import Release, server_randomness
from sottovoce.release.secrets import client_secret, seeded_master
from sottovoce.training.client import release_together
from sottovoce.training.server import Server

Vector = np.ndarray

KEPT = 2**14
MEMORY = "/dev/shm"
"""Where files are in memory: what an audit charges need not survive it."""


@dataclass
class Seen:
    """What one run showed: evidence for the second file, what was charged, and what looked wrong."""

    evidence: float = 0.0
    """The log of the likelihood ratio, second file against first."""
    numbers: dict[Kind, Vector] = field(default_factory=dict)
    """The same, number by number of what is released, by kind."""
    apart: dict[Kind, Vector] = field(default_factory=dict)
    """How far the files are apart in parts of σ, squared, number by number: with noise of its own in each
    release, a number's evidence is normal with this variance, around plus or minus half of it."""
    charged: float = 0.0
    """Σ (Δ/σ)² that the ledger holds."""
    ratios: dict[Kind, float] = field(default_factory=dict)
    """How far a statistic moved between the files, against the Δ that was charged: the largest, by kind."""
    noise: dict[Kind, tuple[float, int]] = field(default_factory=dict)
    """Σ of squared noise, against the σ that was charged, and of how many numbers, by kind."""
    noises: dict[tuple[Kind, int], Vector] = field(default_factory=dict)
    """The noise itself, by kind and round, where it is kept: the first `KEPT` numbers."""
    faults: list[str] = field(default_factory=list)


def new_master(plan: Plan) -> bytes:
    """From which the secrets of a run's clients follow: seeded where the plan is, else fresh."""
    return seeded_master(plan) if plan.seeded else secrets.token_bytes(32)


def play(
    pair: Pair, number: int | str, held: ClientRecords, *, master: bytes | None = None, keep: bool = False
) -> Seen:
    """Plays run `number` with this file: seeded where the plan is, else with fresh noise.

    Its ledger is made for it, and gone afterwards. Clients that play one run have one `master`. With `keep`
    the noise itself is in what was seen.
    """
    master = master or new_master(pair.blueprint.plan)
    in_memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with (
        TemporaryDirectory(dir=in_memory) as folder,
        Ledger.open(Path(folder) / "ledger.sqlite", scope="an audit") as book,
    ):
        return _Run(pair, held, book, f"audit-{number}", master, keep=keep).play()


class _Run:
    """One run in progress, as the adversary and the auditor see it."""

    def __init__(
        self, pair: Pair, held: ClientRecords, book: Ledger, run: str, master: bytes, *, keep: bool
    ) -> None:
        self._blueprint, self._name, self._participant = pair.blueprint, pair.name, pair.participant
        self._book, self._run, self._secret = book, run, client_secret(master, pair.name)
        self._client = pair.client(held, book, run, self._secret)
        self._others = [self._client if file is held else pair.client(file) for file in pair.files]
        self._server = Server(pair.blueprint)
        self._seen, self._keep = Seen(), keep
        self._made: dict[tuple[Kind, int], tuple[float, float, int]] = {}

    def play(self) -> Seen:
        """All releases of the participant, from the first to the last."""
        server, rounds = self._server, self._blueprint.plan.rounds
        for phase in self._blueprint.phases:
            if phase.by == "called":
                self._round(phase.after + 1)
            elif phase.by == "participants":
                if server.round == rounds:
                    server.finish()
                released = self._release(phase.kind, 0, server.model_of(phase, self._participant))
                server.receive(phase.kind, self._participant, released)
                server.close(phase)
        self._compare_ledger()
        return self._seen

    def _round(self, number: int) -> None:
        """One round: of the participants only this one answers, if it is called."""
        blueprint, server, who = self._blueprint, self._server, self._participant
        plan = blueprint.plan
        if who not in blueprint.schedule[number - 1]:
            if plan.place.summed:
                server.receive_update(server.add_up({}, server_randomness(plan, self._run, number)))
            else:
                server.receive_round({})
            return
        coefficients = blueprint.downlink("gradient").deliver(server.sent([who]))[0][0]
        if plan.place.shared:
            self._shared_round(number, coefficients)
        elif plan.place.at_server:
            self._server_round(number, coefficients)
        else:
            server.receive_round({who: self._release("gradient", number, coefficients)})

    def _server_round(self, number: int, coefficients: Tensor) -> None:
        """The adversary sees the noised sum, and not the release."""
        server, plan, who = self._server, self._blueprint.plan, self._participant
        h, weights = server.counted([who])
        released, first, second, release = self._make("gradient", number, coefficients)
        update = server.add_up({who: released}, server_randomness(plan, self._run, number))
        columns, bounded = update.columns.double().cpu().numpy(), h[0].cpu().numpy()
        bounded = bounded / max(1.0, float(np.linalg.norm(bounded)))
        length, counts = float(np.linalg.norm(bounded)), float(weights[0])
        # Only along h does the sum know of the release; orthogonal to it there is noise alone.
        along, scale = columns @ (bounded / length), counts * length
        variance = release.sigma**2 + (scale * release.channel.sigma) ** 2
        self._weigh("gradient", along, scale * first, scale * second, variance)
        noise = columns - counts * np.outer(released, bounded)
        self._note(release, number, scale * (second - first), noise)
        server.receive_update(update)

    def _shared_round(self, number: int, coefficients: Tensor) -> None:
        """The adversary is coordinator, all helpers but one, and as many clients as may collude.

        It lets no more clients into the sum than it must, and its own withhold their noise: what opens is a
        sum of H shares. Those of the other honest clients are around zero, because they hold nothing here.
        """
        blueprint, who = self._blueprint, self._participant
        share, first, second, release = self._make("gradient", number, coefficients)
        sharing, signal = blueprint.sharing, self._client.signal
        assert sharing is not None
        assert signal is not None
        others = draw(
            np.zeros((sharing.honest - 1) * sharing.size),
            server_randomness(blueprint.plan, self._run, number),
        )
        total = share.astype(np.int64) + others.reshape(-1, sharing.size).sum(axis=0)
        seen = sharing.columns(total)[:, 0].double().numpy()
        scale = blueprint.counted[who] / sharing.records
        self._weigh("gradient", seen, scale * first, scale * second, release.sigma**2)
        own = sharing.columns(share.astype(np.int64))[:, 0].double().numpy() - scale * signal
        self._note(release, number, scale * (second - first), seen - scale * signal, own)
        self._server.receive_update(self._server.share_out(total, [who]))

    def _release(self, kind: Kind, number: int, coefficients: Tensor | None) -> Vector:
        """A release that is private by itself, and seen as it is decoded."""
        released, first, second, release = self._make(kind, number, coefficients)
        self._weigh(kind, released, first, second, release.sigma**2)
        assert self._client.signal is not None
        self._note(release, number, second - first, released - self._client.signal)
        return released

    def _make(
        self, kind: Kind, number: int, coefficients: Tensor | None
    ) -> tuple[Vector, Vector, Vector, Release]:
        """One release by the one way out, decoded, and what the statistics of the two files are."""
        release = self._blueprint.releases_of(self._participant)[kind]
        asked = ask(self._client, kind, number, coefficients)
        [message] = release_together([asked])
        stream = release.stream(self._run, self._name, number)
        decoded = release.decode(message, secret=self._secret, stream=stream, request=asked.request)
        first, second = (
            self._client.signal
            if client is self._client
            else client.statistic(ask(client, kind, number, coefficients)).numpy()
            for client in self._others
        )
        assert first is not None
        assert second is not None
        return decoded, first, second, release

    def _weigh(self, kind: Kind, seen: Vector, first: Vector, second: Vector, variance: float) -> None:
        evidence = (seen - (first + second) / 2) * (second - first) / variance
        self._seen.evidence += float(evidence.sum())
        self._seen.numbers[kind] = self._seen.numbers.get(kind, 0.0) + evidence
        self._seen.apart[kind] = self._seen.apart.get(kind, 0.0) + (second - first) ** 2 / variance

    def _note(
        self, release: Release, number: int, moved: Vector, noise: Vector, own: Vector | None = None
    ) -> None:
        """Notes how far the statistic moved between the files, and the noise that protects it.

        `own` is what this client added to it, where others add to it too.
        """
        lengths = float(np.linalg.norm(moved)), float(np.linalg.norm(noise))
        self._made[release.kind, number] = (*lengths, noise.size)
        if self._keep:
            self._seen.noises[release.kind, number] = (noise if own is None else own).ravel()[:KEPT].copy()

    def _compare_ledger(self) -> None:
        """Holds every release against the row of the ledger that charges it."""
        seen, charged = self._seen, {}
        seen.faults += [fault for client in {self._client, *self._others} for fault in client.faults]
        for entry in self._book.charges(self._name):
            charged[entry.charge.kind, entry.charge.round] = entry.charge
            seen.charged += entry.charge.mu_squared
        for (kind, number), (moved, noise, size) in self._made.items():
            charge = charged.get((kind, number))
            if charge is None:
                seen.faults.append(f"the {kind} of round {number} left without a charge")
                continue
            seen.ratios[kind] = max(seen.ratios.get(kind, 0.0), moved / charge.sensitivity)
            squares, numbers = seen.noise.get(kind, (0.0, 0))
            seen.noise[kind] = (squares + (noise / charge.sigma) ** 2, numbers + size)
