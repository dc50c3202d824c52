"""Counts and times of the service in Prometheus' text format, none of them about a single client."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """What has happened since the service started.

    >>> metrics = Metrics()
    >>> metrics.answered(200, 0.004)
    >>> print(metrics.text(waiting=0).splitlines()[2])
    sottovoce_requests_total{status="200"} 1
    """

    def __init__(self) -> None:
        self._statuses: Counter[int] = Counter()
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0
        self.retries = 0
        """Contexts that had been received before."""

    def answered(self, status: int, seconds: float) -> None:
        """One request, its status and how long it took."""
        self._statuses[status] += 1
        self._buckets[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds

    def text(self, *, waiting: int) -> str:
        """The page that Prometheus reads."""
        lines = [
            "# HELP sottovoce_requests_total Onboarding requests by status.",
            "# TYPE sottovoce_requests_total counter",
        ]
        lines += [
            f'sottovoce_requests_total{{status="{status}"}} {count}'
            for status, count in sorted(self._statuses.items())
        ]
        lines += [
            "# HELP sottovoce_request_seconds Time of an onboarding request.",
            "# TYPE sottovoce_request_seconds histogram",
        ]
        total = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'sottovoce_request_seconds_bucket{{le="{bound}"}} {total}')
        lines += [
            f"sottovoce_request_seconds_sum {self._seconds:.6f}",
            f"sottovoce_request_seconds_count {total}",
            "# HELP sottovoce_retries_total Contexts that had been received before.",
            "# TYPE sottovoce_retries_total counter",
            f"sottovoce_retries_total {self.retries}",
            "# HELP sottovoce_waiting Requests under way.",
            "# TYPE sottovoce_waiting gauge",
            f"sottovoce_waiting {waiting}",
        ]
        return "\n".join(lines) + "\n"
