"""How long a finish at home takes: `python -m benchmarks.finish` prints JSON.

A linear head on 2,048 features of 1,000 records in ten classes (a picture model of `preset=best`), and a
table of 10,000 rows, twenty columns and four classes. Both start from a published model that is nearly right.
`processor` are seconds of all cores together, which a busy machine does not stretch as it does `seconds`.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
from torch import nn

from sottovoce.data import Facts, Records
from sottovoce.personal import Origin, PersonalModel
from sottovoce.personal.finishing import finish_records
from sottovoce.plan import Plan

CASES = {"2,048 features, 1,000 records": (2048, 1000, 10), "table of 10,000 rows": (20, 10_000, 4)}
CORES = 2


def made_up(columns: int, count: int, classes: int) -> tuple[PersonalModel, Records]:
    """A published model and the records of its site."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, columns, generator=generator) / columns**0.5
    true = 6.0 * torch.randn(columns, classes, generator=generator)
    gumbel = -torch.rand(count, classes, generator=generator).log().neg().log()
    layer = nn.Linear(columns, classes)
    with torch.no_grad():
        noise = torch.randn(classes, columns, generator=generator)
        layer.weight.copy_(0.7 * true.T + 2.0 * noise)
        layer.bias.zero_()
    plan = Plan.load(overrides={"dataset": "mine.npz", "features": "none"})
    origin = Origin("made-up", "site", None, 1e-5, "exact", "nowhere")
    model = PersonalModel(nn.Sequential(nn.Flatten(), layer), plan, Facts((columns,), classes), origin)
    return model, Records(x, (x @ true + gumbel).argmax(dim=1))


def measure(columns: int, count: int, classes: int) -> dict[str, Any]:
    """Seconds of one finish."""
    model, records = made_up(columns, count, classes)
    cut = count * 4 // 5
    started, worked = time.perf_counter(), time.process_time()
    found = finish_records(model, records[:cut], records[cut:])
    return {
        "seconds": time.perf_counter() - started,
        "processor": time.process_time() - worked,
        "loss": {row: scores["loss"] for row, scores in found.rows.items()},
    }


def main() -> None:
    """Measures both cases on two cores."""
    torch.set_num_threads(CORES)
    print(json.dumps({name: measure(*case) for name, case in CASES.items()}, indent=1))


if __name__ == "__main__":
    main()
