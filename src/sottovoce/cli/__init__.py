"""The command `sottovoce`: the Python functions with progress, tables and one-line errors."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command line; an error of ours is one line on standard error and exit code 2."""
    # Before torch and numpy are loaded: threads that wait by spinning make a busy machine ten times slower,
    # and numpy's, who get nothing to do but a norm now and then, would take a core from torch.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        # Loading torch takes seconds in which Ctrl-C must not end in a traceback.
        from sottovoce.cli.application import app
        from sottovoce.cli.display import problem
        from sottovoce.errors import SottovoceError
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        app()
    except SottovoceError as error:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in error.options)
        problem(f"{error} ({flags})" if flags else str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        problem("interrupted")
        sys.exit(130)
    except OSError as error:
        problem(f"{error.filename or 'a file'}: {error.strerror or error}; check the path")
        sys.exit(2)
