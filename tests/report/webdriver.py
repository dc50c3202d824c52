"""A real browser for tests, through chromedriver's HTTP interface (W3C WebDriver)."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
DRIVER = shutil.which("chromedriver")

_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


class Browser:
    """Headless Chromium with a fresh profile; use it as a context manager."""

    def __init__(self, chromium: str, driver: str, profile: Path) -> None:
        self._process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        port = next(
            m[1]
            for m in (re.search(r"successfully on port (\d+)", line) for line in self._process.stdout)
            if m
        )
        self._root = f"http://127.0.0.1:{port}"
        options = {"binary": chromium, "args": [*_ARGUMENTS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._root += f"/session/{session['sessionId']}"

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._call("DELETE", "")
        self._process.terminate()
        self._process.wait(timeout=600)

    def open(self, page: Path | str, *, width: int, height: int, dark: bool) -> None:
        """Loads a file or a URL with a viewport of CSS pixels and a color scheme; forgets the console."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setDeviceMetricsOverride", screen)
        self._devtools("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.console()
        self._call("POST", "/url", {"url": page if isinstance(page, str) else page.resolve().as_uri()})

    def script(self, body: str, *arguments: object) -> Any:
        """The value of a function body run in the page."""
        return self._call("POST", "/execute/sync", {"script": body, "args": list(arguments)})

    def picture(self) -> bytes:
        """What is to be seen, as a PNG."""
        return base64.b64decode(self._call("GET", "/screenshot"))

    def press(self, *keys: str) -> None:
        """Key presses for whatever has the focus; WebDriver's private-use characters for special keys."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": strokes}]})

    def console(self) -> list[str]:
        """Console messages since the last call, errors of loading and of the content policy included."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def _devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=600) as reply:
            return json.load(reply)["value"]
