"""What a plan may name, and what each name is capable of; code asks for capabilities, never for names.

Everything else about a method, context, channel or basis lies where it is implemented, under the same name.
Nothing here imports anything, so the command line can complete and check names at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from sottovoce.errors import SottovoceError, nearest

Capabilities = TypeVar("Capabilities")


@dataclass(frozen=True)
class Method:
    """What is learned from the releases (`generator`)."""

    context: Literal["never", "optional", "always"]
    """Whether a private context reaches the model."""
    whole_model: bool = False
    """Every parameter adapts, instead of k coefficients."""
    replays: bool = False
    """Repeats the gains of another run on the same records: a simulation only."""
    individual: bool = False
    """Clients that train have a part of their own, which future clients lack."""
    bounded: bool = False
    """How far a release moves the generator is bounded and known (‖J‖ ≤ 1): noise may be at the server."""
    calibrated_with_context: bool = True
    """Gets the noise of a plan that pays for a context, so that controls differ in one thing only."""


METHODS = {
    "global": Method("never", whole_model=True, bounded=True, calibrated_with_context=False),
    "full": Method("always", whole_model=True),
    "deep-linear": Method("optional"),
    "factorized": Method("optional"),
    "direct": Method("never", bounded=True),
    "radial": Method("never"),
    "replay": Method("never", replays=True),
    "blend": Method("optional", individual=True, bounded=True, calibrated_with_context=False),
    "mean-regularized": Method("optional", individual=True, calibrated_with_context=False),
}


@dataclass(frozen=True)
class Context:
    """The statistic that a client releases once (`context`)."""

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


CONTEXTS = {
    "moments": Context(),
    "standardized": Context(rescaled="each"),
    "labels": Context(uses_labels=True, class_shares=True),
    "predictions": Context(uses_model=True, class_shares=True, rescaled="together"),
    "public": Context(released=False),
    "shares": Context(uses_labels=True, class_shares=True, predicted_for_future=True),
}


@dataclass(frozen=True)
class Channel:
    """How a release becomes bytes (`channel`)."""

    formats: Mapping[str, int]
    """Its formats on the wire and their numbers, 0 to 15; a number is given once for ever."""
    options: tuple[str, ...] = ()
    """Plan keys that it takes beside size and σ."""
    compiled: bool = False
    """Needs numba."""
    private_messages: bool = False
    """Its messages are private themselves, against the server that decodes them too."""


CHANNELS = {
    "direct": Channel({"direct": 0}),
    "direct-q12": Channel({"direct-q12": 1}),
    "lrsuq": Channel({"lrsuq/Z4": 2, "lrsuq/D4": 3, "lrsuq/E8": 4}, options=("lattice",), compiled=True),
    "lrsuq-elias": Channel(
        {"lrsuq-elias/Z4": 5, "lrsuq-elias/D4": 6, "lrsuq-elias/E8": 7}, options=("lattice",), compiled=True
    ),
    "polar": Channel({"polar": 8}, compiled=True),
    "integers": Channel({"integers": 9}, private_messages=True),
}

BASES = ("structured", "unstructured")


@dataclass(frozen=True)
class Partition:
    """How a pooled dataset falls to clients (`partition`)."""

    looks_at_labels: bool = False
    """Labels decide who holds which record: one changed label deals others anew, which no ε covers."""


PARTITIONS = {
    "dirichlet": Partition(looks_at_labels=True),
    "iid": Partition(),
    "client": Partition(),
}


@dataclass(frozen=True)
class Task:
    """What is predicted about a record (`records.toml`: `task`)."""

    metric: str
    """The metric by which models are compared, and one round with the next."""
    reach: float = 1.0
    """How far noise may move an output in a run of `blend`, against a logit: numbers lie within −1…1."""
    largest_step: float = 500.0
    """η where there is little noise: a squared error diverges beyond it, a softmax saturates."""
    class_shares: bool = False
    """Every record is of one class, so that classes have shares, priors and confusions."""


TASKS = {
    "classes": Task("accuracy", class_shares=True),
    "labels": Task("accuracy"),
    "number": Task("r2", reach=0.1, largest_step=10.0),
}

ACTIVATIONS = ("tanh", "relu")
LATTICES = ("Z4", "D4", "E8")
ACCOUNTINGS = ("rdp", "exact")
SCHEDULES = ("random", "balanced")
PRIORS = ("none", "context")
SHIFTS = ("none", "turns")
NOISES = ("client", "server")
FEATURES = ("none", "auto", "scattering", "patterns", "scattering+patterns")


def entry(what: str, name: str, entries: Mapping[str, Capabilities]) -> Capabilities:
    """The entry of a registry; an unknown name is an error that names the nearest one.

    >>> entry("method", "factorised", METHODS)
    Traceback (most recent call last):
    sottovoce.errors.SottovoceError: no method is called 'factorised': did you mean 'factorized'?
    """
    if name not in entries:
        raise SottovoceError(f"no {what} is called '{name}': {nearest(name, entries)}")
    return entries[name]
