"""Arrays of records, encoded by the public agreement, and those among them that cannot be used."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sottovoce.data.description import Array

Values = npt.NDArray[Any]


def encode_array(x: Values, agreed: Array) -> Values:
    """Stored arrays as a dataset keeps them: bytes stay bytes, series are scaled feature by feature.

    Tokens outside the vocabulary become −1.
    """
    if agreed.vocabulary is not None:
        return np.where((x >= 0) & (x < agreed.vocabulary), x, -1).astype(np.int64)
    if x.dtype == np.uint8 and not agreed.series:
        return np.ascontiguousarray(x)
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = (x / 255 if x.dtype == np.uint8 else x).astype(np.float32)
        if not agreed.series:
            return np.ascontiguousarray(numbers)
        mean, std = np.asarray(agreed.mean, np.float32), np.asarray(agreed.std, np.float32)
        series: Values = (numbers - mean) / std
        return series


def whole_records(x: Values) -> npt.NDArray[np.bool_]:
    """Which records are all finite, or all tokens of the vocabulary."""
    flat = x.reshape(len(x), -1)
    whole: npt.NDArray[np.bool_] = np.all(flat >= 0 if x.dtype == np.int64 else np.isfinite(flat), axis=1)
    return whole


def without_unusable(x: Values, y: Values, usable: npt.NDArray[np.bool_]) -> tuple[Values, Values]:
    """Unusable records as rows of NaN, or of −1 where records are tokens; everything else as it was."""
    if usable.all():
        return x, y
    if x.dtype == np.uint8:
        x = x / np.float32(255)
    x[~usable] = -1 if x.dtype == np.int64 else np.nan
    y[~usable] = 0
    return x, y
