"""Both halves of the NVFlare engine in one process: its messages pass through NVFlare's own serializer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.utils import fobs

from sottovoce.federation import Agreement
from sottovoce.federation.nvflare import RECORD, SERVER_CONFIG, write_job
from sottovoce.federation.nvflare.controller import Federation
from sottovoce.federation.nvflare.executor import answered
from sottovoce.federation.nvflare.kit import prepare

RESOURCES = {
    "format_version": 2,
    "class_list_enforcement_mode": "enforce",
    "class_allow_list": ["nvflare.app_common.np.np_trainer.NPTrainer"],
    "allow_log_streaming": True,
    "components": [
        {"id": "resource_manager", "path": "nvflare.app_common.resource_managers.X"},
        {"id": "site_log_streamer", "path": "nvflare.app_common.logging.site_log_streamer.SiteLogStreamer"},
    ],
}
POLICY = {"permissions": {"project_admin": "any", "lead": {"submit_job": "any", "byoc": "any"}}}


def site_kit(folder: Path) -> Path:
    """A startup kit of a site as NVFlare leaves it, without its keys."""
    for part in ("startup", "local"):
        (folder / part).mkdir(parents=True)
    (folder / "startup" / "fed_client.json").write_text("{}")
    (folder / "local" / "resources.json.default").write_text(json.dumps(RESOURCES))
    (folder / "local" / "authorization.json.default").write_text(json.dumps(POLICY))
    return folder


class Inside(Federation):
    """The controller of a written job, with sites whose kits are folders here.

    `fate` may change what a site answers: it is given site, task and answer.
    """

    def __init__(
        self,
        agreement: Agreement,
        folder: Path,
        nodes: Mapping[str, Path],
        fate: Callable[[str, str, dict[str, Any]], dict[str, Any] | None] = lambda site, what, said: said,
        **options: Any,
    ) -> None:
        job = write_job(
            agreement, folder / "job", run_directory=folder / "run", simulated=agreement.simulation, **options
        )
        [workflow] = json.loads((job / SERVER_CONFIG).read_text())["workflows"]
        super().__init__(**workflow["args"])
        self._job, self._fate = job, fate
        self._engine = self
        self.told: list[tuple[str, str, dict[str, Any]]] = []
        self.kits = {site: site_kit(folder / "kits" / site) for site in nodes}
        for site, file in nodes.items():
            prepare(self.kits[site], file)

    def get_clients(self) -> list[Client]:
        return [Client(site, "") for site in self.kits]

    def broadcast(self, task: Task, fl_ctx: FLContext, targets: Any = None, min_responses: int = 1) -> None:
        [site] = targets
        at = ClientTask(Client(site, ""), task)
        task.before_task_sent_cb(at, fl_ctx)
        asked = fobs.loads(fobs.dumps(task.data))
        said = self._fate(site, task.name, answered(self.kits[site] / "local", task.name, asked[RECORD]))
        if said is not None:
            self.told.append((site, task.name, said))
            reply = Shareable()
            reply[RECORD] = said
            at.result = fobs.loads(fobs.dumps(reply))
            task.result_received_cb(at, fl_ctx)
        task.task_done_cb(task, fl_ctx)

    def train(self) -> None:
        """What NVFlare does with it, from the start of a job to its end."""
        context = FLContext()
        context.set_prop(FLContextKey.APP_ROOT, str(self._job / "app"))
        self.start_controller(context)
        self.control_flow(Signal(), context)
