"""Free text becomes numbers by itself: bounded, the same everywhere, near for texts that share words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sottovoce.data import Description, read_site
from sottovoce.data.section import DescriptionError
from sottovoce.data.tables.words import hashed

AGREED = """
task = "classes"
[target]
column = "ill"
values = ["no", "yes"]
[columns.note]
kind = "text"
size = 64
[columns.age]
kind = "number"
low = 0
high = 100
"""


@pytest.mark.parametrize("text", ["a", "Patient has a fever", "ßü 漢字 ☂", "x" * 100_000])
def test_every_text_has_unit_norm(text: str) -> None:
    assert np.linalg.norm(hashed(text, 100)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("text", ["", " \n", "?!…"])
def test_no_word_is_no_text(text: str) -> None:
    assert not hashed(text, 100).any()


def test_places_are_the_same_on_every_machine_and_spread() -> None:
    found = np.array([np.abs(hashed(f"w{i}", 4096)).argmax() for i in range(2000)])
    assert found[:3].tolist() == [1023, 2071, 912]
    assert len(set(found.tolist())) > 1500  # of 4,096 places 1,582 are taken by 2,000 balls


def test_texts_that_share_words_or_stems_are_near() -> None:
    base = hashed("severe chest pain since monday", 1024)
    near, inflected, far = (
        float(base @ hashed(text, 1024))
        for text in ("chest pain, severe", "severest chest pains", "broken ankle after a fall")
    )
    assert near > 0.4
    assert inflected > 0.3
    assert abs(far) < 0.15


def test_a_column_of_text_is_read_cell_by_cell(tmp_path: Path) -> None:
    agreed = Description.parse(AGREED)
    assert Description.parse(agreed.to_toml()) == agreed
    assert len(agreed.inputs) == 65
    (tmp_path / "north.csv").write_text('note,age,ill\n"a cough, dry",50,no\n,50,yes\nA COUGH: dry,50,no\n')
    site = read_site(tmp_path / "north.csv", agreed)
    assert site.findings.columns["note"].missing == 1
    assert np.array_equal(site.x[0], site.x[2])
    assert np.linalg.norm(site.x[0, :64]) == pytest.approx(1, abs=1e-5)
    assert not site.x[1, :64].any()


@pytest.mark.parametrize("size", ["0", "100000", '"many"'])
def test_a_size_that_cannot_be_is_refused(size: str) -> None:
    with pytest.raises(DescriptionError, match="size"):
        Description.parse(AGREED.replace("size = 64", f"size = {size}"))
