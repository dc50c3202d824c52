"""Runs a written job to its end: NVFlare ends a job when one process of it dies, and resumes nothing.

So it is submitted again when it failed, and when nobody holds the server's store, from which it continues.
A site for which two jobs ended is left out for a while. One that comes late, or back, costs a further
submission and no charge.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sottovoce.errors import extra, shown
from sottovoce.federation.nvflare import LOST, META, SERVER_CONFIG, meta_of
from sottovoce.federation.status.supervisor import RunFailed, Silent, Supervisor, alone
from sottovoce.machine.files import PUBLIC, write_atomically
from sottovoce.report.look import look

NEEDS = "NVFlare carries this run"
STARTING_SECONDS = 90.0
"""A job that holds no store for so long is lost: NVFlare lists it as running after its server restarted."""
GRACE_SECONDS = 30.0
"""How long a submission waits for sites that are away, once all have enrolled."""
FAILURES, REST_SECONDS = 2, 600.0
"""A site for which so many jobs ended is left out for so long."""


def run_job(
    job: str | Path,
    kit: str | Path,
    *,
    give_up: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> str:
    """Submits and watches until everybody has their model; returns the job's id.

    `kit` is an administrator's startup kit. `give_up` and `say` are as for every engine.
    """
    extra("nvflare", NEEDS, "nvflare")
    folder = Path(job).absolute()
    try:
        [workflow] = json.loads((folder / SERVER_CONFIG).read_text())["workflows"]
        directory = Path(workflow["args"]["run_directory"])
        wanted = int(json.loads((folder / META).read_text())["min_clients"])
    except FileNotFoundError:
        raise RunFailed(f"{job} holds no job: write one there", "out", "plan") from None
    except (ValueError, KeyError, TypeError):
        raise RunFailed(f"{job} is not a job of ours: write it again") from None
    with alone(directory):
        jobs = Jobs(folder, Path(kit).absolute(), wanted, directory, give_up, say)
        try:
            return jobs.run()
        finally:
            jobs.close()


class Jobs(Supervisor):
    """The submissions of one job folder."""

    watch_seconds = 2.0
    completed = "FINISHED:COMPLETED"
    starting = "NVFlare has the job, and starts the server and the sites"

    def __init__(
        self,
        job: Path,
        kit: Path,
        wanted: int,
        directory: Path,
        give_up: float | None,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(directory, give_up, say)
        self._job, self._kit, self._wanted = job, kit, wanted
        self._session: Any = None
        self._failures: Counter[str] = Counter()
        self._rests: dict[str, float] = {}
        self._sites: set[str] = set()
        self._alive = self._asked = time.monotonic()

    def submit(self) -> tuple[str, str]:
        try:
            connected = self._connected()
            away = self._wanted - len(connected)
            enrolled = look(self._directory).counted("enrolled") > 0
            if away > 0 and not (enrolled and connected and time.monotonic() - self._asked > GRACE_SECONDS):
                return "", f"{len(connected)} of {self._wanted} sites are connected"
            (self._directory / LOST).unlink(missing_ok=True)
            self._sites = connected
            folder = self._directory / "job"
            _copied(self._job, folder, meta_of(sorted(connected), self._wanted))
            run = str(self._ask("submit_job", str(folder)))
        except Silent as silent:
            return "", str(silent)
        self._alive = time.monotonic()
        return run, ""

    def ended(self, run: str) -> str | None:
        if self.working():
            self._alive = time.monotonic()
        elif look(self._directory).phase == "finished":  # NVFlare says so half a minute later
            return self.completed
        status = str(self._ask("get_job_meta", run).get("status"))
        late = self._connected() - self._sites
        if status.startswith("FINISHED"):
            reason = "aborted" if status == self.completed else status
        elif time.monotonic() - self._alive > STARTING_SECONDS:
            reason = "lost"
        elif late:
            reason = f"early, since {', '.join(sorted(late))} came"
        else:
            return None
        if not status.startswith("FINISHED"):
            self._ask("abort_job", run)
        self._blame()
        self._asked = time.monotonic()
        return reason

    def _blame(self) -> None:
        """Counts a site for which a job ended."""
        try:
            site = (self._directory / LOST).read_text()
        except FileNotFoundError:
            return
        self._failures[site] += 1
        if self._failures[site] >= FAILURES:
            self._failures[site], self._rests[site] = 0, time.monotonic() + REST_SECONDS
            self._say(f"{site} is left out for {REST_SECONDS:.0f} s: {FAILURES} jobs ended for it")

    def _connected(self) -> set[str]:
        """The sites that are there, less those that are left out."""
        now = time.monotonic()
        there = {str(client.name) for client in self._ask("get_connected_client_list")}
        return {site for site in there if self._rests.get(site, 0.0) <= now}

    def _ask(self, what: str, *arguments: str) -> Any:
        """The answer of NVFlare's server to its administrator."""
        try:
            if self._session is None:
                self._session = _session(self._kit)
            return getattr(self._session, what)(*arguments)
        except RunFailed:
            raise
        except Exception as error:  # theirs are many
            self.close()
            raise Silent(f"NVFlare's server does not answer: {shown(error)}") from None

    def close(self) -> None:
        """Leaves NVFlare's server: the threads of a session would keep this process alive."""
        session, self._session = self._session, None
        with suppress(Exception):
            if session is not None:
                session.close()


def _session(kit: Path) -> Any:
    api = extra("nvflare.fuel.flare_api.flare_api", NEEDS, "nvflare")
    try:
        admin = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]
    except (OSError, ValueError, KeyError):
        raise RunFailed(
            f"{kit} is no administrator's startup kit: give the folder that holds startup/", "on"
        ) from None
    return api.new_secure_session(str(admin["username"]), str(kit))


def _copied(job: Path, to: Path, meta: str) -> None:
    """The job folder as it is submitted, for the sites that are there."""
    files = [path for path in job.rglob("*") if path.is_file() and path.name != META]
    texts = {path.relative_to(job): path.read_bytes() for path in files}
    for name, text in {**texts, Path(META): meta.encode()}.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(to / name, text, PUBLIC)
