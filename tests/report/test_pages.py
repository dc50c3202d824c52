"""What a page shows is escaped, what it lacks is an error, and its policy admits its own script alone."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from jinja2 import StrictUndefined, UndefinedError

from sottovoce.report import page, templates
from sottovoce.report.promise import audit_page
from sottovoce.report.run import write_report

from .example import example_result, write_example
from .test_audit import FOUND
from .test_run import Outline

CLONE = Path(__file__).parents[2]
EVIL = "<img src=x onerror=alert(1)></script></style><b>'\"&"
OURS = {"src/sottovoce/report/__init__.py": 2, "src/sottovoce/report/chart.py": 1}
"""Where texts of our own files, style and script, are markup as they are."""


def sources(ending: str) -> list[Path]:
    return [path for root in ("src", "studies") for path in sorted((CLONE / root).rglob(f"*.{ending}"))]


def test_every_template_escapes_and_none_calls_anything_safe() -> None:
    assert templates().autoescape is True
    assert templates().undefined is StrictUndefined
    found = sources("html")
    assert {"page.html", "parts.html", "run.html", "reproduction.html"} <= {path.name for path in found}
    for path in found:
        assert not re.search(r"\|\s*safe|autoescape|\bMarkup\b", path.read_text(encoding="utf-8")), path


def test_markup_made_in_python_is_written_out_there() -> None:
    made = {}
    for path in sources("py"):
        calls = [
            node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if _makes_markup(node)
        ]
        if calls:
            made[str(path.relative_to(CLONE))] = len(calls)
    assert made == OURS


def _makes_markup(node: ast.AST) -> bool:
    """Whether something but a literal becomes markup; `format` and `join` of a literal escape."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "Markup":
        return False
    return bool(node.keywords) or not all(
        isinstance(given, ast.Constant) and isinstance(given.value, str) for given in node.args
    )


@pytest.mark.parametrize("engine", [None, "flower"])
def test_markup_in_every_text_of_a_run_stays_text(tmp_path: Path, engine: str | None) -> None:
    example = example_result()
    run = write_example(
        tmp_path,
        **dict.fromkeys(("dataset", "created", "method", "preset", "context", "channel", "basis"), EVIL),
        **dict.fromkeys(("sottovoce", "unit", "metric"), EVIL),
        engine=engine,
        accuracy=example["accuracy"] | {"future_per_client": {EVIL: 50.0}},
        epsilon=example["epsilon"] | {"accounting": EVIL, "per_client": {EVIL: 1.0}},
        confusion={EVIL: example["confusion"]["future-0"]},
        class_names=[EVIL] * 10,
        metrics={"seen": {EVIL: 1.0}},
        clients=[{"name": EVIL, "size": 3, "sigma": 0.2}],
    )
    (run / "plan.toml").write_text(f"{json.dumps(EVIL)} = {json.dumps(EVIL)}\n")
    shown = Outline(write_report(run))
    assert {"img", "b"}.isdisjoint(name for name, _ in shown.elements)
    assert shown.text.count(EVIL) >= (20 if engine is None else 10)


def test_markup_in_every_text_of_an_audit_stays_text(tmp_path: Path) -> None:
    rows = [{"kind": EVIL, "place": EVIL, "charged": 0.1, "ratio": 0.9}]
    ledger = {"run": EVIL, "clients": [{"client": EVIL, "stated": 8.0, "recomputed": 8.0}]}
    found = {**FOUND, "dataset": EVIL, "preset": EVIL, "faults": [EVIL], "releases": rows, "ledger": ledger}
    (tmp_path / "audit.html").write_text(audit_page(found), encoding="utf-8")
    shown = Outline(tmp_path / "audit.html")
    assert {"img", "b"}.isdisjoint(name for name, _ in shown.elements)
    assert shown.text.count(EVIL) == 7


def test_what_a_template_asks_for_and_does_not_get_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="title"):
        page("report/audit.html", facts=[], audit="")


@pytest.mark.parametrize("live", [False, True])
def test_the_policy_admits_the_script_of_the_page_and_no_other(live: bool) -> None:
    text = page("report/audit.html", live=live, title="", facts=[], audit="")
    (script,) = re.findall("<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall('Content-Security-Policy" content="(.*?)"', text)
    allowed = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policy == allowed + ("; connect-src 'self'" if live else "")
    assert ("EventSource" in script) == live
