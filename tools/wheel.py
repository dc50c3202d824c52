"""`make wheel`: builds the wheel, installs it into fresh environments as a user would, and uses it there.

newest: the newest of everything, with `tables`. everything: all extras, which hold some packages back, as
Flower does typer. oldest: the oldest version that pyproject.toml allows of whatever it names, on the oldest
Python. Torch is the same in each: on Linux an older one comes with gigabytes of CUDA, and the newest does too
unless UV_TORCH_BACKEND=cpu is set.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path

CLONE = Path(__file__).parents[1]
PROJECT = tomllib.loads((CLONE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BIN, EXE = ("Scripts", ".exe") if os.name == "nt" else ("bin", "")
NOT_FOR_USERS = {"dev", "docs"}
ENVIRONMENTS = {
    "newest": ["tables"],
    "everything": sorted(set(PROJECT["optional-dependencies"]) - NOT_FOR_USERS),
    "oldest": ["tables"],
}
"""The environments and their extras."""
COMMANDS = """
python -c "import sottovoce; print(sottovoce.__file__)"
sottovoce --version
sottovoce --help
python -m sottovoce --version
sottovoce quickstart --out pictures
sottovoce quickstart tables --out tables
sottovoce train dataset=heart rounds=2 epsilon=4 --out run
sottovoce models run --out models
sottovoce predict models/cleveland.safetensors --data tables/new.csv --out predictions.csv
"""
COMPLETION = "sottovoce --install-completion; source ~/.bashrc; complete -p sottovoce"


def python_of(environment: Path) -> Path:
    return environment / BIN / f"python{EXE}"


def uv(folder: Path) -> list[str]:
    """The command uv, in an environment of its own."""
    if not python_of(folder).exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python_of(folder), "-m", "pip", "install", "--quiet", "uv"], check=True)
    return [str(python_of(folder)), "-m", "uv"]


def user(environment: Path, home: Path) -> dict[str, str]:
    """The variables of somebody who has nothing but the environment."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    path = os.pathsep.join([str(environment / BIN), os.environ["PATH"]])
    return kept | {"PATH": path, "HOME": str(home), "USERPROFILE": str(home)}


def installed(command: list[str], wheel: Path, folder: Path, name: str, torch: str) -> Path:
    """A fresh environment with the wheel and its extras."""
    environment = folder / name
    subprocess.run(
        [*command, "venv", "--quiet", "--clear", "--python", sys.executable, environment], check=True
    )
    wanted = [f"sottovoce[{','.join(ENVIRONMENTS[name])}] @ {wheel.as_uri()}"]
    if name == "oldest":  # which is of what a user names: what the wheel names has to be named again
        extras = [word for extra in ENVIRONMENTS[name] for word in ("--extra", extra)]
        wanted += ["--resolution", "lowest-direct", "--requirements", str(CLONE / "pyproject.toml"), *extras]
    target = ["--python", str(python_of(environment))]
    install = [*command, "pip", "install", "--quiet", "--compile-bytecode", *target]
    subprocess.run([*install, *wanted, torch], check=True)
    subprocess.run([*command, "pip", "check", *target], check=True)
    return environment


def use(environment: Path, folder: Path) -> None:
    """Does there what a user does on the first day; the first command that fails ends it all."""
    shutil.rmtree(folder, ignore_errors=True)
    home = folder / "home"
    home.mkdir(parents=True)
    variables = user(environment, home)
    commands = [shlex.split(line) for line in COMMANDS.strip().splitlines()]
    if os.name != "nt":
        commands.append(["bash", "-c", COMPLETION])
    for words in commands:
        program = shutil.which(words[0], path=variables["PATH"]) or words[0]
        begun = time.monotonic()
        done = subprocess.run(
            [program, *words[1:]], cwd=folder, env=variables, capture_output=True, text=True, encoding="utf-8"
        )
        print(f"{time.monotonic() - begun:7.1f} s  {shlex.join(words)}", flush=True)
        if done.returncode or "Traceback" in done.stdout + done.stderr:
            sys.exit(f"{done.stdout}\n{done.stderr}\n{environment.name}: '{shlex.join(words)}' failed")
        if "__file__" in words[-1] and str(environment.resolve()) not in done.stdout:
            sys.exit(f"{environment.name}: not the wheel's package is imported: {done.stdout}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help=f"of {', '.join(ENVIRONMENTS)}; by default what this Python takes"
    )
    parser.add_argument("--folder", type=Path, default=CLONE / "build" / "wheel")
    parser.add_argument("--torch", default="torch", help="a requirement, or a file")
    said = parser.parse_args()
    os.environ.setdefault("UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", ""))
    folder = said.folder.resolve()
    command = uv(folder / "uv")
    shutil.rmtree(folder / "dist", ignore_errors=True)
    subprocess.run([*command, "build", "--quiet", "--wheel", "--out-dir", folder / "dist", CLONE], check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    print(wheel.name, wheel.stat().st_size, "bytes")
    lowest = PROJECT["requires-python"].removeprefix(">=") == f"{sys.version_info[0]}.{sys.version_info[1]}"
    torch = said.torch
    for name in said.names or [name for name in ENVIRONMENTS if lowest or name != "oldest"]:
        print(f"{name}:", flush=True)
        environment = installed(command, wheel, folder, name, torch)
        if name == "newest":
            listed = subprocess.run(
                [*command, "pip", "freeze", "--python", python_of(environment)],
                capture_output=True,
                text=True,
            )
            torch = next(line for line in listed.stdout.splitlines() if line.startswith("torch=="))
        use(environment, folder / f"{name}-user")


if __name__ == "__main__":
    main()
