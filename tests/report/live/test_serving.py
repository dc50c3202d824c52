"""Who is answered: whoever brings a token, from this machine or through the proxy, and nobody else."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from sottovoce.machine.tokens import new_token, revoke_token
from sottovoce.report.live import PROXY, TOKENS_FILE
from sottovoce.run.training import train
from tests.federation.test_contact import Watched
from tests.federation.world import QUICK
from tests.small import small_plan

from .test_page import watched


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("serving") / "run"
    train(small_plan(seeded=False, rounds=1), out)
    return out


def asked(url: str, path: str, host: str, authorization: str = "") -> tuple[int, str, str]:
    """Status, what a refusal asks for, and the first line."""
    headers = {"Host": host, **({"Authorization": authorization} if authorization else {})}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address(url) + path, headers=headers), timeout=1200
        ) as answer:
            return answer.status, "", answer.readline().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("WWW-Authenticate", ""), error.read().decode()


def address(link: str) -> str:
    """Where a link leads, without its password: all that another account of the machine knows."""
    return f"http://{link.rpartition('@')[2]}"


def password(link: str) -> str:
    """The token of the link that an owner is shown."""
    return urllib.parse.urlsplit(link).password or ""


def basic(token: str, user: str = "anybody") -> str:
    return "Basic " + base64.b64encode(f"{user}:{token}".encode()).decode()


@pytest.mark.parametrize("path", ["/", "/events"])
def test_through_the_proxy_the_page_wants_a_token_that_was_made_for_it_and_not_revoked(
    run: Path, path: str
) -> None:
    onboarding, token = new_token(run, f"alice{path[1:]}"), new_token(run, "bob", TOKENS_FILE)
    with watched(run, behind_proxy=True) as url:
        for wrong in ("", basic("wrong"), basic(onboarding), "Basic !", "Basic", f"Digest {token}", token):
            status, wants, text = asked(url, path, PROXY, wrong)
            assert (status, wants.split()[0]) == (401, "Basic"), wrong
            assert "a token is needed, as the password" in text
        for right in (basic(token), basic(token, ""), f"Bearer {token}"):
            assert asked(url, path, PROXY, right)[0] == 200
        revoke_token(run, "bob", TOKENS_FILE)
        assert asked(url, path, PROXY, basic(token))[0] == 401


def test_a_page_that_is_open_ends_when_its_token_is_revoked(run: Path) -> None:
    token = new_token(run, "carol", TOKENS_FILE)
    with watched(run, behind_proxy=True) as url:
        headers = {"Host": PROXY, "Authorization": basic(token)}
        with urllib.request.urlopen(
            urllib.request.Request(f"{address(url)}/events", headers=headers), timeout=1200
        ) as stream:
            assert stream.readline()
            revoke_token(run, "carol", TOKENS_FILE)
            assert len(stream.read().splitlines()) < 10  # and no event after that


PATHS = ("/", "/events", "/metrics")


def test_a_clients_page_and_the_lines_of_its_log_are_for_whoever_has_its_link(tmp_path: Path) -> None:
    """Every account of a machine reaches its loopback, and may not read these files."""
    world = Watched(tmp_path, **QUICK)
    world.enrol(0)
    line = "2026-07-01 12:00:00 ERROR column 'age' has 'mrs smith' in row 7"
    (world.directory(0) / "client.log").write_text(f"{line}\n")
    with watched(world.directory(0)) as url, watched(world.directory(0)) as other:
        for path in PATHS:
            for wrong in ("", basic("guess"), basic(""), "Bearer guess", "Bearer é", basic(password(other))):
                status, wants, text = asked(url, path, "localhost", wrong)
                assert (status, wants[:5]) == (401, "Basic"), (path, wrong)
                assert "smith" not in text
            for right in (basic(password(url)), f"Bearer {password(url)}"):
                assert asked(url, path, "localhost", right)[0] == 200
        assert "mrs smith" in asked(url, "/events", "localhost", basic(password(url)))[2]
        assert set(json.loads(asked(url, "/health", "localhost")[2])) == {"status"}
        told = json.loads(asked(url, "/health", "localhost", f"Bearer {password(url)}")[2])
        assert set(told) == {"status", "why"}
    assert not any(password(url) in file.read_text() for file in world.directory(0).glob("*.t*"))


def test_the_page_of_a_run_wants_a_token_too_and_one_made_for_somebody_serves(run: Path) -> None:
    token = new_token(run, "prometheus", TOKENS_FILE)
    with watched(run) as url:
        for path in PATHS:
            assert asked(url, path, "localhost")[0] == 401
            assert asked(url, path, "localhost", f"Bearer {token}")[0] == 200
        revoke_token(run, "prometheus", TOKENS_FILE)
        assert asked(url, "/metrics", "localhost", f"Bearer {token}")[0] == 401


def test_a_token_is_good_under_the_names_of_this_machine_and_of_the_proxy_where_it_stands(run: Path) -> None:
    with watched(run) as url:
        assert asked(url, "/", PROXY, basic(password(url)))[0] == 400
        assert asked(url, "/", "localhost", basic(password(url)))[0] == 200
    with watched(run, behind_proxy=True) as url:
        assert asked(url, "/", "127.0.0.1", basic(password(url)))[0] == 200
        assert asked(url, "/", "evil.example", basic(password(url)))[0] == 400


def test_health_says_whether_all_is_well_and_metrics_are_for_prometheus(run: Path) -> None:
    with watched(run) as url:
        status, _, text = asked(url, "/health", "localhost")
        assert (status, json.loads(text)["status"]) == (200, "finished")
        measured = asked(url, "/metrics", "localhost", f"Bearer {password(url)}")[2]
        assert measured.startswith("# HELP sottovoce_run_state")
        result = (run / "result.json").rename(run / "aside")
        status, _, text = asked(url, "/health", "localhost")
        result.rename(run / "result.json")
        assert (status, json.loads(text)["status"]) == (503, "failed")
