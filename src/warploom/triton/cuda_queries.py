"""`torch.cuda` and `torch.accelerator` while the emulator is the GPU: queries answered, defaults mapped to the host."""

from __future__ import annotations

import functools
import struct
from collections import OrderedDict
from contextlib import nullcontext
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from warploom.triton.host_tensors import CUDA, host_of, is_device, is_index, on_host, put_on_host
from warploom.triton.options import Options
from warploom.triton.patches import Patches

MEMORY = 64 << 30
"""Bytes of device memory that the emulator answers; the host's memory is the limit."""
TOOLKIT = "13.0"


_MEMORY_USED = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


class Device:
    """`torch.cuda.device`: a block in which a device is the current one."""

    def __init__(self, device: Any) -> None:
        _choose(device)
        self.idx = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class DeviceIndex(Device):
    """The same block under the name of `torch.accelerator`."""


class _Profiler:
    """The functions of NVTX and of the CUDA runtime that mark ranges for a profiler: they do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0


_STATE_BYTES = 16
_STATES = 4096
"""States of a generator that can be restored: the last ones that the program asked for."""


class _Generator(torch.Generator):
    """A generator of the CPU with the state of one for CUDA: seed and offset, 8 bytes each.

    Programs with Philox numbers of their own advance the offset, and so does a call here for which numbers were drawn
    since the last: the state of the CPU's generator is kept with each.
    """

    _offset = 0

    def __init__(self, *_: Any) -> None:
        self._states: OrderedDict[tuple[int, int], Any] = OrderedDict()

    def _drawing(self) -> Any:
        """The generator whose numbers are drawn."""
        return super()

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> None:
        self._offset = int(offset)

    def manual_seed(self, seed: int) -> Any:
        self._offset = 0
        self._drawing().manual_seed(int(seed))
        return self

    def get_state(self) -> Any:
        seed, held = self.initial_seed(), self._drawing().get_state()
        while not torch.equal(self._states.setdefault((seed, self._offset), held), held):
            self._offset += 4
        self._states.move_to_end((seed, self._offset))
        if len(self._states) > _STATES:
            self._states.popitem(last=False)
        packed = bytearray(struct.pack("<Qq", seed % 2**64, self._offset))
        with torch._C.DisableTorchFunction():
            return put_on_host(torch.frombuffer(packed, dtype=torch.uint8))

    def set_state(self, state: Any) -> Any:
        if state.numel() * state.itemsize != _STATE_BYTES:
            raise RuntimeError("RNG state is wrong size")  # PyTorch's words
        seed, offset = struct.unpack("<Qq", state.contiguous().view(torch.uint8).numpy().tobytes())
        held = self._states.get((seed, offset))
        if held is not None:
            self._drawing().set_state(held)
        elif seed != self.initial_seed() % 2**64:
            self.manual_seed(seed)
        self._offset = offset
        return self


class _DefaultGenerator(_Generator):
    """The default generator of the GPU: its numbers are those of the CPU's."""

    def initial_seed(self) -> int:
        return int(torch.default_generator.initial_seed())

    def _drawing(self) -> Any:
        return torch.default_generator


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
        clock_rate=1,
        memory_clock_rate=1,
        memory_bus_width=1,
        pci_domain_id=0,
        pci_bus_id=0,
        pci_device_id=0,
        uuid="00000000-0000-0000-0000-000000000000",
    )


def name_of(options: Options) -> str:
    return f"warploom emulator ({options.target})"


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _context(*_: Any, **__: Any) -> Any:
    return nullcontext()


def _choose(device: Any) -> None:
    """Accept the device; a second GPU is an error, a negative number means none."""
    if is_device(device) or (is_index(device) and device >= 0):
        host_of(device)


def answer(patches: Patches, options: Options) -> None:
    """Replace the functions of `torch.cuda` and `torch.accelerator` that programs ask."""
    known, default = properties(options), _DefaultGenerator()

    def seed_default(seed: int) -> None:
        default.manual_seed(int(seed))

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
        "device": Device,
        "device_of": _context,
        "get_device_capability": lambda device=None: (known.major, known.minor),
        "get_device_name": lambda device=None: known.name,
        "get_device_properties": lambda device=None: known,
        "get_arch_list": lambda: [options.target],
        "is_bf16_supported": lambda including_emulation=True: True,
        "can_device_access_peer": lambda device, peer: False,
        "manual_seed": seed_default,
        "manual_seed_all": seed_default,
        "default_generators": (default,),
        "seed": _nothing,
        "seed_all": _nothing,
        "initial_seed": default.initial_seed,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": _nothing,
        "get_rng_state": lambda device=None: default.get_state(),
        "set_rng_state": lambda state, device=None: default.set_state(state) and None,
        "empty_cache": _nothing,
        "ipc_collect": _nothing,
        "reset_peak_memory_stats": _nothing,
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "memory_stats": lambda device=None: {},
        "memory_summary": lambda device=None, abbreviated=False: "",
        "cudart": _Profiler,
    }
    for name in _MEMORY_USED:
        answers[name] = lambda device=None: 0
    for name, value in answers.items():
        patches.set(torch.cuda, name, _own(value))
    patches.set(torch.version, "cuda", TOOLKIT)
    patches.set(torch.cuda.nvtx, "_nvtx", _Profiler())
    patches.set(torch, "Generator", _generator())
    _map_defaults(patches)
    if hasattr(torch, "accelerator"):
        for name, value in {
            "is_available": lambda: True,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "device_count": lambda: 1,
            "current_device_index": lambda: 0,
            "set_device_index": _choose,
            "device_index": DeviceIndex,
            "synchronize": _nothing,
            "empty_cache": _nothing,
            "reset_peak_memory_stats": _nothing,
            "reset_accumulated_memory_stats": _nothing,
            "memory_stats": lambda device_index=None: {},
            "get_memory_info": lambda device_index=None: (MEMORY, MEMORY),
            **{name: (lambda device_index=None: 0) for name in _MEMORY_USED},
        }.items():
            if hasattr(torch.accelerator, name):
                patches.set(torch.accelerator, name, _own(value))


def _map_defaults(patches: Patches) -> None:
    """Map the default device, and the `map_location` of `torch.load`, to the host."""
    set_default, get_default, load = torch.set_default_device, torch.get_default_device, torch.load
    module_of = torch.get_device_module
    chosen: list[Any] = []

    def set_default_device(device: Any) -> None:
        chosen[:] = [device] if is_device(device) and torch.device(device).type == "cuda" else []
        set_default(host_of(device) if chosen else device)

    def get_default_device() -> Any:
        if chosen:
            return CUDA
        with torch._C.DisableTorchFunction():  # it asks a new tensor
            return get_default()

    def located(place: Any) -> Any:
        if isinstance(place, dict):
            return {at: str(on_host(to)) for at, to in place.items()}
        return on_host(place)

    def load_to_host(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():  # tensors that are loaded to the host may be those of a GPU
            return load(f, located(map_location), *args, **kwargs)

    @functools.wraps(module_of)
    def get_device_module(device: Any = None) -> Any:
        return torch.cuda if device is None else module_of(device)

    patches.later(lambda: set_default(None) if chosen else None)
    patches.set(torch, "get_device_module", get_device_module)
    patches.set(torch, "set_default_device", set_default_device)
    patches.set(torch, "get_default_device", get_default_device)
    patches.set(torch, "load", load_to_host)


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
            return real("cpu") if is_device(device) and torch.device(device).type == "cpu" else _Generator("cpu")

    return Meta("Generator", (), {})
