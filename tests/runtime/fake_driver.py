"""A driver that answers as NVIDIA's does and launches nothing: it remembers what it was asked."""

# ruff: noqa: N802  (the names are those of cuda.h)
from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from typing import Any

SUCCESS, INVALID_VALUE, NO_DEVICE, NO_CONTEXT, ILLEGAL_ADDRESS = 0, 1, 100, 201, 700
SENTENCES = {1: b"invalid argument", 201: b"invalid device context", 700: b"an illegal memory access", 999: b"unknown"}
ATTRIBUTES = {16: 132, 75: 9, 76: 0}


@dataclass
class Launched:
    """One call of cuLaunchKernelEx: its shape, its attributes by number, and the bytes of its parameters."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stream: int
    attributes: dict[int, tuple[int, ...]]
    function: int
    parameters: list[bytes]


@dataclass
class FakeLibrary:
    """Functions by the names of cuda.h; fields say what they answer."""

    version: int = 13000
    init: int = SUCCESS
    capability: tuple[int, int] = (9, 0)
    count: int = 1
    sizes: tuple[int, ...] = ()
    """The bytes of each parameter, for reading them back."""
    launch_statuses: list[int] = field(default_factory=list)
    load_status: int = SUCCESS
    calls: list[str] = field(default_factory=list)
    launched: list[Launched] = field(default_factory=list)
    function_attributes: list[tuple[int, int]] = field(default_factory=list)
    images: list[bytes] = field(default_factory=list)
    current: int | None = None
    capture_mode: int = 0
    memory: dict[int, int] = field(default_factory=dict)
    zeroed: dict[int, int] = field(default_factory=dict)
    copied: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """Bytes that were copied to the GPU, and their stream, by address."""
    host: dict[int, Any] = field(default_factory=dict)
    synchronised: list[int] = field(default_factory=list)
    on_synchronise: Any = None
    captured: set[int] = field(default_factory=set)
    """The streams that are being captured."""
    graph: int = 1
    """The number of the graph that they are captured into."""
    freed: list[int] = field(default_factory=list)

    def cuDriverGetVersion(self, out):
        out._obj.value = self.version
        return SUCCESS

    def cuInit(self, flags):
        return self.init

    def cuGetErrorString(self, status, out):
        out._obj.value = SENTENCES.get(status, b"something else")
        return SUCCESS

    def cuDeviceGetCount(self, out):
        out._obj.value = self.count
        return SUCCESS

    def cuDeviceGet(self, out, index):
        out._obj.value = index
        return SUCCESS

    def cuDeviceGetName(self, name, size, handle):
        name.value = b"Fake H200"
        return SUCCESS

    def cuDeviceTotalMem_v2(self, out, handle):
        out._obj.value = 140 << 30
        return SUCCESS

    def cuDeviceGetAttribute(self, out, attribute, handle):
        out._obj.value = {**ATTRIBUTES, 75: self.capability[0], 76: self.capability[1]}[attribute]
        return SUCCESS

    def cuDevicePrimaryCtxRetain(self, out, handle):
        out._obj.value = 0xC0DE + handle.value
        return SUCCESS

    def cuCtxGetCurrent(self, out):
        out._obj.value = self.current
        return SUCCESS

    def cuCtxSetCurrent(self, context):
        self.calls.append("cuCtxSetCurrent")
        self.current = context.value
        return SUCCESS

    def cuPointerGetAttribute(self, out, attribute, pointer):
        out._obj.value = 0
        return SUCCESS

    def cuThreadExchangeStreamCaptureMode(self, mode):
        self.capture_mode, mode._obj.value = mode._obj.value, self.capture_mode
        return SUCCESS

    def cuModuleLoadData(self, out, image):
        assert self.capture_mode == 2
        self.images.append(image)
        out._obj.value = 0xABC
        return self.load_status

    def cuModuleLoadDataEx(self, out, image, count, options, values):
        assert self.capture_mode == 2
        self.images.append(image)
        if self.load_status:
            ctypes.memmove(values[list(options).index(5)], b"ptxas error : bad\0", 18)
        return self.load_status

    def cuModuleGetFunction(self, out, module, name):
        out._obj.value = 0xF00
        return SUCCESS

    def cuFuncSetAttribute(self, function, attribute, value):
        self.function_attributes.append((attribute, value))
        return SUCCESS

    def cuMemAlloc_v2(self, out, size):
        out._obj.value = 0x1_0000_0000 * (len(self.memory) + 1)
        self.memory[out._obj.value] = size.value
        return SUCCESS

    def cuMemHostAlloc(self, out, size, flags):
        held = (ctypes.c_uint8 * size.value)()
        self.host[ctypes.addressof(held)] = held
        out._obj.value = ctypes.addressof(held)
        return SUCCESS

    def write(self, address: int, words: tuple[int, ...]) -> None:
        """Do what a kernel would do to memory of the host."""
        ctypes.memmove(address, struct.pack(f"<{len(words)}I", *words), 4 * len(words))

    def cuStreamSynchronize(self, stream):
        self.synchronised.append(stream.value or 0)
        return self.on_synchronise() if self.on_synchronise else SUCCESS

    def cuMemsetD8Async(self, address, value, size, stream):
        assert value == 0
        self.zeroed[address.value] = size.value
        return SUCCESS

    def cuMemcpyHtoDAsync_v2(self, address, source, size, stream):
        self.copied[address.value] = ctypes.string_at(source, size.value), stream.value or 0
        return SUCCESS

    def cuMemFree_v2(self, address):
        self.freed.append(address.value)
        return SUCCESS

    def cuStreamGetCaptureInfo_v2(self, stream, status, number, *_):
        status._obj.value, number._obj.value = (stream.value or 0) in self.captured, self.graph
        return SUCCESS

    def cuStreamCreate(self, out, flags):
        assert self.capture_mode == 2
        assert flags == 1  # a non-blocking stream
        out._obj.value = 0xBEEF
        return SUCCESS

    def cuStreamDestroy_v2(self, stream):
        return SUCCESS

    def cuStreamIsCapturing(self, stream, out):
        out._obj.value = (stream.value or 0) in self.captured
        return SUCCESS

    def cuOccupancyMaxActiveClusters(self, out, function, config):
        out._obj.value = 132 // max(config._obj.attributes[0].value[0], 1)
        return SUCCESS

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, out, function, threads, shared):
        out._obj.value = 2
        return SUCCESS

    def cuTensorMapEncodeTiled(
        self, out, kind, rank, address, dims, strides, box, steps, inter, swizzle, promote, fill
    ):
        assert out.value % 64 == 0
        self.calls.append("cuTensorMapEncodeTiled")
        codes = (kind.value, rank.value, inter.value, swizzle.value, promote.value, fill.value)
        fields = (address.value, *dims, *strides, *box, *steps)
        raw = struct.pack(f"<6B{len(fields)}Q", *codes, *fields)
        ctypes.memmove(out.value, raw.ljust(128, b"\0")[:128], 128)
        return SUCCESS

    def cuTensorMapEncodeIm2col(self, out, kind, rank, address, dims, strides, *rest):
        lower, upper, channels, pixels, steps, inter, swizzle, promote, fill = rest
        self.encoded = {
            "kind": kind.value, "rank": rank.value, "address": address.value, "dims": [*dims], "strides": [*strides],
            "lower": [*lower], "upper": [*upper], "channels": channels.value, "pixels": pixels.value,
            "steps": [*steps], "codes": (inter.value, swizzle.value, promote.value, fill.value),
        }  # fmt: skip
        return SUCCESS

    def cuTensorMapEncodeIm2colWide(self, out, kind, rank, address, dims, strides, *rest):
        lower, upper, channels, pixels, steps, inter, mode, swizzle, *_ = rest
        self.encoded = {
            "rank": rank.value, "dims": [*dims], "corners": (lower.value, upper.value), "channels": channels.value,
            "pixels": pixels.value, "steps": [*steps], "codes": (inter.value, mode.value, swizzle.value),
        }  # fmt: skip
        return SUCCESS

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        status = self.launch_statuses.pop(0) if self.launch_statuses else SUCCESS
        if status:
            return status
        shape = config._obj
        attributes = {shape.attributes[at].id: tuple(shape.attributes[at].value) for at in range(shape.count)}
        read = [ctypes.string_at(parameters[at], size) for at, size in enumerate(self.sizes)]
        self.launched.append(
            Launched(
                tuple(shape.grid),
                tuple(shape.block),
                shape.shared_bytes,
                shape.stream or 0,
                attributes,
                function.value,
                read,
            )
        )
        return SUCCESS


class FakeTensor:
    """An array on a GPU that is not there, as PyTorch describes one."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str = "bfloat16", device: str = "cuda:0") -> None:
        self.address, self.shape, self.dtype, self.device = address, shape, f"torch.{dtype}", device
        self.item = {"bfloat16": 2, "float32": 4, "float16": 2}.get(dtype, 1)

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        strides, step = [], 1
        for extent in reversed(self.shape):
            strides.append(step)
            step *= extent
        return tuple(reversed(strides))

    def element_size(self) -> int:
        return self.item

    def __dlpack__(self, **options: Any) -> Any:
        raise NotImplementedError
