"""What a client brings to a run: its records, as the agreement divides them, tried before it enrols.

Before anything is declared or charged every release is tried once on the records themselves, so that what
fails then is told to their owner alone. Afterwards however many of them can be used are read, because a
refusal would depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sottovoce.data import ClientRecords, split_participant, split_seeds, training_size
from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.models.features.cache import described_client
from sottovoce.plan import Plan
from sottovoce.plan.schedule import call_counts
from sottovoce.release.blueprint import Blueprint
from sottovoce.release.kind import spending
from sottovoce.run.session import dry_client


class NotReady(SottovoceError):
    """Why a client cannot take part; it may be about records, and is for their owner alone."""


@dataclass(frozen=True)
class Holdings:
    """A file of records under an agreement; `simulated`: they may be a part of a dataset that was dealt."""

    file: Path
    agreement: Agreement
    simulated: bool = False

    def records(self, participant: int, blueprint: Blueprint, *, enrolled: bool = False) -> ClientRecords:
        """Returns what the client holds; once it has enrolled, however many of its records can be used."""
        plan = blueprint.plan
        needed = -(-blueprint.sizes[participant] * 5 // 4)
        records = described_client(
            self.file,
            plan,
            blueprint.facts,
            needed=needed,
            local=self.agreement.features,
            limited=not enrolled,
        )
        if self.simulated and plan.partition != "client":  # dealt records, of which a place is one
            records = replace(records, identity=None)
        seed = split_seed(plan, participant)
        return split_participant(records, blueprint.context_size(participant), seed)

    def tried(self, participant: int, client: str) -> tuple[int, Blueprint]:
        """The training records to declare, and the blueprint they have been tried with; `NotReady` if any
        release would fail."""
        agreement, declared = self.agreement, 0
        if not 0 <= participant < agreement.plan.participants:
            count = agreement.plan.participants
            raise EnrolmentError(f"there is no participant {participant}: the agreement has {count}")
        try:
            if agreement.open:
                records = described_client(
                    self.file, agreement.plan, agreement.facts, needed=2, local=agreement.features
                )
                declared = training_size(records.units)
                agreement = agreement.alone(declared)
            blueprint = agreement.blueprint()
            dry_client(client, self.records(participant, blueprint), blueprint, participant)
        except Exception as error:  # it may be about records
            raise NotReady(str(error) if isinstance(error, SottovoceError) else repr(error)) from None
        return declared, blueprint


def run_cost(blueprint: Blueprint, participant: int) -> float:
    """Σ (Δ/σ)² of a whole run of a participant."""
    calls = call_counts(blueprint.schedule, blueprint.plan.participants)
    counts = blueprint.participant_counts(int(calls[participant]))
    return spending(blueprint.releases_of(participant), counts)


def split_seed(plan: Plan, participant: int) -> int:
    """The seed by which a participant divides its records into those that train and those held out."""
    return split_seeds(plan.participants + plan.future_clients, plan.seed)[participant]
