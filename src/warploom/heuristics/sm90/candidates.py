"""The Hopper configurations to choose from, as rows of fields; to add one, add a row here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from warploom.heuristics.problem_key import ProblemKey
from warploom.heuristics.sm90.dependent_launches import is_dependent
from warploom.structured.config.base import field_names
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig

Fields = Mapping[str, Any]


def _tile(rows: int, columns: int, **more: Any) -> dict[str, Any]:
    return {"tile": (rows, columns), **more}


_PAIR: dict[str, Any] = {"cluster_shape": (2, 1, 1)}
_NARROW_PAIR: dict[str, Any] = {**_PAIR, "swizzle_size": 8}
_ROW_PAIR: dict[str, Any] = {"cluster_shape": (1, 2, 1)}
_ALONE = {"consumers": 1}
_SWAPPED = {"consumers": 1, "AB_swapped": True}
_GLOBAL = {"split_in_cluster": False}
_FEW: tuple[dict[str, Any], ...] = ({}, *({"cluster_shape": (*xy, 1)} for xy in ((2, 1), (1, 2))))
_FOURS: tuple[dict[str, Any], ...] = tuple({"cluster_shape": (*xy, 1)} for xy in ((4, 1), (1, 4)))
_EIGHTS: tuple[dict[str, Any], ...] = tuple({"cluster_shape": (*xy, 1)} for xy in ((4, 2), (2, 4)))
_CLUSTERS = (*_FEW, {"cluster_shape": (2, 2, 1)}, *_FOURS)
_WAYS: tuple[dict[str, Any], ...] = ({}, {"AB_swapped": True})
_THREE = {"consumers": 3}
_OF_ONE = (*range(16, 65, 16), *range(72, 129, 8), *range(144, 257, 16))
"""Tile widths with one consumer."""


def _stages_of(columns: int) -> int:
    """Return the input stages that fit for 64 rows and so many columns, as far as more of them help."""
    return 12 if columns <= 72 else 10


def _widths(splits: int, least: int, most: int) -> range:
    """Return the tile widths of which each split gets a multiple of eight columns."""
    unit = 8 * splits
    return range(unit * ceil(least / unit), most + 1, unit)


DENSE: tuple[Fields, ...] = (
    *(_tile(128, n, pingpong=True, **cluster) for cluster in _CLUSTERS for n in range(64, 209, 8)),
    *(_tile(64, n, pingpong=True, **cluster) for cluster in _CLUSTERS for n in range(64, 257, 32)),
    *(_tile(128, n, pingpong=True, AB_swapped=True, **cluster) for cluster in _FEW for n in range(64, 209, 8)),
    *(_tile(64, n, pingpong=True, AB_swapped=True, **cluster) for cluster in _FEW for n in range(64, 257, 16)),
    *(_tile(128, n, **way, **cluster) for cluster in _CLUSTERS for way in _WAYS for n in range(32, 257, 8)),
    *(_tile(256, n, **way, **cluster) for cluster in _CLUSTERS for way in _WAYS for n in range(64, 209, 16)),
    *(_tile(256, n, **way, **cluster) for cluster in _FEW for way in _WAYS for n in range(72, 201, 16)),
    *(_tile(64, n, **_ALONE, **way, **cluster) for cluster in _CLUSTERS for way in _WAYS for n in _OF_ONE),
    *(_tile(192, n, **_THREE, **way, **cluster) for cluster in _CLUSTERS for way in _WAYS for n in range(64, 193, 16)),
    *(_tile(192, n, **_THREE, **way, **cluster) for cluster in _FEW for way in _WAYS for n in range(72, 185, 16)),
    *(_tile(64, n, **_ALONE, **way, **cluster) for cluster in _EIGHTS for way in _WAYS for n in range(32, 129, 8)),
    *(_tile(128, n, **way, **cluster) for cluster in _EIGHTS for way in _WAYS for n in range(32, 161, 16)),
    *(
        _tile(64, n, **_ALONE, **way, **cluster, num_pipeline_stages=_stages_of(n))
        for cluster in (*_FOURS, *_EIGHTS)
        for way in _WAYS
        for n in range(32, 97, 8)
    ),
    *(_tile(64, n, **_SWAPPED) for n in (8, 24, 40, 56)),
    *(_tile(128, n, AB_swapped=True) for n in (8, 16, 24)),
    *(
        _tile(64, n, **_ALONE, **way, num_split_k=s)
        for way in _WAYS
        for s in range(2, 9)
        for n in _widths(s, 16, 256 if s < 5 else 160)
    ),
    *(_tile(128, n, **way, num_split_k=s) for way in _WAYS for s in (2, 3, 4) for n in _widths(s, 16, 256)),
    *(_tile(256, n, **way, num_split_k=s) for way in _WAYS for s in (2, 3) for n in _widths(s, 64, 192)),
    *(
        _tile(rows, n, **of_rows, **way, num_split_k=s, **_GLOBAL)
        for rows, of_rows, least, most, splits in ((64, _ALONE, 120, 200, (3, 4, 5)), (128, {}, 96, 256, (3, 5, 6, 7)))
        for way in _WAYS
        for s in splits
        for n in _widths(s, least, most)
    ),
    *(_tile(192, n, **_THREE, AB_swapped=True, num_split_k=s, **_GLOBAL) for n, s in ((144, 6), (160, 5), (168, 7))),
    *(_tile(256, n, **way, num_split_k=s, **_GLOBAL) for way in _WAYS for n, s in ((160, 5), (192, 6))),
    *(_tile(128, n, num_split_k=s, **_GLOBAL) for n, s in ((64, 4), (64, 8), (128, 2), (128, 4), (128, 8))),
    _tile(128, 64, num_split_k=16, use_tma_store=False, **_GLOBAL),
    *(_tile(64, n, **_ALONE, num_split_k=s, **_GLOBAL) for n, s in ((64, 8), (128, 4), (128, 8), (32, 4))),
    *(_tile(128, n, pingpong=True, stream_k=True, **pair) for pair in ({}, _PAIR) for n in (128, 160, 192, 208)),
    *(_tile(*size, stream_k=True, **_PAIR) for size in ((128, 256), (256, 128), (128, 128))),
    *(_tile(*size, stream_k=True) for size in ((128, 256), (256, 128), (128, 192), (128, 128), (128, 64))),
    *(_tile(128, n, AB_swapped=True, stream_k=True) for n in range(96, 257, 8)),
)
"""Widths in steps of 8, because a width that divides the matrix evenly gains more than anything else."""
GROUPED: tuple[Fields, ...] = (
    _tile(128, 128, pingpong=True),
    _tile(128, 128, pingpong=True, **_NARROW_PAIR),
    _tile(128, 160, pingpong=True, num_pipeline_stages=5),
    _tile(128, 192, pingpong=True, num_pipeline_stages=5, num_output_stages=1),
    _tile(64, 256, pingpong=True),
    _tile(64, 128, pingpong=True),
    _tile(128, 256),
    *(_tile(64, n, **_ALONE) for n in (64, 128)),
)
BLOCKWISE: tuple[Fields, ...] = (
    _tile(128, 128, num_output_stages=1),  # the model does not see buffers: among equals it takes the first
    *(_tile(128, 128, **cluster) for cluster in ({}, _ROW_PAIR, _NARROW_PAIR)),
    _tile(256, 128, num_output_stages=1),
    *(_tile(128, n) for n in (32, 64, 96)),
    *(_tile(64, n, **_ALONE) for n in (16, 32, 48, 64, 96, 128)),
)
"""Narrow tiles are for few rows, so that all SMs read B."""

_WIDEST_TILE, _STEP = 256, 8


def _fit_to_groups(problem: ProblemKey) -> Iterator[Fields]:
    """Yield rows for groups of few rows, which go along N of the MMA, where tiles can be narrow."""
    width = ceil(problem.m / problem.count / _STEP) * _STEP
    if width <= _WIDEST_TILE:
        yield _tile(64, width, **_SWAPPED)
        yield _tile(128, width, AB_swapped=True)


_GATED_ROWS, _LEAST_GATED_WIDTH = 64, 16


def _fit_to_gated(problem: ProblemKey) -> Iterator[Fields]:
    """Yield rows for gated problems of few rows, which go along N of the MMA: 64 of gate and 64 of up per consumer."""
    if problem.gated and problem.m <= _GATED_ROWS:
        width = max(ceil(problem.m / _STEP) * _STEP, _LEAST_GATED_WIDTH)
        yield _tile(256, width, AB_swapped=True)
        yield _tile(128, width, **_SWAPPED)


@dataclass(frozen=True)
class Kind:
    """A kind of problem: its configuration class, the rows to choose from, and rows that depend on the sizes."""

    config: type[HopperConfig]
    rows: tuple[Fields, ...]
    sized_rows: Callable[[ProblemKey], Iterator[Fields]] = lambda _: iter(())


KINDS: Mapping[str, Kind] = {
    "dense": Kind(HopperConfig, DENSE, _fit_to_gated),
    "grouped": Kind(HopperConfig, GROUPED, _fit_to_groups),
    "blockwise": Kind(HopperBlockwiseConfig, BLOCKWISE),
}
FUSED_ACCUMULATORS = 128
"""Accumulators per thread that leave registers for a fused epilogue."""


def rows_for(problem: ProblemKey) -> tuple[Fields, ...]:
    """Return all rows for a problem."""
    kind = KINDS[problem.kind]
    return (*kind.rows, *kind.sized_rows(problem))


def build(row: Fields, problem: ProblemKey) -> HopperConfig | None:
    """Return the configuration of a row with the types and majors of the arrays; None if it breaks a rule."""
    fields = dict(problem.fields)
    if row.get("AB_swapped"):
        fields = _in_kernel_terms(fields)
    if not row.get("use_tma_store", True):
        fields["use_tma_store"] = False
    fields["dependent"] = row.get("dependent", is_dependent(row, problem))
    config = KINDS[problem.kind].config(**{**row, **fields})
    if config.residual_in_place and not problem.residual:
        return None
    return None if config.violations() else config


def row_of(config: HopperConfig, problem: ProblemKey) -> dict[str, Any]:
    """Return the shortest row from which `build` makes a configuration; with a residual it has `residual_in_place`."""
    arrays = dict(problem.fields)
    given = {name: getattr(config, name) for name in field_names(type(config)) if name not in arrays}
    if arrays.get("use_tma_store", True) and not config.use_tma_store:
        given["use_tma_store"] = False
    for name in tuple(given):
        without = {each: value for each, value in given.items() if each != name}
        if build(without, problem) == config and not (problem.residual and name == "residual_in_place"):
            given = without
    return given


def _in_kernel_terms(fields: Fields) -> dict[str, Any]:
    """Exchange the types and majors of the caller's A and B, for a kernel that has them swapped.

    If B's type is missing it is A's, because the kernel's A needs one.
    """
    if "a_type" in fields:
        fields = {"b_type": fields["a_type"], **fields}
    other = {"a": "b", "b": "a"}
    pairs = {f"{one}_{what}": f"{two}_{what}" for one, two in other.items() for what in ("type", "major")}
    return {pairs.get(name, name): value for name, value in fields.items()}
