"""Features of a dataset, computed once and kept: private data, so they are for their owner alone.

They lie in the cache folder as float16, under a digest of records and map that is keyed with a secret of this
machine, so that a name says nothing about records. What is kept is what is used: a run without the cache
rounds its features the same way.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sottovoce.data import Dataset, Facts, Records, cache_folder, identified, read_client
from sottovoce.data.tables.held import Content
from sottovoce.machine.files import kept_secret, locked, write_atomically
from sottovoce.models.features import FeatureMap, open_features
from sottovoce.models.features.columns import Columns
from sottovoce.models.features.encoded import Encoded, check_own, encoded_size, open_encoded
from sottovoce.models.features.kept import features_folder
from sottovoce.models.features.local import fingerprint, opened
from sottovoce.plan import Plan
from sottovoce.plan.catalog import names_encoder

Progress = Callable[[int, int], None]
_BATCH = 2048
_TILED = "tiles 1"
"""What was kept before was rounded by what lay beside a record."""


def described(
    dataset: Dataset,
    plan: Plan,
    *,
    cache: bool = True,
    progress: Progress = lambda done, of: None,
    device: str = "cpu",
    local: str | None = None,
) -> Dataset:
    """The dataset as the plan's feature map sees it; itself where the plan has none.

    `progress` is called with the number of records done, and of all. Nothing is computed twice for one map
    and dataset, not by two processes either: the second waits. `local` as in `open_features`, here and below.
    Where clients see turned pictures, x holds the features of all four turns, (N, 4, size).
    """
    features = feature_map(plan, dataset.facts, device, local, cache)
    if features is None:
        return dataset
    facts, dataset = described_facts(dataset.facts, plan, local), identified(dataset, plan)
    if isinstance(features, Columns):  # which keeps what it describes itself
        x = features(dataset.x, dataset.contents, progress).half()
        return replace(dataset, x=x.to(dataset.x.device), facts=facts)
    if cache:
        path = features_folder() / f"{_name(dataset, plan)}.npy"
        with locked(path.with_suffix(".lock")):
            if path.exists():
                progress(len(dataset), len(dataset))
            else:
                file = io.BytesIO()
                np.save(file, _computed(dataset, features, plan.shift, progress).numpy())
                write_atomically(path, file.getvalue())
        kept = torch.from_numpy(np.load(path, allow_pickle=False))
    else:
        kept = _computed(dataset, features, plan.shift, progress)
    return replace(dataset, x=kept.to(dataset.x.device), facts=facts)


def described_facts(facts: Facts, plan: Plan, local: str | None = None) -> Facts:
    """Returns what a record is after the plan's feature map, with what it was before."""
    if plan.features == "none" or facts.source is not None:
        return facts
    if names_encoder(plan.features):  # a server need not have it
        size, outputs = (encoded_size(plan, facts),), facts.classes
    else:
        opened = feature_map(plan, facts, local=local)
        assert opened is not None
        size, outputs = (opened.size,), facts.classes
    return Facts(size, outputs, source=facts, task=facts.task, class_names=facts.class_names)


def described_client(
    path: Path,
    plan: Plan,
    facts: Facts,
    *,
    needed: int,
    labels: bool = True,
    local: str | None = None,
    limited: bool = True,
) -> Records:
    """A client's own file, as the run's model sees it; `facts` are its, `limited` as in `read_site`."""
    if facts.source is None:
        return read_client(path, facts=facts, needed=needed, labels=labels, limited=limited)
    feature_map(plan, facts.source, local=local)  # refused, if it is, before a record is read
    # A feature map takes records as they are stored.
    own = read_client(path, facts=facts.source, needed=needed, labels=labels, raw=True, limited=limited)
    stored = Dataset(path.stem, own.x, own.y, facts.source, contents=own.contents)
    kept = described(stored, plan, local=local)
    return replace(own, x=kept.x.float())


def view(
    plan: Plan, facts: Facts, local: str | None = None
) -> Callable[[Tensor, Mapping[bytes, Content]], Tensor]:
    """Returns what the model of a run sees of records as they are stored: normalized, or their features.

    With records it takes the contents that they name, where some are texts or pictures.
    """
    features = None if facts.source is None else feature_map(plan, facts.source, local=local)
    if features is None:
        return lambda x, contents: facts.normalize(x)
    # Features are rounded as those that are kept.
    if isinstance(features, Columns):
        return lambda x, contents: features(x, contents).half().float()
    return lambda x, contents: features(x).half().float()


def feature_map(
    plan: Plan, facts: Facts, device: str = "cpu", local: str | None = None, keeping: bool = True
) -> FeatureMap | Encoded | Columns | None:
    """The public map of a plan; its projection does not depend on the plan's seed, so features serve all."""
    if plan.features == "none" or facts.source is not None:
        return None  # the model sees records themselves, or they are features already
    if names_encoder(plan.features):
        return open_encoded(plan, facts, device, keeping)
    if plan.features == local and plan.encoders:
        check_own(plan, fingerprint(plan.features))
    size, mirror = plan.feature_size, plan.mirror
    return open_features(plan.features, facts.shape, size=size, mirror=mirror, device=device, local=local)


def clean() -> int:
    """Removes everything that was kept; how many bytes that frees."""
    folder = cache_folder() / "features"
    size = sum(file.stat().st_size for file in folder.glob("*")) if folder.exists() else 0
    shutil.rmtree(folder, ignore_errors=True)
    return size


def _computed(dataset: Dataset, features: FeatureMap | Encoded, shift: str, progress: Progress) -> Tensor:
    turns = 1 if shift == "none" else 4
    kept = torch.empty(len(dataset), turns, features.size, dtype=torch.float16)
    for start in range(0, len(dataset), _BATCH):
        x = dataset.x[start : start + _BATCH].cpu()
        for turn in range(turns):
            turned = torch.rot90(x, turn, (2, 3)) if turn else x
            if isinstance(features, Encoded):
                rows = features(turned, partial(_further, progress, start, len(dataset)))
            else:
                rows = features(turned)
            kept[start : start + _BATCH, turn] = rows.half()
        progress(min(start + _BATCH, len(dataset)), len(dataset))
    return kept if turns > 1 else kept[:, 0]


def _further(progress: Progress, before: int, records: int, done: int, of: int) -> None:
    progress(before + done, records)


def _name(dataset: Dataset, plan: Plan) -> str:
    described: tuple[object, ...] = (_TILED, dataset.digest, plan.shaping("features"), weights_digest())
    if ":" in plan.features:
        described = (
            *described,
            fingerprint(plan.features),
            opened(plan.features, dataset.facts.shape).digest,
        )
    key = kept_secret(features_folder() / "key")
    return hmac.new(key, repr(described).encode(), hashlib.sha256).hexdigest()[:32]


def weights_digest() -> str:
    """A fingerprint of the maps themselves: kept features of older weights are not taken for new ones."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
