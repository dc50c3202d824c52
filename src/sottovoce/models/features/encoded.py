"""Public encoders as feature maps: which one a plan means, by name, version and digest, and what it gives.

`features=NAME` names an encoder of this machine. A completed plan says which one that is (`encoders`), so
whatever carries it (an agreement, a specification, a run, a model) means that very one: whoever has another,
or none, is told so before anything is computed. A map of one's own has a version there.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from sottovoce.data import Facts, tokens
from sottovoce.errors import SottovoceError
from sottovoce.models.encoders import DIGEST, IMAGE, TEXT, Encoder, EncoderError, Progress, Reference, store
from sottovoce.plan import Plan
from sottovoce.plan.catalog import names_encoder

OWN = "own"
"""What stands for the name of a map of one's own, which `features` gives."""


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
        rows = self.encoder(list(x.cpu()), progress)
        if self.mirror:
            rows = _unit(rows) + _unit(self.encoder(list(x.cpu().flip(-1))))
        return _unit(rows)


def references(plan: Plan) -> dict[str, Reference]:
    """The encoders that a complete plan means, by name."""
    found = [Reference.parse(text) for text in plan.encoders.split(", ")] if plan.encoders else []
    return {one.name: one for one in found}


def with_encoders(plan: Plan, facts: Facts, own: str | None = None) -> Plan:
    """The plan with the encoders that it means here, where it does not say so yet.

    `own` is the version of a map of the owner's, where `features` names one that may be imported.
    """
    if facts.source is not None:
        return plan
    if ":" in plan.features:
        text = "" if own is None else own
    elif names_encoder(plan.features):
        if set(references(plan)) == {plan.features}:
            return plan
        described = store.named(plan.features)
        _check_kind(plan.features, described.kind, facts)
        text = str(described.reference)
    else:
        text = ""
    return plan if plan.encoders == text else plan.replace(encoders=text)


def meant(plan: Plan) -> Reference:
    """The encoder that `features` names, as the plan says which one it is."""
    found = references(plan).get(plan.features)
    if found is None:
        raise EncoderError(f"that plan does not say which {plan.features} it means: ask for the file again")
    return found


def open_encoded(plan: Plan, facts: Facts, device: str) -> Encoded:
    """The very encoder that a plan means, for records of which this is known."""
    reference = meant(plan)
    described = store.meant(reference)
    _check_kind(plan.features, described.kind, facts)
    if described.size != reference.size:
        raise EncoderError(
            f"{reference.name} gives {described.size} numbers, not {reference.size}: ask again"
        )
    if plan.feature_size:
        raise EncoderError(f"features={plan.features} is taken whole: leave out feature_size")
    if plan.mirror and described.kind != IMAGE:
        raise EncoderError("mirror=true is for pictures, not for texts: set mirror=false")
    return Encoded(plan.features, facts.shape, store.opened(described, device), plan.mirror)


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


def _check_kind(name: str, kind: str, facts: Facts) -> None:
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
