"""Public encoders as feature maps: which one a plan means, by name, version and digest, and what it gives.

`features=NAME` names an encoder of this machine. A completed plan says which one that is (`encoders`), so
whatever carries it (an agreement, a specification, a run, a model) means that very one: whoever has another,
or none, is told so before anything is computed. Over a table it stands for the columns of texts or pictures
that name none of their own. A map of one's own has a version there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from sottovoce.data import Dataset, Facts, load, schema, tokens
from sottovoce.data.tables.held import Held
from sottovoce.errors import SottovoceError
from sottovoce.models.encoders import (
    DIGEST,
    IMAGE,
    TEXT,
    Description,
    Encoder,
    EncoderError,
    Progress,
    Reference,
    store,
)
from sottovoce.models.features.columns import Columns, width
from sottovoce.plan import Plan
from sottovoce.plan.catalog import names_encoder

OWN = "own"
"""What stands for the name of a map of one's own, which `features` gives."""
_WHAT = {IMAGE: "pictures", TEXT: "texts"}


@dataclass(frozen=True)
class Encoded:
    """An encoder as a map of arrays: pictures (n, C, H, W) or tokens (n, L) to (n, size) of unit norm."""

    name: str
    shape: tuple[int, ...]
    encoder: Encoder
    mirror: bool = False

    @property
    def size(self) -> int:
        return self.encoder.size

    def __call__(self, x: Tensor, progress: Progress = lambda done, of: None) -> Tensor:
        """Records as they are stored; one that cannot be used is a row of NaN."""
        if tuple(x.shape[1:]) != self.shape:
            raise SottovoceError(
                f"features={self.name} is open for records of shape {self.shape}, these have "
                f"{tuple(x.shape[1:])}: open it for their shape"
            )
        rows = _unit(self.encoder(list(x.cpu()), progress))
        return _unit(rows + _unit(self.encoder(list(x.cpu().flip(-1))))) if self.mirror else rows


def references(plan: Plan) -> dict[str, Reference]:
    """The encoders that a complete plan means, by name."""
    found = [Reference.parse(text) for text in plan.encoders.split(", ")] if plan.encoders else []
    return {one.name: one for one in found}


def loaded(plan: Plan) -> Dataset:
    """The plan's records, read for its encoders where columns name none of their own."""
    return load(plan.dataset, by_kind(plan))


def by_kind(plan: Plan) -> dict[str, str]:
    """The encoders that `features` names, by their kind."""
    named = plan.features.split("+") if names_encoder(plan.features) else []
    return {_here(plan, name).kind: name for name in named}


def with_encoders(plan: Plan, facts: Facts, own: str | None = None) -> Plan:
    """The plan with the encoders that it means here, where it does not say so yet.

    Of a table they are those that its columns name. `own` is the version of a map of the owner's, where
    `features` names one that may be imported.
    """
    held = _held(facts)
    if facts.source is not None:
        return plan
    if not held and not names_encoder(plan.features):
        text = (own or "") if ":" in plan.features else ""
        return plan if plan.encoders == text else plan.replace(encoders=text)
    names = list(dict.fromkeys(column.encoder for column in held)) or [plan.features]
    for name in plan.features.split("+") if names_encoder(plan.features) else []:
        if name not in names:
            raise EncoderError(f"features={name} has no column to describe: leave it out")
    described = {name: _here(plan, name) for name in names}
    for column in held:
        _check_kind(column.encoder, described[column.encoder].kind, column.needs)
    if not held:
        _check_records(plan.features, described[plan.features].kind, facts)
    features = "+".join(names)
    text = ", ".join(str(replace(one.reference, name=name)) for name, one in described.items())
    if (plan.features, plan.encoders) == (features, text):
        return plan
    return plan.replace(features=features, encoders=text, feature_size=plan.given.get("feature_size", 0))


def encoded_size(plan: Plan, facts: Facts) -> int:
    """How many numbers a record has after the plan's encoders, of which none need be on this machine."""
    sizes, held = {name: one.size for name, one in references(plan).items()}, _held(facts)
    wanted = {column.encoder for column in held} or {plan.features}
    if set(sizes) != wanted or set(plan.features.split("+")) != wanted:
        raise EncoderError(f"that plan does not say which {plan.features} it means: ask for the file again")
    agreed = schema.of(facts)
    return width(agreed, sizes) if agreed is not None and held else sizes[plan.features]


def open_encoded(plan: Plan, facts: Facts, device: str, keeping: bool = True) -> Encoded | Columns:
    """The very encoders that a plan means, for records of which this is known."""
    encoded_size(plan, facts)
    described = {name: store.meant(one) for name, one in references(plan).items()}
    for name, one in references(plan).items():
        if described[name].size != one.size:
            raise EncoderError(f"{name} gives {described[name].size} numbers, not {one.size}: ask again")
    if plan.feature_size:
        raise EncoderError(f"features={plan.features} is taken whole: leave out feature_size")
    agreed, opened = schema.of(facts), {name: store.opened(one, device) for name, one in described.items()}
    if agreed is not None and agreed.held:
        for column in agreed.held.values():
            _check_kind(column.encoder, described[column.encoder].kind, column.needs)
        if plan.mirror:
            raise EncoderError("mirror=true is for arrays of pictures: set mirror=false")
        return Columns(agreed, opened, keeping)
    kind = described[plan.features].kind
    _check_records(plan.features, kind, facts)
    if plan.mirror and kind != IMAGE:
        raise EncoderError("mirror=true is for pictures, not for texts: set mirror=false")
    return Encoded(plan.features, facts.shape, opened[plan.features], plan.mirror)


def own_version(fingerprint: str) -> str:
    """How a plan states the version of a map of one's own."""
    return str(Reference(OWN, "1", 1, fingerprint[:DIGEST]))


def check_own(plan: Plan, fingerprint: str) -> None:
    """Refuses a map of one's own in another version than the plan was made with."""
    said = references(plan).get(OWN)
    if said is not None and said.digest != fingerprint[:DIGEST]:
        raise EncoderError(
            f"features={plan.features} is another version here ({fingerprint[:8]}) than is meant "
            f"({said.digest[:8]}): bring that one here"
        )


def _here(plan: Plan, name: str) -> Description:
    """The encoder of this machine that a name means: the very one, where the plan says which it is."""
    known = references(plan).get(name)
    return store.named(name) if known is None else store.meant(known)


def _held(facts: Facts) -> list[Held]:
    """The columns of a table that encoders describe; each names one."""
    agreed = None if facts.source is not None else schema.of(facts)
    held = {} if agreed is None else agreed.held
    for name, column in held.items():
        if not column.encoder:
            raise EncoderError(
                f"column '{name}' is of {_WHAT[column.needs]}, which an encoder describes: say "
                "features=NAME, or encoder = \"NAME\" in records.toml ('sottovoce encoder list' has names)"
            )
    return list(held.values())


def _check_kind(name: str, kind: str, needed: str) -> None:
    if kind != needed:
        raise EncoderError(f"{name} is for {_WHAT[kind]}, not for a column of {_WHAT[needed]}: name another")


def _check_records(name: str, kind: str, facts: Facts) -> None:
    """Refuses an encoder of texts for pictures, and the other way round."""
    shape = facts.shape
    if kind == IMAGE and len(shape) == 3 and shape[0] in (1, 3):
        return
    if kind == TEXT and len(shape) == 1 and tokens(facts):
        return
    what = "pictures (C, H, W) of 1 or 3 colors" if kind == IMAGE else "texts, or their tokens (L,)"
    raise EncoderError(f"features={name} is for {what}, not for records of shape {shape}")


def _unit(rows: Tensor) -> Tensor:
    return nn.functional.normalize(rows, dim=1)
