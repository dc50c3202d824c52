"""What people keep for themselves: ledgers, of which they see what was spent, raise a budget or trust a
copy; and the keys of a site or helper of shared noise, with what they agree on.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from sottovoce.cli import options
from sottovoce.cli.display import answer, as_json, confirm, note, say, show_table
from sottovoce.plan.catalog import Kind
from sottovoce.report.table import Table, count

if TYPE_CHECKING:
    from sottovoce.privacy.ledger import Ledger


ledgers = typer.Typer(help="Read a ledger, or change what it allows.", no_args_is_help=True)

NOTHING = dict.fromkeys(get_args(Kind), 0)
DRAWN_BESIDE = ("run", "server.sqlite")
"""In a run's folder: a simulation's notes of drawn noise, and those of a federation's server."""
LEDGER = typer.Argument(help="A ledger, such as NAME.ledger.sqlite beside a client's records.")


@ledgers.command(epilog="Example: sottovoce ledger show my.ledger.sqlite")
def show(ledger: Path = LEDGER, json: bool = options.JSON) -> None:
    """Show who has spent what in which run, and the budgets that were set.

    ε is stated at the budget's δ, or at 1e-5 where none was set. What a ledger had lost was charged again as
    a sum; so is what a client has spent in another ledger (a run that is called "ledger …"). Where some
    releases have their noise at the server, ε holds for readers of models only.
    """
    from sottovoce.privacy.ledger import Ledger

    with Ledger.open(ledger, scope=None) as book:
        content = _content(book)
    if json:
        as_json(content)
        return
    others = {
        "context": "contexts",
        "gradient": "gradients",
        "lost": "as a sum",
        "confusion": "confusions",
        "calibration": "calibrations",
        "centre": "centres",
        "at_server": "noise at server",
    }
    # What a ledger has none of would only make its table wide.
    counted = {kind: head for kind, head in others.items() if any(run[kind] for run in content["runs"])}
    rows = [
        [run["client"], run["run"], *(str(run[kind]) for kind in counted), _spent(run)]
        for run in content["runs"]
    ]
    rows += [
        [each["client"], "all runs", *(str(each.get(kind, "")) for kind in counted), _spent(each)]
        for each in content["clients"]
        if sum(run["client"] == each["client"] for run in content["runs"]) > 1  # else its run says it
    ]
    heads = ["client", "run", *counted.values(), f"ε at δ = {content['delta']:g}"]
    show_table(Table(heads, rows, f"{ledger}: {content['about']}"))
    if any(each["at_server"] for each in content["clients"]):
        say(
            "some releases have their noise at the server: ε holds for readers of models; for readers of "
            "releases there is no finite ε"
        )
    if any(each["epsilon_if_helpers_fail"] > each["epsilon"] for each in content["clients"]):
        helpers = f" ({', '.join(content['helpers'])})" if content["helpers"] else ""
        say(
            f"{content['shared'] or 'some'} releases are parts of sums whose noise clients share: their ε "
            f"holds while cryptography holds and one helper is honest{helpers}; if all helpers fail, it is "
            + ", ".join(
                f"{each['epsilon_if_helpers_fail']:.4f} of {each['client']}" for each in content["clients"]
            )
        )
    for budget in content["budgets"]:
        said = "raised to" if budget["raised"] else "set to"
        say(f"budget {said} ε = {budget['epsilon']:g} at δ = {budget['delta']:g}, {budget['time']}")
    if content["copied"]:
        note(
            "these files were copied or restored from a backup: what was released since is not known, and "
            f"nothing more is, until 'sottovoce ledger vouch {ledger}'"
        )


@ledgers.command("raise", epilog="Example: sottovoce ledger raise my.ledger.sqlite --epsilon 12")
def raise_(
    ledger: Path = LEDGER,
    epsilon: float = typer.Option(..., help="ε that all releases of these records together may reach."),
    delta: float = typer.Option(None, help="δ at which it is counted; by default as before."),
    yes: bool = options.YES,
    json: bool = options.JSON,
) -> None:
    """Let a client's records spend more than its strictest budget so far.

    What was released stays released: raising a budget weakens what was promised about every record, old ones
    included, and lowering it later takes nothing back.
    """
    from sottovoce.privacy.ledger import Ledger

    with Ledger.open(ledger, scope=None) as book:
        held = book.budget
        before = "no budget" if held is None else str(held)
        note(f"from {before} to ε = {epsilon:g}{_meaning(epsilon)}")
        confirm("raise the budget?", yes=yes)
        now = book.raise_budget(epsilon, delta)
    answer({"ledger": str(ledger), "budget": asdict(now)}, f"{ledger} now allows {now}", json=json)


@ledgers.command(epilog="Example: sottovoce ledger vouch my.ledger.sqlite")
def vouch(ledger: Path = LEDGER, yes: bool = options.YES, json: bool = options.JSON) -> None:
    """Trust this copy: take a ledger that was copied or restored for the true one.

    Only its owner can know that nothing was released after the copy was made. If something was, and is not
    in this ledger, it will never be counted. Of a run with noise at the server, given by its folder, only
    another owner or mode of its files (chown -R) can be vouched for: a copy of its notes is never trusted.
    """
    if ledger.is_dir():
        _vouch_run(ledger, yes)
        answer({"run": str(ledger), "copied": False}, f"the notes of {ledger} are the true ones", json=json)
        return
    from sottovoce.privacy.ledger import Ledger

    with Ledger.open(ledger, scope=None) as book:
        if book.past.copied:
            note("what left these records after this copy was made, if anything, will never be counted")
            confirm("is nothing missing in it?", yes=yes)
            book.trust_copy()
    answer({"ledger": str(ledger), "copied": False}, f"{ledger} is taken for the true one", json=json)


def _vouch_run(folder: Path, yes: bool) -> None:
    from sottovoce.errors import SottovoceError
    from sottovoce.machine.files import locked
    from sottovoce.machine.rollback import Memory
    from sottovoce.release.places.server import DrawnRounds

    noted = [folder / name for name in DRAWN_BESIDE if Memory(folder / name).path.exists()]
    if not noted:
        raise SottovoceError(f"{folder} has no notes of a run with noise at the server: give its folder")
    note("if they were put back from a backup, noise is drawn a second time, which undoes it")
    confirm("has nothing but their owner or mode changed?", yes=yes)
    for name in noted:
        with locked(Memory(name).lock, timeout=0, busy=f"a process is working with {folder}: stop it first"):
            DrawnRounds.vouch(name)


def _content(book: Ledger) -> dict[str, Any]:
    held, counted = book.budget, book.allowed
    counts: dict[tuple[str, str], dict[str, int]] = {}
    shared, helpers = 0, set[str]()
    for entry in book.charges():
        key = str(entry.charge.client), entry.charge.run.partition("/")[0]
        kinds = counts.setdefault(key, dict(NOTHING))
        kinds[entry.charge.kind] += 1
        shared += entry.charge.place == "shared"
        helpers.update(filter(None, entry.charge.helpers.split(", ")))
    runs: list[dict[str, Any]] = [
        {
            "client": total.client,
            "run": total.run,
            **counts.get((total.client, total.run), NOTHING),
            "at_server": total.server,
            "lost": book.past.lost_in(total.run, total.client).releases,
            "epsilon": counted.price(total.spent),
        }
        for total in book.past.totals()
    ]
    clients = [
        {
            "client": client,
            "releases": book.releases(client),
            "at_server": book.at_server(client),
            "lost": sum(run["lost"] for run in runs if run["client"] == client),
            "epsilon": counted.price(book.spent(client)),
            "epsilon_if_helpers_fail": counted.price(book.spent(client) + book.masked(client)),
            "epsilon_of_releases": None if book.at_server(client) else counted.price(book.spent(client)),
        }
        for client in book.clients()
    ]
    return {
        "ledger": str(book.path),
        "shared": shared,
        "helpers": sorted(helpers),
        "name": book.name,
        "about": _about(book.scope),
        "delta": counted.delta,
        "accounting": counted.accounting,
        "budget": None if held is None else asdict(held),
        "budgets": [
            {**asdict(budget), "raised": raised, "time": time.isoformat(timespec="seconds")}
            for budget, raised, time in book.budgets()
        ],
        "clients": clients,
        "runs": runs,
        "copied": book.past.copied,
    }


def _about(scope: str) -> str:
    kind, _, name = scope.partition(":")
    if kind == "client":
        return f"the records of the client '{name}'"
    return scope if " " in scope else "simulated clients"  # words, or a fingerprint of a division


def _spent(row: dict[str, Any]) -> str:
    return f"{row['epsilon']:.4f}"


def _meaning(epsilon: float) -> str:
    """Returns what ε says in words, where a number says it."""
    if epsilon > 20:
        return ", which promises almost nothing about any one record"
    return (
        f": whoever sees all releases may tell a record apart with odds of up to {math.exp(epsilon):.3g} to 1"
        " (and now and then, with probability δ, beyond that)"
    )


site = typer.Typer(help="Keys of a site, and what an agreement on shared noise says.", no_args_is_help=True)
helper = typer.Typer(
    help="A helper of shared noise: it holds no records, and its masks hide all but the sum of a round.",
    no_args_is_help=True,
)

FILE = typer.Argument(help="Where the key is kept; a file that is there is not overwritten.")
NAME = typer.Option(..., help="What the agreement is to call it.")


@site.command("key", epilog="Example: sottovoce site key north.key --name north")
def site_key(file: Path = FILE, name: str = NAME, json: bool = options.JSON) -> None:
    """Make the key of a site that will share noise, and print its public half and its fingerprint.

    The file stays on this machine and belongs into no backup that others can read: who has it can pass for
    this site. Give the printed line to whoever writes the agreement, and tell the fingerprint to the other
    sites by voice.
    """
    _make(file, name, json=json)


@helper.command("key", epilog="Example: sottovoce helper key board.key --name board")
def helper_key(file: Path = FILE, name: str = NAME, json: bool = options.JSON) -> None:
    """Make the key of a helper, and print its public half and its fingerprint.

    A participating site that helps as well makes another key for that, under the same name. Tell the
    fingerprint to every site by voice: each writes it into its own node.toml, or refuses.
    """
    _make(file, name, json=json)


@site.command(epilog="Example: sottovoce site agreement agreement.toml")
def agreement(
    file: Path = typer.Argument(help="agreement.toml, as the server's operator gave it."),
    model: str = options.MODEL,
    json: bool = options.JSON,
) -> None:
    """Show whom an agreement on shared noise names, what it rests on, and what to compare by voice.

    Read the names: everybody whom you do not know must be among those who may collude.
    """
    from sottovoce.errors import SottovoceError
    from sottovoce.federation import Agreement
    from sottovoce.federation.keys import fingerprint

    agreed = Agreement.load(file, simulation=True, model=model)
    parties, plan = agreed.parties, agreed.plan
    if parties is None:
        raise SottovoceError(f"{file} agrees on noise={plan.noise}, not on shared noise: it has no keys")
    marks = {
        role: {name: fingerprint(public) for name, public in group}
        for role, group in (("site", parties.sites), ("helper", parties.helpers))
    }
    honest, digest = plan.in_every_sum - plan.may_collude, agreed.full_digest()
    helpers = ", ".join(f'"{mark}"' for mark in marks["helper"].values())
    config = f"noise_shared = true\nhonest = {honest}\nhelpers = [{helpers}]"
    if json:
        numbers = {"threshold": plan.in_every_sum, "colluding": plan.may_collude, "honest": honest}
        who = {"sites": marks["site"], "helpers": marks["helper"]}
        as_json({"digest": digest, **numbers, **who, "config": config})
        return
    rows = [[role, name, mark] for role, group in marks.items() for name, mark in group.items()]
    show_table(Table(["", "name", "fingerprint"], rows, str(file)))
    may = plan.may_collude
    text = (
        f"A sum is of at least {plan.in_every_sum} sites, of whom {may} may work with the server: ε is for "
        f"{honest} honest ones, while cryptography holds and one helper is honest.\n"
    )
    if len(parties.both) > may + 1:  # all helpers but one would be more than may collude
        text += f"{len(parties.both)} helpers are sites too: at most {may} of them may be dishonest.\n"
    text += f"If you accept these helpers, your node.toml says:\n{config}\n"
    text += f"Digest, equal for everybody who holds this agreement: {digest}"
    say(text)


@site.command(epilog="Example: sottovoce site nvflare site-1 node.toml")
def nvflare(
    kit: Path = typer.Argument(help="A startup kit of NVFlare's: the folder that holds startup and local."),
    node: Path = typer.Argument(None, metavar="[NODE.toml]", help="What the site's owner decides."),
    json: bool = options.JSON,
) -> None:
    """Prepare a startup kit: exactly our part runs there, no code of a job, and no line of its log is sent.

    A server's kit has no NODE.toml. Files of the kit's local folder are written, and nothing else.
    """
    from sottovoce.federation.nvflare.kit import prepare

    written = [str(path) for path in prepare(kit, node)]
    answer(
        {"kit": str(kit), "written": written}, "\n".join(f"written: {path}" for path in written), json=json
    )


@helper.command(epilog="Example: sottovoce helper status helper/")
def status(
    directory: Path = typer.Argument(
        help="The helper's directory, as its node.toml names it.", readable=False
    ),
    json: bool = options.JSON,
) -> None:
    """Show which rounds a helper has answered or given up, in each run, and which it has a key for.

    To start one: 'sottovoce node node.toml', with helper = true, directory, agreement and site_key. The
    directory belongs into no backup: a helper that was restored never answers for its run again.
    """
    from sottovoce.federation.sums import answered

    runs = answered(directory)
    lines = [
        f"run {run['run']}: {count(run['answered'], 'round')} answered, {run['given_up']} given up, "
        + (f"waits for round {run['round']}" if run["round"] else "nothing more to answer")
        for run in runs
    ]
    answer(runs, "\n".join(lines) or f"no round was asked for in {directory} so far", json=json)


def _make(file: Path, name: str, *, json: bool) -> None:
    from sottovoce.federation.keys import SiteKey, check_name, fingerprint

    check_name(name)
    public = SiteKey.make(file).public
    mark = fingerprint(public)
    text = (
        f"the key is in {file}: it stays here\n"
        f'for the agreement (one line): "{name}" = "{public}"\n'
        f"fingerprint, to tell by voice: {mark}"
    )
    answer({"name": name, "public": public, "fingerprint": mark, "file": str(file)}, text, json=json)
