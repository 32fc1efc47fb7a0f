"""Which Hopper configuration suits a problem: what was measured on this machine, else what the model takes for fastest.

What the choices are worth, `bench/matmul.py --what random` measures.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from math import ceil
from typing import Any

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.heuristics.problem_key import Sought, sought
from warploom.heuristics.sm90.candidates import FUSED_ACCUMULATORS, KINDS, Fields, made, rows_for
from warploom.heuristics.sm90.cost_model import Outlines, expected_times, is_single
from warploom.heuristics.sm90.trees import Places, trees_for
from warploom.heuristics.table import table_for
from warploom.structured.config.sm90 import MACHINE, ROW_BYTES, HopperConfig

LOOKED_AT = 64
"""The model's first configurations, among which the trees choose: the fastest is nearly always one of these."""
_OF_THREE = 56
"""Sums of a thread of three consumers beside which a bias and an activation do not spill."""
_IN_PLACE, _OF_THREE_IN_PLACE = 192, 92
"""Sums beside which they do not with a residual in place, whose strips are narrow."""
_WIDEST_STRIP, _WIDEST_OF_MORE = 232, 128
"""Columns of a strip beside which they do not, where a thread holds the sums of 64 rows, and of more."""
LEAST_SHARE = 4
"""K tiles that each CTA must have for stream-K to be worth a thought."""


def choose_hopper(m: int, n: int, k: int, batch: int = 1, *, sms: int = MACHINE.sms, **fields: Any) -> HopperConfig:
    """The configuration for D (m × n); `fields` are to be as they say, with A and B as the caller sees them.

    `fused=True` keeps registers for an epilogue that computes; `residual=True` is for one that is loaded.
    """
    return choose(sought("dense", m, n, k, batch, **fields), sms=sms)


@lru_cache(maxsize=4096)
def choose(sought: Sought, *, sms: int = MACHINE.sms, gpu: str = "") -> HopperConfig:
    """The configuration for what is sought on a GPU: of the shipped table where it holds the problem, else the model's.

    Winners that a user has measured come before both; the operations know them.
    """
    table = table_for(gpu, sms)
    row = table.find(sought) if table else None
    if table and row is None:  # what suits the product alone suits it with an epilogue too, if there are registers
        row = table.find(replace(sought, fused=False, residual=False))
    rows = () if row is None else (row,)
    known = (each for each in candidates_of(rows, sought, sms) if _has_room(each, sought))
    found = next(known, None) or next(_by_expectation(sought, sms), None)
    return found or KINDS[sought.kind].config(**dict(sought.fields))


def ranked(sought: Sought, *, sms: int = MACHINE.sms) -> list[HopperConfig]:
    """All configurations that may be tried for what is sought, those first that the model takes for fast."""
    return list(_by_expectation(sought, sms))


def candidates_of(rows: Sequence[Fields], sought: Sought, sms: int) -> Iterator[HopperConfig]:
    """The configurations of rows, in their order, without those that break a rule or do not fit, each once."""
    fitting = _fits(Outlines.of(rows), sought, sms) if rows else []
    return _made(itertools.compress(rows, fitting), sought)


def _by_expectation(sought: Sought, sms: int) -> Iterator[HopperConfig]:
    """All configurations, the fastest first; each is made when it is asked for, as most never are."""
    rows, of = _considered(sought)
    places = np.flatnonzero(_fits(of, sought, sms))
    if not len(places):
        return
    of = of.only(places)
    order = places[_ordered(of, sought, sms)].tolist()
    late: list[HopperConfig] = []
    for config in _made((rows[at] for at in order), sought):
        if _loads_late(config, sought) or not _has_room(config, sought):
            late.append(config)
        else:
            yield config
    yield from late


def _ordered(of: Outlines, sought: Sought, sms: int) -> Places:
    """The places of configurations in the order of their expected times; those that leave no registers come last."""
    crowded = (of.accumulators > FUSED_ACCUMULATORS) & sought.fused
    order = np.lexsort((expected_times(of, sought, sms=sms), crowded))
    is_plain = is_single(sought) and not sought.fused and not sought.residual
    trees = trees_for(sms) if is_plain else None
    if trees is None:
        return order
    first = order[:LOOKED_AT]
    again = np.lexsort((trees.times(of.only(first), sought), crowded[first]))
    return np.concatenate((first[again], order[LOOKED_AT:]))


def _considered(sought: Sought) -> tuple[Sequence[Fields], Outlines]:
    """The rows of a kind of product and their outlines; those that its sizes suggest come anew each time."""
    rows = rows_for(sought)
    return _outlined(sought.kind) if len(rows) == len(KINDS[sought.kind].rows) else (rows, Outlines.of(rows))


@cache
def _outlined(kind: str) -> tuple[Sequence[Fields], Outlines]:
    return KINDS[kind].rows, Outlines.of(KINDS[kind].rows)


def _made(rows: Iterable[Fields], sought: Sought) -> Iterator[HopperConfig]:
    """The configurations of rows that break no rule, each once."""
    seen: set[HopperConfig] = set()
    for row in rows:
        for each in _variants(row, sought):
            config = made(each, sought)
            if config is not None and config not in seen:
                seen.add(config)
                yield config


def _variants(row: Fields, sought: Sought) -> Iterator[Fields]:
    """A row with the residual in place, and as it is."""
    if sought.residual and "residual_in_place" not in row:
        yield {**row, "residual_in_place": True}
    yield row


def _loads_late(config: HopperConfig, sought: Sought) -> bool:
    """Whether threads load a residual that could have come in place: only splits are worth that."""
    return sought.residual and not config.residual_in_place and config.num_split_k == 1


def _has_room(config: HopperConfig, sought: Sought) -> bool:
    """Whether an epilogue's own values, or what threads load or store themselves, find registers beside the sums.

    Of ping-pong warpgroups that store from registers ptxas lets no two multiplications overlap.
    """
    late = sought.residual and not config.residual_in_place
    by_threads = not config.use_tma_store
    is_slow = by_threads and config.pingpong and not config.stream_k
    if is_slow or ((sought.fused or late or by_threads) and config.accumulators_held > FUSED_ACCUMULATORS):
        return False
    return not (sought.fused or sought.followed or sought.residual) or _holds_what_follows(config)


def _holds_what_follows(config: HopperConfig) -> bool:
    """Whether even a bias, an activation and a residual in place find registers."""
    has_three, sums = config.consumers > 2, config.accumulators_held
    if config.residual_in_place:
        return sums <= (_OF_THREE_IN_PLACE if has_three else _IN_PLACE)
    if has_three:
        return sums <= _OF_THREE
    return config.stage_columns <= (_WIDEST_STRIP if config.subtiles == 1 else _WIDEST_OF_MORE)


def _fits(of: Outlines, sought: Sought, sms: int) -> list[bool]:
    """Whether splits may be, have work, and all of them find a place at once."""
    tiles, k_tiles = of.tiles(sought), ceil(sought.k / (ROW_BYTES // ELEMENT_TYPES[sought.a_type].storage_bits * 8))
    is_split, is_streamed = of.splits > 1, of.streamed > 0
    is_whole = ~is_split & ~is_streamed
    parted = sought.count == 1 and not sought.whole
    splits = is_split & (tiles * of.splits <= of.slots(sms)) & (k_tiles >= 2 * of.splits) & parted
    in_lines = _in_lines(of, sought)
    streams = is_streamed & (tiles % sms != 0) & (tiles * k_tiles >= LEAST_SHARE * sms) & (not sought.whole)
    found: list[bool] = ((is_whole | splits | streams) & in_lines).tolist()
    return found


def _in_lines(of: Outlines, sought: Sought) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether an operand whose K is not contiguous comes in whole lines, or, where its tile is narrower, at once.

    Else it comes in as many copies as it has pieces: tiles of 176 columns take twice as long as those of 192 then, and
    tiles of 136 three times.
    """
    line = ROW_BYTES * 8 // ELEMENT_TYPES[sought.a_type].storage_bits
    _, is_mn_major = of.mn_major(sought)
    columns = of.columns.astype(np.int64)
    is_piece = (columns < line) & (columns & (columns - 1) == 0)
    found: np.ndarray[Any, np.dtype[np.bool_]] = (is_mn_major == 0) | (columns % line == 0) | is_piece
    return found
