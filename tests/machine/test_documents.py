"""A document from elsewhere is what its dataclass says, or refused in one line that says where."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.data import Description
from sottovoce.errors import SottovoceError
from sottovoce.federation import Agreement
from sottovoce.federation.keys import Parties
from sottovoce.federation.roster import Answer
from sottovoce.federation.settings import Settings
from sottovoce.machine.documents import LARGEST_FLOAT, MOST_TEXT, Bound, ForeignError, read, toml
from sottovoce.personal import Origin
from sottovoce.plan import Plan

GOLDEN = Path(__file__).with_name("golden") / "documents.jsonl"


@dataclass(frozen=True)
class Said:
    """An example."""

    rounds: Annotated[int, Bound(ge=1)]
    name: Annotated[str, Bound(pattern="[a-z]+", max_length=5)] = "x"
    share: Annotated[float, Bound(ge=0, le=LARGEST_FLOAT)] | None = None
    sizes: tuple[Annotated[int, Bound(ge=0)], ...] = ()
    key: bytes = b""


def refused(document: object) -> str:
    with pytest.raises(ForeignError) as error:
        read(Said, document, ForeignError)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600
    return str(error.value)


def test_what_is_as_it_must_be_is_read_alike_from_json_and_from_values() -> None:
    values: dict[str, Any] = {"rounds": 3, "name": "abc", "share": 0.5, "sizes": [1, 2]}
    expected = Said(3, "abc", 0.5, (1, 2))
    assert (
        read(Said, values, ForeignError) == read(Said, json.dumps(values).encode(), ForeignError) == expected
    )
    assert read(Said, {"rounds": 1, "other": 2}, ForeignError, more=True) == Said(1)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "object missing required field rounds"),
        ({"rounds": 1, "x" * 10_000: 2}, "object contains unknown field xxx"),
        ({"rounds": 1, "\n\x1b": 2}, "object contains unknown field"),
        ({"rounds": 0}, "rounds is not what it must be (expected int >= 1)"),
        ({"rounds": True}, "rounds is not what it must be (expected int, got bool)"),
        ({"rounds": "1"}, "rounds is not what it must be (expected int, got str)"),
        ({"rounds": 1.0}, "rounds is not what it must be"),
        ({"rounds": 1, "name": "ab\n"}, "name is not what it must be (expected str of another form)"),
        ({"rounds": 1, "name": "abcdef"}, "name is not what it must be (expected str of length <= 5)"),
        ({"rounds": 1, "share": float("nan")}, "share is not what it must be"),
        ({"rounds": 1, "share": float("inf")}, "share is not what it must be"),
        ({"rounds": 1, "share": 10**400}, "share is not what it must be"),
        ({"rounds": 1, "sizes": [1, -1]}, "sizes[1] is not what it must be (expected int >= 0)"),
        ({"rounds": 1, "key": "QUFB"}, "key is not what it must be (expected bytes, got str)"),
        ([], "expected object, got array"),
        (None, "expected object, got null"),
        (b"{", "input data was truncated"),
        (b"\xff", "malformed"),
        (b'{"rounds": 1} 2', "trailing characters"),
        (b"[" * 100_000, "expected object, got array"),
        (b'{"rounds": 1, "more": ' + b"[" * 100_000, "unknown field more"),
        (b" " * (MOST_TEXT + 1), f"longer than {MOST_TEXT} bytes"),
    ],
)
def test_what_is_not_is_refused_in_one_line_that_says_where(document: object, said: str) -> None:
    assert said in refused(document)


def test_what_is_nested_without_end_is_refused_where_other_keys_are_passed_over() -> None:
    with pytest.raises(ForeignError):
        read(Said, b'{"rounds": 1, "more": ' + b"[" * 500_000, ForeignError, more=True)


ORIGIN = {
    "run": "0123abcd", "client": "north", "epsilon": 4.0, "delta": 1e-5, "accounting": "exact",
    "noise": "client", "seeded": False, "created": "2026-01-01", "sottovoce": "0.2.0",
}  # fmt: skip
ANSWER = {"participant": 0, "key": bytes(32), "proof": b"p", "records": 90, "name": "c"}


def changed(document: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A document with another value, or without one; bytes are hexadecimal."""
    values = {
        name: bytes.fromhex(value["hex"]) if isinstance(value, dict) and "hex" in value else value
        for name, value in change.items()
    }
    gone = values.pop("without", None)
    return {name: value for name, value in {**document, **values}.items() if name != gone}


def accepted(what: str, change: Any) -> bool:
    try:
        if what == "origin":
            Origin.parse(change if isinstance(change, str) else json.dumps(changed(ORIGIN, change)))
            return True
        return read(Answer, changed(ANSWER, change), ForeignError, more=True).participant < 3
    except (ValueError, SottovoceError):
        return False


def test_every_parser_accepts_and_refuses_what_the_one_before_it_did() -> None:
    """Each field with each odd value, and texts with odd bytes, with the word of the parser by hand."""
    cases = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    assert {(what, said) for what, said, _ in cases} == {
        (what, said) for what in ("origin", "answer") for said in (True, False)
    }
    for what, said, change in cases:
        assert accepted(what, change) == said, (what, change)


WITHOUT = """
import sys
sys.modules["msgspec"] = None
from sottovoce.errors import SottovoceError
from sottovoce.report.look import look
from sottovoce.run import train
from sottovoce.run.models import write_models
from tests.small import small_plan
out = sys.argv[1]
plan = small_plan(rounds=1)
train(plan, out)
print(look(out).state)
try:
    write_models(out, out + "-models", module=plan.model)
except SottovoceError as error:
    print(error)
"""


def test_without_msgspec_runs_are_simulated_and_reading_from_elsewhere_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    state, said = done.stdout.splitlines()
    assert state == "finished"
    assert "documents from elsewhere are read with msgspec: pip install msgspec" in said


DEEP = "a." * 20_000 + "a = 1"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        f"[{'a . ' * 20_000}a]",
        f"x = {{{DEEP}}}",
        "'a'." * 20_000 + "a = 1",
        '"\\u0061" . ' * 20_000 + "a = 1",
        f"y = 1 # it's \n{DEEP}",
        f'y = """a"""" # "\'\'\'\n{DEEP}\n# \'\'\'',
        f"y = '''a''''' # \"\"\"\n{DEEP}\n# \"\"\"",
        f'y = "a\\\\" # "\n{DEEP}',
        f"y = '\\' # '\n{DEEP}",
    ],
    ids=range(10),
)
def test_a_key_of_thousands_of_parts_is_refused_at_once(text: str) -> None:
    """40 kB of dots took seven seconds, four times as long for twice as many."""
    began = time.process_time()
    with pytest.raises(ValueError, match="a key has more than 16 parts"):
        toml(text)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "text",
    [
        f'x = "{"a." * 40}"',
        f"x = '{'a.' * 40}'",
        f'x = """\n{"a." * 40}"""""',
        f"# {'a.' * 40}",
        ".".join("abcdefghijklmnop") + " = 1",
        f"x = [{', '.join(['1.5'] * 40)}]",
        f'"{"a." * 40}" = 1',
        "when = 1979-05-27T00:32:00.999999-07:00",
    ],
    ids=range(8),
)
def test_dots_in_texts_comments_and_numbers_are_no_parts_of_keys(text: str) -> None:
    assert toml(text) == tomllib.loads(text)


@pytest.mark.timeout(60)
def test_agreements_descriptions_keys_and_plans_are_read_so(tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    file.write_text(DEEP)
    for read_it in (
        lambda: Agreement.parse(DEEP),
        lambda: Description.load(file),
        lambda: Parties.load(file),
        lambda: Plan.load(file),
        lambda: Settings.load(file),
    ):
        with pytest.raises(SottovoceError, match="a key has more than 16 parts"):
            read_it()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "piece", ['"', "'", '"""', "'''", ".", "a.", "#", "\\", '"\\', " ", "a ", "[", '"""a\\']
)
def test_no_text_of_a_megabyte_takes_long_to_look_through(piece: str) -> None:
    began = time.process_time()
    with contextlib.suppress(ValueError, RecursionError):
        toml(piece * (2**20 // len(piece)))
    assert time.process_time() - began < 20


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab.=[]{}\"'#\\\n \t1,-", max_size=60))
def test_what_is_toml_stays_what_it_is(text: str) -> None:
    try:
        expected = tomllib.loads(text)
    except (ValueError, RecursionError):
        return
    assert text.count(".") > 15 or toml(text) == expected
