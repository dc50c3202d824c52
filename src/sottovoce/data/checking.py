"""Reads every site of a folder, or one, and says what is wrong before anything is charged.

What it finds is made of records and released to nobody: it is for the eyes of whoever holds the files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sottovoce.data import folder
from sottovoce.data.description import Description
from sottovoce.data.encoding import read_site
from sottovoce.data.findings import Findings, UnusableFile, suspicions, verdict
from sottovoce.data.own import DataError


@dataclass(frozen=True)
class Check:
    """What was found in each client's file, and refusals of files that nobody reads."""

    agreed: Description
    sites: list[Findings]
    unread: list[str]
    alike: list[str]
    """Which sites share many records, a line each."""

    @property
    def problems(self) -> list[str]:
        """What refuses a client, a line each."""
        return [*self.unread, *(problem for site in self.sites for problem in site.problems)]

    @property
    def suspicions(self) -> list[str]:
        """What can be used and looks wrong, a line each."""
        found = (line for site in self.sites for line in suspicions(site, self.agreed))
        return [*self.agreed.uncovered, *self.alike, *found]

    def fields(self) -> dict[str, Any]:
        """For another program of the owner's."""
        return {
            "ok": not self.problems,
            "task": self.agreed.task,
            "unit": self.agreed.unit,
            "inputs": list(self.agreed.facts().shape),
            "records": sum(site.records for site in self.sites),
            "sites": [
                {
                    **asdict(site),
                    "verdict": verdict(site, self.agreed),
                    "suspicions": list(suspicions(site, self.agreed)),
                }
                for site in self.sites
            ],
            "unread": self.unread,
            "alike": self.alike,
            "looked_up": self.agreed.looked_up,
        }


def check(path: str | Path, progress: Callable[[str, int], None] = lambda client, clients: None) -> Check:
    """Checks every site of a folder, or the one in a file.

    `progress` is called with each client's name and the number of clients.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist: give a folder of sites, or one site's file")
    agreed = folder.agreement(path)
    files = folder.client_files(path) if path.is_dir() else {folder.client_name(path): path}
    sites, copies = [], folder.Copies()
    for name, file in files.items():
        progress(name, len(files))
        sites.append(_findings(name, file, agreed, copies))
    unread = folder.unread_files(path) if path.is_dir() else []
    return Check(agreed, sites, unread, copies.suspicions())


def _findings(name: str, path: Path, agreed: Description, copies: folder.Copies) -> Findings:
    try:
        site = read_site(path, agreed)
        copied = copies.problem(name, site)
        site.findings.problems += [] if copied is None else [copied]
        return site.findings
    except UnusableFile as refused:
        return refused.findings
    except DataError as error:
        return Findings(name, problems=[str(error)])
