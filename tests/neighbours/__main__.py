"""`make neighbours`: see `measuring`."""

from __future__ import annotations

import sys

from .measuring import main

if __name__ == "__main__":  # and not in a process of the pool, which imports this again
    sys.exit(main(sys.argv[1:]))
