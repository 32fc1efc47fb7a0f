"""What the model of Hopper configurations misses, by decision trees that were fitted to measurements.

The model knows why a configuration is fast, and orders thousands of them; what it does not know is still alike for
problems that are alike. bench/trees.py fits trees to that, and writes `data/*.trees.json`. Where shapes are left out of
the fit, they halve how often a choice by the model costs more than a tenth.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import numpy as np

from warploom.hardware.targets import L2_LINE
from warploom.heuristics.problem_key import Sought
from warploom.heuristics.sm90.cost_model import MODEL, Numbers, Outlines, Work, work_of

_SUFFIX = ".trees.json"
_MOST = 0.3
"""Of the logarithm of a time: trees that claim more have left what they know."""
Places = np.ndarray[Any, np.dtype[np.intp]]


@dataclass
class Seen:
    """What trees may ask about: configurations, the problem, what they do for it, and what the model expects."""

    of: Outlines
    sought: Sought
    sms: int
    work: Work
    times: Numbers

    @cached_property
    def tiles(self) -> Numbers:
        return self.of.tiles(self.sought)

    @cached_property
    def of_a_tile(self) -> tuple[Numbers, Numbers]:
        return MODEL.of_a_tile(self.work)


def _power(number: Any) -> Any:
    """The power of two that divides a number, as far as it matters to lines of memory."""
    return np.minimum(number & -number, L2_LINE)


FEATURES: Mapping[str, Callable[[Seen], Numbers | float]] = {
    "rows": lambda seen: seen.of.rows,
    "columns": lambda seen: seen.of.columns,
    "consumers": lambda seen: seen.of.consumers,
    "pingpong": lambda seen: seen.of.pingpong,
    "swapped": lambda seen: seen.of.swapped,
    "down": lambda seen: seen.of.down,
    "along": lambda seen: seen.of.along,
    "splits": lambda seen: seen.of.splits,
    "in_memory": lambda seen: seen.of.in_memory,
    "streamed": lambda seen: seen.of.streamed,
    "strip": lambda seen: seen.of.strip,
    "stages": lambda seen: seen.of.stages,
    "m": lambda seen: seen.sought.m,
    "n": lambda seen: seen.sought.n,
    "k": lambda seen: seen.sought.k,
    "pitch_of_a": lambda seen: _power(seen.work["pitch_of_a"]),
    "pitch_of_b": lambda seen: _power(seen.work["pitch_of_b"]),
    "pitch_of_c": lambda seen: _power(seen.sought.n),
    "a_mn_major": lambda seen: seen.of.mn_major(seen.sought)[0],
    "b_mn_major": lambda seen: seen.of.mn_major(seen.sought)[1],
    "waves": lambda seen: seen.work["waves"],
    "active": lambda seen: seen.work["active"],
    "steps": lambda seen: seen.work["steps"],
    "outside": lambda seen: seen.work["outside"],
    "tiles": lambda seen: seen.tiles * seen.of.splits,
    "expected": lambda seen: seen.times,
    "memory": lambda seen: seen.work["memory"] / MODEL.memory / seen.times,
    "bytes": lambda seen: seen.work["memory"],
    "m_by_n": lambda seen: seen.sought.m / seen.sought.n,
    "filled": lambda seen: seen.sought.m * seen.sought.n / (seen.tiles * seen.of.rows * seen.of.columns),
    "busy": lambda seen: seen.tiles * seen.of.splits / (seen.work["waves"] * seen.of.slots(seen.sms)),
    "all_steps": lambda seen: seen.work["steps"] * seen.work["waves"],
    "received": lambda seen: seen.work["received"],
    "multiplied": lambda seen: seen.of_a_tile[0] / seen.times,
    "written": lambda seen: seen.of_a_tile[1] / seen.times,
}
"""The trees' questions, in their order."""


def features_of(of: Outlines, sought: Sought, sms: int) -> tuple[Numbers, Numbers]:
    """What trees are asked about each configuration for a problem, and how long the model takes it for."""
    work = work_of(of, sought, sms)
    seen = Seen(of, sought, sms, work, MODEL.times(work))
    columns = [np.broadcast_to(np.asarray(ask(seen), np.float64), seen.times.shape) for ask in FEATURES.values()]
    return np.stack(columns, axis=1), seen.times


def believed(missed: Numbers) -> Numbers:
    """What is taken of what trees say."""
    return np.clip(missed, -_MOST, _MOST)


@dataclass(frozen=True)
class Trees:
    """Trees of one machine, their nodes in one row; a leaf leads to itself."""

    sms: int
    start: float
    roots: Places
    question: Places
    """By node: which feature decides."""
    limit: Numbers
    next: Places
    """By node, two of them: where it goes on if the feature is not above the limit, and where if it is."""
    value: Numbers
    depth: int

    def missed(self, features: Numbers) -> Numbers:
        """The logarithm of how much longer each configuration takes than the model says."""
        row, flat = np.arange(len(features)) * features.shape[1], features.ravel()
        node = np.repeat(self.roots[:, None], len(features), axis=1)
        for _ in range(self.depth):
            is_above = flat[row + self.question[node]] > self.limit[node]
            node = self.next[2 * node + is_above]
        return believed(self.start + self.value[node].sum(axis=0))

    def times(self, of: Outlines, sought: Sought) -> Numbers:
        """How long configurations take by the model and the trees together, in µs."""
        features, times = features_of(of, sought, self.sms)
        found: Numbers = times * np.exp(self.missed(features))
        return found


@cache
def trees_for(sms: int) -> Trees | None:
    """The trees of a GPU with so many multiprocessors, if any were fitted."""
    folder = files("warploom.heuristics") / "data"
    found = sorted((file for file in folder.iterdir() if file.name.endswith(_SUFFIX)), key=lambda file: file.name)
    documents = (json.loads(file.read_text("utf-8")) for file in found)
    return next((read(document) for document in documents if document["measured_on"]["sms"] == sms), None)


def read(document: Mapping[str, Any]) -> Trees:
    """Trees of a document: of each the features asked, limits, and where to go on; a leaf asks -1 and has a value."""
    trees = document["trees"]
    sizes = [len(tree[0]) for tree in trees]
    roots = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    first = np.repeat(roots, sizes)
    asked, limit, below, above = (np.concatenate([tree[part] for tree in trees]) for part in range(4))
    is_leaf, itself = asked < 0, np.arange(len(asked))
    ways = (np.where(is_leaf, itself, first + way) for way in (below, above))
    return Trees(
        sms=document["measured_on"]["sms"],
        start=document["start"],
        roots=roots,
        question=np.where(is_leaf, 0, asked),
        limit=limit.astype(np.float64),
        next=np.stack(tuple(ways), axis=1).ravel(),
        value=np.where(is_leaf, limit, 0).astype(np.float64),
        depth=document["depth"],
    )
