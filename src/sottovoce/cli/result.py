"""A run's result on the terminal: its headline, and its clients where they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sottovoce.cli.display import bullet, epsilon, facts, say, show_table
from sottovoce.report.table import (
    UNKNOWN,
    Table,
    count,
    counted,
    data_size,
    duration,
    label,
    measure,
    number,
    out_of,
    percent,
)


def show(result: dict[str, Any], directory: Path) -> None:
    """Prints what a run came to: accuracy, what was spent, what was sent."""
    from sottovoce.data import delta_doubt

    accuracy, spent, uplink = result["accuracy"], result["epsilon"], result["uplink"]
    target = (
        ""
        if spent["target"] is None
        else f" {out_of(spent['spent_max'], spent['target'])} at δ = {result['delta']:g}"
    )
    facts(
        f"{result['method']} on {result['dataset']}: {directory}",
        {
            "participants": f"{_headline(result, 'seen')} on held-out records of "
            + count(result["participants"], "client"),
            "future clients": _future(result),
            **_measured(result),
            "ε spent, worst client": f"{epsilon(spent['spent_max'])}{target} "
            f"({spent['accounting']} accounting)",
            "ε of a future client": epsilon(spent["future_context"]),
            "uplink": _uplink(uplink),
            "downlink": f"{data_size(result['downlink']['total_bytes'])} of coefficients, "
            f"{number(result['downlink']['bits_per_coefficient'])} bits each in rounds",
            "time": duration(result["seconds"]),
        },
    )
    judged = label(result.get("metric", "accuracy"))
    show_clients(result.get("clients", []), result.get("unit", "record"), judged, accuracy)
    sizes = [client["size"] for client in result.get("clients", []) if client["role"] == "participant"]
    for doubt in delta_doubt(result["delta"], min(sizes)) if sizes and spent["target"] is not None else []:
        bullet(doubt)
    if result["participants"] == 1:
        from sottovoce.run.cost import ALONE

        bullet(ALONE)
    if "masks" in result:
        said = "masked, and only sums unmasked" if result["masks"] else "not masked (--masks does it)"
        say(f"shares were {said}: a simulation, whose records lie on one machine")
    if result["seeded"]:
        say("seeded simulation: its noise is reproducible and protects nobody")


def _uplink(uplink: dict[str, Any]) -> str:
    if uplink["bits_per_coefficient"] is None:
        return f"{uplink['releases']:,} releases, whose lengths are not told: noise at the server hides none"
    return (
        f"{data_size(uplink['bytes'])} in {uplink['releases']:,} releases, "
        f"{number(uplink['bits_per_coefficient'])} bits per coefficient "
        f"({uplink['fp32_bytes'] / uplink['bytes']:.0f} times less than FP32)"
    )


def _measured(result: dict[str, Any]) -> dict[str, str]:
    """Means of the task's metrics over participants, a line where there are some."""
    found = result.get("metrics", {}).get("seen", {})
    text = ", ".join(f"{label(name)} {measure(name, value)}" for name, value in found.items())
    none = result.get("metrics", {}).get("constant", {}).get("seen", {})
    constant = ", ".join(
        f"{label(name)} {percent(value, 2) if name == result.get('metric') else measure(name, value)}"
        for name, value in none.items()
    )
    said = {"metrics": text} if text else {}
    return said | ({"a constant": f"{constant}: each client's own shares, or mean"} if constant else {})


def show_clients(
    clients: list[dict[str, Any]],
    unit: str,
    judged: str = "",
    accuracy: dict[str, dict[str, float]] | None = None,
) -> None:
    """Size, σ and ε of each client, where they have names and sizes of their own."""
    if len({client["size"] for client in clients}) < 2:
        return
    scores = {} if accuracy is None else {**accuracy["seen_per_client"], **accuracy["future_per_client"]}
    rows = [
        [
            client["name"] + (" (joins later)" if client["role"] == "future" else ""),
            f"{client['size']:,}",
            UNKNOWN if client["sigma"] is None else number(client["sigma"]),
            epsilon(client["epsilon"]),
            *([] if accuracy is None else [percent(scores.get(client["name"]))]),
        ]
        for client in clients
    ]
    heads = ["client", counted(unit), "σ", "ε", *([] if accuracy is None else [judged])]
    show_table(Table(heads, rows))


def _future(result: dict[str, Any]) -> str:
    if not result["future_clients"]:
        return "none"
    labels = " (their labels were used for contexts)" if result["uses_future_labels"] else ""
    constant = result.get("metrics", {}).get("constant", {}).get("future", {}).get(result.get("metric"))
    beside = "" if constant is None else f"; a constant: {percent(constant, 2)}"
    clients = count(result["future_clients"], "client")
    return f"{_headline(result, 'future')} on {clients} never seen{labels}{beside}"


def _headline(result: dict[str, Any], role: str) -> str:
    """The mean that models are judged by; its name where it is not accuracy."""
    metric = result.get("metric", "accuracy")
    named = "" if metric == "accuracy" else f"{label(metric)} "
    return named + percent(result["accuracy"][role], 2)
