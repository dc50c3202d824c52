"""What the server does with the messages of one participant: releases come in, the final model goes out.

The bytes of a release are believed when size, seal, tag and norm allow it. Everybody who trained gets the
coefficients of their own model, once it is final. They are made of releases that were paid for, so nobody is
charged for them; each client's travel under a seal that only its enrolment opens, and are delivered again
until the client says that it has kept its model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from sottovoce.blueprint import Blueprint, participant_name
from sottovoce.downlink import Downlink
from sottovoce.errors import SottovoceError
from sottovoce.federation.roster import Roster
from sottovoce.federation.sealing import KEY_BYTES, MODEL, SEAL_BYTES, seal_downward, unseal
from sottovoce.federation.store import Store
from sottovoce.privacy.ledger import Kind
from sottovoce.server import Server

log = logging.getLogger("sottovoce.federation")


class Implausible(SottovoceError):
    """An authentic release that no client's clipping and noise give; it would only be sent again."""


class Decoder:
    """Opens the sealed releases of a run; `bucket` is what their padding may add."""

    def __init__(self, blueprint: Blueprint, store: Store, roster: Roster, bucket: int) -> None:
        self._blueprint = blueprint
        self._store = store
        self._roster = roster
        self._bucket = bucket

    def check_size(self, participant: int, kind: Kind, sealed: bytes) -> None:
        """Refuses unread what is larger than any message of this release."""
        release = self._blueprint.releases_of(participant)[kind]
        if len(sealed) > SEAL_BYTES + release.largest_message + self._bucket:
            raise SottovoceError(
                f"{participant_name(participant)} sent {len(sealed)} bytes for {release.size} numbers: "
                "refused unread"
            )

    def decode(self, participant: int, kind: Kind, round_number: int, sealed: bytes) -> np.ndarray:
        """The private vector in a sealed message; refused where it is not of this client and release.

        Of a masked share it is the bytes: nobody can decode one by itself.
        """
        release = self._blueprint.releases_of(participant)[kind]
        key = self._store.seal_key(participant, kind)
        if key is None:
            raise SottovoceError(f"{participant_name(participant)} sent a {kind} that it was not asked for")
        stream = release.stream(self._store.run, participant_name(participant), round_number)
        message = unseal(sealed, stream, private=key, agreed=self._roster.agreed(participant))
        if release.place == "shared":
            return np.frombuffer(message, np.uint8)
        return release.decode(message, secret=self._roster.secret(participant), stream=stream)

    def check_plausible(self, participant: int, kind: Kind, decoded: np.ndarray) -> None:
        """Refuses a vector that clipping and noise do not reach."""
        release = self._blueprint.releases_of(participant)[kind]
        if release.place == "shared":
            assert self._blueprint.sharing is not None
            if len(decoded) != KEY_BYTES + self._blueprint.sharing.length:
                raise Implausible(
                    f"{participant_name(participant)} sent {len(decoded)} bytes for a masked share"
                )
        elif not release.plausible(decoded):
            raise Implausible(
                f"{participant_name(participant)} sent a {kind} of a norm that its clipping and noise do not "
                f"reach ({release.largest_norm:.3g}): refused"
            )


class ModelDelivery:
    """Who is to get a model, and the message that brings it."""

    def __init__(self, server: Server, store: Store, roster: Roster) -> None:
        self._server = server
        self._store = store
        self._roster = roster

    def waiting(self) -> list[int]:
        """Participants whose releases are in the generator and who have not kept their model yet."""
        return sorted((self._store.contributors() & self._roster.enrolled) - self._store.kept())

    def message(self, participant: int) -> dict[str, Any]:
        """The final coefficients of one participant, under seal."""
        coefficients = self._server.coefficients([participant])[0]
        return {
            "run": self._store.run,
            "kind": MODEL,
            "model": seal_downward(
                Downlink(len(coefficients)).encode(coefficients),
                (self._store.run, participant_name(participant), MODEL, 0),
                agreed=self._roster.agreed(participant),
            ),
        }

    def accept(self, participant: int, answer: Mapping[str, Any]) -> None:
        """The client's word that its model is on its own disk."""
        if answer.get("kept") is True and participant in self._roster.enrolled:
            self._store.keep_model(participant)
            log.info("%s has its model", participant_name(participant))
