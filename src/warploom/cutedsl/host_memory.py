"""The memory of arrays that a program holds, found by an address inside it."""

from __future__ import annotations

import ctypes
import gc
import sys
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.host.arrays import bounds_of

Bytes = npt.NDArray[np.uint8]


class HostMemory:
    """CPU tensors of PyTorch that exist, and arrays that were added; tensors are searched when an address is new."""

    def __init__(self) -> None:
        self._added: list[tuple[int, int, Any]] = []
        self._found: list[tuple[int, int, Any]] = []

    def add(self, array: Any) -> None:
        """Hold an array that Python does not list, such as one of NumPy."""
        bounds = bounds_of(array)
        self._added.append((bounds.start, len(bounds), array))
        self.forget()

    def at(self, address: int) -> tuple[int, Bytes] | None:
        """The start of the array that an address lies in, and its bytes, which keep it alive."""
        found = self._lookup(address)
        if found is None:
            self._found = sorted((*_tensors(), *self._added), key=lambda each: each[:2])
            found = self._lookup(address)
        if found is None:
            return None
        start, size, owner = found
        held = (ctypes.c_uint8 * size).from_address(start)
        held.owner = owner  # type: ignore[attr-defined]  # an array over the memory keeps it alive
        return start, np.frombuffer(memoryview(held), np.uint8)

    def forget(self) -> None:
        """Forget the tensors that were found: the program may free them."""
        self._found = sorted(self._added, key=lambda each: each[:2])

    def _lookup(self, address: int) -> tuple[int, int, Any] | None:
        at = bisect_right(self._found, address, key=lambda each: each[0]) - 1
        if at < 0 or address >= self._found[at][0] + self._found[at][1]:
            return None
        return self._found[at]


def _tensors() -> Iterator[tuple[int, int, Any]]:
    """Address, size and owner of every storage."""
    tensor_class = getattr(sys.modules.get("torch"), "Tensor", ())
    tensors = [each for each in gc.get_objects() if issubclass(type(each), tensor_class)]
    for storage in [each.untyped_storage() for each in tensors if str(each.layout) == "torch.strided"]:
        if storage.device.type == "cpu" and storage.nbytes() and storage.data_ptr():
            yield storage.data_ptr(), storage.nbytes(), storage
