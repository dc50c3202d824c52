"""Workers on the machines of a Ray cluster, for grids that one machine is too small for.

Nothing has to be shared but the cluster: the code of this machine goes along, datasets and what an
interrupted run has left are sent with the batch, and run directories come back, finished or, every minute,
as they are. So a machine may leave at any moment, and the folder of runs is the one that processes here
would have written.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import sottovoce
import studies
from sottovoce import data
from sottovoce.data import Dataset
from sottovoce.errors import SottovoceError
from sottovoce.run.directory import RunDirectory
from studies.work import Batch, Ended, Finished, Progress, Said, Setting, work

BRING_SECONDS = 60.0  # between the states of an unfinished run that come back, where no machine is lost
SAY_SECONDS = 1.0  # between two words about progress: the head listens to hundreds of workers

Files = dict[str, dict[str, bytes]]
"""Contents of files by name, by the name of their run directory."""


class Cluster:
    """Workers of a Ray cluster for runs in the folder `root` here; `jobs` in all, 0: one per core it has.

    Each gets an equal share of the cores or, with a `device` other than the CPU, of the GPUs; machines that
    join later are used too.
    """

    def __init__(self, root: Path, address: str, device: str, jobs: int, *, law: bool) -> None:
        self._ray = _connected(address)
        self._root = root.resolve()
        self._jobs = jobs
        cores = [int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]]
        gpus = self._ray.cluster_resources().get("GPU", 0)
        if device != "cpu" and not gpus:
            self.close()
            raise SottovoceError(
                "no machine of the cluster has a GPU: start one with a GPU, or choose the device cpu",
                "device",
            )
        workers = jobs or max(1, sum(cores))
        threads = 1 if device != "cpu" else max(1, min(max(cores), sum(cores) // workers))
        self._setting = Setting(device, threads, law)
        self._task = self._ray.remote(_serve).options(
            num_cpus=threads,
            num_gpus=0 if device == "cpu" else 1 / math.ceil(max(1, workers / gpus)),
            num_returns="streaming",
            max_retries=0,
        )
        self._datasets: dict[str, Any] = {}
        self._running: dict[Any, Batch] = {}
        self._refused: list[tuple[Batch, Said]] = []

    def room(self) -> bool:
        return len(self._running) < (self._jobs or max(1, int(self._ray.cluster_resources().get("CPU", 1))))

    def start(self, batch: Batch) -> None:
        names = {run.plan.dataset for run in batch}
        try:
            for name in names - set(self._datasets):
                self._datasets[name] = self._ray.put(data.load(name))
        except SottovoceError as error:
            self._refused.append((batch, Ended(str(error))))
            return
        datasets = {name: self._datasets[name] for name in names}
        words = self._task.remote(batch, self._setting, _needed(self._root, batch), datasets)
        self._running[words] = batch

    def wait(self, seconds: float | None) -> list[tuple[Batch, Said]]:
        found, self._refused = self._refused, []
        if found or not self._running:
            return found
        ready, _ = self._ray.wait(list(self._running), timeout=seconds)
        for words in ready:
            said, files = self._hear(words)
            for name, content in files.items():
                _place(self._root, name, content)
            found.append((self._running[words], said))
            if isinstance(said, Ended):
                del self._running[words]
        return found

    def _hear(self, words: Any) -> tuple[Said, Files]:
        """The next thing that a worker says; one that was lost has ended with a problem."""
        try:
            heard: tuple[Said, Files] = self._ray.get(next(words))
        except (self._ray.exceptions.RayError, StopIteration) as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
            return Ended(f"a worker of the cluster was lost: {why}", again=True), {}
        return heard

    def close(self) -> None:
        self._ray.shutdown()


def _connected(address: str) -> Any:
    """The module ray, connected to the cluster; it reports its use to nobody."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise SottovoceError("a cluster needs Ray: pip install 'sottovoce[cluster]'") from None
    packages = [str(Path(str(package.__file__)).parent) for package in (sottovoce, studies)]
    code = {"py_modules": packages, "excludes": ["**/__pycache__"]}
    try:
        ray.init(address=address, runtime_env=code, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise SottovoceError(
            f"no Ray cluster at {address} ({why}): start one with 'ray start --head', and join it from other "
            "machines with 'ray start --address=HEAD:6379'"
        ) from None
    return ray


def _serve(
    batch: Batch, setting: Setting, files: Files, datasets: Mapping[str, Any]
) -> Iterator[tuple[Said, Files]]:
    """At a worker: works on a batch in a folder of its own, and yields what is to be said, with files."""
    words: SimpleQueue[tuple[Said, Files]] = SimpleQueue()

    def load(name: str) -> Dataset:
        import ray

        dataset: Dataset = ray.get(datasets[name])
        return dataset

    with TemporaryDirectory(prefix="sottovoce-") as folder:
        root = Path(folder)
        for name, content in files.items():
            _place(root, name, content)
        say = _Reporter(root, batch, words.put).say
        # What is said in the middle of a training loop is yielded here.
        Thread(target=work, args=(root, batch, setting, load, say), daemon=True).start()
        said: Said | None = None
        while not isinstance(said, Ended):
            said, brought = words.get()
            yield said, brought


class _Reporter:
    """Between a worker and the head: words about progress together, and run directories with them."""

    def __init__(self, root: Path, batch: Batch, send: Callable[[tuple[Said, Files]], None]) -> None:
        self._root = root
        self._open = {run.name for run in batch}
        self._send = send
        self._rounds = 0
        self._said = self._brought = time.monotonic()

    def say(self, said: Said) -> None:
        """Called between rounds, when nothing in a run directory is half written."""
        now = time.monotonic()
        if isinstance(said, Progress):
            self._rounds += said.rounds
            if now - self._said < SAY_SECONDS:
                return
        files: Files = {}
        if isinstance(said, Finished):
            self._open.discard(said.run.name)
            files = {said.run.name: _content(self._root / said.run.name)}
        elif isinstance(said, Progress) and now - self._brought >= BRING_SECONDS:
            self._brought = now
            files = {name: _content(self._root / name) for name in self._open}
        if self._rounds:
            self._said = now
            self._send((Progress(self._rounds), {} if isinstance(said, Finished) else files))
            self._rounds = 0
        if not isinstance(said, Progress):
            self._send((said, files))


def _needed(root: Path, batch: Batch) -> Files:
    """What a worker needs from here: what unfinished runs have left, and the gains that replays repeat."""
    files = {run.name: _content(root / run.name) for run in batch if (root / run.name).exists()}
    for run in batch:
        if run.source is not None:
            gains = RunDirectory(root / run.source.name).rounds_file
            files.setdefault(run.source.name, {gains.name: gains.read_bytes()})
    return files


def _content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def _place(root: Path, name: str, content: Mapping[str, bytes]) -> None:
    """Puts a run directory where it belongs; one that is cut off by a kill is not there at all."""
    new = root / f".{name}"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for file, bytes_ in content.items():
        (new / file).write_bytes(bytes_)
    shutil.rmtree(root / name, ignore_errors=True)
    new.rename(root / name)
