"""The environment of the peers that we measure against; they never enter ours.

`.bench-venv` sees the packages of the calling environment behind its own, so that all contenders run on the
same build of torch, and is kept between runs. Without a package index a peer is left out, and a line says so.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

ENVIRONMENT = Path(".bench-venv")
ROOT = Path(__file__).parents[1]
PEERS = {  # what to import, and what to install where that fails
    "opacus": ("opacus", "opacus>=1.5"),
    "pfl": ("pfl.model.pytorch", "pfl[pytorch]>=0.6,<0.7"),
    "flower": ("flwr, ray", "flwr[simulation]>=1.41"),
}
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}

log = logging.getLogger(__name__)


def peer_python(peer: str, environment: Path = ENVIRONMENT) -> Path | None:
    """An interpreter with that peer and our torch, made on first use; None where the peer cannot be had."""
    modules, requirement = PEERS[peer]
    python = _made(environment)
    install = ["-m", "pip", "install", "--quiet", "--retries", "1", requirement]
    for command in (["-c", f"import {modules}"], install):
        if subprocess.run([python, *command], capture_output=True, check=False).returncode == 0:
            return python
    log.warning("%s cannot be installed (%s): measuring without it", peer, requirement)
    return None


def variables(threads: int) -> dict[str, str]:
    """The variables of a contender's process: our source, no messages home, so many threads.

    No thread may wait by spinning, as those of OpenMP and of numpy's BLAS do: it would take a core.
    """
    paths = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    waiting = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, **QUIET, **paths, **waiting, "OMP_NUM_THREADS": str(threads)}


def _made(environment: Path) -> Path:
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    (Path(found.stdout.strip()) / "calling_environment.pth").write_text(
        f"{sysconfig.get_paths()['purelib']}\n"
    )
    return python
