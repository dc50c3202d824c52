"""`sottovoce ledger`: what was spent is shown, budgets are raised by a yes only, copies are vouched for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.machine.rollback import Memory
from sottovoce.privacy.ledger import OWN_RECORDS, Budget, Charge, Ledger, client_scope

from .conftest import Failing

PLENTY = Budget(epsilon=1e6, delta=1e-5, accounting="exact")
runner = CliRunner()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "north.ledger.sqlite"
    with Ledger.open(path, scope=client_scope("north")) as ledger:
        ledger.willing(4.0)
        for run, kind, number in (("a", "context", 0), ("a", "gradient", 1), ("b/onboarding", "context", 0)):
            ledger.commit(Charge(run, OWN_RECORDS, kind, number, 0.2, 1.0), b"m", PLENTY)  # type: ignore[arg-type]
    return path


def shown(path: Path) -> dict[str, object]:
    answer = runner.invoke(app, ["ledger", "show", str(path), "--json"])
    assert answer.exit_code == 0, answer.output
    content: dict[str, object] = json.loads(answer.stdout)
    return content


def test_show_lists_clients_runs_releases_and_budgets(path: Path) -> None:
    content = shown(path)
    assert content["about"] == "the records of the client 'north'"
    assert content["budget"] == {"epsilon": 4.0, "delta": 1e-5, "accounting": "exact"}
    runs = [(run["run"], run["context"], run["gradient"], run["lost"]) for run in content["runs"]]  # type: ignore[attr-defined]
    assert runs == [("a", 1, 1, 0), ("b", 1, 0, 0)]
    [client] = content["clients"]  # type: ignore[misc]
    assert client["releases"] == 3
    assert client["epsilon"] == pytest.approx(PLENTY.price(0.12))
    answer = runner.invoke(app, ["ledger", "show", str(path)])
    assert "own records" in answer.stdout
    assert "budget set to ε = 4" in answer.stdout


def test_show_says_what_was_lost(path: Path) -> None:
    path.unlink()
    content = shown(path)
    assert [(run["run"], run["lost"]) for run in content["runs"]] == [("a", 2), ("b", 1)]  # type: ignore[attr-defined]


def test_a_budget_is_raised_by_a_yes_only(path: Path, failing: Failing) -> None:
    assert "--yes" in failing("ledger", "raise", str(path), "--epsilon", "12")
    assert shown(path)["budget"] == {"epsilon": 4.0, "delta": 1e-5, "accounting": "exact"}
    answer = runner.invoke(app, ["ledger", "raise", str(path), "--epsilon", "12", "--yes"])
    assert answer.exit_code == 0, answer.output
    assert "odds of up to 1.63e+05 to 1" in answer.output
    assert shown(path)["budget"] == {"epsilon": 12.0, "delta": 1e-5, "accounting": "exact"}


def test_a_copy_is_vouched_for_by_a_yes_only(path: Path, failing: Failing) -> None:
    Memory(path).path.unlink()
    assert shown(path)["copied"] is True
    assert "--yes" in failing("ledger", "vouch", str(path))
    assert runner.invoke(app, ["ledger", "vouch", str(path), "--yes"]).exit_code == 0
    assert shown(path)["copied"] is False


def test_a_ledger_that_is_not_there_is_named_and_not_made(tmp_path: Path, failing: Failing) -> None:
    assert "there is no ledger at" in failing("ledger", "show", str(tmp_path / "none.sqlite"))
    assert not list(tmp_path.iterdir())


def test_show_says_that_noise_at_the_server_leaves_readers_of_releases_without_a_finite_epsilon(
    path: Path,
) -> None:
    before = runner.invoke(app, ["ledger", "show", str(path)]).stdout
    assert "no finite" not in before
    assert shown(path)["clients"][0]["epsilon_of_releases"] == pytest.approx(PLENTY.price(0.12))  # type: ignore[index]
    with Ledger.open(path, scope=client_scope("north")) as ledger:
        ledger.commit(Charge("c", OWN_RECORDS, "gradient", 1, 0.2, 1.0, "server"), b"m", PLENTY)
        ledger.commit(Charge("c", OWN_RECORDS, "confusion", 0, 0.2, 1.0), b"m", PLENTY)
    answer = runner.invoke(app, ["ledger", "show", str(path)]).stdout
    assert "there is no finite ε" in " ".join(answer.split())
    content = shown(path)
    assert [run["at_server"] for run in content["runs"]] == [0, 0, 1]  # type: ignore[attr-defined]
    assert content["clients"][0]["epsilon_of_releases"] is None  # type: ignore[index]
    assert content["clients"][0]["epsilon"] == pytest.approx(PLENTY.price(0.2))  # type: ignore[index]


def test_show_states_what_is_left_if_all_helpers_fail(path: Path) -> None:
    assert "helper" not in runner.invoke(app, ["ledger", "show", str(path)]).stdout
    assert shown(path)["clients"][0]["epsilon_if_helpers_fail"] == pytest.approx(PLENTY.price(0.12))  # type: ignore[index]
    with Ledger.open(path, scope=client_scope("north")) as ledger:
        charge = Charge("d", OWN_RECORDS, "gradient", 1, 1.0, 3.99**0.5, "shared", 4, 1.0, "board, lab")
        ledger.commit(charge, b"m", PLENTY)
    content = shown(path)
    assert content["helpers"] == ["board", "lab"]
    [client] = content["clients"]  # type: ignore[misc]
    assert client["epsilon"] == pytest.approx(PLENTY.price(0.12 + 1 / 3.99))
    assert client["epsilon_if_helpers_fail"] == pytest.approx(PLENTY.price(0.12 + 1 / 0.99))
    text = " ".join(runner.invoke(app, ["ledger", "show", str(path)]).stdout.split())
    assert "while cryptography holds and one helper is honest (board, lab)" in text
    assert f"if all helpers fail, it is {client['epsilon_if_helpers_fail']:.4f} of own records" in text
