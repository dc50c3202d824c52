"""A future client's way in: one context from its own records, one model back, no fine-tuning (Alg. 1).

There are two ways to reach a server, a finished run in this process (`personalize`) and a service over the
network (`onboard`), and one client: its records are charged for the context alone, to the one account that
they have (`training.accounts`), under a lock, with noise from the operating system even where the run was a
seeded simulation. The budget is the client's own, and the price is stated at its own δ, whatever the server's
plan says. A ledger that was restored from a backup is charged for what it has lost first. Asking again
resends the stored context and costs nothing new.

Its keys are kept beside its ledger, one for each run: a stored context was made for its key. Each encoding
has a key of its own, so that no stream is used twice. A key is a draft until its context is charged, and is
kept before that context may leave, together with its price: whoever opens the account is told by it of a
context that the ledger has lost (`training.accounts`).
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sottovoce.data import ClientRecords, Facts, Records, read_client, split_future
from sottovoce.data.sites import has_target
from sottovoce.data.tables import schema
from sottovoce.errors import SottovoceError
from sottovoce.federation.onboarding import NAME
from sottovoce.federation.onboarding.server import FinishedRun
from sottovoce.federation.sealing import KEY_BYTES, agreed_secret, new_key
from sottovoce.machine.determinism import derived_seed
from sottovoce.machine.files import PRIVATE, check_writable, write_atomically
from sottovoce.models.features.cache import described_client
from sottovoce.models.tasks import open_task
from sottovoce.models.tensors import check_place
from sottovoce.personal import personal_model
from sottovoce.personal.finishing import finish as finish_at_home
from sottovoce.personal.finishing import home_file
from sottovoce.privacy.ledger import Ledger, Overspent
from sottovoce.privacy.terms import Price, Terms
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.kind import Release, spending
from sottovoce.run.models import write_model
from sottovoce.training.accounts import PRICE, Account, charge_kept, kept_keys, onboarding_entry
from sottovoce.training.client import Client


class NotFinished(SottovoceError):
    """A model was released for and written, as `found` says, and could not be finished at home."""

    def __init__(self, found: dict[str, Any], why: SottovoceError) -> None:
        super().__init__(f"{found['model']} is written, but was not finished at home: {why}")
        self.found = found


class Keys:
    """The files of one run's key; used under a lock."""

    def __init__(self, account: Account, run: str, server_key: bytes) -> None:
        self._ledger = account.path
        self._account = account.name
        self._run = run
        self._server_key = server_key
        whose = f"{account.path.name}.{run}" + (f".{account.name}" if account.shared else "")
        self._kept = account.path.with_name(f"{whose}.key")
        self._draft = account.path.with_name(f"{whose}.key.draft")

    def entry(self, ledger: Ledger) -> str:
        """The name of this run in the ledger, which may hold releases of the run's training too."""
        old = self._kept.exists() and self._kept.stat().st_size <= 2 * KEY_BYTES  # kept by version 0.1
        known = old and ledger.releases(self._account, run=self._run)
        return self._run if known else onboarding_entry(self._run)

    def reconcile(self, ledger: Ledger, release: Release | None) -> None:
        """Charges contexts of any run whose keys are kept here and which the ledger does not know."""
        charge_kept(ledger, [self._account])
        for key in kept_keys(self._ledger, [self._account]):
            if key.lost(ledger):  # kept by version 0.1, without its price
                if key.run != self._run or release is None:
                    raise SottovoceError(
                        f"a context of run {key.run} left with a key beside {self._ledger}, which does not "
                        "know it: restore the ledger's newest backup"
                    )
                ledger.recover([release.charge(key.entry, self._account, 0)], key.run)

    def renew(self, release: Release) -> None:
        """Drafts a key for a context to be made."""
        price = PRICE.pack(release.mu_squared)
        write_atomically(self._draft, new_key() + self._server_key + price, mode=PRIVATE)

    def private(self) -> bytes:
        """The key of the context that is stored or about to be."""
        for path in (self._draft, self._kept):
            if path.exists():
                content = path.read_bytes()
                made_for = content[KEY_BYTES : 2 * KEY_BYTES]
                if made_for in (self._server_key, b""):  # nothing: kept by version 0.1
                    return content[:KEY_BYTES]
                raise SottovoceError(
                    f"the context in {self._ledger} was made for another key of this run, with which the "
                    "run was not served: give another ledger and add up what both have spent",
                    "ledger",
                )
        raise SottovoceError(
            f"the context in {self._ledger} has lost its key {self._kept}: restore the key, or give another "
            "ledger and add up what both have spent",
            "ledger",
        )

    def keep(self) -> None:
        """Keeps the draft, durably: its context is charged, and leaves after this."""
        if self._draft.exists():
            write_atomically(self._kept, self._draft.read_bytes(), mode=PRIVATE)
            os.unlink(self._draft)


class Reached(Protocol):
    """A server that a future client has reached and may trust."""

    @property
    def run(self) -> str: ...
    @property
    def blueprint(self) -> Blueprint: ...
    @property
    def key(self) -> bytes:
        """Its X25519 public key."""

    def context_model(self) -> Tensor | None:
        """The shared coefficients behind contexts that use a model, None for other statistics."""

    def coefficients(self, private: bytes, message: bytes) -> Tensor:
        """Coefficients (k,) for the context in a message."""


def personalize(
    run: str | Path,
    records_file: str | Path,
    out: str | Path,
    *,
    terms: Terms | None = None,
    module: nn.Module | str | None = None,
    features: str | None = None,
    finish: bool = False,
) -> dict[str, Any]:
    """Writes a future client's model of a run in this machine's folder; see `obtain_model`.

    `module` is the run's own, if it was trained with one: from Python, or as 'package.module:function'; so is
    `features`, by name.
    """
    server = FinishedRun.load(run, module, features)
    said = terms or Terms()
    return obtain_model(server, records_file, out, said, module=module, features=features, finish=finish)


def obtain_model(
    server: Reached,
    records_file: str | Path,
    out: str | Path,
    terms: Terms,
    *,
    module: nn.Module | str | None = None,
    features: str | None = None,
    finish: bool = False,
) -> dict[str, Any]:
    """Writes a future client's model to `out`, a safetensors state dict, and returns what it cost.

    The context is made of m_c records of the file (or units), drawn by what they are and not by their place;
    where there are more and they have labels, the model's accuracy on the others is returned too. It stays
    with the client. So is what the run's agreement had looked up in somebody's records (`uncovered`): it was
    published when the agreement was, before this client came, so there is nothing left to agree to. With
    `finish`, what the model finished at home is comes as `home`.
    """
    check_place(Path(out))
    check_writable(Path(out))
    if finish:
        check_place(home_file(Path(out)), home=True)
    source, blueprint, plan = Path(records_file), server.blueprint, server.blueprint.plan
    if plan.seeded or not plan.private:
        raise SottovoceError(
            "the run's noise protects nobody, for it is seeded or absent: nothing was released"
        )
    uses_labels = plan.context_traits.future_uses_labels
    agreed = schema.of(blueprint.facts.source or blueprint.facts)
    model, records = server.context_model(), future_records(source, blueprint, features)
    account = Account.of(source, terms)
    keys = Keys(account, server.run, server.key)
    with account.open() as book:
        book.past.check()
        keys.reconcile(book, blueprint.releases.get("context"))
        budget, entry, private = account.budget(book), keys.entry(book), new_key()
        price = Price("this release", spending(blueprint.releases, blueprint.future_counts), 0.0, budget)
        if plan.releases_context:
            if book.stored(entry, account.name, "context", 0) is None:
                asked = replace(price, before=book.spent(account.name))
                if not asked.affordable:
                    raise Overspent(asked.refusal(account.path))
                terms.agree(asked)
                keys.renew(blueprint.releases["context"])
            private = keys.private()
        client = Client(
            NAME,
            divided(records, blueprint),
            blueprint,
            book,
            run=server.run,
            secret=agreed_secret(private, server.key, run=server.run, name=NAME),
            account=account.name,
            budget=budget,
            entry=entry,
        )
        message = client.release_context(model) if plan.releases_context else b""
        keys.keep()
        total = budget.price(book.spent(account.name))
    coefficients = server.coefficients(private, message)
    model_file = personal_model(
        blueprint,
        coefficients,
        run=server.run,
        client=account.client,
        epsilon=total,
        delta=budget.delta,
        accounting=budget.accounting,
    )
    write_model(Path(out), model_file)
    judged = records if uses_labels else _with_targets(records, source, blueprint.facts)
    found = {
        "model": str(out),
        "ledger": str(account.path),
        "epsilon": price.epsilon,
        "epsilon_total": total,
        "budget": budget.epsilon,
        "delta": budget.delta,
        "accounting": budget.accounting,
        "context": plan.context,
        "context_bytes": len(message),
        "uses_labels": uses_labels,
        "metric": open_task(blueprint.facts).metric,
        "accuracy": _accuracy(judged, blueprint, coefficients),
        "uncovered": [] if agreed is None else agreed.uncovered,
    }
    if finish:  # labels enter the home file alone: the context has left, and the published file is written
        try:
            found["home"] = finish_at_home(Path(out), source, module=module, features=features)
        except SottovoceError as refused:
            raise NotFinished(found, refused) from None
    return found


def future_records(source: Path, blueprint: Blueprint, features: str | None = None) -> Records:
    """The records of a future client's file, in its order.

    The agreement alone decides whether targets are read: what a target holds, or lacks, moves nothing else.
    """
    plan, facts = blueprint.plan, blueprint.facts
    needed, labels = _needed(blueprint), plan.context_traits.future_uses_labels
    return described_client(source, plan, facts, needed=needed, labels=labels, local=features)


def divided(records: Records, blueprint: Blueprint) -> ClientRecords:
    """The units of a future client's context, and all others, which judge its model at home."""
    return split_future(records, _needed(blueprint), derived_seed(blueprint.plan.seed, "context"))


def _needed(blueprint: Blueprint) -> int:
    return blueprint.context_size(None) if blueprint.plan.releases_context else 0


def _with_targets(records: Records, source: Path, facts: Facts) -> Records | None:
    """The same records with what is to be predicted, to judge a model at home; None if the file does not say.

    Nothing that has left depends on it: targets are read when the context has been released.
    """
    facts = facts.source or facts
    try:
        if not has_target(source, facts):
            return None
        told = read_client(source, facts=facts, needed=0, raw=True, limited=False)  # few labels serve, too
    except SottovoceError as error:
        logging.getLogger("sottovoce.onboarding.future_client").warning("the model was not judged: %s", error)
        return None
    unusable = -1 if records.x.dtype == torch.int64 else torch.nan
    seen = told.usable.view(-1, *[1] * (records.x.ndim - 1))
    return replace(records, x=torch.where(seen, records.x, unusable), y=told.y)


def _accuracy(records: Records | None, blueprint: Blueprint, coefficients: Tensor) -> float | None:
    """The headline metric of a model on records that are not of the context; None if there are none."""
    if records is None or records.units <= _needed(blueprint):
        return None
    mine = Client(NAME, divided(records, blueprint), blueprint, None, run="", secret=b"")
    return mine.evaluate(coefficients).accuracy
