"""`torch.cuda` and `torch.accelerator` while the emulator is the GPU: queries answered, streams and events in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FunctionType, SimpleNamespace
from typing import Any, Self

import torch

from warploom.diagnostics import Diag
from warploom.triton.host_tensors import CUDA, host_of, is_device, is_index
from warploom.triton.options import Options
from warploom.triton.patches import Patches

MEMORY = 64 << 30
"""Bytes of device memory that the emulator answers; the host's memory is the limit."""
TOOLKIT = "13.0"


class Stream:
    """A stream whose work is done when a call returns."""

    cuda_stream = 0
    device = CUDA
    device_index = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class ExternalStream(Stream):
    """A stream that the program has from elsewhere."""


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


def properties(options: Options) -> SimpleNamespace:
    """The device properties under PyTorch's names."""
    hardware = options.hardware
    return SimpleNamespace(
        name=name_of(options),
        major=options.arch // 10,
        minor=options.arch % 10,
        multi_processor_count=options.sm_count,
        total_memory=MEMORY,
        warp_size=32,
        regs_per_multiprocessor=hardware.registers_per_sm,
        max_threads_per_multi_processor=hardware.threads_per_sm,
        max_threads_per_block=hardware.threads_per_block,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=hardware.shared_per_block,
        shared_memory_per_multiprocessor=hardware.shared_per_sm,
        L2_cache_size=50 << 20,
        gcnArchName="",
        is_integrated=False,
        is_multi_gpu_board=False,
    )


def name_of(options: Options) -> str:
    return f"warploom emulator ({options.target})"


def _no_graphs(*_: Any, **__: Any) -> Any:
    raise Diag.NOT_MODELLED.error(what="A CUDA graph")


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _context(*_: Any, **__: Any) -> Any:
    return nullcontext()


def _choose(device: Any) -> None:
    """Accept the device; a second GPU is an error, a negative number means none."""
    if is_device(device) or (is_index(device) and device >= 0):
        host_of(device)


def _chosen(device: Any) -> Any:
    _choose(device)
    return nullcontext()


@contextmanager
def _stream(stream: Any = None) -> Iterator[Any]:
    yield stream


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def answer(patches: Patches, options: Options) -> None:
    """Replace the functions of `torch.cuda` and `torch.accelerator` that programs ask."""
    known, stream = properties(options), Stream()
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _nothing,
        "_lazy_init": _nothing,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _choose,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "device": _chosen,
        "device_of": _context,
        "get_device_capability": lambda device=None: (known.major, known.minor),
        "get_device_name": lambda device=None: known.name,
        "get_device_properties": lambda device=None: known,
        "get_arch_list": lambda: [options.target],
        "is_bf16_supported": lambda including_emulation=True: True,
        "can_device_access_peer": lambda device, peer: False,
        "synchronize": _nothing,
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "Event": Event,
        "stream": _stream,
        "set_stream": _nothing,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "is_current_stream_capturing": lambda: False,
        "CUDAGraph": _no_graphs,
        "graph": _no_graphs,
        "manual_seed": _seed,
        "manual_seed_all": _seed,
        "seed": _nothing,
        "seed_all": _nothing,
        "get_rng_state": lambda device=None: torch.default_generator.get_state(),
        "set_rng_state": lambda state, device=None: torch.default_generator.set_state(state) and None,
        "empty_cache": _nothing,
        "ipc_collect": _nothing,
        "reset_peak_memory_stats": _nothing,
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
    }
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        answers[name] = lambda device=None: 0
    for name, value in answers.items():
        patches.set(torch.cuda, name, _own(value))
    patches.set(torch.version, "cuda", TOOLKIT)
    patches.set(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
    patches.set(torch, "Generator", _generator())
    if hasattr(torch, "accelerator"):
        for name, value in {
            "is_available": lambda: True,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "device_count": lambda: 1,
            "current_device_index": lambda: 0,
            "set_device_index": _choose,
            "synchronize": _nothing,
            "current_stream": lambda device=None: stream,
        }.items():
            patches.set(torch.accelerator, name, _own(value))


def _own(value: Any) -> Any:
    """A function for one name only: PyTorch's compiler has a table of functions, in which each occurs once."""
    if not isinstance(value, FunctionType):
        return value
    copied = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, value.__closure__)
    copied.__kwdefaults__ = value.__kwdefaults__
    return copied


def _generator() -> Any:
    """A class in the place of `torch.Generator` whose generators are the CPU's."""
    real = torch.Generator

    class Meta(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, real)

        def __call__(cls, device: Any = "cpu") -> Any:
            return real("cpu")

    return Meta("Generator", (), {})
