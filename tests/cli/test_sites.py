"""Keys of sites and helpers, and what they are shown before they agree."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sottovoce.cli.application import app
from sottovoce.federation import Agreement
from sottovoce.federation.keys import Parties, SiteKey, accepted, fingerprint
from tests.cli.conftest import Failing
from tests.federation.world import SHARED

runner = CliRunner()
SETTINGS = [f"{key}={value}" for key, value in SHARED.items()]


def said(*words: str) -> str:
    done = runner.invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_a_key_is_made_and_its_public_half_is_what_an_agreement_needs(
    tmp_path: Path, failing: Failing
) -> None:
    told = {}
    for role, name in (("site", "north"), ("helper", "board")):
        file = tmp_path / f"{name}.key"
        told[role] = json.loads(said(role, "key", str(file), "--name", name, "--json"))
        key = SiteKey.read(file)
        assert (told[role]["public"], told[role]["fingerprint"]) == (key.public, fingerprint(key.public))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "is there already" in failing("site", "key", str(tmp_path / "north.key"), "--name", "north")
    assert "cannot name a site" in failing("site", "key", str(tmp_path / "x"), "--name", "no/rth")
    assert not (tmp_path / "x").exists()
    text = said("helper", "key", str(tmp_path / "lab.key"), "--name", "lab")
    lab = SiteKey.read(tmp_path / "lab.key")
    assert f'"lab" = "{lab.public}"' in text
    assert fingerprint(lab.public) in text
    for private in (lab.exchange.private_bytes_raw(), lab.signing.private_bytes_raw()):
        assert private.hex() not in text
    (tmp_path / "keys.toml").write_text(
        f'[sites]\nnorth = "{told["site"]["public"]}"\n[helpers]\n"lab" = "{lab.public}"\n'
    )
    parties = Parties.load(tmp_path / "keys.toml")
    assert parties.sites == (("north", told["site"]["public"]),)


def test_an_agreement_shows_names_fingerprints_and_the_settings_to_consent_with(
    tmp_path: Path, failing: Failing
) -> None:
    folder, out = tmp_path / "clients", tmp_path / "app"
    said("federate", *SETTINGS, "seeded=true", "--deal", str(folder), "--out", str(out))
    file = folder / "agreement.toml"
    agreed = Agreement.load(file, simulation=True)
    shown = json.loads(said("site", "agreement", str(file), "--json"))
    assert (shown["threshold"], shown["colluding"], shown["honest"]) == (4, 1, 3)
    assert shown["digest"] == agreed.full_digest()
    assert list(shown["sites"]) == [f"client-{i}" for i in range(6)]
    config = tomllib.loads(shown["config"])
    assert (config["noise_shared"], config["honest"]) == (True, 3)
    assert accepted(",".join(config["helpers"])) == {
        mark.replace(" ", "") for mark in shown["helpers"].values()
    }
    text = said("site", "agreement", str(file))
    assert shown["digest"] in text
    assert shown["config"] in text
    assert "one helper is honest" in text
    assert "helpers are sites too" not in text
    other = folder / "other.toml"
    renamed = file.read_text()
    for number in range(3):
        renamed = renamed.replace(f'"helper-{number}"', f'"client-{number}"')
    other.write_text(renamed)
    assert "3 helpers are sites too: at most 1 of them may be dishonest" in said(
        "site", "agreement", str(other)
    )
    said("federate", "preset=best", "dataset=mnist-small", "--out", str(tmp_path / "plain"))
    plain = tmp_path / "plain" / "sottovoce_app" / "agreement.toml"
    assert "not on shared noise" in failing("site", "agreement", str(plain))


def test_shared_noise_needs_the_keys_of_all(tmp_path: Path, failing: Failing) -> None:
    words = ["federate", *SETTINGS, "gradient_records=16", "seeded=false", "--out", str(tmp_path / "app")]
    assert "collect them first" in failing(*words)
    assert "no keys at" in failing(*words, "--keys", str(tmp_path / "keys.toml"))
    keys = tmp_path / "keys.toml"
    keys.write_text("[sites\n")
    assert "is not TOML" in failing(*words, "--keys", str(keys))
    keys.write_text(
        "".join(
            f"[{table}]\n" + "".join(f'"{one}" = "{SiteKey.make(tmp_path / one).public}"\n' for one in names)
            for table, names in (("sites", "abcdef"), ("helpers", "xyz"))
        )
    )
    said(*words, "--keys", str(keys))
    agreed = Agreement.load(tmp_path / "app" / "sottovoce_app" / "agreement.toml")
    assert agreed.parties == Parties.load(keys)


def test_the_status_of_a_helper_and_of_what_is_none(tmp_path: Path, failing: Failing) -> None:
    for nowhere in (tmp_path, tmp_path / "nowhere"):
        assert "is not that of a helper" in failing("helper", "status", str(nowhere))
    (tmp_path / "helper.log").touch()
    assert "no round was asked for" in said("helper", "status", str(tmp_path))
    for content in (b"no store", b""):
        (tmp_path / "masks-0123456789abcdef.sqlite").write_bytes(content)
        assert "cannot be read" in failing("helper", "status", str(tmp_path))


@pytest.mark.parametrize("words", [["site"], ["helper"]])
def test_help_teaches(words: list[str]) -> None:
    text = runner.invoke(app, [*words, "--help"]).output
    assert "key" in text
    assert f"sottovoce {words[0]} key" in runner.invoke(app, [*words, "key", "--help"]).output
