"""Which tile comes when: maps from the order of launching, or of counting, to places in a grid of tiles.

The maps are arithmetic that works on Python numbers and on device values alike: the kernel computes what the tests
have counted. All of them are bijections, whatever the sizes.
"""

from __future__ import annotations

from enum import StrEnum

from warploom.trace.language.values import Value, select
from warploom.trace.language.views import Index


class RasterOrder(StrEnum):
    """The direction in which neighbours in the order of launching are neighbours in the grid of tiles."""

    ALONG_M = "along_m"
    ALONG_N = "along_n"


def raster(
    m: Index, n: Index, grid: tuple[Index, Index], order: str = RasterOrder.ALONG_M, block_swizzle: int = 0
) -> tuple[Index, Index]:
    """Where in a grid of clusters the one that was launched as (m, n) works.

    A block swizzle of s makes columns of s tiles, walked down and up in turn, so that those at work at one time share
    operands in L2; what does not fill a block of s × s stays where it is.
    """
    rows, columns = grid
    if order == RasterOrder.ALONG_N:
        m, n = _divided(m * columns + n, rows)
    if not block_swizzle:
        return m, n
    size = block_swizzle
    whole_rows, whole_columns = rows // size * size, columns // size * size
    band = n // size
    down = m // size + rows // size * (n % size)
    swizzled_m = _choose(band % 2 == 0, down, whole_rows - 1 - down)
    inside = (m < whole_rows) & (n < whole_columns)
    return _choose(inside, swizzled_m, m), _choose(inside, m % size + band * size, n)


def linear_raster(index: Index, grid: tuple[Index, Index], band: int = 0) -> tuple[Index, Index]:
    """The place of the index-th tile, m running fastest; with a band, in bands of so many rows, one after another."""
    rows, columns = grid
    if not band:
        return _divided(index, rows)
    inside, number = _divided(index, columns * band)
    first, rest = number * band, rows % band
    last = _choose(rest == 0, band, rest)
    is_last = first + band > rows
    # The height of the last band does not wait for the band's number: the device prepares both divisions at once.
    column = _choose(is_last, inside // last, inside // band)
    return first + inside - column * _choose(is_last, last, band), column


def ceil_divide(value: Index, by: int) -> Index:
    """How many times `by` it takes to cover a count."""
    return (value + (by - 1)) // by


def _divided(value: Index, by: Index) -> tuple[Index, Index]:
    """Remainder and quotient, by one division."""
    quotient = value // by
    return value - quotient * by, quotient


def _choose(condition: Value | bool, then: Index, otherwise: Index) -> Index:
    if isinstance(condition, bool):
        return then if condition else otherwise
    return select(condition, then, otherwise)
