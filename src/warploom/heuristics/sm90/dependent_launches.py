"""Programmatic dependent launch by default: the launches that may start before the previous one has ended.

A dependent launch sets up its barriers while the previous kernel ends, which saves most of the time between two
kernels. Its CTAs go to SMs in the order in which these become free, though, so that CTAs that share operands are no
longer next to each other. A kernel that reads much from the L2 loses more by that than it gains (`bench/dependent.py`).
"""

from __future__ import annotations

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.heuristics.problem_key import ProblemKey
from warploom.heuristics.sm90.cost_model import CandidateArrays, Fields, Numbers

SAVED_US = 0.85
"""Microseconds that a dependent launch saves in a CUDA graph of equal launches."""
_MOST_REREAD = 200e6
"""Bytes that CTAs may read again from the L2: of two kernels with 185 and 270 MB, the first gains, the second loses."""


def is_dependent(row: Fields, problem: ProblemKey) -> bool:
    """Return True if the launch of a configuration is dependent by default."""
    return bool(saved_times(CandidateArrays.of((row,)), problem)[0])


def saved_times(candidates: CandidateArrays, problem: ProblemKey) -> Numbers:
    """Return the time that each candidate saves by a dependent launch, in µs; measurements and model are without it.

    Kernels whose CTAs exchange partial tiles in memory are slower with dependent launches. Other kinds than dense GEMMs
    were not measured.
    """
    if problem.kind != "dense":
        return np.zeros_like(candidates.rows)
    exchanges = (candidates.split_in_memory > 0) | (candidates.stream_k > 0)
    return np.where(exchanges | (_reread(candidates, problem) > _MOST_REREAD), 0.0, SAVED_US)


def _reread(candidates: CandidateArrays, problem: ProblemKey) -> Numbers:
    """Return the bytes of A and B that are read from the L2, beyond one read of each; multicast counts as one read."""
    is_whole = candidates.splits <= 1
    rows = candidates.rows / np.where(is_whole, candidates.cluster_y, 1)
    columns = candidates.columns / np.where(is_whole, candidates.cluster_x, 1)
    once = problem.count * (problem.m + problem.n)
    element = ELEMENT_TYPES[problem.a_type].storage_bits / 8
    return (candidates.tiles(problem) * (rows + columns) - once) * problem.k * element
