"""Mutants of the safety core: small faults put into the code one by one, each of which a test must notice.

    python tools/mutants.py [--module NAME …] [--most N] [--seed S] [--jobs J] [--out FILE.jsonl]

For every module of `CORE` the tool parses the source, makes mutants (comparisons and arithmetic turned,
conditions negated, constants changed, statements and context managers dropped, arguments swapped, words of
SQL exchanged) and tries each in a copy of the repository, with the quickest tests that reach its line, until
the first failure (`trials.py` beside this file). It prints a score and the survivors. Those in `mutants.toml`
are known, each with the reason why no test can or should notice it, and count as equivalent. They are found
by function, kind of fault and place among its like, not by the text of the code: names, numbers, words and
layout may change. A function of another shape, though, has to be looked at again: its reasons are void, and
the tool says so. With `--out` every trial is kept: what was killed stays killed while its function stays as
it is; survivors are tried again.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import queue
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

from trials import Bench

ROOT = Path(__file__).parents[1]
TESTS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("privacy", "plan/test_schedule.py", "cli/test_ledger.py"): (
        *(f"privacy/{name}" for name in ("accounting", "ledger", "ledger_file", "history", "terms")),
        "machine/rollback",
        "plan/schedule",
    ),
    (
        "training/test_accounts.py",
        "federation/site/test_recovery.py",
        "federation/site/test_witness.py",
        "federation/test_own_ledger.py",
    ): (
        "training/accounts",
        "federation/site/directory",
        "federation/site/recovery",
        "federation/site/witness",
    ),
    ("release/once/test_context.py", "gradients/test_units.py", "release/test_kind.py"): (
        "release/once/context",
        "release/once/__init__",
    ),
    ("gradients",): tuple(f"gradients/{name}" for name in ("__init__", "clipping", "identity", "vmap")),
    (
        "training/test_client.py",
        "release/test_kind.py",
        "release/places/test_server.py",
        "run/test_cost.py",
    ): ("training/client", "release/kind", "release/blueprint"),
    ("run/test_prepare.py",): ("run/prepare",),
    ("channel/test_wire.py", "channel/test_randomness.py"): ("channel/wire",),
    (
        "channel/test_channel.py",
        "channel/test_integers.py",
        "channel/test_golden.py",
        "channel/test_fuzz.py",
    ): ("channel/__init__", "channel/direct"),
    ("release/once/test_calibration.py",): ("release/once/calibration",),
    ("release/places/test_shared.py", "release/places/test_masks.py", "release/places/test_helper.py"): (
        "release/places/shared",
        "release/places/masks",
        "release/places/helper",
    ),
}
"""Tests, and the modules of the safety core for which they answer."""
CORE = [module for modules in TESTS.values() for module in modules]

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
UNTRIED = ("annotation", "returns", "decorator_list", "type_params", "bases")
SPOKEN = ("log", "_client_log", "warnings")
"""What is only said to people is not mutated."""


Step = tuple[str, int | None]
Span = tuple[int, int]


@dataclass(frozen=True)
class Place:
    """Where a node stands: its steps from the module down, the names around it, the outermost function (its
    name and first line) and the lines of its statement. Without a function it is executed at import."""

    steps: tuple[Step, ...]
    names: str
    function: tuple[str, int] | None
    span: Span


@dataclass(frozen=True)
class Mutant:
    """One fault: where it is, what stood there and what stands there now."""

    module: str
    place: Place
    line: int
    before: str
    after: str
    fault: str  # the kind of fault, and which of its like in the function it is
    around: str  # digest of the function as it was, or of the module where there is none
    shape: str  # digest of its structure alone
    original: ast.Module
    new: list[ast.AST]

    @property
    def key(self) -> str:
        """Finds it again, whatever moves around it."""
        return f"{self.where}: {self.fault}"

    @property
    def where(self) -> str:
        """Its module and function, whose known mutants stand together in `mutants.toml`."""
        return f"{self.module}:{self.place.names}"

    def tree(self) -> ast.Module:
        """The whole module with the fault in it."""
        mutated = copy.deepcopy(self.original)
        _put(mutated, self.place.steps, *self.new)
        return ast.fix_missing_locations(mutated)


FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def mutants(module: str, text: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its lines."""
    tree = ast.parse(text)
    functions = {_first_line(node): node for node in ast.walk(tree) if isinstance(node, FUNCTION)}
    around = {line: _digest(ast.unparse(node)) for line, node in functions.items()}
    around[0] = _digest(ast.unparse(tree))
    named = {"": tree, **dict(_named(tree))}
    seen: Counter[tuple[str, str]] = Counter()
    for place in _places(tree, Place((), "", None, (1, 1))):
        node = _at(tree, place.steps)
        before = ast.unparse(node).splitlines()[0]
        for kind, after, change in _changes(node):
            seen[place.names, kind] += 1
            yield Mutant(
                *(module, place, node.lineno, before, after),
                fault=f"{kind} #{seen[place.names, kind]}",
                around=around[place.function[1] if place.function else 0],
                shape=_digest(_shape(named[place.names])),
                original=tree,
                new=change if isinstance(change, list) else [change],
            )


def _named(node: ast.AST, names: str = "", within: bool = False) -> Iterator[tuple[str, ast.AST]]:
    """The classes, functions and constants below a node."""
    within = within or isinstance(node, FUNCTION)
    for child in ast.iter_child_nodes(node):
        inner = _inside(names, child, within)
        if inner != names:
            yield inner, child
        yield from _named(child, inner, within)


def _inside(names: str, node: ast.AST, within: bool) -> str:
    """The names around what stands in a node: its own too, if it is a class, a function, or a constant that
    is not given its value `within` a function."""
    name = getattr(node, "name", "") if isinstance(node, FUNCTION | ast.ClassDef) else ""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and not within:
        name = target.id
    return ".".join(filter(None, (names, name)))


def _shape(node: ast.AST) -> str:
    """Kinds of nodes alone: without names, numbers, texts, documentation and what has a name of its own."""
    inner = []
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in UNTRIED and not _spoken(child):
                named = isinstance(child, FUNCTION | ast.ClassDef)
                inner.append("" if named else _shape(child))
    return f"{type(node).__name__}({','.join(filter(None, inner))})"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _places(node: ast.AST, place: Place) -> Iterator[Place]:
    """The places below a node at which something may be changed."""
    names, span = _inside(place.names, node, place.function is not None), _span(node) or place.span
    for name, value in ast.iter_fields(node):
        if name in UNTRIED:
            continue
        function = place.function
        if isinstance(node, FUNCTION) and name == "body" and function is None:
            function = (names, _first_line(node))
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _spoken(child):
                inner = Place((*place.steps, (name, index)), names, function, _span(child) or span)
                if isinstance(child, ast.expr | ast.stmt):
                    yield inner
                if not isinstance(child, ast.Raise | ast.JoinedStr):
                    yield from _places(child, inner)


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def _span(node: ast.AST) -> Span | None:
    """The lines of a statement, of its head where it has a body."""
    if isinstance(node, ast.match_case):
        return node.pattern.lineno, max(node.pattern.lineno, node.body[0].lineno - 1)
    if not isinstance(node, ast.stmt | ast.ExceptHandler):
        return None
    body = getattr(node, "body", None) or [case.pattern for case in getattr(node, "cases", ())]
    last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
    return node.lineno, last


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


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str, ast.AST | list[ast.AST]]]:
    """What may stand in the place of a node: the kind of fault, its text, and the node or nodes."""
    if isinstance(node, ast.Expr | ast.Raise | ast.AugAssign) or (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    ):
        yield f"no {type(node).__name__}", "pass", ast.Pass()
    if isinstance(node, ast.With) and all(item.optional_vars is None for item in node.items):
        yield "no With", "without its context", list(copy.deepcopy(node.body))
    if isinstance(node, ast.If | ast.While) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        turned = copy.deepcopy(node)
        turned.test = ast.UnaryOp(ast.Not(), turned.test)
        yield f"{type(node).__name__} not", ast.unparse(turned).splitlines()[0], turned
    for kind, new in _expressions(node):
        yield kind, ast.unparse(new).splitlines()[0], new


def _expressions(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                turned = copy.deepcopy(node)
                turned.ops[i] = other()
                yield f"{type(operator).__name__} to {other.__name__}", turned
    elif isinstance(node, ast.BoolOp):
        turned_bool = copy.deepcopy(node)
        turned_bool.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"{type(node.op).__name__} to {type(turned_bool.op).__name__}", turned_bool
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield f"no {type(node.op).__name__}", copy.deepcopy(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        other_op = ARITHMETIC[type(node.op)]
        kind = f"{type(node.op).__name__} to {other_op.__name__}"
        yield kind, ast.BinOp(copy.deepcopy(node.left), other_op(), copy.deepcopy(node.right))
    elif isinstance(node, ast.IfExp):
        yield (
            "IfExp turned",
            ast.IfExp(copy.deepcopy(node.test), copy.deepcopy(node.orelse), copy.deepcopy(node.body)),
        )
    elif isinstance(node, ast.Constant):
        yield from ((kind, ast.Constant(value)) for kind, value in _constants(node.value))
    elif isinstance(node, ast.Call) and len(node.args) > 1 and not _symmetric(node):
        first, second, *rest = (copy.deepcopy(argument) for argument in node.args)
        swapped = ast.Call(copy.deepcopy(node.func), [second, first, *rest], copy.deepcopy(node.keywords))
        yield "arguments swapped", swapped


def _symmetric(call: ast.Call) -> bool:
    """Whether its first two arguments may be exchanged, or are not known to be two."""
    first, second = call.args[:2]
    return (
        ast.unparse(call.func) in ("min", "max", "math.hypot")
        or any(isinstance(argument, ast.Starred) for argument in (first, second))
        or ast.dump(first) == ast.dump(second)
    )


def _constants(value: object) -> Iterator[tuple[str, bool | int | float | str]]:
    if isinstance(value, bool):
        yield "truth", not value
    elif isinstance(value, int):
        yield "whole number", value + 1
    elif isinstance(value, float):
        yield "number", 2 * value + 1
    elif isinstance(value, str):
        for word, other in WORDS.items():
            if word in value:
                yield f"word {word.strip()}", value.replace(word, other)


@dataclass(frozen=True)
class Outcome:
    """How a trial ended; one line of `--out`."""

    key: str
    around: str
    line: int
    outcome: str  # killed, timeout, survived, unreached
    by: str = ""  # the test that killed it
    change: str = ""  # what stood there and what stands there now, for people

    @property
    def killed(self) -> bool:
        return self.outcome in ("killed", "timeout")


def _tried(path: Path | None) -> dict[tuple[str, str], bool]:
    """What was tried before, and whether it was killed."""
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    found = [Outcome(**json.loads(line)) for line in lines]
    return {(outcome.key, outcome.around): outcome.killed for outcome in found}


class Trials:
    """Trials of the modules for which the same tests answer, on as many benches as there are jobs."""

    def __init__(
        self, benches: list[Bench], modules: list[str], tests: tuple[str, ...], seconds: float
    ) -> None:
        self.benches, self.seconds = benches, seconds
        self.free: queue.SimpleQueue[Bench] = queue.SimpleQueue()
        with ThreadPoolExecutor(len(benches)) as pool:
            list(pool.map(lambda bench: bench.open(modules, tests), benches))
            parts = pool.map(lambda i: benches[i].tests(i, len(benches)), range(len(benches)))
            self.tests = [test for part in parts for test in part]
        for bench in benches:
            self.free.put(bench)
        self.kills: Counter[str] = Counter()

    def close(self) -> None:
        for bench in self.benches:
            bench.close()

    def run(self, chosen: list[Mutant], out: Path | None) -> list[Outcome]:
        """The outcomes of these mutants."""

        def tried(mutant: Mutant) -> Outcome:
            bench = self.free.get()
            try:
                outcome = self._try(bench, mutant)
            finally:
                self.free.put(bench)
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
            return outcome

        with ThreadPoolExecutor(len(self.benches)) as pool:
            return list(pool.map(tried, chosen))

    def _try(self, bench: Bench, mutant: Mutant) -> Outcome:
        module, place = mutant.module, mutant.place
        tests = [test for test in self.tests if place.function is None or test.reaches(module, *place.span)]
        tests.sort(key=lambda test: test.seconds / (1 + self.kills[test.name]))
        total = list(accumulate(test.seconds for test in tests))
        tests = [
            test
            for test, until in zip(tests, total, strict=True)
            if until <= self.seconds or until == total[0]
        ]
        tree = mutant.tree()
        executed = place.function or tree.body[place.steps[0][1] or 0]
        verdict, by = bench.verdict(module, tree, executed, tests)
        self.kills[by] += verdict == "killed"
        change = f"{mutant.before} -> {mutant.after}"
        return Outcome(mutant.key, mutant.around, mutant.line, verdict, by, change)


def _is_known(mutant: Mutant, known: dict[str, dict[str, str]]) -> bool:
    """Whether there is a reason why nothing notices it, given for a function of this shape."""
    faults = known.get(mutant.where, {})
    return mutant.fault in faults and faults["shape"] == mutant.shape


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutants of the safety core, and which of them survive.")
    parser.add_argument("--module", action="append", choices=CORE, help="only this one; may be repeated")
    parser.add_argument("--most", type=int, default=0, help="a random sample of so many a module; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at once")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of processor for each, quickest tests first"
    )
    parser.add_argument("--out", type=Path, help="file of trials, to continue from and to add to")
    parser.add_argument("--again", action="store_true", help="only what was tried before, in that file")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/mutants", help="of the copies")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before the first process imports numpy
    with (ROOT / "tools" / "mutants.toml").open("rb") as file:
        known: dict[str, dict[str, str]] = tomllib.load(file)
    before = _tried(options.out)
    survivors, tried = 0, 0
    gone = {f"{where}: {fault}" for where, faults in known.items() for fault in faults if fault != "shape"}
    benches = [Bench(ROOT, options.folder / str(number)) for number in range(options.jobs)]
    for tests, modules in TESTS.items():
        trials: Trials | None = None
        for module in modules:
            if options.module and module not in options.module:
                continue
            start = time.monotonic()
            all_ = list(mutants(module, benches[0].source(module)))
            equivalent = {mutant.key for mutant in all_ if _is_known(mutant, known)}
            gone -= equivalent
            chosen = [mutant for mutant in all_ if mutant.key not in equivalent]
            if options.most and options.most < len(chosen):
                chosen = random.Random(f"{options.seed}:{module}").sample(chosen, options.most)
            if options.again:
                chosen = [mutant for mutant in chosen if (mutant.key, mutant.around) in before]
            fresh = [mutant for mutant in chosen if not before.get((mutant.key, mutant.around), False)]
            if fresh and trials is None:
                trials = Trials(benches, list(modules), tests, options.seconds)
            found = trials.run(fresh, options.out) if trials is not None else []
            alive = [outcome for outcome in found if not outcome.killed]
            late = sum(outcome.outcome == "timeout" for outcome in found)
            print(
                f"{module}: {len(chosen) - len(alive)} of {len(chosen)} killed ({late} by time), "
                f"{len(all_) - len(chosen)} equivalent or left out, {time.monotonic() - start:.0f} s",
                flush=True,
            )
            for outcome in alive:
                print(
                    f"  line {outcome.line}, {outcome.outcome}: {outcome.key}: {outcome.change}", flush=True
                )
            survivors += len(alive)
            tried += len(chosen)
        if trials is not None:
            trials.close()
    for key in sorted(gone) if not options.module else ():
        print(f"  in mutants.toml, but its function is gone or has another shape: {key}")
    score = 100.0 * (tried - survivors) / max(1, tried)
    print(f"{tried - survivors} of {tried} killed: {score:.1f} %")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
