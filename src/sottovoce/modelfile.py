"""Tensors of ours on disk: the generator of a run, its checkpoints, and personal models, all safetensors.

A generator's file explains itself: plan, facts about records, the run and the reference that its coefficients
refer to. So does a personal model: its tensors are the state dict θ_ref + P a that any torch module of that
architecture loads, and its header says what a record is, how it is encoded, what the outputs mean, where the
model comes from and which ε is behind it. A *home* model says so in its header, and only code that keeps it
at home reads it. Nothing in a file is code, and nothing is imported by its word.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from sottovoce import __version__
from sottovoce.blueprint import Blueprint
from sottovoce.catalog import ACCOUNTINGS, PLACES
from sottovoce.data import Facts, description
from sottovoce.errors import SottovoceError, shown
from sottovoce.features.kept import weights_digest
from sottovoce.files import write_atomically
from sottovoce.foreign import MOST_LETTERS, check_model, check_sizes, foreign_name, foreign_plan
from sottovoce.models import MODELS, import_model, model_options, state_dict_at
from sottovoce.plan import Plan

FORMAT = "1"
HOME = "home"
"""The word in a header that no loader passes over."""
MOST_RECORDS = 2**31
_PASSING = ("momentum.", "average")
"""What only training needs."""


class ModelFileError(SottovoceError):
    """A file of tensors that is missing, damaged or about something else."""


class HomeModel(ModelFileError):
    """A model that was finished on records without noise, where only a published one may be used."""


@dataclass(frozen=True)
class GeneratorFile:
    """What `model.safetensors` of a run holds."""

    run: str
    reference: str
    plan: Plan
    facts: Facts
    state: Mapping[str, Tensor]
    sizes: tuple[int, ...] = ()
    """Training records of each participant, where the plan leaves their number to them."""
    names: tuple[str, ...] = ()
    """What the participants are called."""

    @classmethod
    def of(
        cls, blueprint: Blueprint, run: str, state: Mapping[str, Tensor], names: Sequence[str] = ()
    ) -> GeneratorFile:
        """The file of a finished run: no momentum, no running average."""
        final = {name: value for name, value in state.items() if not name.startswith(_PASSING)}
        plan = blueprint.plan
        sizes = blueprint.context_sizes if plan.gradient_records else blueprint.sizes
        left_open = not (plan.gradient_records and plan.context_records)
        return cls(
            run,
            blueprint.reference_digest,
            plan,
            blueprint.facts,
            final,
            sizes if left_open else (),
            tuple(names),
        )

    def write(self, path: Path) -> None:
        """Writes it atomically."""
        plan = json.dumps(dataclasses.asdict(self.plan))
        metadata = {"run": self.run, "reference": self.reference, "plan": plan, **self.facts.metadata()}
        metadata |= {"sizes": json.dumps(self.sizes), "names": json.dumps(self.names)}
        save_tensors(path, self.state, metadata)

    @classmethod
    def read(
        cls, path: Path, *, model: nn.Module | str | None = None, features: str | None = None
    ) -> GeneratorFile:
        """From the file of a finished run, which may be another party's: typed and bounded, or refused.

        `model` is what this machine's owner trained it with, or its name, and `features` that of a map of
        their own (`foreign`).
        """
        state, metadata = load_tensors(path)
        try:
            values = json.loads(metadata["plan"])
            run, reference = foreign_name(metadata["run"]), metadata["reference"]
            sizes, names = (json.loads(metadata.get(key, "[]")) for key in ("sizes", "names"))
        except (KeyError, ValueError, RecursionError) as error:
            raise ModelFileError(f"{path} holds an incomplete model: {shown(repr(error))}") from None
        plan = foreign_plan(values, model=model, features=features)
        facts = Facts.from_metadata(metadata)
        check_sizes(plan, facts, model=model)
        return cls(run, reference, plan, facts, state, *_participants(path, plan, sizes, names))


def _participants(
    path: Path, plan: Plan, sizes: object, names: object
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Sizes and names of the participants, as a stranger's file may state them: none, or one for each."""
    for what, values, kind in (("sizes", sizes, int), ("names", names, str)):
        if not isinstance(values, list) or len(values) not in (0, plan.participants):
            raise ModelFileError(f"{path} has {what} of other participants than its own: ask for it again")
        if not all(type(value) is kind for value in values):
            raise ModelFileError(f"{path} has {what} that are not what they must be: ask for it again")
    assert isinstance(sizes, list)
    assert isinstance(names, list)
    if not all(1 <= size <= MOST_RECORDS for size in sizes) or not all(
        0 < len(name) <= 100 and name.isprintable() for name in names
    ):
        raise ModelFileError(f"{path} has sizes or names beyond all bounds: ask for the file again")
    return tuple(sizes), tuple(names)


@dataclass(frozen=True)
class Origin:
    """Where a personal model comes from, and what is promised to the records behind it."""

    run: str
    client: str
    epsilon: float | None
    """What the client's records had spent when it was written, at `delta`; None: no noise protects them."""
    delta: float
    accounting: str
    noise: str
    """Where noise was added: at the client, at the server, or nowhere."""
    seeded: bool = False
    """A simulation whose noise can be drawn again: it protects nobody."""
    created: str = ""
    sottovoce: str = __version__

    @classmethod
    def parse(cls, fields: Any) -> Origin:
        """From another party: typed and bounded, or a ValueError."""
        origin = cls(**fields)
        foreign_name(origin.run)
        texts = (origin.client, origin.created, origin.sottovoce)
        if not all(
            isinstance(text, str) and len(text) <= MOST_LETTERS and text.isprintable() for text in texts
        ):
            raise ValueError("client, date and version are not texts of a line")
        if origin.epsilon is not None and not _within(origin.epsilon, 0.0, math.inf):
            raise ValueError("epsilon is not a number")
        if not _within(origin.delta, 0.0, 1.0) or type(origin.seeded) is not bool:
            raise ValueError("delta or seeded is not what it must be")
        if origin.accounting not in ACCOUNTINGS or origin.noise not in (*PLACES, "nowhere"):
            raise ValueError("accounting or noise is of no known kind")
        return origin


@dataclass(frozen=True, eq=False)
class PersonalModel:
    """One client's model, ready to be used: `module` maps encoded records (n, …) to outputs (n, classes)."""

    module: nn.Module
    plan: Plan
    """Only the keys of model and feature map are those of the run."""
    facts: Facts
    origin: Origin
    division: int | None = None
    """The seed by which the run divided its client's file into records that trained and records held out;
    None: none of them trained, or there is no such file."""
    home: bool = False
    """Finished on its client's records without noise: it is not private, and never leaves."""

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        model: nn.Module | str | None = None,
        features: str | None = None,
        home: bool = False,
    ) -> PersonalModel:
        """From a file that may be another party's: typed and bounded, or refused.

        `model` is the module of a model that is not built in, or its name, given by this machine's owner, and
        `features` the name of a map of their own. `home` models are read only for who says that they stay at
        home.
        """
        path = Path(path)
        state, metadata = load_tensors(path, home=home)
        if "plan" in metadata and "origin" not in metadata:
            raise ModelFileError(
                f"{path} is a run's generator, not one client's model: 'sottovoce models' writes those"
            )
        try:
            values, fields = json.loads(metadata["model"]), json.loads(metadata["origin"])
            origin = Origin.parse(fields)
            division = int(metadata["division"]) if "division" in metadata else None
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ModelFileError(f"{path} holds an incomplete model: {shown(repr(error))}") from None
        plan = foreign_plan(values, model=model, features=features)
        facts = Facts.from_metadata(metadata)
        described = facts.source or facts
        description.of(described)  # refuses columns that contradict the facts
        if (plan.features == "none") != (facts.source is None):
            raise ModelFileError(f"{path} contradicts itself about its features: ask for the file again")
        if plan.features != "none" and metadata.get("map") != weights_digest():
            raise ModelFileError(f"{path} counts on another version's feature maps: update sottovoce")
        check_model(plan, facts, model=model)
        module = _loaded(path, plan, facts, model, state)
        return cls(module, plan, facts, origin, division, home=HOME in metadata)

    @property
    def records(self) -> Facts:
        """What a record is before any feature map: its shape, its columns, the names of its classes."""
        return self.facts.source or self.facts

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """Outputs (n, classes) for normalized records, or features, (n, …)."""
        outputs: Tensor = self.module(x)
        return outputs


def personal_model(
    blueprint: Blueprint,
    coefficients: Tensor,
    *,
    run: str,
    client: str,
    epsilon: float | None,
    delta: float | None = None,
    accounting: str | None = None,
    created: str | None = None,
    division: int | None = None,
) -> bytes:
    """The model θ_ref + P a of one client as the bytes of a file that explains itself.

    Its tensors are a state dict, tied parameters under all names. `epsilon` is what this client's records
    have spent, at `delta` and by `accounting`, by default the plan's; `created` is by default today;
    `division` is the seed by which a file of the client's own was divided.
    """
    plan = blueprint.plan
    state = state_dict_at(blueprint.module, blueprint.theta(coefficients))
    origin = Origin(
        run=run,
        client=client,
        epsilon=epsilon if plan.private else None,
        delta=plan.delta if delta is None else delta,
        accounting=accounting or plan.accounting,
        noise=blueprint.releases_of(0)["gradient"].place,
        seeded=plan.seeded,
        created=datetime.now(UTC).date().isoformat() if created is None else created,
    )
    more = {} if division is None else {"division": str(division)}
    return _personal(state, plan, blueprint.facts, origin, more)


def home_model(model: PersonalModel, theta: Tensor, told: Mapping[str, Any]) -> bytes:
    """A published model with other parameters θ, fitted at home, as the bytes of a file that says so.

    `told` is how it was chosen and what it is worth: made of records, like the model. No ε is behind it.
    """
    state = state_dict_at(model.module, theta)
    plan, origin = model.plan, dataclasses.replace(model.origin, epsilon=None, noise="nowhere")
    return _personal(state, plan, model.facts, origin, {HOME: json.dumps(dict(told))})


def _personal(
    state: Mapping[str, Tensor], plan: Plan, facts: Facts, origin: Origin, more: Mapping[str, str]
) -> bytes:
    """The file of one client's model, with a header that explains it and says `more`."""
    kept = {"model": plan.model, **model_options(plan), **plan.shaping("features")}
    metadata = {
        "model": json.dumps(kept),
        "origin": json.dumps(dataclasses.asdict(origin)),
        **facts.metadata(),
        **({} if plan.features == "none" else {"map": weights_digest()}),
        **more,
    }
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}
    return _bytes(tensors, metadata)


def _within(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and low <= value < high


def _loaded(
    path: Path, plan: Plan, facts: Facts, model: nn.Module | str | None, state: dict[str, Tensor]
) -> nn.Module:
    """The module with the tensors of the file, which must be exactly its own."""
    if isinstance(model, nn.Module):
        module = copy.deepcopy(model).float().eval()
    elif plan.model in MODELS:
        with torch.device("meta"):
            module = MODELS[plan.model](facts.shape, facts.classes, **model_options(plan)).eval()
    else:
        module = import_model(plan.model, facts.shape, facts.classes, 0)
    wanted = {name: (value.shape, value.dtype) for name, value in module.state_dict().items()}
    if wanted != {name: (value.shape, value.dtype) for name, value in state.items()}:
        raise ModelFileError(
            f"{path} does not hold the parameters of model={plan.model} for records of shape {facts.shape}: "
            "ask for the file again, or name the model it was trained with",
            "model",
        )
    if not all(bool(torch.isfinite(value).all()) for value in state.values()):
        raise ModelFileError(f"{path} is damaged: a parameter is not finite")
    module.load_state_dict(state, assign=True)
    return module


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file of ours, written atomically."""
    write_atomically(path, _bytes(tensors, metadata))


def _bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file with its header in our order: the library's differs from one writing to the next."""
    said = {"format": "sottovoce", "version": FORMAT, **metadata}
    data = save(dict(tensors), said)
    [length] = struct.unpack_from("<Q", data)
    header = {**json.loads(data[8 : 8 + length]), "__metadata__": said}
    text = json.dumps({name: header[name] for name in sorted(header)}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def load_tensors(
    path: Path, expected: Mapping[str, str] | None = None, *, home: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file of ours; a damaged or foreign one is refused.

    `expected` metadata must agree, so that the file of another run is not taken for this one's. A home model
    is refused, except where the caller keeps what it makes of it at `home`.
    """
    if not path.parent.is_dir():
        raise ModelFileError(f"{path.parent} is no folder: check the path")
    if not path.exists():
        raise ModelFileError(f"{path} is missing: the run has not come that far")
    if path.is_dir():
        raise ModelFileError(f"{path} is a folder: give the file of one model")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged or not a safetensors file: {shown(error)}") from None
    if metadata.get("format") != "sottovoce" or metadata.get("version") != FORMAT:
        raise ModelFileError(
            f"{path} was not written by this version of sottovoce: use the one that wrote it"
        )
    if HOME in metadata and not home:
        raise HomeModel(
            f"{path} is a home model, made of records without noise, and stays at home: use the published one"
        )
    for key, value in (expected or {}).items():
        if metadata.get(key) != value:
            raise ModelFileError(
                f"{path} belongs to another run, its {key} differs: put the right file there"
            )
    return tensors, metadata
