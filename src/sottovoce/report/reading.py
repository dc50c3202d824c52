"""The files of a run, read and checked: result.json, rounds.jsonl and plan.toml of its directory.

What is missing or damaged is said in one line, with what to do.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.report.fields import Fields, PerClient, damaged, read_object, read_text

FORMAT_VERSION = 1
_UNKNOWN_TO_A_SERVER = {"bytes": 0, "signal_norm": None, "noise_norm": None, "seen": None, "future": None}
_UNTOLD = {"bytes": 0}  # the length of a lone message under noise at the server
_FACTS = ("method", "dataset", "preset", "context", "channel", "noise", "basis", "created", "sottovoce")
_COUNTS = (
    "seed",
    "model_parameters",
    "coefficients",
    "participants",
    "future_clients",
    "rounds",
    "releases_max",
)


@dataclass(frozen=True)
class Accuracy:
    """Percent; `masked` is restricted to the classes that a client has."""

    mean: float | None
    masked: float | None
    per_client: PerClient
    masked_per_client: PerClient


@dataclass(frozen=True)
class Site:
    """What one client averages over, and the noise that follows from it; a future client has no σ."""

    name: str
    size: int
    sigma: float | None


@dataclass(frozen=True)
class Epsilon:
    """Privacy spent by participants, and what the context of one future client costs."""

    target: float | None
    spent_max: float | None
    accounting: str
    per_client: PerClient
    future_context: float | None


@dataclass(frozen=True)
class Uplink:
    """Bytes from clients to the server, and what the same releases cost as 32-bit floats."""

    bytes: float
    releases: int
    bits_per_coefficient: float | None
    context_bytes: float
    fp32_bytes: float


@dataclass(frozen=True)
class ReportedRound:
    """One round; norms are means over its clients, accuracies are None where it was not evaluated."""

    round: int
    clients: list[str]
    bytes: float
    signal_norm: float | None
    noise_norm: float | None
    gain: float | None
    effective_gain: float | None
    seconds: float
    seen: float | None
    future: float | None


@dataclass(frozen=True)
class ReportedRun:
    """Everything that the report of a run shows."""

    facts: dict[str, str | None]  # method, dataset, preset, context, channel, noise, basis, created, …
    counts: dict[str, int]  # seed, model_parameters, coefficients, participants, future_clients, …
    seeded: bool
    uses_future_labels: bool
    seen: Accuracy
    future: Accuracy
    epsilon: Epsilon
    delta: float
    sigma: float | None
    sigma_context: float | None
    uplink: Uplink
    downlink_bytes: float
    downlink_bits: float | None
    seconds: float
    confusion: dict[str, list[list[int]]]
    class_names: list[str]
    """Empty where classes have numbers only."""
    metric: str
    """What accuracies are, on a scale of 100."""
    metrics: dict[str, PerClient]
    """Means of all metrics, by role."""
    constant: dict[str, PerClient]
    """What clients would have without any model, by role."""
    reliability: dict[str, list[dict[str, float]]]
    """By group of clients, bins of stated probability: `records`, `stated`, `observed`."""
    unit: str
    """What privacy protects one of."""
    sites: dict[str, Site]
    rounds: list[ReportedRound]
    plan: dict[str, str]
    engine: str | None = None
    """What carried the messages of a federation, whose server learns no accuracies, norms and bytes."""
    audit: dict[str, Any] | None = None
    """What an audit found, where one was made."""


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sorting key that puts client-2 before client-10.

    >>> sorted(["client-10", "client-2"], key=natural)
    ['client-2', 'client-10']
    """
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


def read_run(directory: Path) -> ReportedRun:
    """The run stored in `directory`; raises SottovoceError when a file is missing or damaged."""
    path = directory / "result.json"
    result = Fields(path, read_object(path, read_text(path)))
    version = result.whole("version")
    if version != FORMAT_VERSION:
        raise SottovoceError(
            f"{result.path} has format {version}, this version reads format {FORMAT_VERSION}: "
            "use the version of sottovoce that wrote it"
        )
    engine = result.maybe_text("engine")
    accuracy = None if engine is not None else result.section("accuracy")
    return ReportedRun(
        facts={key: result.maybe_text(key) for key in _FACTS},
        counts={key: result.whole(key) for key in _COUNTS},
        seeded=result.flag("seeded"),
        uses_future_labels=result.flag("uses_future_labels"),
        seen=Accuracy(None, None, {}, {}) if accuracy is None else _accuracy(accuracy, "seen"),
        future=Accuracy(None, None, {}, {}) if accuracy is None else _accuracy(accuracy, "future"),
        epsilon=result.section("epsilon").read(Epsilon),
        delta=result.number("delta"),
        sigma=result.maybe_number("sigma"),
        sigma_context=result.maybe_number("sigma_context"),
        uplink=Uplink(0, 0, None, 0, 0) if engine is not None else result.section("uplink").read(Uplink),
        downlink_bytes=result.section("downlink").number("bytes"),
        downlink_bits=result.section("downlink").maybe_number("bits_per_coefficient"),
        seconds=result.number("seconds"),
        confusion={} if engine is not None else result.matrices("confusion"),
        class_names=result.maybe_names("class_names"),
        metric=result.maybe_text("metric") or "accuracy",
        metrics={role: result.maybe_section("metrics").maybe_per_client(role) for role in ("seen", "future")},
        constant={
            role: result.maybe_section("metrics").maybe_section("constant").maybe_per_client(role)
            for role in ("seen", "future")
        },
        reliability={
            name: bins
            for name, role in (("Participants", "seen"), ("Future clients", "future"))
            if (bins := _bins(result.maybe_section("reliability"), role))
        },
        unit=result.maybe_text("unit") or "record",
        sites={row.text("name"): row.read(Site) for row in result.rows("clients")},
        rounds=_rounds(directory / "rounds.jsonl", _UNTOLD if engine is None else _UNKNOWN_TO_A_SERVER),
        plan=_plan(directory / "plan.toml"),
        engine=engine,
        audit=_audit(directory / "audit.json"),
    )


def _audit(path: Path) -> dict[str, Any] | None:
    return read_object(path, read_text(path)) if path.exists() else None


def _bins(fields: Fields, role: str) -> list[dict[str, float]]:
    """A reliability curve; none in results of before there were some."""
    return [{name: bin.number(name) for name in ("stated", "observed")} for bin in fields.rows(role)]


def _accuracy(fields: Fields, group: str) -> Accuracy:
    return Accuracy(
        mean=fields.maybe_number(group),
        masked=fields.maybe_number(f"{group}_masked"),
        per_client=fields.per_client(f"{group}_per_client"),
        masked_per_client=fields.per_client(f"{group}_masked_per_client"),
    )


def _rounds(path: Path, unknown: Mapping[str, Any]) -> list[ReportedRound]:
    return [
        Fields(path, {**unknown, **read_object(path, line, number)}, f"line {number}: ").read(ReportedRound)
        for number, line in enumerate(read_text(path).splitlines(), start=1)
    ]


def _plan(path: Path) -> dict[str, str]:
    try:
        table = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise damaged(path, f"is not TOML ({error})") from None
    return dict(_flat(table))


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + key, str(value).lower() if isinstance(value, bool) else str(value)))
    return rows
