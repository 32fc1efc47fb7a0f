"""The emulator as Triton's driver: loads "binaries" that are PTX, answers device queries, launches kernels."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from warploom.host.launch import triple
from warploom.triton.arguments import Parameter, Scalar, Signature, labelled, pointer
from warploom.triton.benchmarks import once
from warploom.triton.cuda_graphs import capturing
from warploom.triton.host_tensors import CUDA, is_on_host, is_pinned
from warploom.triton.options import Options
from warploom.triton.storages import Storages
from warploom.triton.streams import current_stream

if TYPE_CHECKING:
    from warploom.triton.session import Session

_THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+)")
_MOST_REGISTERS = 255
"""Of one thread (PTX ISA, .maxnreg)."""


@dataclass(frozen=True, slots=True)
class Function:
    """A loaded kernel."""

    ptx: str
    name: str
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a kernel, as its PTX sees it."""

    function: Function
    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    threads: int
    parameters: tuple[Parameter, ...]
    """The kernel's own, then pointers to scratch memory."""
    labels: tuple[str, ...]
    """Names of the parameters in messages."""
    storages: Storages
    scratch: int
    """The number of pointers to scratch memory."""


class Utils:
    """The functions that Triton's driver module has."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def load_binary(self, name: str, kernel: bytes | str, shared: int, device: int) -> tuple[Any, ...]:
        """A handle for PTX. The module is None, so that Triton never unloads it through another driver.

        Registers are those that a thread can have at most: the emulator allocates none.
        """
        hardware = self._session.options.hardware
        text = kernel.decode() if isinstance(kernel, bytes) else kernel
        found = _THREADS.search(text)
        registers = min(_MOST_REGISTERS, hardware.registers_per_sm // (int(found[1]) if found else 1))
        loaded = (None, Function(text, name, shared), registers, 0, hardware.threads_per_block)
        return loaded[: self._session.release.loaded]

    def unload_module(self, module: Any) -> None:
        pass

    def get_device_properties(self, device: int) -> dict[str, int]:
        """The properties under Triton's names; clocks and bus width are 1, because no time is modelled."""
        options, hardware = self._session.options, self._session.options.hardware
        return {
            "max_shared_mem": hardware.shared_per_block,
            "max_num_regs": hardware.registers_per_sm,
            "multiprocessor_count": options.sm_count,
            "warpSize": 32,
            "sm_clock_rate": 1,
            "mem_clock_rate": 1,
            "mem_bus_width": 1,
        }

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return divmod(self._session.options.arch, 10)

    def get_current_device(self) -> int:
        return 0

    def get_default_stream(self, device: int = 0) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def cuOccupancyMaxActiveClusters(self, function: Any, shared: int, cluster: int) -> int:  # noqa: N802  Triton's name
        return max(self._session.options.sm_count // cluster, 1)

    def is_stream_capturing(self, stream: int) -> bool:
        return capturing() is not None

    def set_printf_fifo_size(self, size: int) -> None:
        pass


class Driver:
    """The active driver of Triton while a machine is active."""

    def __init__(self, session: Session) -> None:
        from triton.backends.compiler import GPUTarget

        options: Options = session.options
        self.utils = Utils(session)
        self.launcher_cls: Callable[[Any, Any], Launcher] = Launcher
        self._target = GPUTarget("cuda", options.arch, 32)
        self._capability = divmod(options.arch, 10)

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return current_stream().cuda_stream

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return self._capability

    def get_active_torch_device(self) -> Any:
        return CUDA

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Any:
        return once

    def get_empty_cache_for_benchmark(self) -> Any:
        return torch.empty(1)

    def clear_cache(self, cache: Any) -> None:
        pass

    def map_python_to_cpp_type(self, kind: str) -> str:
        from triton.backends.nvidia.driver import ty_to_cpp

        name: str = ty_to_cpp(kind)
        return name

    def assemble_tensormap_to_arg(self, tensormaps_info: Any, args: Any) -> Any:
        return args

    def allocate_default_profile_scratch(self, size: int, alignment: int, stream: Any) -> Any:
        return torch.zeros(size, dtype=torch.int8)


def driver_class(driver: Driver) -> type[Any]:
    """A class in the place of Triton's `CudaDriver`: a program that makes one, to set it active, gets this one."""

    class Emulated:
        def __new__(cls) -> Any:
            return driver

        @staticmethod
        def is_active() -> bool:
            return True

    return Emulated


class Launcher:
    """Launches one compiled kernel on the emulator of the active session."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._metadata = metadata
        self._types = {str(name): kind for name, kind in source.signature.items()}
        known = getattr(metadata, "tensordesc_meta", None)
        self._descriptors = tuple(known) if known else None
        x, y, z = getattr(metadata, "cluster_dims", None) or (getattr(metadata, "num_ctas", 1), 1, 1)
        self._cluster = (int(x), int(y), int(z))

    def __call__(
        self, x: int, y: int, z: int, stream: Any, function: Function, packed: Any, described: Any, enter: Any,
        leave: Any, *values: Any,
    ) -> None:  # fmt: skip
        from warploom.triton.session import active_session

        session = active_session()
        grid = triple((x, y, z), "grid")
        if enter is not None:
            enter(described)
        if all(grid):
            scratch = [self._scratch(name, grid, stream, session) for name in session.release.scratch]
            with torch._C.DisableTorchFunction():
                session.run(self._call(grid, function, values, scratch, session))
        if leave is not None:
            leave(described)

    def _call(
        self, grid: tuple[int, int, int], function: Function, values: tuple[Any, ...], scratch: list[Any],
        session: Session,
    ) -> Call:  # fmt: skip
        storages = Storages(session.addresses)
        signature = Signature(self._types, self._descriptors, session.release)
        parameters = signature.parameters(values, storages)
        _warn_of_the_cpu(self._types, values)
        for name, each in zip(session.release.scratch, scratch, strict=True):
            memory = Scalar("u64", 0) if each is None else pointer(each, "i8", storages)
            parameters.append((f"{name} scratch memory", memory))
        labels = tuple(label for label, _ in parameters)
        scaled = tuple(extent * ctas for extent, ctas in zip(grid, self._cluster, strict=True))
        whole = (scaled[0], scaled[1], scaled[2])
        threads = 32 * self._metadata.num_warps
        given = tuple(each for _, each in parameters)
        return Call(function, whole, self._cluster, threads, given, labels, storages, len(scratch))

    def _scratch(self, name: str, grid: tuple[int, int, int], stream: Any, session: Session) -> Any:
        """Memory from the allocator that the program has set, as Triton's launcher asks for it."""
        size = getattr(self._metadata, f"{name}_scratch_size", 0)
        if not size:
            return None
        from triton.runtime import _allocation

        x, y, z = self._cluster if session.release.scratch_per_cta else (1, 1, 1)
        size *= grid[0] * grid[1] * grid[2] * x * y * z
        alignment = getattr(self._metadata, f"{name}_scratch_align", 1)
        has_own = getattr(_allocation, "has_profile_allocator", None)
        if name == "profile" and has_own is not None and not has_own():
            return torch.zeros(size, dtype=torch.int8)
        held = _allocation._allocator if name == "global" else _allocation._profile_allocator
        allocate = held.get() if hasattr(held, "get") else held
        return allocate(size, alignment, stream)


def _warn_of_the_cpu(types: Mapping[str, Any], values: Sequence[Any]) -> None:
    """Warn of tensors that the program has put on the CPU among others on the GPU, whose kernels cannot read them.

    Where all are on the CPU, the program is meant for the emulator.
    """
    found = [(at, name, Storages.tensor_of(value)) for at, (name, value) in enumerate(zip(types, values, strict=False))]
    tensors = [(at, name, tensor) for at, name, tensor in found if tensor is not None]
    on_host = [(at, name, tensor) for at, name, tensor in tensors if is_on_host(tensor) and not is_pinned(tensor)]
    if not on_host or len(on_host) == len(tensors):
        return
    named = ", ".join(f"argument {at}, {labelled(name, tensor)}" for at, name, tensor in on_host)
    what = f"on the CPU: {named}. Other tensors of this launch are on the GPU, where the launch would raise an error"
    warnings.warn(f'{what}: move it with `to("cuda")`.', stacklevel=_depth_of_the_caller())


def _depth_of_the_caller() -> int:
    """The number of frames from the caller of this function to the program's, which is in no file of Triton's."""
    import triton

    hidden = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], *triton.__path__))
    depth, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(hidden):
        depth, frame = depth + 1, frame.f_back
    return depth + 1
