"""Tries mutants in a copy of the repository, quickly.

A process collects tests once, with torch and everything else imported, and forks for each trial: the child
exchanges the code of the mutated function where it lies in memory and runs the tests that reach the mutated
lines. What is executed at import (constants, classes, defaults) needs a process that has not imported it yet.
A first pass without mutants, under coverage, finds which test reaches which lines and how long it takes; a
test that starts other processes counts as reaching everything.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import marshal
import math
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import coverage
import pytest

SOURCE = "src/sottovoce"
OPTIONS = ["-x", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler"]
OPTIONS += ["-m", "not slow and not network", "--timeout", "0"]  # a busy machine kills no mutant
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["torch", "torch.func", "numpy", "scipy.stats", "numba", "cryptography", "fastapi", "pytest", "coverage"]
)
Function = tuple[str, int]
"""Its qualified name and first line."""
IDLE = 8.0
"""Seconds for which tests may wait while nothing happens at all."""
UNPATCHED = 77
"""Exit status of a child that could not exchange the function in memory."""


@dataclass(frozen=True)
class Test:
    """A test: name, seconds, the lines of each module that it reaches, whether it starts processes."""

    name: str
    seconds: float
    lines: dict[str, frozenset[int]]
    elsewhere: bool

    def reaches(self, module: str, first: int, last: int) -> bool:
        """Whether it executes one of these lines, as far as is known."""
        return self.elsewhere or not self.lines[module].isdisjoint(range(first, last + 1))


def _enter(folder: Path) -> None:
    """Makes this process, which has imported nothing of ours, one of the copy of the repository."""
    assert "sottovoce" not in sys.modules
    os.chdir(folder)
    os.environ.update(PYTHONPATH=f"{folder}/src", TMPDIR=str(folder))
    os.environ.setdefault("NUMBA_CACHE_DIR", f"{folder.parent}/kernels")
    sys.dont_write_bytecode = True
    sys.path[:0] = [f"{folder}/src", str(folder)]
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    import torch

    torch.set_num_threads(1)


def _limit(seconds: float) -> None:
    """Gives this process a group of its own and so much time of a processor."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 5))


def _timeout(seconds: float) -> float:
    """For how long somebody may sleep in all who may use so many seconds of a processor."""
    return 60.0 + 5 * seconds


class Watch:
    """Whether a process, or one that it has started, still does something: who only waits, waits in vain.

    Who waits for a processor on a busy machine does not count as waiting.
    """

    def __init__(self, process: int, timeout: float) -> None:
        self._process, self._timeout = process, timeout
        self._ticks, self._looked = -1, time.monotonic()
        self._still, self._waited = 0.0, 0.0

    def idle(self) -> bool:
        """Whether nobody ran, or was about to, for `IDLE` seconds on end, or for `timeout` in all."""
        passed = time.monotonic() - self._looked
        if passed >= 1.0:
            self._looked, passed = self._looked + passed, min(passed, 2.0)  # who watches may be stopped too
            running, ticks = self._state()
            self._waited += 0.0 if running else passed
            self._still = 0.0 if running or ticks != self._ticks else self._still + passed
            self._ticks = ticks
        return self._still > IDLE or self._waited > self._timeout

    def _state(self) -> tuple[bool, int]:
        """Whether a thread runs, is stopped, or waits for processor or disk; and the time of all so far."""
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                parents[int(path.parent.name)] = int(fields[1])
                ticks[int(path.parent.name)] = int(fields[11]) + int(fields[12])
        family = {self._process}
        while more := {process for process, parent in parents.items() if parent in family} - family:
            family |= more
        running = False
        for process in family:
            for path in Path(f"/proc/{process}/task").glob("*/stat"):
                with contextlib.suppress(OSError):
                    running |= path.read_text().rpartition(")")[2].split()[0] in "RDT"
        return running, sum(ticks.get(process, 0) for process in family)


def _afresh(folder: Path, tests: list[str], seconds: float) -> None:
    """Imports everything and runs tests, in a process of its own."""
    _limit(seconds)
    _enter(folder)
    sys.exit(int(pytest.main([*OPTIONS, "--basetemp", f"{folder}/temporary", *tests])))


def _warm(folder: Path, modules: list[str], tests: list[str], link: Connection) -> None:
    """Collects tests once and then does what `link` asks for."""
    _enter(folder)
    plugin = Warm(folder, modules, link)
    pytest.main([*OPTIONS, "--basetemp", f"{folder}/temporary", *tests], plugins=[plugin])


class Warm:
    """A pytest plugin that runs the collected tests on demand, each time in a forked child."""

    def __init__(self, folder: Path, modules: list[str], link: Connection) -> None:
        self.files = {module: str(folder / SOURCE / f"{module}.py") for module in modules}
        self.answer, self.link = folder / "answer", link
        self.coverage: coverage.Coverage | None = None

    def pytest_runtestloop(self, session: Any) -> bool:
        self.session = session
        self.items = {item.nodeid: item for item in session.items}
        self.functions: dict[tuple[str, Function], list[types.FunctionType]] = {}
        for thing in gc.get_objects():
            if isinstance(thing, types.FunctionType) and thing.__code__.co_filename in self.files.values():
                code = thing.__code__
                key = (code.co_filename, (code.co_qualname, code.co_firstlineno))
                self.functions.setdefault(key, []).append(thing)
        gc.collect()
        gc.freeze()  # a child need not look at all this again
        self.link.send(len(self.items))
        while (request := self.link.recv()) is not None:
            action, arguments, seconds = request
            self.link.send(self._forked(getattr(self, action), arguments, seconds))
        return True

    def _forked(self, action: Callable[..., Any], arguments: Any, seconds: float) -> tuple[int, Any]:
        """Exit status and answer of a child that may use so many seconds of processor and sleep as long."""
        self.answer.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            _limit(seconds)
            try:
                self.answer.write_bytes(pickle.dumps(action(*arguments)))
                os._exit(0)
            except BaseException:
                os._exit(1)
        watch = Watch(child, _timeout(seconds))
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and not watch.idle():
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # with whatever it has started
            os.killpg(child, signal.SIGKILL)
        if not ended[0]:
            os.waitpid(child, 0)
            return -signal.SIGXCPU, None
        answer = pickle.loads(self.answer.read_bytes()) if self.answer.exists() else None
        return os.waitstatus_to_exitcode(ended[1]), answer

    def _run(self, names: list[str]) -> Iterator[tuple[Any, float]]:
        """Runs tests until one fails and nobody minds; gives each with its seconds of processors."""
        items = [self.items[name] for name in names]
        for item, following in zip(items, [*items[1:], None], strict=True):
            start = sum(os.times()[:4])
            if self.coverage is not None:
                self.coverage.switch_context(item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item, sum(os.times()[:4]) - start
            if self.session.testsfailed:
                break

    def mutate(self, module: str, marshalled: bytes, function: Function, names: list[str]) -> str:
        """The first test that fails with a function of this marshalled module in place, or nothing."""
        codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(marshal.loads(marshalled))}
        try:
            for known in self.functions[self.files[module], function]:
                known.__code__ = codes[function]
        except (KeyError, ValueError):
            os._exit(UNPATCHED)
        return self._first_failure(names)

    def assign(self, module: str, marshalled: bytes, name: str, names: list[str]) -> str:
        """The same with a name of the module given its value anew, there and where it was imported."""
        home = next(each for each in list(sys.modules.values()) if _file(each) == self.files[module])
        before = vars(home)[name]
        exec(marshal.loads(marshalled), vars(home))
        for each in list(sys.modules.values()):
            if vars(each).get(name) is before:
                setattr(each, name, vars(home)[name])
        return self._first_failure(names)

    def _first_failure(self, names: list[str]) -> str:
        ran = [item.nodeid for item, _ in self._run(names)]
        return ran[-1] if self.session.testsfailed else ""

    def trace(self, part: int, parts: int) -> tuple[list[Test], list[str]]:
        """What each test of a part of them reaches; and those that fail without any mutant."""
        count, started = len(self.items), list[str]()
        names = list(self.items)[part * count // parts : (part + 1) * count // parts]
        processes = ("subprocess.Popen", "os.fork", "os.posix_spawn")
        sys.addaudithook(lambda event, _: started.append(event) if event in processes else None)
        self.coverage = coverage.Coverage(
            data_file=None, include=list(self.files.values()), config_file=False
        )
        self.coverage.start()
        times: list[tuple[Any, float, bool]] = []
        failing: list[str] = []
        for item, seconds in self._run(names):
            if self.session.testsfailed:
                failing.append(item.nodeid)
                self.session.testsfailed = 0
            else:
                times.append((item, seconds, bool(started)))
            started.clear()
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[tuple[str, str], set[int]] = {}
        for module, file in self.files.items():
            for line, contexts in data.contexts_by_lineno(file).items():
                for context in contexts:
                    lines.setdefault((module, context), set()).add(line)
        tests = [
            Test(
                item.nodeid,
                seconds,
                {
                    module: frozenset().union(
                        *(lines.get((module, name), ()) for name in (item.nodeid, *item.fixturenames))
                    )
                    for module in self.files
                },
                elsewhere,
            )
            for item, seconds, elsewhere in times
        ]
        return tests, failing

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[Any]:
        """What a shared fixture reaches is reached by every test that asks for it."""
        if self.coverage is None or fixturedef.scope == "function":
            return (yield)
        self.coverage.switch_context(fixturedef.argname)
        try:
            return (yield)
        finally:
            self.coverage.switch_context(str(getattr(request, "_pyfuncitem", request.node).nodeid))


def _assigned(statement: ast.stmt) -> str:
    """The name to which a statement gives a value, if it does nothing else."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _file(module: object) -> str:
    return str(getattr(module, "__file__", ""))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


class Bench:
    """A copy of the repository in which one mutant at a time is tried."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("src", "tests", "benchmarks", "studies", "tools", "docs", "deploy", "examples"):
            if (root / name).exists():
                ignored = shutil.ignore_patterns("__pycache__", "*.nb[ic]")
                shutil.copytree(root / name, folder / name, ignore=ignored)
        for file in root.iterdir():
            if file.is_file() and file.suffix in (".toml", ".md", ""):
                shutil.copy2(file, folder)

    def source(self, module: str) -> str:
        """The text of a module as it was when the repository was copied."""
        return (self.folder / SOURCE / f"{module}.py").read_text()

    def open(self, modules: list[str], tests: tuple[str, ...]) -> None:
        """Collects the tests of some modules."""
        self.link, there = PROCESSES.Pipe()
        paths = [f"tests/{test}" for test in tests]
        self.warm = PROCESSES.Process(target=_warm, args=(self.folder, modules, paths, there))
        self.warm.start()
        there.close()
        self.link.recv()

    def close(self) -> None:
        """Ends the process that holds the tests."""
        self.link.send(None)
        self.warm.join()

    def tests(self, part: int, parts: int) -> list[Test]:
        """The tests of a part and what each reaches; those that fail without any mutant are left out."""
        self.link.send(("trace", (part, parts), 3600.0))
        status, answer = self.link.recv()
        if answer is None:
            raise SystemExit(f"the tests end without any mutant ({status})")
        tests: list[Test]
        tests, failing = answer
        for name in failing:
            print(f"left out, for it fails without any mutant: {name}", flush=True)
        return tests

    def verdict(
        self, module: str, mutant: ast.Module, place: Function | ast.stmt, tests: list[Test]
    ) -> tuple[str, str]:
        """Killed, timeout, survived or unreached, and by which test.

        `place` is the mutated function, or the mutated statement of the module itself.
        """
        if not tests:
            return "unreached", ""
        file = self.folder / SOURCE / f"{module}.py"
        original = file.read_bytes()
        names = [test.name for test in tests]
        seconds = 2.0 + 2 * sum(test.seconds for test in tests)
        status, by = UNPATCHED, ""
        try:
            file.write_text(ast.unparse(mutant))  # for processes that tests start
            if isinstance(place, tuple):
                code = marshal.dumps(compile(mutant, str(file), "exec"))
                self.link.send(("mutate", (module, code, place, names), seconds))
                status, by = self.link.recv()
            elif name := _assigned(place):
                alone = ast.Module([place], type_ignores=[])
                code = marshal.dumps(compile(alone, str(file), "exec"))
                self.link.send(("assign", (module, code, name, names), seconds))
                status, by = self.link.recv()
                if not status and not by:  # other constants may be made of it
                    status = UNPATCHED
            if status == UNPATCHED:
                status, by = self._afresh(names, seconds), ""
        finally:
            file.write_bytes(original)
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            return "timeout", ""
        return ("killed", by or "") if status or by else ("survived", "")

    def _afresh(self, names: list[str], seconds: float) -> int:
        process = PROCESSES.Process(target=_afresh, args=(self.folder, names, 10.0 + seconds))
        process.start()
        watch = Watch(process.pid or 0, _timeout(seconds))
        while process.is_alive() and not watch.idle():
            process.join(0.1)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        return process.exitcode or 0
