"""A live page for a run: in a real Chromium it follows the run without being loaded again."""

from __future__ import annotations

import base64
import json
import logging
import shutil
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.report.live import document, open_watch, parts
from sottovoce.report.look import look
from sottovoce.report.status import Status
from sottovoce.run.directory import RunDirectory
from sottovoce.run.training import train
from tests.federation.status.test_progress import Told
from tests.federation.test_contact import Watched
from tests.federation.world import QUICK
from tests.report.test_browser import _LOW_CONTRAST, _OUTSIDE, DESK, PHONE
from tests.report.test_browser import browser as browser
from tests.report.webdriver import Browser
from tests.small import small_plan


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("watch") / "run"
    train(small_plan(seeded=False, context="labels", rounds=6), out)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@contextmanager
def watched(run: Path, *, behind_proxy: bool = False) -> Iterator[str]:
    """The live page of a run; yields the link that its owner is shown."""
    server, listening, token = open_watch(run, 0, behind_proxy=behind_proxy)
    thread = threading.Thread(target=server.run, args=[[listening]], daemon=True)
    thread.start()
    try:
        yield f"http://owner:{token}@127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def seen(browser: Browser, what: str, wanted: Callable[[Any], bool]) -> Any:
    """What a script returns once it is as wanted; the limit is for hangs."""
    deadline = time.monotonic() + 600
    while not wanted(found := browser.script(f"return {what}")):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_page_renders_without_errors_overflow_or_outside_resources(
    browser: Browser, run: Path, size: tuple[int, int], dark: bool
) -> None:
    with watched(run) as url:
        browser.open(url, width=size[0], height=size[1], dark=dark)
        seen(browser, "document.querySelectorAll('figure').length", lambda count: count == 2)
        fetched = browser.script("return performance.getEntriesByType('resource').map(e => e.name)")
        assert set(fetched) <= {f"http://{url.rpartition('@')[2]}/events"}
        assert browser.script("return document.documentElement.scrollWidth") <= size[0]
        assert browser.script(_OUTSIDE) == []
        assert browser.script(_LOW_CONTRAST) == []
        assert browser.console() == []
        background = browser.script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(20, 23, 26)") == dark


def test_the_page_follows_a_run_without_being_loaded_again(browser: Browser, run: Path) -> None:
    directory = RunDirectory(run)
    lines = directory.rounds()
    result = directory.result_file.read_bytes()
    directory.result_file.unlink()
    directory.truncate_rounds(0)
    with watched(run) as url:
        with directory.locked():
            browser.open(url, width=DESK[0], height=DESK[1], dark=False)
            browser.script("window.mark = 'not loaded again'")
            assert browser.script("return document.getElementById('state').innerText").startswith("running")
            for line in lines:
                directory.append_round(line)
                text = f"{line['round']} of 6"
                seen(browser, f"document.querySelector('#round .figure').innerText === '{text}'", bool)
            assert seen(browser, "document.title", lambda title: title.startswith("running 6 of 6"))
            shown = browser.script("return document.querySelector('#bytes data').value")
            assert float(shown) == sum(line["bytes"] + line["context_bytes"] for line in lines)
            future = f"{lines[-1]['future']:.1f}"
            assert future in browser.script("return document.getElementById('seen').innerText")
        state = "document.getElementById('state').innerText"
        assert "resume it" in seen(browser, state, lambda text: text.startswith("failed"))
        directory.result_file.write_bytes(result)
        seen(browser, state, lambda text: text.startswith("finished"))
        assert browser.script("return window.mark") == "not loaded again"
        assert browser.console() == []


def test_an_unchanged_chart_is_left_alone_and_a_changed_one_still_answers_the_keyboard(
    browser: Browser, run: Path
) -> None:
    directory = RunDirectory(run)
    lines = directory.rounds()
    directory.truncate_rounds(5)
    with watched(run) as url:
        browser.open(url, width=DESK[0], height=DESK[1], dark=False)
        browser.script("source.addEventListener('message', () => { window.heard = true; })")
        seen(browser, "window.heard", bool)  # the first event brings every part
        browser.script("document.querySelector('figure').mark = true")
        with directory.locked():  # another state, the same rounds
            seen(
                browser, "document.getElementById('state').innerText", lambda text: text.startswith("running")
            )
        assert browser.script("return document.querySelector('figure').mark") is True
        directory.append_round(lines[5])
        seen(browser, "document.querySelector('figure').mark === undefined", lambda new: new is True)
        browser.script("document.querySelector('.plot').focus()")
        browser.press("\ue010")
        assert "round 6" in browser.script("return document.querySelector('output').textContent")


def test_a_page_whose_server_has_ended_says_so(browser: Browser, run: Path) -> None:
    with watched(run) as url:
        browser.open(url, width=PHONE[0], height=PHONE[1], dark=False)
        seen(browser, "document.getElementById('lost').hidden", lambda hidden: hidden is True)
    seen(browser, "document.getElementById('lost').hidden", lambda hidden: hidden is False)


def request(link: str, path: str = "/", **headers: str) -> urllib.request.Request:
    """A request as a browser makes it of a link, which holds its password."""
    where = urllib.parse.urlsplit(link)
    password = base64.b64encode(f"{where.username}:{where.password}".encode()).decode()
    address = f"http://127.0.0.1:{where.port}{path}"
    return urllib.request.Request(address, headers={"Authorization": f"Basic {password}", **headers})


def asked(url: str, path: str, host: str) -> tuple[int, str, bytes]:
    try:
        with urllib.request.urlopen(request(url, path, Host=host), timeout=600) as answer:
            return answer.status, answer.headers["Content-Type"], answer.readline()
    except urllib.error.HTTPError as error:
        return error.code, "", b""


@pytest.mark.parametrize("path", ["/", "/events"])
def test_under_another_name_than_this_machines_nothing_is_told(run: Path, path: str) -> None:
    with watched(run) as url:
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example"):
            assert asked(url, path, host)[0] == 400
        assert asked(url, path, "localhost")[0] == 200


def test_events_bring_what_changes_and_nothing_of_a_single_client(run: Path) -> None:
    with watched(run) as url:
        status, kind, line = asked(url, "/events", "localhost")
        assert (status, kind) == (200, "text/event-stream; charset=utf-8")
        shown = json.loads(line.removeprefix(b"data: "))
        with urllib.request.urlopen(request(url), timeout=600) as answer:
            assert answer.headers["Cache-Control"] == "no-store"
            whole = answer.read().decode()
    assert set(shown) == {"title", "state", "figures", "charts", "clients"}
    assert "participant-" not in whole + str(shown)


def test_a_server_with_a_page_open_ends_without_a_word(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with watched(run) as url:
        listening = urllib.request.urlopen(request(url, "/events"), timeout=600)
        assert listening.readline()
    listening.close()
    assert capfd.readouterr() == ("", "")


def test_only_this_machine_is_listened_on(run: Path) -> None:
    _, listening, _ = open_watch(run, 0)
    with listening:
        assert listening.getsockname()[0] == "127.0.0.1"


def test_what_cannot_be_watched_is_said_in_one_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SottovoceError, match="holds no run"):
        open_watch(tmp_path, 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SottovoceError, match=f"port {port}, it is in use: give another port"):
            open_watch(run, port)


def test_names_from_files_become_no_markup(run: Path) -> None:
    text = (run / "status.json").read_text()
    (run / "status.json").write_text(text.replace('"mnist-small"', '"<img src=x onerror=alert(1)>"'))
    evil = Path(shutil.copytree(run, run.with_name("<b>run")))
    found = look(evil)
    assert found.dataset == "<img src=x onerror=alert(1)>"
    assert "<img" not in document(found)
    assert "<b>" not in document(found) + parts(found)["state"]


def test_names_of_clients_become_no_markup() -> None:
    evil = "<script>alert(1)</script>"
    client = {"name": evil, "enrolled": True, "connected": True, "late": False}
    server = Status(
        "run", "waiting", evil, phase=evil, phases=[evil], engine="flower", clients=[client], noise="client",
        waiting=[{"name": evil, "why": evil}], errors=[{"time": 0.0, "text": evil}],
    )  # fmt: skip
    node = Status(
        "node", "failed", evil, role="client", client=evil, noise="client",
        errors=[{"time": None, "text": evil}], epsilon={"spent": 1.0},
    )  # fmt: skip
    for found, times in ((server, 5), (node, 4)):
        shown = parts(found)
        del shown["title"]  # no markup, and put in its place as text
        assert evil not in str(shown) + document(found)
        assert document(found).count("&lt;script&gt;alert(1)") == times


def test_a_seeded_simulation_is_said_to_protect_nobody(tmp_path: Path) -> None:
    train(small_plan(rounds=1), tmp_path / "run")
    assert "protects nobody" in document(look(tmp_path / "run"))


def test_a_run_that_is_gone_while_it_is_watched_is_shown_as_unknown(run: Path) -> None:
    shutil.rmtree(run)
    shown = parts(look(run))
    assert "unknown" in shown["state"]
    assert shown["figures"] == shown["charts"] == ""


def test_nothing_is_said_of_a_plan_that_is_not_known() -> None:
    found = Status("run", "waiting", "sottovoce federate waits: the server is about to start")
    assert "<li>" not in document(found)
    assert "without privacy" in document(replace(found, noise="client"))
    assert "<li>noise at the client</li>" in document(replace(found, noise="client"))


def federation(folder: Path) -> Told:
    """A federation whose third client is not connected, in its second round."""
    told = Told(folder, late=3600.0, rounds=6)
    told.world.enrol_all()
    told.phase()
    told.phase()
    told.progress.errors.emit(logging.makeLogRecord({"msg": "<b>node 7</b> refused: no", "levelno": 40}))
    told.update(connected=(0, 1))
    return told


@pytest.mark.parametrize(("size", "dark"), [(PHONE, True), (DESK, False)], ids=["phone dark", "desk light"])
def test_the_page_of_a_federation_renders_and_names_whom_it_waits_for(
    browser: Browser, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    told = federation(tmp_path / "run")
    absent = next(iter(told.world.coordinator.missing()))
    told.update(connected=tuple({0, 1, 2} - {absent}))
    with watched(tmp_path / "run") as url:
        browser.open(url, width=size[0], height=size[1], dark=dark)
        text = browser.script("return document.body.innerText")
        assert browser.script("return document.documentElement.scrollWidth") <= size[0]
        assert browser.script(_OUTSIDE) == []
        assert browser.script(_LOW_CONTRAST) == []
        assert browser.console() == []
    assert f"waiting: round 2 of 6: client-{absent} is not connected" in text
    assert "2 of 3" in text
    assert "<b>node 7</b> refused: no" in text
    assert browser.script("return document.querySelector('[aria-current]').innerText") == "rounds"


def test_the_page_follows_a_federation_without_being_loaded_again(browser: Browser, tmp_path: Path) -> None:
    told = federation(tmp_path / "run")
    with watched(tmp_path / "run") as url:
        browser.open(url, width=DESK[0], height=DESK[1], dark=False)
        browser.script("window.mark = 'not loaded again'")
        told.phase()
        seen(browser, "document.querySelector('#round .figure').innerText", lambda text: text == "2 of 6")
        told.update(connected=())
        seen(browser, "document.querySelector('#connected .figure').innerText", lambda text: text == "0 of 3")
        told.world.kill()
        seen(browser, "document.getElementById('state').innerText", lambda text: text.startswith("failed"))
        assert browser.script("return window.mark") == "not loaded again"


def test_the_page_of_a_client_shows_its_headroom(browser: Browser, tmp_path: Path) -> None:
    world = Watched(tmp_path, **QUICK)
    world.enrol_all()
    with watched(world.directory(0)) as url:
        browser.open(url, width=PHONE[0], height=PHONE[1], dark=False)
        assert "this run will spend 5.3" in browser.script("return document.body.innerText")
        assert browser.script("return document.querySelector('#epsilon data').value") == "0.0"
        while not world.coordinator.done:
            world.step()
        value = "Number(document.querySelector('#epsilon data').value)"
        seen(browser, value, lambda spent: 5.2 < spent < 5.3)
        world.deliver_models()
        shown = seen(browser, "document.body.innerText", lambda text: "has its model" in text)
        assert "this run has spent 5.3" in shown
        assert shown.split()[2] == "client-0"
        assert browser.script("return document.documentElement.scrollWidth") <= PHONE[0]
        assert browser.console() == []
