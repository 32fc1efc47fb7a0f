"""Widths of the epilogue subtiles in which a Hopper tile is stored.

The consumer's threads synchronise at each subtile, so that few wide ones are best. For 34 tiles in
bench/results/hopper_configurations.json that were also measured with subtiles of 16 to 64 columns (`/16x2` and the
like), wide ones are 1.18 times as fast on average for M × N × K = 2944 × 3000 × 128, 1.12 times for K = 512, 1.03 times
for K = 2048, and equal for K = 8192; for single tiles the ratio is 0.85 to 1.6.
"""

from __future__ import annotations

from warploom.hardware.fragments import TENSOR_MOVES
from warploom.hardware.targets import L2_LINE

_WIDEST, _NARROW = 128, 24
SQUARE = TENSOR_MOVES["16x256b"].columns
"""Columns of one fragment."""
LINE = L2_LINE // 2
"""16-bit elements in an L2 line."""


def wide_subtile(columns: int, *, swapped: bool, pingpong: bool) -> int:
    """Return the columns of a subtile of 16-bit elements, for a tile of so many columns.

    Each row of a transposed subtile has 64 elements of C. Otherwise rows are whole or half L2 lines if the tile's width
    is a multiple of those; if not, an odd multiple of eight needs no swizzle, as its rows begin in different banks.
    """
    if swapped:
        return _widest(columns, SQUARE)
    if columns % (LINE // 2) and columns >= _NARROW:
        return columns if columns % (2 * SQUARE) else columns // 2
    in_lines = swizzled_subtile(columns, LINE)
    return in_lines if pingpong or in_lines < LINE // 2 else _widest(columns, in_lines)


def swizzled_subtile(columns: int, widest: int) -> int:
    """Return the widest power of two that divides a tile's columns, or eight."""
    return next((each for each in (LINE, LINE // 2, LINE // 4) if each <= widest and columns % each == 0), SQUARE)


def _widest(columns: int, unit: int) -> int:
    """Return the widest divisor of the tile that is a multiple of `unit`; the whole tile if that would be narrow."""
    found = max((each for each in range(unit, _WIDEST + 1, unit) if columns % each == 0), default=columns)
    return found if found >= _NARROW else columns
