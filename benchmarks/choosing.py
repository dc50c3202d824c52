"""Figures of docs/choosing.md, from measured results: `python -m benchmarks.choosing [--measure]`.

Accuracy over ε and k is that of `results/index.json` (`sottovoce reproduce frontier`, `dimension`); on tables
accuracy over rounds, own share and ε is measured here with `--measure`, on generated hospitals of three seeds
(tools/make_hospitals.py), in a few minutes on two cores, and kept in `results/choosing.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import runpy
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sottovoce.machine.files import write_atomically
from sottovoce.report.chart import Axis, Chart, line_of, linear, svg, trend

ROOT = Path(__file__).parents[1]
MEASURED, INDEX, IMAGES = ROOT / "results/choosing.json", ROOT / "results/index.json", ROOT / "docs/img"
SEEDS = (1, 2, 3)
SHARED_ALONE_BLEND = {"Alone": 1.0, "One shared model": 0.0, "Blend": -1.0}
TONES = {"Alone": "gray", "One shared model": "violet", "Blend": "orange"}
ROWS = {
    "Every client alone": "Alone",
    "One shared model": "One shared model",
    "Shared + prior (best)": "Best",
}
ROW_TONES = {**TONES, "Best": "orange"}
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
Row = Mapping[str, Any]


def settings() -> Iterator[dict[str, Any]]:
    """What is measured: rounds, own shares, and three ways to train over ε."""
    for epsilon in (2.0, 8.0):
        for rounds in (5, 10, 20, 40, 100):
            yield {"sweep": "rounds", "epsilon": epsilon, "rounds": rounds}
        for share in (0.0, 0.1, 0.3, 0.6, 1.0):
            yield {"sweep": "individual", "epsilon": epsilon, "individual": share}
    for epsilon, share in itertools.product((1.0, 2.0, 4.0, 8.0, 16.0), SHARED_ALONE_BLEND.values()):
        yield {"sweep": "epsilon", "epsilon": epsilon, "individual": share}


def measure(folder: Path, chosen: Iterable[Mapping[str, Any]], seeds: Sequence[int] = SEEDS) -> list[Row]:
    """Mean accuracy of the sites, and of the one that joins later, in percent, for each setting."""
    generate = runpy.run_path(str(ROOT / "tools/make_hospitals.py"))["main"]
    for seed in seeds:
        generate(folder / f"hospitals-{seed}", seed)
    rows: list[Row] = []
    known: dict[tuple[Any, ...], dict[str, float]] = {}  # sweeps cross each other
    for one in chosen:
        crossing = one["epsilon"], one.get("rounds", 100), one.get("individual", -1.0)
        if crossing not in known:
            results = [_result(folder, one, seed)["accuracy"] for seed in seeds]
            known[crossing] = {
                name: round(statistics.fmean(accuracy[key] for accuracy in results), 2)
                for name, key in (("participants", "seen"), ("future", "future"))
            }
        rows.append({**one, **known[crossing], "seeds": list(seeds)})
        print(rows[-1], flush=True)
    return rows


def _result(folder: Path, one: Mapping[str, Any], seed: int) -> dict[str, Any]:
    from sottovoce import Plan, train

    fixed = {"preset": "best", "dataset": str(folder / f"hospitals-{seed}"), "future_clients": "west"}
    fixed |= {"seeded": True, "seed": seed, "channel": "direct", "evaluate_every": 0}
    plan = Plan.load(overrides={**fixed, **{key: one[key] for key in one if key != "sweep"}})
    with TemporaryDirectory(dir=folder) as run:
        return train(plan, Path(run) / "run", ledger=Path(run) / "ledger.sqlite")


def draw(measured: Sequence[Row], index: Sequence[Row], target: Path = IMAGES) -> list[Path]:
    """Writes the figures; returns their paths."""
    figures = {
        "epsilon": _epsilon(measured, index),
        "rounds": _rounds(measured),
        "coefficients": _coefficients(index),
        "shares": _shares(measured),
    }
    written = []
    for name, picture in figures.items():
        written.append(target / f"choosing-{name}.svg")
        written[-1].write_text(picture, encoding="utf-8")
    return written


def _epsilon(measured: Sequence[Row], index: Sequence[Row]) -> str:
    charts = [
        _lines(
            "Hospitals (tables), mean of the sites",
            {
                name: [
                    (row["epsilon"], row["participants"]) for row in measured if _is(row, "epsilon", share)
                ]
                for name, share in SHARED_ALONE_BLEND.items()
            },
            x_name="ε",
        )
    ]
    for dataset, name in NAMES.items():
        found = [row for row in index if row["experiment"] == "frontier" and row["dataset"] == dataset]
        lines = {
            short: [(row["epsilon"], row["seen_mean"]) for row in found if row["label"] == label]
            for label, short in ROWS.items()
        }
        charts.append(_lines(f"{name}, mean of the participants", lines, x_name="ε"))
    return svg("Accuracy over ε", "Held-out records, noise at each client, δ = 10⁻⁵", charts)


def _is(row: Row, sweep: str, share: float) -> bool:
    return row["sweep"] == sweep and row["individual"] == share


def _rounds(measured: Sequence[Row]) -> str:
    lines = {
        f"ε = {epsilon:g}": [
            (row["rounds"], row["participants"])
            for row in measured
            if row["sweep"] == "rounds" and row["epsilon"] == epsilon
        ]
        for epsilon in (8.0, 2.0)
    }
    chart = _lines("", lines, x_name="rounds")
    return svg(
        "Accuracy over the number of rounds",
        "Hospitals, preset best, the same ε in all rounds together",
        [chart],
    )


def _shares(measured: Sequence[Row]) -> str:
    charts = []
    for role, name in (("participants", "Sites that trained"), ("future", "The site that joined later")):
        lines = {
            f"ε = {epsilon:g}": [
                (row["individual"], row[role])
                for row in measured
                if row["sweep"] == "individual" and row["epsilon"] == epsilon
            ]
            for epsilon in (8.0, 2.0)
        }
        charts.append(_lines(name, lines, x_name="own share (individual)", log=False))
    return svg(
        "Accuracy over the own share",
        "Hospitals, preset best; 0: one shared model, 1: every site alone",
        charts,
    )


def _coefficients(index: Sequence[Row]) -> str:
    found = [row for row in index if row["experiment"] == "dimension"]
    lines = {
        name: [(row["coefficients"], row[key]) for row in found]
        for name, key in (("Participants", "seen_mean"), ("Future clients", "future_mean"))
    }
    accuracy = _lines("Accuracy", lines, x_name="k")
    norms = {
        "noise in a release": [(row["coefficients"], row["noise_norm"]) for row in found],
        "signal in a release": [(row["coefficients"], row["signal_norm"]) for row in found],
    }
    return svg(
        "Accuracy and noise over k",
        "CIFAR-10, the paper's setting, ε = 16",
        [accuracy, _lines("Norm", norms, x_name="k", show="{:.2g}".format, zero=True)],
    )


def _percent(value: float) -> str:
    return f"{value:.4g} %"


def _lines(
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_name: str,
    show: Any = _percent,
    log: bool = True,
    zero: bool = False,
) -> Chart:
    tones = ("orange", "blue", "violet")
    series = [
        line_of(name, ROW_TONES.get(name, tone), points)
        for (name, points), tone in zip(lines.items(), tones, strict=False)
    ]
    columns = sorted({x for line in series for x, _ in line.points})
    x = Axis(columns[0], columns[-1], tuple(columns), log=log)
    y = linear((value for line in series for _, value in line.points), zero=zero)
    return trend(title, "", series, x_name=x_name, y=y, show=show, x=x, x_show="{:,g}".format)


def main() -> None:
    """Measures where asked to, and draws."""
    parser = argparse.ArgumentParser(description="Figures of docs/choosing.md.")
    parser.add_argument("--measure", action="store_true", help="measure on generated hospitals first")
    if parser.parse_args().measure:
        with TemporaryDirectory() as folder:
            rows = measure(Path(folder), settings())
        write_atomically(MEASURED, (json.dumps(rows, indent=1) + "\n").encode())
    for path in draw(json.loads(MEASURED.read_text()), json.loads(INDEX.read_text())):
        print(path)


if __name__ == "__main__":
    main()
