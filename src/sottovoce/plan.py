"""The plan: the frozen description of a run, everything that can change its privacy or its result.

Sampling, clipping, noise and accounting are decided here together, before any record is seen; nothing
that only changes speed (device, threads, progress) is part of a plan, so no such flag can change what
is promised. A plan is a flat TOML table; every key can be overridden as `key=value`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce import catalog
from sottovoce.catalog import CONTEXTS, METHODS
from sottovoce.errors import SottovoceError, nearest
from sottovoce.presets import FOLDER, PRESETS, preset_values

CHOICES: dict[str, Collection[str]] = {
    "preset": PRESETS,
    "partition": tuple(catalog.PARTITIONS),
    "basis": catalog.BASES,
    "method": METHODS,
    "context": CONTEXTS,
    "channel": catalog.CHANNELS,
    "lattice": catalog.LATTICES,
    "accounting": catalog.ACCOUNTINGS,
    "schedule": catalog.SCHEDULES,
    "prior": catalog.PRIORS,
    "features": catalog.FEATURES,
    "shift": catalog.SHIFTS,
    "noise": catalog.NOISES,
    "mlp_activation": catalog.ACTIVATIONS,
}


_NUMBER = re.compile(r"[+-]?(0|[1-9]\d*)(\.\d*)?")


PAPERS_PRESET = "tuned"
"""Where a plan names one of the paper's methods and no preset."""


class PlanError(SottovoceError):
    """A plan that cannot be carried out as written."""


def key(default: Any, text: str, since: str = "0.1") -> Any:
    """A plan field with the sentence that `sottovoce plan --keys` and the docs show for it.

    `since` is the version that brought it: a digest omits later keys at their default, so that the digests
    of plans written before them stay valid.
    """
    return dataclasses.field(default=default, metadata={"help": text, "since": since})


@dataclass(frozen=True)
class Plan:
    """One run, completely described. `Plan.load` resolves preset, file and overrides, in that order.

    >>> plan = Plan.load(overrides=["preset=paper", "dataset=mnist", "epsilon=16", "seed=41"])
    >>> plan.coefficients, plan.accounting, plan.learning_rate
    (16384, 'rdp', 0.1)
    """

    preset: str = key(
        "best",
        "best: what serves best; central: that, with noise at the server; tuned and paper: the paper's",
    )
    dataset: str = key("mnist-small", "mnist-small (shipped), mnist, cifar10, fashion-mnist, or an .npz file")
    partition: str = key(
        "dirichlet", "how records fall to clients: dirichlet over labels, iid, or client column"
    )
    alpha: float = key(0.5, "concentration of the Dirichlet partition; smaller is more heterogeneous")
    participants: int = key(40, "clients that train; 0: all that the records name and do not join later")
    future_clients: int = key(
        10,
        "clients that join after training: so many by the seed, or by name (west,east; or 3,)",
    )
    records_per_client: int = key(0, "records of each client; 0: as many as the dataset gives")
    model: str = key("lenet", "lenet, linear, mlp, or 'package.module:function' called with (shape, classes)")
    method: str = key("factorized", "what is learned and released; see the table of methods")
    coefficients: int = key(
        16384, "k, dimension of the adaptation subspace and of every gradient release; 0: all parameters"
    )
    basis: str = key("structured", "signed partition of the parameters: structured by layer, or unstructured")
    hidden: int = key(100, "r, width of the generator")
    trunk_layers: int = key(1, "layers of h_ψ, the generator before W, each with a ReLU")
    context: str = key("moments", "statistic that a client releases once, or public: none is released")
    context_groups: int = key(1, "moments: g×g spatial blocks per channel are the groups; 1: whole channels")
    context_records: int = key(333, "m_c, records (or units) behind a context; 0: all that each trains on")
    context_round: int = key(0, "predictions: the round before which the contexts are released")
    context_noise: float = key(1.0, "noise scale of the context as a multiple of the gradients'")
    gradient_records: int = key(0, "m_g, records (units) of a gradient release; 0: all that each trains on")
    clip: float = key(1.0, "C_g, bound on the norm of a record's coefficient gradient")
    rounds: int = key(500, "communication rounds")
    clients_per_round: int = key(2, "participants that release in a round; 0: all of them")
    schedule: str = key("balanced", "who releases when, fixed before data are seen")
    learning_rate: float = key(0.2, "server step size; 0 with blend, direct, global: from the noise")
    momentum: float = key(0.0, "server momentum (post-processing)")
    averaging: float = key(0.0, "final generator is the mean over this last share of the rounds; 0: off")
    replay_gains: str = key("", "replay: rounds.jsonl of the factorized run whose gains are replayed")
    channel: str = key("polar", "how a release becomes bytes")
    lattice: str = key("Z4", "lattice of the lrsuq channel")
    epsilon: float = key(8.0, "target of the worst client; inf: no noise and no privacy, for ablations")
    delta: float = key(1e-5, "δ of (ε, δ) differential privacy")
    accounting: str = key("exact", "exact: Gaussian composition; rdp: the paper's closed form")
    budget: float = key(0.0, "most that a client may have spent over all runs of its ledger; 0: epsilon")
    seed: int = key(41, "public seed of partition, schedule, reference, basis and generator")
    seeded: bool = key(False, "draw noise from the seed too: reproducible, and protecting nobody")
    evaluate_every: int = key(50, "rounds between evaluations; 0: only at the end")
    repeat: int = key(0, "which of several noise draws of one seeded simulation; 0: the first", since="0.2")
    individual: float = key(
        -1.0, "blend: share of a client's own part, 1: every client alone; -1: by its size", since="0.2"
    )
    generated: float = key(0.0, "blend: share of the part that the context generates", since="0.2")
    weighting: float = key(0.0, "releases count by (records of the client)^weighting; 0: alike", since="0.2")
    features: str = key(
        "none",
        "public map that the model sees instead of a record; or 'package.module:function' of yours",
        since="0.2",
    )
    feature_size: int = key(0, "features: project to so many numbers; 0: as many as the map has", since="0.2")
    mirror: bool = key(False, "features: mean of a picture's and its mirror image's", since="0.2")
    context_share: float = key(
        0.0, "share of the budget (of μ²) that contexts get; 0: context_noise decides", since="0.2"
    )
    confusion_share: float = key(
        0.02, "shares: share of the budget for the confusion of classes, released at the end", since="0.2"
    )
    future_names: str = key("", "names of the future clients; set by future_clients=NAME,…", since="0.2")
    attraction: float = key(
        0.01, "mean-regularized: λ that draws every client's own model to their mean", since="0.2"
    )
    shift: str = key(
        "none", "turns: a simulated client sees its pictures by a quarter turn of its own", since="0.2"
    )
    prior: str = key("none", "context: log class shares of a released context on the last bias", since="0.2")
    downlink_bits: int = key(
        32, "most bits a coefficient takes on its way to a client in a round; 32: float32", since="0.2"
    )
    noise: str = key(
        "client", "client: every release is private; server: noise once a round, in the sum", since="0.2"
    )
    mlp_sizes: str = key("64", "mlp: widths of its hidden layers, such as 64,32", since="0.2")
    mlp_activation: str = key("tanh", "mlp: tanh or relu", since="0.2")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            # 8 and 8.0 are one ε: equal plans must have equal digests.
            value = _coerce(field.name, getattr(self, field.name), type(field.default))
            object.__setattr__(self, field.name, value)
        _check(self)

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
        given = dict(_read_toml(Path(path))) if path is not None else {}
        given |= _future(given)
        pairs = overrides.items() if isinstance(overrides, Mapping) else map(_split, overrides)
        given |= _future(dict(pairs))
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in given:
            if name not in fields:
                raise PlanError(f"unknown plan key '{name}': {nearest(name, fields)}")
        given = {name: _coerce(name, value, type(fields[name].default)) for name, value in given.items()}
        dataset = given.get("dataset", cls.dataset)
        folder = Path(dataset).is_dir()
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
        if values.get("noise") == "server" and "weighting" not in given:
            values["weighting"] = 1.0
        return cls(**values)._saying(given)

    def replace(self, **changes: Any) -> Plan:
        """The same plan with some keys changed, validated again."""
        return dataclasses.replace(self, **changes)._saying({**self.given, **changes})

    def to_toml(self) -> str:
        """The complete plan as TOML; `Plan.load` of it gives the same plan back."""
        lines = [f"{name} = {_toml(value)}" for name, value in dataclasses.asdict(self).items()]
        return "\n".join(lines) + "\n"

    def digest(self) -> str:
        """A short fingerprint: equal plans and only equal plans share it.

        Of the file whose gains are replayed only the run's name counts, not where its folder lies.
        """
        import hashlib  # loads OpenSSL, which a plan on the command line does without

        values = self.digested()
        values["replay_gains"] = "/".join(Path(self.replay_gains).parts[-2:])
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def digested(self) -> dict[str, Any]:
        """The values by key that a digest is made of: a key that version 0.1 lacked counts when it is set."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata["since"] == "0.1" or getattr(self, field.name) != field.default
        }

    @property
    def private(self) -> bool:
        """False for the noise-free ablation `epsilon=inf`."""
        return math.isfinite(self.epsilon)

    @property
    def noise_at_server(self) -> bool:
        """Whether gradient releases are protected by noise in their sum, and not by noise of their own."""
        return self.noise == "server"

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
        return self.context_traits.uses_labels and not self.context_traits.predicted_for_future

    @property
    def future_uses_model(self) -> bool:
        """Whether the context of a future client is made with the run's model."""
        return self.context_traits.uses_model or self.context_traits.predicted_for_future

    @property
    def context_traits(self) -> catalog.Context:
        """What the context is capable of."""
        return CONTEXTS[self.context]


def keys() -> list[tuple[str, str, str]]:
    """Name, default and meaning of every key, in the order of the file."""
    return [(f.name, _toml(f.default), f.metadata["help"]) for f in dataclasses.fields(Plan)]


def _check(plan: Plan) -> None:
    for name, valid in CHOICES.items():
        value = getattr(plan, name)
        if value not in valid and not (name == "features" and ":" in value):
            raise PlanError(f"{name}={value} is not known: {nearest(str(value), valid)}")
    method, context = plan.traits, plan.context_traits
    positive = ("hidden", "trunk_layers", "context_groups", "rounds", "alpha", "clip", "context_noise")
    steps = () if method.individual or method.bounded else ("learning_rate",)
    numbers = () if plan.partition == "client" else ("participants",)
    for name in (*positive, *numbers, *steps):
        value = getattr(plan, name)
        if not (value > 0 and math.isfinite(value)):
            raise PlanError(f"{name} must be above 0, not {value}")
    counts = (
        "seed",
        "participants",
        "future_clients",
        "clients_per_round",
        "coefficients",
        "records_per_client",
        "gradient_records",
        "context_records",
        "feature_size",
        "context_round",
        "evaluate_every",
        "repeat",
    )
    for name in (*counts, "budget", "learning_rate", "generated", "weighting", "attraction"):
        if not getattr(plan, name) >= 0:
            raise PlanError(f"{name} must be 0 or more, not {getattr(plan, name)}")
    if plan.weighting > 4:
        raise PlanError(f"weighting must be 4 or less, not {plan.weighting}: 1 to 2 is usual")
    if plan.downlink_bits != 32 and not 1 <= plan.downlink_bits <= 7:
        raise PlanError(f"downlink_bits must be 32 (float32) or 1 to 7 (coded), not {plan.downlink_bits}")
    if plan.seed >= 2**63:
        raise PlanError(f"seed must be below 2^63, not {plan.seed}")
    names = plan.future_names.split(",") if plan.future_names else []
    if names and (plan.partition != "client" or len(set(names)) != plan.future_clients):
        raise PlanError(
            f"future_clients={plan.future_names} names clients: each once, and with partition=client"
        )
    if context.rescaled != "no" and plan.participants == 1:
        raise PlanError(
            f"context={plan.context} is scaled by how participants differ: set participants above 1"
        )
    if plan.private and plan.budget and not plan.epsilon <= plan.budget < math.inf:
        raise PlanError(f"budget must be finite and at least epsilon={plan.epsilon:g}, not {plan.budget:g}")
    if not plan.epsilon > 0:
        raise PlanError(
            f"epsilon must be above 0, not {plan.epsilon}: smaller is more private, 1 to 16 is usual"
        )
    if not 0 < plan.delta < 1:
        raise PlanError(f"delta must lie between 0 and 1, not {plan.delta}: 1e-5 is usual")
    if not 0 <= plan.momentum < 1:
        raise PlanError(f"momentum must be at least 0 and below 1, not {plan.momentum}")
    if not 0 <= plan.averaging <= 1:
        raise PlanError(f"averaging is a share of the rounds between 0 and 1, not {plan.averaging}")
    if plan.clients_per_round > plan.participants > 0:
        raise PlanError(
            f"clients_per_round={plan.clients_per_round} is more than participants={plan.participants}: "
            "lower it"
        )
    if method.context == "never" and context.released and plan.prior == "none":
        raise PlanError(f"method={plan.method} uses no context: set context=public, or prior=context")
    if method.context == "always" and not context.released:
        raise PlanError(
            f"method={plan.method} personalizes through a context: choose one, or use method=global"
        )
    if plan.generated + max(plan.individual, 0.0) > 1 or plan.individual > 1:
        raise PlanError(f"generated={plan.generated} and individual={plan.individual} are shares of 1: lower")
    if not (0 <= plan.context_share < 1 and 0 < plan.confusion_share < 1 - plan.context_share):
        raise PlanError("context_share and confusion_share are parts of one budget: keep their sum below 1")
    if context.predicted_for_future and not plan.context_share:
        raise PlanError(f"context={plan.context} is paid by a share of the budget: set context_share=0.05")
    if plan.generated and not context.released:
        raise PlanError("generated says how far a context decides: choose a context, or set generated=0")
    if plan.prior != "none" and not context.class_shares:
        raise PlanError(f"prior={plan.prior} needs a context of class shares: set context=shares")
    if context.uses_model and not 1 <= plan.context_round <= plan.rounds:
        raise PlanError(f"context={plan.context} needs context_round between 1 and rounds={plan.rounds}")
    if method.replays != bool(plan.replay_gains):
        raise PlanError("method=replay and replay_gains=RUN/rounds.jsonl go together, and only together")
    if method.replays and not plan.seeded:
        raise PlanError(
            f"method={plan.method} reuses gains of another run on the same records: "
            "simulation only, seeded=true"
        )
    if plan.repeat and not plan.seeded:
        raise PlanError("repeat names a noise draw of a seeded simulation: set seeded=true, or repeat=0")
    if plan.noise_at_server:
        _check_noise_at_server(plan)
    if not plan.private and plan.channel != "direct":
        raise PlanError("epsilon=inf sends statistics without noise: set channel=direct")
    if not plan.private and not plan.seeded:
        raise PlanError("epsilon=inf protects nobody: it is for simulated ablations, set seeded=true")


def _check_noise_at_server(plan: Plan) -> None:
    if not plan.traits.bounded:
        bounded = ", ".join(name for name, method in METHODS.items() if method.bounded)
        raise PlanError(
            f"noise=server needs a bound on how far one record moves the generator, and method={plan.method} "
            f"has none: choose one of {bounded}, or noise=client"
        )
    if plan.weighting != 1:
        raise PlanError(
            f"noise=server counts clients by their records: set weighting=1, not {plan.weighting}"
        )
    if plan.releases_context and not plan.context_share:
        raise PlanError(
            "noise=server leaves contexts their noise at the client, paid by a share: set context_share=0.05"
        )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PlanError(f"no plan at {path}: give a TOML file, or key=value pairs alone") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} is not a plan: {error}") from None


def _split(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise PlanError(f"'{pair}' is neither a plan file nor key=value")
    return name.strip().replace("-", "_"), value.strip()


def _future(given: dict[str, Any]) -> dict[str, Any]:
    """The settings with `future_clients` told apart: a number, or names (a lone number with a comma).

    >>> _future({"future_clients": "west,east"})
    {'future_clients': 2, 'future_names': 'west,east'}
    >>> _future({"future_clients": "3"}), _future({"future_clients": "3,"})["future_names"]
    ({'future_clients': '3', 'future_names': ''}, '3')
    """
    if "future_clients" not in given or "future_names" in given:
        return given
    value = given["future_clients"]
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value) + ","
    if isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value.strip())):
        return {**given, "future_names": ""}
    names = [name.strip() for name in text.split(",") if name.strip()]
    return {**given, "future_clients": len(names), "future_names": ",".join(names)}


def _coerce(name: str, value: Any, kind: type) -> Any:
    """The value as the key's type; strings come from the command line."""
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        raise PlanError(f"{name} is true or false, not '{value}'")
    if kind is str:
        if isinstance(value, str):
            return value
        raise PlanError(f"{name} is a text, not {value!r}")
    try:
        if isinstance(value, bool):
            raise ValueError
        if kind is int and isinstance(value, float) and value != int(value):
            raise ValueError
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise PlanError(
            f"{name} is {'a whole number' if kind is int else 'a number'}, not '{value}'"
        ) from None


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
