"""Programmatic dependent launch by default: the launches that may start before the previous one has ended.

A dependent launch sets up its barriers while the previous kernel ends, which saves most of the time between two
kernels. Its CTAs go to SMs in the order in which these become free, though, so that CTAs that share operands are no
longer next to each other. A kernel that reads much from the L2 loses more by that than it gains (`bench/dependent.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.heuristics.problem_key import ProblemKey
from warploom.heuristics.sm90.cost_model import CandidateArrays, Fields, Numbers
from warploom.structured.config.sm90 import MACHINE

SAVED_US = 0.85
"""Microseconds that a dependent launch saves in a CUDA graph of equal launches."""
_MOST_REREAD = 200e6
"""Bytes that CTAs may read again from the L2: of two kernels with 185 and 270 MB, the first gains, the second loses."""
_FEW_CTAS = 0.85
"""Of the SMs: fewer CTAs are spread less evenly than by a usual launch, which costs a long kernel that DRAM limits more
than it gains (by up to a tenth, bench/results/alone_fresh.json)."""
_LONG_US = 12.4
_BYTES_PER_US, _FLOPS_PER_US = 4.2e6, 7e8
"""Of an H200: DRAM, and 16-bit GEMMs at the power limit."""


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
    rereads = _reread(candidates, problem) > _MOST_REREAD
    return np.where(exchanges | rereads | _leaves_sms_idle(candidates, problem), 0.0, SAVED_US)


def _leaves_sms_idle(candidates: CandidateArrays, problem: ProblemKey) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which candidates have few CTAs for a long problem that DRAM limits."""
    m, n, k, count = problem.sizes
    a_bytes, c_bytes = (ELEMENT_TYPES[name].storage_bits / 8 for name in (problem.a_type, problem.c_type))
    moving = count * (a_bytes * (m + n) * k + c_bytes * m * n) / _BYTES_PER_US
    multiplying = problem.flops * a_bytes / 2 / _FLOPS_PER_US
    is_long = moving > max(multiplying, _LONG_US)
    return is_long & (candidates.tiles(problem) * candidates.splits < _FEW_CTAS * MACHINE.sms)


def _reread(candidates: CandidateArrays, problem: ProblemKey) -> Numbers:
    """Return the bytes of A and B that are read from the L2, beyond one read of each; multicast counts as one read."""
    is_whole = candidates.splits <= 1
    rows = candidates.rows / np.where(is_whole, candidates.cluster_y, 1)
    columns = candidates.columns / np.where(is_whole, candidates.cluster_x, 1)
    once = problem.count * (problem.m + problem.n)
    element = ELEMENT_TYPES[problem.a_type].storage_bits / 8
    return (candidates.tiles(problem) * (rows + columns) - once) * problem.k * element
