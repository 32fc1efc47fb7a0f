"""Launch files that are recorded: their text, and errors of the disk."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warploom.diagnostics import Diag

SUFFIX = ".launch.json"


def recorded_path(folder: str | Path, number: int, kernel: str) -> Path:
    """The launch file of one launch of a program."""
    return Path(folder) / f"{number:03}_{re.sub(r'[^A-Za-z0-9_]', '_', kernel)[:64]}{SUFFIX}"


def save_schedule(schedule: Any, path: Path) -> Path:
    """Write a recorded schedule next to a launch file; its path."""
    file = path.with_name(path.name.removesuffix(SUFFIX) + ".schedule.json")
    with writing(path.parent):
        schedule.save(file)
    return file


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Make a directory, and report a file that cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise Diag.UNWRITABLE_FILE.error(file=str(error.filename or directory), what=error.strerror) from None


def text_of(document: Mapping[str, Any]) -> str:
    """JSON with one line for each buffer, argument and comparison."""
    lines = []
    for key, value in document.items():
        inner = [json.dumps(each, allow_nan=False) for each in (value if isinstance(value, list) else ())]
        if isinstance(value, dict):
            inner = [f"{json.dumps(name)}: {json.dumps(each, allow_nan=False)}" for name, each in value.items()]
        if not inner:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
            continue
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        lines.append(f"  {json.dumps(key)}: {opening}\n    " + ",\n    ".join(inner) + f"\n  {closing}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
