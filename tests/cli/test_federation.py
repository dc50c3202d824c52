"""The commands of a real federation refuse in one line what they cannot do."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.federation import Agreement
from sottovoce.federation.flower import joining
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


@pytest.mark.parametrize("noise", ["client", "shared"])
def test_a_described_table_is_not_dealt_out_and_nothing_is_written(
    tmp_path: Path, failing: Failing, noise: str
) -> None:
    """Its rows would be encoded, and no node reads them: client-0 had no column 'age'."""
    folder, out = sites(tmp_path / "sites"), [f"noise={noise}", "--out", str(tmp_path / "app")]
    line = failing("federate", "dataset=heart", *out, "--deal", str(tmp_path / "deal"))
    assert "heart is a described table" in line
    line = failing(
        "federate", f"dataset={folder}/3.csv", "partition=iid", *out, "--deal", str(tmp_path / "deal")
    )
    assert "3.csv is a described table, and nodes read its own files: give its records.toml" in line
    assert [path.name for path in tmp_path.iterdir()] == ["sites"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "name the certificate"),
        (["--insecure", "--authority", "here"], "name the certificate"),
        (["--insecure", "--records", "nowhere.csv"], "nowhere.csv does not exist"),
        (["--insecure", "helper"], "'helper' is no setting"),
        (["--insecure", "--no-records"], "name the client's records"),
    ],
)
def test_a_node_that_cannot_begin_says_why_in_one_line(
    tmp_path: Path, failing: Failing, options: list[str], says: str
) -> None:
    for name in ("mine.csv", "agreement.toml"):
        (tmp_path / name).write_text("")
    given = ["--directory", str(tmp_path / "state"), "--agreement", str(tmp_path / "agreement.toml")]
    if "--no-records" in options:
        options = ["--insecure"]
    elif "--records" not in options:
        given += ["--records", str(tmp_path / "mine.csv")]
    assert says in failing("node", "host:1", *given, *options)
    assert not (tmp_path / "state").exists()


def test_a_node_on_a_port_that_is_taken_says_so_in_one_line(
    tmp_path: Path, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining.check_port, "__defaults__", (0.0,))
    for name in ("mine.csv", "agreement.toml"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    said = "node host:1 --insecure --directory state --records mine.csv --agreement agreement.toml --port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "it is in use" in failing(*said.split(), str(taken.getsockname()[1]))


def test_a_node_hands_on_what_its_owner_said_and_ends_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    class Kept:
        def __init__(self, command: list[str], server: str, directory: Path, say: object) -> None:
            commands.append(command)

        def keep(self, *, give_up: float | None) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("sottovoce.federation.flower.joining.Connection", Kept)
    monkeypatch.setattr("sottovoce.federation.flower.joining.check_port", lambda port: None)
    for name in ("mine.csv", "agreement.toml", "ca.crt", "node-key"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    said = "node host:8700 --directory state --records mine.csv --agreement agreement.toml --partition-id 1"
    said += " --epsilon 4 --authority ca.crt --key node-key noise-at-server=true"
    before = signal.getsignal(signal.SIGTERM)
    told = CliRunner().invoke(app, said.split())
    signal.signal(signal.SIGTERM, before)
    assert told.exit_code == 0, told.output
    [command] = commands
    config = command[command.index("--node-config") + 1]
    assert f'records="{tmp_path / "mine.csv"}"' in config  # whatever folder Flower works in
    for part in ("noise-at-server=true", "partition-id=1", "epsilon=4.0"):
        assert part in config.split()
    assert "--insecure" not in command
