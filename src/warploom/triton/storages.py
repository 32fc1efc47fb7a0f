"""The memory of tensors: one entry for each storage, found by tensor or by address."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from warploom.diagnostics import Diag

Bytes = npt.NDArray[np.uint8]
_ADDRESS_ALIGNMENT = 16
"""The emulator's vector accesses need it of a buffer that keeps its host address."""


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """The memory that tensors share."""

    address: int
    bytes: Bytes
    tensor: Any = field(repr=False)
    """The first tensor through which it was reached: it names the element type and the shape."""

    @property
    def end(self) -> int:
        return self.address + len(self.bytes)


class Addresses:
    """Storages whose address the program has asked for, for as long as they live: a pointer table may hold it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}

    def note(self, tensor: Any) -> int:
        """The address of a tensor; its storage is remembered, and not kept alive."""
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        found = self._known.get(address)
        if size and (found is None or found[1] != size or found[0].expired()):
            self._known[address] = (StorageWeakRef(storage), size)
        return int(tensor.data_ptr())

    def live(self) -> Iterator[tuple[int, int]]:
        """Address and size of each storage that still exists."""
        for address in [address for address, (held, _) in self._known.items() if held.expired()]:
            del self._known[address]
        yield from ((address, size) for address, (_, size) in sorted(self._known.items()))


class Storages:
    """The storages of one launch, and those that its pointer tables lead to."""

    def __init__(self, addresses: Addresses) -> None:
        self._by_address: dict[int, Storage] = {}
        self._live = list(addresses.live())
        self.reached: dict[int, Storage] = {}
        """Storages that are reached by an address from the program: the emulator maps them where they are."""

    def __iter__(self) -> Iterator[Storage]:
        return iter(self._by_address.values())

    @staticmethod
    def tensor_of(value: Any) -> Any:
        """The tensor of an argument, or of the wrapper around one; None for other objects with `data_ptr()`."""
        inner = value if isinstance(value, torch.Tensor) else getattr(value, "base", None)
        return inner if isinstance(inner, torch.Tensor) else None

    def of(self, tensor: Any) -> Storage | None:
        """The storage of a tensor; None for a tensor without memory."""
        if tensor.device.type != "cpu":
            what = f"a tensor of shape {tuple(tensor.shape)} is on {tensor.device}"
            raise Diag.BAD_LAUNCH.error(what=f"{what}: create it inside the `with` block, or move it to the CPU")
        memory = tensor.untyped_storage()
        if not memory.nbytes() or not memory.data_ptr():
            return None
        return self._storage(memory.data_ptr(), memory.nbytes(), memory, tensor)

    def at(self, address: int) -> Storage | None:
        """The storage in which an address lies, if the program has asked for the address of one of its tensors."""
        at = bisect_right(self._live, (address, 1 << 64)) - 1
        if at < 0 or address >= sum(self._live[at]):
            return None
        start, size = self._live[at]
        storage = self._storage(start, size, None, None)
        if start % _ADDRESS_ALIGNMENT == 0:
            self.reached[start] = storage
        return storage

    def reach(self, words: npt.NDArray[np.uint64]) -> None:
        """Find the storages to which the values of a table lead."""
        if not self._live or not len(words):
            return
        starts = np.array([start for start, _ in self._live], np.uint64)
        ends = np.array([start + size for start, size in self._live], np.uint64)
        among = words[(words >= starts[0]) & (words < ends.max())]
        at = np.searchsorted(starts, among, "right") - 1
        for address in among[among < ends[at]].tolist() if len(among) else ():
            self.at(address)

    def _storage(self, address: int, size: int, owner: Any, tensor: Any) -> Storage:
        found = self._by_address.get(address)
        if found is None or found.tensor is None:
            bytes_ = found.bytes if found is not None else _mapped(address, size, owner)
            self._by_address[address] = found = Storage(address, bytes_, tensor)
        return found


def bytes_of(storage: Any) -> Bytes:
    """The memory of a storage of PyTorch as an array, which keeps the storage alive."""
    return _mapped(storage.data_ptr(), storage.nbytes(), storage)


def _mapped(address: int, size: int, owner: Any) -> Bytes:
    held = (ctypes.c_uint8 * size).from_address(address)
    held.owner = owner  # type: ignore[attr-defined]  # an array over the memory keeps the storage alive
    return np.frombuffer(memoryview(held), np.uint8)


def tables(parameters: Iterable[Any]) -> Iterator[npt.NDArray[np.uint64]]:
    """The 64-bit words of parameters that can hold addresses."""
    for each in parameters:
        if getattr(each, "element", "") in ("i64", "u64"):
            words = each.storage.bytes[each.offset :]
            yield words[: len(words) // 8 * 8].view(np.uint64)
        elif getattr(each, "kind", "") in ("s64", "u64"):
            yield np.array([each.value % (1 << 64)], np.uint64)
