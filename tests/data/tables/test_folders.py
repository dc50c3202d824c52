"""A client's folder of pictures as a table: classes by the agreement, units by a part of names."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sottovoce import data
from sottovoce.data import Description, check, drafting, read_inputs
from sottovoce.data.tables.folders import Folder, part_names
from sottovoce.errors import SottovoceError

AGREED = """task = "classes"
sites = "folders"
unusable = 0.5
[target]
column = "class"
values = ["cat", "dog", "owl"]
[columns.picture]
kind = "image"
"""


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    """Two sites; one has a class that nobody agreed on, and files that are no pictures."""
    number = 0
    for site, classes in {"north": ("cat", "dog"), "south.v2": ("cat", "dog", "fox")}.items():
        for name in classes:
            folder = tmp_path / "clinics" / site / name
            folder.mkdir(parents=True)
            for place in range(6):
                number += 1
                pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"p{place // 2}_{place}.png")
    (tmp_path / "clinics" / "north" / "cat" / "notes.txt").write_text("none")
    (tmp_path / "clinics" / "north" / "cat" / ".hidden.png").write_text("none")
    return tmp_path / "clinics"


def _agree(clinics: Path, more: str = "") -> None:
    (clinics / "records.toml").write_text(AGREED.replace("unusable", f"{more}unusable"))


def test_each_picture_is_a_record_of_the_class_whose_folder_it_lies_in(clinics: Path) -> None:
    _agree(clinics)
    dataset = data.load(clinics)
    assert dataset.clients == ("north", "south.v2")
    assert dataset.facts.class_names == ("cat", "dog", "owl"), "the agreement says which classes there are"
    assert len(dataset) == 30
    assert dataset.y[:12].tolist() == [0] * 6 + [1] * 6
    assert int(dataset.x.isnan().all(dim=1).sum()) == 6, "a folder that is none of the classes"
    assert len(dataset.contents) == 30
    alone = data.load(clinics / "north")
    assert alone.clients == ("north",)
    assert len(alone) == 12


def test_a_class_that_somebody_adds_moves_no_other_record(clinics: Path) -> None:
    _agree(clinics)
    before = data.load(clinics / "north")
    (clinics / "north" / "aardvark").mkdir()
    picture = clinics / "north" / "cat" / "p0_0.png"
    (clinics / "north" / "aardvark" / "z.png").write_bytes(picture.read_bytes())
    after = data.load(clinics / "north")
    assert after.facts == before.facts
    assert after.x[1:].equal(before.x)
    assert after.y[1:].equal(before.y)


def test_a_part_of_a_name_says_whose_picture_it_is(clinics: Path) -> None:
    _agree(clinics, 'unit = "patient"\nnames = "{patient}_*"\n')
    dataset = data.load(clinics / "north")
    assert dataset.unit is not None
    assert len(dataset.unit.unique()) == 3
    assert Folder(clinics / "north", "{patient}_{visit}").texts("visit").cells[:3] == ["0", "1", "2"]


def test_patterns_are_literal_but_for_their_parts_and_never_slow(clinics: Path) -> None:
    assert Folder(clinics / "north", "p.{patient}").texts("patient").cells == [""] * 12
    long = clinics / "north" / "cat" / f"{'a_' * 120}.png"
    long.write_bytes((clinics / "north" / "cat" / "p0_0.png").read_bytes())
    begun = time.perf_counter()
    Folder(clinics / "north", "{a}_*{b}_*{c}_*{d}x")
    assert time.perf_counter() - begun < 20
    for odd in ("plain", "{a}{a}", "{picture}_*", "{a}" + "*" * 8):
        with pytest.raises(SottovoceError, match="is no pattern"):
            part_names(odd)


def test_check_reads_every_site_and_predictions_read_folders_with_and_without_classes(clinics: Path) -> None:
    _agree(clinics)
    found = check(clinics)
    assert not found.problems
    assert [site.records for site in found.sites] == [12, 18]
    assert any("'fox'" in line for line in found.suspicions)
    facts = data.load(clinics).facts
    contents: dict[bytes, str | Path] = {}
    [(x, kept, _)] = read_inputs(clinics / "north" / "cat", facts, ["picture"], contents)
    assert len(x) == len(contents) == 6
    assert kept["picture"][0] == "p0_0.png"


def test_a_draft_lists_the_folders_as_looked_up_classes(clinics: Path) -> None:
    sites = drafting.picture_folders(clinics)
    assert [site.name for site in sites] == ["north", "south.v2"]
    text = drafting.from_pictures(clinics, sites, "patient", "{patient}_*").text()
    agreed = Description.parse(text)
    assert agreed.target.names.values == ("cat", "dog", "fox")
    assert agreed.target.looked_up == ("values",)
    assert (agreed.sites, agreed.unit, agreed.parts) == ("folders", "patient", "{patient}_*")
    assert drafting.picture_folders(clinics / "north") == [clinics / "north"]
    assert drafting.place_of(clinics / "north") == clinics / "records.toml"
    with pytest.raises(SottovoceError, match="say it as pictures are called"):
        drafting.from_pictures(clinics, sites, "patient", None)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[columns.picture]", "[columns.photo]", "have one column"),
        ('column = "class"', 'column = "kind"', "have no 'kind'"),
        ('sites = "folders"', 'names = "{a}_*"', 'say sites = "folders" too'),
        ('sites = "folders"', 'sites = "folders"\nunit = "who"', "have no 'who'"),
    ],
)
def test_what_folders_do_not_have_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(SottovoceError, match=said):
        Description.parse(AGREED.replace(old, new))


def test_a_folder_without_an_agreement_is_one_line(clinics: Path) -> None:
    with pytest.raises(SottovoceError, match="'sottovoce draft"):
        data.load(clinics)
