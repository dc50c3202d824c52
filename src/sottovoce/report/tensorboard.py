"""TensorBoard: the lines of rounds.jsonl as scalars, for whoever follows a run there (extra `tensorboard`).

What is logged are results of a simulation; in a federation they would be the server's private diagnostics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.files import private_folder

SCALARS = {
    "accuracy/future": "future",
    "accuracy/seen": "seen",
    "uplink/bytes": "bytes",
    "downlink/bytes": "downlink_bytes",
    "norm/signal": "signal_norm",
    "norm/noise": "noise_norm",
    "generator/gain": "gain",
    "time/seconds": "seconds",
}


@contextmanager
def round_scalars(folder: str | Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yields the callback that writes a round's line into event files under `folder`.

    A resumed run continues in the same folder; TensorBoard shows the latest value of a round.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SottovoceError(
            "TensorBoard is not installed: pip install 'sottovoce[tensorboard]', or train without it",
            "tensorboard",
        ) from None
    private_folder(Path(folder))
    with SummaryWriter(str(folder)) as writer:

        def write(line: Mapping[str, Any]) -> None:
            for name, key in SCALARS.items():
                if line.get(key) is not None:
                    writer.add_scalar(name, line[key], line["round"])

        yield write
