"""A client of a federation: the simulator's `Client` with a directory of its own on the client's machine.

The ledger lies beside the client's records, and is the same that onboarding charges; the directory holds, for
each run, what was agreed at enrolment. Both only their owner can read. The budget is the owner's: a run whose
last release would exceed it is refused before enrolment. Every request is answered by a fresh process, so all
memory is in these files, and one request at a time is answered (a lock). A client whose directory or ledger
was put back from a backup answers nothing until its owner rejoins it (`recovery`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from sottovoce.errors import shown
from sottovoce.federation import Agreement, sealing
from sottovoce.federation.keys import SiteKey
from sottovoce.federation.sealing import MODEL, Declined, EnrolmentError
from sottovoce.federation.site.consent import check_agreement, frozen
from sottovoce.federation.site.directory import ClientLog, Enrolment, working_in
from sottovoce.federation.site.holdings import Holdings, NotReady, run_cost, split_seed
from sottovoce.federation.site.home import begin_to_finish
from sottovoce.federation.site.recovery import LEFT, LedgerBehind, Left, Recovery, opened
from sottovoce.federation.site.witness import Witness
from sottovoce.federation.status import note_contact
from sottovoce.federation.sums import held, helper_names, masks_for
from sottovoce.machine.rollback import Memory
from sottovoce.personal import personal_model
from sottovoce.privacy.ledger import OWN_RECORDS, AlreadyDelivered, Ledger
from sottovoce.privacy.terms import Price, Terms
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.downlink import BadCoefficients, Downlink
from sottovoce.release.secrets import participant_name
from sottovoce.run.models import write_model
from sottovoce.training.accounts import Account
from sottovoce.training.client import Client, Seal


@dataclass(frozen=True, eq=False)
class Node:
    """One client's end of a federation. `wish` is the participant index it asks for, None: any free one.

    `terms` are what the owner of the records is willing to spend over all runs, and where its ledger lies.
    `key` is that of the site, where the agreement is about keys: it says which participant this is.
    `witness` is a folder outside of this machine that knows how far it was, should it be put back as a whole.
    `simulated` says that the records are nobody's, so that a seeded plan, whose noise protects nobody, may
    run.
    """

    directory: Path
    records: Path
    agreement: Agreement
    _: KW_ONLY
    wish: int | None = None
    diagnostics: bool = False
    terms: Terms = field(default_factory=Terms)
    witness: Path | None = None
    simulated: bool = False
    finish: bool = False
    key: SiteKey | None = None

    @property
    def _client_log(self) -> ClientLog:
        return ClientLog(self.directory / "client.log")

    def enrol(self, offer: Mapping[str, Any]) -> dict[str, Any]:
        """Answers the server's offer with this client's public key and a proof that it has the secret."""
        run, server_key = str(offer["run"]), bytes(offer["key"])
        with working_in(self.directory), self._client_log.refusals(f"to enrol in run {shown(run)}"):
            check_agreement(offer, self.agreement, self._consenting)
            enrolment = Enrolment.read(self.directory, run)
            if enrolment is None:
                enrolment = self._new_enrolment(run, server_key, int(offer["proposal"]))
            elif enrolment.server_key != server_key.hex():
                raise EnrolmentError(
                    "the server has another key than at enrolment: it lost its store; start a new run"
                )
        return {
            "participant": enrolment.participant,
            "key": bytes.fromhex(enrolment.key),
            "agreement": self.agreement.digest(),
            "proof": sealing.proof(bytes.fromhex(enrolment.secret), bytes(offer["nonce"])),
            "records": enrolment.records,
            "name": self._account.client,
        }

    def refused(self, run: str, reason: str) -> None:
        """The server declined the enrolment: forgets it, unless something was released under it."""
        with working_in(self.directory):
            self._client_log.note(f"the server refused this client: {shown(reason)}", level=logging.ERROR)
            if not self._released(run):
                Enrolment.file(self.directory, run).unlink(missing_ok=True)

    def release(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a request with a charged release; one that was charged before with its stored bytes.

        One whose bytes are gone is left out for ever, and a client that was put back leaves the run: the
        server is told so.
        """
        try:
            return self._answer(request)
        except (LedgerBehind, AlreadyDelivered) as error:
            why = {"left_out": str(error)}
        except Left:
            why = {"left": LEFT}
        return {"kind": request["kind"], "round": int(request["round"]), **why}

    def rejoin(self) -> list[str]:
        """Takes part again in the runs of this agreement that this client has left, as its owner wishes.

        Charges all that may have left since, and returns what each run comes to, in a line; refused where the
        budget does not cover it.
        """
        said = []
        with (
            working_in(self.directory),
            self._client_log.refusals("to rejoin"),
            self._opened() as ledger,
        ):
            for enrolment in Enrolment.all(self.directory):
                past = self._past(ledger, enrolment)
                if enrolment.agreement == self.agreement.digest() and past.put_back:
                    blueprint = self.agreement.alone(enrolment.records).blueprint()
                    said.append(past.rejoin(blueprint, self._account.budget(ledger)))
                    self._client_log.note(said[-1])
        return said

    def keep_model(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Writes the model that the server's last message brings, beside the ledger; nothing is charged."""
        with working_in(self.directory), self._client_log.refusals("its model"):
            enrolment = self._enrolment(request)
            blueprint = frozen(
                request, enrolment, self.agreement, self._consenting, self.directory
            ).blueprint()
            stream = (enrolment.run, participant_name(enrolment.participant), MODEL, 0)
            sealed, agreed = bytes(request["model"]), bytes.fromhex(enrolment.secret)
            sent = sealing.unseal_downward(sealed, stream, agreed=agreed)
            coefficients = _coefficients(Downlink(blueprint.coefficients), sent)
            account = self._account
            with self._opened() as ledger:
                budget, spent = account.budget(ledger), ledger.spent(OWN_RECORDS)
            model = personal_model(
                blueprint,
                coefficients,
                run=enrolment.run,
                client=account.client,
                epsilon=budget.price(spent),
                delta=budget.delta,
                accounting=budget.accounting,
                division=split_seed(blueprint.plan, enrolment.participant),
            )
            path = account.model_file
            write_model(path, model)
            self._client_log.note(f"run {enrolment.run} is over: the model of these records is {path}")
            if self.finish:
                home = begin_to_finish(path, self.records, blueprint.plan)
                self._client_log.note(f"its home model, which stays here, will be {home}")
        return {"kind": MODEL, "kept": True}

    def masks(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Refuses what helpers are asked for."""
        raise Declined("this node is no helper: it has no masks")

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        what = f"the {shown(request.get('kind'))} of round {shown(request.get('round'))}"
        with working_in(self.directory), self._client_log.refusals(what):
            enrolment = self._enrolment(request)
            agreement = self._frozen(request, enrolment)
            blueprint = agreement.blueprint()
            masks = masks_for(agreement, blueprint, enrolment.run, self.key, request)
            if request["refused"]:
                reason = shown(request["refused"])
                self._client_log.note(f"the server refused an answer: {reason}", level=logging.ERROR)
            account = self._account
            with self._opened() as ledger:
                if enrolment.ledger not in ("", ledger.name):
                    self._client_log.note(
                        f"{ledger.path} is not the ledger of the enrolment", level=logging.ERROR
                    )
                    raise EnrolmentError(
                        "this is not the ledger with which this client enrolled: put that one back"
                    )
                past, budget = self._past(ledger, enrolment), account.budget(ledger)
                past.check(blueprint, budget)
                ledger.forget(enrolment.run, before_round=int(request["round"]))
                before = ledger.releases(OWN_RECORDS)
                answer = self._release(ledger, blueprint, enrolment, request, masks)
                past.note()
                if ledger.releases(OWN_RECORDS) == before:
                    self._client_log.note(f"sends {what} again, as it was stored")
                    return answer
                spent = f"{budget.price(ledger.spent(OWN_RECORDS)):.4f} of {budget}"
                self._client_log.note(f"sends {what}, charged: these records have spent ε = {spent}")
                return answer

    def _release(
        self,
        ledger: Ledger,
        blueprint: Blueprint,
        enrolment: Enrolment,
        request: Mapping[str, Any],
        masks: Seal,
    ) -> dict[str, Any]:
        kind, round_number = request["kind"], int(request["round"])
        coefficients = None
        if "coefficients" in request:
            coefficients = _coefficients(blueprint.downlink(kind), request["coefficients"])
        client = Client(
            participant_name(enrolment.participant),
            partial(self._holdings.records, enrolment.participant, blueprint, enrolled=True),
            blueprint,
            ledger,
            run=enrolment.run,
            secret=sealing.channel_secret(
                self.agreement.plan, bytes.fromhex(enrolment.secret), enrolment.participant
            ),
            participant=enrolment.participant,
            account=OWN_RECORDS,
            budget=self._account.budget(ledger),
            seal=lambda message, stream: sealing.seal(
                masks(message, stream),
                stream,
                to=bytes(request["seal"]),
                agreed=bytes.fromhex(enrolment.secret),
                bucket=int(request["bucket"]),
            ),
            sealed_for=sealing.bound_to(blueprint.plan, bytes(request["seal"])),
            helpers=helper_names(self.agreement),
        )
        once = {phase.kind: phase.model for phase in blueprint.once}
        if kind in once:
            if once[kind] != "none" and coefficients is None:
                raise Declined(f"a {kind} of this run needs the model's coefficients: nothing was released")
            message = client.release_once(kind, coefficients)
        else:
            if coefficients is None or self._not_chosen(blueprint, enrolment.participant, round_number):
                raise Declined(f"this client is not due in round {round_number}: nothing was released")
            message = client.release_gradient(round_number, coefficients)
        for fault in client.faults:  # the server receives what it always does, and is told nothing
            self._client_log.note(fault, level=logging.ERROR)
        if sealing.sealed_for(message) != request["seal"]:
            raise LedgerBehind(
                "the release was sealed for a key that the server no longer has: it was charged, and is left "
                "out since a stream is used once for ever"
            )
        answer = {"kind": kind, "round": round_number, "release": message}
        if request["diagnostics"] and self.diagnostics and coefficients is not None:
            with suppress(Exception):  # whatever a file raises by now
                answer["accuracy"] = client.evaluate(coefficients).accuracy
        return answer

    def _enrolment(self, request: Mapping[str, Any]) -> Enrolment:
        enrolment = Enrolment.read(self.directory, str(request["run"]))
        if enrolment is None:
            raise EnrolmentError(f"this client is not enrolled in run {request['run']}: enrol first")
        return enrolment

    def _not_chosen(self, blueprint: Blueprint, participant: int, round_number: int) -> bool:
        rounds = blueprint.schedule
        return not 1 <= round_number <= len(rounds) or participant not in rounds[round_number - 1]

    def _new_enrolment(self, run: str, server_key: bytes, proposal: int) -> Enrolment:
        participant = proposal if self.wish is None else self.wish
        if self.agreement.parties is not None:  # whatever anybody wishes
            participant = self.agreement.parties.place("site", held(self.key))
        if participant < 0:
            raise EnrolmentError("the federation is full: every index is taken")
        try:
            declared, blueprint = self._holdings.tried(participant, self._account.client)
        except NotReady as error:
            self._client_log.note(f"not ready, and nothing was charged: {error}", level=logging.ERROR)
            raise EnrolmentError("this client is not ready: its own log says why") from None
        with self._opened() as ledger:
            ledger.past.check()
            cost = run_cost(blueprint, participant)
            price = Price("this run", cost, ledger.spent(OWN_RECORDS), self._account.budget(ledger))
            if not price.affordable:
                self._client_log.note(price.refusal(ledger.path), level=logging.ERROR)
                raise EnrolmentError(
                    "this run would exceed the budget of this client: its own log says by how much"
                )
            private = sealing.new_key()
            secret = sealing.agreed_secret(private, server_key, run=run, name=participant_name(participant))
            enrolment = Enrolment(
                run=run,
                participant=participant,
                agreement=self.agreement.digest(),
                server_key=server_key.hex(),
                key=sealing.public_key(private).hex(),
                secret=secret.hex(),
                ledger=ledger.name,
                records=declared,
                cost=price.cost,
            )
            past = self._past(ledger, enrolment)
            if past.outrun:
                raise EnrolmentError("this client was put back to before it took part in this run: refused")
            past.note()
            enrolment.write(self.directory)
        self._client_log.note(f"enrols in run {run} as {participant_name(participant)}; {price}")
        return enrolment

    def _released(self, run: str) -> bool:
        if not Memory(self._account.path).begun and not any(self.directory.glob("trace-*")):
            return False
        with self._opened() as ledger:
            return ledger.past.total_in(run).releases > 0

    @property
    def _consenting(self) -> Terms | None:
        return None if self.simulated else self.terms

    def _frozen(self, request: Mapping[str, Any], enrolment: Enrolment) -> Agreement:
        return frozen(request, enrolment, self.agreement, self._consenting, self.directory)

    def _opened(self) -> AbstractContextManager[Ledger]:
        return opened(self._account, self.directory, self.witness)

    def _past(self, ledger: Ledger, enrolment: Enrolment) -> Recovery:
        witness = None if self.witness is None else Witness(self.witness, self._account.client)
        return Recovery(self.directory, ledger, enrolment, witness)

    def contacted(self, what: str, asked: Mapping[str, Any], refused: str = "") -> None:
        """Notes for the owner that a message came, and why it was refused if it was."""
        place = self.directory, self._account, self.witness
        note_contact(*place, self.agreement.plan, what, asked, refused)

    @property
    def _holdings(self) -> Holdings:
        return Holdings(self.records, self.agreement, self.simulated)

    @property
    def _account(self) -> Account:
        return Account.alone(self.records, self.terms, self.directory)


def _coefficients(downlink: Downlink, sent: bytes) -> Tensor:
    """Coefficients (k,) in the server's bytes."""
    try:
        return downlink.decode(bytes(sent))
    except BadCoefficients as error:
        raise Declined(str(error)) from None
