"""A run that stops in the middle."""

from __future__ import annotations

import pytest

from sottovoce.run.training import Interrupted, train


def interrupted(plan, out, records, **options) -> None:
    def stop(line: dict) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        train(plan, out, dataset=records, on_round=stop, **options)
