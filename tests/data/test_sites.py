"""A folder of sites: who is a client, what they are called, and that nothing of theirs becomes public."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.data import DataError, Description, check, client_files, copy_shipped, load
from sottovoce.data.section import DescriptionError
from sottovoce.errors import SottovoceError
from sottovoce.plan import Plan

from .hospitals import AGREED, HEADER, ROWS, folder, other_rows


def test_a_folder_is_a_dataset_with_named_clients(tmp_path: Path) -> None:
    data = load(folder(tmp_path, west=HEADER + ROWS, north=HEADER + ROWS + ROWS))
    assert data.clients == ("north", "west")
    assert data.client is not None
    assert data.client.tolist() == [0, 0, 0, 0, 1, 1]
    assert data.facts == Description.parse(AGREED).facts()
    assert data.unit is None
    norms = data.records(torch.arange(6)).x.norm(dim=1)
    assert norms.max() < 1.1


def test_one_file_is_one_client_by_the_agreement_beside_it(tmp_path: Path) -> None:
    whole = load(folder(tmp_path))
    one = load(tmp_path / "north.csv")
    assert one.clients == ("north",)
    assert torch.equal(one.x, whole.x)
    (tmp_path / "records.toml").unlink()
    with pytest.raises(DescriptionError, match="write one that says what a record is"):
        load(tmp_path / "north.csv")


def test_an_npz_alone_is_read_as_ever(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 3), np.float32), y=np.array([0, 1, 0, 1]))
    data = load(tmp_path / "own.npz")
    assert (data.clients, data.facts.columns) == ((), "")


def test_units_of_two_clients_are_never_the_same(tmp_path: Path) -> None:
    rows = HEADER.strip() + ",id\n30,120,f,benign,7\n30,120,f,benign,8\n30,120,f,benign,7\n"
    data = load(folder(tmp_path, 'unit = "id"\n' + AGREED, a=rows, b=rows.replace("30", "31")))
    assert data.unit is not None
    assert data.unit.tolist() == [0, 1, 0, 2, 3, 2]


def test_bytes_and_numbers_of_two_clients_meet_on_one_scale(tmp_path: Path) -> None:
    agreed = 'task = "classes"\n[target]\ncolumn = "y"\nvalues = [0, 1]\n[array]\nshape = [1, 1, 2]\n'
    folder(tmp_path, agreed, x="")
    (tmp_path / "x.csv").unlink()
    np.savez(tmp_path / "a.npz", x=np.array([[[[0, 255]]]], np.uint8), y=np.array([0]))
    np.savez(tmp_path / "b.npz", x=np.array([[[[0, 1]]]], np.float64), y=np.array([1]))
    x = load(tmp_path).records(torch.arange(2)).x
    assert torch.equal(x[0], x[1])


def test_what_nobody_takes_for_a_site_is_left_alone(tmp_path: Path) -> None:
    apart = [
        ".hidden.csv",
        "ledger.sqlite",
        "ledger.sqlite.witness",
        "ledger.sqlite.lock",
        "README.md",
    ]
    apart += ["north.ledger.sqlite", "north.ledger.sqlite-wal", "licence.txt", "north.personal.safetensors"]
    folder(tmp_path, **{"north.csv": HEADER + ROWS, **dict.fromkeys(apart, "x")})
    (tmp_path / "LICENSE").touch()
    (tmp_path / "old").mkdir()
    (tmp_path / "~$north.xlsx").touch()  # Excel has a workbook open
    assert list(client_files(tmp_path)) == ["north"]
    assert check(tmp_path).problems == []
    assert load(tmp_path).clients == ("north",)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("west.xls", "save it as .xlsx or .csv"),
        ("west.json", "save it as one of .csv"),
        ("notes.txt", "move it out of this folder"),
        ("west.csv.gz", "unpack it"),
        ("west.CSV~", "save it as"),
    ],
)
def test_a_file_that_nobody_reads_is_refused(tmp_path: Path, name: str, remedy: str) -> None:
    folder(tmp_path, **{"north.csv": HEADER + ROWS, name: "x"})
    (problem,) = check(tmp_path).problems
    assert f"{name} is not read: " in problem
    assert remedy in problem
    with pytest.raises(DataError, match="is not read"):
        load(tmp_path)


def test_the_same_records_under_two_names_are_refused(tmp_path: Path) -> None:
    """A byte-for-byte copy, one that is sorted anew, and one that was saved in another format."""
    folder(tmp_path, **{"north.csv": HEADER + ROWS, "south.csv": HEADER + other_rows(1)})
    assert check(tmp_path).problems == []
    first, second = ROWS.splitlines()
    copies = {
        "north copy.csv": (HEADER + ROWS).encode(),
        "sorted.csv": f"{HEADER}{second}\n{first}\n".encode(),
        "saved.tsv": (HEADER + ROWS).replace(",", "\t").encode(),
    }
    for name, content in copies.items():
        (tmp_path / name).write_bytes(content)
        (problem,) = check(tmp_path).problems
        assert "the same records as" in problem
        with pytest.raises(DataError, match="the same records as"):
            load(tmp_path)
        (tmp_path / name).unlink()


def test_names_may_be_of_any_language(tmp_path: Path) -> None:
    names = ["São João", "北京", "St. Mary's".replace("'", ""), "001"]
    data = load(folder(tmp_path, **{f"{name}.csv": HEADER + other_rows(i) for i, name in enumerate(names)}))
    assert set(data.clients) == set(names)


@pytest.mark.parametrize("name", ["a,b", "-x", "a\u202eb", "x=y", "<b>", "a" * 120, " "])
def test_names_that_would_mislead_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot name a client") as caught:
        load(folder(tmp_path, **{f"{name}.csv": HEADER + ROWS}))
    assert str(caught.value).isprintable()


def test_one_client_has_one_file(tmp_path: Path) -> None:
    folder(tmp_path, **{"north.csv": HEADER + ROWS, "north.parquet": ""})
    with pytest.raises(DataError, match=r"north.parquet and north.csv are one client"):
        load(tmp_path)


def test_unicode_twins_are_one_client(tmp_path: Path) -> None:
    folder(tmp_path, **{"é.csv": HEADER + ROWS, "e\u0301.csv": HEADER + ROWS})
    if len(list(tmp_path.glob("*.csv"))) < 2:
        pytest.skip("this file system makes them one file")
    with pytest.raises(DataError, match="are one client"):
        load(tmp_path)


def test_links_lead_to_files_but_never_twice_to_one(tmp_path: Path) -> None:
    sites = folder(tmp_path / "sites")
    (tmp_path / "elsewhere.csv").write_text(HEADER + other_rows(1))
    (sites / "south.csv").symlink_to(tmp_path / "elsewhere.csv")
    assert load(sites).clients == ("north", "south")
    (sites / "west.csv").symlink_to(sites / "north.csv")
    with pytest.raises(DataError, match="west and north are the same file"):
        load(sites)
    (sites / "west.csv").unlink()
    (sites / "west.csv").symlink_to(tmp_path / "absent.csv")
    with pytest.raises(DataError, match=r"cannot read .*west.csv"):
        load(sites)


def test_hard_links_are_seen_through(tmp_path: Path) -> None:
    folder(tmp_path)
    os.link(tmp_path / "north.csv", tmp_path / "south.csv")
    with pytest.raises(DataError, match="are the same file"):
        load(tmp_path)


def test_a_folder_without_clients_or_agreement_says_so(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match=r"no .*records.toml"):
        load(tmp_path)
    folder(tmp_path)
    (tmp_path / "north.csv").unlink()
    with pytest.raises(DataError, match="has no file of a client"):
        load(tmp_path)


def test_nothing_computed_from_records_becomes_public(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", north=HEADER + ROWS)
    two = folder(tmp_path / "two", north=HEADER + "1,250,m,malignant\n,,other,benign\n999,7,x,benign\n")
    assert load(one).facts == load(two).facts == Description.load(one / "records.toml").facts()
    assert load(one).facts.metadata() == load(two).facts.metadata()


def test_reading_and_checking_write_nothing(tmp_path: Path) -> None:
    folder(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    load(tmp_path)
    check(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_digest_tells_units_apart(tmp_path: Path) -> None:
    rows = HEADER.strip() + ",id\n30,120,f,benign,7\n30,120,f,benign,{}\n"
    agreed = 'unit = "id"\n' + AGREED
    one = load(folder(tmp_path / "one", agreed, a=rows.format(7)))
    two = load(folder(tmp_path / "two", agreed, a=rows.format(8)))
    assert one.digest != two.digest


def test_heart_is_a_folder_by_name_and_its_ledger_lies_elsewhere(tmp_path: Path) -> None:
    heart = load("heart")
    assert (heart.name, len(heart), heart.home, heart.public) == ("heart", 920, None, True)
    assert heart.clients == ("budapest", "cleveland", "longbeach", "switzerland")
    plan = Plan.load(overrides={"dataset": "heart"})
    assert (plan.partition, plan.participants) == ("client", 0)
    copy_shipped("heart", tmp_path / "mine")
    mine = load(tmp_path / "mine")
    assert mine.home == tmp_path / "mine"
    assert torch.equal(mine.x, heart.x)
    assert torch.equal(mine.y, heart.y)


@pytest.mark.parametrize(("name", "says"), [("hart", "did you mean 'heart'"), ("heart", "is there already")])
def test_a_folder_is_never_copied_over_another(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(SottovoceError, match=says):
        copy_shipped(name, tmp_path)
