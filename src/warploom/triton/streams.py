"""Streams and events of `torch.cuda` while the emulator is the GPU: their work is done when a call returns."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from typing import Any, Self

import torch

from warploom.triton.host_tensors import CUDA
from warploom.triton.patches import Patches

_NUMBERS = itertools.count(1)


class Stream:
    """A stream, which is also a block in which it is the current one."""

    device = CUDA
    device_index = 0
    device_type = 1

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.cuda_stream = self.stream_id = next(_NUMBERS)
        self.priority = priority
        self._before: list[Stream] = []

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return CURRENT.graph is not None

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5

    def __enter__(self) -> Self:
        self._before.append(CURRENT.stream)
        CURRENT.stream = self
        return self

    def __exit__(self, *_: object) -> None:
        CURRENT.stream = self._before.pop()


class ExternalStream(Stream):
    """A stream that the program has from elsewhere."""

    def __init__(self, stream_ptr: int, device: Any = None, **_: Any) -> None:
        super().__init__()
        self.cuda_stream = self.stream_id = stream_ptr


_DEFAULT = ExternalStream(0)


class _Current(threading.local):
    """The current stream of each thread, and the CUDA graph that the thread captures."""

    stream: Stream = _DEFAULT
    graph: Any = None


CURRENT = _Current()


class Event:
    """An event; elapsed times are those of the emulation on this CPU."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two records."""
        return (end._at - self._at) * 1e3

    def synchronize(self) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True


class StreamContext:
    """`torch.cuda.stream(stream)`: a block in which a stream is the current one; None changes nothing."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


def current_stream() -> Stream:
    """The stream of this thread's launches."""
    return CURRENT.stream


def _set_stream(stream: Any) -> None:
    CURRENT.stream = stream


def answer_streams(patches: Patches) -> None:
    """Replace the classes and functions of streams; the default stream is the current one again at the end."""
    for name, value in {
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "Event": Event,
        "stream": lambda stream=None: StreamContext(stream),
        "StreamContext": StreamContext,
        "set_stream": _set_stream,
        "current_stream": lambda device=None: current_stream(),
        "default_stream": lambda device=None: _DEFAULT,
    }.items():
        patches.set(torch.cuda, name, value)
    patches.set(torch.Tensor, "record_stream", lambda tensor, stream: None)
    patches.set(torch._C, "_cuda_getCurrentRawStream", lambda device: current_stream().cuda_stream)
    if hasattr(torch, "accelerator"):
        patches.set(torch.accelerator, "current_stream", lambda device=None: current_stream())
        patches.set(torch.accelerator, "set_stream", functools.partial(_set_stream))  # an object of its own
    patches.later(lambda: _set_stream(_DEFAULT))
