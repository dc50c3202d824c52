"""Models out of a finished run: one file for each participant, made of what its ledger has charged already,
and a card beside each.

A participant's coefficients are post-processing of releases, so its model costs nothing further, and writing
it again gives the same. A class prior is in the coefficients: it sits on the model's last bias.

A card, Markdown and YAML, says what a published model is of, which ε is behind it, who may see it. It is
made of the header of the model's file, so that it cannot say anything else. Metrics are made of held-out
records without noise, and a published model may be shown to anybody: a card states them where the records
are public, the run was a seeded simulation, or its owner says so.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sottovoce.data import NAMES, Facts, client_files, split_seeds
from sottovoce.errors import SottovoceError, nearest, shown
from sottovoce.machine.documents import foreign_name
from sottovoce.machine.files import write_atomically
from sottovoce.models.architectures import check_sizes
from sottovoce.models.tensors import ModelFileError, check_place, load_tensors, save_tensors
from sottovoce.personal import personal_model
from sottovoce.personal.card import card_file, model_card
from sottovoce.personal.finishing import finish as finish_at_home
from sottovoce.personal.finishing import home_file
from sottovoce.plan import Plan
from sottovoce.plan.limits import foreign_plan
from sottovoce.release.blueprint import Blueprint, build
from sottovoce.release.secrets import participant_name
from sottovoce.run.directory import RunDirectory, make_folder
from sottovoce.training.generator import open_generator
from sottovoce.training.server import Server

Progress = Callable[[str, int], None]
_TYPES = {"round": torch.int64, "generator.individual": torch.float64}
_TYPES |= dict.fromkeys(("known", "confused", "calibrated"), torch.bool)
"""Of tensors that are not float32."""


def open_server(file: GeneratorFile, module: nn.Module | str | None = None) -> Server:
    """The trained server of a finished run, whose file may be another party's.

    `module` if it was trained with one of the user's own: from Python, or as 'package.module:function'.
    """
    blueprint = build(file.plan, file.facts, module, file.sizes)
    if file.reference != blueprint.reference_digest:
        raise SottovoceError(
            f"the run was trained with another model than model={file.plan.model} gives: pass its own module"
        )
    _check_state(blueprint, file.state)
    server = Server(blueprint)
    server.load_state(file.state)
    return server


def _check_state(blueprint: Blueprint, state: Mapping[str, Tensor]) -> None:
    """Refuses a state that is not this blueprint's, before anything of the size it claims is made."""
    plan, size = blueprint.plan, blueprint.statistic.size
    with torch.device("meta"):
        sizes = (plan.hidden, plan.trunk_layers, blueprint.coefficients)
        generator = open_generator(plan.method, torch.empty(size), *sizes, 0, blueprint.blending)
    shapes = {f"generator.{name}": tuple(value.shape) for name, value in generator.state_dict().items()}
    shapes.update(contexts=(plan.participants, size), known=(plan.participants,), round=())
    shapes.update(center=(size,), scale=(size,), snapshot=(blueprint.coefficients,))
    if "generator.individual" not in state:  # files of version 0.1 have none, and no confusions
        shapes.pop("generator.individual", None)
    if "confusion" in state:
        classes = blueprint.facts.classes
        shapes.update(confusion=(classes, classes), confused=(plan.participants,))
    if blueprint.derivatives is not None:
        shapes.update(calibrations=(plan.participants, blueprint.derivatives.size))
        shapes.update(calibrated=(plan.participants,))
    if blueprint.inputs is not None:
        shapes.update(centre=(blueprint.inputs.size,))
    own = {name for name in state if name.startswith("generator.own.")}
    if own - {f"generator.own.{participant}" for participant in range(plan.participants)}:
        raise SottovoceError("the saved state does not belong to this plan: it has parts of no participant")
    shapes.update(dict.fromkeys(own, (blueprint.coefficients,)))
    for name, shape in shapes.items():
        dtype = _TYPES.get(name, torch.float32)
        found = state.get(name)
        if found is None or tuple(found.shape) != shape or found.dtype != dtype:
            raise SottovoceError(f"the saved state does not belong to this plan: its {name} is not {shape}")
        if not bool(torch.isfinite(found).all()):
            raise SottovoceError(f"the saved state is damaged: its {name} is not finite")


def write_models(
    run: str | Path,
    out: str | Path,
    *,
    clients: Sequence[str] = (),
    module: nn.Module | str | None = None,
    features: str | None = None,
    finish: bool = False,
    metrics: bool = False,
    progress: Progress = lambda client, of: None,
) -> list[dict[str, Any]]:
    """Writes the models of a run's participants into the folder `out`, each under its client's name.

    `clients` are the names of those that are wanted, by default all. Returns for each of them `client`,
    `model` (the file), `epsilon` and `delta`. With `finish`, when all are written, each is finished on its
    client's own file, into NAME.home.safetensors beside it, and `home` says how; or `unfinished` why not, and
    the others are finished all the same. `progress` is called with each name and how many there are. Beside
    each model lies its card; it states held-out metrics where records are public or the run was seeded, and
    else only with `metrics`, for no ε covers them.
    """
    directory = RunDirectory(run)
    result = directory.result()
    file = GeneratorFile.read(directory.model_file, model=module, features=features)
    names = file.names or tuple(participant_name(i) for i in range(file.plan.participants))
    for name in clients:
        if name not in names:
            raise SottovoceError(f"no participant of {run} is called '{name}': {nearest(name, names)}")
    files = [file_name(name) for name in names]
    for name, other in zip(files, names, strict=True):
        if files.count(name) > 1:
            raise SottovoceError(f"two participants would be one file, {name}, such as '{other}': rename one")
        if home_file(Path(name)).name in files:
            raise SottovoceError(
                f"the home model of '{other}' would be another participant's file: rename one"
            )
    plan, sources = file.plan, _sources(file.plan, clients or names) if finish else {}
    server, folder = open_server(file, module), Path(out)
    seeds = split_seeds(plan.participants + plan.future_clients, plan.seed)
    shown = metrics or plan.seeded or plan.dataset in NAMES
    for name in clients or names:
        path = folder / file_name(name)
        check_place(path)
        if finish:
            check_place(home_file(path), home=True)
    make_folder(folder)
    written = list[dict[str, Any]]()
    for participant, name in enumerate(names):
        if clients and name not in clients:
            continue
        if not finish:
            progress(name, len(clients or names))
        path = folder / files[participant]
        spent = result["epsilon"]["per_client"].get(name)
        coefficients = server.coefficients([participant])[0]
        model = personal_model(
            server.blueprint,
            coefficients,
            run=file.run,
            client=name,
            epsilon=spent,
            division=seeds[participant] if plan.partition == "client" else None,  # else records were dealt
        )
        measured = result.get("metrics", {}).get("per_client", {}).get(name) if shown else None
        write_model(path, model, measured)
        row: dict[str, Any] = {
            "client": name,
            "model": str(path),
            "epsilon": spent,
            "delta": server.blueprint.plan.delta,
        }
        written.append(row)
    for row in written if finish else []:  # nobody's records decide whether or when another's is published
        progress(row["client"], len(written))
        path, source = Path(row["model"]), sources[row["client"]]
        try:
            row["home"] = finish_at_home(path, source, module=module, features=features)
        except SottovoceError as refused:
            row["unfinished"] = str(refused)
    return written


def _sources(plan: Plan, names: Sequence[str]) -> dict[str, Path]:
    """The files of a run's participants, in the folder that it was trained on."""
    folder = Path(plan.dataset)
    if not folder.is_dir():
        raise SottovoceError(
            f"{plan.dataset} is no folder here with a file for each participant: write the models without a "
            "finish, and 'sottovoce finish' each where its records are",
            "finish",
        )
    found = client_files(folder)
    for name in names:
        if name not in found:
            raise SottovoceError(
                f"the records of {name} are no file in {plan.dataset}: finish its model where they are"
            )
    return found


def file_name(client: str) -> str:
    """Returns what a client's model is called, whatever the client is called.

    >>> file_name("St. Mary's/north"), file_name("../.."), file_name("Zürich 2")
    ('St. Mary_s_north.safetensors', '_._...safetensors', 'Zürich 2.safetensors')
    """
    safe = re.sub(r"[^\w .@+-]|^\W", "_", client)
    return f"{safe}.safetensors"


def write_model(path: Path, model: bytes, metrics: Mapping[str, float | None] | None = None) -> None:
    """Writes a published model, and its card beside it; `metrics` only where they may be shown with it."""
    write_atomically(path, model)
    write_atomically(card_file(path), model_card(model, metrics).encode())


MOST_RECORDS = 2**31
_PASSING = ("momentum.", "average")
"""What only training needs."""


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
        their own (`plan.limits`).
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
