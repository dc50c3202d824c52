"""Personal models: one client's model as a file that explains itself.

Its tensors are the state dict θ_ref + P a that any torch module of that architecture loads, and its header
says what a record is, how it is encoded, what the outputs mean, where the model comes from and which ε is
behind it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from sottovoce import __version__
from sottovoce.data import Facts
from sottovoce.data.tables import schema
from sottovoce.errors import shown
from sottovoce.machine.documents import LARGEST_FLOAT, MOST_LETTERS, Bound, foreign_name, read
from sottovoce.models.architectures import check_model, import_model, model_options
from sottovoce.models.encoders import store
from sottovoce.models.features.cache import weights_digest
from sottovoce.models.features.encoded import references
from sottovoce.models.imports import keep_at_home
from sottovoce.models.parameters import state_dict_at
from sottovoce.models.tensors import HOME, ModelFileError, load_tensors, tensor_bytes
from sottovoce.plan import Plan
from sottovoce.plan.catalog import ACCOUNTINGS, MODELS, PLACES, function, names_encoder
from sottovoce.plan.limits import foreign_plan
from sottovoce.release.blueprint import Blueprint

Line = Annotated[str, Bound(max_length=MOST_LETTERS)]


@dataclass(frozen=True)
class Origin:
    """Where a personal model comes from, and what is promised to the records behind it."""

    run: str
    client: Line
    epsilon: Annotated[float, Bound(ge=0, le=LARGEST_FLOAT)] | None
    """What the client's records had spent when it was written, at `delta`; None: no noise protects them."""
    delta: Annotated[float, Bound(ge=0, lt=1)]
    accounting: str
    noise: str
    """Where noise was added: at the client, at the server, or nowhere."""
    seeded: bool = False
    """A simulation whose noise can be drawn again: it protects nobody."""
    created: Line = ""
    sottovoce: Line = __version__

    @classmethod
    def parse(cls, text: str) -> Origin:
        """From the JSON of another party: typed and bounded, or a ValueError."""
        origin = read(cls, text.encode(), ValueError)
        foreign_name(origin.run)
        if not all(said.isprintable() for said in (origin.client, origin.created, origin.sottovoce)):
            raise ValueError("client, date and version are not texts of a line")
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
    untrained: nn.Module | None = None
    """The module before the file's parameters were loaded, where it is not a built-in one."""

    def __post_init__(self) -> None:
        if self.home:
            keep_at_home(self.module)

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
        if not {"model", "origin"} <= metadata.keys():
            raise ModelFileError(
                f"{path} holds no client's model: give a file that 'sottovoce models' or 'personalize' wrote"
            )
        try:
            values, origin = json.loads(metadata["model"]), Origin.parse(metadata["origin"])
            division = int(metadata["division"]) if "division" in metadata else None
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ModelFileError(f"{path} holds an incomplete model: {shown(repr(error))}") from None
        plan = foreign_plan(values, model=model, features=features)
        facts = Facts.from_metadata(metadata)
        schema.of(facts.source or facts)  # refuses columns that contradict the facts
        if (plan.features == "none") != (facts.source is None):
            raise ModelFileError(f"{path} contradicts itself about its features: ask for the file again")
        ours = plan.features != "none" and not names_encoder(plan.features)
        if ours and metadata.get("map") != weights_digest():
            raise ModelFileError(f"{path} counts on another version's feature maps: update sottovoce")
        check_model(plan, facts, model=model)
        untrained = _named(plan, facts, model)
        module = _loaded(path, plan, facts, untrained, state)
        return cls(module, plan, facts, origin, division, home=HOME in metadata, untrained=untrained)

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
    header = model_header(
        blueprint,
        run=run,
        client=client,
        epsilon=epsilon,
        delta=delta,
        accounting=accounting,
        created=created,
        division=division,
    )
    return model_bytes(blueprint, coefficients, header)


def model_bytes(blueprint: Blueprint, coefficients: Tensor, header: Mapping[str, str]) -> bytes:
    """The file of the model θ_ref + P a with a header that was made for it."""
    return _file(state_dict_at(blueprint.module, blueprint.theta(coefficients)), header)


def model_header(
    blueprint: Blueprint,
    *,
    run: str,
    client: str,
    epsilon: float | None,
    delta: float | None = None,
    accounting: str | None = None,
    created: str | None = None,
    division: int | None = None,
) -> dict[str, str]:
    """What the file of one client's model says of it, as `personal_model` is told."""
    plan = blueprint.plan
    origin = Origin(
        run=run,
        client=client,
        epsilon=epsilon if plan.private else None,
        delta=plan.delta if delta is None else delta,
        accounting=accounting or plan.accounting,
        noise=blueprint.noise,
        seeded=plan.seeded,
        created=datetime.now(UTC).date().isoformat() if created is None else created,
    )
    more = {} if division is None else {"division": str(division)}
    return _header(plan, blueprint.facts, origin, more)


def home_model(model: PersonalModel, theta: Tensor, told: Mapping[str, Any]) -> bytes:
    """A published model with other parameters θ, fitted at home, as the bytes of a file that says so.

    `told` is how it was chosen and what it is worth: made of records, like the model. No ε is behind it.
    """
    state = state_dict_at(model.module, theta)
    plan, origin = model.plan, dataclasses.replace(model.origin, epsilon=None, noise="nowhere")
    return _file(state, _header(plan, model.facts, origin, {HOME: json.dumps(dict(told))}))


def _header(plan: Plan, facts: Facts, origin: Origin, more: Mapping[str, str]) -> dict[str, str]:
    """A header that explains one client's model, and says `more`."""
    kept = {"model": plan.model, **model_options(plan), **plan.shaping("features")}
    if not plan.encoders:
        del kept["encoders"]  # as versions that knew none wrote it
    return {
        "model": json.dumps(kept),
        "origin": json.dumps(dataclasses.asdict(origin)),
        **facts.metadata(),
        **({} if plan.features == "none" else _told(plan)),
        **more,
    }


def _file(state: Mapping[str, Tensor], header: Mapping[str, str]) -> bytes:
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}
    return tensor_bytes(tensors, header)


def _told(plan: Plan) -> dict[str, str]:
    """What a header says of the map behind a model: of an encoder all that is known of it here."""
    if not names_encoder(plan.features):
        return {"map": weights_digest()}
    told = []
    for one in references(plan).values():
        here = next((found for found in store.installed() if found.digest == one.digest), None)
        more = {key: getattr(here, key) for key in ("licence", "origin", "trained_on")} if here else {}
        told.append({"name": one.name, "version": one.version, "digest": one.digest, **more})
    return {"encoders": json.dumps(told)}


def _named(plan: Plan, facts: Facts, model: nn.Module | str | None) -> nn.Module | None:
    """The module that this machine's owner gave, or named, as it was before any training; None: built in.

    Nothing is imported by the word of a file.
    """
    if isinstance(model, nn.Module):
        return copy.deepcopy(model).float().eval()
    if plan.model in MODELS or plan.model != model:
        return None
    return import_model(plan.model, facts.shape, facts.classes, 0)


def _loaded(
    path: Path, plan: Plan, facts: Facts, untrained: nn.Module | None, state: dict[str, Tensor]
) -> nn.Module:
    """The module with the tensors of the file, which must be exactly its own."""
    if untrained is not None:
        module = copy.deepcopy(untrained)
    else:
        with torch.device("meta"):
            module = function(MODELS[plan.model])(facts.shape, facts.classes, **model_options(plan)).eval()
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
