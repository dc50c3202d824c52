"""What Prometheus reads: every figure that an operator needs, none of a single client; and the dashboard."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sottovoce.report.live import metrics
from sottovoce.report.look import look
from sottovoce.report.status import Status
from tests.federation.status.test_progress import Told
from tests.federation.test_contact import Watched
from tests.federation.world import QUICK

ROOT = Path(__file__).parents[3]
ONBOARDING = {
    "sottovoce_onboarding_requests_total",
    "sottovoce_onboarding_request_seconds_bucket",
    "sottovoce_onboarding_waiting",
    "sottovoce_onboarding_retries_total",
}
"""Of the service, whose own tests read them from it."""


def samples(found: Status) -> dict[str, float]:
    """Every sample, by its name and labels."""
    text = metrics(lambda: found).decode()
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Status:
    folder = tmp_path_factory.mktemp("server")
    told = Told(folder, late=0.0)
    told.world.enrol_all()
    told.phase()
    told.phase()
    told.progress.refused()
    told.update(connected=(0, 1))
    found = look(folder)
    assert isinstance(found, Status)
    return found


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Status:
    world = Watched(tmp_path_factory.mktemp("client"), **QUICK)
    world.enrol_all()
    world.step()
    found = look(world.directory(0))
    assert found.role == "client"
    return found


def test_the_server_tells_who_is_there_how_far_it_is_and_what_it_refused(server: Status) -> None:
    found = samples(server)
    assert found["sottovoce_run_state[waiting]"] == 1
    assert sum(value for name, value in found.items() if "_state[" in name) == 1
    assert (found["sottovoce_run_round"], found["sottovoce_run_rounds"]) == (1, 2)
    assert found["sottovoce_run_clients_connected"] == 2
    assert found["sottovoce_run_clients_enrolled"] == found["sottovoce_run_participants"] == 3
    assert found["sottovoce_run_clients_late"] == server.counted("late") > 0
    assert found["sottovoce_run_refusals_total"] == 1
    assert found["sottovoce_run_bytes_up_total"] == server.bytes_up > 0
    assert found["sottovoce_run_bytes_down_total"] == server.bytes_down > 0
    assert 0 <= found["sottovoce_run_seconds_since_progress"] < 60
    assert 0 < found["sottovoce_run_epsilon_spent"] < found["sottovoce_run_epsilon_target"] == 8


def test_a_client_tells_its_owner_the_headroom_of_its_ledger(node: Status) -> None:
    found = samples(node)
    assert found["sottovoce_node_epsilon_budget"] == 8
    assert found["sottovoce_node_epsilon_spent"] == node.epsilon["spent"] > 0
    assert found["sottovoce_node_epsilon_run"] == node.epsilon["run"]
    assert found["sottovoce_node_epsilon_together"] == node.epsilon["together"]
    assert 0 <= found["sottovoce_node_seconds_since_contact"] < 60
    assert found["sottovoce_node_answers_total"] == 2


def test_no_figure_has_the_name_of_a_client(server: Status, node: Status) -> None:
    for found in (server, node):
        text = metrics(lambda found=found: found).decode()  # type: ignore[misc]
        assert "client-" not in text
        assert "participant-" not in text


def test_what_is_not_known_is_no_figure() -> None:
    found = samples(Status("run", "unknown", "it is not there"))
    assert "sottovoce_run_rounds" not in found
    assert found["sottovoce_run_state[unknown]"] == 1


def names(text: str) -> set[str]:
    return set(re.findall(r"sottovoce_\w+", text))


def test_the_dashboard_shows_every_metric_and_none_that_is_not(server: Status, node: Status) -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    made = {name.partition("[")[0] for found in (server, node) for name in samples(found)}
    told = {name for name in made if not name.endswith("_created")} | ONBOARDING
    assert names(" ".join(shown)) == told | {"sottovoce_run_seconds_left"}
    assert names((ROOT / "src/sottovoce/report/live/__init__.py").read_text()) >= {
        "sottovoce_run_seconds_left"
    }
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_the_operations_page_explains_every_metric(server: Status, node: Status) -> None:
    page = names((ROOT / "docs" / "operations.md").read_text())
    made = {name.partition("[")[0] for found in (server, node) for name in samples(found)}
    assert {name for name in made if not name.endswith("_created")} <= page
