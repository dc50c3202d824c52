"""Presets: named starting points of a plan.

`paper` is the paper's setting to the letter (Sec. 3.1). `tuned` keeps the promise (ε, δ) and changes
what the paper leaves on the table: exact accounting, a balanced schedule, every training record in every
release, and per dataset the learning rate and the context that served best without labels of future clients.
`best`, the default, leaves the paper's model behind: a linear model on public features, own parts, class
priors; `central` is the same with noise once a round at the server, `shared` with noise that clients share.
"""

from __future__ import annotations

from typing import Any

PAPER: dict[str, Any] = {
    "participants": 40,
    "future_clients": 10,
    "coefficients": 16384,
    "basis": "unstructured",
    "context": "moments",
    "context_records": 333,
    "gradient_records": 333,
    "rounds": 500,
    "clients_per_round": 2,
    "schedule": "random",
    "channel": "direct",
    "epsilon": 16.0,
    "accounting": "rdp",
}
PAPER_LEARNING_RATE = {"cifar10": 0.2}  # 0.1 on MNIST, 0.2 on CIFAR-10

TUNED: dict[str, dict[str, Any]] = {
    "mnist-small": {
        "participants": 16,
        "future_clients": 4,
        "records_per_client": 500,
        "context_records": 200,
        "clients_per_round": 8,
        "rounds": 100,
        "coefficients": 4096,
        "learning_rate": 0.5,
        "evaluate_every": 10,
    },
    "mnist": {"epsilon": 16.0, "learning_rate": 0.15},
    "fashion-mnist": {"epsilon": 16.0, "learning_rate": 0.15},
    "cifar10": {
        "epsilon": 16.0,
        "learning_rate": 0.5,
        "context": "predictions",
        "context_round": 250,
    },
}
BEST: dict[str, Any] = {
    "model": "linear",
    "method": "blend",
    "context_records": 0,
    "clip": 0.5,
    "rounds": 40,
    "learning_rate": 0.0,
    "momentum": 0.9,
    "averaging": 0.3,
    "weighting": 1.5,
    "evaluate_every": 10,
}
PICTURES: dict[str, Any] = {
    "features": "scattering+patterns",
    "feature_size": 2048,
    "context": "shares",
    "context_share": 0.05,
    "prior": "context",
    "individual": 0.0,  # clients of a Dirichlet partition differ in class shares, which the prior covers
    "coefficients": 20490,
}
BEST_FOR: dict[str, dict[str, Any]] = {
    "mnist-small": {
        **PICTURES,
        "features": "scattering",
        "participants": 16,
        "future_clients": 4,
        "records_per_client": 500,
    },
    "mnist": {**PICTURES, "features": "scattering"},
    "fashion-mnist": PICTURES,
    "cifar10": {**PICTURES, "mirror": True},
}
OWN: dict[str, Any] = {
    "context": "public",
    "coefficients": 0,
    "features": "auto",
    "feature_size": 2048,
    "clip": 0.0,
    "bias_scale": 0.0,
    "calibration": 0.2,
    "centring": 0.08,
}
"""Of records that nobody has tuned for: a linear model that adapts as a whole, of features if of pictures."""
CENTRAL: dict[str, Any] = {"noise": "server", "weighting": 1.0, "rounds": 100, "evaluate_every": 50}
"""Less noise bears more rounds (CIFAR-10, seeds 41 and 42: 160 gave 2 to 4 points over 40 at ε = 4, 8)."""
ALONE: dict[str, Any] = {"channel": "integers", "individual": 0.0, "generated": 0.0}
"""What noise that clients share goes with: messages that are private, and one part that all of them move."""
SHARED: dict[str, Any] = {**CENTRAL, **ALONE, "noise": "shared"}
PRESETS = ("paper", "tuned", "best", "central", "shared")


FOLDER: dict[str, Any] = {
    "partition": "client",
    "participants": 0,
    "clients_per_round": 0,
    "future_clients": 0,
}
"""The clients of a folder are those whose files lie in it."""
FOLDERS = ("heart",)
"""Shipped datasets that are such folders."""


def preset_values(preset: str, dataset: str, context: str | None, *, folder: bool = False) -> dict[str, Any]:
    """The keys that a preset sets for a dataset; `context` is the user's own choice, if any.

    A `folder` of sites says itself who the clients are.
    """
    if preset == "paper":
        values = {**PAPER, "learning_rate": PAPER_LEARNING_RATE.get(dataset, 0.1)}
    elif preset == "tuned":
        values = {"averaging": 0.3, **TUNED.get(dataset, {})}
        if context is not None and context != "predictions":
            values.pop("context_round", None)
    else:
        values = {**BEST, **BEST_FOR.get(dataset, OWN), "clients_per_round": 0}
        values |= {"best": {}, "central": CENTRAL, "shared": SHARED}[preset]
    return {**values, **(FOLDER if folder else {}), "preset": preset}
