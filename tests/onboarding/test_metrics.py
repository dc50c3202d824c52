"""Counts and times as Prometheus reads them."""

from __future__ import annotations

import re

from sottovoce.onboarding.metrics import BOUNDS, Metrics


def test_buckets_are_cumulative_and_end_at_the_count() -> None:
    metrics, times = Metrics(), [0.0005, 0.001, 0.004, 0.3, 60.0]
    for seconds in times:
        metrics.answered(200, seconds)
    metrics.answered(429, 0.0001)
    text = metrics.text(waiting=3)
    buckets = [int(count) for count in re.findall(r"_bucket\{le=\".*?\"\} (\d+)", text)]
    assert buckets == sorted(buckets)
    assert len(buckets) == len(BOUNDS) + 1
    assert buckets[0] == 3
    assert buckets[-1] == 6
    assert 'sottovoce_requests_total{status="200"} 5' in text
    assert 'sottovoce_requests_total{status="429"} 1' in text
    assert "sottovoce_request_seconds_count 6" in text
    assert "sottovoce_request_seconds_sum 60.3056" in text
    assert text.endswith("sottovoce_waiting 3\n")


def test_every_sample_has_help_and_a_type() -> None:
    text = Metrics().text(waiting=0)
    families = set(re.findall(r"^# TYPE (\w+)", text, flags=re.M))
    assert families == set(re.findall(r"^# HELP (\w+)", text, flags=re.M))
    for line in text.splitlines():
        if not line.startswith("#"):
            name = re.match(r"\w+", line)
            assert name is not None
            assert re.sub(r"_(bucket|sum|count)$", "", name.group()) in families
