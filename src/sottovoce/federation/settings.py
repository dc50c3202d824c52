"""node.toml: everything that the owner of a node decides, in one file, whatever carries the messages.

The command reads it, and so does each engine's app at the site; no server can set or change a key of it.
Paths in it count from its own folder. `Settings` is the list of its keys, each with its sentence: from
there come a template of the file, what is refused in it, and what a node is made of.

`answer` is a site's answer to a message of the server, whatever engine brought it. A refusal is logged at the
site, and told to the server unless it may be about records.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from sottovoce.errors import SottovoceError, nearest, shown
from sottovoce.federation import Agreement
from sottovoce.federation.keys import SiteKey, accepted
from sottovoce.federation.node import Node
from sottovoce.federation.sealing import Declined, EnrolmentError
from sottovoce.federation.sums import HelperNode
from sottovoce.machine.documents import MOST_TEXT, toml
from sottovoce.privacy.ledger import Overspent
from sottovoce.privacy.terms import Terms

log = logging.getLogger("sottovoce.federation")
Member = Node | HelperNode


class SettingsError(SottovoceError):
    """A node.toml that cannot be followed; the line says which key, and where."""


def key(about: str, example: str, default: Any = None, *, low: float = 0.0, high: float = 1e15) -> Any:
    """A key of node.toml: its sentence, a value as TOML writes it, and what holds where it is absent."""
    told = {"about": about, "example": example, "low": low, "high": high}
    return field(default=default, metadata=told)


@dataclass(frozen=True)
class Flower:
    """The table [flower]: how this node reaches a server of Flower's; NVFlare has its kit."""

    server: str | None = key("Where the federation's server is.", '"server.example.org:8700"')
    authority: Path | None = key("Certificate of the authority that vouches for the server.", '"ca.crt"')
    node_key: Path | None = key("The node key, whose public half the server has registered.", '"node-key"')
    trusted: Path | None = key("Whose signatures an app needs: sign_app.py trust.", '"trusted.yaml"')
    insecure: bool = key("Speak unencrypted, without an authority; for trying out.", "true", False)
    port: int = key("A free port of this machine, for the SuperNode.", "9094", 9094, low=1, high=65535)


@dataclass(frozen=True)
class Settings:
    """The keys of node.toml; `agreement` and `directory` are needed, and `records` but by a helper."""

    agreement: Path | None = key("The agreement.toml that its owner has read.", '"agreement.toml"')
    directory: Path | None = key("This node's own folder: enrolments, log. A new one will do.", '"state"')
    records: Path | None = key("The records. A helper of shared noise has none.", '"records.csv"')
    ledger: Path | None = key("The ledger of the records, if not beside them.", '"north.ledger.sqlite"')
    witness: Path | None = key(
        "A folder outside of this machine that knows how far it was, should it be put back as a whole.",
        '"/mnt/elsewhere/witness"',
    )
    client: str | None = key("The client's name in its ledger; that of its file if absent.", '"north"')
    epsilon: float | None = key(
        "ε that all releases of these records together may reach; 8 at first. The strictest ever set holds.",
        "4.0",
    )
    delta: float | None = key("δ at which that counts, whatever a run's is; 1e-5 at first.", "1e-5", high=1.0)
    index: int | None = key("The participant's index to ask for; any free one if absent.", "0")
    model: str | None = key(
        "The run's own model, if it has one: what the server names is not imported.", '"m:f"'
    )
    features: str | None = key("The run's own feature map, likewise.", '"package.module:function"')
    finish: bool = key("Fit the model to the own records at the end, for this house alone.", "true", False)
    threads: int | None = key("CPU threads.", "1", low=1, high=1024)
    noise_at_server: bool = key("Accept that the server adds the noise, and sees more.", "true", False)
    looked_up: bool = key("Accept constants that were read from somebody's records.", "true", False)
    noise_shared: bool = key("Accept noise that sites share under masks of helpers.", "true", False)
    honest: int = key("Of shared noise: how many honest sites a sum must count on.", "7", 0)
    helpers: tuple[str, ...] = key(
        "Of shared noise: fingerprints of the helpers, compared by voice.",
        '["02510 42766 79984 49777 58633 95960"]',
        (),
    )
    site_key: Path | None = key("The key of this site or helper in the agreement.", '"north.key"')
    helper: bool = key("This node is a helper of shared noise, and holds no records.", "true", False)
    diagnostics: bool = key("Tell the server accuracies, which are charged to nobody.", "true", False)
    simulated: bool = key("The records are nobody's: a seeded run may be tried out.", "true", False)
    flower: Flower = field(default=Flower(), metadata={"table": Flower})

    NEEDED: ClassVar[tuple[str, ...]] = ("agreement", "directory", "records")
    OLD: ClassVar[Mapping[str, str]] = {"partition_id": "index", "key": "site_key"}
    """What a SuperNode's own node config calls them, beside - for _."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a node.toml; every error names the key and its line."""
        file = Path(path).absolute()
        try:
            with file.open("rb") as opened:
                text = opened.read(MOST_TEXT).decode("utf-8-sig").replace("\r\n", "\n")
            values = toml(text)
        except OSError as error:
            raise SettingsError(
                f"no settings at {path} ({error.strerror}): let 'sottovoce node' write a template", "init"
            ) from None
        except (ValueError, RecursionError) as error:
            raise SettingsError(f"{path} is not TOML ({shown(error)}): correct it") from None
        read: Self = _read(cls, values, _Place(str(path), text, file.parent))
        return read

    @classmethod
    def given(cls, values: Mapping[str, Any], where: str) -> Self:
        """From a mapping, such as the node config of a SuperNode; what is not ours is left."""
        plain = {name.replace("-", "_"): value for name, value in values.items()}
        named = {cls.OLD.get(name, name): value for name, value in plain.items()}
        if isinstance(said := named.get("helpers"), str):
            named["helpers"] = [mark for mark in said.split(",") if mark.strip()]
        known = {each.name: str(each.type).split()[0] for each in dataclasses.fields(cls)}
        ours = {name: _number(known[name], value) for name, value in named.items() if name in known}
        read: Self = _read(cls, ours, _Place(where, "", Path.cwd()))
        return read

    def check(self) -> Self:
        """Refuses settings that lack a key, or name a file that is not there."""
        for name in self.NEEDED:
            if getattr(self, name) is None and not (name == "records" and self.helper):
                raise SettingsError(f"{name} is missing: a node.toml says where it is")
        if self.helper and self.site_key is None:
            raise SettingsError("site_key is missing: a helper says which key of the agreement is its own")
        for holder in (self, self.flower):
            for each in dataclasses.fields(holder):
                path = getattr(holder, each.name)
                if isinstance(path, Path) and each.name not in ("directory", "ledger") and not path.exists():
                    raise SettingsError(f"{path} does not exist: check {each.name}")
        if self.witness is not None and self.directory is not None:
            folders = (self.directory.absolute(), *self.directory.absolute().parents)
            home = next(path for path in folders if path.exists())
            if self.witness.stat().st_dev == home.stat().st_dev:
                raise SettingsError(
                    f"witness {self.witness} lies on the disk of directory, and is put back with it: name a "
                    "folder of another machine"
                )
        return self

    def terms(self) -> Terms:
        """What the owner is willing to release."""
        return Terms(
            ledger=self.ledger,
            client=self.client,
            epsilon=self.epsilon,
            delta=self.delta,
            noise_at_server=self.noise_at_server,
            looked_up=self.looked_up,
            noise_shared=self.noise_shared,
            honest=self.honest,
            helpers=accepted(",".join(self.helpers)),
        )

    def member(self) -> Member:
        """The client, or the helper, that these settings describe."""
        self.check()
        assert self.directory is not None
        agreement = Agreement.load(
            str(self.agreement), simulation=self.simulated, model=self.model, features=self.features
        )
        own = None if self.site_key is None else SiteKey.read(self.site_key)
        if self.helper:
            assert own is not None
            return HelperNode(self.directory, agreement, own)
        assert self.records is not None
        return Node(
            self.directory,
            self.records,
            agreement,
            wish=self.index,
            diagnostics=self.diagnostics,
            terms=self.terms(),
            witness=self.witness,
            simulated=self.simulated,
            finish=self.finish,
            key=own,
        )

    def rejoined(self) -> list[str]:
        """Lets the client take part again in the runs that it has left; what that comes to, in lines.

        It is a word that is said once, and no key: who agrees to one restore has not agreed to the next.
        """
        member = self.member()
        if not isinstance(member, Node):
            raise SettingsError(
                "a helper that was put back answers for its run no more: leave it out", "rejoin"
            )
        return member.rejoin() or ["this client has left no run of this agreement: nothing was charged"]


@dataclass(frozen=True)
class _Place:
    """Where keys were read, to say so; and the folder that paths count from."""

    where: str
    text: str
    folder: Path
    table: str = ""

    def error(self, name: str, text: str) -> SettingsError:
        called = f"[{self.table}] {name}" if self.table else name
        return SettingsError(f"{self.where}{self._line(name)}: {called} {text}")

    def _line(self, name: str) -> str:
        """The line of a key in its table, where the text has one for it."""
        table = ""
        for number, line in enumerate(self.text.splitlines(), start=1):
            if header := re.match(r"\s*\[+\s*([^]]+?)\s*\]", line):
                table = header[1]
            said = re.match(r"""\s*["']?([^"'=]+?)["']?\s*=""", line)
            if (said and said[1] == name and table == self.table) or (table == name and header):
                return f", line {number}"
        return ""


def _read(kind: Any, values: Mapping[str, Any], place: _Place) -> Any:
    """A dataclass of keys with the values that were said, each of its type and within its bounds."""
    fields = {each.name: each for each in dataclasses.fields(kind)}
    said: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            raise place.error(shown(name), f"is unknown: {nearest(name, fields)}")
        told = fields[name]
        if "table" in told.metadata:
            if not isinstance(value, Mapping):
                raise place.error(name, f"is a table: write [{name}] before its keys")
            said[name] = _read(told.metadata["table"], value, replace(place, table=name))
            continue
        what, typed = _KINDS[str(told.type).removesuffix(" | None")]
        if (found := typed(value, place.folder)) is None:
            raise place.error(name, f"is {shown(json.dumps(value, default=str))}: {what}")
        low, high = told.metadata["low"], told.metadata["high"]
        if isinstance(found, int | float) and not low <= found <= high:
            raise place.error(name, f"is {found:g}: give a number from {low:g} to {high:g}")
        said[name] = found
    return kind(**said)


def _number(kind: str, value: Any) -> Any:
    """A number that came as a text, as from a command line."""
    with suppress(ValueError):
        return _NUMBERS[kind](value) if isinstance(value, str) and kind in _NUMBERS else value
    return value


def _path(value: Any, folder: Path) -> Path | None:
    return folder / Path(value).expanduser() if isinstance(value, str) and value else None


def _texts(value: Any, folder: Path) -> tuple[str, ...] | None:
    texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return tuple(value) if texts else None


_NUMBERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float}
_KINDS: dict[str, tuple[str, Callable[[Any, Path], Any]]] = {
    "Path": ('give a path in quotes, as "state"', _path),
    "str": ("give a text in quotes", lambda value, _: value if isinstance(value, str) and value else None),
    "bool": ("give true or false", lambda value, _: value if isinstance(value, bool) else None),
    "int": ("give a whole number", lambda value, _: value if type(value) is int else None),
    "float": ("give a number", lambda value, _: float(value) if type(value) in (int, float) else None),
    "tuple[str, ...]": ('give a list of texts, as ["a", "b"]', _texts),
}


def template() -> str:
    """A node.toml in which every key is explained, and those that nobody can do without are filled in.

    >>> template().splitlines()[2:4]
    ['# The agreement.toml that its owner has read.', 'agreement = "agreement.toml"']
    """
    lines = ["# What the owner of this node decides. Paths count from the folder of this file.", ""]
    for kind in (Settings, Flower):
        lines += ["[flower]"] if kind is Flower else []
        for each in dataclasses.fields(kind):
            if "table" not in each.metadata:
                needed = each.name in (*Settings.NEEDED, "server", "authority", "node_key", "trusted")
                said = f"{each.name} = {each.metadata['example']}"
                lines += [f"# {each.metadata['about']}", said if needed else f"# {said}", ""]
    return "\n".join(lines)


TOLD = (EnrolmentError, Declined)
"""Errors that say nothing about records, nor about what is on this machine."""
CANNOT = "this client cannot answer: its own log says why"


def _noted(member: Member, asked: Mapping[str, Any]) -> dict[str, Any]:
    member.refused(str(asked["run"]), str(asked["reason"]))
    return {"noted": True}


HANDLERS: dict[str, Callable[[Member, Mapping[str, Any]], dict[str, Any]]] = {
    "enrolment": lambda member, asked: member.enrol(asked),
    "refusal": _noted,
    "release": lambda member, asked: member.release(asked),
    "masks": lambda member, asked: member.masks(asked),
    "model": lambda member, asked: member.keep_model(asked),
}
"""What a server may ask of a member."""


def answer(member_of: Callable[[], Member], what: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an answer; `member_of` makes who answers, and may fail as answering may."""
    member, refused = None, str(asked["reason"]) if what == "refusal" else ""
    try:
        member = member_of()
        fields = HANDLERS[what](member, asked)
        refused = refused or str(fields.get("left", ""))
    except TOLD as error:
        log.error("answered with a refusal: %s", error)
        fields, refused = {"error": str(error)}, str(error)
    except Overspent as error:  # names a ledger, what it has spent and its budget: the owner's own
        log.error("refused: %s", error)
        fields, refused = {"error": "refused"}, str(error)
    except Exception as error:  # an engine would tell the server all of it
        log.error("cannot answer: %s", error, exc_info=None if isinstance(error, SottovoceError) else error)
        fields, refused = {"error": CANNOT}, CANNOT
    if member is not None:
        member.contacted(what, asked, refused)
    return fields
