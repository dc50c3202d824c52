"""Your own records: what is accepted, and the one line that says why something is not."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from sottovoce.data import DataError, Facts, from_torch, load, read_client
from sottovoce.data.arrays import read_stored_parts
from sottovoce.errors import SottovoceError

X = np.arange(6 * 3 * 4 * 4, dtype=np.uint8).reshape(6, 3, 4, 4)
Y = np.array([0, 1, 2, 0, 1, 2])


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "own.npz", **{"x": X, "y": Y, **arrays})
    return folder / "own.npz"


def test_a_file_with_x_and_y_is_enough(tmp_path: Path) -> None:
    data = load(saved(tmp_path))
    assert (len(data), data.facts.shape, data.facts.classes, data.client) == (6, (3, 4, 4), 3, None)
    assert data.x.dtype == torch.uint8
    assert torch.equal(data.records(torch.arange(6)).x, torch.from_numpy(X) / 255)


def test_public_constants_come_from_the_file(tmp_path: Path) -> None:
    data = load(saved(tmp_path, classes=7, mean=[0.1, 0.2, 0.3], std=0.5))
    assert (data.facts.classes, data.facts.mean, data.facts.std) == (7, (0.1, 0.2, 0.3), (0.5,))


@pytest.mark.parametrize(
    "names", [np.array([9, 9, -4, 7, 7, 7]), np.array(["b", "b", "a", "aa", "aa", "aa"])]
)
def test_owners_may_be_any_integers_or_strings(tmp_path: Path, names: np.ndarray) -> None:
    client = load(saved(tmp_path, client=names)).client
    assert client is not None
    assert client.tolist() == [2, 2, 0, 1, 1, 1]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floating_point_records_become_float32(tmp_path: Path, kind: type) -> None:
    x = np.ones((6, 5), dtype=kind)
    x[2, 3] = np.nan
    data = load(saved(tmp_path, x=x, mean=0.5, std=0.25))
    assert data.x.dtype == torch.float32
    values = data.records(torch.arange(6)).x
    assert int(values.isnan().sum()) == 1
    assert float(values[0, 0]) == 2


def test_bytes_of_three_axes_are_gray_images_and_numbers_are_series(tmp_path: Path) -> None:
    assert load(saved(tmp_path, x=X[:, 0])).facts.shape == (1, 4, 4)
    series = load(saved(tmp_path, x=X[:, 0, :3] / 10.0, mean=0.5, std=2.0))
    assert series.facts.shape == (3, 4)
    assert torch.allclose(
        series.records(torch.arange(6)).x, torch.from_numpy(X[:, 0, :3] / 20.0 - 0.25).float()
    )
    with pytest.raises(DataError, match=r"mean must be one number, or be stated in a records.toml"):
        load(saved(tmp_path, x=X[:, 0] / 10.0, mean=[1, 2, 3, 4]))


def test_what_a_record_is_known_to_be_decides_how_a_file_is_read(tmp_path: Path) -> None:
    gray, series = Facts((1, 4, 4), 3), Facts((4, 4), 3)
    for x in (X[:, 0], X[:, 0] / 255.0):
        path = saved(tmp_path, x=x)
        assert read_client(path, facts=gray, needed=1).x.shape == (6, 1, 4, 4)
        assert read_client(path, facts=series, needed=1).x.shape == (6, 4, 4)
        assert next(read_stored_parts(path, (1, 4, 4))).shape == (6, 1, 4, 4)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"y": Y[:5]}, r"x has 6 records but y has shape \(5,\)"),
        ({"y": np.eye(6, dtype=int)}, "give one label a record"),
        ({"y": Y.astype(float)}, "labels must be integers"),
        ({"y": Y - 1}, "has label -1: number the 2 classes 0 to 1"),
        ({"classes": 2}, "has label 2: number the 2 classes 0 to 1"),
        ({"classes": 0}, "one positive integer"),
        ({"classes": [3, 3]}, "one positive integer"),
        ({"x": X[:0], "y": Y[:0]}, r"x has shape \(0, 3, 4, 4\)"),
        ({"x": Y}, r"x has shape \(6,\)"),
        ({"x": np.zeros((6, 8, 8, 3), np.uint8)}, r"save x.transpose\(0, 3, 1, 2\)"),
        ({"x": X.astype(np.int64)}, "uint8 .0 to 255., numbers as floating point"),
        ({"mean": [0.1, 0.2]}, "mean must be one number, or one for each of the 3 channels"),
        ({"mean": ["a"]}, "mean must be one number"),
        ({"std": [0.1, 0.0, 1.0]}, "std is 0.0: give positive"),
        ({"std": np.inf}, "std is not finite"),
        ({"client": np.zeros(5, int)}, "one integer or string for each of the 6 records"),
        ({"client": np.zeros(6)}, "one integer or string for each of the 6 records"),
        ({"y": np.array([0, 1, 2, 0, 1, None])}, "pickled Python objects, which are refused"),
    ],
)
def test_unusable_records_are_refused_in_one_line(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        load(saved(tmp_path, **arrays))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["x", "y"])
def test_a_missing_array_is_named(tmp_path: Path, missing: str) -> None:
    arrays = {"x": X, "y": Y}
    del arrays[missing]
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=f"has no array '{missing}'"):
        load(tmp_path / "own.npz")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[200] ^= 255
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("x,y\n1,2\n")


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"x": [1], "y": [1]}))


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, X)


@pytest.mark.parametrize("damage", [cut, flip, empty, text, pickled, one_array])
def test_damaged_and_foreign_files_are_recognized(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = saved(tmp_path)
    damage(path)
    with pytest.raises(DataError, match=r"not an \.npz|damaged"):
        load(path)


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_ever_unpickled(tmp_path: Path) -> None:
    path = saved(tmp_path, y=np.array([Trap(tmp_path / "sprung")] * 6, dtype=object))
    with pytest.raises(DataError, match="can run code"):
        load(path)
    assert not (tmp_path / "sprung").exists()
    np.load(path, allow_pickle=True)["y"]
    assert (tmp_path / "sprung").exists(), "the trap must work, or the test shows nothing"


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.npz does not exist"):
        load(tmp_path / "absent.npz")
    with pytest.raises(DataError, match="check the path"):
        load(tmp_path)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(SottovoceError, match="did you mean 'cifar10'"):
        load("cifar-10")


def test_a_torch_dataset_becomes_a_dataset() -> None:
    data = from_torch(
        TensorDataset(torch.rand(6, 3, 8, 8), torch.from_numpy(Y)), classes=4, mean=(0.5,), std=(0.5,)
    )
    assert (len(data), data.facts.shape, data.facts.classes) == (6, (3, 8, 8), 4)
    assert float(data.records(torch.arange(6)).x.min()) >= -1


class Items(torch.utils.data.Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([], "no records"),
        ([(torch.zeros(3), 0), (torch.zeros(4), 0)], "differ in shape"),
        ([(torch.zeros(3), 0.5)], "labels must be integers"),
        ([(torch.zeros(3), torch.zeros(2))], "give one label a record"),
        ([torch.zeros(3)], r"items \(x, label\)"),
    ],
)
def test_a_torch_dataset_that_cannot_be_used_is_refused(items: list[Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        from_torch(Items(items))
