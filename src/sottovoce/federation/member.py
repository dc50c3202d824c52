"""A client of a federation: the simulator's `Client` with a directory of its own on the client's machine.

The directory holds the ledger of the client's records and, for each run, what was agreed at enrolment; both
only its owner can read. Every request is answered by a fresh process, so all memory is in these files, and
one request at a time is answered (a lock). A ledger that is older than what the server has received, which
is a restored backup, is first charged for all of that.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sottovoce.blueprint import Blueprint, participant_name
from sottovoce.client import OWN_RECORDS, Client
from sottovoce.data import ClientRecords, fingerprint, read_client, split_participant, split_seeds
from sottovoce.errors import SottovoceError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.padding import pad
from sottovoce.federation.secret import (
    EnrolmentError,
    agreed_secret,
    channel_secret,
    new_key,
    proof,
    public_key,
)
from sottovoce.privacy.ledger import AlreadyDelivered, Charge, Kind, Ledger
from sottovoce.run import write_atomically

log = logging.getLogger("sottovoce.federation")

_RUN = re.compile(r"[0-9a-f]{16}")


class LedgerBehind(SottovoceError):
    """The ledger is older than what the server has received."""


@dataclass(frozen=True)
class Enrolment:
    """What this client agreed with the server of one run; `secret` never leaves this machine."""

    run: str
    participant: int
    agreement: str
    server_key: str
    key: str
    secret: str


class Member:
    """One client's end of a federation. `wish` is the participant index it asks for, None: any free one."""

    def __init__(
        self,
        directory: str | Path,
        records: str | Path,
        agreement: Agreement,
        *,
        wish: int | None = None,
        diagnostics: bool = False,
    ) -> None:
        self._directory = Path(directory)
        self._records_file = Path(records)
        self._agreement = agreement
        self._wish = wish
        self._diagnostics = diagnostics

    def enrol(self, offer: Mapping[str, Any]) -> dict[str, Any]:
        """Answers the server's offer with this client's public key and a proof that it has the secret."""
        run, server_key = str(offer["run"]), bytes(offer["key"])
        self._check_agreement(offer)
        with self._locked():
            enrolment = self._enrolment(run)
            if enrolment is None:
                enrolment = self._new_enrolment(run, server_key, int(offer["proposal"]))
            elif enrolment.server_key != server_key.hex():
                raise EnrolmentError(
                    "the server has another key than at enrolment: it lost its store; start a new run"
                )
        return {
            "participant": enrolment.participant,
            "key": bytes.fromhex(enrolment.key),
            "agreement": self._agreement.digest(),
            "proof": proof(bytes.fromhex(enrolment.secret), bytes(offer["nonce"])),
        }

    def refused(self, run: str, reason: str) -> None:
        """The server declined the enrolment: forgets it, unless something was released under it."""
        log.error("the server refused this client: %s", reason)
        with self._locked():
            if not self._ledger_file.exists():
                self._enrolment_file(run).unlink(missing_ok=True)

    def release(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a request with a charged release; one that was charged before with its stored bytes."""
        self._check_agreement(request)
        with self._locked():
            enrolment = self._enrolment(str(request["run"]))
            if enrolment is None:
                raise EnrolmentError(f"this client is not enrolled in run {request['run']}: enrol first")
            blueprint = self._agreement.blueprint()
            with Ledger.open(self._ledger_file, scope=fingerprint(self._records_file)) as ledger:
                self._catch_up(ledger, blueprint, request)
                return self._release(ledger, blueprint, enrolment, request)

    def _release(
        self, ledger: Ledger, blueprint: Blueprint, enrolment: Enrolment, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        kind, round_number = request["kind"], int(request["round"])
        coefficients = None
        if "coefficients" in request:
            vector = np.frombuffer(request["coefficients"], "<f4").astype(np.float32)
            if vector.shape != (blueprint.coefficients,) or not np.isfinite(vector).all():
                raise SottovoceError("the server sent coefficients of another size, or not finite: refused")
            coefficients = torch.from_numpy(vector)
        client = Client(
            participant_name(enrolment.participant),
            self._records(enrolment.participant),
            blueprint,
            ledger,
            run=enrolment.run,
            secret=channel_secret(
                self._agreement.plan, bytes.fromhex(enrolment.secret), enrolment.participant
            ),
            account=OWN_RECORDS,
        )
        if kind == "context":
            message = client.release_context(coefficients)
        else:
            if coefficients is None or self._not_chosen(blueprint, enrolment.participant, round_number):
                raise SottovoceError(f"this client is not due in round {round_number}: nothing was released")
            message = client.release_gradient(round_number, coefficients)
        answer = {"kind": kind, "round": round_number, "release": pad(message, int(request["bucket"]))}
        if request["diagnostics"] and self._diagnostics and coefficients is not None:
            answer["accuracy"] = client.evaluate(coefficients).accuracy
        return answer

    def _catch_up(self, ledger: Ledger, blueprint: Blueprint, request: Mapping[str, Any]) -> None:
        """Charges what the server has received and a restored ledger does not know, and forgets messages."""
        run, due = str(request["run"]), (request["kind"], int(request["round"]))
        received: list[tuple[Kind, int]] = [("gradient", int(n)) for n in request["received_rounds"]]
        if request["received_context"]:
            received.append(("context", 0))
        unknown = [(kind, number) for kind, number in received if not _charged(ledger, run, kind, number)]
        for kind, number in unknown:
            gradient = kind == "gradient"
            charge = Charge(
                run=run,
                client=OWN_RECORDS,
                kind=kind,
                round=number,
                sensitivity=blueprint.gradient_sensitivity if gradient else blueprint.context_sensitivity,
                sigma=blueprint.sigma if gradient else blueprint.sigma_context,
            )
            ledger.commit(charge, b"", blueprint.budget)
        if request["received_context"] or not self._agreement.plan.releases_context:
            ledger.forget(run, before_round=due[1])
        if unknown and not _charged(ledger, run, *due):
            # This stream may have been used before the restore, and a stream is used once for ever.
            raise LedgerBehind(
                f"the ledger was older than the server's memory: {len(unknown)} releases were charged again, "
                f"and round {due[1]} is left out"
            )

    def _not_chosen(self, blueprint: Blueprint, participant: int, round_number: int) -> bool:
        rounds = blueprint.schedule
        return not 1 <= round_number <= len(rounds) or participant not in rounds[round_number - 1]

    def _records(self, participant: int) -> ClientRecords:
        agreement, plan = self._agreement, self._agreement.plan
        records = read_client(
            self._records_file,
            shape=agreement.shape,
            classes=agreement.classes,
            mean=agreement.mean,
            std=agreement.std,
            needed=-(-plan.gradient_records * 5 // 4),
        )
        seeds = split_seeds(plan.participants + plan.future_clients, plan.seed)
        return split_participant(records, plan.context_records, seeds[participant])

    def _check_agreement(self, fields: Mapping[str, Any]) -> None:
        if fields.get("agreement") != self._agreement.digest():
            raise EnrolmentError(
                "the server works under another agreement than this client's: nothing is released; compare "
                "both agreement.toml"
            )

    def _new_enrolment(self, run: str, server_key: bytes, proposal: int) -> Enrolment:
        participant = proposal if self._wish is None else self._wish
        if participant < 0:
            raise EnrolmentError("the federation is full: every index is taken")
        private = new_key()
        secret = agreed_secret(private, server_key, run=run, name=participant_name(participant))
        enrolment = Enrolment(
            run=run,
            participant=participant,
            agreement=self._agreement.digest(),
            server_key=server_key.hex(),
            key=public_key(private).hex(),
            secret=secret.hex(),
        )
        write_atomically(self._enrolment_file(run), json.dumps(asdict(enrolment)).encode(), mode=0o600)
        return enrolment

    def _enrolment(self, run: str) -> Enrolment | None:
        path = self._enrolment_file(run)
        try:
            return Enrolment(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise EnrolmentError(f"{path} is damaged: restore it from a backup") from None

    def _enrolment_file(self, run: str) -> Path:
        if not _RUN.fullmatch(run):
            raise EnrolmentError(f"'{run[:40]}' is not the name of a run")
        return self._directory / f"enrolment-{run}.json"

    @property
    def _ledger_file(self) -> Path:
        return self._directory / "ledger.sqlite"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _charged(ledger: Ledger, run: str, kind: Kind, round_number: int) -> bool:
    try:
        return ledger.stored(run, OWN_RECORDS, kind, round_number) is not None
    except AlreadyDelivered:
        return True
