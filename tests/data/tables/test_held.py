"""Columns that an encoder describes, and vectors: what a record holds of each, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow.parquet import write_table

from sottovoce import data
from sottovoce.data import Description, check
from sottovoce.data.tables.encoding import Site, read_site
from sottovoce.data.tables.held import PLACES, digest_of, digests_in
from sottovoce.errors import SottovoceError

HEAD = 'task = "classes"\nunusable = 0.9\n[target]\ncolumn = "y"\nvalues = ["a", "b"]\n'
TEXT, IMAGE = '[columns.note]\nkind = "text"\nencoder = "tiny"\n', '[columns.photo]\nkind = "image"\n'
AGE = '[columns.age]\nkind = "number"\nlow = 0\nhigh = 100\n'


def _picture(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 12, 3), np.uint8)).save(path)
    return path


def _site(tmp_path: Path, toml: str, rows: list[str]) -> Site:
    folder = tmp_path / "site"
    folder.mkdir(exist_ok=True)
    (folder / "records.toml").write_text(HEAD + toml)
    (folder / "north.csv").write_text("\n".join(rows) + "\n")
    return read_site(folder / "north.csv", Description.load(folder / "records.toml"))


def test_a_text_is_a_digest_of_its_content_and_of_nothing_else(tmp_path: Path) -> None:
    rows = ["y,note", "a,pain in the arm", "b,none", "a,pain in the arm"]
    site = _site(tmp_path, TEXT, rows)
    assert site.x.shape == (3, PLACES)
    first, second, third = digests_in(site.x)
    assert first == third == digest_of(b"pain in the arm")
    assert site.contents == {first: "pain in the arm", second: "none"}
    again = _site(tmp_path, TEXT, [rows[0], *rows[1:][::-1]])
    assert np.array_equal(again.x, site.x[::-1])


def test_digests_survive_float32() -> None:
    for content in (b"", b"a", bytes(1000)):
        from sottovoce.data.tables.held import numbers_of

        found = digests_in(np.array([numbers_of(digest_of(content))], np.float32))
        assert found == [digest_of(content)]
    odd = np.array(
        [[0] * PLACES, [np.nan] * PLACES, [-1, *[0] * 5], [0.5, *[0] * 5], [2**23, *[0] * 5]], np.float32
    )
    assert digests_in(odd) == [None] * 5


def test_pictures_are_named_by_paths_inside_the_folder(tmp_path: Path) -> None:
    inside, outside = _picture(tmp_path / "site" / "photos" / "one.png"), _picture(tmp_path / "secret.png", 1)
    (tmp_path / "site" / "link.png").symlink_to(outside)
    (tmp_path / "site" / "bad.png").write_text("no picture")
    rows = ["y,photo", "a,photos/one.png", "b,", f"a,{outside}", "b,../secret.png", "a,link.png", "b,bad.png"]
    site = _site(tmp_path, IMAGE, [*rows, "a,gone.png", "b,\x01.png"])
    first, *others = digests_in(site.x)
    assert site.contents == {first: inside.resolve()}
    assert others == [None] * 7
    assert np.isnan(site.x[1:]).all(), "a record without its only picture cannot be used"
    found = site.findings.columns["photo"]
    assert (found.missing, found.unreadable) == (1, 6)
    said = "\n".join(found.faults)
    for line in (
        "/secret.png' leaves the folder",
        "'../secret.png' leaves the folder",
        "'link.png' leaves",
        "'bad.png' is no PNG, JPEG or WebP picture",
        "'gone.png' does not exist",
    ):
        assert line in said


def test_beside_other_columns_what_is_missing_is_nothing_and_the_record_counts(tmp_path: Path) -> None:
    site = _site(tmp_path, TEXT + AGE, ["y,note,age", "a,,50", "b,word,60"])
    assert np.isfinite(site.x).all()
    assert not site.x[0, :PLACES].any()
    assert site.findings.unusable == 0


def test_a_text_of_a_megabyte_is_named_and_not_read(tmp_path: Path) -> None:
    site = _site(tmp_path, TEXT, ["y,note", f"a,{'word ' * 200_000}", "b,short", "a,ok"])
    assert digests_in(site.x)[0] is None
    [fault] = site.findings.columns["note"].faults
    assert "longer than 100,000" in fault


def test_vectors_have_norm_one_and_another_length_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "records.toml").write_text(HEAD + '[columns.v]\nkind = "vector"\nsize = 3\n')
    vectors = [[3.0, 0.0, 4.0], [1e38, 1e38, 0.0], [1.0, 2.0], None, [1.0, float("nan"), 0.0]]
    write_table(pa.table({"y": ["a"] * 5, "v": vectors}), folder / "east.parquet")
    whole = np.array([[3.0, 0, 4], [1e38, 1e38, 0]])
    np.savez(folder / "west.npz", y=np.array(["a", "b"]), v=whole)
    agreed = Description.load(folder / "records.toml")
    east = read_site(folder / "east.parquet", agreed)
    assert np.allclose(east.x[:2], [[0.6, 0, 0.8], [0.5**0.5, 0.5**0.5, 0]])
    assert np.isnan(east.x[2:]).all()
    found = east.findings.columns["v"]
    assert (found.missing, found.unreadable) == (1, 2)
    assert "vectors of 2, 3 numbers" in found.faults[0]
    assert np.array_equal(read_site(folder / "west.npz", agreed).x, east.x[:2])
    (folder / "south.csv").write_text("y,v\na,1\n")
    with pytest.raises(SottovoceError, match="lists of numbers"):
        read_site(folder / "south.csv", agreed)


def test_check_names_what_a_decoder_finds_and_a_size_that_counts_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    whole = _picture(folder / "one.png")
    (folder / "half.png").write_bytes(whole.read_bytes()[:150])
    (folder / "records.toml").write_text(HEAD + IMAGE + TEXT + "size = 512\n")
    (folder / "north.csv").write_text("y,photo,note\na,one.png,word\nb,half.png,word\n")
    found = check(folder)
    assert not found.problems
    said = "\n".join(found.suspicions)
    assert "'half.png' is damaged" in said
    assert "size = 512 of column 'note' counts nothing beside its encoder" in said


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('[columns.a]\nkind = "image"\nencoder = "../x"\n', "cannot name one"),
        ('[columns.a]\nkind = "image"\nencoder = "none"\n', "cannot name one"),
        ('[columns.a]\nkind = "vector"\n', "size is missing"),
        ('[columns.a]\nkind = "image"\nsize = 3\n', "size is unknown"),
    ],
)
def test_what_is_no_such_column_is_refused(table: str, said: str) -> None:
    with pytest.raises(SottovoceError, match=said):
        Description.parse(HEAD + table)


def test_an_agreement_keeps_its_encoders_and_takes_one_for_columns_without(tmp_path: Path) -> None:
    agreed = Description.parse(HEAD + IMAGE + TEXT + '[columns.more]\nkind = "text"\nsize = 64\n')
    assert Description.parse(agreed.to_toml()) == agreed
    named = agreed.encoded_by({"image": "lite", "text": "other"})
    assert {name: column.encoder for name, column in named.held.items()} == {
        "photo": "lite",
        "note": "tiny",
        "more": "other",
    }
    assert data.schema.of(named.facts()) == named
