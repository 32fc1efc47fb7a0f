"""Rasterisation: maps from the order of launching, or from a linear tile index, to coordinates in a grid of tiles.

The maps are arithmetic that works on Python numbers and on device values, so that tests check what the kernel computes.
All of them are bijections for all sizes.
"""

from __future__ import annotations

from enum import StrEnum

from warploom.trace.language.values import Value, select
from warploom.trace.language.views import Index


class RasterOrder(StrEnum):
    """The direction in which consecutive CTAs are neighbours in the grid of tiles."""

    ALONG_M = "along_m"
    ALONG_N = "along_n"


def raster(
    m: Index, n: Index, grid: tuple[Index, Index], order: str = RasterOrder.ALONG_M, block_swizzle: int = 0
) -> tuple[Index, Index]:
    """Map the cluster that was launched as (m, n) to its coordinates in the grid of clusters.

    A block swizzle of s visits columns of s tiles, alternately downwards and upwards, so that concurrent clusters share
    operands in L2. Tiles outside the whole blocks of s × s keep their coordinates.
    """
    rows, columns = grid
    if order == RasterOrder.ALONG_N:
        m, n = _divided(m * columns + n, rows)
    if not block_swizzle:
        return m, n
    size = block_swizzle
    whole_rows, whole_columns = rows // size * size, columns // size * size
    # Inside blocks of columns, consecutive launches go along a block's `size` columns first; odd blocks go upwards.
    column_block = n // size
    down = m // size + rows // size * (n % size)
    swizzled_m = _choose(column_block % 2 == 0, down, whole_rows - 1 - down)
    inside = (m < whole_rows) & (n < whole_columns)
    return _choose(inside, swizzled_m, m), _choose(inside, m % size + column_block * size, n)


def linear_raster(index: Index, grid: tuple[Index, Index], swizzle_size: int = 0) -> tuple[Index, Index]:
    """Return the coordinates of tile `index`; m runs fastest inside supergroups of `swizzle_size` rows of tiles."""
    (rows, columns), size = grid, swizzle_size
    if not size:
        return _divided(index, rows)
    inside, number = _divided(index, columns * size)
    first, rest = number * size, rows % size
    last = _choose(rest == 0, size, rest)
    is_last = first + size > rows
    # Both heights are divided by, and the result is selected: the divisions do not depend on the supergroup's index.
    column = _choose(is_last, inside // last, inside // size)
    return first + inside - column * _choose(is_last, last, size), column


def ceil_divide(value: Index, by: int) -> Index:
    """Divide and round up."""
    return (value + (by - 1)) // by


def _divided(value: Index, by: Index) -> tuple[Index, Index]:
    """Return remainder and quotient, with one division."""
    quotient = value // by
    return value - quotient * by, quotient


def _choose(condition: Value | bool, then: Index, otherwise: Index) -> Index:
    if isinstance(condition, bool):
        return then if condition else otherwise
    return select(condition, then, otherwise)
