"""Free text as numbers without weights: hashed words, pairs of words and letters, at public random places.

Nothing is learned and nothing is looked up: a text's numbers follow from the text alone. Grams of letters let
misspelled and inflected words share most of theirs.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

MOST_LETTERS = 20_000
"""Of a text; what follows is not read."""
LETTERS = (3, 4, 5)
"""Lengths of grams of letters, a space before and after each word included."""
_MIX = np.uint64(0x9E3779B97F4A7C15)


def hashed(text: str, size: int) -> npt.NDArray[np.float32]:
    """A text as `size` numbers of unit norm, half of it words, half of it letters; 0 where it has no word.

    Case, accents' way of writing and punctuation do not count. A place holds the root of its signed count.

    >>> cold, colds, warm = (hashed(text, 512) for text in ("A cold.", "a colds", "so warm"))
    >>> bool(cold @ colds > 0.3 > cold @ warm), round(float(cold @ hashed("a  COLD", 512)), 4)
    (True, 1.0)
    """
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text[:MOST_LETTERS]).casefold())
    halves = [_counted(grams, size) for grams in (_of_words(words), _of_letters(words))]
    both = np.sum([half / max(float(np.linalg.norm(half)), 1e-9) for half in halves], axis=0)
    whole: npt.NDArray[np.float32] = (both / max(float(np.linalg.norm(both)), 1e-9)).astype(np.float32)
    return whole


def _of_words(words: list[str]) -> Iterator[str]:
    yield from words
    yield from (f"{one} {other}" for one, other in itertools.pairwise(words))


def _of_letters(words: list[str]) -> Iterator[str]:
    for word in words:
        spaced = f" {word} "
        for length in LETTERS:
            # A leading # keeps them apart from words; a word that is shorter is a gram of its own length.
            yield from (f"#{spaced[i : i + length]}" for i in range(max(1, len(spaced) - length + 1)))


def _counted(grams: Iterator[str], size: int) -> npt.NDArray[np.float64]:
    codes = np.array([zlib.crc32(gram.encode()) for gram in grams], np.uint64) * _MIX
    signs = ((codes >> np.uint64(20)) & np.uint64(1)).astype(np.float64) * 2 - 1
    places = ((codes >> np.uint64(32)) % np.uint64(size)).astype(np.int64)
    counts = np.bincount(places, signs, size)
    rooted: npt.NDArray[np.float64] = np.sign(counts) * np.sqrt(np.abs(counts))
    return rooted
