"""The promise in words follows the run: who is protected, by how much, and whose labels were used."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from sottovoce.plan.catalog import CONTEXTS, PLACES
from sottovoce.report.promise import promise, warning
from sottovoce.report.reading import read_run

from .example import example_result, write_example

PROTECTS_NOBODY = "Seeded simulation: the noise is reproducible, so this run protects nobody."


def words(directory: Path, **changes: Any) -> tuple[str, str | None]:
    run = read_run(write_example(directory, **changes))
    text = html.unescape(re.sub("<[^>]*>", "", str(promise(run)))).replace("\u00a0", " ")
    return re.sub("[ \n]+", " ", text), warning(run)


def without_noise() -> dict[str, Any]:
    epsilon = {
        "target": None,
        "spent_max": None,
        "accounting": "exact",
        "per_client": {},
        "future_context": None,
    }
    return {"epsilon": epsilon, "sigma": 0.0, "sigma_context": 0.0}


def test_the_promise_names_epsilon_delta_noise_and_trust(tmp_path: Path) -> None:
    text, alert = words(tmp_path)
    for part in ("ε = 7.999", "of 8 at", "δ = 10⁻⁵", "σ = 0.0247", "record-level", "trusted", "exact"):
        assert part in text
    assert "one context and at most 50 gradients" in text
    assert "cryptographic generator" in text
    assert alert is None


def test_the_promise_counts_all_that_is_released_once(tmp_path: Path) -> None:
    words(tmp_path)
    with (tmp_path / "plan.toml").open("a") as plan:
        plan.write("calibration = 0.2\ncentring = 0.08\n")
    text = re.sub(r"\s+", " ", str(promise(read_run(tmp_path))))
    once = "one mean of its inputs, one context, one calibration of probabilities"
    assert f"released {once} and at most 50 gradients" in text


def test_a_seeded_run_says_that_it_protects_nobody(tmp_path: Path) -> None:
    text, alert = words(tmp_path, seeded=True)
    assert alert == PROTECTS_NOBODY
    assert "cryptographic" not in text


def test_a_run_without_noise_promises_nothing(tmp_path: Path) -> None:
    text, alert = words(tmp_path, **without_noise())
    assert alert is not None
    assert "protects nobody" in alert
    assert "there is no privacy promise" in text
    assert "Trusted server." not in text
    assert "ε =" not in text


def test_use_of_future_labels_is_said_either_way(tmp_path: Path) -> None:
    assert "Labels of future clients were not used." in words(tmp_path)[0]
    text, _ = words(tmp_path, uses_future_labels=True, context="labels")
    assert "Labels of future clients were used." in text
    assert "a histogram of its labels" in text


def test_with_a_public_context_only_gradients_are_released(tmp_path: Path) -> None:
    epsilon = example_result()["epsilon"] | {"future_context": 0.0}
    text, _ = words(tmp_path, context="public", method="global", epsilon=epsilon)
    assert "released at most 50 gradients" in text
    assert "They released nothing" in text


def test_without_future_clients_nothing_is_said_of_them(tmp_path: Path) -> None:
    assert "Future clients." not in words(tmp_path, future_clients=0)[0]


def test_the_promise_names_the_unit_and_the_noise_of_each_size(tmp_path: Path) -> None:
    sites = [
        {"name": f"participant-{i}", "role": "participant", "size": 10 + i, "sigma": 0.25 / (1 + i)}
        for i in range(2)
    ]
    said, _ = words(tmp_path, unit="patient_id", clients=sites)
    assert "all records of one patient" in said
    assert "patient-level differential privacy" in said
    assert "σ from 0.125 to 0.25" in said


SEEN = {
    "client": "its decoded releases, or in any model made from them, would change",
    "server": "any generator or model (but not in a release), would change",
    "shared": "any sum of a round, generator or model, while cryptography holds and one helper is honest,",
}
"""What the promise covers, by the place of the noise."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("context", [*CONTEXTS, None, "of a later version"])
@pytest.mark.parametrize("unit", ["record", "patient_id"])
@pytest.mark.parametrize("noisy", [True, False])
def test_every_promise_is_made_of_whole_sentences(
    tmp_path: Path, place: str, context: str | None, unit: str, noisy: bool
) -> None:
    changes = {"noise": place, "context": context, "unit": unit} | ({} if noisy else without_noise())
    sizes = [{"name": "a", "size": 9, "sigma": 0.1}, {"name": "b", "size": 8, "sigma": 0.2}]
    for more in ({}, {"clients": sizes, "seeded": True, "uses_future_labels": True, "sigma_context": None}):
        text, _ = words(tmp_path, **(changes | more))
        assert not re.search(r" [.,;:)]|\( |  |\.\.|[^.] $|[a-z,;]\Z", text), text
        assert text.count("(") == text.count(")")
        assert (SEEN[place] in text) == noisy
        assert ("all records of one patient of one participant" in text) == (noisy and unit != "record")
        assert ("one context" in text) == (context not in (None, "public"))
        assert ("for the context, at the client)" in text) == (
            noisy and not more and context not in (None, "public") and place != "client"
        )


def test_noise_at_the_server_is_said_with_whom_it_does_not_cover(tmp_path: Path) -> None:
    text, _ = words(tmp_path, noise="server")
    assert "The server added Gaussian noise once a round" in text
    assert "any generator or model (but not in a release)" in text
    assert "there is no finite ε" in text
    assert "its decoded releases, or in any model" in words(tmp_path / "client")[0]


def test_a_federation_is_not_said_to_be_a_simulation(tmp_path: Path) -> None:
    assert "This was a simulation" in words(tmp_path, noise="shared")[0]
    text, _ = words(tmp_path / "federation", noise="shared", engine="flower")
    assert "Nobody needs to trust the server: it saw sums of rounds" in text
    assert "simulation" not in text


@pytest.mark.parametrize("name", [name for name, context in CONTEXTS.items() if context.released])
def test_a_report_calls_a_context_as_the_catalog_does(tmp_path: Path, name: str) -> None:
    assert f"one context ({CONTEXTS[name].phrase})" in words(tmp_path, context=name)[0]


def test_a_report_says_what_was_learned_and_how_it_travelled(tmp_path: Path) -> None:
    text, _ = words(tmp_path, method="blend", channel="polar")
    assert "What was learned. A part that all share, a part from the context" in text
    assert "Releases travelled as polar codes, whose error is the noise." in text
    assert "What was learned" not in words(tmp_path / "later", method="of a later version")[0]
