"""A log of the accesses that native code executes in a run with observers.

A kernel appends an entry once it has found every address valid, and before it moves data. One that finds the log full
returns the number of its record, as for a fault: the reference executes that instruction and reports it, and the
entries before it first. An entry is one cache line; where the addresses of its lanes do not follow from the first, they
are in the row of its number in a second table, which most entries leave untouched.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from warploom.hardware.threads import WARP_LANES
from warploom.machine.engine.addresses import address_of

Array = npt.NDArray[Any]

SITE, AGENT, LANES, CHANGES, STEP, ADDRESS = 0, 1, 2, 4, 6, 7
"""The words of an entry: the instruction's number, who executes it (`agent_number`), the lanes that take part and those
whose stores change memory (two words each), the distance of the address of a lane from that of the lane before, and the
address of lane 0; where the distances differ (`UNEVEN`), the entry's row has an address for each lane.

In the entry of an mbarrier or a copy, `CHANGES` are the barrier's phase before, and twice the bytes plus 1 if it ends;
`STEP` is the number of the operation, and `ADDRESS` the barrier's. The row of a copy has its other operands, from
`COPY_MAP` on."""
COPY_MAP, COPY_TARGET, COPY_COORDINATES = range(3)
UNEVEN = (1 << 64) - 1
MOST_LANES = 128
WORDS = ADDRESS + 1
MOST_ENTRIES = 4096
NEXT, END, ENTRIES, ROWS, OPERATIONS = range(5)
"""The words of the header: the host addresses of the next entry, the end of the entries, the first entry and the first
row of addresses, and the number of operations that were issued."""
HEADER_WORDS = 5
_WARP_BITS = 16
_WORD = (1 << 64) - 1


def agent_number(cta: int, first_warp: int) -> int:
    """A CTA by its place in the grid, and the first warp of a group, as one number."""
    return cta << _WARP_BITS | first_warp


_Numbers = TypeVar("_Numbers", int, Array)


def agent_parts(numbers: _Numbers) -> tuple[_Numbers, _Numbers]:
    """The CTA and the first warp of a number, or of each of several."""
    return numbers >> _WARP_BITS, numbers & (1 << _WARP_BITS) - 1


def addresses_of(entries: Array, rows: Array, at: Array, warps: Array) -> Array:
    """The addresses of the lanes of some warps, each of the entry at a place and with its number there."""
    words = entries[at]
    lanes = WARP_LANES * warps[:, None] + np.arange(WARP_LANES)
    found = words[:, ADDRESS].astype(np.int64)[:, None] + words[:, STEP].astype(np.int64)[:, None] * lanes
    uneven = (words[:, STEP] == np.uint64(UNEVEN)).nonzero()[0]
    found[uneven] = rows[at[uneven, None], lanes[uneven]].astype(np.int64)
    return found


class AccessLog:
    """Entries in the order of execution. `header` is the host address of where native code finds them."""

    def __init__(self) -> None:
        self._array = np.zeros(HEADER_WORDS, np.uint64)
        self.header, self.words = address_of(self._array), self._array.data
        """The host address of the header, and its words."""
        self._begin()

    def _begin(self) -> None:
        """Begin with a buffer that no batch uses any more."""
        buffer, entries = _free_buffer()
        self._entries = buffer[: entries * WORDS].reshape(entries, WORDS)
        self._rows = buffer[entries * WORDS :].reshape(entries, MOST_LANES)
        self.start = start = address_of(self._entries)
        self.half = start + 4 * WORDS * MOST_ENTRIES
        """The host addresses of the first entry, and of the one after half of the most."""
        self.words[NEXT] = self.words[ENTRIES] = start
        self.words[END], self.words[ROWS] = start + self._entries.nbytes, address_of(self._rows)

    @property
    def is_empty(self) -> bool:
        return self.words[NEXT] == self.start

    @property
    def is_full(self) -> bool:
        return self.words[NEXT] == self.words[END]

    @property
    def count(self) -> int:
        """The number of entries."""
        return (self.words[NEXT] - self.start) // (8 * WORDS)

    def add(self, site: int, agent: int, lanes: int, changes: int, addresses: int | Array) -> None:
        """Append an entry; the log must not be full."""
        count = self.count
        entry = self._entries[count]
        entry[SITE], entry[AGENT] = site, agent
        entry[LANES], entry[LANES + 1] = lanes & _WORD, lanes >> 64
        entry[CHANGES], entry[CHANGES + 1] = changes & _WORD, changes >> 64
        if isinstance(addresses, int):
            entry[STEP], entry[ADDRESS] = 0, addresses
        else:
            entry[STEP] = UNEVEN
            self._rows[count, : len(addresses)] = addresses
        self.words[NEXT] += 8 * WORDS

    def take(self) -> tuple[Array, Array]:
        """The entries since the last call, and their rows of addresses, which stay as they are."""
        found = self._entries[: self.count], self._rows[: self.count]
        self._begin()
        return found


_buffers: list[Array] = []
_MOST_BUFFERS = 4
_UNUSED = 3
"""References to a buffer that only the list has, as `getrefcount` counts them in a loop over it."""


def _free_buffer() -> tuple[Array, int]:
    """A buffer for so many entries and their rows of addresses: one of those made before, if nothing refers to it, so
    that its pages exist already.
    """
    size = MOST_ENTRIES * (WORDS + MOST_LANES)
    for buffer in _buffers:
        if len(buffer) == size and sys.getrefcount(buffer) <= _UNUSED:
            return buffer, MOST_ENTRIES
    made = np.empty(size, np.uint64)
    if len(_buffers) >= _MOST_BUFFERS:
        del _buffers[0]
    _buffers.append(made)
    return made, MOST_ENTRIES
