"""The choice of Hopper configurations: the device's measured table, then decision trees and cost model.

`bench/matmul.py --what random` measures the choices against cuBLAS.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import ceil
from typing import Any

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.heuristics.device import Device
from warploom.heuristics.problem_key import ProblemKey
from warploom.heuristics.sm90.candidates import FUSED_ACCUMULATORS, KINDS, Fields, build, rows_for
from warploom.heuristics.sm90.cost_model import CandidateArrays, Indices, Numbers, expected_times, is_dense_16bit
from warploom.heuristics.sm90.dependent_launches import saved_times
from warploom.heuristics.sm90.device_data import data_for
from warploom.heuristics.sm90.trees import Trees
from warploom.structured.config.sm90 import ROW_BYTES, HopperConfig

RERANKED = 64
"""The model's first candidates, which the trees rank again: the fastest is nearly always among them."""
_THREE_CONSUMERS = 56
"""Accumulators per thread of three consumers up to which a bias and an activation do not spill."""
_IN_PLACE, _THREE_IN_PLACE = 192, 92
"""The same with a residual in place, whose subtiles are narrow; of two and of three consumers."""
_WIDEST_SUBTILE, _WIDEST_IN_CLUSTER, _WIDEST_STACKED = 232, 224, 128
"""Subtile columns up to which they do not spill, if a thread holds accumulators of 64 rows, without and with a cluster,
and of more."""
_AS_FAST = 1.02
"""Expected times up to this multiple of another's count as equal to it: the expectation is not more accurate."""
LEAST_SHARE = 4
"""K tiles that each CTA must have for stream-K to be a candidate."""


def rank(problem: ProblemKey, device: Device) -> Iterator[HopperConfig]:
    """Yield the table's entry for the problem, if there is one, then the order of trees and cost model."""
    measured = _measured(problem, device)
    if measured is not None:
        yield measured
    for config in _by_expectation(problem, device):
        if config != measured:
            yield config


def as_fast_as_choice(problem: ProblemKey, device: Device, configs: Sequence[HopperConfig]) -> HopperConfig | None:
    """Return the fastest of some configurations by expectation, if it is about as fast as the choice; None otherwise.

    The choice of a problem in the device's table was measured, and no expectation replaces it.
    """
    if _measured(problem, device) is not None:
        return None
    chosen = next(_by_expectation(problem, device), None)
    fitting = list(itertools.compress(configs, _fits(CandidateArrays.of_configs(configs), problem, device.sms)))
    if chosen is None or not fitting:
        return None
    candidates = CandidateArrays.of_configs([chosen, *fitting])
    of_choice, *times = _corrected_times(candidates, problem, device).tolist()
    fastest, config = min(zip(times, fitting, strict=True), key=lambda each: each[0])
    return config if fastest <= _AS_FAST * of_choice else None


def fallback(problem: ProblemKey, _: Device) -> HopperConfig:
    """Return a configuration whose violations say why none fits."""
    return KINDS[problem.kind].config(**dict(problem.fields))


def _measured(problem: ProblemKey, device: Device) -> HopperConfig | None:
    data = data_for(device)
    row = data.find(problem) if data.is_measured_on(device) else None
    if row is None:
        return None
    configs = candidates_of((row,), problem, device.sms, is_measured=True)
    is_own = data.has(problem) and problem.fused  # it was measured with an epilogue that needs registers
    return next((each for each in configs if is_own or _has_registers(each, problem)), None)


def candidates_of(
    rows: Sequence[Fields], problem: ProblemKey, sms: int, *, is_measured: bool = False
) -> Iterator[HopperConfig]:
    """Yield the configurations of rows in their order, each once, without those that break a rule or do not fit.

    One that was measured for the problem may have clusters of splits in several waves, which the model does not know.
    """
    fitting = _fits(CandidateArrays.of(rows), problem, sms, is_measured=is_measured) if rows else []
    return _built(itertools.compress(rows, fitting), problem)


def _by_expectation(problem: ProblemKey, device: Device) -> Iterator[HopperConfig]:
    """Yield all configurations, the fastest expected first; most are never constructed."""
    rows, candidates = _considered(problem)
    indices = np.flatnonzero(_fits(candidates, problem, device.sms))
    if not len(indices):
        return
    order = indices[_order(candidates.take(indices), problem, device)].tolist()
    last: list[HopperConfig] = []
    for config in _built((rows[index] for index in order), problem):
        is_unmeasured = config.gated and config.is_split
        if is_unmeasured or _loads_residual_late(config, problem) or not _has_registers(config, problem):
            last.append(config)
        else:
            yield config
    yield from last


def _order(candidates: CandidateArrays, problem: ProblemKey, device: Device) -> Indices:
    """Return the indices of candidates by expected time; those that leave no registers for an epilogue come last."""
    crowded = (candidates.accumulators > FUSED_ACCUMULATORS) & problem.fused
    order = np.lexsort((_modelled_times(candidates, problem, device), crowded))
    if _trees_for(problem, device) is None:
        return order
    first = order[:RERANKED]
    again = np.lexsort((_corrected_times(candidates.take(first), problem, device), crowded[first]))
    return np.concatenate((first[again], order[RERANKED:]))


def _modelled_times(candidates: CandidateArrays, problem: ProblemKey, device: Device) -> Numbers:
    """Return the times of the cost model, less what dependent launches save."""
    times = expected_times(candidates, problem, data_for(device).models, sms=device.sms)
    return times - saved_times(candidates, problem)


def _corrected_times(candidates: CandidateArrays, problem: ProblemKey, device: Device) -> Numbers:
    """Return the same as corrected by the trees, where there are any for the problem."""
    trees = _trees_for(problem, device)
    if trees is None:
        return _modelled_times(candidates, problem, device)
    return trees.times(candidates, problem, data_for(device).models) - saved_times(candidates, problem)


def _trees_for(problem: ProblemKey, device: Device) -> Trees | None:
    data = data_for(device)
    is_plain = is_dense_16bit(problem) and not problem.fused and not problem.residual
    return data.trees_for(problem) if is_plain and data.is_measured_on(device) else None


def _considered(problem: ProblemKey) -> tuple[Sequence[Fields], CandidateArrays]:
    """Return the rows for a problem and their arrays; those that depend on its sizes are made each time."""
    rows = rows_for(problem)
    is_usual = len(rows) == len(KINDS[problem.kind].rows)
    return _usual_candidates(problem.kind) if is_usual else (rows, CandidateArrays.of(rows))


@cache
def _usual_candidates(kind: str) -> tuple[Sequence[Fields], CandidateArrays]:
    return KINDS[kind].rows, CandidateArrays.of(KINDS[kind].rows)


def _built(rows: Iterable[Fields], problem: ProblemKey) -> Iterator[HopperConfig]:
    """Yield the configurations of rows that break no rule, each once."""
    seen: set[HopperConfig] = set()
    for row in rows:
        for each in _variants(row, problem):
            config = build(each, problem)
            if config is not None and config not in seen:
                seen.add(config)
                yield config


def _variants(row: Fields, problem: ProblemKey) -> Iterator[Fields]:
    """Yield a row with the residual in place, and as it is."""
    if problem.residual and "residual_in_place" not in row:
        yield {**row, "residual_in_place": True}
    yield row


def _loads_residual_late(config: HopperConfig, problem: ProblemKey) -> bool:
    """Return True if threads load a residual that could be loaded in place: only split-K is worth that."""
    return problem.residual and not config.residual_in_place and config.num_split_k == 1


def _has_registers(config: HopperConfig, problem: ProblemKey) -> bool:
    """Return True if registers are left for an epilogue, or for threads that load or store C themselves.

    ptxas serialises the MMAs of ping-pong consumers that store from registers.
    """
    loads_late = problem.residual and not config.residual_in_place
    by_threads = not config.use_tma_store
    is_serialised = by_threads and config.pingpong and not config.stream_k
    needs_registers = problem.fused or loads_late or by_threads
    if is_serialised or (needs_registers and config.accumulators_held > FUSED_ACCUMULATORS):
        return False
    has_epilogue = problem.fused or problem.light_epilogue or problem.residual
    return not has_epilogue or _has_registers_for_light_epilogue(config)


def _has_registers_for_light_epilogue(config: HopperConfig) -> bool:
    """Return True if a bias, an activation and a residual in place do not spill."""
    has_three, accumulators = config.consumers > 2, config.accumulators_held
    if config.residual_in_place:
        return accumulators <= (_THREE_IN_PLACE if has_three else _IN_PLACE)
    if has_three:
        return accumulators <= _THREE_CONSUMERS
    if config.subtiles > 1:
        return config.stage_columns <= _WIDEST_STACKED
    is_clustered = config.cluster_shape != (1, 1, 1)
    return config.stage_columns <= (_WIDEST_IN_CLUSTER if is_clustered else _WIDEST_SUBTILE)


def _fits(candidates: CandidateArrays, problem: ProblemKey, sms: int, *, is_measured: bool = False) -> list[bool]:
    """Return which candidates may be used: splits must be allowed, have work, and all be resident at once.

    Those that meet in a cluster need not be, if they were measured.
    """
    element_bytes = ELEMENT_TYPES[problem.a_type].storage_bits // 8
    tiles, k_tiles = candidates.tiles(problem), ceil(problem.k / (ROW_BYTES // element_bytes))
    is_split, is_streamed = candidates.splits > 1, candidates.stream_k > 0
    is_whole = ~is_split & ~is_streamed
    may_split = problem.count == 1 and not problem.unsplit
    is_resident = tiles * candidates.splits <= candidates.slots(sms)
    if is_measured:
        is_resident = is_resident | (candidates.split_in_memory == 0)
    splits = is_split & is_resident & (k_tiles >= 2 * candidates.splits) & may_split
    has_partial_wave = (tiles % sms != 0) & (tiles * k_tiles >= LEAST_SHARE * sms)
    streams = is_streamed & has_partial_wave & (not problem.unsplit)
    found: list[bool] = ((is_whole | splits | streams) & _loads_lines(candidates, problem)).tolist()
    return found


def _loads_lines(candidates: CandidateArrays, problem: ProblemKey) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which candidates load an MN-major B in whole lines, or in one piece if the tile is narrower.

    Otherwise it takes as many copies as it has pieces: tiles of 176 columns take twice as long as those of 192, and
    tiles of 136 three times.
    """
    line = ROW_BYTES * 8 // ELEMENT_TYPES[problem.a_type].storage_bits
    _, is_mn_major = candidates.mn_major(problem)
    columns = candidates.columns.astype(np.int64)
    is_piece = (columns < line) & (columns & (columns - 1) == 0)
    found: np.ndarray[Any, np.dtype[np.bool_]] = (is_mn_major == 0) | (columns % line == 0) | is_piece
    return found
