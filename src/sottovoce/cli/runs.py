"""The commands around a run: plan, train, evaluate, personalize, report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from sottovoce.cli import options
from sottovoce.cli.display import (
    answer,
    as_json,
    bullet,
    consent,
    epsilon,
    err,
    facts,
    personalized,
    progress,
    released_anyway,
    round_progress,
    say,
    show_table,
)
from sottovoce.cli.result import show, show_clients
from sottovoce.errors import SottovoceError, nearest, shown
from sottovoce.plan import Plan, keys
from sottovoce.plan.catalog import PLACES
from sottovoce.plan.checks import PlanError, split
from sottovoce.report.table import Table, data_size, duration, number

THREADS = typer.Option(0, min=0, help="CPU threads; 0: as torch decides. Changes speed only.")
LEDGER = typer.Option(None, help="Ledger shared by several runs on the same records, so that budgets add up.")


def plan(
    settings: list[str] = options.SETTINGS,
    keys_: bool = typer.Option(False, "--keys", help="List every key with its meaning, and stop."),
    model: str = options.OWN_MODEL,
    features: str = options.OWN_FEATURES,
    json: bool = options.JSON,
) -> None:
    """Say what a run will cost before it starts: noise, ε per client, bytes each way, time."""
    if keys_:
        rows = keys()
        if json:
            as_json([{"key": name, "default": default, "help": text} for name, default, text in rows])
        else:
            facts("Keys of a plan", {name: f"{text} ({default})" for name, default, text in rows})
        return
    from sottovoce.run import cost

    costs = cost.outline(plan_of(settings, model, features))
    if json:
        as_json(costs)
        return
    resolved = costs["plan"]
    least, most, future = (epsilon(costs[key]) for key in ("epsilon_min", "epsilon", "epsilon_future"))
    facts(
        f"{resolved['method']} on {resolved['dataset']}, preset {resolved['preset']}",
        {
            "model": f"{costs['model_parameters']:,} parameters, {costs['coefficients']:,} coefficients "
            f"({costs['basis']} basis)",
            "promise": costs["promise"],
            "noise": _noise(costs),
            "releases": _releases(costs),
            "ε per client": f"{_range(least, most)} at δ = {costs['delta']:g} "
            f"({costs['accounting']} accounting)",
            "ε of a future client": future,
            "uplink": f"{data_size(costs['uplink_bytes'])} in all, "
            f"about {data_size(costs['message_bytes'])} a release ({resolved['channel']})",
            "downlink": f"{data_size(costs['downlink_bytes'])} in all, "
            f"{data_size(costs['downlink_message_bytes'])} of coefficients before a release"
            + (
                f", and {data_size(costs['downlink_once_bytes'])} once"
                if costs["downlink_once_bytes"]
                else ""
            ),
            "time": f"about {duration(costs['seconds'])} on this machine; as a federation about "
            f"{duration(costs['seconds_deployed'])}, at 6 to 10 s a round",
        },
    )
    if costs["sharing"] is not None:
        _show_sharing(costs["sharing"])
    show_clients(costs["clients"], costs["unit"])
    for doubt in costs["doubts"]:
        bullet(doubt)


def train(
    settings: list[str] = options.SETTINGS,
    out: Path = typer.Option(..., help="Directory of the run."),
    resume: bool = typer.Option(False, "--resume", help="Continue an interrupted run, bit for bit."),
    ledger: Path = LEDGER,
    device: str = options.DEVICE,
    threads: int = THREADS,
    tensorboard: Path = typer.Option(None, help="Also log rounds for TensorBoard into this folder."),
    cache: bool = typer.Option(True, help="Keep computed features in the cache, for the next run."),
    masks: bool = typer.Option(False, "--masks", help="noise=shared: mask shares, unmask sums; same result."),
    model: str = options.OWN_MODEL,
    features: str = options.OWN_FEATURES,
    json: bool = options.JSON,
) -> None:
    """Train a federation and write its models, its ledger and its report into a directory."""
    import torch

    from sottovoce.report.tracking import TensorBoard
    from sottovoce.run import train as train_run
    from sottovoce.run.directory import RunDirectory

    if threads:
        torch.set_num_threads(threads)
    _check_device(device)
    if resume and not settings:
        chosen = RunDirectory(out).plan()
        _check_code(chosen, {"model": model, "features": features}, out / "plan.toml")
    else:
        chosen = plan_of(settings, model, features)
    with round_progress() as training, progress("features", rate="records") as on_features:
        result = train_run(
            chosen,
            out,
            ledger=ledger,
            resume=resume,
            device=device,
            cache=cache,
            masks=masks,
            callbacks=[training, *([] if tensorboard is None else [TensorBoard(tensorboard)])],
            on_features=on_features,
        )
    if json:
        as_json(result)
    else:
        show(result, out)
        say(f"\nreport: {out / 'report.html'}")


def evaluate(
    run: Path = typer.Argument(help="Directory of a finished run."),
    model: str = options.MODEL,
    features: str = options.FEATURES,
    device: str = options.DEVICE,
    json: bool = options.JSON,
) -> None:
    """Evaluate a finished run again, on participants and future clients."""
    from sottovoce.run.training import evaluate as evaluate_run

    _check_device(device)
    with err.status("evaluating"):
        result = evaluate_run(run, module=model, features=features, device=device)
    if json:
        as_json(result)
    else:
        show(result, run)


def personalize(
    run: Path = typer.Argument(help="Directory of a finished run."),
    data: Path = options.DATA,
    out: Path = options.MODEL_OUT,
    ledger: Path = options.LEDGER,
    client: str = options.CLIENT,
    epsilon: float = options.EPSILON,
    delta: float = options.DELTA,
    yes: bool = options.YES,
    finish: bool = options.FINISH,
    model: str = options.MODEL,
    features: str = options.FEATURES,
    json: bool = options.JSON,
) -> None:
    """Give a client that never trained its own model, for the price of one context.

    The price is stated at the client's own δ, and asked for: nothing is released without a yes.
    """
    from sottovoce.federation.onboarding.client import personalize as personalize_client
    from sottovoce.privacy.terms import Terms

    terms = Terms(ledger, client, epsilon, delta, consent(yes=yes))
    with released_anyway(json=json):
        found = personalize_client(
            run, data, out, terms=terms, module=model, features=features, finish=finish
        )
    personalized(found, json=json)


def report(
    run: Path = typer.Argument(help="Directory of a finished run, or folder of results with an index.json."),
    json: bool = options.JSON,
) -> None:
    """Write report.html, one self-contained page about a run, or about a reproduction of the paper."""
    from sottovoce.cli.studies import study
    from sottovoce.report.run import write_report

    reproduced = (run / "index.json").exists()
    path = study("reproduction").write_report(run) if reproduced else write_report(run)
    answer({"report": str(path)}, f"report: {path}", json=json)


def _check_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise SottovoceError(f"--device {device} is not known: {nearest(device, ('cpu', 'cuda'))}")
    if device == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        raise SottovoceError("--device cuda: this machine or this build of torch has no GPU, use cpu")


def _show_sharing(shared: dict[str, Any]) -> None:
    honest = shared["epsilon_by_honest"]
    rows = [["true ε", *(epsilon(value) for value in honest.values())]]
    show_table(Table(["honest clients in a sum", *map(str, honest)], rows))
    say(
        f"ε is stated for {shared['honest']}; 1 is what is left if all helpers, or all other clients, work "
        "with the server. A helper holds no records; it answers once a round: "
        f"{data_size(shared['helper_up_bytes'])} up, {data_size(shared['helper_down_bytes'])} down."
    )


def _noise(costs: dict[str, Any]) -> str:
    contexts = f"{costs['sigma_context']:.6f} for contexts" if costs["releases_context"] else ""
    if not PLACES[costs["plan"]["noise"]].summed:
        own = sorted({site["sigma"] for site in costs["clients"] if site["sigma"] is not None})
        sigmas = f"{costs['sigma']:.6f}" if len(own) < 2 else _range(number(own[0]), number(own[-1]))
        gain = costs["shared_gain"]
        less = (
            f"; noise=shared would leave 1/{gain:.1f} of it in a round's mean, and trust no server"
            if gain
            else ""
        )
        return ", ".join(filter(None, (f"at each client: σ = {sigmas} for gradients", contexts))) + less
    if costs["sharing"] is not None:
        shared = costs["sharing"]
        added = (
            f"shared by clients: σ = {costs['sigma']:.6f} from {shared['honest']} of them in a round's sum "
            f"(at least {shared['threshold']} of {shared['clients']} are in it, {shared['colluding']} may "
            f"collude), {shared['sigma_total']:.6f} if all come"
        )
        return added + (f"; at the client: {contexts}" if contexts else "")
    once = (
        f"at the server: σ = {costs['sigma']:.6f} once a round for the sum of gradients, of which each "
        f"comes with {costs['sigma_carried']:.6f}, which protects nobody"
    )
    return once + (f"; at the client: {contexts}" if contexts else "")


def _releases(costs: dict[str, Any]) -> str:
    each, once = _range(costs["releases_min"], costs["releases_max"]), costs["releases_once"]
    if not once:
        return f"{each} per client, {costs['releases']:,} in all"
    kinds = " and a ".join(once)
    return f"{each} gradients per client, {costs['releases']:,} in all, and once a {kinds} of each"


def _range(least: object, most: object) -> str:
    return str(most) if least == most else f"{least} to {most}"


def plan_of(settings: list[str] | None, model: str | None = None, features: str | None = None) -> Plan:
    """A plan from command-line words: at most one file, before or among the key=value settings.

    Code that the file names must be named on the command line too: as a setting, or by `model`, `features`.
    """
    words = list(settings or [])
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise PlanError(f"'{files[1]}' is a second plan file: give one, and settings as key=value")
    typed = dict(split(word) for word in words if "=" in word)
    typed |= {name: code for name, code in (("model", model), ("features", features)) if code}
    plan = Plan.load(files[0] if files else None, typed)
    _check_code(plan, typed, *files)
    return plan


def _check_code(plan: Plan, typed: Mapping[str, str | None], *source: object) -> None:
    """Refuses code that a file names and nobody has typed: plans are passed around, and are no programs."""
    for name in ("model", "features"):
        code = getattr(plan, name)
        if ":" in code and typed.get(name) != code:
            where = "".join(f"{file} names " for file in source)
            raise PlanError(
                f"{where}{name}={shown(code)}, which is code: if you trust it, name it yourself, with "
                f"{name}={shown(code)} or --{name} {shown(code)}"
            )
