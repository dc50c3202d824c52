"""The cells of a reproduction as its page shows them, read from the objects of results/index.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sottovoce.report.fields import Fields
from sottovoce.report.numbers import UNKNOWN, number

# What runs across the columns of each experiment; the rows differ in everything else that varies.
ACROSS = {
    "main-table": "epsilon",
    "heterogeneity": "alpha",
    "dimension": "coefficients",
    "geometry": "noise",
    "codecs": "epsilon",
}
SYMBOLS = {"epsilon": "ε", "alpha": "α", "coefficients": "k"}
SETTINGS = (
    "method",
    "channel",
    "preset",
    "context",
    "epsilon",
    "alpha",
    "coefficients",
    "noise",
    "accounting",
)
_ORIGIN = ("command", "version", "device", "time")


@dataclass(frozen=True)
class Cell:
    """One cell: its settings, and accuracies in percent over `seeds` seeds.

    `beside` names the row of the paper whose published values stand beside a row that the paper lacks.
    """

    experiment: str
    dataset: str
    settings: dict[str, Any]
    beside: str | None
    seeds: int
    uses_future_labels: bool
    ours: dict[str, tuple[float | None, float | None]]
    published: dict[str, float | None]
    gain: list[float]
    effective_gain: list[float]
    origin: list[str]

    @property
    def across(self) -> str:
        """The setting that its table varies from column to column."""
        return ACROSS.get(self.experiment, "epsilon")

    @property
    def at(self) -> Any:
        """Its value of that setting."""
        return self.settings[self.across]

    @property
    def label(self) -> str:
        return str(self.settings["method"])


def read_cell(fields: Fields) -> Cell:
    """A cell from an object of the index; raises SottovoceError when it lacks a field."""
    return Cell(
        experiment=fields.text("experiment"),
        dataset=fields.text("dataset"),
        # Rows of a table may differ in a key that the index does not have; their labels always differ.
        settings={key: fields.scalar(key) for key in SETTINGS}
        | {"method": fields.maybe_text("label") or fields.text("method")},
        beside=fields.maybe_text("beside"),
        seeds=len(fields.names("seeds")),
        uses_future_labels=fields.flag("uses_future_labels"),
        ours={
            "future": (fields.maybe_number("future_mean"), fields.maybe_number("future_std")),
            "seen": (fields.maybe_number("seen_mean"), fields.maybe_number("seen_std")),
            "uplink": (fields.maybe_number("uplink_mb"), None),
            "noise": (fields.maybe_number("noise_norm"), None),
        },
        published={
            "future": fields.maybe_number("published_future_mean"),
            "seen": fields.maybe_number("published_seen_mean"),
            "noise": fields.maybe_number("published_noise_norm"),
        },
        gain=fields.numbers("gain"),
        effective_gain=fields.numbers("effective_gain"),
        origin=[fields.maybe_text(key) or UNKNOWN for key in _ORIGIN],
    )


def column_name(across: str, value: Any) -> str:
    """The head of a column.

    >>> column_name("alpha", 0.5), column_name("noise", False)
    ('α = 0.5', 'without noise')
    """
    if isinstance(value, bool):
        return "with noise" if value else "without noise"
    shown = number(value, 6) if isinstance(value, int | float) else str(value)
    return f"{SYMBOLS[across]} = {shown}" if across in SYMBOLS else shown
