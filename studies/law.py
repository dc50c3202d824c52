"""Gradient releases by their law: what messages would decode to, drawn where the clipped means lie.

A message of channel `direct` decodes to the statistic plus N(0, σ²I), so a seeded simulation may draw that
sum itself, with the generator of the device: nothing is encoded, nothing leaves, and nobody is protected. The
sum of shares of noise has that law too, up to less than 10⁻⁹ in a run, with the variance of all shares in it.
Charges are those of the messages, all of a round in one transaction, and bytes are counted as they are sent.
What a run draws follows from its plan and the round alone, whichever runs are trained beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sottovoce.channel.wire import HEADER_BYTES
from sottovoce.errors import SottovoceError
from sottovoce.models.metrics import Own
from sottovoce.plan import Plan
from sottovoce.privacy.ledger import StreamReused
from sottovoce.release.kind import Release
from sottovoce.release.places.server import Update, noised_sum
from sottovoce.release.places.shared import Shares
from sottovoce.report.result import RunResult
from sottovoce.run.session import Session
from sottovoce.run.simulation import Round, Simulation
from sottovoce.training.client import Client
from studies.memory import MemoryLedger


def has_law(plan: Plan) -> bool:
    """Whether a run may be simulated so: it is seeded, and the law of its releases is a Gaussian's."""
    return plan.seeded and (plan.channel == "direct" or plan.place.shared)


class LawSimulation(Simulation):
    """A run in progress whose gradient releases are drawn, not sent; contexts and confusions are messages."""

    def close_round(self, opened: Round, clipped: Tensor | None = None) -> dict[str, Any]:
        """Charges, draws and applies a round, for clipped means (clients, k) on the server's device."""
        if clipped is None:
            raise SottovoceError("releases by law are drawn for clipped means of many runs: train in a batch")
        plan, gain = self.blueprint.plan, self.server.gain(opened.participants)
        self._charge(opened)
        released = [self.blueprint.releases_of(i)["gradient"] for i in opened.participants]
        noise = self._noise(opened, clipped)
        releases = clipped + noise
        if plan.place.summed:
            self.server.receive_update(self._noised_sum(opened, releases))
            return opened.line(gain, None, bytes=_bytes(released), signal_norm=None, noise_norm=None)
        norms = torch.stack([clipped.norm(dim=1).mean(), noise.norm(dim=1).mean()])
        decoded = dict(zip(opened.participants, releases.float(), strict=True))
        effective = self.server.receive_round(decoded)
        signal_norm, noise_norm = norms.tolist()
        sent = {"bytes": _bytes(released)}
        return opened.line(gain, effective, **sent, signal_norm=signal_norm, noise_norm=noise_norm)

    def _charge(self, opened: Round) -> None:
        """Charges all releases of a round, or none; a round that is made again after a kill was charged."""
        if self._ledger is None:
            return
        try:
            self._commit(opened.number, opened.clients)
        except StreamReused:
            stored = self._ledger.stored
            left = [c for c in opened.clients if stored(self._run, c.name, "gradient", opened.number) is None]
            self._commit(opened.number, left)

    def _commit(self, number: int, clients: Sequence[Client]) -> None:
        assert self._ledger is not None
        releases = [self.blueprint.releases_of(client.participant)["gradient"] for client in clients]
        charges = [
            (release.charge(self._run, client.name, number), b"")
            for release, client in zip(releases, clients, strict=True)
        ]
        self._ledger.commit_many(charges, self.blueprint.budget)

    def _noise(self, opened: Round, clipped: Tensor) -> Tensor:
        """The noise of the channels of a round's releases; that of shares is in their sum."""
        if self.blueprint.sharing is not None:
            return torch.zeros_like(clipped)
        sigmas = [self.blueprint.releases_of(i)["gradient"].channel.sigma for i in opened.participants]
        return self._normal("gradient", opened.number, clipped) * clipped.new_tensor(sigmas)[:, None]

    def _noised_sum(self, opened: Round, releases: Tensor) -> Update:
        """The noised sum, drawn where the releases are."""
        sharing, sigma = self.blueprint.sharing, self.blueprint.sigma
        h, weights = self.server.counted(opened.participants)
        like = releases.new_empty((releases.shape[1], h.shape[1]))
        noise = (sigma if sharing is None else sharing.total) * self._normal("update", opened.number, like)
        total = noised_sum(releases, h, releases.new_tensor(weights), noise)
        return Update(opened.number, tuple(opened.participants), total.float())

    def _normal(self, kind: str, number: int, like: Tensor) -> Tensor:
        """Standard normals of the shape of `like`, float64, fixed by seed, run, kind and round on one device.

        An own generator for each: what one draws does not shift the draws of another.
        """
        stream = f"{self.blueprint.plan.seed}:{self._run}:law:{kind}:{number}"
        seed = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "big") >> 1
        generator = torch.Generator(like.device).manual_seed(seed)
        return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _bytes(released: Sequence[Release]) -> int:
    """What the messages would have taken."""
    return sum(
        release.size * release.channel.sharing.word // 8
        if isinstance(release.channel, Shares)
        else 4 * release.size + (HEADER_BYTES if release.place != "nowhere" else 0)
        for release in released
    )


def session_of(plan: Plan) -> type[Session]:
    """How a run is made whose releases are drawn by their law where they have one."""
    return LawSession if has_law(plan) else Session


class LawSession(Session):
    """A session of `LawSimulation`: its ledger is in memory between checkpoints.

    Sums of noise at the server are kept nowhere: one that is drawn again is the same.
    """

    simulated = LawSimulation
    measures = False
    open_ledger = MemoryLedger.begin

    def checkpoint(self) -> None:
        self._keep()
        super().checkpoint()

    def finish(self, own: Own | None = None) -> RunResult:
        result = super().finish(own)
        self._keep()
        return result

    def _keep(self) -> None:
        if isinstance(self._ledger, MemoryLedger):
            self._ledger.keep()
