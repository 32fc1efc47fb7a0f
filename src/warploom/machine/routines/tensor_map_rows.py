"""Tensor maps as native code finds them: by address, each a row of words for boxes that are wholly inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from warploom.machine.engine.addresses import address_of

(RANK, BOX_BYTES, MEMORY, MEMORY_BYTES, ORIGIN, ROWS, GRANULES, OFFSETS, SOURCE_END, TARGET_END, PHASE_MASK, PLACES,
 UNIT_MASK, TX_LIMIT, AXES) = range(15)  # fmt: skip
"""The words of a row: axes; bytes of a box; host address and bytes of the buffer, and the byte of it where the tensor
begins; rows of a box, granules of a row, where the rows begin, and the first byte after them; the first byte after a
box in shared memory, the bits of its address that must be 0, and the places of its granules; the bits of the innermost
coordinate that must be 0; the limit of an mbarrier's bytes; for each axis, the innermost first, the largest coordinate
and its unit in bytes (of the innermost: in bits)."""
_MOST = 64


@dataclass(frozen=True, slots=True)
class MapRow:
    """A row, and the arrays that it refers to."""

    words: npt.NDArray[np.int64]
    kept: tuple[object, ...]


class MapRows:
    """The tensor maps of a grid: their number, then pairs of an address and a row."""

    def __init__(self) -> None:
        self.table = np.zeros(1 + 2 * _MOST, np.int64)
        self._kept: list[MapRow] = []

    def add(self, address: int, row: MapRow) -> None:
        """Let native code find a map; one that has no room is Python's."""
        count = len(self._kept)
        if count < _MOST:
            self._kept.append(row)
            self.table[1 + 2 * count : 3 + 2 * count] = address, address_of(row.words)
            self.table[0] = count + 1
