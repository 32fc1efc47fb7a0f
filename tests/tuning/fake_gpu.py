"""A GPU that is not there, for tuning: memory of the host, graphs that count, and a clock that tells planted times."""

# ruff: noqa: N802  (the names are those of cuda.h)
from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tests.runtime.fake_driver import SUCCESS, FakeLibrary, FakeTensor, Launched

L2_BYTES = 1 << 16


@dataclass
class TimingLibrary(FakeLibrary):
    """`cost` says how many microseconds a launch takes, `computes` what it does."""

    cost: Callable[[Launched], float] = lambda launched: 1.0
    computes: Callable[[Launched], None] = lambda launched: None
    clock: float = 0.0
    capturing: list[Launched] | None = None
    graphs: list[list[Launched]] = field(default_factory=list)
    events: dict[int, float] = field(default_factory=dict)
    rooms: list[np.ndarray] = field(default_factory=list)
    replays: list[int] = field(default_factory=list)
    streams: int = 0

    def cuDeviceGetAttribute(self, out, attribute, handle):
        if attribute == 38:
            out._obj.value = L2_BYTES
            return SUCCESS
        return super().cuDeviceGetAttribute(out, attribute, handle)

    def cuCtxSynchronize(self):
        return SUCCESS

    def cuMemAlloc_v2(self, out, size):
        out._obj.value = self.room(size.value)
        return SUCCESS

    def room(self, size: int) -> int:
        """Memory at a multiple of 256, as the driver gives it."""
        self.rooms.append(np.zeros(size + 256, np.uint8))
        return -(-self.rooms[-1].ctypes.data // 256) * 256

    def cuMemsetD8Async(self, address, value, size, stream):
        ctypes.memset(address.value, value, size.value)
        return SUCCESS

    def cuMemcpyDtoDAsync_v2(self, to, source, size, stream):
        ctypes.memmove(to.value, source.value, size.value)
        return SUCCESS

    def cuMemcpyHtoD_v2(self, to, source, size):
        ctypes.memmove(to.value, source.value, size.value)
        return SUCCESS

    def cuMemcpyDtoH_v2(self, to, source, size):
        ctypes.memmove(to.value, source.value, size.value)
        return SUCCESS

    def cuStreamCreate(self, out, flags):
        self.streams += 1
        out._obj.value = 0x57 + self.streams
        return SUCCESS

    def cuStreamQuery(self, stream):
        return SUCCESS

    def cuStreamBeginCapture_v2(self, stream, mode):
        self.capturing = []
        return SUCCESS

    def cuStreamEndCapture(self, stream, out):
        self.graphs.append(self.capturing)
        self.capturing = None
        out._obj.value = len(self.graphs)
        return SUCCESS

    def cuGraphInstantiateWithFlags(self, out, graph, flags):
        out._obj.value = graph.value
        return SUCCESS

    def cuGraphDestroy(self, graph):
        return SUCCESS

    def cuGraphExecDestroy(self, graph):
        return SUCCESS

    def cuGraphLaunch(self, graph, stream):
        self.replays.append(graph.value)
        self.clock += sum(self.cost(each) for each in self.graphs[graph.value - 1])
        return SUCCESS

    def cuEventCreate(self, out, flags):
        out._obj.value = len(self.events) + 1
        self.events[len(self.events) + 1] = 0.0
        return SUCCESS

    def cuEventRecord(self, event, stream):
        self.events[event.value] = self.clock
        return SUCCESS

    def cuEventElapsedTime(self, out, first, last):
        out._obj.value = (self.events[last.value] - self.events[first.value]) / 1e3
        return SUCCESS

    def cuEventDestroy_v2(self, event):
        return SUCCESS

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        status = super().cuLaunchKernelEx(config, function, parameters, extra)
        if status == SUCCESS:
            if self.capturing is None:
                self.clock += self.cost(self.launched[-1])
                self.computes(self.launched[-1])
            else:
                self.capturing.append(self.launched[-1])
        return status


class HeldTensor(FakeTensor):
    """A tensor in the fake's memory."""

    def __init__(self, library: TimingLibrary, *shape: int, dtype: str = "bfloat16") -> None:
        super().__init__(0, shape, dtype)
        self.nbytes = int(np.prod(shape)) * self.item
        self.address = library.room(self.nbytes)
