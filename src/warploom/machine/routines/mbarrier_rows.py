"""The mbarriers of a CTA as rows of words, where native code finds them by their offset in shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

KEY, PENDING, EXPECTED, TX, PHASE, TESTS, WAITERS = range(7)
"""The words of a row: the offset plus one (0: the row is free, -1: it was used), arrivals that are pending in this
phase and expected in each, bytes outstanding, phases completed, failed tests in this phase, and 1 if a group waits."""
WORDS = 8
ROWS = 64
"""A power of two. A barrier's row is the first that is free from the one of its offset on."""
MARK = 0x6D62_6172_7269_6572
"""The eight bytes of a barrier in shared memory, so that one which something else has overwritten is noticed."""
_USED = -1


class MbarrierRows:
    """The rows of a CTA. Barriers that find none have a row of their own, which native code does not know."""

    def __init__(self) -> None:
        self.words: npt.NDArray[np.int64] = np.zeros((ROWS, WORDS), np.int64)
        self._view = self.words.reshape(-1).data
        self._taken = 0

    def begin(self) -> None:
        """Free all rows."""
        self.words.fill(0)
        self._taken = 0

    def take(self, offset: int) -> Any:
        """A row for the barrier at an offset, without its other words."""
        view = self._view
        if self._taken < ROWS // 2:
            for step in range(ROWS):
                at = WORDS * ((offset // 8 + step) % ROWS)
                if view[at] <= 0:
                    self._taken += 1
                    row = view[at : at + WORDS]
                    row[KEY] = offset + 1
                    return row
        return np.zeros(WORDS, np.int64).data

    def give_back(self, row: Any) -> None:
        """Free the row of a barrier that has ended: later ones were perhaps placed after it."""
        if row[KEY] > 0:
            self._taken -= 1
            row[KEY] = _USED
