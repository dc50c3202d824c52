"""Half-normal quantiles and exponentials of whole arrays, written so that the compiler vectorizes them.

They feed sampling and the decoder's last step, where rounding differences between machines are harmless.
"""

from __future__ import annotations

import math

import numpy as np

from sottovoce.channel.coding import Integers, Reals, kernel
from sottovoce.channel.wire import log_mantissa

CENTRAL = 0.85  # AS 241 uses one rational function up to here, another in r = √−ln(p/2) beyond
_FAR = 1e-10  # and a third one below this p
_MANTISSA = (1 << 52) - 1
_HALF_EXPONENT = 1022 << 52
_log_mantissa = kernel(log_mantissa)


@kernel
def _central(q: float) -> float:
    r = 0.180625 - 0.25 * q * q
    n = 2.5090809287301226727e3 * r + 3.3430575583588128105e4
    n = (n * r + 6.7265770927008700853e4) * r + 4.5921953931549871457e4
    n = (n * r + 1.3731693765509461125e4) * r + 1.9715909503065514427e3
    n = (n * r + 1.3314166789178437745e2) * r + 3.3871328727963666080e0
    d = 5.2264952788528545610e3 * r + 2.8729085735721942674e4
    d = (d * r + 3.9307895800092710610e4) * r + 2.1213794301586595867e4
    d = (d * r + 5.3941960214247511077e3) * r + 6.8718700749205790830e2
    d = (d * r + 4.2313330701600911252e1) * r + 1.0
    return 0.5 * q * n / d


@kernel
def _tail(r: float) -> float:
    r = r - 1.6
    n = 7.74545014278341407640e-4 * r + 2.27238449892691845833e-2
    n = (n * r + 2.41780725177450611770e-1) * r + 1.27045825245236838258e0
    n = (n * r + 3.64784832476320460504e0) * r + 5.76949722146069140550e0
    n = (n * r + 4.63033784615654529590e0) * r + 1.42343711074968357734e0
    d = 1.05075007164441684324e-9 * r + 5.47593808499534494600e-4
    d = (d * r + 1.51986665636164571966e-2) * r + 1.48103976427480074590e-1
    d = (d * r + 6.89767334985100004550e-1) * r + 1.67638483018380384940e0
    d = (d * r + 2.05319162663775882187e0) * r + 1.0
    return n / d


@kernel
def _far_tail(r: float) -> float:
    r = r - 5.0
    n = 2.01033439929228813265e-7 * r + 2.71155556874348757815e-5
    n = (n * r + 1.24266094738807843860e-3) * r + 2.65321895265761230930e-2
    n = (n * r + 2.96560571828504891230e-1) * r + 1.78482653991729133580e0
    n = (n * r + 5.46378491116411436990e0) * r + 6.65790464350110377720e0
    d = 2.04426310338993978564e-15 * r + 1.42151175831644588870e-7
    d = (d * r + 1.84631831751005468180e-5) * r + 7.86869131145613259100e-4
    d = (d * r + 1.48753612908506148525e-2) * r + 1.36929880922735805310e-1
    d = (d * r + 5.99832206555887937690e-1) * r + 1.0
    return n / d


@kernel
def half_normal(q: float, p: float) -> float:
    """h with P(|Z| < h) = q for standard normal Z, given also p = 1 − q; Wichura's AS 241, error ~1e-15."""
    if q <= CENTRAL:
        return _central(q)
    r = math.sqrt(-math.log(0.5 * p))
    return _tail(r) if r <= 5.0 else _far_tail(r)


@kernel
def half_normals(q: Reals, p: Reals, lowest: float, highest: float, out: Reals, bits: Integers) -> None:
    """`half_normal` of arrays whose q lies in [lowest, highest]; `bits` is scratch of the same length."""
    if lowest >= CENTRAL or highest > CENTRAL:
        raw = p.view(np.int64)
        for j in range(p.size):
            bits[j] = (raw[j] & _MANTISSA) | _HALF_EXPONENT
        mantissa = bits.view(np.float64)
        for j in range(p.size):
            exponent = np.float64((raw[j] >> 52) - 1023)
            out[j] = _tail(math.sqrt(-_log_mantissa(mantissa[j], exponent)))
        if lowest < CENTRAL:
            for j in range(p.size):
                middle = _central(q[j])
                out[j] = middle if q[j] <= CENTRAL else out[j]
        for j in range(p.size):
            if p[j] < _FAR:
                out[j] = half_normal(q[j], p[j])
    else:
        for j in range(p.size):
            out[j] = _central(q[j])


@kernel
def exponentials(z: Reals, out: Reals, bits: Integers) -> None:
    """out = e^z for |z| < 700, relative error ~1e-15; `bits` is scratch of the same length."""
    for j in range(z.size):
        n = np.floor(z[j] * 1.4426950408889634 + 0.5)
        f = (z[j] - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10
        e = f * (1.0 / 6227020800.0) + 1.0 / 479001600.0
        e = (e * f + 1.0 / 39916800.0) * f + 1.0 / 3628800.0
        e = (e * f + 1.0 / 362880.0) * f + 1.0 / 40320.0
        e = (e * f + 1.0 / 5040.0) * f + 1.0 / 720.0
        e = (e * f + 1.0 / 120.0) * f + 1.0 / 24.0
        e = (e * f + 1.0 / 6.0) * f + 0.5
        out[j] = (e * f + 1.0) * f + 1.0
        bits[j] = (np.int64(n) + 1023) << 52
    power = bits.view(np.float64)
    for j in range(z.size):
        out[j] *= power[j]


@kernel
def upper_tails(h: Reals, out: Reals, bits: Integers) -> None:
    """out = P(|Z| > h) for standard normal Z and h ≥ 0, relative error ~1e-15; `bits` is scratch.

    erfc(z) = e^(−z²)·P(t)/(1 + 2z) with t = (z − 3.75)/(z + 3.75): P is the Chebyshev expansion of degree 22.
    """
    scaled = np.empty(h.size)
    for j in range(h.size):
        scaled[j] = max(-0.5 * h[j] * h[j], -700.0)
    exponentials(scaled, out, bits)
    for j in range(h.size):
        z = 0.7071067811865476 * h[j]
        t = (z - 3.75) / (z + 3.75)
        r = -2.623107347133476e-09 * t - 1.9551358868985616e-09
        r = (r * t + 3.1979266716668055e-08) * t + 1.879082322370047e-08
        r = (r * t - 2.4857126248016745e-07) * t - 5.0844653786873e-08
        r = (r * t + 1.7419821586224816e-06) * t - 9.792625707303519e-07
        r = (r * t - 1.1438048033346895e-05) * t + 2.2387565714911813e-05
        r = (r * t + 5.1646529741774155e-05) * t - 0.0002901553524607766
        r = (r * t + 0.00029371437804495796) * t + 0.0017556261651970656
        r = (r * t - 0.009746579683265262) * t + 0.02836227737211114
        r = (r * t - 0.058693398576649354) * t + 0.09230432116428125
        r = (r * t - 0.10880393014244463) * t + 0.08227673848999509
        r = (r * t + 0.0035854154854790543) * t - 0.14024059858554527
        r = r * t + 1.2375126308378275
        out[j] *= r / (1.0 + 2.0 * z)
