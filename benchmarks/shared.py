"""Shared noise beside its targets, on one core: `python -m benchmarks.shared [clients]`.

A client's noise and masks, a helper's answer and the unmasking of a round, with three helpers and 20,490
coefficients; then the same with more clients, to see that time and bytes grow with their number.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.channel import SystemRandomness
from sottovoce.release.places.helper import Helper
from sottovoce.release.places.masks import (
    KIND,
    HelperKeys,
    MaskTerms,
    ephemeral_of,
    masked,
    public_hex,
    unmasked,
)
from sottovoce.release.places.shared import Sharing

SIZE, HELPERS, ROUNDS = 20_490, 3, 5
TARGETS = {"client_ms": 150.0, "helper_ms": 60.0, "unmasking_ms": 60.0, "bytes_up": 42_000.0}


def run(clients: int = 40) -> dict[str, Any]:
    """Median milliseconds of each party in a round, and bytes, at ε = 4."""
    numbers = 9 * clients // 10, -(-clients // 10)
    made = Sharing(0.5, SIZE, 100, 800, 800 * clients, 800 * clients, clients, *numbers, mu=0.0891)
    sites = [X25519PrivateKey.generate() for _ in range(clients)]
    keys = [(X25519PrivateKey.generate(), Ed25519PrivateKey.generate()) for _ in range(HELPERS)]
    named = tuple(HelperKeys(f"{i}", public_hex(a), public_hex(b)) for i, (a, b) in enumerate(keys))
    everybody = (tuple(range(clients)),) * ROUNDS
    terms = MaskTerms("b", SIZE, made.word, *numbers, tuple(map(public_hex, sites)), named, everybody)
    mean = np.random.default_rng(0).standard_normal(SIZE) * 0.3 / SIZE**0.5
    times: dict[str, list[float]] = {"client_ms": [], "helper_ms": [], "unmasking_ms": []}
    with TemporaryDirectory() as folder, ExitStack() as stack:
        helpers = [
            stack.enter_context(Helper.open(Path(folder) / f"{i}", terms, *pair))
            for i, pair in enumerate(keys)
        ]
        for number in range(1, ROUNDS + 1):
            signed = [key for helper in helpers if (key := helper.key()) is not None]
            messages, total = {}, np.zeros(SIZE, np.int64)
            for i, site in enumerate(sites):
                start = time.thread_time()
                share = made.share(mean, 800, SystemRandomness())
                messages[i] = masked(terms, site, number, signed, share)
                times["client_ms"].append(time.thread_time() - start)
                total += share
            told, answers = {i: ephemeral_of(message) for i, message in messages.items()}, []
            for helper in helpers:
                start = time.thread_time()
                answers.append(helper.answer("b", KIND, number, told).masks)
                times["helper_ms"].append(time.thread_time() - start)
            start = time.thread_time()
            found = unmasked(terms, messages, answers)
            made.columns(found)
            times["unmasking_ms"].append(time.thread_time() - start)
            assert (found == total).all()
    measured = {name: round(1e3 * float(np.median(all_)), 1) for name, all_ in times.items()}
    return {"clients": clients, "word": made.word, "bytes_up": len(messages[0]), **measured}


if __name__ == "__main__":
    rows = [run(n) for n in ([int(sys.argv[1])] if len(sys.argv) > 1 else (40, 200, 1000))]
    first = rows[0]
    checks = {
        name: {"measured": first[name], "at_most": most, "met": first[name] <= most}
        for name, most in TARGETS.items()
    }
    print(json.dumps({"rows": rows, "checks": checks}, indent=2))
