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

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sottovoce.blueprint import Blueprint, build, participant_name
from sottovoce.catalog import PLACES
from sottovoce.data import NAMES, Facts, client_files, description, split_seeds
from sottovoce.errors import SottovoceError, nearest
from sottovoce.files import write_atomically
from sottovoce.finishing import finish as finish_at_home
from sottovoce.finishing import home_file
from sottovoce.generator import open_generator
from sottovoce.modelfile import GeneratorFile, check_place
from sottovoce.personal import Origin, personal_model
from sottovoce.plan import Plan
from sottovoce.run import RunDirectory, make_folder
from sottovoce.run.result import protected_unit
from sottovoce.server import Server

Progress = Callable[[str, int], None]
_TYPES = {"round": torch.int64, "generator.individual": torch.float64}
_TYPES |= dict.fromkeys(("known", "confused", "calibrated"), torch.bool)
"""Of tensors that are not float32."""
UNSTATED = (
    "Not stated here. They are made of held-out records without noise, and no ε covers them; whoever holds "
    "the records has them."
)


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
    written = []
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
        row = {"client": name, "model": str(path), "epsilon": spent, "delta": server.blueprint.plan.delta}
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


def card_file(model: Path) -> Path:
    """Returns where the card of a model lies.

    >>> card_file(Path("models/St. Mary.safetensors")).name
    'St. Mary.card.md'
    """
    return model.with_name(model.name.removesuffix(model.suffix) + ".card.md")


def model_card(model: bytes, metrics: Mapping[str, float | None] | None = None) -> str:
    """The card of a published model, from the bytes of its file."""
    [length] = struct.unpack_from("<Q", model)
    header = json.loads(model[8 : 8 + length])["__metadata__"]
    facts, origin = Facts.from_metadata(header), Origin.parse(json.loads(header["origin"]))
    built, records = json.loads(header["model"]), facts.source or facts
    agreed, unit = description.of(records), protected_unit(facts)
    inputs = list(agreed.columns) if agreed is not None and agreed.array is None else None
    known = None if metrics is None else {name: value for name, value in metrics.items() if value is not None}
    head: dict[str, Any] = {
        "library_name": "sottovoce",
        "tags": ["differential-privacy", "federated-learning", "personalized"],
        "client": origin.client,
        "run": origin.run,
        "created": origin.created or None,
        "sottovoce": origin.sottovoce,
        "model": built["model"],
        "features": built.get("features", "none"),
        "task": facts.task,
        "classes": list(records.class_names) or None,
        "shape": list(records.shape),
        "inputs": inputs,
        "epsilon": origin.epsilon,
        "delta": origin.delta,
        "accounting": origin.accounting,
        "noise": origin.noise,
        "unit": unit,
        "seeded": origin.seeded,
        "metrics": known,
    }
    lines = [f"{name}: {_yaml(value)}" for name, value in head.items() if value is not None]
    what = {"classes": "a class", "labels": "labels", "number": "a number"}[facts.task]
    names = f" ({', '.join(records.class_names)})" if records.class_names else ""
    looked_up = [] if agreed is None else agreed.uncovered
    uncovered = "".join(f"\n\nIts header holds more than that:\n\n- {line}" for line in looked_up)
    told = UNSTATED
    if known is not None:
        figures = [f"- {name.replace('_', ' ')}: {value:.4g}" for name, value in known.items()]
        told = "\n".join([*figures, "", "Measured on held-out records, without noise: no ε covers them."])
    prose = f"""
# The model of {origin.client}

It predicts {what}{names} of a record. The model is `{built["model"]}`, personal to this client and made in
run {origin.run} with sottovoce {origin.sottovoce}.

## Who may see it

{_seen(origin, unit)}{uncovered}

A model that was finished at home from it (`*.home.safetensors`) is another one, for its owner alone.

## Metrics

{told}

## Use

`sottovoce predict` on the command line, `sottovoce.predict` in Python: the file says how records are encoded.
"""
    return "\n".join(
        ["---", *lines, "---", escape(prose, quote=False)]
    )  # Markdown may hold HTML, names must not


def _seen(origin: Origin, unit: str) -> str:
    """Returns who may see a model, and why."""
    if origin.epsilon is None or origin.noise == "nowhere":
        return "Whoever may see the records: no noise protects them."
    promise = f"ε = {origin.epsilon:.4g} at δ = {origin.delta:g} for each {unit}"
    if origin.seeded:
        return (
            f"Whoever may see the records: the run was a seeded simulation, whose noise can be drawn again. "
            f"On paper the promise is {promise}."
        )
    return (
        f"Anybody: it is a published model, made of releases alone. Promise: {promise}. Noise was added "
        f"{PLACES[origin.noise].added}."
    )


def _yaml(value: Any) -> str:
    """A value as YAML 1.1 and 1.2 both read it; a list or table in one line is JSON."""
    if isinstance(value, float):
        digits, e, power = repr(value).partition("e")  # 1e-05 is a text in YAML 1.1
        return digits + (".0" if e and "." not in digits else "") + e + power
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {_yaml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
