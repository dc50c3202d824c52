"""The card beside a published model: made of the header of its file alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from sottovoce.data import Facts
from sottovoce.data.tables import schema
from sottovoce.data.tables.schema import protected_unit
from sottovoce.personal import Origin
from sottovoce.plan.catalog import PLACES

UNSTATED = (
    "Not stated here. They are made of held-out records without noise, and no ε covers them; whoever holds "
    "the records has them."
)


def card_file(model: Path) -> Path:
    """Returns where the card of a model lies.

    >>> card_file(Path("models/St. Mary.safetensors")).name
    'St. Mary.card.md'
    """
    return model.with_name(model.name.removesuffix(model.suffix) + ".card.md")


def model_card(model: bytes, metrics: Mapping[str, float | None] | None = None) -> str:
    """The card of a published model, from the bytes of its file."""
    [length] = struct.unpack_from("<Q", model)
    header = json.loads(model[8 : 8 + length])["__metadata__"]
    facts, origin = Facts.from_metadata(header), Origin(**json.loads(header["origin"]))
    built, records = json.loads(header["model"]), facts.source or facts
    agreed, unit = schema.of(records), protected_unit(facts)
    inputs = list(agreed.columns) if agreed is not None and agreed.array is None else None
    known = None if metrics is None else {name: value for name, value in metrics.items() if value is not None}
    encoders = json.loads(header.get("encoders", "[]"))
    head: dict[str, Any] = {
        "library_name": "sottovoce",
        "tags": ["differential-privacy", "federated-learning", "personalized"],
        "client": origin.client,
        "run": origin.run,
        "created": origin.created or None,
        "sottovoce": origin.sottovoce,
        "model": built["model"],
        "features": built.get("features", "none"),
        "encoders": encoders or None,
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
    looked_up = [] if agreed is None else agreed.uncovered
    uncovered = "".join(f"\n\nIts header holds more than that:\n\n- {line}" for line in looked_up)
    told = UNSTATED
    if known is not None:
        figures = [f"- {name.replace('_', ' ')}: {value:.4g}" for name, value in known.items()]
        told = "\n".join([*figures, "", "Measured on held-out records, without noise: no ε covers them."])
    read = "".join(f"\n\n{_learned(one)}" for one in encoders)
    prose = f"""
# The model of {origin.client}

It predicts {what}{names} of a record. The model is `{built["model"]}`, personal to this client and made in
run {origin.run} with sottovoce {origin.sottovoce}.{read}

## Who may see it

{_seen(origin, unit)}{uncovered}

A model that was finished at home from it (`*.home.safetensors`) is another one, for its owner alone.

## Metrics

{told}

## Use

`sottovoce predict` on the command line, `sottovoce.predict` in Python: the file says how records are encoded.
"""
    return "\n".join(
        ["---", *lines, "---", escape(prose, quote=False)]
    )  # Markdown may hold HTML, names must not


def _learned(encoder: Mapping[str, str]) -> str:
    """Returns what a public encoder is and what it has learned from."""
    named = f"`{encoder['name']}` {encoder['version']} (digest {encoder['digest'][:8]})"
    licence, data = encoder.get("licence", "not stated"), encoder.get("trained_on", "not stated")
    return (
        f"Before it, the public encoder {named} describes a record. Its licence: {licence}. It was "
        f"trained on public data: {data}. ε is about the clients' records, not about these."
    )


def _seen(origin: Origin, unit: str) -> str:
    """Returns who may see a model, and why."""
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
        f"{PLACES[origin.noise].added}."
    )


def _yaml(value: Any) -> str:
    """A value as YAML 1.1 and 1.2 both read it; a list or table in one line is JSON."""
    if isinstance(value, float):
        digits, e, power = repr(value).partition("e")  # 1e-05 is a text in YAML 1.1
        return digits + (".0" if e and "." not in digits else "") + e + power
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {_yaml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
