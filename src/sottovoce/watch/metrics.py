"""What Prometheus reads of a run, a federation or a client of one: the same as its page, as numbers.

Nothing has a label that names a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Metric, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sottovoce.federation.contact import NodeStatus
from sottovoce.run.status import EXIT_CODES, Status

CONTENT_TYPE = exposition.CONTENT_TYPE_LATEST
Found = Status | NodeStatus


class Looked(Collector):
    """Looks whenever it is asked."""

    def __init__(self, look: Callable[[], Found]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        found = self._look()
        yield from _node(found) if isinstance(found, NodeStatus) else _run(found)


def metrics(look: Callable[[], Found]) -> bytes:
    """The page for Prometheus."""
    registry = CollectorRegistry()
    registry.register(Looked(look))
    return exposition.generate_latest(registry)


def _run(found: Status) -> Iterator[Metric]:
    yield _state("sottovoce_run_state", "1 for the state that the run is in.", found)
    yield _gauge("sottovoce_run_round", "Rounds that are closed.", found.round)
    yield _gauge("sottovoce_run_rounds", "Rounds of the plan.", found.rounds)
    since = found.seconds_since_progress
    yield _gauge("sottovoce_run_seconds_since_progress", "Since a phase or a round was closed.", since)
    yield _gauge("sottovoce_run_seconds_left", "Estimated from the last rounds.", found.seconds_left)
    for direction, total in (("up", found.bytes_up), ("down", found.bytes_down)):
        about = f"Bytes {direction}, of rounds that two or more clients answered."
        yield _counter(f"sottovoce_run_bytes_{direction}", about, total)
    yield _gauge(
        "sottovoce_run_epsilon_target", "What the plan allows each client.", found.epsilon.get("target")
    )
    spent = found.epsilon.get("spent")
    yield _gauge("sottovoce_run_epsilon_spent", "Of the client that has spent most in this run.", spent)
    if found.engine:
        yield _gauge("sottovoce_run_participants", "Clients of the plan.", found.participants)
        for what in ("enrolled", "connected", "late"):
            yield _gauge(f"sottovoce_run_clients_{what}", f"Clients that are {what}.", found.counted(what))
        yield _counter("sottovoce_run_refusals", "Answers and enrolments refused.", found.refusals)


def _node(found: NodeStatus) -> Iterator[Metric]:
    yield _state("sottovoce_node_state", "1 for the state that the client is in.", found)
    yield _gauge("sottovoce_node_round", "The last round that it was asked for.", found.round)
    yield CounterMetricFamily(
        "sottovoce_node_released_rounds", "Rounds it released in.", value=found.gradients
    )
    since = found.seconds_since_contact
    yield _gauge("sottovoce_node_seconds_since_contact", "Since a message of the server came.", since)
    yield _counter("sottovoce_node_answers", "Messages that it has answered.", found.answers)
    yield CounterMetricFamily(
        "sottovoce_node_refusals", "Messages that it has refused.", value=found.refusals
    )
    spent = found.epsilon
    yield _gauge("sottovoce_node_epsilon_budget", "What its owner allows.", spent.get("budget"))
    yield _gauge("sottovoce_node_epsilon_spent", "Spent by its records, in all runs.", spent.get("spent"))
    yield _gauge("sottovoce_node_epsilon_run", "What the whole of this run costs.", spent.get("run"))
    together = spent.get("together")
    yield _gauge("sottovoce_node_epsilon_together", "What will be spent when this run ends.", together)


def _state(name: str, about: str, found: Found) -> Metric:
    family = GaugeMetricFamily(name, about, labels=["state"])
    for state in EXIT_CODES:
        family.add_metric([state], state == found.state)
    return family


def _gauge(name: str, about: str, value: float | None) -> Metric:
    """One number; none where it is not known."""
    family = GaugeMetricFamily(name, about, labels=[])
    if value is not None:
        family.add_metric([], value)
    return family


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(name, about, value=value)
