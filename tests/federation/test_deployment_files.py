"""What the shipped files promise without being started: one door, on loopback what belongs there, 0600.

The attacks on the same files with real processes are in `test_door.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from sottovoce.federation.settings import template
from sottovoce.report.live import PROXY

from .processes import DEPLOY

ROOT = DEPLOY.parent
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *UNITS, DEPLOY / "Containerfile"])

Directive = tuple[tuple[str, ...], str, tuple[str, ...]]
"""The blocks around it, its name, its arguments."""


def directives(text: str) -> list[Directive]:
    """All directives of an nginx configuration that quotes nothing but empty strings."""
    text = re.sub(r"^\s*#.*$|\s#.*$", "", text, flags=re.MULTILINE)
    found: list[Directive] = []
    around: list[str] = []
    for words, end in re.findall(r"([^;{}]*)([;{}])", text):
        name, *arguments = words.split() or [""]
        if end == "{":
            around.append(" ".join([name, *arguments]))
        elif end == "}":
            around.pop()
        else:
            found.append((tuple(around), name, tuple(arguments)))
    return found


CONFIGURATION = directives((DEPLOY / "nginx.conf").read_text())


def values(name: str) -> list[tuple[str, ...]]:
    return [arguments for _, found, arguments in CONFIGURATION if found == name]


def test_the_proxy_passes_exactly_what_a_registered_node_calls() -> None:
    [(around, _, target)] = [one for one in CONFIGURATION if "superlink" in "".join(one[2])]
    location = around[-1].removeprefix("location ~ ")
    assert target == ("https://superlink/v1/fleet/$1",)
    passed = {path for _, path in PROTOBUF_REQUEST_TYPES if re.search(location, path)}
    fleet = {path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    assert passed == fleet - {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    for path in ("/v1/fleet/pull-messages/x", "/x/v1/fleet/get-run", "/v1/fleet/"):
        assert not re.search(location, path)


def test_the_proxy_passes_exactly_what_a_future_client_calls() -> None:
    passed = {
        around[-1]: target
        for around, name, (target, *_) in CONFIGURATION
        if name == "proxy_pass" and "onboarding" in target
    }
    assert passed == {
        "location ~ ^/v1/(specification|context-model|access)$": "http://onboarding/v1/$1",
        "location = /v1/onboard": "http://onboarding/v1/onboard",
    }


def test_the_proxy_passes_the_live_page_and_its_events_under_a_name_that_wants_a_token() -> None:
    [(around, _, target)] = [one for one in CONFIGURATION if "watch/" in "".join(one[2])]
    location = around[-1].removeprefix("location ~ ")
    assert target == ("http://watch/$1",)
    assert [
        path for path in ("/", "/events", "/health", "/metrics", "/eventsx") if re.search(location, path)
    ] == [
        "/",
        "/events",
    ]
    inside = [one[2] for one in CONFIGURATION if one[0] == around[:-1] and one[1] == "proxy_set_header"]
    assert inside == [("Connection", '""'), ("Host", PROXY)]


def test_everything_else_is_not_found() -> None:
    assert len(values("proxy_pass")) == 4
    inside = [one[1:] for one in CONFIGURATION if one[0] and one[0][-1] == "location /"]
    assert inside == [("return", ("404",))] * len(values("listen"))
    assert values("deny") == [("all",)] * 4
    for name in (
        "root",
        "alias",
        "include",
        "rewrite",
        "try_files",
        "autoindex",
        "load_module",
        "error_page",
    ):
        assert values(name) == [], name


def test_the_proxy_speaks_modern_tls_and_what_it_passes_to_listens_on_loopback() -> None:
    assert [(address, tls) for address, tls, _ in values("listen")] == [
        (f"0.0.0.0:{port}", "ssl") for port in (8700, 8443, 8446)
    ]
    assert values("ssl_protocols") == values("proxy_ssl_protocols") == [("TLSv1.2", "TLSv1.3")]
    assert values("proxy_ssl_verify") == [("on",)]
    assert values("server") == [(f"127.0.0.1:{port}",) for port in (8701, 8444, 8445)]


def test_the_proxy_keeps_bodies_in_memory_and_out_of_logs_and_bounds_them() -> None:
    assert values("client_max_body_size") == values("client_body_buffer_size") == [("8m",), ("64k",), ("1k",)]
    assert values("proxy_max_temp_file_size") == [("0",)]
    assert values("access_log") == [("off",)]
    assert values("log_format") == []
    assert values("error_log") == [("stderr", "error")]
    for name in ("client_header_timeout", "client_body_timeout", "send_timeout"):
        assert len(values(name)) == 1, name
    for name in ("limit_conn", "limit_req"):
        assert len({one[0] for one in CONFIGURATION if one[1] == name}) == 1, name  # in each server
        assert len([one for one in CONFIGURATION if one[1] == name]) >= 3, name


def test_whoever_answers_hears_nothing_about_who_asked() -> None:
    assert set(values("proxy_set_header")) == {("Connection", '""'), ("Host", "localhost"), ("Host", PROXY)}


def superlinks() -> list[tuple[Path, str]]:
    """Every command line in pages and units that starts a SuperLink."""
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        found += [(page, line) for line in re.findall(r"flower-superlink( +-[^`\n]*)", text)]
    return found


def test_every_documented_superlink_listens_on_loopback_only() -> None:
    assert len(superlinks()) == 3
    for page, line in superlinks():
        assert re.findall(r"--host[ =](\S+)", line) == ["127.0.0.1"], (page, line)
        assert not re.search(r"--(fleet|control|health)\S*-address", line), (page, line)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_what_a_service_writes_is_for_its_user_only(unit: Path) -> None:
    settings = unit.read_text().splitlines()
    assert {"UMask=0077", "User=sottovoce", "NoNewPrivileges=yes", "ProtectSystem=strict"} <= set(settings)
    for line in settings:
        if "DirectoryMode=" in line:
            assert line.endswith("=0700")


def test_only_the_proxy_faces_the_network() -> None:
    local = ("sottovoce-superlink", "sottovoce-federation", "sottovoce-serve", "sottovoce-watch")
    for unit in UNITS:
        text = unit.read_text()
        assert "0.0.0.0" not in text
        assert ("IPAddressDeny=any" in text) == (unit.stem in local)


def test_a_client_always_names_its_index_and_whom_it_trusts() -> None:
    unit = (DEPLOY / "systemd" / "sottovoce-supernode@.service").read_text()
    assert "sottovoce node /var/lib/sottovoce/%i/node.toml\n" in unit
    page = (ROOT / "docs" / "deployment.md").read_text()
    [file] = re.findall(r"node.toml <<NODE\n(.*?)^NODE", page, re.MULTILINE | re.DOTALL)
    assert {"index", "trusted", "authority", "node_key"} <= set(re.findall(r"^(\w+) = ", file, re.MULTILINE))
    assert '\ntrusted = "' in template()
