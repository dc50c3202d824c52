"""A card beside each published model: what it is of, which ε is behind it, who may see it; Markdown and YAML.

A card is made of the header of the model's file, so that it cannot say anything else. Metrics are made of
held-out records without noise, and a published model may be shown to anybody: a card states them where the
records are public, the run was a seeded simulation, or its owner says so.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.data import Facts, description
from sottovoce.data.description import Description
from sottovoce.files import write_atomically
from sottovoce.personal import Origin

PLACES = {
    "client": "at each client: every release is private by itself",
    "server": "by the server, once a round: the server itself saw releases without it",
    "shared": "by the clients of a round together: nobody saw more than their noised sum",
    "nowhere": "nowhere: nothing protects the records",
}
UNSTATED = (
    "Not stated here. They are made of held-out records without noise, and no ε covers them; whoever holds "
    "the records has them."
)


def write_model(path: Path, model: bytes, metrics: Mapping[str, float | None] | None = None) -> None:
    """Writes a published model, and its card beside it; `metrics` only where they may be shown with it."""
    write_atomically(path, model)
    write_atomically(card_file(path), model_card(model, metrics).encode())


def card_file(model: Path) -> Path:
    """Where the card of a model lies.

    >>> card_file(Path("models/St. Mary.safetensors")).name
    'St. Mary.card.md'
    """
    return model.with_name(model.name.removesuffix(model.suffix) + ".card.md")


def model_card(model: bytes, metrics: Mapping[str, float | None] | None = None) -> str:
    """The card of a published model, from the bytes of its file."""
    [length] = struct.unpack_from("<Q", model)
    header = json.loads(model[8 : 8 + length])["__metadata__"]
    facts, origin = Facts.from_metadata(header), Origin.parse(json.loads(header["origin"]))
    built, records = json.loads(header["model"]), facts.source or facts
    agreed = description.of(records)
    unit = agreed.unit if agreed is not None and agreed.unit else "record"
    inputs = list(agreed.columns) if agreed is not None and agreed.array is None else None
    known = None if metrics is None else {name: value for name, value in metrics.items() if value is not None}
    head: dict[str, Any] = {
        "library_name": "sottovoce",
        "tags": ["differential-privacy", "federated-learning", "personalized"],
        "client": origin.client,
        "run": origin.run,
        "created": origin.created or None,
        "sottovoce": origin.sottovoce,
        "model": built["model"],
        "features": built.get("features", "none"),
        "task": facts.task,
        "classes": list(records.class_names) or None,
        "shape": list(records.shape),
        "inputs": inputs,
        "epsilon": origin.epsilon,
        "delta": origin.delta,
        "accounting": origin.accounting,
        "noise": origin.noise,
        "unit": unit,
        "seeded": origin.seeded,
        "metrics": known,
    }
    lines = [f"{name}: {_yaml(value)}" for name, value in head.items() if value is not None]
    what = {"classes": "a class", "labels": "labels", "number": "a number"}[facts.task]
    names = f" ({', '.join(records.class_names)})" if records.class_names else ""
    told = UNSTATED
    if known is not None:
        figures = [f"- {name.replace('_', ' ')}: {value:.4g}" for name, value in known.items()]
        told = "\n".join([*figures, "", "Measured on held-out records, without noise: no ε covers them."])
    return f"""---
{chr(10).join(lines)}
---

# The model of {origin.client}

It predicts {what}{names} of a record. The model is `{built["model"]}`, personal to this client and made in
run {origin.run} with sottovoce {origin.sottovoce}.

## Who may see it

{_seen(origin, unit)}{_uncovered(agreed)}

A model that was finished at home from it (`*.home.safetensors`) is another one, for its owner alone.

## Metrics

{told}

## Use

`sottovoce predict MODEL --data new.csv --out predictions.csv`: the file says how records are encoded.
"""


def _seen(origin: Origin, unit: str) -> str:
    """Who may see a model, and why."""
    if origin.epsilon is None or origin.noise == "nowhere":
        return "Whoever may see the records: no noise protects them."
    promise = f"ε = {origin.epsilon:.4g} at δ = {origin.delta:g} for each {unit}"
    if origin.seeded:
        return (
            f"Whoever may see the records: the run was a seeded simulation, whose noise can be drawn again. "
            f"On paper the promise is {promise}."
        )
    return (
        f"Anybody: it is a published model, made of releases alone. Promise: {promise}. Noise was added "
        f"{PLACES[origin.noise]}."
    )


def _uncovered(agreed: Description | None) -> str:
    """What the file tells of records beside the model: constants of columns that somebody looked up."""
    lines = [] if agreed is None else agreed.uncovered
    return "".join(
        ["\n\nIts header holds more than that:\n" if lines else "", *(f"\n- {line}" for line in lines)]
    )


def _yaml(value: Any) -> str:
    """A value as YAML 1.1 and 1.2 both read it; a list or table in one line is JSON."""
    if isinstance(value, float):
        digits, e, power = repr(value).partition("e")  # 1e-05 is a text in YAML 1.1
        return digits + (".0" if e and "." not in digits else "") + e + power
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {_yaml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
