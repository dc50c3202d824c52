"""Where noise is added: at the server, or shared by all clients of a round, under masks."""

import math

IMPOSSIBLE = 1e-12
"""The probability below which a release, or a sum of them, is not believed."""


def longest_noise(size: int) -> float:
    """What ‖·‖₂ of N(0, I) of so many numbers exceeds with a probability of `IMPOSSIBLE` at most.

    χ² with k degrees of freedom is above k + 2√(kt) + 2t with probability e⁻ᵗ at most (Laurent and Massart,
    2000).

    >>> round(longest_noise(10_000), 1)
    105.4
    """
    t = -math.log(IMPOSSIBLE)
    return math.sqrt(size + 2 * math.sqrt(size * t) + 2 * t)
