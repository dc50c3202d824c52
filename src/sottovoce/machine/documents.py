"""Documents from elsewhere: read as what they must be, or refused in one line, before anything is made of it.

What a document must be is a plain dataclass, with a `Bound` where its types say too little. msgspec checks
it, and is imported here alone and when something is read: what only simulates does without.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache, reduce
from importlib import import_module
from operator import or_
from types import UnionType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from sottovoce.errors import SottovoceError, shown

MOST_TEXT = 2**20
"""Bytes of an agreement or a specification."""
MOST_LETTERS = 200
"""Letters of a text in a plan."""
MOST_PARTS = 16
"""Of a dotted key: what it takes to read one grows with their square, and 40 kB of dots took seconds."""
LARGEST_FLOAT = 1.7976931348623157e308
"""A bound that infinity does not keep."""
T = TypeVar("T")


class ForeignError(SottovoceError):
    """Something of another party's that is not what it must be; nothing was built from it."""


@dataclass(frozen=True)
class Bound:
    """What a value must be beside its type: `Annotated[int, Bound(ge=1)]`; a pattern is a whole text's."""

    ge: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None


def read(kind: type[T], document: object, refuse: Callable[[str], Exception], *, more: bool = False) -> T:
    """A document, as JSON in bytes or as values, as the dataclass `kind`: typed exactly and within bounds.

    No key is left unread, unless there may be `more`. `refuse` makes the error of what is wrong and where.

    >>> @dataclass
    ... class Asked:
    ...     round: Annotated[int, Bound(ge=1)]
    >>> read(Asked, b'{"round": 0}', ForeignError)
    Traceback (most recent call last):
    sottovoce.machine.documents.ForeignError: round is not what it must be (expected int >= 1)
    """
    try:
        msgspec = import_module("msgspec")
    except ImportError:
        raise SottovoceError("documents from elsewhere are read with msgspec: pip install msgspec") from None
    if isinstance(document, bytes) and len(document) > MOST_TEXT:
        raise refuse(f"it is longer than {MOST_TEXT} bytes")
    try:
        model = _model(cast(Hashable, kind), more)
        if isinstance(document, bytes):
            found = msgspec.json.decode(document, type=model)
        else:
            found = msgspec.convert(document, model, builtin_types=(bytes,))  # else a text would do for them
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise refuse(_said(str(error))) from None
    return kind(**{each.name: getattr(found, each.name) for each in dataclasses.fields(kind)})  # type: ignore[arg-type]


@cache
def _model(kind: Hashable, more: bool) -> Any:
    """What msgspec makes of a dataclass."""
    hints, fields = get_type_hints(kind, include_extras=True), list[Any]()
    for each in dataclasses.fields(kind):  # type: ignore[arg-type]
        default = [] if each.default is dataclasses.MISSING else [each.default]
        fields.append((each.name, _bounded(hints[each.name]), *default))
    return import_module("msgspec").defstruct(
        "Document", fields, forbid_unknown_fields=not more, kw_only=True
    )


def _bounded(hint: Any) -> Any:
    """A type with our bounds as msgspec's."""
    if get_origin(hint) is Annotated:
        inner, bound = get_args(hint)
        limits = {name: value for name, value in vars(bound).items() if value is not None}
        if bound.pattern is not None:
            limits["pattern"] = rf"\A(?:{bound.pattern})\Z"
        return Annotated[_bounded(inner), import_module("msgspec").Meta(**limits)]
    if get_origin(hint) is UnionType:
        return reduce(or_, map(_bounded, get_args(hint)))
    return hint if get_origin(hint) is None else get_origin(hint)[tuple(map(_bounded, get_args(hint)))]


def _said(text: str) -> str:
    """What msgspec says is wrong, as a part of our sentence."""
    what, _, path = re.sub(" matching regex .*?'(?= - at |$)", " of another form", text).partition(" - at ")
    what, path = shown(what.replace("`", "")), shown(path.strip("`").removeprefix("$").removeprefix("."))
    what = what[:1].lower() + what[1:]
    return f"{path} is not what it must be ({what})" if path else what


def toml(text: str) -> dict[str, Any]:
    """The values of a TOML text, in a time that grows with its length alone; a ValueError if it is none.

    >>> toml("a.b = 1")
    {'a': {'b': 1}}
    >>> toml("a." * 20_000 + "a = 1")
    Traceback (most recent call last):
    ValueError: a key has more than 16 parts
    """
    for found in _KEYS.finditer(text):
        if found["key"] and len(_PARTS.findall(found["key"])) > MOST_PARTS:
            raise ValueError(f"a key has more than {MOST_PARTS} parts")
    return tomllib.loads(text)


_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?)"""
_PARTS = re.compile(_PART)
_KEYS = re.compile(
    r"""\#[^\n]*|"{3}(?:[^\\]|\\.)*?(?:"{3,5}|\Z)|'{3}.*?(?:'{3,5}|\Z)"""
    rf"|(?P<key>{_PART}(?:[ \t]*\.[ \t]*{_PART})*)",
    re.DOTALL,
)
"""Comments and texts of several lines, in which no key is, and whatever may be one. What is never closed is
a text to its end, or it would be looked through again and again; it is no TOML."""


def foreign_name(text: object) -> str:
    """A run's name, fit to be part of a file's name.

    >>> foreign_name("../../etc")
    Traceback (most recent call last):
    sottovoce.machine.documents.ForeignError: '../../etc' cannot name a run: ask for the file again
    """
    if not isinstance(text, str) or re.fullmatch(r"[0-9A-Za-z_-]{1,64}", text) is None:
        raise ForeignError(f"'{shown(text)}' cannot name a run: ask for the file again")
    return text
