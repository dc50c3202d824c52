"""The commands of a real federation refuse in one line what they cannot do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.federation.agreement import Agreement
from tests.run.test_folder import sites

from .conftest import Failing


def test_a_missing_package_is_named_with_what_to_install(
    run: Path, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert failing("serve", str(run)).endswith("pip install 'sottovoce[serve]'")


def test_one_plan_file_is_enough(failing: Failing) -> None:
    assert "second plan file" in failing("federate", "a.toml", "--plan", "b.toml", "--out", "app")


def test_nothing_is_served_beyond_this_machine_but_behind_a_proxy(run: Path, failing: Failing) -> None:
    pytest.importorskip("uvicorn")
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        assert "unencrypted and without limits" in failing("serve", str(run), "--host", host)


RECORDS = """
task = "classes"
[target]
column = "ill"
values = ["no", "yes"]
[columns.age]
kind = "number"
low = 0
high = 120
"""


def test_an_app_is_written_from_a_plan_and_records_toml_without_a_record(tmp_path: Path) -> None:
    (tmp_path / "records.toml").write_text(RECORDS)
    app_, words = tmp_path / "app", ["model=linear", "context=public", "coefficients=4", "participants=2"]
    words += ["clients_per_round=2", "future_clients=0", "context_records=0"]
    files = ["--records", str(tmp_path / "records.toml"), "--out", str(app_)]
    result = CliRunner().invoke(app, ["federate", *words, *files, "--json"])
    assert result.exit_code == 0, result.output
    agreement = Agreement.load(app_ / "sottovoce_app" / "agreement.toml")
    assert agreement.open
    assert agreement.facts.class_names == ("no", "yes")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app", "records.toml"]
    again = CliRunner().invoke(app, ["federate", *words, *files, "--deal", str(tmp_path / "clients")])
    assert "omit one of them" in str(again.exception)


@pytest.mark.parametrize("deal", [[], ["--deal", "clients"]])
def test_a_folder_of_sites_is_federated_by_its_records_toml(
    tmp_path: Path, failing: Failing, deal: list[str]
) -> None:
    folder = sites(tmp_path / "sites")
    line = failing("federate", f"dataset={folder}", "--out", str(tmp_path / "app"), *deal)
    assert f"give its agreement {folder}/records.toml and how many participants" in line
    assert line.endswith("(--records)")
