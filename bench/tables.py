"""Tables of results: measured case by case, printed as they grow, and written after each case."""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ROOT = Path(__file__).parents[1]
RESULTS, HURRIED = ROOT / "bench" / "results", ROOT / "build" / "bench"


class GpuLostError(Exception):
    """A kernel has faulted, and nothing else can run in this process."""


def _nothing(rows: list[Row]) -> Row:
    return {}


@dataclass
class Table:
    """Rows under a name, each with a `label`; `about` describes the system and the method."""

    name: str
    about: Row
    line_of: Callable[[Row], str]
    summary: Callable[[list[Row]], Row] = _nothing
    folder: Path = RESULTS
    limit: float = 300
    """Seconds after which a case counts as hung; the process then ends, and the written rows remain."""
    is_lost: Callable[[], bool] = bool
    adds: bool = False
    """Keep rows of an earlier run that this one does not measure again."""
    rows: list[Row] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.adds and self.file.exists():
            self.rows = json.loads(self.file.read_text("utf-8"))["rows"]

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.json"

    def begin(self, key: Row) -> None:
        """Write down that a case has begun: its row, should the process end with it."""
        self._place({**key, "error": "did not end"}, key)
        self.write()

    def measure(self, key: Row, measured: Callable[[], Row]) -> Row:
        """Measure one case, by its key; a failure is reported and counted, and the others continue unless the GPU is lost."""
        faulthandler.dump_traceback_later(self.limit, exit=True, file=sys.__stderr__)
        try:
            found = measured()
        except Exception as error:  # noqa: BLE001  (whatever a case raises is its result)
            found = {"error": one_line(error)}
        faulthandler.cancel_dump_traceback_later()
        row = {**key, **found}
        self._place(row, key)
        print(self.line_of(row), flush=True)
        self.write()
        if self.is_lost():
            raise GpuLostError("the GPU is lost after a fault; the remaining cases are skipped")
        return row

    def _place(self, row: Row, key: Row) -> None:
        known = json.loads(json.dumps(key))
        for number, old in enumerate(self.rows):
            if all(old.get(name) == value for name, value in known.items()):
                self.rows[number] = row
                return
        self.rows.append(row)

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {"what": self.name, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **self.about}
        text = json.dumps(
            {**about, "summary": self.summary(self.rows), "rows": self.rows}, indent=1, ensure_ascii=False
        )
        self.file.write_text(text + "\n", "utf-8")


def folder_of(asked: argparse.Namespace) -> Path:
    """Choose the output directory: the requested one, else bench/results, except for quick runs."""
    given: Path | None = asked.out
    return given or (HURRIED if asked.quick else RESULTS)


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def good(rows: list[Row]) -> list[Row]:
    return [row for row in rows if "error" not in row]


def worded(row: Row, *left_out: str) -> str:
    """Format the remaining fields of a row."""
    rest = {name: value for name, value in row.items() if name not in left_out}
    return ", ".join(
        f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}" for name, value in rest.items()
    )
