"""The commit of this checkout, which results name."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path


@cache
def revision() -> str:
    """The short name of the commit."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
