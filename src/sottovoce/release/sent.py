"""What a server may send: coefficients that no honest one comes near are cut before a client uses them.

ε is true for all coefficients, and a server may choose them. But models are evaluated in float32, and at
coefficients that are long enough none of its digits is left to tell one record from another. So they have a
largest length, which is public and follows from the plan: `MARGIN` times as far as a client would be led by
releases that are all as long as a server believes (`Release.largest_norm`) and all point one way, in every
round. What is longer is shortened to it, whatever the records are. A centre behind the coefficients is cut to
a length of its own (`centre.cut`).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sottovoce.plan import Plan
from sottovoce.plan.catalog import OPTIMIZERS
from sottovoce.plan.recipes import open_recipe
from sottovoce.release.places import longest_noise
from sottovoce.release.recipe import Blending, Reals

MARGIN = 10.0
"""How many times as long as an honest server's coefficients may be."""
GROWTH = 100.0
"""What ‖h‖² may become where it is learned: 4 to 40 at first, up to 20 in runs that learn anything. One that
passes this multiplies itself from round to round, and its models are right by chance."""


def longest_sent(
    plan: Plan,
    found: Blending,
    noise: tuple[float, Reals],
    *,
    planned: float = 1.0,
    size: int,
    classes: int,
    bias_scale: float,
) -> float:
    """The length to which coefficients (size,) are cut.

    `noise` is what moves the shared part in a round and each participant's own, by number; `planned` is how
    many times the smallest round's records are in the largest round's sum.
    """
    recipe = open_recipe(plan.recipe)
    optimizer, (together, own) = OPTIMIZERS[plan.optimizer], noise
    shared = planned * plan.clip + together * longest_noise(size)
    alone = plan.clip + own * longest_noise(size)
    if not optimizer.linear:  # it may move every coefficient by the step, however little was released
        shared, alone = max(shared, math.sqrt(size)), alone.clip(math.sqrt(size))
    heavy = plan.momentum if optimizer.momentum else 0.0
    in_a_round = found.step * shared + float((found.own_steps * np.sqrt(found.individual) * alone).max())
    farthest = plan.rounds * in_a_round / (1.0 - heavy)
    if not plan.traits.bounded:
        farthest *= GROWTH
    if plan.prior == "context":
        farthest += math.sqrt(classes) * math.log(classes / recipe.smoothing) / bias_scale
    if plan.centring:  # behind the last round biases are b − Wc
        farthest *= 1.0 + recipe.longest / bias_scale
    return MARGIN * farthest


def cut(sent: Tensor, size: int, longest: float) -> Tensor:
    """What a server sent, of which the first `size` numbers are coefficients: no longer than `longest`.

    >>> cut(torch.tensor([6.0, 8.0, 9.0]), 2, longest=5.0)
    tensor([3., 4., 9.])
    """
    coefficients = sent[:size].detach().double()
    length = float(torch.linalg.vector_norm(coefficients))
    if not length > longest:
        return sent
    return torch.cat([(coefficients * (longest / length)).to(sent), sent[size:]])
