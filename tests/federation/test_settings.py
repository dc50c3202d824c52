"""node.toml: each key has a sentence, a type and bounds, and mistakes in it name key and line."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.federation.keys import SiteKey, accepted
from sottovoce.federation.settings import Flower, Settings, SettingsError, template
from sottovoce.privacy.terms import Terms

MARKS = ("02510 42766 79984 49777 58633 95960", "81533 42766 79984 49777 58633 95960")
EVERYTHING = f"""
agreement = "agreement.toml"
directory = "state"
records = "north.csv"
ledger = "/elsewhere/ledger.sqlite"
witness = "/mnt/elsewhere"
client = "north"
epsilon = 4
delta = 1e-6
index = 3
model = "ours:network"
features = "ours:map"
finish = true
threads = 2
noise_at_server = true
looked_up = true
noise_shared = true
honest = 7
helpers = {list(MARKS)}
site_key = "north.key"
helper = true
diagnostics = true
simulated = true

[flower]
server = "host:8700"
authority = "ca.crt"
node_key = "node-key"
trusted = "trusted.yaml"
insecure = true
port = 9100
""".replace("'", '"')


def load(folder: Path, text: str) -> Settings:
    (folder / "node.toml").write_text(text, encoding="utf-8")
    return Settings.load(folder / "node.toml")


def test_every_key_is_read_and_differs_from_what_holds_where_it_is_absent(tmp_path: Path) -> None:
    found, absent = load(tmp_path, EVERYTHING), Settings()
    for mine, other in ((found, absent), (found.flower, absent.flower)):
        for key in dataclasses.fields(mine):
            assert getattr(mine, key.name) != getattr(other, key.name), key.name
    assert found.records == tmp_path / "north.csv"  # beside the file, wherever the command is started
    assert found.ledger == Path("/elsewhere/ledger.sqlite")


def test_the_owner_s_terms_are_those_of_the_file(tmp_path: Path) -> None:
    terms = load(tmp_path, EVERYTHING).terms()
    assert terms == Terms(
        ledger=Path("/elsewhere/ledger.sqlite"),
        client="north",
        epsilon=4.0,
        delta=1e-6,
        noise_at_server=True,
        looked_up=True,
        noise_shared=True,
        honest=7,
        helpers=accepted(",".join(MARKS)),
    )
    assert load(tmp_path, "").terms() == Terms()


def test_a_template_explains_every_key_and_is_one_that_can_be_read(tmp_path: Path) -> None:
    text = template()
    for kind in (Settings, Flower):
        for key in dataclasses.fields(kind):
            if key.name != "flower":
                assert key.metadata["about"] in text
                assert f"{key.name} = " in text
    assert load(tmp_path, text).records == tmp_path / "records.csv"
    lines = text.splitlines()  # and so it is with each key in use
    used = [line.removeprefix("# ") if " = " in line and line.startswith("# ") else line for line in lines]
    assert set(tomllib.loads("\n".join(used))) == {key.name for key in dataclasses.fields(Settings)}
    assert load(tmp_path, "\n".join(used)).helper


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("epsilon = '4'", 'node.toml, line 1: epsilon is "4": give a number'),
        ("\n\nepsilon = true", "line 3: epsilon is true: give a number"),
        ("epsilon = -1", "line 1: epsilon is -1: give a number from 0"),
        ("delta = 2", "line 1: delta is 2: give a number from 0 to 1"),
        ("index = 1.5", "line 1: index is 1.5: give a whole number"),
        ("finish = 'yes'", 'line 1: finish is "yes": give true or false'),
        ("helpers = '1'", 'line 1: helpers is "1": give a list'),
        ("records = 3", "line 1: records is 3: give a path"),
        ("noise_at_sever = true", "line 1: noise_at_sever is unknown: did you mean 'noise_at_server'?"),
        ("flower = 3", "line 1: flower is a table: write [flower]"),
        ("port = 9094\n[flower]\nprot = 9094", "line 1: port is unknown"),
        ("[flower]\n# port\nport = 70000", "line 3: [flower] port is 70000: give a number from 1 to 65535"),
        ("finish = true\n[flower]\nfinish = true", "line 3: [flower] finish is unknown"),
        ("[flowr]\nport = 9094", "line 1: flowr is unknown: did you mean 'flower'?"),
        ("epsilon =", "is not TOML"),
    ],
)
def test_a_mistake_names_the_file_the_line_and_the_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_offered_a_template(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="write a template"):
        Settings.load(tmp_path / "node.toml")


def test_fingerprints_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SottovoceError, match="fingerprint has 30 digits"):
        load(tmp_path, 'helpers = ["12"]').terms()


def test_a_helper_needs_its_key_and_no_records(tmp_path: Path) -> None:
    (tmp_path / "agreement.toml").write_text("")
    text = 'agreement = "agreement.toml"\ndirectory = "state"\nhelper = true\n'
    with pytest.raises(SettingsError, match="site_key is missing"):
        load(tmp_path, text).check()
    SiteKey.make(tmp_path / "board.key")
    load(tmp_path, f'{text}site_key = "board.key"\n').check()


def test_a_witness_lies_on_another_disk_than_what_is_put_back(tmp_path: Path) -> None:
    for name in ("agreement.toml", "north.csv"):
        (tmp_path / name).touch()
    text = 'agreement = "agreement.toml"\nrecords = "north.csv"\ndirectory = "state/north"\n'
    with pytest.raises(SettingsError, match="does not exist: check witness"):
        load(tmp_path, f'{text}witness = "/mnt/elsewhere/nowhere"').check()
    with pytest.raises(SettingsError, match="lies on the disk of directory, and is put back with it"):
        load(tmp_path, f'{text}witness = "{tmp_path}"').check()
    elsewhere = Path("/proc")  # what every Linux has beside its disk
    assert load(tmp_path, f'{text}witness = "{elsewhere}"').check().witness == elsewhere
