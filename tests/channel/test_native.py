"""Machine code on disk: loaded without numba, made anew when damaged, never taken from a folder of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sottovoce.channel import native

CALL = """
import logging, sys
import numpy as np
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from sottovoce.channel.polar.cancellation import dithers_from
words = np.arange(6, dtype=np.uint64) << np.uint64(61)
assert dithers_from(words).tolist() == [-1.0, -0.75, -0.5, -0.25, 0.0, 0.25]
print("numba" in sys.modules)
"""
MESSAGES = """
import sys
if sys.argv[1:]:
    sys.modules["numba"] = None
import numpy as np
from sottovoce.channel import SeededRandomness, open_channel
for name in ("lrsuq", "polar"):
    channel = open_channel(name, size=300, sigma=0.1)
    ends = dict(secret=bytes(32), stream=("native",))
    message = channel.encode(np.linspace(-0.1, 0.1, 300), private=SeededRandomness(b"native"), **ends)
    print(message.hex(), channel.decode(message, **ends).tobytes().hex())
"""


def run(script: str, folder: Path | None, *arguments: str) -> str:
    environment = {**os.environ, **({"SOTTOVOCE_KERNELS": str(folder)} if folder else {})}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return done.stdout


def kept(folder: Path) -> Path:
    [file] = folder.glob("*/*")
    return file


def test_a_later_process_makes_the_same_messages_without_numba() -> None:
    assert run(MESSAGES, None) == run(MESSAGES, None, "numba blocked")


def test_code_is_kept_in_a_folder_that_only_its_owner_can_enter(tmp_path: Path) -> None:
    assert run(CALL, tmp_path) == "True\n"
    file = kept(tmp_path)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    assert run(CALL, tmp_path) == "False\n"


def test_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    run(CALL, tmp_path)
    file = kept(tmp_path)
    whole = file.read_bytes()
    at = len(whole) // 2
    assert native._read(file) is not None
    for damaged in (b"", b"[1]\nother", b"{}\nother", whole[:at], whole[1:], whole + b"0"):
        file.write_bytes(damaged)
        assert native._read(file) is None
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert run(CALL, tmp_path) == "True\n"
    assert run(CALL, tmp_path) == "False\n"


def test_a_folder_that_others_can_enter_is_not_believed(tmp_path: Path) -> None:
    run(CALL, tmp_path)
    file = kept(tmp_path)
    file.parent.chmod(0o755)
    before = file.stat().st_mtime_ns
    said = run(CALL, tmp_path)
    assert "open to others" in said
    assert said.endswith("True\n")
    assert file.stat().st_mtime_ns == before


def test_where_nothing_can_be_kept_kernels_still_run(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    said = run(CALL, blocked)
    assert "set SOTTOVOCE_KERNELS" in said
    assert said.endswith("True\n")


def test_processes_that_compile_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    environment = {**os.environ, "SOTTOVOCE_KERNELS": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", CALL], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    # The second may come late enough to find what the first has kept.
    assert all(process.communicate(timeout=240)[0] in (b"True\n", b"False\n") for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert run(CALL, tmp_path) == "False\n"
    kept(tmp_path)
