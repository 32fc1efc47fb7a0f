"""A log of the accesses that native code executes in a run with observers.

A kernel appends an entry once it has found every address valid, and before it moves data. One that finds the log full
returns the number of its record, as for a fault: the reference executes that instruction and reports it, and the
entries before it first.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.machine.engine.addresses import address_of

Array = npt.NDArray[Any]

SITE, AGENT, LANES, CHANGES, STEP, ADDRESSES = 0, 1, 2, 4, 6, 7
"""The words of an entry: the instruction's number, who executes it (`agent_number`), the lanes that take part and those
whose stores change memory (two words each), the distance of the address of a lane from that of the lane before, and the
first address; where the distances differ (`UNEVEN`), an address for each lane."""
UNEVEN = (1 << 64) - 1
MOST_LANES = 128
WORDS = ADDRESSES + MOST_LANES
MOST_ENTRIES = 2048
_WARP_BITS = 16
_WORD = (1 << 64) - 1


def agent_number(cta: int, first_warp: int) -> int:
    """A CTA by its place in the grid, and the first warp of a group, as one number."""
    return cta << _WARP_BITS | first_warp


def agent_parts(numbers: Array) -> tuple[Array, Array]:
    """The CTAs and the first warps of numbers."""
    return numbers >> _WARP_BITS, numbers & (1 << _WARP_BITS) - 1


def addresses_of(entries: Array) -> Array:
    """The addresses of all lanes, for each of some entries."""
    even = (entries[:, STEP] != np.uint64(UNEVEN)).nonzero()[0]
    found = entries[:, ADDRESSES:].astype(np.int64)
    first, step = found[even, :1], entries[even, STEP].astype(np.int64)[:, None]
    found[even] = first + step * np.arange(MOST_LANES)
    return found


class AccessLog:
    """Entries in the order of execution. `header` holds the host addresses of the next entry and of the log's end."""

    def __init__(self) -> None:
        self._array = np.zeros(2, np.uint64)
        self.header, self._words = address_of(self._array), self._array.data
        self._begin()

    def _begin(self) -> None:
        """Begin with a buffer that no batch uses any more."""
        self._entries = _free_buffer()
        self._start = start = address_of(self._entries)
        self._words[0], self._words[1] = start, start + self._entries.nbytes

    @property
    def is_empty(self) -> bool:
        return self._words[0] == self._start

    @property
    def is_full(self) -> bool:
        return self.count == len(self._entries)

    @property
    def count(self) -> int:
        """The number of entries."""
        return (self._words[0] - self._start) // (8 * WORDS)

    def add(self, site: int, agent: int, lanes: int, changes: int, addresses: int | Array) -> None:
        """Append an entry; the log must not be full."""
        entry = self._entries[self.count]
        entry[SITE], entry[AGENT] = site, agent
        entry[LANES], entry[LANES + 1] = lanes & _WORD, lanes >> 64
        entry[CHANGES], entry[CHANGES + 1] = changes & _WORD, changes >> 64
        if isinstance(addresses, int):
            entry[STEP], entry[ADDRESSES] = 0, addresses
        else:
            entry[STEP] = UNEVEN
            entry[ADDRESSES : ADDRESSES + len(addresses)] = addresses
        self._words[0] += 8 * WORDS

    def take(self) -> Array:
        """The entries since the last call, as rows of words that stay as they are."""
        found = self._entries[: self.count]
        self._begin()
        return found


_buffers: list[Array] = []
_MOST_BUFFERS = 4
_UNUSED = 3
"""References to a buffer that only the list has, as `getrefcount` counts them in a loop over it."""


def _free_buffer() -> Array:
    """A buffer for entries: one of those made before, if nothing refers to it, so that its pages exist already."""
    for buffer in _buffers:
        if len(buffer) == MOST_ENTRIES and sys.getrefcount(buffer) <= _UNUSED:
            return buffer
    made = np.empty((MOST_ENTRIES, WORDS), np.uint64)
    if len(_buffers) >= _MOST_BUFFERS:
        del _buffers[0]
    _buffers.append(made)
    return made
