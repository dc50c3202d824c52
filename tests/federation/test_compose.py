"""One file starts a federation: valid, without privileges or secrets in it, and run here command by command.

There is no container engine in these tests. The file is checked against the schema of the Compose
specification (`compose_spec.json`, as docker-compose 1.29.2 ships it, Apache-2.0), and the demonstration runs
the commands that it reads from the file as plain processes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from tools.demo_federation import DEPLOY, HELPERS, SERVICES, Federation, services, show

from sottovoce.personal import PersonalModel
from sottovoce.report.look import look
from tests.report.test_browser import DESK
from tests.report.test_browser import browser as browser
from tests.report.webdriver import Browser

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SHARED: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.shared.yaml").read_text())
NAMES = sorted(COMPOSE["services"])
BOTH = services(shared=True)


@pytest.mark.parametrize("file", [COMPOSE, SHARED], ids=["compose.yaml", "compose.shared.yaml"])
def test_the_file_is_valid(file: dict[str, Any]) -> None:
    schema = json.loads((Path(__file__).with_name("compose_spec.json")).read_text())
    check = jsonschema_rs.validator_for(schema)
    assert [error.message for error in check.iter_errors(file)] == []
    wrong = {**file, "services": {"proxy": {"privileged": "perhaps", "comand": []}}}
    assert not check.is_valid(wrong)


@pytest.mark.parametrize("name", sorted(BOTH))
def test_a_service_has_no_privileges_and_writes_to_its_own_folder_only(name: str) -> None:
    service = BOTH[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == "${UID:-1000}:${GID:-1000}"
    assert not {"privileged", "cap_add", "devices", "pid", "ipc"} & service.keys()
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))


def test_nothing_but_the_proxy_is_reached_from_elsewhere() -> None:
    assert [name for name in NAMES if "ports" in COMPOSE["services"][name]] == ["proxy"]
    shared = {name for name in NAMES if COMPOSE["services"][name].get("network_mode") == "service:proxy"}
    assert shared == {"superlink", "register", "server", "watch", "onboarding"}
    listened = re.findall(r"listen 0\.0\.0\.0:(\d+)", (DEPLOY / "nginx.conf").read_text())
    assert COMPOSE["services"]["proxy"]["ports"] == [f"{port}:{port}" for port in listened]


def test_secrets_are_files_of_this_machine_and_in_no_image_or_environment() -> None:
    for name, secret in (COMPOSE["secrets"] | SHARED["secrets"]).items():
        assert secret == {"file": f"${{FEDERATION:-./federation}}/secrets/{name}"}
    for site in ("longbeach", "budapest"):  # each its own, and the server none of them
        assert COMPOSE["services"][site]["secrets"] == [f"{site}.key"]
        assert SHARED["services"][site]["secrets"] == [f"{site}.site"]
    for helper in HELPERS:
        assert SHARED["services"][helper]["secrets"] == [f"{helper}.key", f"{helper}.helper"]
    for service in BOTH.values():
        assert not re.search("KEY|TOKEN|SECRET|PASSWORD", " ".join(service.get("environment", {})))
    image = (DEPLOY / "Containerfile").read_text()
    assert re.findall(r"^COPY (.*)$", image, re.MULTILINE) == [
        "pyproject.toml README.md LICENSE ./",
        "src ./src",
        "deploy/federation.py deploy/sign_app.py ./deploy/",
    ]
    assert "/deploy/federation/" in (DEPLOY.parent / ".gitignore").read_text()


def test_each_site_keeps_its_ledger_in_a_volume_of_its_own() -> None:
    for site in ("longbeach", "budapest"):
        assert COMPOSE["services"][site]["volumes"] == [f"${{FEDERATION:-./federation}}/{site}:/data"]
        records = COMPOSE["services"][site]["command"]
        assert records[records.index("--records") + 1] == f"/data/{site}.csv"  # the ledger lies beside it


@pytest.mark.parametrize("shared", [False, True], ids=["compose.yaml", "both files"])
def test_the_demonstration_starts_every_service_with_its_own_command(tmp_path: Path, shared: bool) -> None:
    federation, said = Federation(tmp_path, fixed=True, shared=shared), services(shared=shared)
    assert set(federation.order) | {"prepare"} == set(said)
    (tmp_path / "helpers.env").write_text("HELPERS=${HELPERS:-}\n")
    for name in said:
        ours, theirs = federation.command(name), said[name]["command"]
        assert len(ours) == len(theirs)
        for mine, word in zip(ours, theirs, strict=True):
            kept = mine.replace(str(tmp_path / "secrets"), "/run/secrets").replace(
                str(DEPLOY), "/opt/sottovoce/deploy"
            )
            kept = kept.replace("127.0.0.1:8700", "server:8700")
            if mine.startswith(str(tmp_path)) and "secrets" not in mine:
                assert Path(mine).name in (Path(word).name, "server", "proxy", tmp_path.name), (mine, word)
            else:
                assert kept == word


def test_a_site_that_shares_noise_says_all_that_it_says_otherwise_and_that_it_does() -> None:
    for site in ("longbeach", "budapest"):
        plain, shared = (file["services"][site]["command"] for file in (COMPOSE, SHARED))
        assert shared[: len(plain)] == plain
        consent = [f"key=/run/secrets/{site}.site", "noise-shared=true", "honest=1", "helpers=${HELPERS:-}"]
        assert shared[len(plain) :] == consent


def test_the_live_page_opens_where_there_is_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    show("http://127.0.0.1:1")
    monkeypatch.setenv("DISPLAY", ":0")
    show("http://127.0.0.1:2")
    assert opened == ["http://127.0.0.1:2"]


@pytest.mark.slow
def test_the_federation_starts_in_the_worst_order_is_killed_in_the_middle_and_ends_with_models(
    tmp_path: Path, browser: Browser
) -> None:
    """Patience, the live page behind the proxy, metrics and onboarding, with the commands of the file."""
    folder, killed = tmp_path / "federation", False
    with Federation(folder) as federation:
        federation.prepare()
        for service in SERVICES:  # who waits comes first, the SuperLink nearly last
            if service == "superlink":
                until(lambda: "waiting: the SuperLink does not answer" in federation.log("server"))
            federation.start(service)
        page = f"127.0.0.1:{federation.ports['8445']}"
        token = (folder / "secrets" / "watch.token").read_text().strip()
        visitor = {"Authorization": f"Bearer {token}"}
        for found in federation.wait():
            if found.round >= 1 and not killed:
                killed = True
                link = f"http://anybody:{token}@{page}"
                browser.open(link, width=DESK[0], height=DESK[1], dark=False)
                assert "of 3" in browser.script("return document.querySelector('#round .figure').innerText")
                assert "longbeach" in browser.script("return document.body.innerText")
                for service in ("server", "budapest"):
                    os.killpg(federation.running.pop(service).pid, signal.SIGKILL)
                    federation.start(service)
        assert killed
        trusted = ssl.create_default_context(cafile=folder / "secrets" / "ca.crt")
        outside = f"https://127.0.0.1:{federation.ports['8446']}/"
        asked = urllib.request.Request(outside, headers=visitor)
        with urllib.request.urlopen(asked, context=trusted, timeout=600) as answer:
            assert b"3 of 3" in answer.read()
        asked = urllib.request.Request(f"http://{page}/metrics", headers=visitor)
        with urllib.request.urlopen(asked, timeout=600) as answer:
            assert b"sottovoce_run_round 3.0" in answer.read()
        assert PersonalModel.read(federation.onboard()).origin.client == "cleveland"
        said = federation.log("server")
        assert "enrolled: " in said
        assert "does not let this client in yet" in federation.log("longbeach") + federation.log("budapest")
    for site in ("longbeach", "budapest"):
        found = look(folder / site / "state")
        assert found.role == "client"
        assert (found.state, found.gradients) == ("finished", 3)
        assert found.epsilon["spent"] == pytest.approx(found.epsilon["together"])
        assert PersonalModel.read(folder / site / "personal.safetensors").origin.client == site
    until(lambda: nothing_left(folder))  # what Flower has started ends when its parent has


@pytest.mark.slow
def test_the_hospitals_share_the_noise_and_helpers_open_every_sum(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    with Federation(folder, shared=True) as federation:
        federation.prepare()
        for service in federation.order:
            federation.start(service)
        assert [found.noise for found in federation.wait()][-1] == "shared"
        for helper in HELPERS:
            told = json.loads(
                federation.sottovoce("helper", "status", str(folder / helper / "state"), "--json").stdout
            )
            assert [(one["answered"], one["given_up"]) for one in told] == [(3, 0)]
        assert PersonalModel.read(federation.onboard()).origin.client == "cleveland"
    for site in ("longbeach", "budapest"):
        found = look(folder / site / "state")
        assert found.role == "client"
        assert (found.state, found.noise, found.gradients) == ("finished", "shared", 3)
    until(lambda: nothing_left(folder))


def until(true: Callable[[], bool], seconds: float = 600.0) -> None:
    """The limit is for hangs."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def nothing_left(folder: Path) -> bool:
    left = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False)
    return left.stdout == ""
