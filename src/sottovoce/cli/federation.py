"""The commands of a real federation: federate, node, serve, onboard."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from sottovoce.cli import options
from sottovoce.cli.display import answer, consent, note, personalized, released_anyway
from sottovoce.cli.runs import plan_of
from sottovoce.cli.status import wait_for
from sottovoce.errors import SottovoceError, nearest
from sottovoce.report.table import count

GIVE_UP = typer.Option(
    None, min=0.0, metavar="SECONDS", help="Give up after so long without progress; by default never."
)


ENGINES = ("flower", "nvflare")


def federate(
    settings: list[str] = options.SETTINGS,
    plan: Path = typer.Option(None, help="The plan of the federation, a TOML file."),
    records: Path = typer.Option(
        None, help="records.toml: what a record is. Nobody's records are read; clients declare their numbers."
    ),
    keys: Path = typer.Option(
        None,
        help="noise=shared: the keys of all sites and helpers, tables [sites] and [helpers] of a TOML file.",
    ),
    engine: str = typer.Option(
        "flower", help="What carries messages: flower, or nvflare for a cohort that stays."
    ),
    out_: Path = typer.Option(
        None, "--out", help="Write a Flower app, or a job for NVFlare, into this directory."
    ),
    run_directory: Path = typer.Option(
        Path("runs/federation"), help="The server's directory: store, checkpoints, finished run."
    ),
    deal: Path = typer.Option(
        None, help="Divide the plan's dataset into one file per client here, to try things out."
    ),
    patience: float = typer.Option(
        600.0, help="Seconds after which a round continues without missing clients."
    ),
    retry: float = typer.Option(60.0, help="Seconds after which an unanswered request is made again."),
    bucket: int = typer.Option(
        0, min=0, max=2**16, help="Pad messages to multiples of so many bytes; 0: not padded."
    ),
    diagnostics: bool = typer.Option(
        False, help="Log bytes, norms and accuracies per client: the server's own, and charged to nobody."
    ),
    threads: int = typer.Option(1, min=1, help="CPU threads of both ends."),
    model: str = options.OWN_MODEL,
    features: str = options.OWN_FEATURES,
    app: Path = typer.Option(None, help="Run this app, or job, instead of writing one."),
    on: str = typer.Option(
        None, help="Where: a SuperLink's name in Flower's config.toml, or an admin's kit."
    ),
    give_up: float = GIVE_UP,
    json: bool = options.JSON,
) -> None:
    """Write an app for a plan, or run one until it is finished, through crashes.

    With --records the server needs no data: clients bring files that are as records.toml says.
    """
    from sottovoce import data
    from sottovoce.federation import Agreement, agree, check_dealt, write_client_files
    from sottovoce.federation.flower import write_app
    from sottovoce.federation.flower.running import run_app
    from sottovoce.federation.keys import Parties
    from sottovoce.federation.nvflare import META, write_job
    from sottovoce.federation.nvflare.running import run_job
    from sottovoce.federation.server import Options
    from sottovoce.models.features.encoded import by_kind
    from sottovoce.run.prepare import complete

    if engine not in ENGINES:
        raise SottovoceError(f"no engine '{engine}': {nearest(engine, ENGINES)}")
    if app is not None:
        if on is None:
            raise SottovoceError(
                "say where to run it, with --on: the name of a SuperLink in Flower's config.toml, or an "
                "administrator's startup kit of NVFlare's"
            )
        carry = run_job if (app / META).exists() else run_app
        run = carry(app, on, give_up=give_up, say=note)
        answer({"run": run, "status": "completed"}, f"run {run} is completed", json=json)
        return
    if out_ is None:
        raise SottovoceError("say where to write the app: --out DIR (or run one: --app DIR --on NAME)")
    about = [f"dataset={records.name}", "partition=client"] if records is not None else []
    chosen = plan_of([*([str(plan)] if plan is not None else []), *about, *(settings or [])], model, features)
    parties = None if keys is None else Parties.load(keys)
    facts, dealt = None, None
    if deal is not None:
        if records is not None:
            raise SottovoceError("--deal divides a dataset, and --records names none: omit one of them")
        dealt = data.load(chosen.dataset, by_kind(chosen))
        check_dealt(dealt)
        if parties is None and chosen.place.shared:
            parties = Parties.dealt(deal, chosen)
    if records is not None:
        facts = data.Description.load(records).encoded_by(by_kind(chosen)).facts()
    elif deal is None and chosen.gradient_records:
        facts = data.load(chosen.dataset, by_kind(chosen)).facts
    if facts is None:
        agreement = agree(chosen, dealt, parties)
    else:
        own = {"model": chosen.model, "features": chosen.features}
        agreement = Agreement(*complete(chosen, facts, features=chosen.features), **own, parties=parties)
    agreed = data.schema.of(agreement.facts.source or agreement.facts)
    for line in [] if agreed is None else agreed.uncovered:
        note(f"{line}; nodes refuse it unless owners agree")
    if deal is not None:
        write_client_files(agreement, deal, dealt)
    chosen_options = Options(patience=patience, bucket=bucket, diagnostics=diagnostics)
    how: dict[str, Any] = {"run_directory": run_directory, "options": chosen_options}
    how |= {"retry": retry, "threads": threads}
    if engine == "nvflare":
        written = write_job(agreement, out_, simulated=deal is not None, **how)
        file = written / "app" / "config" / "agreement.toml"
    else:
        written = write_app(agreement, out_, simulated_clients=deal, **how)
        file = written / "sottovoce_app" / "agreement.toml"
    said = {"app": str(written), "agreement": str(file)}
    who = count(agreement.plan.participants, "participant")
    text = f"app for {who}: {written}\ngive every client its agreement: {file}"
    answer(said, text, json=json)


REPLACED = typer.Option(None, hidden=True)
"""An option that node.toml replaces: taken in this version, and not shown."""


def node(
    file: Path = typer.Argument(
        metavar="NODE.toml", help="What the owner of this node decides, in one file."
    ),
    init: bool = typer.Option(False, "--init", help="Write a template of it, every key explained, and stop."),
    rejoin: bool = typer.Option(
        False,
        "--rejoin",
        help="Take part again in a run that this client has left because it was put back; charges for it.",
    ),
    give_up: float = GIVE_UP,
    settings: list[str] = typer.Argument(None, hidden=True),
    directory: Path = REPLACED,
    records: Path = REPLACED,
    agreement: Path = REPLACED,
    key: Path = REPLACED,
    authority: Path = REPLACED,
    trusted: Path = REPLACED,
    insecure: bool = REPLACED,
    partition_id: int = REPLACED,
    epsilon: float = REPLACED,
    delta: float = REPLACED,
    client: str = REPLACED,
    ledger: Path = REPLACED,
    finish: bool = REPLACED,
    model: str = REPLACED,
    features: str = REPLACED,
    port: int = REPLACED,
) -> None:
    """Take part in a federation with one's own records, until somebody ends it. Starting it is the consent.

    It may be started before the server, and again at any time: it waits, and says for what once a minute. A
    client whose directory or ledger was restored from a backup leaves its run. With --rejoin, said once,
    everything that may have left since is charged, up to the end of the run.
    """
    from sottovoce.federation.flower.joining import Connection, check_port, supernode
    from sottovoce.federation.settings import Settings, SettingsError, template
    from sottovoce.machine.files import write_atomically

    if init:
        if file.exists():
            raise SottovoceError(f"{file} is there already: name another file")
        write_atomically(file, template().encode())
        note(f"written to {file}: change what is not so at your site, then 'sottovoce node {file}'")
        return
    paths = {"directory": directory, "records": records, "agreement": agreement, "ledger": ledger}
    reached = {"node_key": key, "authority": authority, "trusted": trusted}
    config: dict[str, Any] = dict(_setting(each) for each in settings or [])
    config |= {name: str(path.absolute()) for name, path in paths.items() if path is not None}
    said: dict[str, Any] = {
        "partition-id": partition_id,
        "client": client,
        "epsilon": epsilon,
        "delta": delta,
    }
    said |= {"model": model, "features": features, "finish": finish}
    config |= {name: value for name, value in said.items() if value is not None}
    connection: dict[str, Any] = {"port": port, "insecure": insecure}
    connection |= {name: None if path is None else str(path.absolute()) for name, path in reached.items()}
    connection = {name: value for name, value in connection.items() if value is not None}
    if file.suffix == ".toml":
        if config or connection:
            raise SettingsError(f"say {', '.join((*config, *connection))} in {file}: it takes all settings")
        chosen, config = Settings.load(file).check(), {"settings": str(file.absolute())}
    else:
        note(f"these options are keys of a node.toml now, and work in this version: {TEMPLATE}")
        flower = {**connection, "server": str(file)}
        chosen = Settings.given({**config, "flower": flower}, "the command line").check()
    link = chosen.flower
    for line in chosen.rejoined() if rejoin else ():
        note(line)
    if rejoin and link.server is None:  # another engine carries the messages
        return
    if link.server is None:
        raise SettingsError(f"{file}: [flower] server is missing: say where the server is, host:port")
    if (link.authority is None) != link.insecure:
        raise SettingsError(
            "name the certificate by which the server is known, authority under [flower]; to try things out "
            "unencrypted, say insecure = true there instead"
        )
    check_port(link.port)
    command = supernode(
        link.server,
        config,
        authority=link.authority,
        key=link.node_key,
        trusted=link.trusted,
        port=link.port,
    )
    signal.signal(signal.SIGTERM, _interrupt)
    assert chosen.directory is not None
    with suppress(KeyboardInterrupt):
        Connection(command, link.server, chosen.directory, note).keep(give_up=give_up)


TEMPLATE = "'sottovoce node node.toml --init' writes one that explains them"


def _setting(said: str) -> tuple[str, str | bool]:
    """One key=value of a node config."""
    name, equals, value = said.partition("=")
    if not equals or not name:
        raise SottovoceError(f"'{said}' is no setting: write key=value")
    return name, {"true": True, "false": False}.get(value, value)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def serve(
    run: Path = typer.Argument(help="Directory of a finished run.", readable=False),
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(8444, help="Port to listen on; nginx passes its port 8443 on to it."),
    behind_proxy: bool = typer.Option(False, help="Listen beyond this machine: a proxy there does the TLS."),
    new_token: str = typer.Option(None, metavar="NAME", help="Make a token for a client, show it, and stop."),
    revoke: str = typer.Option(None, metavar="NAME", help="Revoke a client's token, and stop."),
    open_: bool = typer.Option(False, "--open", help="Need no tokens; for trying out."),
    waiting: int = typer.Option(128, min=1, help="Connections at a time; more are shed with 503."),
    wait: bool = typer.Option(False, help="Wait until the run is finished."),
    model: str = options.MODEL,
    features: str = options.FEATURES,
    json: bool = options.JSON,
) -> None:
    """Onboard future clients, behind nginx (deploy/nginx.conf): one context in, one personal model out."""
    try:
        import uvicorn

        from sottovoce.federation.onboarding.remote import this_machine
        from sottovoce.federation.onboarding.service import configured, create_service
        from sottovoce.machine.tokens import new_token as make_token
        from sottovoce.machine.tokens import revoke_token
    except ModuleNotFoundError as error:
        raise SottovoceError(f"{error.name} is missing: pip install 'sottovoce[serve]'") from None
    if new_token is not None:
        token = make_token(run, new_token)
        text = f"{token}\n(shown once; give it to {new_token})"
        answer({"name": new_token, "token": token}, text, json=json)
        return
    if revoke is not None:
        revoke_token(run, revoke)
        text = f"the token of {revoke} is revoked, also where the service is running"
        answer({"name": revoke, "revoked": True}, text, json=json)
        return
    if not behind_proxy and not this_machine(host):
        raise SottovoceError(
            f"{host} would be served unencrypted and without limits: listen on 127.0.0.1 behind nginx "
            "(deploy/nginx.conf), or say --behind-proxy"
        )
    if wait:
        wait_for(run, "finished")
    service = create_service(run, open_to_all=open_, model=model, features=features, hosts=[host])
    uvicorn.Server(configured(service, host=host, port=port, waiting=waiting)).run()


def onboard(
    url: str = typer.Argument(help="Where the service is, https://host:port."),
    data: Path = options.DATA,
    out: Path = options.MODEL_OUT,
    token_file: Path = typer.Option(None, help="File with the client's token."),
    authority: Path = typer.Option(None, help="Certificate of the authority that vouches for the service."),
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
    """Get a model from a service for the price of one context, which is charged here.

    The price is stated at the client's own δ, and asked for: nothing is released without a yes.
    """
    from sottovoce.federation.onboarding.remote import onboard as onboard_client
    from sottovoce.privacy.terms import Terms

    token = token_file.read_text().strip() if token_file is not None else ""
    terms = Terms(ledger, client, epsilon, delta, consent(yes=yes))
    with released_anyway(json=json):
        found = onboard_client(
            url,
            data,
            out,
            token=token,
            authority=authority,
            terms=terms,
            model=model,
            features=features,
            finish=finish,
        )
    personalized(found, json=json)
