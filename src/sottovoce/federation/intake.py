"""What the server does with the bytes of a release before it believes them: size, seal, tag, norm."""

from __future__ import annotations

import numpy as np

from sottovoce.blueprint import Blueprint, participant_name
from sottovoce.errors import SottovoceError
from sottovoce.federation.roster import Roster
from sottovoce.federation.sealing import SEAL_BYTES, unseal
from sottovoce.federation.store import Store
from sottovoce.privacy.ledger import Kind


class Implausible(SottovoceError):
    """An authentic release that no client's clipping and noise give; it would only be sent again."""


class Intake:
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
        """The private vector in a sealed message; refused where it is not of this client and release."""
        release = self._blueprint.releases_of(participant)[kind]
        key = self._store.seal_key(participant, kind)
        if key is None:
            raise SottovoceError(f"{participant_name(participant)} sent a {kind} that it was not asked for")
        stream = release.stream(self._store.run, participant_name(participant), round_number)
        message = unseal(sealed, stream, private=key, agreed=self._roster.agreed(participant))
        return release.decode(message, secret=self._roster.secret(participant), stream=stream)

    def check_plausible(self, participant: int, kind: Kind, decoded: np.ndarray) -> None:
        """Refuses a vector that clipping and noise do not reach."""
        release = self._blueprint.releases_of(participant)[kind]
        if not release.plausible(decoded):
            raise Implausible(
                f"{participant_name(participant)} sent a {kind} of a norm that its clipping and noise do not "
                f"reach ({release.largest_norm:.3g}): refused"
            )
