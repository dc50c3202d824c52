"""The plan: the frozen description of a run, everything that can change its privacy or its result.

Sampling, clipping, noise and accounting are decided here together, before any record is seen; nothing
that only changes speed (device, threads, progress) is part of a plan, so no such flag can change what
is promised. A plan is a flat TOML table; every key can be overridden as `key=value`.

A run has phases: participants release contexts before some round, gradients in every round to which the
schedule calls them, and the rest after the last one; future clients release a context when the model behind
it is known. Simulator, coordinator and onboarding walk these phases, and prices are those of what is released
in them: a new kind of release is an entry here, a statistic (`release.kind`) and what the server makes of it
(`training.server`).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.errors import nearest
from sottovoce.plan import catalog, recipes
from sottovoce.plan.catalog import CONTEXTS, METHODS, PLACES
from sottovoce.plan.checks import PlanError, check, coerce, read_toml, split, told_apart, toml
from sottovoce.plan.keys import FirstKeys, Keys
from sottovoce.plan.presets import ALONE, FOLDER, FOLDERS, PRESETS, preset_values

__all__ = ["CHOICES", "LARGEST", "Plan", "PlanError", "keys"]

log = logging.getLogger("sottovoce.plan")
PAPERS_PRESET = "tuned"
"""Where a plan names one of the paper's methods and no preset."""


FIRST = {field.name for field in dataclasses.fields(FirstKeys)}
RETIRED = {"replay_gains": ""}
"""Keys of version 0.1 that are gone: a file may still say their default, and digests go on counting it."""
UNPINNED = (
    "this plan is of version 0.2.0 or earlier, which named no recipe: what it leaves open is settled anew, "
    "by recipe=%s"
)
ELSEWHERE = {"finish": "each site says it for itself, to 'sottovoce node'"}
"""What people take for keys, and where it is said."""


@dataclass(frozen=True)
class Plan(Keys):
    """One run, completely described. `Plan.load` resolves preset, file and overrides, in that order.

    >>> plan = Plan.load(overrides=["preset=paper", "dataset=mnist", "epsilon=16", "seed=41"])
    >>> plan.coefficients, plan.accounting, plan.learning_rate
    (16384, 'rdp', 0.1)
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            # 8 and 8.0 are one ε: equal plans must have equal digests.
            value = coerce(field.name, getattr(self, field.name), type(field.default))
            object.__setattr__(self, field.name, value)
        check(self)

    @property
    def given(self) -> dict[str, Any]:
        """The keys that somebody has set, rather than a preset or a default."""
        said: dict[str, Any] | None = self.__dict__.get("_given")
        if said is not None:
            return dict(said)
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        }

    def _saying(self, given: Mapping[str, Any]) -> Plan:
        object.__setattr__(self, "_given", dict(given))
        return self

    def for_dataset(self, dataset: str, *, clients: bool) -> Plan:
        """The plan for records that are called otherwise: what somebody has set, and their own preset.

        Nothing stays that a preset chose for another dataset. `clients` says that the records name theirs.
        """
        if dataset == self.dataset:
            return self
        own = FOLDER if clients and "partition" not in self.given else {}
        return Plan.load(overrides={"preset": self.preset, **own, **self.given, "dataset": dataset})

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Iterable[str] | Mapping[str, Any] = ()) -> Plan:
        """Preset values, then the file's, then the overrides (`key=value` strings or a mapping).

        A plan that states every key, as a run's own does, takes nothing from a preset.
        Where no preset is named it is `best`, or for one of the paper's methods on other records than a
        folder's `tuned`.
        """
        given = dict(read_toml(Path(path))) if path is not None else {}
        given |= told_apart(given)
        pairs = overrides.items() if isinstance(overrides, Mapping) else map(split, overrides)
        typed = told_apart(dict(pairs))
        if typed.get("colluding") == "0":
            raise PlanError("every participant knows its own noise: set colluding to 1 or more")
        given |= typed
        given = {name: value for name, value in given.items() if (name, value) not in RETIRED.items()}
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in given:
            if name in ELSEWHERE:
                raise PlanError(f"{name} is no key of a plan: {ELSEWHERE[name]}", name)
            if name not in fields:
                raise PlanError(f"unknown plan key '{name}': {nearest(name, fields)}")
        given = {name: coerce(name, value, type(fields[name].default)) for name, value in given.items()}
        dataset = given.get("dataset", cls.dataset)
        folder = dataset in FOLDERS or Path(dataset).is_dir()
        method = METHODS.get(given.get("method", ""))
        papers = method is not None and not method.individual and not folder
        preset = given.get("preset", PAPERS_PRESET if papers else cls.preset)
        if preset not in PRESETS:
            raise PlanError(f"unknown preset '{preset}': {nearest(str(preset), PRESETS)}")
        values = preset_values(preset, dataset, given.get("context"), folder=folder)
        if given.keys() >= FIRST:
            values = {}  # of keys that came later it takes the defaults, whatever its preset says today
        if "recipe" not in given:
            values["recipe"] = recipes.CURRENT
            if given.keys() >= FIRST:
                log.warning(UNPINNED, recipes.CURRENT)
        values.update(given)
        features = values.get("features", cls.features)
        if ":" in features or catalog.names_encoder(features):  # a map of its own size, whose head is whole
            whole_map = {"feature_size": 0, "mirror": False}
            if values.get("model", cls.model) == "linear":
                whole_map["coefficients"] = 0
            values |= {name: value for name, value in whole_map.items() if name not in given}
        if not values.get("clients_per_round", cls.clients_per_round):
            values["clients_per_round"] = values.get("participants", cls.participants)
        method = METHODS.get(values.get("method", cls.method))
        if method is not None and method.context == "never" and not {"context", "prior"} & given.keys():
            values["context"] = "public"
        context = CONTEXTS.get(values.get("context", cls.context))
        if context is not None and not context.class_shares and "prior" not in given:
            values["prior"] = "none"
        if context is not None and not context.released and "context_share" not in given:
            values["context_share"] = 0.0
        if given.get("model", "linear") != "linear" and "features" not in given:
            values["features"] = "none"  # another model sees records themselves
        whole = not values.get("coefficients", cls.coefficients) and ":" not in values.get("model", cls.model)
        paid = values.get("context_share") or (context is not None and not context.released)
        for name in ("calibration", "centring"):
            if not (whole and paid) and name not in given:
                values[name] = 0.0  # a last layer has to adapt as a whole, and shares to pay for all
        if given.get("downlink_bits", 32) != 32 and "centring" not in given:
            values["centring"] = 0.0
        place = PLACES.get(str(values.get("noise")), PLACES["client"])
        if place.summed and "weighting" not in given:
            values["weighting"] = 1.0
        if place.shared:
            values |= {name: value for name, value in ALONE.items() if name not in given}
        return cls(**values)._saying(given)

    def replace(self, **changes: Any) -> Plan:
        """The same plan with some keys changed, validated again."""
        return dataclasses.replace(self, **changes)._saying({**self.given, **changes})

    def to_toml(self) -> str:
        """The complete plan as TOML; `Plan.load` of it gives the same plan back."""
        lines = [f"{name} = {toml(value)}" for name, value in dataclasses.asdict(self).items()]
        return "\n".join(lines) + "\n"

    def digest(self) -> str:
        """A short fingerprint: equal plans and only equal plans share it."""
        import hashlib  # loads OpenSSL, which a plan on the command line does without

        text = json.dumps(self.digested(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def digested(self) -> dict[str, Any]:
        """The values by key that a digest is made of: a key that version 0.1 lacked counts when it is set."""
        return RETIRED | {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name in FIRST or getattr(self, field.name) != field.default
        }

    def shaping(self, *shapes: str) -> dict[str, Any]:
        """The values by key that shape one of these things: where they are equal, so is it.

        >>> Plan().shaping("features")
        {'features': 'none', 'feature_size': 0, 'mirror': False, 'shift': 'none', 'encoders': ''}
        """
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if not field.metadata["shapes"].isdisjoint(shapes)
        }

    @property
    def private(self) -> bool:
        """False for the noise-free ablation `epsilon=inf`."""
        return math.isfinite(self.epsilon)

    @property
    def place(self) -> catalog.Place:
        """Where the noise of gradients is added."""
        return PLACES[self.noise]

    @property
    def in_every_sum(self) -> int:
        """Clients of a round that must be in its sum, where they share its noise."""
        return self.threshold or max(2, 9 * self.clients_per_round // 10)

    @property
    def may_collude(self) -> int:
        """Those of them that may tell others their noise; every participant knows its own, so never 0."""
        return self.colluding or max(1, -(-self.clients_per_round // 10))

    @property
    def releases_context(self) -> bool:
        """Returns whether clients release a context at all."""
        return self.context_traits.released

    @property
    def traits(self) -> catalog.Method:
        """What the method is capable of."""
        return METHODS[self.method]

    @property
    def context_traits(self) -> catalog.Context:
        """What the context is capable of."""
        return CONTEXTS[self.context]


CHOICES: dict[str, Collection[str]] = {
    field.name: field.metadata["among"] for field in dataclasses.fields(Plan) if field.metadata["among"]
}
"""The names that a key may have for its value."""
LARGEST: dict[str, int] = {
    field.name: field.metadata["most"]
    for field in dataclasses.fields(Plan)
    if field.metadata["most"] is not None
}
"""The most that a plan of another party may say."""


def keys() -> list[tuple[str, str, str]]:
    """Name, default and meaning of every key, in the order of the file."""
    return [(f.name, toml(f.default), f.metadata["help"]) for f in dataclasses.fields(Plan)]
