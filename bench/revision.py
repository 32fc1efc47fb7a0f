"""The commit of this checkout, which results name."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path


@cache
def revision() -> str:
    """The short name of the commit; $REVISION for a copy without its history."""
    if "REVISION" in os.environ:
        return os.environ["REVISION"]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
