"""The context of native code: addresses of a group's registers and memories, as an array of 64-bit words.

A kernel gets the address of its context and of its record. Words that hold addresses are written here, from arrays that
the context keeps alive; a record holds only row numbers, which `records` checks, and immediate values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.hardware.threads import WARP_LANES
from warploom.machine.engine.access_log import AccessLog
from warploom.machine.engine.addresses import address_of
from warploom.machine.memory.byte_memory import (
    PARAM_WINDOW,
    SHARED_WINDOW,
    WINDOW_BYTES,
    FlatMemory,
    GlobalMemory,
    LocalMemory,
)
from warploom.machine.routines.tensor_map_rows import MapRows
from warploom.machine.semantics import tables

Array = npt.NDArray[Any]

LANES, STRIDE = 0, 1
FILES = {"p": 2, "h": 3, "a": 4, "b": 5, "s": 6}
"""The words with the first row of each register file, and of the special registers that differ by lane (`s`)."""
SPECIAL_STRIDE, MASK = 7, 8
SHARED, SHARED_BASE, SHARED_SIZE = 9, 10, 11
GLOBAL, LOCAL, LOCAL_SIZE, EFFECTS, TABLES = 12, 13, 14, 15, 16
LOG, AGENT = 17, 18
PHASES, THREADS = 19, 20
"""The phases of the CTA's named barriers, and its threads."""
UNIFORMS, COUNTS = 21, 22
"""The group's uniforms, and the executions of each block by it."""
LEFT, BUDGET, STOP, WARPS = 23, 24, 25, 26
"""The blocks that the group may still execute, the instructions that all may, the block before which it stops, and its
warps."""
CLUSTER, MAPS, IN_FLIGHT, MOVED = 27, 28, 29, 30
"""The CTAs of the cluster, the tensor maps of the grid, and the places of two numbers: the operations in flight, and
the bytes that native code has moved from global to shared memory."""
PEER_BASE, PEER_SIZE, PEER_BARRIERS, PEER_WORDS = 1, 2, 3, 4
"""The words of a CTA of a cluster, after their number: the host address of its shared memory, its first address, its
bytes (0 once the CTA has ended), and its mbarriers."""
FLAGS = 31
"""The flags of the warpgroup: 1 if groups of wgmmas may be incomplete, and the commits of each warp."""
COPIES = 32
"""The ring of late copies of the CTA (`routines/late_copies.py`), or one that takes none."""
WORDS = 33
"""Words of a context; the bytes of the lane mask come after them."""
ITEM_BYTES = {"p": 1, "h": 2, "a": 4, "b": 8, "s": 4}
SPECIALS = (
    *(f"%tid.{axis}" for axis in "xyz"),
    "%laneid",
    "%warpid",
    *(f"%lanemask_{relation}" for relation in ("eq", "le", "lt", "ge", "gt")),
)
"""The rows of the file `s`."""
REGION_WORDS = 4
_WINDOWS_END = PARAM_WINDOW + WINDOW_BYTES
_ALIGNMENT = 16


def table_of(specials: dict[str, Array]) -> Array:
    """The special registers that differ by lane, as native code finds them: one row for each of `SPECIALS`."""
    return np.ascontiguousarray(np.stack([specials[name] for name in SPECIALS]))


class Regions:
    """The buffers of global memory as native code finds them: (address, bytes, host address, writeable), by address.

    A buffer that native code must not treat like the others has no bytes here: every access to it is left to the
    reference.
    """

    def __init__(self, memory: GlobalMemory, parameters: FlatMemory | None = None) -> None:
        self._memory, self._parameters = memory, parameters
        self.header = np.zeros(2, np.uint64)
        self._table = np.zeros((0, REGION_WORDS), np.uint64)
        self.maps = MapRows()
        """The tensor maps that native code knows."""
        self.in_flight, self.moved = np.zeros((2, 1), np.int64)
        """The number of operations in flight, and the bytes that native code has moved from global to shared memory."""
        memory.watchers.append(self.update)
        self.update()

    def update(self) -> None:
        """Enter the present buffers."""
        rows: list[tuple[int, int, int, int]] = []
        end = 0
        for region in self._memory.regions:
            if region.base < end:  # buffers that overlap: the reference knows which one counts
                rows = []
                break
            end = region.base + region.size
            generic = region.base < _WINDOWS_END and end > SHARED_WINDOW
            size = 0 if generic or region.base % _ALIGNMENT else region.size
            rows.append((region.base, size, address_of(region.data) if size else 0, int(region.writeable)))
        self._table = np.array(rows, np.uint64).reshape(-1, REGION_WORDS)
        self.header[:] = len(rows), address_of(self._table)

    def parameter(self, address: int, width: int) -> int:
        """A parameter of the kernel, which no instruction can change."""
        near = address - PARAM_WINDOW if address >= PARAM_WINDOW else address
        assert self._parameters is not None
        value: int = self._parameters.load(near, width, None, "a parameter")
        return value


class Context:
    """The context of the lanes from `first` up to `first + lanes` of a warpgroup."""

    __slots__ = ("_buffer", "_kept", "_words", "address", "first", "mask", "words")

    def __init__(self, files: dict[str, Array], table: Array, first: int, lanes: int, regions: Regions) -> None:
        columns = files["p"].shape[1]
        if not table.flags.c_contiguous or len(table) != len(SPECIALS) or table.itemsize != ITEM_BYTES["s"]:
            raise ValueError("the special registers are not one block of memory")
        if not 0 <= first <= first + lanes <= min(columns, table.shape[1]):
            raise ValueError("lanes outside the register files")
        self._buffer = np.zeros(8 * WORDS + lanes, np.uint8)
        self._kept: list[Any] = [files, table, regions]
        self._words = words = self._buffer[: 8 * WORDS].view(np.uint64)
        self.first, self.address = first, address_of(self._buffer)
        self.mask = self._buffer[8 * WORDS :].view(np.bool_)
        """The lanes of the group that take part, for kernels with a mask."""
        self.words = words.view(np.int64).data
        """All words: those of the group that executes are written before each call (`UNIFORMS` to `STOP`), and
        `EFFECTS` counts stores and barriers that kernels have executed."""
        words[LANES], words[STRIDE], words[WARPS] = lanes, columns, lanes // WARP_LANES
        for file, array in files.items():
            if file not in FILES:
                continue
            if array.shape[1] != columns or not array.flags.c_contiguous:
                raise ValueError("a register file is not one block of memory")
            words[FILES[file]] = address_of(array) + first * array.itemsize
        words[FILES["s"]], words[SPECIAL_STRIDE] = address_of(table) + first * table.itemsize, table.shape[1]
        words[MASK] = self.address + 8 * WORDS
        words[GLOBAL], words[TABLES] = address_of(regions.header), address_of(tables.ADDRESSES)
        words[MAPS] = address_of(regions.maps.table)
        words[IN_FLIGHT], words[MOVED] = address_of(regions.in_flight), address_of(regions.moved)

    def bind(
        self,
        shared: FlatMemory,
        local: LocalMemory | None,
        agent: int,
        log: AccessLog | None,
        phases: Array,
        threads: int,
        cluster: Array,
        flags: Array,
        copies: int,
    ) -> None:
        """Use the memories and barriers of a CTA; `agent` is who executes, in the entries of a log."""
        self._kept[3:] = [shared, local, log, phases, cluster, flags]
        words = self._words
        words[SHARED], words[SHARED_BASE], words[SHARED_SIZE] = address_of(shared.data), shared.base, shared.size
        size = 0 if local is None else local.size
        words[LOCAL] = 0 if local is None else address_of(local.rows) + self.first * size
        words[LOCAL_SIZE] = size
        words[LOG], words[AGENT] = 0 if log is None else log.header, agent
        words[PHASES], words[THREADS], words[CLUSTER] = address_of(phases), threads, address_of(cluster)
        words[FLAGS], words[COPIES] = address_of(flags), copies
