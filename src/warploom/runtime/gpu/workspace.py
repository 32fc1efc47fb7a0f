"""Memory that launches need: one workspace per stream, and separate memory whose contents must persist.

Launches of one stream are ordered, so that they can share memory whose contents do not matter. While a stream is being
captured into a graph nothing is shared, since the graph may run concurrently with the stream. A graph of PyTorch owns
memory from PyTorch; for other graphs it is kept alive.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakSet

from warploom.runtime.gpu.driver import Device

_NO_CAPTURE, _NON_BLOCKING = 0, 1
_MOST_STREAMS = 8
"""Streams of a GPU that have a workspace; the one that has waited longest for new work loses it."""
_shared: dict[tuple[int, int], Block] = {}
"""Workspaces by GPU and stream, the last ones that were asked for at the end."""


class Holder(Protocol):
    """An object that keeps workspaces alive in the arguments of its launches."""

    def release(self, device: Device, stream: int) -> None:
        """Forget the arguments that hold the workspace of a stream: launches that have begun need no more of it."""


HOLDERS: WeakSet[Holder] = WeakSet()


@dataclass(frozen=True, slots=True)
class Block:
    """GPU memory that lives as long as its owner."""

    address: int
    size: int
    owner: Any


def is_captured(device: Device, stream: int) -> bool:
    """Return True if a stream is being captured into a graph, by PyTorch or otherwise."""
    status = ctypes.c_int()
    refused = device.driver.library.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status))
    return not refused and status.value != _NO_CAPTURE


def graph_of(device: Device, stream: int) -> int:
    """Return the number of the graph that a stream is being captured into; 0 if there is none."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    asked = ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    refused = device.driver.library.cuStreamGetCaptureInfo_v2(*asked)
    return 0 if refused or status.value == _NO_CAPTURE else number.value


def is_captured_by_torch() -> bool:
    """Return True if PyTorch's allocations now belong to a graph and live as long as it."""
    torch = _torch()
    return torch is not None and bool(torch.cuda.is_current_stream_capturing())


def workspace(device: Device, stream: int, size: int) -> Block:
    """Return memory that every launch of a stream may write.

    A smaller one is released, and so is that of a stream that was not used for long: the memory goes back in the order
    of its stream, after the launches that have begun.
    """
    key = device.index, stream
    found = _shared.pop(key, None)
    if found is None or found.size < size:
        if found is not None:
            _release(device, stream)
        found = allocated(device, stream, size, zero=False)
    _shared[key] = found
    streams = [each for index, each in _shared if index == device.index]
    for idle in streams[:-_MOST_STREAMS]:
        del _shared[device.index, idle]
        _release(device, idle)
    return found


def _release(device: Device, stream: int) -> None:
    for holder in list(HOLDERS):
        holder.release(device, stream)


def allocated(device: Device, stream: int, size: int, *, zero: bool) -> Block:
    """Return new memory, cleared in stream order if requested."""
    torch = _torch()
    if torch is None:
        memory = _Memory(device, size)
        if zero:
            device.driver.call("cuMemsetD8Async", memory.address, 0, ctypes.c_size_t(size), ctypes.c_void_p(stream))
        return Block(int(memory.address.value), size, memory)
    with torch.cuda.stream(_torch_stream(torch, device, stream)):
        make = torch.zeros if zero else torch.empty
        tensor = make(size, dtype=torch.uint8, device=f"cuda:{device.index}")
    return Block(int(tensor.data_ptr()), size, tensor)


def holding(device: Device, stream: int, raw: bytes) -> Block:
    """Return new memory that is filled with these bytes in stream order; no capture may be active."""
    block, size = allocated(device, stream, max(len(raw), 1), zero=False), ctypes.c_size_t(len(raw))
    if raw:
        with device.current():
            to = ctypes.c_uint64(block.address)
            device.driver.call("cuMemcpyHtoDAsync_v2", to, ctypes.c_char_p(raw), size, ctypes.c_void_p(stream))
    return block


def zero_for_a_graph(device: Device, size: int) -> Block:
    """Return new memory that is already zero: a graph needs no clearing node, and each replay finds the previous state.

    It is not PyTorch's, which would treat memory that is allocated during a capture as the graph's own.
    """
    memory, stream, driver = _Memory(device, size), ctypes.c_void_p(), device.driver
    with device.current(), driver.while_capturing():
        driver.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        driver.call("cuMemsetD8Async", memory.address, 0, ctypes.c_size_t(size), stream)
        driver.call("cuStreamSynchronize", stream)
        driver.call("cuStreamDestroy_v2", stream)
    return Block(int(memory.address.value), size, memory)


def _torch_stream(torch: Any, device: Device, stream: int) -> Any:
    current = torch.cuda.current_stream(device.index)
    if current.cuda_stream == stream:
        return current
    known = torch.cuda.default_stream(device.index)
    return known if known.cuda_stream == stream else torch.cuda.ExternalStream(stream, device.index)


class _Memory:
    """Allocate memory from the driver, in a process without PyTorch; it is freed with its owner."""

    def __init__(self, device: Device, size: int) -> None:
        self.address = ctypes.c_uint64()
        self._free = device.driver.library.cuMemFree_v2
        with device.current(), device.driver.while_capturing():
            device.driver.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(max(size, 1)))

    def __del__(self) -> None:
        if self.address.value:
            self._free(self.address)


def _torch() -> Any:
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None
