"""`python -m warploom` is the command `warploom`."""

from __future__ import annotations

import sys

from warploom.cli import main

if __name__ == "__main__":
    sys.exit(main())
