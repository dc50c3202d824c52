"""Pictures as people have them: three formats, upright, bounded."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sottovoce.data.pictures import MOST_PIXELS, content_of, pixels
from sottovoce.data.section import DataError

RNG = np.random.default_rng(0)
PICTURE = RNG.integers(0, 256, (20, 30, 3), np.uint8)


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_each_format_is_read_as_three_colors(kind: str) -> None:
    smooth = Image.fromarray(PICTURE[:4, :6]).resize((60, 40), Image.Resampling.BICUBIC)
    found = pixels(_saved(smooth, kind, **({} if kind == "PNG" else {"quality": 98})))
    assert found.shape == (3, 40, 60)
    assert found.dtype == np.uint8
    assert np.abs(found.transpose(1, 2, 0) - np.asarray(smooth).astype(int)).mean() < (
        1 if kind == "PNG" else 8
    )


def test_a_picture_is_turned_as_its_camera_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the top is at the right
    found = pixels(_saved(Image.fromarray(PICTURE), "PNG", exif=exif))
    assert np.array_equal(found.transpose(1, 2, 0), np.rot90(PICTURE, -1))


def test_gray_palettes_and_sixteen_bits_are_colors_too() -> None:
    gray = Image.fromarray(PICTURE[:, :, 0])
    assert np.array_equal(pixels(_saved(gray, "PNG")), np.repeat(PICTURE[None, :, :, 0], 3, axis=0))
    assert pixels(_saved(gray.convert("P"), "PNG")).shape == (3, 20, 30)
    deep = Image.fromarray(PICTURE[:, :, 0].astype(np.uint16) * 256 + 7)
    assert np.array_equal(pixels(_saved(deep, "PNG"))[0], PICTURE[:, :, 0])


def test_of_a_large_jpeg_no_more_is_decoded_than_a_side_needs() -> None:
    large = _saved(Image.fromarray(np.zeros((1600, 2400, 3), np.uint8)), "JPEG")
    height, width = pixels(large, 224).shape[1:]
    assert 224 <= height < 800
    assert width < 1200


def test_other_formats_and_broken_files_are_refused_in_one_line() -> None:
    gif = _saved(Image.fromarray(PICTURE), "GIF")
    whole = _saved(Image.fromarray(PICTURE), "PNG")
    for content, said in (
        (gif, "no PNG"),
        (b"", "no PNG"),
        (b"MZ" * 100, "no PNG"),
        (whole[:200], "is damaged"),
    ):
        with pytest.raises(DataError, match=said):
            pixels(content)


@pytest.mark.parametrize("side", [10_001, 31_623])
def test_a_picture_of_too_many_pixels_is_never_decoded(side: int) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )
    assert side**2 > MOST_PIXELS
    with pytest.raises(DataError, match="more than 100 million pixels"):
        pixels(bomb)


def test_a_file_is_looked_at_before_it_is_taken(tmp_path: Path) -> None:
    good = tmp_path / "a.png"
    good.write_bytes(_saved(Image.fromarray(PICTURE), "PNG"))
    assert content_of(good) == good.read_bytes()
    with pytest.raises(DataError, match="does not exist"):
        content_of(tmp_path / "b.png")
    with pytest.raises(DataError, match="cannot be read"):
        content_of(tmp_path)
    (tmp_path / "c.png").write_text("hello")
    with pytest.raises(DataError, match="no PNG"):
        content_of(tmp_path / "c.png")
