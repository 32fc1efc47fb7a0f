"""How wide the strips are in which a Hopper tile is stored: threads meet at each, so that few of them are best.

The copy engine stores a strip row by row, and short rows as slowly as long ones: strips of 16 columns of C made whole
products up to 1.5 times as long as wide ones do (M × N × K of 2944 × 3000 × 128, tiles of 128 × 208, an H200).
"""

from __future__ import annotations

_WIDEST, _NARROW = 128, 24
_SQUARE = 8
"""Columns that threads hold together."""
_LINE = 64
"""16-bit elements of a line of 128 bytes."""


def wide_strip(columns: int, *, swapped: bool, pingpong: bool) -> int:
    """Columns of a strip of 16-bit elements, of a tile of so many.

    Of a transposed strip every row has 64 elements of C. Of others rows are whole lines, or halves of such, where the
    tile consists of these; else eights of an odd number do without a swizzle, as their rows begin in different banks.
    """
    if swapped:
        return _widest(columns, _SQUARE)
    if columns % (_LINE // 2) and columns >= _NARROW:
        return columns if columns % (2 * _SQUARE) else columns // 2
    in_lines = swizzled_strip(columns, _LINE)
    return in_lines if pingpong or in_lines < _LINE // 2 else _widest(columns, in_lines)


def swizzled_strip(columns: int, widest: int) -> int:
    """The widest power of two that divides a tile's columns, or eight."""
    return next((each for each in (64, 32, 16) if each <= widest and columns % each == 0), _SQUARE)


def _widest(columns: int, unit: int) -> int:
    """The widest strip of so many units of which a tile consists; the tile, where that would be narrow."""
    found = max((each for each in range(unit, _WIDEST + 1, unit) if columns % each == 0), default=columns)
    return found if found >= _NARROW else columns
