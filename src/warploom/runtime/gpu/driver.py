"""The NVIDIA driver through ctypes: loaded when first needed, with its errors as exceptions and its GPUs as values.

Codes and structures: CUDA Driver API 13 (cuda.h). Only the driver itself is needed, and importing this module loads
nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from warploom.diagnostics import Diag, WarploomError
from warploom.hardware.targets import reason_unsupported, target_of
from warploom.runtime.gpu.probe import LIBRARY

OLDEST = (12, 0)
"""The first CUDA version whose drivers encode tensor maps and assemble wgmma; Blackwell's are all newer."""
_MULTIPROCESSORS, _MAJOR, _MINOR, _POINTER_ORDINAL = 16, 75, 76, 9
_NO_DEVICE, _STUB = 100, 34
_NO_CONTEXT = (3, 201)
"""Not initialised, or no current context: the state of a thread that never used CUDA."""
_AFTER_A_FAULT = range(700, 720)
"""A kernel did what hardware forbids; the context is lost."""
_RELAXED_CAPTURE = 2


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its driver describes it."""

    name: str
    capability: tuple[int, int]
    sms: int
    memory: int

    @property
    def target(self) -> str | None:
        """The target of kernels for it, if there are any."""
        return target_of(self.capability)

    def __str__(self) -> str:
        place = self.target or f"compute capability {self.capability[0]}.{self.capability[1]}"
        return f"{self.name}, {place}, {self.sms} SMs, {self.memory / 2**30:.0f} GiB"


class Driver:
    """The functions of a loaded driver; a status other than success raises."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self._computing = ctypes.PyDLL(None, handle=library._handle) if isinstance(library, ctypes.CDLL) else library  # noqa: SLF001
        self.cuda = self._version()

    def _version(self) -> tuple[int, int]:
        number = ctypes.c_int()
        self.library.cuDriverGetVersion(ctypes.byref(number))
        version = (number.value // 1000, number.value % 1000 // 10)
        status = self.library.cuInit(0)
        if status == _STUB:
            raise Diag.NO_DRIVER.error(what=f"{LIBRARY} is the stub that programs are linked with")
        if status == _NO_DEVICE:
            raise Diag.NO_GPU.error(what="none is visible (CUDA_VISIBLE_DEVICES hides GPUs, if it is set)")
        if status:
            raise Diag.NO_GPU.error(what=f"cuInit says {self.sentence(status)}")
        if version < OLDEST:
            raise Diag.OLD_DRIVER.error(found=f"{version[0]}.{version[1]}", needed=f"{OLDEST[0]}.{OLDEST[1]}")
        return version

    def sentence(self, status: int) -> str:
        """Return the driver's description of a status."""
        text = ctypes.c_char_p()
        self.library.cuGetErrorString(status, ctypes.byref(text))
        return f"{(text.value or b'nothing').decode('utf-8', 'replace')} ({status})"

    def refusal(self, status: int, what: str) -> WarploomError:
        """Return the error for a status."""
        if status in _AFTER_A_FAULT:
            return Diag.GPU_FAULT.error(what=self.sentence(status))
        return Diag.DRIVER_REFUSED.error(what=what, sentence=self.sentence(status))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function by name."""
        status = getattr(self.library, name)(*arguments)
        if status:
            raise self.refusal(status, name)

    def compute(self, name: str, *arguments: Any) -> None:
        """Call a function that only computes: Python's lock is kept, since another thread may be slow to return it."""
        status = getattr(self._computing, name)(*arguments)
        if status:
            raise self.refusal(status, name)

    def number(self, name: str, *arguments: Any) -> int:
        """Return the integer that a function writes to its first argument."""
        out = ctypes.c_int()
        self.call(name, ctypes.byref(out), *arguments)
        return out.value

    @contextlib.contextmanager
    def while_capturing(self) -> Iterator[None]:
        """Allow this thread to load code while one of its streams is being captured into a graph."""
        mode = ctypes.c_int(_RELAXED_CAPTURE)
        self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))


class Device:
    """One GPU with its primary context, which is the one that PyTorch and the CUDA runtime use."""

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver, self.index = driver, index
        handle, self.context = ctypes.c_int(), ctypes.c_void_p()
        driver.call("cuDeviceGet", ctypes.byref(handle), index)
        self.gpu = _gpu(driver, handle)
        if self.gpu.target is None:
            raise Diag.WRONG_GPU.error(gpu=self.gpu.name, what=f"it has {reason_unsupported(self.gpu.capability)}")
        self.target: str = self.gpu.target
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), handle)

    def make_current(self) -> None:
        """Make this GPU's context current in the thread, if it is not."""
        if self._current() != self.context.value:
            self.driver.call("cuCtxSetCurrent", self.context)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU's context current, and restore the previous one afterwards, if there was one."""
        before = self._current()
        self.make_current()
        try:
            yield
        finally:
            if before not in (None, self.context.value):
                self.driver.call("cuCtxSetCurrent", ctypes.c_void_p(before))

    def _current(self) -> int | None:
        found = ctypes.c_void_p()
        self.driver.call("cuCtxGetCurrent", ctypes.byref(found))
        return found.value

    def stream(self, given: Any = None) -> int:
        """Return the handle of a stream: PyTorch's current one by default."""
        if given is None:
            torch = sys.modules.get("torch")
            if torch is None or not torch.cuda.is_initialized():
                return 0
            return int(torch.cuda.current_stream(self.index).cuda_stream)
        for name in ("cuda_stream", "ptr"):
            if hasattr(given, name):
                return int(getattr(given, name))
        if hasattr(given, "__cuda_stream__"):
            return int(given.__cuda_stream__()[1])
        return int(given)


def current_stream(device: Device) -> Callable[[], int]:
    """Return the fastest function for PyTorch's current stream; the default stream if PyTorch is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return device.stream
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001  what compiled PyTorch code calls too
    return functools.partial(raw, device.index) if raw else device.stream


def lost_context(status: int) -> bool:
    """Return True if a call failed only because the thread has no context yet."""
    return status in _NO_CONTEXT


@functools.cache
def driver() -> Driver:
    """Return the driver of this computer."""
    try:
        library = load_library()
    except OSError as error:
        raise Diag.NO_DRIVER.error(what=f"{LIBRARY} cannot be loaded ({error})") from None
    return Driver(library)


def load_library() -> Any:
    """Load the driver's library; tests replace this function."""
    return ctypes.CDLL(LIBRARY)


@functools.cache
def device(index: int) -> Device:
    """Return a GPU by its number."""
    return Device(driver(), index)


@functools.cache
def device_count() -> int:
    """Return the number of visible GPUs."""
    return driver().number("cuDeviceGetCount")


def device_of(name: str, address: int) -> Device:
    """Return the GPU of an array: from its library's device (`cuda:1`), or else from the driver, by the address."""
    ordinal = name.partition(":")[2]
    if ordinal:
        return device(int(ordinal))
    return device(driver().number("cuPointerGetAttribute", _POINTER_ORDINAL, ctypes.c_uint64(address)))


def _gpu(driver_: Driver, handle: ctypes.c_int) -> Gpu:
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver_.call("cuDeviceGetName", name, len(name), handle)
    driver_.call("cuDeviceTotalMem_v2", ctypes.byref(memory), handle)
    major, minor, sms = (
        driver_.number("cuDeviceGetAttribute", attribute, handle) for attribute in (_MAJOR, _MINOR, _MULTIPROCESSORS)
    )
    return Gpu(name.value.decode("utf-8", "replace"), (major, minor), sms, memory.value)
