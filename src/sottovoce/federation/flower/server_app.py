"""The server half of the Flower app: delivers the coordinator's requests and brings it the answers.

A request that was not answered in time is simply made again, after ever longer pauses, since members answer
it with stored bytes and the first answer counts. Nodes that appear are enrolled, whenever they appear; a
server that was restarted continues with the nodes it knew.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from sottovoce.errors import SottovoceError, shown
from sottovoce.federation import Agreement
from sottovoce.federation.flower.client_app import RECORD, show_log
from sottovoce.federation.sealing import MODEL, EnrolmentError
from sottovoce.federation.server import Coordinator, Fields, Options
from sottovoce.federation.status.progress import Progress, keep_log, write_run
from sottovoce.federation.store import Store
from sottovoce.federation.sums import MASKS

log = logging.getLogger("sottovoce.federation")

POLL_SECONDS = 0.2
NODES_SECONDS = 2.0
LIFE_SECONDS = 3600.0  # of a message in the SuperLink; an answer that comes late is as good as an early one
LONGEST_PAUSE = 4  # times the first one


def server_app(agreement_file: Path) -> ServerApp:
    """A ServerApp that trains under the agreement in a file and writes the run's directory."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        directory = Path(str(config["run-directory"]))
        show_log()
        keep_log(directory)
        torch.set_num_threads(int(config["threads"]))
        options = Options(
            patience=float(config["patience"]),
            bucket=int(config["bucket"]),
            diagnostics=bool(config["diagnostics"]),
        )
        agreement = Agreement.load(
            agreement_file,
            simulation="simulated-clients" in config,
            model=str(config.get("model", "")) or None,
            features=str(config.get("features", "")) or None,
        )
        store = Store.open(directory / "server.sqlite", agreement)
        try:
            coordinator = Coordinator(agreement, store, options)
            retry = float(config["retry"])
            progress = Progress(directory, coordinator, late=retry)
            log.addHandler(progress.errors)
            driver = Driver(grid, coordinator, progress, retry=retry)
            driver.drive()
            write_run(directory, coordinator)
            driver.deliver_models()
        finally:
            store.close()

    return app


@dataclass(frozen=True)
class Asked:
    """A message under way, and when it dies."""

    node: int
    enrolment: bool
    dies: float


@dataclass
class Pause:
    """How long a node is left alone: until it answers, or for `seconds`, which double each time."""

    until: float = 0.0
    seconds: float = 0.0


class Driver:
    """Carries messages for a coordinator until its last round is closed and everybody has their model."""

    def __init__(self, grid: Grid, coordinator: Coordinator, progress: Progress, *, retry: float) -> None:
        self._grid = grid
        self._progress = progress
        self._coordinator = coordinator
        self._retry = retry
        self._asked: dict[str, Asked] = {}
        self._pauses: dict[int, Pause] = {}
        self._nodes = {participant: int(node) for participant, node in coordinator.store.addresses().items()}
        self._online: set[int] = set()
        self._looked = -NODES_SECONDS

    def drive(self) -> None:
        """Trains to the end."""
        while not self._coordinator.done:
            self._exchange()
            line = self._coordinator.advance()
            self._tell(line)
            if line is not None:
                log.info("round %d of %d", line["round"], self._coordinator.agreement.plan.rounds)
            elif not self._coordinator.done:
                time.sleep(POLL_SECONDS)

    def deliver_models(self) -> None:
        """Brings their models to all who trained, also to those who come back while there is patience."""
        while not self._coordinator.closed:
            self._exchange()
            self._tell()
            time.sleep(POLL_SECONDS)
        self._tell(over=True)
        absent = ", ".join(map(self._coordinator.called, self._coordinator.missing()))
        if absent:
            log.warning("no model yet for %s: they get it when this app runs again", absent)

    def _tell(self, line: Fields | None = None, *, over: bool = False) -> None:
        """Lets whoever looks know how it stands."""
        connected = [p for p, node in self._nodes.items() if node in self._online]
        self._progress.update(connected, line, over=over)

    def _exchange(self) -> None:
        self._look_for_nodes()
        self._ask()
        self._collect()

    def _look_for_nodes(self) -> None:
        now = time.monotonic()
        if now - self._looked >= NODES_SECONDS:
            online = set(self._grid.get_node_ids())
            for node in online - self._online:  # what it was asked before it went away is lost
                self._pauses.pop(node, None)
            self._online, self._looked = online, now

    def _ask(self) -> None:
        """One message to each node that has something to answer and is not being waited for."""
        now = time.monotonic()
        with self._coordinator.store.transaction():  # what is asked for is remembered before it is asked for
            messages = self._requests(now)
        if not messages:
            return
        for message, key in zip(messages, self._grid.push_messages(messages), strict=True):
            if key:
                enrolment = message.metadata.message_type == "query.enrol"
                self._asked[key] = Asked(message.metadata.dst_node_id, enrolment, now + LIFE_SECONDS)

    def _requests(self, now: float) -> list[Message]:
        known = {node: participant for participant, node in self._nodes.items()}
        missing = self._coordinator.missing()
        messages = []
        for node in sorted(self._online):
            pause = self._pauses.setdefault(node, Pause())
            if pause.until > now:
                continue
            if node not in known:
                messages.append(self._message(node, "query.enrol", self._coordinator.roster.offer()))
            elif known[node] in missing:
                participant = known[node]
                kind = missing[participant]
                request = self._coordinator.request(participant, kind)
                what = f"query.{kind}" if kind in (MODEL, MASKS) else "train.release"
                messages.append(self._message(node, what, request))
            else:
                continue
            pause.seconds = min(max(2 * pause.seconds, self._retry), LONGEST_PAUSE * self._retry)
            pause.until = now + pause.seconds
        return messages

    def _collect(self) -> None:
        """Takes the answers that have come."""
        now = time.monotonic()
        self._asked = {key: asked for key, asked in self._asked.items() if asked.dies > now}
        if not self._asked:
            return
        replies = list(self._grid.pull_messages(list(self._asked)))
        with self._coordinator.store.transaction():
            for reply in replies:
                self._take(reply)

    def _take(self, reply: Message) -> None:
        asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
        if asked is None:
            return
        if reply.has_error():
            log.warning("node %d: %s", asked.node, shown(reply.error.reason))
            return
        fields = dict(reply.content.config_records.get(RECORD, ConfigRecord()))
        if asked.enrolment:
            self._pauses[asked.node] = Pause()
            self._enrol(asked.node, fields)
        else:
            self._accept(asked.node, fields)

    def _enrol(self, node: int, fields: Fields) -> None:
        try:
            participant = self._coordinator.roster.enrol(fields, str(node))
        except EnrolmentError as error:
            log.error("node %d refused: %s", node, shown(error))
            self._progress.refused()
            self._rest(node)
            reason = {"run": self._coordinator.run, "reason": str(error)}
            self._grid.push_messages([self._message(node, "query.refused", reason)])
            return
        self._nodes[participant] = node

    def _accept(self, node: int, fields: Fields) -> None:
        for participant, at in self._nodes.items():
            if at == node:
                wanted = self._coordinator.missing().get(participant)
                try:
                    self._coordinator.accept(participant, fields)
                except SottovoceError as error:
                    log.warning("%s", shown(error))
                    self._progress.refused()
                if fields.get("error"):
                    self._rest(node)
                elif self._coordinator.missing().get(participant) != wanted:
                    # An answer to a repeated request is no reason to ask again: the node is busy.
                    self._pauses[node] = Pause()
                    if isinstance(body := fields.get("release"), bytes):
                        self._progress.received(participant, len(body))
                return
        log.warning("node %d answered after another took its place: dropped", node)

    def _rest(self, node: int) -> None:
        """Leaves a node alone for long: what it answered will not be better at once."""
        seconds = LONGEST_PAUSE * self._retry
        self._pauses[node] = Pause(time.monotonic() + seconds, seconds)

    def _message(self, node: int, kind: str, fields: Fields) -> Message:
        content = RecordDict({RECORD: ConfigRecord(fields)})
        return Message(content, node, kind, ttl=LIFE_SECONDS, group_id=str(self._coordinator.round + 1))
