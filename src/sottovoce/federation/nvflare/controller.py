"""The server half: an NVFlare controller that delivers the coordinator's requests and brings it the answers.

A site is asked one thing at a time, by a task of its own; NVFlare delivers it and its answer, again where a
connection broke, and says that it is over where the site's job is dead. Whatever is then still missing is
asked for again, by this job or by the next one, which continues from the store. A member is who its
certificate says: an index that belongs to another certificate is refused, and its name is the certificate's.
"""

from __future__ import annotations

import logging
import queue
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from sottovoce.errors import SottovoceError, shown
from sottovoce.federation import Agreement
from sottovoce.federation.nvflare import LOST, RECORD, members, poll_seconds
from sottovoce.federation.sealing import MODEL, EnrolmentError
from sottovoce.federation.server import Coordinator, Fields, Options
from sottovoce.federation.status.progress import Progress, keep_log, write_run
from sottovoce.federation.store import Store
from sottovoce.federation.sums import MASKS
from sottovoce.machine.files import FileError, private_folder, write_atomically

log = logging.getLogger("sottovoce.federation")
WAIT_SECONDS = 0.05
LOST_SECONDS, LOST_POLLS = 20.0, 40
"""A site asks for work again and again. One that has fetched nothing for so long, or so often, has no job
process left: NVFlare starts none in a running job, so this one ends, and the next finds it again."""


class SiteLost(RuntimeError):
    """A site has lost its part of the job."""


class Federation(Controller):
    """Trains under the agreement in the job's own folder, and writes the run's directory."""

    def __init__(
        self,
        run_directory: str,
        patience: float = 600.0,
        bucket: int = 0,
        diagnostics: bool = False,
        retry: float = 60.0,
        threads: int = 1,
        simulation: bool = False,
        model: str | None = None,
        features: str | None = None,
    ) -> None:
        super().__init__(task_check_period=WAIT_SECONDS)
        self._directory = Path(run_directory)
        self._options = Options(patience=patience, bucket=bucket, diagnostics=diagnostics)
        self._retry, self._threads = retry, threads
        self._code = {"simulation": simulation, "model": model, "features": features}
        self._came: queue.SimpleQueue[tuple[Task, Fields | None]] = queue.SimpleQueue()
        self._busy: dict[str, Task] = {}
        self._rests: dict[str, float] = {}
        self._seen: set[str] = set()
        self._sites: dict[str, int] = {}

    def start_controller(self, fl_ctx: FLContext) -> None:
        torch.set_num_threads(self._threads)
        private_folder(self._directory)
        keep_log(self._directory)

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None: ...

    def process_dead_client_report(self, client_name: str, fl_ctx: FLContext) -> None:
        self._note_lost(client_name)
        super().process_dead_client_report(client_name, fl_ctx)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Trains to the end; a job that is aborted leaves everything in the store."""
        config = Path(fl_ctx.get_prop(FLContextKey.APP_ROOT)) / "config"
        agreement = Agreement.load(config / "agreement.toml", **self._code)  # type: ignore[arg-type]
        self._lost_after = max(LOST_SECONDS, LOST_POLLS * poll_seconds(members(agreement)))
        store = Store.open(self._directory / "server.sqlite", agreement)
        try:
            coordinator = Coordinator(agreement, store, self._options)
            self._coordinator = coordinator
            self._progress = Progress(self._directory, coordinator, late=self._retry)
            log.addHandler(self._progress.errors)
            self._sites = {address: member for member, address in store.addresses().items()}
            while not coordinator.done and not abort_signal.triggered:
                self._exchange(fl_ctx)
                self._tell(coordinator.advance())
            if not abort_signal.triggered:
                write_run(self._directory, coordinator, engine="nvflare")
            while not coordinator.closed and not abort_signal.triggered:
                self._exchange(fl_ctx)
                self._tell()
            self._tell(over=coordinator.closed)
        finally:
            store.close()

    def _tell(self, line: Fields | None = None, *, over: bool = False) -> None:
        if line is not None:
            log.info("round %d of %d", line["round"], self._coordinator.agreement.plan.rounds)
        connected = [self._sites[site] for site in self._seen if site in self._sites]
        self._progress.update(connected, line, over=over)

    def _exchange(self, fl_ctx: FLContext) -> None:
        """Asks every site that has something to answer, and takes what came."""
        self._look_for_lost()
        now, store = time.monotonic(), self._coordinator.store
        here = {str(client.name) for client in self._engine.get_clients()}
        resting = {site for site, until in self._rests.items() if until > now}
        with store.transaction():  # what is asked for is remembered before it is asked for
            asked = self._requests(here - self._busy.keys() - resting)
        for site, what, fields in asked:
            self._ask(site, what, fields, fl_ctx)
        answers: list[tuple[Any, Fields | None]] = []
        with suppress(queue.Empty):
            answers.append(self._came.get(timeout=WAIT_SECONDS))
            while True:
                answers.append(self._came.get_nowait())
        with store.transaction():
            for task, answer in answers:
                site = str(task.props["site"])
                busy = self._busy.get(site)
                if busy is not None and busy is task:  # its answer, or that there will be none
                    del self._busy[site]
                    if answer is not None:
                        self._take(site, task.name, answer, fl_ctx)

    def _look_for_lost(self) -> None:
        """Ends a job of which a site that had begun has fallen out, so that it is submitted again."""
        for site, task in self._busy.items():
            waits = time.monotonic() - float(task.props["asked"])
            if site in self._seen and not task.props.get("fetched") and waits > self._lost_after:
                self._note_lost(site)
                raise SiteLost(f"{site} has no job process any more: the job is to be submitted again")

    def _note_lost(self, site: str) -> None:
        with suppress(FileError):
            write_atomically(self._directory / LOST, site.encode())

    def _requests(self, idle: set[str]) -> list[tuple[str, str, Fields]]:
        missing, asked = self._coordinator.missing(), []
        for site in sorted(idle):
            if site not in self._sites:
                asked.append((site, "enrolment", self._coordinator.roster.offer()))
            elif (kind := missing.get(self._sites[site])) is not None:
                request = self._coordinator.request(self._sites[site], kind)
                asked.append((site, str(kind) if kind in (MODEL, MASKS) else "release", request))
        return asked

    def _ask(self, site: str, what: str, fields: Fields, fl_ctx: FLContext) -> None:
        def fetched(client_task: ClientTask, fl_ctx: FLContext) -> None:
            self._seen.add(site)
            client_task.task.props["fetched"] = True

        def answered(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result, client_task.result = client_task.result, None
            said = result.get(RECORD) if isinstance(result, Shareable) else None
            self._came.put((client_task.task, said if isinstance(said, dict) else None))

        def over(task: Task, fl_ctx: FLContext) -> None:
            self._came.put((task, None))

        data = Shareable()
        data[RECORD] = fields
        props = {"site": site, "asked": time.monotonic()}
        task = Task(
            what, data, props, before_task_sent_cb=fetched, result_received_cb=answered, task_done_cb=over
        )
        self._busy[site] = task
        self.broadcast(task, fl_ctx, targets=[site], min_responses=1)

    def _take(self, site: str, what: str, answer: dict[str, Any], fl_ctx: FLContext) -> None:
        if what == "refusal":
            return
        if what == "enrolment":
            try:
                self._sites[site] = self._enrolled(site, answer)
            except EnrolmentError as error:
                log.error("%s refused: %s", site, shown(error))
                self._refuse(site)
                self._ask(site, "refusal", {"run": self._coordinator.run, "reason": str(error)}, fl_ctx)
            return
        member = self._sites[site]
        before = self._coordinator.missing().get(member)
        try:
            self._coordinator.accept(member, answer)
        except SottovoceError as error:
            log.warning("%s", shown(error))
            self._refuse(site)
            return
        body = answer.get("release")
        if self._coordinator.missing().get(member) != before and isinstance(body, bytes):
            self._progress.received(member, len(body))

    def _enrolled(self, site: str, answer: dict[str, Any]) -> int:
        """The member behind a certificate; its index and its name are nobody else's."""
        owners, helper = self._coordinator.store.addresses(), answer.get("helper")
        number = answer.get("participant")
        if isinstance(helper, int):
            number = self._coordinator.agreement.plan.participants + helper
        if isinstance(number, int) and owners.get(number, site) != site:
            raise EnrolmentError(f"member {number} belongs to another certificate than that of {site}")
        if site in owners.values() and (number, site) not in owners.items():
            raise EnrolmentError(f"the certificate of {site} belongs to another member than {shown(number)}")
        return self._coordinator.roster.enrol({**answer, "name": site}, site)

    def _refuse(self, site: str) -> None:
        """Leaves a site alone for a while: what it answered will not be better at once."""
        self._progress.refused()
        self._rests[site] = time.monotonic() + self._retry
