"""The keys of a plan: what each means, what it shapes, and which values it may have.

A key is stated here once. Checks, completion, bounds for plans of other parties, which runs may train in one
batch, what is kept of features and divisions, and the scope of a ledger follow from what it says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sottovoce.plan import catalog, recipes
from sottovoce.plan.presets import PRESETS

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
) -> Any:
    """A plan field with the sentence that `sottovoce plan --keys` and the docs show for it.

    It says which of `SHAPES` it shapes, and what its value may be: a name `among` some, a number that is
    `positive` or `natural` (0 or more, as every whole number is); `most` bounds what a plan of another party
    may say.
    """
    told = {"help": text, "shapes": frozenset(shapes.split()), "among": among}
    bounds = {"positive": positive, "natural": natural or type(default) is int, "most": most}
    return dataclasses.field(default=default, metadata={**told, **bounds})


@dataclass(frozen=True)
class FirstKeys:
    """The keys that version 0.1 had."""

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
        among=catalog.PARTITIONS,
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
        among=catalog.METHODS,
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
        among=catalog.BASES,
    )
    hidden: int = key(100, "r, width of the generator", positive=True, most=2**14)
    trunk_layers: int = key(
        1, "layers of h_ψ, the generator before W, each with a ReLU", positive=True, most=64
    )
    context: str = key(
        "moments",
        "statistic that a client releases once, or public: none is released",
        "sets accounting",
        among=catalog.CONTEXTS,
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
        "balanced", "who releases when, fixed before data are seen", "accounting", among=catalog.SCHEDULES
    )
    learning_rate: float = key(
        0.2, "server step size; 0 with blend, direct, global: from the noise", natural=True
    )
    momentum: float = key(0.0, "server momentum (post-processing)")
    averaging: float = key(0.0, "final generator is the mean over this last share of the rounds; 0: off")
    channel: str = key("polar", "how a release becomes bytes", among=catalog.CHANNELS)
    lattice: str = key("Z4", "lattice of the lrsuq channel", among=catalog.LATTICES)
    epsilon: float = key(
        8.0, "target of the worst client; inf: no noise and no privacy, for ablations", "accounting"
    )
    delta: float = key(
        1e-5, "δ of (ε, δ) differential privacy, below one over a client's records", "accounting"
    )
    accounting: str = key(
        "exact",
        "exact: Gaussian composition; rdp: the paper's closed form",
        "accounting",
        among=catalog.ACCOUNTINGS,
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


@dataclass(frozen=True)
class Keys(FirstKeys):
    """All keys of a plan, in the order of its file, with their defaults: later versions add theirs here.

    A digest omits them at their default, so that the digests of plans written before them stay valid.
    """

    recipe: str = key(
        recipes.FIRST,
        "the numbers that no key says, by the name of their set; of a new plan this version's own",
        "module accounting",
    )
    repeat: int = key(0, "which of several noise draws of one seeded simulation; 0: the first", most=2**31)
    individual: float = key(
        -1.0, "blend: share of a client's own part, 1: every client alone; -1: by its size"
    )
    generated: float = key(0.0, "blend: share of the part that the context generates", natural=True)
    weighting: float = key(0.0, "releases count by (records of the client)^weighting; 0: alike", natural=True)
    counted_records: int = key(
        0, "most records that a client counts for in weights; 0: ten times the median client's", most=2**31
    )
    features: str = key(
        "none",
        "public map or encoder that the model sees through; or 'package.module:function' of yours",
        "features",
        among=catalog.FEATURES,
    )
    feature_size: int = key(
        0, "features: project to so many numbers; 0: as many as the map has", "features", most=2**14
    )
    mirror: bool = key(False, "features: mean of a picture's and its mirror image's", "features")
    context_share: float = key(
        0.0, "share of the budget (of μ²) that contexts get; 0: context_noise decides", "accounting"
    )
    confusion_share: float = key(
        0.02, "shares: share of the budget for the confusion of classes, released at the end", "accounting"
    )
    calibration: float = key(
        0.0,
        "share of the budget for what calibrates probabilities, released at the end; 0: nothing does",
        "accounting",
        natural=True,
    )
    centring: float = key(
        0.0,
        "share of the budget for the mean of a table's inputs, released before the first round; 0: none is",
        "accounting",
        natural=True,
    )
    future_names: str = key("", "names of the future clients; set by future_clients=NAME,…", "division")
    attraction: float = key(
        0.01,
        "mean-regularized: proximal strength λ, which draws each client's own model to their mean",
        natural=True,
    )
    shift: str = key(
        "none",
        "turns: a simulated client sees its pictures rotated by quarter turns of its own",
        "features sets",
        among=catalog.SHIFTS,
    )
    prior: str = key(
        "none", "context: log class shares of a released context on the last bias", among=catalog.PRIORS
    )
    downlink_bits: int = key(
        32, "most bits a coefficient takes on its way to a client in a round; 32: float32", most=32
    )
    noise: str = key(
        "client",
        "client: every release is private; server: noise in a round's sum; shared: clients add it",
        "accounting",
        among=catalog.PLACES,
    )
    optimizer: str = key(
        "sgd", "how the server steps along what was released (post-processing)", among=catalog.OPTIMIZERS
    )
    mlp_sizes: str = key("64", "mlp: widths of its hidden layers, such as 64,32", "module")
    mlp_activation: str = key("tanh", "mlp: tanh or relu", "module", among=catalog.ACTIVATIONS)
    classes_per_client: int = key(
        2,
        "partition=classes: of so many classes each client has records, alike many of each",
        "division",
        positive=True,
        most=2**16,
    )
    threshold: int = key(
        0,
        "shared: clients whose noise is in every sum, at least; 0: nine tenths of a round's",
        "accounting",
        most=10**6,
    )
    colluding: int = key(
        0,
        "shared: those of them who may tell others their noise, at most; 0: a tenth",
        "accounting",
        most=10**6,
    )
    helpers: int = key(3, "shared: parties whose masks hide all but the sum; one must be honest", most=10**3)
    bias_scale: float = key(
        1.0,
        "how far a coefficient of the last bias moves it, at most 1; 0: by the recipe for its records",
        "module",
        natural=True,
    )
    encoders: str = key(
        "", "which version of an encoder or of your map features means; set by itself", "features"
    )
