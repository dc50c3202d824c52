"""Records and plans so small that every key of a plan can be tried in a run of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from sottovoce.data import Dataset, Facts
from sottovoce.plan import Plan, recipes

NAMES = ("aster", "birch", "cedar", "dahlia", "elder", "fern")
GIVEN: dict[str, Any] = {
    "preset": "tuned",
    "dataset": "toy",
    "partition": "client",
    "participants": 4,
    "future_clients": 2,
    "model": "linear",
    "method": "factorized",
    "coefficients": 20,
    "basis": "unstructured",
    "context": "moments",
    "context_records": 16,
    "gradient_records": 16,
    "rounds": 2,
    "clients_per_round": 2,
    "channel": "direct",
    "seeded": True,
    "evaluate_every": 0,
}
BLEND = {"method": "blend", "context": "public", "learning_rate": 0.0}
SHARES = {**BLEND, "coefficients": 0, "context": "shares", "context_share": 0.1, "prior": "context"}
SHARED = {**BLEND, "noise": "shared", "channel": "integers", "weighting": 1.0, "individual": 0.0}
SHARED |= {"clients_per_round": 4, "threshold": 4, "colluding": 1}
DEALT = {"partition": "iid"}
RECIPE = replace(recipes.V0_2, version="toy", drift=1.0)
recipes.RECIPES[RECIPE.name] = RECIPE
TABLE: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "preset": ({}, "tuned", "paper"),
    "dataset": ({}, "toy", "mnist-small"),
    "partition": ({}, "client", "iid"),
    "classes_per_client": ({"partition": "classes"}, 1, 2),
    "alpha": ({"partition": "dirichlet"}, 0.5, 5.0),
    "participants": (DEALT, 4, 3),
    "future_clients": (DEALT, 2, 1),
    "records_per_client": (DEALT, 0, 30),
    "model": ({}, "linear", "mlp"),
    "method": ({}, "factorized", "deep-linear"),
    "coefficients": ({}, 20, 30),
    "basis": ({}, "unstructured", "structured"),
    "hidden": ({}, 100, 10),
    "trunk_layers": ({}, 1, 2),
    "context": ({"context_records": 0}, "public", "labels"),
    "context_groups": ({}, 1, 2),
    "context_records": ({}, 16, 8),
    "context_round": ({"context": "predictions"}, 1, 2),
    "context_noise": ({}, 1.0, 2.0),
    "gradient_records": ({}, 16, 8),
    "clip": ({}, 1.0, 0.5),
    "bias_scale": ({"coefficients": 0}, 1.0, 0.5),
    "rounds": ({}, 2, 3),
    "clients_per_round": ({}, 2, 3),
    "schedule": ({"rounds": 5}, "balanced", "random"),
    "learning_rate": ({}, 0.2, 0.4),
    "momentum": ({}, 0.0, 0.5),
    "averaging": ({}, 0.0, 1.0),
    "channel": ({}, "direct", "direct-q12"),
    "lattice": ({"channel": "lrsuq"}, "Z4", "D4"),
    "epsilon": ({}, 8.0, 4.0),
    "delta": ({}, 1e-5, 1e-6),
    "accounting": ({}, "exact", "rdp"),
    "budget": ({}, 0.0, 20.0),
    "seed": ({}, 1, 2),
    "seeded": ({}, True, False),
    "evaluate_every": ({}, 0, 1),
    "recipe": (BLEND, recipes.FIRST, RECIPE.name),
    "repeat": ({}, 0, 1),
    "individual": (BLEND, -1.0, 0.5),
    "generated": ({**SHARES, "individual": 0.2}, 0.0, 0.5),
    "weighting": (BLEND, 0.0, 1.5),
    "counted_records": (BLEND, 0, 8),
    "features": ({}, "none", "scattering"),
    "feature_size": ({"features": "scattering"}, 0, 8),
    "mirror": ({"features": "scattering"}, False, True),
    "context_share": (SHARES, 0.1, 0.2),
    "confusion_share": (SHARES, 0.02, 0.05),
    "calibration": ({**BLEND, "coefficients": 0}, 0.0, 0.05),
    "centring": ({**BLEND, "coefficients": 0, "context_share": 0.05}, 0.0, 0.05),
    "future_names": ({}, "birch,elder", "aster,cedar"),
    "attraction": ({**BLEND, "method": "mean-regularized"}, 0.01, 0.1),
    "shift": ({}, "none", "turns"),
    "prior": ({**SHARES, "context": "labels"}, "none", "context"),
    "downlink_bits": ({}, 32, 4),
    "noise": ({**BLEND, "weighting": 1.0}, "client", "server"),
    "threshold": (SHARED, 4, 3),
    "colluding": (SHARED, 1, 2),
    "helpers": (SHARED, 3, 2),
    "encoders": ({}, "", "tiny 1 8 0123456789abcdef"),
    "mlp_sizes": ({"model": "mlp"}, "64", "8"),
    "mlp_activation": ({"model": "mlp"}, "tanh", "relu"),
}
"""For every key: what a plan must have besides, and two values."""


def pair(key: str) -> list[Plan]:
    """Two plans that differ in this key alone."""
    besides, value, other = TABLE[key]
    plan = Plan.load(overrides={**GIVEN, **besides, key: value})
    return [plan, plan.replace(**{key: other})]


def records() -> Dataset:
    """Six named clients of 40 pictures each."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(240, 1, 8, 8, generator=generator)
    y = (x.mean(dim=(1, 2, 3)) > 0.5).long()
    owner = torch.arange(240) % 6
    return Dataset("toy", x, y, Facts((1, 8, 8), 2), owner, NAMES, public=True)
