"""Timing on a GPU by the driver alone: memory to rotate through, launches in CUDA graphs, events between them.

Functions and constants: CUDA Driver API 13 (cuda.h).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from warploom.diagnostics import Diag
from warploom.runtime.gpu.driver import Device
from warploom.runtime.gpu.workspace import Block, allocated

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Call = Callable[[], None]

_L2_BYTES = 38
_NON_BLOCKING, _RELAXED_CAPTURE, _NOT_READY = 1, 2, 600
_LIMIT_SECONDS = 60.0
_NAP_SECONDS = 2e-4
_STREAMS: dict[int, int] = {}
"""Streams by GPU."""


class Stopwatch:
    """A separate stream on a GPU, on which launches are measured.

    The stream is reused: PyTorch's allocator caches memory by stream and would never release it.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._call = device.driver.call
        device.make_current()
        self._call("cuCtxSynchronize")  # the arrays may still be being filled by another stream
        if device.index not in _STREAMS:
            handle = ctypes.c_void_p()
            self._call("cuStreamCreate", ctypes.byref(handle), _NON_BLOCKING)
            _STREAMS[device.index] = int(handle.value or 0)
        self.stream = _STREAMS[device.index]
        self._held: list[Block] = []

    @property
    def l2_bytes(self) -> int:
        handle = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(handle), self.device.index)
        return self.device.driver.number("cuDeviceGetAttribute", _L2_BYTES, handle)

    def room(self, size: int) -> int:
        """Return the address of new memory."""
        self._held.append(allocated(self.device, self.stream, size, zero=False))
        return self._held[-1].address

    def copy(self, to: int, source: int, size: int) -> None:
        self._call("cuMemcpyDtoDAsync_v2", _address(to), _address(source), ctypes.c_size_t(size), self._handle)

    def fill(self, to: int, size: int, byte: int) -> None:
        self._call("cuMemsetD8Async", _address(to), byte, ctypes.c_size_t(size), self._handle)

    def write(self, to: int, held: Bytes) -> None:
        self._call("cuMemcpyHtoD_v2", _address(to), ctypes.c_void_p(held.ctypes.data), ctypes.c_size_t(held.nbytes))

    def read(self, source: int, size: int) -> Bytes:
        held = np.empty(size, np.uint8)
        self.wait()
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(held.ctypes.data), _address(source), ctypes.c_size_t(size))
        return held

    def wait(self, seconds: float = _LIMIT_SECONDS) -> None:
        """Wait until everything has ended; a kernel that hangs is an error, since a GPU does not detect it."""
        end = time.monotonic() + seconds
        query = self.device.driver.library.cuStreamQuery
        while (status := query(self._handle)) == _NOT_READY:
            if time.monotonic() > end:
                what = f"a kernel has not ended after {seconds:.0f} s; WARPLOOM_TIMEOUT=2 reports where it waits"
                raise Diag.GPU_FAULT.error(what=what)
            time.sleep(_NAP_SECONDS)
        if status:
            raise self.device.driver.refusal(status, "cuStreamQuery")

    def graph(self, calls: Sequence[Call], launches: int) -> ctypes.c_void_p:
        """Return a graph that alternates between the calls; each has run once before, so that it allocates nothing."""
        for call in calls:
            call()
        self.wait()
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamBeginCapture_v2", self._handle, _RELAXED_CAPTURE)
        try:
            for number in range(launches):
                calls[number % len(calls)]()
        finally:
            self._call("cuStreamEndCapture", self._handle, ctypes.byref(graph))
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_ulonglong(0))
        self._call("cuGraphDestroy", graph)
        return made

    def replayed(
        self, graphs: Sequence[ctypes.c_void_p], rounds: int, on_round: Callable[[int], None]
    ) -> list[list[float]]:
        """Return the microseconds of each graph and round; the graphs alternate, and the first round is not counted."""
        marks = [self._event() for _ in range(len(graphs) + 1)]
        times: list[list[float]] = [[] for _ in graphs]
        for turn in range(rounds + 1):
            self._call("cuGraphLaunch", graphs[0], self._handle)  # keeps the queue full
            self._call("cuEventRecord", marks[0], self._handle)
            for graph, mark in zip(graphs, marks[1:], strict=True):
                self._call("cuGraphLaunch", graph, self._handle)
                self._call("cuEventRecord", mark, self._handle)
            self.wait()
            if turn:
                for at, found in enumerate(times):
                    found.append(self._between(marks[at], marks[at + 1]))
                on_round(turn)
        for mark in marks:
            self._call("cuEventDestroy_v2", mark)
        return times

    def once(self, call: Call) -> float:
        """Return the microseconds of one call."""
        first, last = self._event(), self._event()
        self._call("cuEventRecord", first, self._handle)
        call()
        self._call("cuEventRecord", last, self._handle)
        self.wait()
        return self._between(first, last)

    def drop(self, graph: ctypes.c_void_p) -> None:
        self._call("cuGraphExecDestroy", graph)

    def give_back(self) -> None:
        """Release the memory when it is no longer in use."""
        self.wait()
        self._held.clear()

    @property
    def _handle(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.stream)

    def _event(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(made), 0)
        return made

    def _between(self, first: ctypes.c_void_p, last: ctypes.c_void_p) -> float:
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), first, last)
        return milliseconds.value * 1e3


def _address(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)
