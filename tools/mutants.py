"""Mutants of the safety core: small faults put into the code one by one, each of which a test must notice.

    python tools/mutants.py [--module NAME …] [--most N] [--seed S] [--jobs J]

For every module of `CORE` the tool parses the source, makes mutants (comparisons and arithmetic turned,
constants changed, statements and context managers dropped, arguments swapped, words of SQL exchanged), writes
each into a temporary copy of the repository and runs the tests that answer for the module there, until the
first failure. It prints a score and the survivors. Those in `mutants.toml` beside this file are known, each
with the reason why no test can or should notice it, and count as equivalent.
"""

from __future__ import annotations

import argparse
import ast
import copy
import multiprocessing
import os
import queue
import random
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = "src/sottovoce"
FEDERATION = ("federation/test_store.py", "federation/test_sealing.py", "federation/test_coordinator.py")
LEDGER = ("privacy/test_ledger.py", "privacy/test_ledger_file.py")
GRADIENTS = ("gradients/test_sensitivity.py", "gradients/test_mean.py", "gradients/test_recordwise.py")
CLIENT = ("test_client.py", "test_release.py")
ONBOARDING = ("onboarding",)

CORE: dict[str, tuple[str, ...]] = {
    "privacy/accounting": ("privacy/test_accounting.py", "privacy/test_privacy.py"),
    "privacy/schedule": ("privacy/test_schedule.py",),
    "privacy/ledger": LEDGER,
    "privacy/ledger_file": LEDGER,
    "gradients/clipping": GRADIENTS,
    "gradients/sums": GRADIENTS,
    "gradients/mean": GRADIENTS,
    "gradients/recordwise": ("gradients/test_recordwise.py", *CLIENT),
    "context": ("test_context.py", "test_client.py"),
    "client": ("test_client.py", "federation/test_sealing.py"),
    "release": CLIENT,
    "channel/wire": ("channel/test_wire.py",),
    "channel/randomness": ("channel/test_randomness.py",),
    "files": ("federation/test_store.py", *LEDGER),
    "federation/store": FEDERATION[:2],
    "federation/sealing": ("federation/test_sealing.py",),
    "federation/coordinator": (*FEDERATION[1:], "federation/test_restored.py"),
    "federation/node": (*FEDERATION[1:], "federation/test_restored.py"),
    "federation/roster": ("federation/test_coordinator.py",),
    "onboarding/future_client": ONBOARDING,
    "onboarding/contexts": ONBOARDING,
    "onboarding/tokens": ONBOARDING,
}
"""Modules of the safety core, and the tests that answer for each."""

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
}
WORDS = {
    "ROLLBACK": "COMMIT",
    "COMMIT": "ROLLBACK",
    " = ON": " = OFF",
    " = FULL": " = OFF",
    " = WAL": " = DELETE",
    "TRUNCATE": "PASSIVE",
    "OR IGNORE": "OR REPLACE",
    "IMMEDIATE": "DEFERRED",
    " AND ": " OR ",
    " OR kind": " AND kind",
    "NOT NULL": "NULL",
    " < ": " <= ",
    "DELETE FROM": "SELECT * FROM",
}
"""Of SQL, in any text."""
SPOKEN = ("log", "_journal", "warnings")
"""What is only said to people is not mutated."""


@dataclass(frozen=True)
class Mutant:
    """One fault: where it is, what stood there and what stands there now, and the whole module with it."""

    module: str
    place: str
    line: int
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        """Finds it again in `mutants.toml`, whatever moves around it."""
        return f"{self.module}:{self.place}: {self.before} -> {self.after}"


Change = Callable[[ast.AST], None]


def mutants(module: str, text: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its lines."""
    tree = ast.parse(text)
    for path, place in _places(tree):
        node = _at(tree, path)
        for after, change in _changes(node):
            mutated = copy.deepcopy(tree)
            if isinstance(change, ast.AST):
                _put(mutated, path, change)
            elif isinstance(change, list):
                _put(mutated, path, *change)
            source = ast.unparse(ast.fix_missing_locations(mutated))
            yield Mutant(module, place, node.lineno, ast.unparse(node).splitlines()[0], after, source)


Step = tuple[str, int | None]


def _places(tree: ast.Module) -> Iterator[tuple[tuple[Step, ...], str]]:
    """Where a node may be changed, with the name of the function or class it stands in."""

    def walk(node: ast.AST, path: tuple[Step, ...], place: str) -> Iterator[tuple[tuple[Step, ...], str]]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            place = f"{place}.{node.name}" if place else node.name
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
                continue
            children = enumerate(value) if isinstance(value, list) else [(None, value)]
            for index, child in children:
                if isinstance(child, ast.AST) and not _spoken(child):
                    step = (*path, (name, index))
                    if isinstance(child, ast.expr | ast.stmt):
                        yield step, place
                    if not isinstance(child, ast.Raise | ast.JoinedStr):
                        yield from walk(child, step, place)

    yield from walk(tree, (), "")


def _spoken(node: ast.AST) -> bool:
    """Documentation, and what is written to a log."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and any(word in ast.unparse(call.func).split(".") for word in SPOKEN)


def _at(tree: ast.AST, path: tuple[Step, ...]) -> ast.expr | ast.stmt:
    node: object = tree
    for name, index in path:
        node = getattr(node, name) if index is None else getattr(node, name)[index]
    assert isinstance(node, ast.expr | ast.stmt)
    return node


def _put(tree: ast.AST, path: tuple[Step, ...], *new: ast.AST) -> None:
    """Puts nodes in the place of one."""
    node: object = tree
    for name, index in path[:-1]:
        node = getattr(node, name) if index is None else getattr(node, name)[index]
    name, index = path[-1]
    if index is None:
        setattr(node, name, new[0])
    else:
        getattr(node, name)[index : index + 1] = new


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.AST | list[ast.AST]]]:
    """What may stand in the place of a node: its text, and the node or nodes."""
    if isinstance(node, ast.Expr | ast.Raise | ast.AugAssign) or (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    ):
        yield "pass", ast.Pass()
    if isinstance(node, ast.With) and all(item.optional_vars is None for item in node.items):
        yield "without its context", list(copy.deepcopy(node.body))
    for new in _expressions(node):
        yield ast.unparse(new).splitlines()[0], new


def _expressions(node: ast.expr | ast.stmt) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                turned = copy.deepcopy(node)
                turned.ops[i] = other()
                yield turned
    elif isinstance(node, ast.BoolOp):
        turned_bool = copy.deepcopy(node)
        turned_bool.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield turned_bool
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield copy.deepcopy(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield ast.BinOp(copy.deepcopy(node.left), ARITHMETIC[type(node.op)](), copy.deepcopy(node.right))
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(copy.deepcopy(node.test), copy.deepcopy(node.orelse), copy.deepcopy(node.body))
    elif isinstance(node, ast.Constant):
        yield from (ast.Constant(value) for value in _constants(node.value))
    elif isinstance(node, ast.Call) and len(node.args) > 1 and not any(_starred(a) for a in node.args[:2]):
        first, second, *rest = (copy.deepcopy(argument) for argument in node.args)
        yield ast.Call(copy.deepcopy(node.func), [second, first, *rest], copy.deepcopy(node.keywords))


def _starred(node: ast.expr) -> bool:
    return isinstance(node, ast.Starred)


def _constants(value: object) -> Iterator[bool | int | float | str]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield 2 * value + 1
    elif isinstance(value, str):
        yield from (value.replace(word, other) for word, other in WORDS.items() if word in value)


PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["torch", "torch.func", "numpy", "scipy.stats", "numba", "cryptography", "pytest"]
)


def _test(folder: str, tests: tuple[str, ...]) -> None:
    """Runs tests in a copy of the repository and ends this process, which has imported nothing of ours."""
    assert "sottovoce" not in sys.modules
    os.chdir(folder)
    os.environ.update(
        PYTHONPATH=f"{folder}/src", OMP_NUM_THREADS="1", NUMBA_CACHE_DIR=f"{folder}/kernels", TMPDIR=folder
    )
    sys.dont_write_bytecode = True
    sys.path[:0] = [f"{folder}/src", folder]
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    import pytest
    import torch

    torch.set_num_threads(1)
    command = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not network"]
    command += ["--basetemp", f"{folder}/temporary", *(f"tests/{test}" for test in tests)]
    sys.exit(int(pytest.main(command)))


class Bench:
    """A copy of the repository in which one mutant at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("src", "tests", "benchmarks", "tools", "docs", "deploy", "examples"):
            if (ROOT / name).exists():
                ignored = shutil.ignore_patterns("__pycache__", "*.nb[ic]")
                shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for file in ROOT.iterdir():
            if file.is_file() and file.suffix in (".toml", ".md", ""):
                shutil.copy2(file, folder)

    def passes(self, tests: tuple[str, ...], seconds: float) -> bool:
        """Whether the tests pass, in time."""
        process = PROCESSES.Process(target=_test, args=(str(self.folder), tests))
        process.start()
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
        return process.exitcode == 0

    def survives(self, mutant: Mutant, seconds: float) -> bool:
        """Whether the tests of its module pass with the mutant in place."""
        file = self.folder / SOURCE / f"{mutant.module}.py"
        original = file.read_bytes()
        try:
            file.write_text(mutant.source)
            return self.passes(CORE[mutant.module], seconds)
        finally:
            file.write_bytes(original)


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutants of the safety core, and which of them survive.")
    parser.add_argument("--module", action="append", choices=CORE, help="only this one; may be repeated")
    parser.add_argument("--most", type=int, default=0, help="a random sample of so many a module; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at once")
    options = parser.parse_args()
    with (ROOT / "tools" / "mutants.toml").open("rb") as file:
        known: dict[str, str] = tomllib.load(file)["equivalent"]
    survivors, tried = [], 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        benches: queue.SimpleQueue[Bench] = queue.SimpleQueue()
        for number in range(options.jobs):
            benches.put(Bench(Path(folder, str(number))))

        def survives(mutant: Mutant, seconds: float) -> bool:
            bench = benches.get()
            try:
                return bench.survives(mutant, seconds)
            finally:
                benches.put(bench)

        for module in options.module or CORE:
            everything = list(mutants(module, (ROOT / SOURCE / f"{module}.py").read_text()))
            chosen = [mutant for mutant in everything if mutant.key not in known]
            if options.most and options.most < len(chosen):
                chosen = random.Random(f"{options.seed}:{module}").sample(chosen, options.most)
            bench, start = benches.get(), time.monotonic()
            sound = bench.passes(CORE[module], 1800.0)
            benches.put(bench)
            if not sound:
                print(f"{module}: its tests fail without any mutant")
                return 2
            seconds = 60.0 + 5 * (time.monotonic() - start)
            alive = list(pool.map(survives, chosen, [seconds] * len(chosen)))
            mine = [mutant for mutant, lives in zip(chosen, alive, strict=True) if lives]
            print(
                f"{module}: {len(chosen) - len(mine)} of {len(chosen)} killed, {len(everything)} in all",
                flush=True,
            )
            for mutant in mine:
                print(f"  line {mutant.line}: {mutant.key}", flush=True)
            survivors += mine
            tried += len(chosen)
    score = 100.0 * (tried - len(survivors)) / max(1, tried)
    print(f"{tried - len(survivors)} of {tried} killed: {score:.1f} %")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
