"""`sottovoce bench`: measure channels, gradients and rounds on this machine, as ratios within one run."""

from __future__ import annotations

from pathlib import Path

import typer

from sottovoce.cli.display import as_json, err, facts, out
from sottovoce.cli.options import JSON
from sottovoce.plan.catalog import CHANNELS

app = typer.Typer(help="Measure channels, gradients and rounds on this machine.", no_args_is_help=True)

NORMS = [0.1, 0.3, 0.6, 1.0]
PEER = Path(".bench-venv/bin/python")  # where `make bench` installs Opacus


@app.command(epilog="Example: sottovoce bench channel --channel polar --norm 0.3 --plot rate.svg")
def channel(
    channel: list[str] = typer.Option(
        list(CHANNELS), help="Channel, or lrsuq/D4 to name a lattice; repeatable."
    ),
    sigma: float = typer.Option(0.0147, help="Noise scale of a coordinate."),
    norm: list[float] = typer.Option(NORMS, help="Norm of the statistic; repeatable."),
    size: int = typer.Option(16384, help="Coefficients of a message."),
    messages: int = typer.Option(50, help="Messages per channel and norm."),
    plot: Path = typer.Option(None, help="Draw rate against norm, with the limit, into this .svg file."),
    json: bool = JSON,
) -> None:
    """Bits per coefficient from real bytes, against the limit, and milliseconds to encode and decode."""
    from sottovoce.report.table import Table
    from studies.bench import channel as channel_bench

    with err.status("measuring channels"):
        rows = channel_bench.measure(channel, sigma, norm, size, messages)
    if plot is not None:
        channel_bench.plot(rows, plot)
    if json:
        as_json(rows)
        return
    head = ["channel", "‖u‖", "bytes", "bits per coefficient", "× limit", "encode ms", "decode ms", "p99 ms"]
    lines = [
        [
            row["channel"],
            f"{row['norm']:g}",
            f"{row['bytes']:,.0f}",
            f"{row['bits_per_coefficient']:.4f}",
            f"{row['ratio']:.2f}",
            f"{row['encode_ms']:.2f}",
            f"{row['decode_ms']:.2f}",
            f"{row['encode_ms_p99'] + row['decode_ms_p99']:.2f}",
        ]
        for row in rows
    ]
    out.print(Table(head, lines).terminal())


@app.command(epilog="Example: sottovoce bench gradients --json")
def gradients(
    records: int = typer.Option(333, help="Records behind a clipped mean."),
    repeats: int = typer.Option(15, help="Repeats of every contender."),
    peer: Path = typer.Option(None, help="A Python that has Opacus; by default that of make bench."),
    json: bool = JSON,
) -> None:
    """A private clipped mean against an ordinary training step, on one thread."""
    from studies.bench import gradients as gradient_bench

    with err.status("measuring gradients"):
        figures = gradient_bench.measure(records, repeats, peer or (PEER if PEER.exists() else None))
    _show("Gradients, ratios of medians", figures, json)


@app.command("round", epilog="Example: sottovoce bench round --json")
def round_(
    rounds: int = typer.Option(15, help="Repeats of every contender."),
    json: bool = JSON,
) -> None:
    """A round of the simulator against the gradient work in it, and polar against direct, on one thread."""
    import torch

    from studies.bench import round as round_bench

    torch.set_num_threads(1)
    with err.status("measuring rounds"):
        figures = round_bench.measure(rounds)
    _show("A round, ratios of medians", figures, json)


def _show(title: str, figures: dict[str, float], json: bool) -> None:
    if json:
        as_json(figures)
    else:
        facts(title, {name: f"{value:.3f}" for name, value in figures.items()})
