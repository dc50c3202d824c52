"""A federation across machines, whatever carries its messages, and what it rests on: the agreement, the plan
and the public facts about records that server and clients hold alike.

The agreement is one TOML file, the resolved plan with a table `[records]`, given to every operator before
anything is released. Each end keeps its own copy and refuses to work with an end whose copy differs.
Where the plan leaves numbers of records to the clients, the agreement is open: each client declares its
own at enrolment, and when all have, the server freezes them into it. It comes from another party: it is
checked (`plan.limits`) before anything is built from it, and no name in it is imported unless this machine's
owner has given the same name. Only a simulation may be seeded.

The server coordinates and forgets nothing that was applied; each node keeps key, ledger and messages in a
directory of its own. The roles behind them are the very `Client` and `Server` of the simulator.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data import Dataset, Facts, division
from sottovoce.data.tables.schema import NAME
from sottovoce.errors import SottovoceError, shown
from sottovoce.federation.keys import Parties
from sottovoce.machine.documents import MOST_TEXT, toml
from sottovoce.machine.files import PUBLIC, private_folder, write_atomically
from sottovoce.models.architectures import check_sizes
from sottovoce.models.features.cache import described_facts
from sottovoce.models.features.encoded import loaded
from sottovoce.plan import Plan
from sottovoce.plan.limits import foreign_plan
from sottovoce.plan.recipes import UnknownRecipe, open_recipe
from sottovoce.release.blueprint import Blueprint, build
from sottovoce.run.prepare import outline, resolve

MOST_RECORDS = 2**31


class AgreementError(SottovoceError):
    """An agreement that cannot be read, or two that differ."""


@dataclass(frozen=True)
class Agreement:
    """A resolved plan, and the facts about the records it is about."""

    plan: Plan
    facts: Facts
    simulation: bool = field(default=False, compare=False)
    """Clients are played by this machine, on a public dataset: its noise may be seeded."""
    model: str | None = field(default=None, compare=False)
    """The model that this machine's owner has named, not in the file; it may be code of their own."""
    features: str | None = field(default=None, compare=False)
    """The feature map that this machine's owner has named, likewise."""
    sizes: tuple[int, ...] = ()
    """Training records (units) of each participant, where the plan leaves that to them; none before."""
    parties: Parties | None = None
    """The keys of sites and helpers, where they share the noise."""
    finished: bool = field(default=False, compare=False)
    """Whoever onboards reads it when training is over: nobody shares noise any more."""

    def __post_init__(self) -> None:
        if self.plan.seeded and not self.simulation:
            raise AgreementError(
                "seeded=true draws noise that anybody can subtract: it is for simulations only, agree on "
                "seeded=false"
            )
        if self.plan.shift != "none":
            raise AgreementError(
                f"shift={self.plan.shift} is for simulations: clients of a federation have pictures of their "
                "own, set shift=none"
            )
        keys_missing = self.plan.place.shared and self.parties is None and not self.finished
        if keys_missing or (self.parties is not None and not self.plan.place.shared):
            raise AgreementError(
                "an agreement has the keys of its sites and helpers where its noise is shared, and only "
                "there: collect them first, each made with 'sottovoce site key'"
            )
        if self.parties is not None:
            self.parties.check(self.plan)
        records = self.plan.gradient_records  # where these are open, `resolve` says the same
        if self.plan.delta * records > 1:
            raise AgreementError(
                f"delta={self.plan.delta:g} is above one over gradient_records={records:,}: "
                "somebody's record may be given away whole, agree on a smaller delta"
            )
        if not self.plan.private:
            raise AgreementError("epsilon=inf sends statistics without noise: it is for the simulator only")

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        simulation: bool = False,
        model: str | None = None,
        features: str | None = None,
    ) -> Agreement:
        """From the file that `to_toml` wrote."""
        try:
            with open(path, "rb") as file:
                text = file.read(MOST_TEXT + 1).decode()
            return cls.parse(text, simulation=simulation, model=model, features=features)
        except OSError as error:
            raise AgreementError(
                f"no agreement at {path} ({error.strerror}): ask the server for it"
            ) from None
        except UnknownRecipe as error:
            raise AgreementError(f"{path}: {error}") from None
        except (SottovoceError, UnicodeDecodeError) as error:
            raise AgreementError(
                f"{path} is not an agreement ({error}): 'sottovoce federate' writes one"
            ) from None

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        simulation: bool = False,
        finished: bool = False,
        model: str | None = None,
        features: str | None = None,
    ) -> Agreement:
        """From the text of that file, of another party: typed, bounded, and without code of theirs.

        `model` is what this machine's owner calls the model, `features` the feature map where that is code;
        `simulation` admits a seeded plan.
        """
        if len(text.encode()) > MOST_TEXT:
            raise AgreementError(f"an agreement has at most {MOST_TEXT} bytes: ask for the file again")
        try:
            values = toml(text)
        except (ValueError, RecursionError) as error:
            raise AgreementError(f"that is not TOML ({shown(error)}): ask for the file again") from None
        records, sizes = values.pop("records", None), values.pop("sizes", [])
        keys = values.pop("keys", None)
        if not isinstance(records, dict):
            raise AgreementError("the table [records] is missing: ask for the file again")
        facts, plan = Facts.parse(records), foreign_plan(values, model=model, features=features)
        if not finished:
            if "recipe" not in values:
                raise UnknownRecipe(
                    "the agreement names no recipe, being of version 0.2.0 or earlier: end with that version "
                    "what it began, or make it anew with 'sottovoce federate'"
                )
            open_recipe(plan.recipe)
        check_sizes(plan, facts, model=model)
        _check_features(plan, facts, features)
        parties = None if keys is None else Parties.parse(keys)
        agreement = cls(plan, facts, simulation, model, features, parties=parties, finished=finished)
        return agreement.frozen(sizes) if sizes else agreement

    def to_toml(self) -> str:
        """The file; `load` of it gives the same agreement back.

        A δ that nobody set is not in it while it is open: it follows from the sizes, at both ends alike.
        """
        plan = self.plan.to_toml()
        if self.open and "delta" not in self.plan.given:
            plan = "".join(line for line in plan.splitlines(True) if not line.startswith("delta ="))
        text = plan + (f"sizes = {list(self.sizes)}\n" if self.sizes else "")
        facts = self.facts.fields()
        source = facts.pop("source", {})
        for table, fields in (("records", facts), ("records.source", source)):
            if fields:
                lines = [f"{name} = {json.dumps(value)}\n" for name, value in fields.items()]
                text += f"\n[{table}]\n" + "".join(lines)
        return text + ("" if self.parties is None else self.parties.to_toml())

    @property
    def open(self) -> bool:
        """Returns whether participants have yet to say how many records they have."""
        plan = self.plan
        counts = plan.gradient_records and (plan.context_records or not plan.releases_context)
        return not counts and not self.sizes

    def frozen(self, sizes: Sequence[int]) -> Agreement:
        """The agreement with the training records of every participant, as they declared them."""
        plan = self.plan
        if len(sizes) != plan.participants or not all(
            type(m) is int and 1 <= m <= MOST_RECORDS for m in sizes
        ):
            raise AgreementError(
                f"an agreement is frozen with the training records of its {plan.participants} participants"
            )
        least = min(sizes)
        if max(plan.gradient_records, plan.context_records) > least:
            raise AgreementError(
                f"the smallest participant has {least} training records, fewer than the plan's "
                "gradient_records or context_records: lower them"
            )
        return replace(self, plan=resolve(plan, sizes, self.facts), sizes=tuple(sizes))

    def alone(self, records: int) -> Agreement:
        """The agreement as it would be if all participants had as many training records as this one.

        A client's own releases and their price follow from its own number alone.
        """
        return self.frozen([records] * self.plan.participants) if self.open else self

    def digest(self) -> str:
        """A fingerprint: equal agreements and only equal agreements share it, under later versions too."""
        return self.full_digest()[:32]

    def full_digest(self) -> str:
        """All 32 bytes of it: what masks are derived from, and people compare."""
        values = {**self.plan.digested(), **self._facts()}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def difference(self, other: Agreement) -> str | None:
        """The first key in which another agreement differs, with both values; None if none does."""
        mine, theirs = self._values(), other._values()
        for name, value in mine.items():
            if name == "keys" and theirs.get(name) != value:
                return "the keys of sites or helpers differ"
            if theirs.get(name) != value:
                return f"{name} is {value} here and {theirs.get(name)} there"
        return None

    def blueprint(self) -> Blueprint:
        """Everything that follows from the agreement."""
        if self.open:
            raise AgreementError("the participants have not declared their records yet: wait until all have")
        return build(self.plan, self.facts, self.model, self.sizes)

    def _values(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self.plan), **self._facts()}

    def _facts(self) -> dict[str, Any]:
        facts = {name: getattr(self.facts, name) for name in ("shape", "classes", "mean", "std")}
        frozen = {"sizes": list(self.sizes)} if self.sizes else {}
        keys = {} if self.parties is None else {"keys": dataclasses.asdict(self.parties)}
        return {**self.facts.fields(), **facts, **frozen, **keys}


def _check_features(plan: Plan, facts: Facts, local: str | None) -> None:
    """Refuses facts that are not those of the plan's feature map: a built-in one, or that of this owner."""
    source = facts.source
    if (source is None) != (plan.features == "none"):
        raise AgreementError(
            f"features={plan.features} does not fit what a record is said to be: ask for the file again"
        )
    if source is not None and described_facts(source, plan, local) != facts:
        raise AgreementError("the agreement's features are not those of its plan: ask for the file again")


def agree(plan: Plan, dataset: Dataset | None = None, parties: Parties | None = None) -> Agreement:
    """The agreement of a plan about its own dataset, resolved as the simulator resolves it.

    The clients of a seeded one are played by this machine: a real client refuses it.
    """
    records = loaded(plan) if dataset is None else dataset
    _check_home(records)
    outlined = outline(plan, records)
    chosen, facts = outlined.plan, outlined.blueprint.facts
    agreed = Agreement(chosen, facts, plan.seeded, chosen.model, chosen.features, parties=parties)
    return agreed.frozen(outlined.trained) if agreed.open else agreed


def check_dealt(records: Dataset) -> None:
    """Refuses records that are described: they are encoded here, and nodes read what records.toml says."""
    _check_home(records)
    if records.facts.columns:
        raise SottovoceError(
            f"{records.name} is a described table, and nodes read its own files: give its {NAME}, let each "
            "client have its file (of heart: sottovoce data copy heart DIR), and deal out no dataset",
            "records",
        )


def _check_home(records: Dataset) -> None:
    if records.home is not None:
        raise SottovoceError(
            f"{records.home} is a folder of sites, which have their files already: give its agreement "
            f"{records.home / NAME} and how many participants, and deal out no dataset",
            "records",
        )


def write_client_files(
    agreement: Agreement, folder: str | Path, dataset: Dataset | None = None
) -> list[Path]:
    """Writes `client-I.npz` for participants, `future-I.npz` for future clients, and `agreement.toml`.

    To try a federation out on one machine: the files hold exactly the records that the simulator gives to the
    same clients. In a real federation nobody could do this: clients bring their own files.
    """
    plan, out = agreement.plan, Path(folder)
    records = loaded(plan) if dataset is None else dataset
    check_dealt(records)
    private_folder(out)
    write_atomically(out / "agreement.toml", agreement.to_toml().encode(), PUBLIC)
    paths, facts = [], records.facts
    for number, index in enumerate(division(records, plan)):
        future = number - plan.participants
        path = out / (f"client-{number}.npz" if future < 0 else f"future-{future}.npz")
        file, x, y = io.BytesIO(), records.x[index].numpy(), records.y[index].numpy()
        np.savez(file, x=x, y=y, classes=facts.classes, mean=facts.mean, std=facts.std)
        write_atomically(path, file.getvalue())
        paths.append(path)
    return paths
