"""What a startup kit of NVFlare's needs before our job runs in it, written into its `local` folder alone.

A site runs exactly our executor and no code of a job, streams no log, and knows where its owner's node.toml
lies. A server runs exactly our controller, and keeps what it stores in its own folder. Keys and certificates
stay as NVFlare made them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError, shown
from sottovoce.federation.nvflare import CONTROLLER, EXECUTOR
from sottovoce.federation.settings import Settings
from sottovoce.machine.files import PRIVATE, write_atomically

RESOURCES, AUTHORIZATION, OWN = "resources.json", "authorization.json", "sottovoce.json"
CLASSES, MODE, STREAMING = "class_allow_list", "class_list_enforcement_mode", "allow_log_streaming"
FORBIDDEN = ("byoc", "shell_commands")
"""Rights that bring somebody else's code to a site."""
MOST_CLIENTS = 10_000


class KitError(SottovoceError):
    """A startup kit that cannot be used as it is; the line says why."""


def prepare(kit: str | Path, node: str | Path | None = None) -> list[Path]:
    """Prepares a site's kit for the settings in `node`, or a server's; returns what was written."""
    folder = Path(kit).absolute()
    site = (folder / "startup" / "fed_client.json").exists()
    if not site and not (folder / "startup" / "fed_server.json").exists():
        raise KitError(f"{kit} is no startup kit of a site or a server: give the folder that holds startup/")
    if site == (node is None):
        raise KitError(
            "a server's kit has no node.toml: it holds no records"
            if node is not None
            else f"{kit} is a site's kit: say where its owner's node.toml is"
        )
    local, resources = folder / "local", _read(folder / "local", RESOURCES)
    resources[MODE], resources[CLASSES] = "enforce", [EXECUTOR if site else CONTROLLER]
    resources["components"] = [each for each in resources.get("components", []) if not _streams(each)]
    written = {}
    if node is not None:
        Settings.load(node).check()
        resources[STREAMING] = False
        written[AUTHORIZATION] = _without_code(_read(local, AUTHORIZATION))
        known = _nodes(local) if (local / OWN).exists() else []
        mine = str(Path(node).absolute())
        written[OWN] = {"settings": [*(each for each in known if each != mine), mine]}
    else:
        resources["servers"][0]["max_num_clients"] = MOST_CLIENTS
        _keep_at_home(resources, folder)
    written[RESOURCES] = resources
    for name, values in written.items():
        write_atomically(local / name, (json.dumps(values, indent=1) + "\n").encode(), PRIVATE)
    return [local / name for name in written]


def settings_of(local: Path) -> list[Settings]:
    """What a site's owner has said, one for each run that it takes part in; refused where the kit is open."""
    if faults := list(problems(local)):
        raise KitError(f"{'; '.join(faults)}: prepare this kit with 'sottovoce site nvflare'")
    return [Settings.load(each) for each in _nodes(local)]


def problems(local: Path) -> Iterator[str]:
    """What a site's kit allows to others, and our executor does not: code of a job, lines of its log."""
    resources = _read(local, RESOURCES)
    if resources.get(CLASSES) != [EXECUTOR] or resources.get(MODE) != "enforce":
        yield "other classes than our executor are allowed"
    if resources.get(STREAMING) is not False or any(map(_streams, resources.get("components", []))):
        yield "lines of this site's log are sent to the server"
    for role, rights in _read(local, AUTHORIZATION).get("permissions", {}).items():
        if not isinstance(rights, dict) or any(rights.get(name, "none") != "none" for name in FORBIDDEN):
            yield f"a {role} may bring code"


def _without_code(policy: dict[str, Any]) -> dict[str, Any]:
    """A policy in which no role may bring code; what a role may do otherwise stays as it is."""
    permissions = policy.get("permissions", {})
    rights = {name for each in permissions.values() if isinstance(each, dict) for name in each}
    closed = {}
    for role, allowed in permissions.items():
        each = allowed if isinstance(allowed, dict) else dict.fromkeys(sorted(rights), allowed)
        closed[role] = {**each, **dict.fromkeys(FORBIDDEN, "none")}
    return {**policy, "permissions": closed}


def _streams(component: dict[str, Any]) -> bool:
    return ".logging." in str(component.get("path"))


def _keep_at_home(resources: dict[str, Any], folder: Path) -> None:
    """Jobs and snapshots lie in the server's own folder, where NVFlare's default is one for all in /tmp."""
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(folder / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(folder / "jobs")


def _nodes(local: Path) -> list[str]:
    return [str(each) for each in _read(local, OWN)["settings"]]


def _read(local: Path, name: str) -> dict[str, Any]:
    """A file of a kit, or the default that NVFlare has written for it."""
    path = local / name
    try:
        text = (path if path.exists() else local / f"{name}.default").read_text(encoding="utf-8")
        values: dict[str, Any] = json.loads(text)
    except OSError as error:
        raise KitError(f"no {path} ({error.strerror}): ask for the startup kit again") from None
    except ValueError as error:
        raise KitError(f"{path} is not JSON ({shown(error)}): correct it") from None
    return values
