"""The agreement: the plan and the public facts about records that server and clients hold alike.

It is one TOML file, the resolved plan with a table `[records]`, given to every operator before anything is
released. Each end keeps its own copy and refuses to work with an end whose copy differs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.blueprint import Blueprint, draw
from sottovoce.data import Facts
from sottovoce.data.facts import FactsError
from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan


class AgreementError(SottovoceError):
    """An agreement that cannot be read, or two that differ."""


@dataclass(frozen=True)
class Agreement:
    """A resolved plan, and the facts about the records it is about."""

    plan: Plan
    facts: Facts

    def __post_init__(self) -> None:
        if not self.plan.gradient_records:
            raise AgreementError(
                "gradient_records=0 means all records of a simulation: in a federation set the number that "
                "every client can give"
            )
        if not self.plan.private:
            raise AgreementError("epsilon=inf sends statistics without noise: it is for the simulator only")

    @classmethod
    def load(cls, path: str | Path) -> Agreement:
        """From the file that `to_toml` wrote."""
        try:
            return cls.parse(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise AgreementError(
                f"no agreement at {path} ({error.strerror}): ask the server for it"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, FactsError) as error:
            raise AgreementError(
                f"{path} is not an agreement ({error}): 'sottovoce federate' writes one"
            ) from None

    @classmethod
    def parse(cls, text: str) -> Agreement:
        """From the text of that file."""
        values = tomllib.loads(text)
        facts = Facts.parse(values.pop("records"))
        return cls(Plan.load(overrides=values), facts)

    def to_toml(self) -> str:
        """The file; `load` of it gives the same agreement back."""
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.facts.fields().items()]
        return self.plan.to_toml() + "\n[records]\n" + "\n".join(lines) + "\n"

    def digest(self) -> str:
        """A fingerprint: equal agreements and only equal agreements share it, under later versions too."""
        values = {**self.plan.digested(), **self._facts()}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]

    def difference(self, other: Agreement) -> str | None:
        """The first key in which another agreement differs, with both values; None if none does."""
        mine, theirs = self._values(), other._values()
        for name, value in mine.items():
            if theirs[name] != value:
                return f"{name} is {value} here and {theirs[name]} there"
        return None

    def blueprint(self) -> Blueprint:
        """Everything that follows from the agreement."""
        return draw(self.plan, self.facts)

    def _values(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self.plan), **self._facts()}

    def _facts(self) -> dict[str, Any]:
        return {name: getattr(self.facts, name) for name in ("shape", "classes", "mean", "std")}
