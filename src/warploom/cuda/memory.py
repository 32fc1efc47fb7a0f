"""The device memory of a CUDA program, which is memory of the host."""

from __future__ import annotations

import ctypes
from bisect import bisect_right, insort

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class DeviceMemory:
    """The allocations of a program, found by an address inside them."""

    def __init__(self) -> None:
        self._arrays: dict[int, Bytes] = {}
        self._starts: list[int] = []
        self._kept: list[Bytes] = []

    def keep(self, memory: Bytes) -> None:
        """Hold memory that is not the program's for as long as this exists."""
        self._kept.append(memory)

    def note(self, address: int, size: int) -> None:
        """Remember an allocation; with size 0, forget it."""
        if size:
            held = (ctypes.c_uint8 * size).from_address(address)
            self._arrays[address] = np.frombuffer(memoryview(held), np.uint8)
            insort(self._starts, address)
        elif self._arrays.pop(address, None) is not None:
            self._starts.remove(address)

    def at(self, address: int) -> tuple[int, Bytes] | None:
        """The start of the allocation in which an address lies, and its bytes."""
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        start = self._starts[place]
        array = self._arrays[start]
        return (start, array) if address < start + len(array) else None

    def all(self) -> dict[int, Bytes]:
        """Every allocation, by its address."""
        return {start: self._arrays[start] for start in self._starts}
