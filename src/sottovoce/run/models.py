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

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sottovoce.data import NAMES, client_files, split_seeds
from sottovoce.errors import SottovoceError, nearest
from sottovoce.machine.files import write_atomically
from sottovoce.models.tensors import check_place
from sottovoce.personal import model_bytes, personal_model
from sottovoce.personal.card import card_file, model_card
from sottovoce.personal.finishing import finish as finish_at_home
from sottovoce.personal.finishing import home_file
from sottovoce.plan import Plan
from sottovoce.release.secrets import participant_name
from sottovoce.run.directory import RunDirectory, make_folder
from sottovoce.run.finished import GeneratorFile, open_server
from sottovoce.training.server import Server

Progress = Callable[[str, int], None]


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
        model = _model(file, server, participant, name, spent)
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


def _model(file: GeneratorFile, server: Server, participant: int, name: str, spent: float | None) -> bytes:
    """The file of one participant's model: as it was when the run was finished, if that was stored."""
    coefficients = server.coefficients([participant])[0]
    if file.headers:
        return model_bytes(server.blueprint, coefficients, file.headers[participant])
    seeds = split_seeds(file.plan.participants + file.plan.future_clients, file.plan.seed)
    own = seeds[participant] if file.plan.partition == "client" else None
    return personal_model(
        server.blueprint, coefficients, run=file.run, client=name, epsilon=spent, division=own
    )


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
