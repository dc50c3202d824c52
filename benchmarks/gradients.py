"""Private gradients beside an ordinary step, vmap and Opacus: `python -m benchmarks.gradients` prints JSON.

Opacus is installed into `.bench-venv`, which sees the torch of the calling environment, so that all
contenders run on the same build in one process. Without a package index our own figures are measured
alone.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from sottovoce.gradients import bench

ENVIRONMENT = Path(".bench-venv")

log = logging.getLogger(__name__)


def peer_python(environment: Path = ENVIRONMENT) -> Path | None:
    """An interpreter with Opacus and our torch, made on first use; None where Opacus cannot be had."""
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    here, there = (_site_packages(p) for p in (Path(sys.executable), python))
    (there / "calling_environment.pth").write_text(f"{here}\n")
    if subprocess.run([python, "-c", "import opacus"], capture_output=True, check=False).returncode == 0:
        return python
    installed = subprocess.run([python, "-m", "pip", "install", "--quiet", "opacus>=1.5"], check=False)
    if installed.returncode:
        log.warning("Opacus could not be installed: measuring without it")
        return None
    return python


def _site_packages(python: Path) -> Path:
    if python == Path(sys.executable):
        return Path(sysconfig.get_paths()["purelib"])
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    return Path(
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    )


def run() -> dict[str, float]:
    """Ratios of medians, as `sottovoce.gradients.bench.measure` names them."""
    return bench.measure(peer_python=peer_python())


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
