"""The plan: the frozen description of a run, everything that can change its privacy or its result.

Sampling, clipping, noise and accounting are decided here together, before any record is seen; nothing
that only changes speed (device, threads, progress) is part of a plan, so no such flag can change what
is promised. A plan is a flat TOML table; every key can be overridden as `key=value`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce import catalog
from sottovoce.catalog import (
    ACCOUNTINGS,
    ACTIVATIONS,
    BASES,
    CHANNELS,
    CONTEXTS,
    FEATURES,
    LATTICES,
    METHODS,
    OPTIMIZERS,
    PARTITIONS,
    PLACES,
    PRIORS,
    SCHEDULES,
    SHIFTS,
)
from sottovoce.errors import nearest
from sottovoce.plan_rules import PlanError, check, coerce, read_toml, split, told_apart, toml
from sottovoce.presets import ALONE, FOLDER, FOLDERS, PRESETS, preset_values

__all__ = ["Plan", "PlanError", "key", "keys"]

PAPERS_PRESET = "tuned"
"""Where a plan names one of the paper's methods and no preset."""


RETIRED = {"replay_gains": ""}
"""Keys of version 0.1 that are gone: a file may still say their default, and digests go on counting it."""

SHAPES = ("records", "features", "division", "sets", "module", "accounting")
"""What a key may shape: which records there are, what a model sees of them, who holds which, which of a
client's serve for what, what a round computes of one, and what is charged. A key that shapes nothing of this
is for the server, which makes something of releases, or for display."""


def key(
    default: Any,
    text: str,
    shapes: str = "",
    *,
    among: Collection[str] = (),
    positive: bool = False,
    natural: bool = False,
    most: int | None = None,
    since: str = "0.1",
) -> Any:
    """A plan field with the sentence that `sottovoce plan --keys` and the docs show for it.

    It says which of `SHAPES` it shapes, and what its value may be: a name `among` some, a number that is
    `positive` or `natural` (0 or more, as every whole number is); `most` bounds what a plan of another party
    may say. `since` is the version that brought it: a digest omits later keys at their default, so that the
    digests of plans written before them stay valid.
    """
    told = {"help": text, "shapes": frozenset(shapes.split()), "since": since, "among": among}
    bounds = {"positive": positive, "natural": natural or type(default) is int, "most": most}
    return dataclasses.field(default=default, metadata={**told, **bounds})


@dataclass(frozen=True)
class Plan:
    """One run, completely described. `Plan.load` resolves preset, file and overrides, in that order.

    >>> plan = Plan.load(overrides=["preset=paper", "dataset=mnist", "epsilon=16", "seed=41"])
    >>> plan.coefficients, plan.accounting, plan.learning_rate
    (16384, 'rdp', 0.1)
    """

    preset: str = key(
        "best",
        "best: what serves best; central, shared: that, by place of noise; tuned and paper: the paper's",
        among=PRESETS,
    )
    dataset: str = key(
        "mnist-small",
        "mnist-small, heart (both shipped), mnist, cifar10, fashion-mnist, a folder of sites or an .npz file",
        "records",
    )
    partition: str = key(
        "dirichlet",
        "how records fall to clients: dirichlet over labels, a few classes each, iid, or client column",
        "division",
        among=PARTITIONS,
    )
    alpha: float = key(
        0.5,
        "concentration of the Dirichlet partition; smaller is more heterogeneous",
        "division",
        positive=True,
    )
    participants: int = key(
        40,
        "clients that train; 0: all that the records name and do not join later",
        "division accounting",
        most=10**6,
    )
    future_clients: int = key(
        10,
        "clients that join after training: so many by the seed, or by name (west,east; or 3,)",
        "division",
        most=10**6,
    )
    records_per_client: int = key(
        0, "records of each client; 0: as many as the dataset gives", "division", most=2**31
    )
    model: str = key(
        "lenet",
        "lenet, linear, mlp, bag (tokens), or 'package.module:function' called with (shape, classes)",
        "module",
    )
    method: str = key(
        "factorized",
        "what is learned and released; see the table of methods",
        "module accounting",
        among=METHODS,
    )
    coefficients: int = key(
        16384,
        "k, dimension of the adaptation subspace and of every gradient release; 0: all parameters",
        "module",
        most=2**24,
    )
    basis: str = key(
        "structured",
        "signed partition of the parameters: structured by layer, or unstructured",
        "module",
        among=BASES,
    )
    hidden: int = key(100, "r, width of the generator", positive=True, most=2**14)
    trunk_layers: int = key(
        1, "layers of h_ψ, the generator before W, each with a ReLU", positive=True, most=64
    )
    context: str = key(
        "moments",
        "statistic that a client releases once, or public: none is released",
        "sets accounting",
        among=CONTEXTS,
    )
    context_groups: int = key(
        1,
        "moments: g×g spatial blocks per channel are the groups; 1: whole channels",
        positive=True,
        most=2**10,
    )
    context_records: int = key(
        333,
        "m_c, records (or units) behind a context; 0: all that each trains on",
        "sets accounting",
        most=2**31,
    )
    context_round: int = key(0, "predictions: the round before which the contexts are released", most=10**6)
    context_noise: float = key(
        1.0, "noise scale of the context as a multiple of the gradients'", "accounting", positive=True
    )
    gradient_records: int = key(
        0,
        "m_g, records (units) of a gradient release; 0: all that each trains on",
        "module accounting",
        most=2**31,
    )
    clip: float = key(
        1.0,
        "C_g, bound on the norm of a record's coefficient gradient; 0: by the recipe for its records",
        "module accounting",
        natural=True,
    )
    rounds: int = key(500, "communication rounds", "accounting", positive=True, most=10**6)
    clients_per_round: int = key(
        2, "participants that release in a round; 0: all of them", "accounting", most=10**6
    )
    schedule: str = key(
        "balanced", "who releases when, fixed before data are seen", "accounting", among=SCHEDULES
    )
    learning_rate: float = key(
        0.2, "server step size; 0 with blend, direct, global: from the noise", natural=True
    )
    momentum: float = key(0.0, "server momentum (post-processing)")
    averaging: float = key(0.0, "final generator is the mean over this last share of the rounds; 0: off")
    channel: str = key("polar", "how a release becomes bytes", among=CHANNELS)
    lattice: str = key("Z4", "lattice of the lrsuq channel", among=LATTICES)
    epsilon: float = key(
        8.0, "target of the worst client; inf: no noise and no privacy, for ablations", "accounting"
    )
    delta: float = key(
        1e-5, "δ of (ε, δ) differential privacy, below one over a client's records", "accounting"
    )
    accounting: str = key(
        "exact", "exact: Gaussian composition; rdp: the paper's closed form", "accounting", among=ACCOUNTINGS
    )
    budget: float = key(
        0.0,
        "most that a client may have spent over all runs of its ledger; 0: epsilon",
        "accounting",
        natural=True,
    )
    seed: int = key(
        41,
        "public seed of partition, schedule, reference, basis and generator",
        "division accounting",
        most=2**63 - 1,
    )
    seeded: bool = key(False, "draw noise from the seed too: reproducible, and protecting nobody")
    evaluate_every: int = key(50, "rounds between evaluations; 0: only at the end", most=2**31)
    repeat: int = key(
        0, "which of several noise draws of one seeded simulation; 0: the first", most=2**31, since="0.2"
    )
    individual: float = key(
        -1.0, "blend: share of a client's own part, 1: every client alone; -1: by its size", since="0.2"
    )
    generated: float = key(
        0.0, "blend: share of the part that the context generates", natural=True, since="0.2"
    )
    weighting: float = key(
        0.0, "releases count by (records of the client)^weighting; 0: alike", natural=True, since="0.2"
    )
    counted_records: int = key(
        0,
        "most records that a client counts for in weights; 0: ten times the median client's",
        most=2**31,
        since="0.2",
    )
    features: str = key(
        "none",
        "public map that the model sees instead of a record; or 'package.module:function' of yours",
        "features",
        among=FEATURES,
        since="0.2",
    )
    feature_size: int = key(
        0,
        "features: project to so many numbers; 0: as many as the map has",
        "features",
        most=2**14,
        since="0.2",
    )
    mirror: bool = key(False, "features: mean of a picture's and its mirror image's", "features", since="0.2")
    context_share: float = key(
        0.0,
        "share of the budget (of μ²) that contexts get; 0: context_noise decides",
        "accounting",
        since="0.2",
    )
    confusion_share: float = key(
        0.02,
        "shares: share of the budget for the confusion of classes, released at the end",
        "accounting",
        since="0.2",
    )
    calibration: float = key(
        0.0,
        "share of the budget for what calibrates probabilities, released at the end; 0: nothing does",
        "accounting",
        natural=True,
        since="0.2",
    )
    future_names: str = key(
        "", "names of the future clients; set by future_clients=NAME,…", "division", since="0.2"
    )
    attraction: float = key(
        0.01,
        "mean-regularized: proximal strength λ, which draws each client's own model to their mean",
        natural=True,
        since="0.2",
    )
    shift: str = key(
        "none",
        "turns: a simulated client sees its pictures rotated by quarter turns of its own",
        "features sets",
        among=SHIFTS,
        since="0.2",
    )
    prior: str = key(
        "none", "context: log class shares of a released context on the last bias", among=PRIORS, since="0.2"
    )
    downlink_bits: int = key(
        32,
        "most bits a coefficient takes on its way to a client in a round; 32: float32",
        most=32,
        since="0.2",
    )
    noise: str = key(
        "client",
        "client: every release is private; server: noise in a round's sum; shared: clients add it",
        "accounting",
        among=PLACES,
        since="0.2",
    )
    optimizer: str = key(
        "sgd", "how the server steps along what was released (post-processing)", among=OPTIMIZERS, since="0.2"
    )
    mlp_sizes: str = key("64", "mlp: widths of its hidden layers, such as 64,32", "module", since="0.2")
    mlp_activation: str = key("tanh", "mlp: tanh or relu", "module", among=ACTIVATIONS, since="0.2")
    classes_per_client: int = key(
        2,
        "partition=classes: of so many classes each client has records, alike many of each",
        "division",
        positive=True,
        most=2**16,
        since="0.2",
    )
    threshold: int = key(
        0,
        "shared: clients whose noise is in every sum, at least; 0: nine tenths of a round's",
        "accounting",
        most=10**6,
        since="0.2",
    )
    colluding: int = key(
        0,
        "shared: those of them who may tell others their noise, at most; 0: a tenth",
        "accounting",
        most=10**6,
        since="0.2",
    )
    helpers: int = key(
        3, "shared: parties whose masks hide all but the sum; one must be honest", most=10**3, since="0.2"
    )

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

    def about(self, dataset: str, *, clients: bool) -> Plan:
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
        values.update(given)
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
        if not (whole and paid) and "calibration" not in given:
            values["calibration"] = 0.0  # a last layer has to adapt as a whole, and shares to pay for all
        if values.get("noise") in ("server", "shared") and "weighting" not in given:
            values["weighting"] = 1.0
        if values.get("noise") == "shared":
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
            if field.metadata["since"] == "0.1" or getattr(self, field.name) != field.default
        }

    def shaping(self, *shapes: str) -> dict[str, Any]:
        """The values by key that shape one of these things: where they are equal, so is it.

        >>> Plan().shaping("features")
        {'features': 'none', 'feature_size': 0, 'mirror': False, 'shift': 'none'}
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
        return catalog.PLACES[self.noise]

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
        """Whether clients release a context at all."""
        return self.context_traits.released

    @property
    def traits(self) -> catalog.Method:
        """What the method is capable of."""
        return METHODS[self.method]

    @property
    def uses_future_labels(self) -> bool:
        """Whether future clients need labels."""
        return self.context_traits.future_uses_labels

    @property
    def future_uses_model(self) -> bool:
        """Whether the context of a future client is made with the run's model."""
        return self.context_traits.future_uses_model

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
