"""Who is answered: this machine without a word, the proxy's visitors with a token, nobody else."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from sottovoce.federation.live import PROXY, TOKENS_FILE
from sottovoce.machine.tokens import new_token, revoke_token
from sottovoce.run.training import train
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
            urllib.request.Request(url + path, headers=headers), timeout=1200
        ) as answer:
            return answer.status, "", answer.readline().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("WWW-Authenticate", ""), error.read().decode()


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
            assert text == "a token is needed, as the password"
        for right in (basic(token), basic(token, ""), f"Bearer {token}"):
            assert asked(url, path, PROXY, right)[0] == 200
        revoke_token(run, "bob", TOKENS_FILE)
        assert asked(url, path, PROXY, basic(token))[0] == 401


def test_a_page_that_is_open_ends_when_its_token_is_revoked(run: Path) -> None:
    token = new_token(run, "carol", TOKENS_FILE)
    with watched(run, behind_proxy=True) as url:
        headers = {"Host": PROXY, "Authorization": basic(token)}
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/events", headers=headers), timeout=1200
        ) as stream:
            assert stream.readline()
            revoke_token(run, "carol", TOKENS_FILE)
            assert len(stream.read().splitlines()) < 10  # and no event after that


def test_without_the_proxy_its_name_is_refused_and_this_machine_needs_no_token(run: Path) -> None:
    with watched(run) as url:
        assert asked(url, "/", PROXY)[0] == 400
        assert asked(url, "/", "localhost")[0] == 200
    with watched(run, behind_proxy=True) as url:
        assert asked(url, "/", "127.0.0.1")[0] == 200
        assert asked(url, "/", "evil.example")[0] == 400


def test_health_says_whether_all_is_well_and_metrics_are_for_prometheus(run: Path) -> None:
    with watched(run) as url:
        status, _, text = asked(url, "/health", "localhost")
        assert (status, json.loads(text)["status"]) == (200, "finished")
        assert asked(url, "/metrics", "localhost")[2].startswith("# HELP sottovoce_run_state")
        result = (run / "result.json").rename(run / "aside")
        status, _, text = asked(url, "/health", "localhost")
        result.rename(run / "result.json")
        assert (status, json.loads(text)["status"]) == (503, "failed")
