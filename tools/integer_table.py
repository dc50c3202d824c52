"""Make src/sottovoce/channel/integers.bin, the table behind discrete Gaussians (seconds).

Run as `python tools/integer_table.py`, and put the digest that it prints into channel/direct.py. Unlike the
tables of the entropy codes, this one decides the law of the noise: 60-digit arithmetic, rounded once.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import mpmath

from sottovoce.channel.direct import DIGIT_BITS, DIGITS, LOWEST, TAU_SQUARED, THRESHOLDS

TARGET = Path(__file__).parent.parent / "src" / "sottovoce" / "channel" / "integers.bin"


def row(number: int) -> list[int]:
    """2¹²⁸·P(y ≤ LOWEST + i) of N_ℤ(number/16, s²), rounded."""
    with mpmath.workdps(60):
        s2 = TAU_SQUARED / mpmath.fsum(mpmath.mpf(4) ** (-DIGIT_BITS * i) for i in range(DIGITS))
        centre = mpmath.mpf(number) / 2**DIGIT_BITS
        weights = [mpmath.exp(-((LOWEST + i - centre) ** 2) / (2 * s2)) for i in range(THRESHOLDS + 1)]
        total, below, found = mpmath.fsum(weights), mpmath.mpf(0), []
        for weight in weights[:-1]:
            below += weight
            found.append(min(int(mpmath.nint(below / total * 2**128)), 2**128 - 1))
    return found


def main() -> None:
    numbers = [number for j in range(1 << DIGIT_BITS) for number in row(j)]
    stored = b"".join(number.to_bytes(16, "big") for number in numbers)
    TARGET.write_bytes(stored)
    print(hashlib.sha256(stored).hexdigest())


if __name__ == "__main__":
    main()
