"""Which Hopper configuration suits a problem: what was measured on this machine, else what the model takes for fastest.

What the choices are worth, `bench/matmul.py --what random` measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import Any

from warploom.structured.config.hopper import MACHINE, HopperConfig
from warploom.structured.config.hopper_candidates import FUSED_ACCUMULATORS, KINDS, Fields, made, rows_for
from warploom.structured.config.hopper_model import TOGETHER, expected_times, tiles_of
from warploom.structured.config.sought import Sought, sought
from warploom.structured.config.tuning_table import table_for

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
    fitting = candidates_of((row,), sought, sms) if row else []
    if table and not fitting:  # what suits the product alone suits it with an epilogue too, if there are registers
        row = table.find(replace(sought, fused=False, residual=False))
        fitting = [each for each in candidates_of((row,), sought, sms) if _has_room(each, sought)] if row else []
    fitting = fitting or ranked(sought, sms=sms)
    return fitting[0] if fitting else KINDS[sought.kind].config(**dict(sought.fields))


def ranked(sought: Sought, *, sms: int = MACHINE.sms) -> list[HopperConfig]:
    """All configurations that may be tried for what is sought, those first that the model takes for fast."""
    found = candidates_of(rows_for(sought), sought, sms)
    times = dict(zip(found, expected_times(found, sought, sms=sms), strict=True))

    def order(config: HopperConfig) -> tuple[bool, bool, float]:
        return not _has_room(config, sought), _loads_late(config, sought), times[config]

    return sorted(found, key=order)


def candidates_of(rows: tuple[Fields, ...], sought: Sought, sms: int) -> list[HopperConfig]:
    """The configurations of rows, without those that break a rule or do not fit, each once."""
    made_ = (made(each, sought) for row in rows for each in _variants(row, sought))
    return list(dict.fromkeys(config for config in made_ if config is not None and _fits(config, sought, sms)))


def _variants(row: Fields, sought: Sought) -> Iterator[Fields]:
    """A row with the residual in place, and as it is."""
    if sought.residual and "residual_in_place" not in row:
        yield {**row, "residual_in_place": True}
    yield row


def _loads_late(config: HopperConfig, sought: Sought) -> bool:
    """Whether threads load a residual that could have come in place: only splits are worth that."""
    return sought.residual and not config.residual_in_place and config.num_split_k == 1


def _has_room(config: HopperConfig, sought: Sought) -> bool:
    """Whether an epilogue's own values, or a residual that threads load, find registers beside the sums."""
    late = sought.residual and not config.residual_in_place
    return not (sought.fused or late) or config.accumulators <= FUSED_ACCUMULATORS


def _fits(config: HopperConfig, sought: Sought, sms: int) -> bool:
    """Whether splits may be, have work, and all of them find a place at once."""
    if sought.whole and config.is_split:
        return False
    rows, columns = (sought.n, sought.m) if config.AB_swapped else (sought.m, sought.n)
    tiles, k_tiles = ceil(rows / config.BM) * ceil(columns / config.BN), ceil(sought.k / config.BK)
    if config.stream_k:
        tiles = round(tiles_of(config, sought))
        return tiles % sms != 0 and tiles * k_tiles >= LEAST_SHARE * sms
    if config.num_split_k == 1:
        return True
    room = TOGETHER if config.split_in_cluster and config.num_split_k >= 4 else sms  # pairs fill the GPU
    return sought.count == 1 and tiles * config.num_split_k <= room and k_tiles >= 2 * config.num_split_k
