"""Pictures as people have them: PNG, JPEG and WebP files, upright, as red, green and blue.

What a file holds is a stranger's: it is opened by these three formats alone, its size is read before its
pixels, and whatever goes wrong in a decoder is one line about that file. Needs Pillow.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sottovoce.data.section import DataError
from sottovoce.errors import extra

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
MOST_PIXELS = 10**8
"""Of one picture: more is no photograph, and would fill the memory."""
MOST_BYTES = 2**28
_FORMATS = ("PNG", "JPEG", "WEBP")


def content_of(path: Path) -> bytes:
    """The bytes of a picture's file, whose size and format are looked at and whose pixels are not."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(f"is larger than {MOST_BYTES >> 20} MiB: save it smaller")
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError("does not exist") from None
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})") from None
    _opened(content)
    return content


def pixels(content: bytes, side: int = 0) -> npt.NDArray[np.uint8]:
    """A picture as bytes (3, H, W), turned as its EXIF data say.

    Of a large JPEG not more than is needed for a `side` is decoded.
    """
    image = _opened(content)
    from PIL import ImageOps

    try:
        if side:
            image.draft("RGB", (side, side))
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):  # 16 bits, which Pillow would cut off above 255
            gray = (np.asarray(upright).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
            return np.repeat(gray[None], 3, axis=0)
        return np.ascontiguousarray(np.asarray(upright.convert("RGB")).transpose(2, 0, 1))
    except Exception as error:  # a decoder fails in many ways
        raise DataError(f"is damaged ({_reason(error)}): save it again") from None


def _opened(content: bytes) -> Any:
    Image = extra("PIL.Image", "pictures need Pillow", "encoders")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(content), formats=_FORMATS)
    except Image.DecompressionBombError:
        raise DataError(_too_large()) from None
    except Exception:  # a decoder fails in many ways
        raise DataError("is no PNG, JPEG or WebP picture: save it as one") from None
    if image.width * image.height > MOST_PIXELS:
        raise DataError(_too_large())
    return image


def _too_large() -> str:
    return f"has more than {MOST_PIXELS // 10**6} million pixels: save it smaller"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:60] or type(error).__name__
