"""A table as a model sees it when encoders describe some of its columns; all else is as it was.

Each column counts alike, as in a table of numbers: a described one has norm 1, or is 0 where nothing stands
or nothing can be read, and all are divided by the root of their number. A record of which nothing can be read
is a row of NaN. One record's row follows from that record alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from sottovoce.data.pictures import content_of
from sottovoce.data.section import DataError
from sottovoce.data.tables.held import Content, Held, digest_of, digests_in
from sottovoce.data.tables.schema import Description
from sottovoce.machine.determinism import batched
from sottovoce.models.encoders import Encoder, Progress
from sottovoce.models.features.kept import Kept

NOTHING: Mapping[bytes, Content] = MappingProxyType({})
_PART = 128
"""Contents that are encoded, and then kept, together."""


@dataclass(frozen=True)
class Columns:
    """Records (n, inputs) as they were read, and the contents that they name, to (n, size)."""

    agreed: Description
    encoders: Mapping[str, Encoder]
    keeping: bool = True
    """What was described is kept for the next time."""

    @property
    def size(self) -> int:
        return width(self.agreed, {name: encoder.size for name, encoder in self.encoders.items()})

    def __call__(
        self,
        x: Tensor,
        contents: Mapping[bytes, Content] = NOTHING,
        progress: Progress = lambda done, of: None,
    ) -> Tensor:
        parts, place = [], 0
        x = x.cpu().float()
        for name, column in self.agreed.columns.items():
            inputs = x[:, place : place + len(column.encoded(name))]
            place += inputs.shape[1]
            if isinstance(column, Held):
                inputs = self._described(self.encoders[column.encoder], inputs, contents, progress)
            parts.append(inputs)
        table = torch.cat(parts, dim=1) / self.agreed.scale
        table[~x.isfinite().all(dim=1)] = torch.nan
        if self.agreed.whole:
            table[~table.any(dim=1)] = torch.nan
        return table

    def _described(
        self, encoder: Encoder, inputs: Tensor, contents: Mapping[bytes, Content], progress: Progress
    ) -> Tensor:
        """The rows of one column, of norm 1 or 0."""
        digests = digests_in(inputs.numpy())
        wanted = list(dict.fromkeys(digest for digest in digests if digest is not None))
        rows: dict[bytes | None, Tensor] = {}
        identity = encoder.described.digest
        if self.keeping:
            with closing(Kept()) as kept:
                rows.update(kept.found(identity, wanted).items())
        missing = [digest for digest in wanted if digest not in rows]
        for done, part in enumerate(batched(missing, _PART)):
            found = _encoded(encoder, part, contents)
            if self.keeping:
                with closing(Kept()) as kept:
                    kept.keep(identity, found)
            rows.update(found.items())
            progress(len(wanted) - len(missing) + done * _PART + len(part), len(wanted))
        described = torch.zeros(len(digests), encoder.size)
        for place, digest in enumerate(digests):
            if digest in rows:
                described[place] = rows[digest]
        return described


def width(agreed: Description, sizes: Mapping[str, int]) -> int:
    """How many numbers a table's record has when encoders of these sizes have described it."""
    return sum(
        sizes[column.encoder] if isinstance(column, Held) else len(column.encoded(name))
        for name, column in agreed.columns.items()
    )


def _encoded(
    encoder: Encoder, digests: Sequence[bytes], contents: Mapping[bytes, Content]
) -> dict[bytes, Tensor]:
    """What an encoder makes of contents, rounded as what is kept; one that cannot be read is left out."""
    read = {digest: _content(digest, contents.get(digest)) for digest in digests}
    known = {digest: content for digest, content in read.items() if content is not None}
    rows = nn.functional.normalize(encoder(list(known.values())), dim=1).half().float()
    return {digest: row for digest, row in zip(known, rows, strict=True) if bool(row.isfinite().all())}


def _content(digest: bytes, content: Content | None) -> bytes | str | None:
    """A text, or what a picture's file holds, unless it has changed since it was read."""
    if not isinstance(content, Path):
        return content
    try:
        found = content_of(content)
    except DataError:
        return None
    return found if digest_of(found) == digest else None
