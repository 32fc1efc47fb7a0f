"""How wide the strips are in which a Hopper tile is stored: threads meet at each, so that few of them are best.

Of 34 tiles in bench/results/hopper_configurations.json that were measured with strips of 16 to 64 columns too (`/16x2`
and the like), wide ones are 1.18 times as fast on average for M × N × K of 2944 × 3000 × 128, 1.12 times for a K of
512, 1.03 for 2048, and the same for 8192; of single tiles 0.85 to 1.6 times.
"""

from __future__ import annotations

from warploom.hardware.fragments import TENSOR_MOVES
from warploom.hardware.targets import L2_LINE

_WIDEST, _NARROW = 128, 24
SQUARE = TENSOR_MOVES["16x256b"].columns
"""Columns that threads hold together."""
LINE = L2_LINE // 2
"""16-bit elements of a line of memory."""


def wide_strip(columns: int, *, swapped: bool, pingpong: bool) -> int:
    """Columns of a strip of 16-bit elements, of a tile of so many.

    Of a transposed strip every row has 64 elements of C. Of others rows are whole lines, or halves of such, where the
    tile consists of these; else eights of an odd number do without a swizzle, as their rows begin in different banks.
    """
    if swapped:
        return _widest(columns, SQUARE)
    if columns % (LINE // 2) and columns >= _NARROW:
        return columns if columns % (2 * SQUARE) else columns // 2
    in_lines = swizzled_strip(columns, LINE)
    return in_lines if pingpong or in_lines < LINE // 2 else _widest(columns, in_lines)


def swizzled_strip(columns: int, widest: int) -> int:
    """The widest power of two that divides a tile's columns, or eight."""
    return next((each for each in (LINE, LINE // 2, LINE // 4) if each <= widest and columns % each == 0), SQUARE)


def _widest(columns: int, unit: int) -> int:
    """The widest strip of so many units of which a tile consists; the tile, where that would be narrow."""
    found = max((each for each in range(unit, _WIDEST + 1, unit) if columns % each == 0), default=columns)
    return found if found >= _NARROW else columns
