"""Logarithms that agree bit for bit on every machine.

Both ends must compute the same radii and the same bins, but libraries differ in the last place of log.
Only +, −, ×, ÷ and √ are correctly rounded everywhere (IEEE 754), so the logarithm is built from those.
The same lines run on numpy arrays and inside compiled kernels.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Real = TypeVar("Real", float, NDArray[np.float64])

_LN2_HIGH = 0.693147180369123816490  # ln 2 with its last 21 bits zero: products with exponents are exact
_LN2_LOW = 1.90821492927058770002e-10


def log_mantissa(mantissa: Real, exponent: Real) -> Real:
    """ln(mantissa · 2^exponent) for ½ ≤ mantissa < 1, within 1e-15 relative of the true value.

    >>> round(log_mantissa(0.5, 2.0), 15) == round(0.6931471805599453, 15)
    True
    """
    # ln m = 2 artanh z with z = (m − 1)/(m + 1); √½ ≤ m < √2 gives |z| < 0.172 and full accuracy around 1.
    low = 1.0 * (mantissa < 0.7071067811865476)
    mantissa = mantissa * (1.0 + low)
    exponent = exponent - low
    z = (mantissa - 1.0) / (mantissa + 1.0)
    w = z * z
    series = 1.0 / 23.0 + w * (1.0 / 25.0)
    series = 1.0 / 19.0 + w * (1.0 / 21.0 + w * series)
    series = 1.0 / 15.0 + w * (1.0 / 17.0 + w * series)
    series = 1.0 / 11.0 + w * (1.0 / 13.0 + w * series)
    series = 1.0 / 7.0 + w * (1.0 / 9.0 + w * series)
    series = 1.0 / 3.0 + w * (1.0 / 5.0 + w * series)
    tail = 2.0 * z + 2.0 * z * w * series
    return exponent * _LN2_HIGH + (tail + exponent * _LN2_LOW)
