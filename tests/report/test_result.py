"""Files that are missing, damaged or foreign get one line that names the file and says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.report.reading import read_run
from sottovoce.report.run import write_report

from .example import example_result, example_rounds, write_example


def refusal(directory: Path) -> str:
    with pytest.raises(SottovoceError) as caught:
        read_run(directory)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run, result = read_run(write_example(tmp_path)), example_result()
    assert run.result["accuracy"]["future"] == result["accuracy"]["future"]
    assert run.result["accuracy"]["seen_masked_per_client"] == result["accuracy"]["seen_masked_per_client"]
    assert run.result["epsilon"]["per_client"] == result["epsilon"]["per_client"]
    assert [r["bytes"] for r in run.rounds] == [line["bytes"] for line in example_rounds()]
    assert run.plan["seeded"] == "false"
    assert run.plan["alpha"] == "0.5"


@pytest.mark.parametrize("name", ["result.json", "rounds.jsonl", "plan.toml"])
def test_a_missing_file_is_named_with_the_way_to_finish_the_run(tmp_path: Path, name: str) -> None:
    (write_example(tmp_path) / name).unlink()
    message = refusal(tmp_path)
    assert name in message
    assert "resume the training" in message


@pytest.mark.parametrize("name", ["result.json", "rounds.jsonl", "plan.toml"])
@pytest.mark.parametrize("damage", [b"\xff\xfe\x00", b'{"version": 1', b"[1, 2]\n = 3"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: bytes) -> None:
    (write_example(tmp_path) / name).write_bytes(damage)
    assert name in refusal(tmp_path)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("accuracy.seen", "high"),
        ("accuracy.seen_per_client", None),
        ("epsilon.accounting", 3),
        ("uplink.bytes", None),
        ("uplink.releases", 1.5),
        ("seeded", "no"),
        ("delta", True),
        ("confusion.participant-3", [[1, 2], [3]]),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(tmp_path: Path, path: str, value: object) -> None:
    result = example_result()
    *sections, key = path.split(".")
    place = result
    for section in sections:
        place = place[section]
    place[key] = value
    (write_example(tmp_path) / "result.json").write_text(json.dumps(result))
    assert path in refusal(tmp_path)


def test_what_may_be_of_two_kinds_is_read_in_both(tmp_path: Path) -> None:
    for said in (False, "resnet18 1 (0123abcd)", None):
        assert read_run(write_example(tmp_path, public_pretraining=said)).result["public_pretraining"] == said
    assert "public_pretraining" in (write_example(tmp_path, public_pretraining=3), refusal(tmp_path))[1]


def test_a_half_written_round_is_named_by_its_line(tmp_path: Path) -> None:
    file = write_example(tmp_path) / "rounds.jsonl"
    file.write_text(file.read_text()[:-40])
    assert "line 100" in refusal(tmp_path)


def test_a_result_of_another_format_is_refused(tmp_path: Path) -> None:
    assert "format 2" in refusal(write_example(tmp_path, version=2))


def test_a_refused_run_keeps_its_earlier_report(tmp_path: Path) -> None:
    earlier = write_report(write_example(tmp_path)).read_bytes()
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(SottovoceError):
        write_report(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == earlier
