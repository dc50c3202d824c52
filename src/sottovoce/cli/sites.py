"""The commands of who takes part with shared noise: a site's or a helper's key, and what they agree on."""

from __future__ import annotations

from pathlib import Path

import typer

from sottovoce.cli.display import JSON, MODEL, answer, as_json, out
from sottovoce.report.table import count

site = typer.Typer(help="Keys of a site, and what an agreement on shared noise says.", no_args_is_help=True)
helper = typer.Typer(
    help="A helper of shared noise: it holds no records, and its masks hide all but the sum of a round.",
    no_args_is_help=True,
)

FILE = typer.Argument(help="Where the key is kept; a file that is there is not overwritten.")
NAME = typer.Option(..., help="What the agreement is to call it.")


@site.command("key", epilog="Example: sottovoce site key north.key --name north")
def site_key(file: Path = FILE, name: str = NAME, json: bool = JSON) -> None:
    """Make the key of a site that will share noise, and print its public half and its fingerprint.

    The file stays on this machine and belongs into no backup that others can read: who has it can pass for
    this site. Give the printed line to whoever writes the agreement, and tell the fingerprint to the other
    sites by voice.
    """
    _make(file, name, json=json)


@helper.command("key", epilog="Example: sottovoce helper key board.key --name board")
def helper_key(file: Path = FILE, name: str = NAME, json: bool = JSON) -> None:
    """Make the key of a helper, and print its public half and its fingerprint.

    A participating site that helps as well makes another key for that, under the same name. Tell the
    fingerprint to every site by voice: each writes it into its own node config, or refuses.
    """
    _make(file, name, json=json)


@site.command(epilog="Example: sottovoce site agreement agreement.toml")
def agreement(
    file: Path = typer.Argument(help="agreement.toml, as the server's operator gave it."),
    model: str = MODEL,
    json: bool = JSON,
) -> None:
    """Show whom an agreement on shared noise names, what it rests on, and what to compare by voice.

    Read the names: everybody whom you do not know must be among those who may collude.
    """
    from sottovoce.errors import SottovoceError
    from sottovoce.federation import Agreement
    from sottovoce.federation.parties import fingerprint
    from sottovoce.report.table import Table

    agreed = Agreement.load(file, simulation=True, model=model)
    parties, plan = agreed.parties, agreed.plan
    if parties is None:
        raise SottovoceError(f"{file} agrees on noise={plan.noise}, not on shared noise: it has no keys")
    marks = {
        role: {name: fingerprint(public) for name, public in group}
        for role, group in (("site", parties.sites), ("helper", parties.helpers))
    }
    honest, digest = plan.in_every_sum - plan.may_collude, agreed.full_digest()
    config = f'noise-shared=true honest={honest} helpers="{",".join(marks["helper"].values())}"'
    if json:
        numbers = {"threshold": plan.in_every_sum, "colluding": plan.may_collude, "honest": honest}
        who = {"sites": marks["site"], "helpers": marks["helper"]}
        as_json({"digest": digest, **numbers, **who, "config": config})
        return
    rows = [[role, name, mark] for role, group in marks.items() for name, mark in group.items()]
    out.print(Table(["", "name", "fingerprint"], rows, str(file)).terminal())
    may = plan.may_collude
    text = (
        f"A sum is of at least {plan.in_every_sum} sites, of whom {may} may work with the server: ε is for "
        f"{honest} honest ones, while cryptography holds and one helper is honest.\n"
    )
    if len(parties.both) > may + 1:  # all helpers but one would be more than may collude
        text += f"{len(parties.both)} helpers are sites too: at most {may} of them may be dishonest.\n"
    text += f"If you accept these helpers, your node config says: {config}\n"
    text += f"Digest, equal for everybody who holds this agreement: {digest}"
    out.print(text, soft_wrap=True, highlight=False)


@helper.command(epilog="Example: sottovoce helper status helper/")
def status(
    directory: Path = typer.Argument(
        help="The helper's directory, as its node config names it.", readable=False
    ),
    json: bool = JSON,
) -> None:
    """Show which rounds a helper has answered or given up, in each run, and which it has a key for.

    To start one: flower-supernode with the node config helper=true, directory, agreement and key. The
    directory belongs into no backup: a helper that was restored never answers for its run again.
    """
    from sottovoce.federation.sharing import answered

    runs = answered(directory)
    lines = [
        f"run {run['run']}: {count(run['answered'], 'round')} answered, {run['given_up']} given up, "
        + (f"waits for round {run['round']}" if run["round"] else "nothing more to answer")
        for run in runs
    ]
    answer(runs, "\n".join(lines) or f"no round was asked for in {directory} so far", json=json)


def _make(file: Path, name: str, *, json: bool) -> None:
    from sottovoce.federation.parties import SiteKey, check_name, fingerprint

    check_name(name)
    public = SiteKey.make(file).public
    mark = fingerprint(public)
    text = (
        f"the key is in {file}: it stays here\n"
        f'for the agreement (one line): "{name}" = "{public}"\n'
        f"fingerprint, to tell by voice: {mark}"
    )
    answer({"name": name, "public": public, "fingerprint": mark, "file": str(file)}, text, json=json)
