"""How a run is prepared: the one place that completes a plan, describes and divides records, and builds.

A plan leaves open what its records decide: what `features=auto` is, how many clients a folder has, how many
records each trains on, δ. Every entry point (train, evaluate, compare, plan, federate, sweeps, benches) has
it completed here, in one order, so that one plan about the same records is one plan everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sottovoce import data
from sottovoce.data import Dataset, Facts, FederatedDataset
from sottovoce.models.architectures import given_name
from sottovoce.models.features import open_features
from sottovoce.models.features.cache import Progress, described, described_facts
from sottovoce.models.features.encoded import loaded, own_version, with_encoders
from sottovoce.models.features.local import fingerprint
from sottovoce.plan import Plan
from sottovoce.plan.catalog import PARTITIONS, names_encoder
from sottovoce.plan.checks import PlanError
from sottovoce.privacy import accounting
from sottovoce.release.blueprint import Blueprint, build
from sottovoce.release.recipe import bounds, clip_bound

KEPT = 2
"""Datasets whose features `Shared` keeps."""


@dataclass(frozen=True)
class Outline:
    """A complete plan, and what follows from it and from what its records are."""

    blueprint: Blueprint
    trained: tuple[int, ...]
    """Training records (units) of each participant."""
    federation: FederatedDataset | None
    """Who holds which records, before any feature is computed; None where the dataset was not read."""

    @property
    def plan(self) -> Plan:
        return self.blueprint.plan


@dataclass(frozen=True)
class Prepared(Outline):
    """A run that may begin: also its records as the model sees them, and who holds which."""

    federation: FederatedDataset
    dataset: Dataset


class Shared:
    """What several preparations have in common: records are read, described and divided once.

    They lie on the device of the runs where these keep them there (`resident`).
    """

    def __init__(self, *, resident: bool = False) -> None:
        self._resident = resident
        self._loaded: dict[object, Dataset] = {}
        self._described: list[tuple[Dataset, object, Dataset]] = []
        self._divided: list[tuple[Dataset, object, FederatedDataset]] = []
        self._built: dict[object, Blueprint] = {}

    def loaded(self, plan: Plan) -> Dataset:
        how = (plan.dataset, *plan.shaping("features").items())
        if how not in self._loaded:
            self._loaded = {how: loaded(plan)}
        return self._loaded[how]

    def described(self, records: Dataset, plan: Plan, device: str, **options: Any) -> Dataset:
        how = (plan.shaping("records", "features"), device)
        for source, known, found in self._described:
            if source is records and known == how:
                return found
        found = described(records, plan, device=device, **options)
        if self._resident:
            found = found.to(device)
        self._described = [*self._described[1 - KEPT :], (records, how, found)]
        seen = [kept for _, _, kept in self._described]
        self._divided = [entry for entry in self._divided if any(entry[0] is kept for kept in seen)]
        return found

    def divided(self, seen: Dataset, plan: Plan) -> FederatedDataset:
        how = plan.shaping("records", "features", "division", "sets")
        for source, known, found in self._divided:
            if source is seen and known == how:
                return found
        found = data.divide(seen, plan)
        self._divided.append((seen, how, found))
        return found

    def built(
        self, plan: Plan, facts: Facts, module: nn.Module | str | None, trained: Sequence[int]
    ) -> Blueprint:
        """A blueprint follows from these alone: neighbours have one and the same."""
        how = (plan, facts, id(module) if isinstance(module, nn.Module) else module, tuple(trained))
        if how not in self._built:
            self._built = {how: build(plan, facts, module, trained)}
        return self._built[how]


def prepare(
    plan: Plan,
    dataset: Dataset | None = None,
    *,
    module: nn.Module | str | None = None,
    features: str | None = None,
    trusted: bool = False,
    device: str = "cpu",
    cache: bool = True,
    progress: Progress = lambda done, of: None,
    shared: Shared | None = None,
    index: list[Tensor] | None = None,
) -> Prepared:
    """Prepares a run of `plan` on the records that it names, or on `dataset` in their stead.

    `module` (itself, or by name) and `features` (by name) are code that the caller trusts; with `trusted`
    so is the code that the plan names. `progress` is called with numbers of records described, done
    and of all. `shared` keeps what the next preparation may need too; `index` says who holds which record
    where that is known.
    """
    shared = shared or Shared()
    records = shared.loaded(plan) if dataset is None else dataset
    plan = with_given(plan, dataset, module)
    local = plan.features if trusted and features is None else features
    plan = _completed(plan, records, local)
    seen = shared.described(records, plan, device, cache=cache, progress=progress, local=local)
    federation = shared.divided(seen, plan) if index is None else data.divide(seen, plan, index)
    trained = _trained(federation.participants.sizes)
    code = plan.model if trusted and module is None else module
    plan = resolve(plan, trained, seen.facts)
    blueprint = shared.built(plan, federation.facts, code, trained)
    return Prepared(blueprint.to(device), trained, federation, seen)


def outline(plan: Plan, dataset: Dataset | None = None) -> Outline:
    """Returns what `prepare` would make of a plan whose author is trusted, without computing any features.

    Of a public dataset that a partition divides nothing is read but what is known of it.
    """
    public = data.PUBLIC.get(plan.dataset) if dataset is None else None
    counted = PARTITIONS[plan.partition].counted or plan.records_per_client
    if public is not None and plan.partition != "client" and counted:
        clients = plan.participants + plan.future_clients
        size = plan.records_per_client or public.records // clients
        if clients * size > public.records or size == 0:
            raise PlanError(
                f"{clients} clients × {max(size, 1)} records is more than the {public.records} of "
                f"{plan.dataset}: lower participants, future_clients or records_per_client"
            )
        data.check_sizes(plan.context_records, size, size if plan.future_clients else None)
        plan, facts = complete(plan, public.facts, features=plan.features)
        trained = _trained([size] * plan.participants)
        return Outline(build(resolve(plan, trained, facts), facts, plan.model, trained), trained, None)
    records = loaded(plan) if dataset is None else dataset
    plan = with_given(plan, dataset)
    plan = _completed(plan, records, plan.features)
    federation = data.divide(records, plan)
    facts = described_facts(records.facts, plan, plan.features)
    trained = _trained(federation.participants.sizes)
    return Outline(build(resolve(plan, trained, facts), facts, plan.model, trained), trained, federation)


def complete(plan: Plan, facts: Facts, *, features: str | None = None) -> tuple[Plan, Facts]:
    """A plan about records of which only this is known, and what its model sees of one.

    What their numbers decide stays open until they are declared (`resolve`); `features` as in `prepare`.
    """
    plan = _with_task(_with_features(plan, facts, features), facts)
    return plan, described_facts(facts, plan, features)


def resolve(plan: Plan, trained: Sequence[int], facts: Facts) -> Plan:
    """The plan with m_g, m_c, δ, clip and bias scale, for participants that train on so many records (units).

    `facts` are those of what the model sees.
    Where `gradient_records` or `context_records` is 0 and all train on alike many, it is all of them; where
    they differ it stays 0, each its own.
    """
    least = min(trained)
    alike = least if len(set(trained)) == 1 else 0
    wanted = plan.gradient_records or alike
    if wanted > least:
        raise PlanError(
            f"gradient_records={wanted}, but the smallest participant has {least} training records: "
            f"set gradient_records to at most {least}, or 0 for all"
        )
    plan = _with_recipe(_with_delta(plan, least), trained, facts)
    return plan.replace(gradient_records=wanted, context_records=plan.context_records or alike)


def with_given(plan: Plan, dataset: Dataset | None, module: nn.Module | str | None = None) -> Plan:
    """The plan for the caller's own records or module, where one is given."""
    if dataset is not None:
        plan = plan.for_dataset(dataset.name, clients=dataset.client is not None)
    if isinstance(module, nn.Module):
        features = plan.features if "features" in plan.given else "none"  # it was made for records themselves
        # Calibration folds into a last layer, centring wants a linear model: of this one neither is known.
        unset = {name: 0.0 for name in ("calibration", "centring") if name not in plan.given}
        plan = plan.replace(model=given_name(module), features=features, **unset)
    return plan


def _completed(plan: Plan, records: Dataset, local: str | None) -> Plan:
    """The plan with its feature map and its numbers of clients: 0 participants are all that records name."""
    plan = _with_task(_with_features(plan, records.facts, local), records.facts)
    if plan.participants:
        return plan
    if records.client is None:
        raise PlanError(f"{records.name} does not say who holds which record: set participants")
    found = int(records.client.max()) + 1
    participants = found - plan.future_clients
    if participants < 1:
        raise PlanError(
            f"{records.name} has {found} clients, {plan.future_clients} of them join later: nobody is left "
            "to train, lower future_clients"
        )
    return plan.replace(participants=participants, clients_per_round=plan.clients_per_round or participants)


def _with_features(plan: Plan, facts: Facts, local: str | None = None) -> Plan:
    """The plan with the map that `features=auto` means for such records, and with the encoder that it names.

    Pictures, gray or of three colors, series of eight steps or more and tokens have one, tables have none.

    >>> plan = Plan.load(overrides={"dataset": "mine.npz"})
    >>> [_with_features(plan, Facts(shape, 10)).features for shape in ((3, 32, 32), (64, 3), (20,))]
    ['scattering+patterns', 'spectrum', 'none']
    """
    if plan.features == "auto":
        plan = _with_map(plan, facts)
    own = None
    if ":" in plan.features and plan.features == local and not plan.encoders and facts.source is None:
        own = own_version(fingerprint(plan.features))
    return with_encoders(plan, facts, own or plan.encoders)


def _with_map(plan: Plan, facts: Facts) -> Plan:
    records = facts.source or facts
    shape, name = records.shape, "none"
    if data.tokens(records):
        name = "ngrams" if len(shape) == 1 else "none"
    elif len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 8:
        name = "scattering+patterns"
    elif len(shape) == 2 and shape[0] >= 8:
        name = "spectrum"
    size = 0 if name == "none" else min(plan.feature_size, open_features(name, shape).size)
    return plan.replace(features=name, feature_size=size)


def _with_task(plan: Plan, facts: Facts) -> Plan:
    """The plan with what its records' recipe says of rounds and centring, and without a calibration that
    nobody has set, but for classes and labels of tables.

    A squared error is not made worse by being sure: on tables of numbers, slope and shift from a release of
    2 % of the budget cost more than they gave at every ε tried. Models of features are nearly right as they
    are: on series of nine classes (studies/series.py) a calibration took what features had gained.

    >>> plan = Plan.load(overrides={"dataset": "mine.npz"})
    >>> [_with_task(plan, Facts(shape, 2)).calibration > 0 for shape in ((3, 32, 32), (64, 3), (20,))]
    [False, False, True]
    """
    if names_encoder(plan.features):
        facts = described_facts(facts, plan)
    found = bounds(plan, facts)
    if plan.centring and not found.centred and "centring" not in plan.given:
        plan = plan.replace(centring=0.0)
    if found.rounds > plan.rounds and not plan.learning_rate and "rounds" not in plan.given:
        plan = plan.replace(rounds=found.rounds)
    records = facts.source or facts
    table = len(records.shape) == 1 and not data.tokens(records) and facts.source is None
    if (table and facts.task != "number") or not plan.calibration or "calibration" in plan.given:
        return plan
    return plan.replace(calibration=0.0)


def _with_delta(plan: Plan, training: int) -> Plan:
    """The plan with its δ, where the smallest participant trains on so many records (units).

    A δ of 1/m allows that one of m records is given away whole, so no plan has more. Who sets none gets 1e-5,
    or a tenth of 1/m where that is less. m counts all records of that participant (see `training_size`).

    >>> _with_delta(Plan(), 400).delta, _with_delta(Plan(), 400_000).delta
    (1e-05, 2e-07)
    """
    records = -(-training * 5 // 4)
    if plan.private and "delta" in plan.given and plan.delta * records > 1:
        raise PlanError(
            f"delta={plan.delta:g} is above one over the records of the smallest client, {records:,}: "
            f"somebody's record may be given away whole, set at most {0.1 / records:.1g}"
        )
    usual = min(plan.delta, 1 / (10 * records))
    return plan if "delta" in plan.given or plan.delta == usual else plan.replace(delta=usual)


def _with_recipe(plan: Plan, trained: Sequence[int], facts: Facts) -> Plan:
    """The plan with the clip bound and the bias scale that its recipe gives, where nobody has set them."""
    found, mu = bounds(plan, facts), math.inf
    if plan.private:
        mu = math.sqrt(accounting.mu_squared(plan.epsilon, plan.delta, plan.accounting))
    clip = plan.clip or clip_bound(found, plan, trained, mu)
    return plan.replace(clip=clip, bias_scale=plan.bias_scale or found.bias_scale)


def _trained(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(data.training_size(size) for size in sizes)
