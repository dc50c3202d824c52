"""Keeps a client connected: a SuperNode that is started again whenever it ends, until somebody ends this.

Flower's SuperNode waits for a SuperLink that does not answer, but ends for good when it is turned away:
before its key is registered, or while its killed predecessor counts as online. So client and server may be
started in any order, and each may be started again at any time.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sottovoce.federation.flower.running import QUIET, program
from sottovoce.federation.status.supervisor import LONGEST_PAUSE, RunFailed
from sottovoce.report.look import Minutely, look

FIRST_PAUSE = 5.0
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_RETRIES = "Connection attempt failed"
_CONNECTED = "SuperNode ID"
_FAULT = re.compile(r"\[code: \d+\]|\[Errno|Error: ")
ADVICE = " (its key may not be registered yet, or an earlier process of its may still count as connected)"
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

Value = str | int | float | bool


def supernode(
    server: str,
    config: Mapping[str, Value],
    *,
    authority: Path | None,
    key: Path | None,
    trusted: Path | None,
    port: int,
) -> list[str]:
    """The command of a SuperNode; without an `authority` it speaks unencrypted, for trying out."""
    secure = ["--insecure"] if authority is None else ["--root-certificates", str(authority)]
    secure += [] if key is None else ["--auth-supernode-private-key", str(key)]
    secure += [] if trusted is None else ["--trusted-entities", str(trusted)]
    said = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
    to, of = ["--superlink", server, *secure], ["--port", str(port), "--node-config", said]
    return [program("flower-supernode"), *to, *of]


def check_port(port: int, timeout: float = 5.0) -> None:
    """Refuses a port that is taken: a SuperNode would end with it again and again.

    One that was just ended may hold it for a moment.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_server(("127.0.0.1", port)).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
                raise RunFailed(
                    f"cannot listen on port {port}, {reason}: give another port", "port"
                ) from None
        time.sleep(0.2)


class Connection:
    """A SuperNode under watch; `say` is called with its lines, and once a minute with what it waits for."""

    def __init__(
        self, command: Sequence[str], server: str, directory: Path, say: Callable[[str], None]
    ) -> None:
        self._command = list(command)
        self._server = server
        self._directory = directory
        self._say = say
        self._minutely = Minutely(say)
        self._last: deque[str] = deque(maxlen=50)
        self._unanswered = self._connected = False

    def keep(self, *, give_up: float | None = None) -> None:
        """Runs until it is ended; `give_up`: fails after so many seconds without a connection."""
        pause, alone_since = FIRST_PAUSE, time.monotonic()
        while True:
            began = time.monotonic()
            self._connected = False
            with subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, **QUIET, "PATH": _path()},
                preexec_fn=_end_with_me if sys.platform == "linux" else None,
            ) as process:
                reader = threading.Thread(target=self._read, args=[process], daemon=True)
                reader.start()
                try:
                    while process.poll() is None:
                        time.sleep(0.5)
                        if self._waits():
                            self._check(give_up, alone_since)
                        else:
                            alone_since = time.monotonic()
                finally:
                    _end(process)
                reader.join(timeout=5.0)
            lived = time.monotonic() - began
            pause = FIRST_PAUSE if lived > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
            reason = next(filter(_FAULT.search, self._last), f"it ended with code {process.returncode}")
            self._last.clear()
            self._minutely.say(f"waiting: {self._server} does not let this client in yet: {reason}{ADVICE}")
            self._check(give_up, alone_since)
            time.sleep(pause)

    def _waits(self) -> bool:
        """Says what is waited for, and returns whether there is no connection."""
        if self._unanswered:
            self._minutely.say(f"waiting: {self._server} does not answer")
        if self._unanswered or not self._connected:
            return True
        found = look(self._directory)
        if found.state == "unknown":
            self._minutely.say(f"waiting: for the first request of {self._server}")
        elif found.state == "waiting":
            self._minutely.say("waiting: for the server's next request")
        return False

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            text = _ESCAPE.sub("", line).strip()
            self._unanswered = _RETRIES in text
            self._connected = self._connected or _CONNECTED in text
            if text and not self._unanswered:
                self._last.append(text)
                self._say(text)

    def _check(self, give_up: float | None, since: float) -> None:
        if give_up is not None and time.monotonic() - since > give_up:
            raise RunFailed(f"gave up after {give_up:.0f} s without a connection to {self._server}")


def _path() -> str:
    """SuperNodes start programs that lie beside this Python."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _end_with_me() -> None:
    """Lets the kernel end the SuperNode with this process, however that ends: it would hold the port."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20.0)
    if process.poll() is None:
        process.kill()
