"""The commands of a real federation refuse in one line what they cannot do."""

from __future__ import annotations

import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.federation import Agreement
from sottovoce.federation.flower import joining
from tests.federation.world import QUICK, World, ledger
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


NODE = """agreement = "agreement.toml"
directory = "state"
records = "mine.csv"
epsilon = 4.0
index = 1
noise_at_server = true

[flower]
server = "host:8700"
authority = "ca.crt"
node_key = "node-key"
"""


def place(folder: Path, text: str = NODE) -> Path:
    """A node.toml with the files that it names."""
    for name in ("mine.csv", "agreement.toml", "ca.crt", "node-key"):
        (folder / name).write_text("")
    (folder / "node.toml").write_text(text)
    return folder / "node.toml"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('authority = "ca.crt"', "", "name the certificate"),
        ('authority = "ca.crt"', 'authority = "ca.crt"\ninsecure = true', "name the certificate"),
        ('"mine.csv"', '"nowhere.csv"', "nowhere.csv does not exist: check records"),
        ('records = "mine.csv"', "", "records is missing"),
        ("epsilon", "epsilom", "node.toml, line 4: epsilom is unknown: did you mean 'epsilon'?"),
        ("node_key", "nodekey", "line 11: [flower] nodekey is unknown: did you mean 'node_key'?"),
        ('server = "host:8700"', "", "[flower] server is missing"),
    ],
)
def test_a_node_that_cannot_begin_says_why_in_one_line(
    tmp_path: Path, failing: Failing, old: str, new: str, says: str
) -> None:
    assert says in failing("node", str(place(tmp_path, NODE.replace(old, new))))
    assert not (tmp_path / "state").exists()


def test_a_node_has_one_place_for_its_settings(tmp_path: Path, failing: Failing) -> None:
    line = failing("node", str(place(tmp_path)), "--epsilon", "2", "honest=3")
    assert "say honest, epsilon in" in line


def test_a_node_on_a_port_that_is_taken_says_so_in_one_line(
    tmp_path: Path, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining.check_port, "__defaults__", (0.0,))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = place(tmp_path, f"{NODE}port = {taken.getsockname()[1]}\n")
        assert "it is in use" in failing("node", str(file))


def started(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[list[str], str]:
    """The command of the SuperNode that a command keeps running, and what it says itself."""
    commands: list[list[str]] = []

    class Kept:
        def __init__(self, command: list[str], server: str, directory: Path, say: object) -> None:
            commands.append(command)

        def keep(self, *, give_up: float | None) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("sottovoce.federation.flower.joining.Connection", Kept)
    monkeypatch.setattr("sottovoce.federation.flower.joining.check_port", lambda port: None)
    before = signal.getsignal(signal.SIGTERM)
    told = CliRunner().invoke(app, ["node", *words])
    signal.signal(signal.SIGTERM, before)
    assert told.exit_code == 0, told.output
    return commands[0], told.stderr


def test_a_node_names_its_settings_to_the_engine_and_ends_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, told = started(monkeypatch, str(place(tmp_path)))
    assert command[command.index("--node-config") + 1] == f'settings="{tmp_path / "node.toml"}"'
    for option, value in (("--superlink", "host:8700"), ("--port", "9094")):
        assert command[command.index(option) + 1] == value
    assert command[command.index("--root-certificates") + 1] == str(tmp_path / "ca.crt")
    assert command[command.index("--auth-supernode-private-key") + 1] == str(tmp_path / "node-key")
    assert told == ""


def test_a_client_that_left_rejoins_by_a_word_of_its_owner_said_once(
    tmp_path: Path, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints what that comes to, and answers nothing before; what the budget does not cover is refused."""
    world = World(tmp_path, **{**QUICK, "rounds": 6}, clients_per_round=3, seeded=False)
    world.enrol(0)
    world.answer(0)
    directory, file = tmp_path / "clients" / "client-0", tmp_path / "node.toml"
    text = 'agreement = "clients/agreement.toml"\nrecords = "clients/client-0.npz"\n'
    text += 'directory = "clients/client-0"'
    link = '[flower]\nserver = "host:1"\ninsecure = true'
    file.write_text(f'{text}\nledger = "clients/client-0/ledger.sqlite"\n{link}\n')
    assert "this client has left no run of this agreement" in started(monkeypatch, str(file), "--rejoin")[1]
    kit = tmp_path / "kit.toml"  # where another engine carries the messages, nothing is started
    kit.write_text(file.read_text().replace(link, ""))
    told = CliRunner().invoke(app, ["node", str(kit), "--rejoin"])
    assert (told.exit_code, "this client has left no run" in told.stderr) == (0, True)
    shutil.copytree(directory, tmp_path / "backup")
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "backup", directory)
    price = "to rejoin: ε 9.83, together 10.5"
    assert f"{price} of 8 at δ = 1e-5, which the budget does not cover" in failing(
        "node", str(file), "--rejoin"
    )
    assert world.answer(0)["left"]
    with ledger(world, 0) as book:
        book.raise_budget(11.0)
    command, told = started(monkeypatch, str(file), "--rejoin")
    assert f"rejoins run {world.store.run}; {price} of 11" in " ".join(told.split())
    assert command[command.index("--node-config") + 1] == f'settings="{file}"'
    assert "release" in world.answer(0)


def test_options_that_node_toml_replaces_still_work_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(tmp_path)
    monkeypatch.chdir(tmp_path)
    said = "host:8700 --directory state --records mine.csv --agreement agreement.toml --partition-id 1"
    said += " --epsilon 4 --authority ca.crt --key node-key noise-at-server=true honest=7"
    command, told = started(monkeypatch, *said.split())
    [line] = told.splitlines()
    assert "keys of a node.toml now" in line
    config = command[command.index("--node-config") + 1]
    assert f'records="{tmp_path / "mine.csv"}"' in config  # whatever folder Flower works in
    for part in ("noise-at-server=true", "partition-id=1", "epsilon=4.0", 'honest="7"'):
        assert part in config.split()
    assert "--insecure" not in command


def test_a_template_of_node_toml_is_written_once(tmp_path: Path, failing: Failing) -> None:
    file = tmp_path / "node.toml"
    assert CliRunner().invoke(app, ["node", str(file), "--init"]).exit_code == 0
    assert "agreement.toml does not exist" in failing("node", str(file))
    assert "is there already" in failing("node", str(file), "--init")
