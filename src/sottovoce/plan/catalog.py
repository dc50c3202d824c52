"""What a plan may name, what each name is capable of, and how a report puts it.

Code asks for capabilities, never for names. Everything else about a method, context, channel or basis lies
where it is implemented, under the same name. Nothing here imports what it names, so the command line can
complete and check names at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Literal, TypeVar

from sottovoce.errors import SottovoceError, nearest

Capabilities = TypeVar("Capabilities")
Kind = Literal["context", "gradient", "confusion", "calibration", "centre"]
"""What a client releases: gradients in rounds, and all else once."""


@dataclass(frozen=True)
class Method:
    """What is learned from the releases (`training.generator`)."""

    context: Literal["never", "optional", "always"]
    """Whether a private context reaches the model."""
    whole_model: bool = False
    """Every parameter adapts, instead of k coefficients."""
    individual: bool = False
    """Clients that train have a part of their own, which future clients lack."""
    bounded: bool = False
    """How far a release moves the generator is bounded and known (‖J‖ ≤ 1): noise may be at the server."""
    calibrated_with_context: bool = True
    """Gets the noise of a plan that pays for a context, so that controls differ in one thing only."""
    _: KW_ONLY
    phrase: str
    """What was learned, as a report puts it."""


METHODS = {
    "global": Method(
        phrase="one model for all, in all its parameters",
        context="never",
        whole_model=True,
        bounded=True,
        calibrated_with_context=False,
    ),
    "full": Method(
        phrase="a model for each context, in all its parameters", context="always", whole_model=True
    ),
    "deep-linear": Method(phrase="coefficients for each context, by a linear map", context="optional"),
    "factorized": Method(
        phrase="coefficients for each context, by the paper’s small network", context="optional"
    ),
    "direct": Method(phrase="one vector of coefficients for all", context="never", bounded=True),
    "radial": Method(phrase="coefficients of a fixed direction, whose length evolves", context="never"),
    "blend": Method(
        phrase="a part that all share, a part from the context and each participant’s own part",
        context="optional",
        individual=True,
        bounded=True,
        calibrated_with_context=False,
    ),
    "mean-regularized": Method(
        phrase="a model of each participant’s own, drawn to their mean",
        context="optional",
        individual=True,
        calibrated_with_context=False,
    ),
}


@dataclass(frozen=True)
class Context:
    """The statistic that a client releases once (`release.once.context`)."""

    released: bool = True
    uses_labels: bool = False
    class_shares: bool = False
    """Estimates the shares of the classes among a client's records."""
    uses_model: bool = False
    """Made with the private model of `context_round`, and released then."""
    predicted_for_future: bool = False
    """Future clients, who may have no labels, release the mean prediction of the shared model instead."""
    rescaled: Literal["no", "each", "together"] = "no"
    """How the server rescales contexts: not, each coordinate by its own spread, or all by one."""
    _: KW_ONLY
    phrase: str
    """What each released, as a report puts it."""

    @property
    def future_uses_labels(self) -> bool:
        """Returns whether future clients need labels."""
        return self.uses_labels and not self.predicted_for_future

    @property
    def future_uses_model(self) -> bool:
        """Returns whether the context of a future client is made with the run's model."""
        return self.uses_model or self.predicted_for_future


CONTEXTS = {
    "moments": Context(phrase="moments of its inputs"),
    "standardized": Context(phrase="moments of its inputs, standardized at the server", rescaled="each"),
    "labels": Context(phrase="a histogram of its labels", uses_labels=True, class_shares=True),
    "predictions": Context(
        phrase="the classes that a private model predicts for its inputs, on average",
        uses_model=True,
        class_shares=True,
        rescaled="together",
    ),
    "public": Context(phrase="nothing of its own", released=False),
    "shares": Context(
        phrase="the shares of its classes, by labels where it trained and by the shared model’s predictions "
        "where it joined later",
        uses_labels=True,
        class_shares=True,
        predicted_for_future=True,
    ),
}


@dataclass(frozen=True)
class Channel:
    """How a release becomes bytes (`channel`)."""

    private_messages: bool = False
    """Its messages are private themselves, against the server that decodes them too."""
    noiseless: bool = False
    """Carries a statistic as it is where an ablation has no noise."""
    _: KW_ONLY
    phrase: str
    """What releases travelled as, as a report puts it."""


CHANNELS = {
    "direct": Channel(
        phrase="numbers of 32 bits with noise in them",
        noiseless=True,
    ),
    "direct-q12": Channel(
        phrase="numbers of 12 bits with noise in them",
    ),
    "lrsuq": Channel(
        phrase="points of a lattice, whose rounding is the noise",
    ),
    "lrsuq-elias": Channel(
        phrase="points of a lattice, whose rounding is the noise, in Elias’ code",
    ),
    "polar": Channel(
        phrase="polar codes, whose error is the noise",
    ),
    "integers": Channel(
        phrase="whole numbers with noise in them",
        private_messages=True,
    ),
}

BASES = ("structured", "unstructured")


@dataclass(frozen=True)
class Partition:
    """How a pooled dataset falls to clients (`partition`)."""

    looks_at_labels: bool = False
    """Labels decide who holds which record: one changed label deals others anew, which no ε covers."""
    counted: bool = False
    """How many records each client has follows from how many there are, and from nothing about them."""


PARTITIONS = {
    "dirichlet": Partition(looks_at_labels=True, counted=True),
    "classes": Partition(looks_at_labels=True),
    "iid": Partition(counted=True),
    "client": Partition(),
}


@dataclass(frozen=True)
class Task:
    """What is predicted about a record (`records.toml`: `task`)."""

    metric: str
    """The metric (of `METRICS`) by which models are compared, and one round with the next."""
    class_shares: bool = False
    """Every record is of one class, so that classes have shares, priors and confusions."""


TASKS = {
    "classes": Task("accuracy", class_shares=True),
    "labels": Task("accuracy"),
    "number": Task("r2"),
}


@dataclass(frozen=True)
class Metric:
    """How well outputs say what is true of held-out records (`models.metrics`)."""

    phrase: str
    """What a report calls it."""
    measured: Mapping[str, str]
    """By task, the function 'module:name' that measures it, from a task, outputs and targets."""
    percent: bool = False
    """It is a share, shown in percent, and measured so."""


def _ours(**functions: str) -> Mapping[str, str]:
    return {task: f"sottovoce.models.metrics:{function}" for task, function in functions.items()}


METRICS = {
    "accuracy": Metric("accuracy", _ours(classes="score", labels="score"), percent=True),
    "balanced_accuracy": Metric(
        "balanced accuracy", _ours(classes="mean_recall", labels="mean_of_both_rates"), percent=True
    ),
    "exact_match": Metric("exact match", _ours(labels="exact_match"), percent=True),
    "auroc": Metric("AUROC", _ours(classes="areas", labels="areas")),
    "log_loss": Metric("log loss", _ours(classes="mean_loss", labels="mean_loss")),
    "calibration_error": Metric(
        "calibration error", _ours(classes="class_calibration", labels="label_calibration")
    ),
    "mean_absolute_error": Metric("mean absolute error", _ours(number="mean_absolute_error")),
    "root_mean_squared_error": Metric("root mean squared error", _ours(number="root_mean_squared_error")),
    "r2": Metric("R²", _ours(number="r2")),
}
"""In the order in which results tell them."""


@dataclass(frozen=True)
class Optimizer:
    """How the server steps along what was released (`training.optimizers`)."""

    opened: str
    """The class, as 'module:name'."""
    momentum: bool = False
    """It adds gradients up, v ← momentum · v + g, and so moves 1/(1 − momentum) times as far."""
    linear: bool = True
    """Its steps are proportional to gradients, so that a step size can follow from their noise."""


OPTIMIZERS = {"sgd": Optimizer("sottovoce.training.optimizers:Descent", momentum=True)}


@dataclass(frozen=True)
class Place:
    """Where the noise of gradients is added (`noise`)."""

    summed: bool = False
    """To the sum of a round, once: a release is not private by itself, and only sums move the generator."""
    at_server: bool = False
    """By the server, which sees releases that nothing protects, and is trusted with them."""
    shared: bool = False
    """By the clients of a round together; all but their sum is hidden."""
    _: KW_ONLY
    phrase: str
    """Where it is added, as a report puts it."""
    added: str
    """By whom it was added, and who saw what: the end of a sentence on a model's card."""


PLACES = {
    "client": Place(phrase="noise at the client", added="at each client: every release is private by itself"),
    "server": Place(
        phrase="noise at the server",
        added="by the server, once a round: the server itself saw releases without it",
        summed=True,
        at_server=True,
    ),
    "shared": Place(
        phrase="noise shared by clients",
        added="by the clients of a round together: nobody saw more than their noised sum",
        summed=True,
        shared=True,
    ),
}

ACTIVATIONS = ("tanh", "relu")
LATTICES = ("Z4", "D4", "E8")
ACCOUNTINGS = {
    "rdp": "Rényi accounting, the paper’s closed form",
    "exact": "exact composition of Gaussian mechanisms",
}
"""With how a report calls each."""
SCHEDULES = ("random", "balanced")
MODELS = {
    "lenet": "sottovoce.models.architectures:lenet",
    "linear": "sottovoce.models.architectures:linear",
    "mlp": "sottovoce.models.architectures:mlp",
    "bag": "sottovoce.models.architectures:Bag",
}
"""Built-in models, each with what makes it, as 'module:name'."""
PRIORS = ("none", "context")
SHIFTS = ("none", "turns")
DESCRIBED = {
    "scattering": ("pictures (C, H, W)", 3),
    "patterns": ("pictures (C, H, W)", 3),
    "scattering+patterns": ("pictures (C, H, W)", 3),
    "spectrum": ("series (T, F)", 2),
    "ngrams": ("tokens (L,)", 1),
}
"""Public feature maps, what each describes and how many axes that has."""
FEATURES = ("none", "auto", *DESCRIBED)
ENCODERS = ("efficientnet-lite0", "minilm")
"""Public encoders that are fetched by name; others are the owners' own."""
_ENCODER = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")


def names_encoder(name: str) -> bool:
    """Returns whether `features` of that name is an encoder's, and no map of ours or code.

    Several are joined by +. What looks like a map of ours that was misspelled is none.

    >>> [names_encoder(name) for name in ("minilm", "auto", "mine:map", "scatering")]
    [True, False, False, False]
    """
    ours = get_close_matches(name, FEATURES, n=1, cutoff=0.85)
    return not ours and all(_ENCODER.fullmatch(part) for part in name.split("+"))


def function(path: str) -> Callable[..., Any]:
    """The function or class that an entry names as 'module:name'; it is imported when first asked for."""
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def entry(what: str, name: str, entries: Mapping[str, Capabilities]) -> Capabilities:
    """The entry of a registry; an unknown name is an error that names the nearest one.

    >>> entry("method", "factorised", METHODS)
    Traceback (most recent call last):
    sottovoce.errors.SottovoceError: no method is called 'factorised': did you mean 'factorized'?
    """
    if name not in entries:
        raise SottovoceError(f"no {what} is called '{name}': {nearest(name, entries)}")
    return entries[name]
