"""What a finished run leaves in `model.safetensors`: everything that its models are made of, and nothing that
a later version would have to make again.

It holds what the recipe made of the plan and of releases (`training.server`), participants' coefficients as
they stay, and the header of each participant's model file. So `models`, `serve` and `personalize` of any
version give what result.json judged, also where that version has another recipe or none of this name. Of runs
of version 0.2.0, which stored neither, all of it is made by the recipe that version had.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sottovoce.data import Facts, split_seeds
from sottovoce.errors import SottovoceError, shown
from sottovoce.machine.determinism import arithmetic
from sottovoce.machine.documents import foreign_name
from sottovoce.models.architectures import check_sizes
from sottovoce.models.tensors import ModelFileError, load_tensors, save_tensors
from sottovoce.personal import Origin, model_header
from sottovoce.plan import Plan
from sottovoce.plan.checks import read_toml
from sottovoce.plan.limits import foreign_plan
from sottovoce.plan.recipes import open_recipe
from sottovoce.release.blueprint import Blueprint, build
from sottovoce.release.recipe import Blending
from sottovoce.run.directory import RunDirectory
from sottovoce.training.generator import open_generator
from sottovoce.training.server import FINAL, RECIPE, Server, under

MOST_RECORDS = 2**31
CLOSE = 1e-6
"""How far numbers made again may lie from stored ones on another machine, as a part of the largest."""
_PASSING = ("momentum.", "average")
"""What only training needs."""
_OWN = ("origin", "division")
"""What the headers of participants' models do not have in common."""


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
    basis: str = ""
    """A fingerprint of P."""
    headers: tuple[Mapping[str, str], ...] = ()
    """Those of the participants' model files."""
    arithmetic: str = ""
    """A fingerprint of the machine that made the models (`machine.determinism`)."""

    @classmethod
    def of(
        cls,
        blueprint: Blueprint,
        run: str,
        state: Mapping[str, Tensor],
        names: Sequence[str] = (),
        spent: Mapping[str, float | None] | None = None,
    ) -> GeneratorFile:
        """The file of a finished run: no momentum, no running average; `spent` is ε by name, for headers."""
        final = {name: value for name, value in state.items() if not name.startswith(_PASSING)}
        plan = blueprint.plan
        sizes = blueprint.context_sizes if plan.gradient_records else blueprint.sizes
        left_open = not (plan.gradient_records and plan.context_records)
        seeds = split_seeds(plan.participants + plan.future_clients, plan.seed)
        headers = (
            []
            if spent is None
            else [
                model_header(
                    blueprint,
                    run=run,
                    client=name,
                    epsilon=spent.get(name),
                    division=seeds[i] if plan.partition == "client" else None,  # else records were dealt
                )
                for i, name in enumerate(names)
            ]
        )
        return cls(
            run,
            blueprint.reference_digest,
            plan,
            blueprint.facts,
            final,
            sizes if left_open else (),
            tuple(names),
            blueprint.basis_digest,
            tuple(headers),
            arithmetic(blueprint.model.reference.device.type),
        )

    def write(self, path: Path) -> None:
        """Writes it atomically."""
        plan = json.dumps(dataclasses.asdict(self.plan))
        metadata = {"run": self.run, "reference": self.reference, "plan": plan, **self.facts.metadata()}
        metadata |= {"sizes": json.dumps(self.sizes), "names": json.dumps(self.names)}
        metadata |= {"basis": self.basis, "arithmetic": self.arithmetic}
        if self.headers:
            own = [{name: header[name] for name in _OWN if name in header} for header in self.headers]
            metadata |= {"header": json.dumps(dict(self.headers[0])), "own": json.dumps(own)}
        save_tensors(path, self.state, metadata)

    @classmethod
    def read(
        cls, path: Path, *, model: nn.Module | str | None = None, features: str | None = None
    ) -> GeneratorFile:
        """From the file of a finished run, which may be another party's: typed and bounded, or refused.

        `model` is what this machine's owner trained it with, or its name, and `features` that of a map of
        their own (`plan.limits`).
        """
        state, metadata = load_tensors(path)
        try:
            values = json.loads(metadata["plan"])
            run, reference = foreign_name(metadata["run"]), metadata["reference"]
            sizes, names, own = (json.loads(metadata.get(key, "[]")) for key in ("sizes", "names", "own"))
            header = json.loads(metadata.get("header", "{}"))
        except (KeyError, ValueError, RecursionError) as error:
            raise ModelFileError(f"{path} holds an incomplete model: {shown(repr(error))}") from None
        plan = foreign_plan(values, model=model, features=features)
        facts = Facts.from_metadata(metadata)
        check_sizes(plan, facts, model=model)
        participants = _participants(path, plan, sizes, names)
        headers = _headers(path, run, facts, participants[1], header, own)
        return cls(
            run,
            reference,
            plan,
            facts,
            state,
            *participants,
            metadata.get("basis", ""),
            headers,
            metadata.get("arithmetic", ""),
        )


def _participants(path: Path, plan: Plan, sizes: Any, names: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Sizes and names of the participants, as a stranger's file may state them: none, or one for each."""
    for what, values, kind in (("sizes", sizes, int), ("names", names, str)):
        if not isinstance(values, list) or len(values) not in (0, plan.participants):
            raise ModelFileError(f"{path} has {what} of other participants than its own: ask for it again")
        if not all(type(value) is kind for value in values):
            raise ModelFileError(f"{path} has {what} that are not what they must be: ask for it again")
    if not all(1 <= size <= MOST_RECORDS for size in sizes) or not all(
        0 < len(name) <= 100 and name.isprintable() for name in names
    ):
        raise ModelFileError(f"{path} has sizes or names beyond all bounds: ask for the file again")
    return tuple(sizes), tuple(names)


def _headers(
    path: Path, run: str, facts: Facts, names: Sequence[str], header: Any, own: Any
) -> tuple[dict[str, str], ...]:
    """The headers of the participants' models, as a stranger's file may state them: about its own run."""
    if not header and not own:  # as in version 0.2
        return ()
    try:
        if Facts.from_metadata(header) != facts or len(own) != len(names):
            raise ValueError("they are about other records or participants")
        found = tuple({**header, **one} for one in own)
        for name, one in zip(names, found, strict=True):
            origin = Origin.parse(one["origin"])
            if (origin.run, origin.client) != (run, name) or not all(type(v) is str for v in one.values()):
                raise ValueError("they are about another run or participant")
    except (SottovoceError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} has headers of models that cannot be: {shown(str(error))}") from None
    return found


def open_server(file: GeneratorFile, module: nn.Module | str | None = None) -> Server:
    """The trained server of a finished run, whose file may be another party's.

    `module` if it was trained with one of the user's own: from Python, or as 'package.module:function'.
    """
    blueprint = open_blueprint(file, module)
    _check_tensors(file.state, _recipe_shapes(file.plan, file.state))
    blending = Blending.stored(file.plan, under(RECIPE, file.state)) or blueprint.blending
    _check_tensors(file.state, _shapes(blueprint, file.state, blending))
    _check_tensors(file.state, _final_shapes(blueprint, file.state))
    server = Server(blueprint, blending=blending)
    server.load_state(file.state)
    return server


def faults(
    run: str | Path, *, module: nn.Module | str | None = None, features: str | None = None
) -> list[str]:
    """What is wrong with a finished run's recipe and models, a sentence each; none, and all is well.

    The run's recipe makes its steps, shares and weights of plan and sizes again, and its models of the
    releases that its file has: alike to the last bit where the run was made, and to `CLOSE` elsewhere.
    `module` and `features` as in `write_models`.
    """
    directory = RunDirectory(run)
    file = GeneratorFile.read(directory.model_file, model=module, features=features)
    named = read_toml(directory.plan_file).get("recipe")
    if named is None or not under(FINAL, file.state):
        return ["the run names no recipe, or stored no models: version 0.2.0 or earlier made it"]
    if named != file.plan.recipe:
        return [f"plan.toml names recipe {named}, and model.safetensors {file.plan.recipe}"]
    try:
        open_recipe(named)
        blueprint = open_blueprint(file, module)
    except SottovoceError as refused:
        return [str(refused)]
    close = 0.0 if file.arithmetic == arithmetic() else CLOSE
    made = {name: torch.from_numpy(value) for name, value in blueprint.blending.numbers().items()}
    found = []
    if not _alike(made, under(RECIPE, file.state), close):
        found.append(f"the run's steps, shares or weights are not those of recipe {named}")
    server = Server(blueprint)
    server.load_state({name: value for name, value in file.state.items() if not name.startswith(FINAL)})
    server.conclude()
    if not _alike(under(FINAL, server.state()), under(FINAL, file.state), close):
        found.append("the run's models are not what its releases give")
    return found


def _alike(made: Mapping[str, Tensor], stored: Mapping[str, Tensor], close: float) -> bool:
    """Returns whether tensors have the same names and shapes, and numbers within `close` of the largest."""
    if made.keys() != stored.keys():
        return False
    for name, tensor in stored.items():
        if tensor.shape != made[name].shape:
            return False
        furthest = (made[name].double() - tensor.double()).abs().max() if tensor.numel() else torch.zeros(())
        if not float(furthest) <= close * float(tensor.double().abs().max() if tensor.numel() else 0.0):
            return False
    return True


def open_blueprint(file: GeneratorFile, module: nn.Module | str | None = None) -> Blueprint:
    """What follows from a finished run's plan; model and basis must be those that it was trained with."""
    blueprint = build(file.plan, file.facts, module, file.sizes)
    if file.reference != blueprint.reference_digest:
        raise SottovoceError(
            f"the run was trained with another model than model={file.plan.model} gives: pass its own module"
        )
    if file.basis not in ("", blueprint.basis_digest):
        raise SottovoceError("this version makes another basis for the run: use the version that trained it")
    return blueprint


Shapes = dict[str, tuple[int, ...]]
_TYPES = {"round": torch.int64, "generator.individual": torch.float64}
_TYPES |= dict.fromkeys(("known", "confused", "calibrated"), torch.bool)
_NUMBERS = ("noise", "smoothing", "spread", "slope")
_TYPES |= dict.fromkeys((FINAL + name for name in (*_NUMBERS, "shifts")), torch.float64)
"""Of tensors that are not float32, but for those of a recipe, which are float64."""


def _recipe_shapes(plan: Plan, state: Mapping[str, Tensor]) -> Shapes:
    """What a recipe made of the plan, if it was stored."""
    if not under(RECIPE, state):
        return {}
    of_each = ("weights", "own_steps", "individual", "least_kept")
    shapes: Shapes = {"step": (), "caution": (), "own_noise": (plan.participants, 2)}
    shapes |= dict.fromkeys(of_each, (plan.participants,))
    return {RECIPE + name: shape for name, shape in shapes.items()}


def _final_shapes(blueprint: Blueprint, state: Mapping[str, Tensor]) -> Shapes:
    """What stays of a finished run, as far as it was stored."""
    stored, outputs = under(FINAL, state), blueprint.facts.classes
    if not stored:
        return {}
    models = 1 if stored.get("models", torch.empty(0)).shape[:1] == (1,) else blueprint.plan.participants
    shapes: Shapes = {"models": (models, blueprint.coefficients)}
    shapes |= dict.fromkeys(_NUMBERS, ())
    shapes |= dict.fromkeys(("mean", "matrix_noise", "shifts"), (outputs,))
    shapes["matrix"] = (outputs, outputs)
    return {FINAL + name: shapes[name] for name in ("models", *stored) if name in shapes}


def _shapes(blueprint: Blueprint, state: Mapping[str, Tensor], blending: Blending) -> Shapes:
    """The rest of a server's state; nothing of the size that it claims is made."""
    plan, size = blueprint.plan, blueprint.statistic.size
    with torch.device("meta"):
        sizes = (plan.hidden, plan.trunk_layers, blueprint.coefficients)
        generator = open_generator(plan.method, torch.empty(size), *sizes, 0, blending)
    shapes = {f"generator.{name}": tuple(value.shape) for name, value in generator.state_dict().items()}
    shapes.update(contexts=(plan.participants, size), known=(plan.participants,), round=())
    shapes.update(center=(size,), scale=(size,), snapshot=(blueprint.coefficients,))
    if "generator.individual" not in state:  # files of version 0.1 have none, and no confusions
        shapes.pop("generator.individual", None)
    if "confusion" in state:
        classes = blueprint.facts.classes
        shapes.update(confusion=(classes, classes), confused=(plan.participants,))
    if plan.calibration:
        released = state.get("calibrations", torch.empty(0)).shape[1:2]
        if not under(FINAL, state):  # else what was made of them is stored
            assert blueprint.derivatives is not None
            released = torch.Size((blueprint.derivatives.size,))
        shapes.update(calibrations=(plan.participants, *released), calibrated=(plan.participants,))
    if plan.centring:
        shapes.update(centre=(blueprint.centre_size,))
    own = {name for name in state if name.startswith("generator.own.")}
    if own - {f"generator.own.{participant}" for participant in range(plan.participants)}:
        raise SottovoceError("the saved state does not belong to this plan: it has parts of no participant")
    return shapes | dict.fromkeys(own, (blueprint.coefficients,))


def _check_tensors(state: Mapping[str, Tensor], shapes: Shapes) -> None:
    """Refuses a state that has not these tensors."""
    for name, shape in shapes.items():
        dtype = torch.float64 if name.startswith(RECIPE) else _TYPES.get(name, torch.float32)
        found = state.get(name)
        if found is None or tuple(found.shape) != shape or found.dtype != dtype:
            raise SottovoceError(f"the saved state does not belong to this plan: its {name} is not {shape}")
        if not bool(torch.isfinite(found).all()):
            raise SottovoceError(f"the saved state is damaged: its {name} is not finite")
