"""What the model of Hopper configurations misses, by decision trees that were fitted to measurements.

The model knows why a configuration is fast, and orders hundreds of them; what it does not know is still alike for
problems that are alike. bench/trees.py fits trees to that, and writes `trees/`. Where shapes are left out of the fit,
they halve how often a choice by the model costs more than a tenth.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from warploom.structured.config.hopper_model import MODEL, Numbers, Outlines, Work, work_of
from warploom.structured.config.hopper_strips import LINE
from warploom.structured.config.sought import Sought

_FOLDER = "trees"
_MOST = 0.3
"""Of the logarithm of a time: trees that claim more have left what they know."""
Places = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True)
class Seen:
    """What trees may ask about: configurations, the problem, what they do for it, and what the model expects."""

    of: Outlines
    sought: Sought
    work: Work
    times: Numbers


def _power(number: int) -> int:
    """The power of two that divides a number, as far as it matters to lines of memory."""
    return min(number & -number, LINE)


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
    "m": lambda seen: seen.sought.m,
    "n": lambda seen: seen.sought.n,
    "k": lambda seen: seen.sought.k,
    "k_power": lambda seen: _power(seen.sought.k),
    "n_power": lambda seen: _power(seen.sought.n),
    "waves": lambda seen: seen.work["waves"],
    "active": lambda seen: seen.work["active"],
    "steps": lambda seen: seen.work["steps"],
    "outside": lambda seen: seen.work["outside"],
    "tiles": lambda seen: seen.of.tiles(seen.sought) * seen.of.splits,
    "expected": lambda seen: seen.times,
    "memory": lambda seen: seen.work["memory"] / MODEL.memory / seen.times,
}
"""The trees' questions, in their order."""


def features_of(of: Outlines, sought: Sought, sms: int) -> tuple[Numbers, Numbers]:
    """What trees are asked about each configuration for a problem, and how long the model takes it for."""
    work = work_of(of, sought, sms)
    seen = Seen(of, sought, work, MODEL.times(work))
    columns = [np.broadcast_to(np.asarray(ask(seen), np.float64), seen.times.shape) for ask in FEATURES.values()]
    return np.stack(columns, axis=1), seen.times


def believed(missed: Numbers) -> Numbers:
    """What is taken of what trees say."""
    return np.clip(missed, -_MOST, _MOST)


@dataclass(frozen=True)
class Trees:
    """Trees of one machine, padded to one size; a leaf leads to itself."""

    sms: int
    start: float
    question: Places
    """By tree and node: which feature decides."""
    limit: Numbers
    below: Places
    """Where it goes on if the feature is not above the limit."""
    above: Places
    value: Numbers
    depth: int

    def missed(self, features: Numbers) -> Numbers:
        """The logarithm of how much longer each configuration takes than the model says."""
        tree, who = np.arange(len(self.limit))[:, None], np.arange(len(features))[None, :]
        node = np.zeros((len(self.limit), len(features)), np.intp)
        for _ in range(self.depth):
            asked = features[who, self.question[tree, node]]
            node = np.where(asked <= self.limit[tree, node], self.below[tree, node], self.above[tree, node])
        return believed(self.start + self.value[tree, node].sum(axis=0))

    def times(self, of: Outlines, sought: Sought) -> Numbers:
        """How long configurations take by the model and the trees together, in µs."""
        features, times = features_of(of, sought, self.sms)
        found: Numbers = times * np.exp(self.missed(features))
        return found


@cache
def trees_for(sms: int) -> Trees | None:
    """The trees of a GPU with so many multiprocessors, if any were fitted."""
    folder = files("warploom.structured.config") / _FOLDER
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    documents = (json.loads(file.read_text("utf-8")) for file in found)
    return next((read(document) for document in documents if document["measured_on"]["sms"] == sms), None)


def read(document: Mapping[str, Any]) -> Trees:
    """Trees of a document: of each the features asked, limits, and where to go on; a leaf asks -1 and has a value."""
    trees = document["trees"]
    shape = (len(trees), max(len(tree[0]) for tree in trees))
    asked, below, above = (np.full(shape, -1, np.intp) for _ in range(3))
    limit = np.zeros(shape)
    for number, tree in enumerate(trees):
        for numbers, given in zip((asked, limit, below, above), tree, strict=True):
            numbers[number, : len(given)] = given
    is_leaf, itself = asked < 0, np.arange(shape[1])
    return Trees(
        sms=document["measured_on"]["sms"],
        start=document["start"],
        question=np.where(is_leaf, 0, asked),
        limit=limit,
        below=np.where(is_leaf, itself, below),
        above=np.where(is_leaf, itself, above),
        value=np.where(is_leaf, limit, 0),
        depth=document["depth"],
    )
