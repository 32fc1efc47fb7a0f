"""Decision trees for the errors of the cost model: they rank the model's first candidates again.

The model orders thousands of candidates by known causes. Its remaining errors are similar for similar problems, and
gradient-boosted trees are fitted to them (`warploom tune --fit`). On shapes that were left out of the fit, they halve
the share of choices that cost more than a tenth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from warploom.hardware.targets import L2_LINE
from warploom.heuristics.problem_key import ProblemKey
from warploom.heuristics.sm90.cost_model import (
    DENSE_16BIT,
    CandidateArrays,
    Indices,
    Model,
    Models,
    Numbers,
    Work,
    work_of,
)

_LIMIT = 0.3
"""Largest correction of the logarithm of a time: trees that predict more are outside of what they were fitted to."""


@dataclass
class Subject:
    """The values that features are computed from: candidates, problem, their work, and the model's times."""

    candidates: CandidateArrays
    problem: ProblemKey
    sms: int
    model: Model
    work: Work
    times: Numbers

    @cached_property
    def tiles(self) -> Numbers:
        return self.candidates.tiles(self.problem)

    @cached_property
    def l2_bytes(self) -> Numbers:
        """Bytes that all CTAs read from L2; a part that TMA multicasts is read once for its cluster."""
        of_a_step = self.work["active"] * (self.work["loaded_of_a"] + self.work["loaded_of_b"])
        found: Numbers = of_a_step * self.work["steps"] * self.work["waves"]
        return found

    @cached_property
    def readers(self) -> tuple[Numbers, Numbers]:
        """CTAs, or clusters that it is multicast to, that read each element of the caller's A, and of B."""
        each, (tall, wide) = self.candidates, self.candidates.sides(self.problem)
        of_rows, of_columns = np.where(each.splits > 1, 1, (each.cluster_x, each.cluster_y))
        up, across = (np.where(each.swapped > 0, *pair) for pair in ((of_columns, of_rows), (of_rows, of_columns)))
        return wide / across, tall / up

    @cached_property
    def of_a_tile(self) -> tuple[Numbers, Numbers]:
        return self.model.of_a_tile(self.work)


def _power_of_two(number: Any) -> Any:
    """Return the largest power of two that divides a number, up to an L2 line."""
    return np.minimum(number & -number, L2_LINE)


FEATURES: Mapping[str, Callable[[Subject], Numbers | float]] = {
    "rows": lambda s: s.candidates.rows,
    "columns": lambda s: s.candidates.columns,
    "consumers": lambda s: s.candidates.consumers,
    "pingpong": lambda s: s.candidates.pingpong,
    "swapped": lambda s: s.candidates.swapped,
    "cluster_x": lambda s: s.candidates.cluster_x,
    "cluster_y": lambda s: s.candidates.cluster_y,
    "splits": lambda s: s.candidates.splits,
    "split_in_memory": lambda s: s.candidates.split_in_memory,
    "stream_k": lambda s: s.candidates.stream_k,
    "subtile": lambda s: s.candidates.subtile,
    "stages": lambda s: s.candidates.stages,
    "m": lambda s: s.problem.m,
    "n": lambda s: s.problem.n,
    "k": lambda s: s.problem.k,
    "pitch_of_a": lambda s: _power_of_two(s.work["pitch_of_a"]),
    "pitch_of_b": lambda s: _power_of_two(s.work["pitch_of_b"]),
    "pitch_of_c": lambda s: _power_of_two(s.problem.n),
    "a_mn_major": lambda s: s.candidates.mn_major(s.problem)[0],
    "b_mn_major": lambda s: s.candidates.mn_major(s.problem)[1],
    "waves": lambda s: s.work["waves"],
    "active": lambda s: s.work["active"],
    "steps": lambda s: s.work["steps"],
    "outside": lambda s: s.work["outside"],
    "tiles": lambda s: s.tiles * s.candidates.splits,
    "expected": lambda s: s.times,
    "memory": lambda s: s.work["memory"] / s.model.memory / s.times,
    "bytes": lambda s: s.work["memory"],
    "m_by_n": lambda s: s.problem.m / s.problem.n,
    "filled": lambda s: s.problem.m * s.problem.n / (s.tiles * s.candidates.rows * s.candidates.columns),
    "busy": lambda s: s.tiles * s.candidates.splits / (s.work["waves"] * s.candidates.slots(s.sms)),
    "all_steps": lambda s: s.work["steps"] * s.work["waves"],
    "received": lambda s: s.work["received"],
    "multiplied": lambda s: s.of_a_tile[0] / s.times,
    "written": lambda s: s.of_a_tile[1] / s.times,
    "readers_of_a": lambda s: s.readers[0],
    "readers_of_b": lambda s: s.readers[1],
    "l2_rate": lambda s: s.l2_bytes / s.times,
    "l2_excess": lambda s: s.l2_bytes / s.work["memory"],
}
"""The features that nodes compare, in the order of their numbers."""


def features_of(candidates: CandidateArrays, problem: ProblemKey, model: Model, sms: int) -> tuple[Numbers, Numbers]:
    """Return the features of each candidate for a problem, and its time by the model."""
    work = work_of(candidates, problem, sms)
    subject = Subject(candidates, problem, sms, model, work, model.times(work))
    columns = [
        np.broadcast_to(np.asarray(read(subject), np.float64), subject.times.shape) for read in FEATURES.values()
    ]
    return np.stack(columns, axis=1), subject.times


def limited(error: Numbers) -> Numbers:
    """Return predicted errors within the limit."""
    return np.clip(error, -_LIMIT, _LIMIT)


@dataclass(frozen=True)
class Trees:
    """The trees of one GPU, with the nodes of all of them in one array; a leaf's children are the leaf itself."""

    sms: int
    start: float
    roots: Indices
    feature: Indices
    """By node: the feature that it compares."""
    threshold: Numbers
    children: Indices
    """Two per node: the next node if the feature is at most the threshold, and if it is above."""
    value: Numbers
    depth: int

    def errors(self, features: Numbers) -> Numbers:
        """Return the logarithm of measured by modelled time, as predicted for each candidate."""
        row, flat = np.arange(len(features)) * features.shape[1], features.ravel()
        node = np.repeat(self.roots[:, None], len(features), axis=1)
        for _ in range(self.depth):
            is_above = flat[row + self.feature[node]] > self.threshold[node]
            node = self.children[2 * node + is_above]
        return limited(self.start + self.value[node].sum(axis=0))

    def times(self, candidates: CandidateArrays, problem: ProblemKey, models: Models) -> Numbers:
        """Return the times of candidates by model and trees together, in µs."""
        features, times = features_of(candidates, problem, models[DENSE_16BIT], self.sms)
        found: Numbers = times * np.exp(self.errors(features))
        return found


def read_trees(document: Mapping[str, Any], sms: int) -> Trees:
    """Return the trees of a document: each is features, thresholds and children; a leaf has feature -1 and a value."""
    trees = document["trees"]
    sizes = [len(tree[0]) for tree in trees]
    roots = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    first = np.repeat(roots, sizes)
    feature, threshold, below, above = (np.concatenate([tree[part] for tree in trees]) for part in range(4))
    is_leaf, itself = feature < 0, np.arange(len(feature))
    children = (np.where(is_leaf, itself, first + child) for child in (below, above))
    return Trees(
        sms=sms,
        start=document["start"],
        roots=roots,
        feature=np.where(is_leaf, 0, feature),
        threshold=threshold.astype(np.float64),
        children=np.stack(tuple(children), axis=1).ravel(),
        value=np.where(is_leaf, threshold, 0).astype(np.float64),
        depth=document["depth"],
    )
