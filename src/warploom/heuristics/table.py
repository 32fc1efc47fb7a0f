"""The shipped tuning tables: for each machine, what was measured to be fastest, with its time and the peer's.

A table is a `*.table.json` file in `data/`: what it was measured on, and entries of kind, sizes, type, configuration
and microseconds. bench/shipped_table.py makes it of measurements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from warploom.heuristics.problem_key import Sought
from warploom.heuristics.sm90.candidates import Fields

_SUFFIX = ".table.json"
Place = tuple[str, int, int, int, int, str, str, str, bool, bool]
"""Kind, m, n, k, count, A's type, the majors of A and B, and whether it is fused and has a residual."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The fastest configuration of one problem; `peer_us` is None where nobody else was measured."""

    config: Fields
    us: float
    peer_us: float | None


@dataclass(frozen=True, slots=True)
class Table:
    """What was measured on one kind of machine."""

    gpu: str
    sms: int
    entries: Mapping[Place, Entry]

    def find(self, sought: Sought) -> Fields | None:
        """The fields for a problem, if it was measured."""
        place = (sought.kind, *sought.sizes, sought.a_type, *sought.majors, sought.fused, sought.residual)
        found = self.entries.get(place)
        return None if found is None else found.config


@cache
def tables() -> tuple[Table, ...]:
    """All that are shipped; they are read when the first choice is made."""
    folder = files("warploom.heuristics") / "data"
    found = sorted((file for file in folder.iterdir() if file.name.endswith(_SUFFIX)), key=lambda file: file.name)
    texts = (file.read_text("utf-8") for file in found)
    return tuple(_read(json.loads(text)) for text in texts)


def table_for(gpu: str, sms: int) -> Table | None:
    """The table of a GPU, or else of one with as many multiprocessors."""
    return next(
        (table for table in tables() if table.gpu == gpu),
        next((table for table in tables() if table.sms == sms), None),
    )


def _read(document: dict[str, Any]) -> Table:
    about = document["measured_on"]
    entries = {}
    for row in document["entries"]:
        marks = (row.get("fused", False), row.get("residual", False))
        majors = (row.get("a_major", "k"), row.get("b_major", "k"))
        place = (row["kind"], *row["sizes"], row.get("count", 1), row["a_type"], *majors, *marks)
        entries[place] = Entry(hashable(row["config"]), row["us"], row.get("peer_us"))
    return Table(about["gpu"], about["sms"], entries)


def hashable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as a configuration has them: JSON knows no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
