"""Loading of kernels: assembled by a suitable ptxas, or else by the driver, and cached."""

from __future__ import annotations

import ctypes
import re
import warnings
from dataclasses import dataclass, field
from typing import Any

from warploom.diagnostics import Diag, WarploomError
from warploom.hardware.targets import machine
from warploom.host.launch import Launch, Triple, entry_of
from warploom.host.program import Ptx, head_of, text_of
from warploom.ptx.syntax.model import Kernel, Module
from warploom.runtime.cache.disk import user_cache
from warploom.runtime.gpu.driver import Device
from warploom.runtime.toolchain.assembler import assemble
from warploom.runtime.toolchain.ptxas_log import in_ascii
from warploom.runtime.toolchain.tools import PTXAS, Tool, find

_CLUSTER_DIMENSION, _DEPENDENT_LAUNCH = 4, 6
_MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 8, 14
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
_LOG_BYTES = 8192
_TARGET = re.compile(r"sm_(\d+)(\d)([af]?)")


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an identifier, and a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint * 16))


class Configuration(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@dataclass
class Loaded:
    """A kernel that can be launched; `assembler` names the program that made its code."""

    device: Device
    kernel: Kernel
    function: ctypes.c_void_p
    assembler: str
    _shared: int = field(default=0)
    _non_portable: bool = field(default=False)

    def allow(self, shared_bytes: int, cluster: Triple) -> None:
        """Allow this much dynamic shared memory, and clusters larger than the portable size."""
        call = self.device.driver.call
        if shared_bytes > self._shared:
            call("cuFuncSetAttribute", self.function, _MAX_DYNAMIC_SHARED, shared_bytes)
            self._shared = shared_bytes
        size = cluster[0] * cluster[1] * cluster[2]
        if size > machine(self.device.target).cluster_size and not self._non_portable:
            call("cuFuncSetAttribute", self.function, _NON_PORTABLE_CLUSTER, 1)
            self._non_portable = True


_LOADED: dict[tuple[int | str, str | None, int], tuple[object, Loaded]] = {}
"""Kernels by text, entry and GPU, kept because graphs may refer to them; recent modules also by identity."""
_MOST_MODULES = 1024


def loaded_count() -> int:
    """Return the number of kernels that were loaded so far, including those since forgotten."""
    return _loads


_loads = 0


def load(program: Ptx, entry: str | None, device: Device) -> Loaded:
    """Return a kernel loaded on a GPU."""
    of_module = (id(program), entry, device.index)
    if of_module in _LOADED:
        return _LOADED[of_module][1]
    key = (text_of(program), entry, device.index)
    if key not in _LOADED:
        head = head_of(program)
        kernel = entry_of(head, entry)
        _check_target(head.target[0], device)
        with device.current(), device.driver.while_capturing():
            _LOADED[key] = (None, _load(key[0], head, kernel, device))
            _count_load()
    if isinstance(program, Module):
        _forget_modules()
        _LOADED[of_module] = (program, _LOADED[key][1])
    return _LOADED[key][1]


def _count_load() -> None:
    global _loads  # noqa: PLW0603
    _loads += 1


def _forget_modules() -> None:
    known = [key for key in _LOADED if isinstance(key[0], int)]
    if len(known) >= _MOST_MODULES:
        for key in known:
            del _LOADED[key]


def _check_target(target: str, device: Device) -> None:
    """Check that a GPU runs a target: plain ones run on later GPUs, `f` ones in their family, `a` ones there only."""
    match = _TARGET.fullmatch(target)
    have = device.gpu.capability
    wanted = (int(match[1]), int(match[2])) if match else (0, 0)
    fits = {"": wanted <= have, "f": wanted <= have and wanted[0] == have[0], "a": wanted == have}
    if match is None or not fits[match[3]]:
        what = f"the kernel is for {target}, and the GPU is {device.target}"
        raise Diag.WRONG_GPU.error(gpu=device.gpu.name, what=what)


def _load(text: str, head: Module, kernel: Kernel, device: Device) -> Loaded:
    target = head.target[0]
    own = target if target[-1] in "af" else device.target  # code of another generation does not run
    tool = _fitting_ptxas(device, max(head.version, machine(own).first_ptx))
    if tool is None:
        module = _assembled_by_the_driver(text, target, device)
        made_by = f"the driver (CUDA {device.driver.cuda[0]}.{device.driver.cuda[1]})"
    else:
        assembly = assemble(text, own, strict=False, cache=user_cache())
        for loss in assembly.losses:  # a kernel is loaded once in a process
            warnings.warn(f"a kernel runs slower than it could: {loss}", RuntimeWarning, stacklevel=2)
        module = ctypes.c_void_p()
        device.driver.call("cuModuleLoadData", ctypes.byref(module), assembly.cubin)
        made_by = str(tool)
    function = ctypes.c_void_p()
    device.driver.call("cuModuleGetFunction", ctypes.byref(function), module, kernel.name.encode())
    return Loaded(device, kernel, function, made_by)


def _fitting_ptxas(device: Device, version: tuple[int, int]) -> Tool | None:
    """Return a ptxas that accepts a PTX version and whose code the driver loads."""
    try:
        tool = find(PTXAS)
    except WarploomError:
        return None
    return None if tool.misfit(device.driver.cuda, version) else tool


def _assembled_by_the_driver(text: str, target: str, device: Device) -> ctypes.c_void_p:
    module, log = ctypes.c_void_p(), ctypes.create_string_buffer(_LOG_BYTES)
    options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
    values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
    load_ = device.driver.library.cuModuleLoadDataEx
    status = load_(ctypes.byref(module), in_ascii(text).encode(), 2, options, values)
    if status:
        said = log.value.decode("utf-8", "replace").strip().rstrip(".") or device.driver.sentence(status)
        raise Diag.NOT_ASSEMBLED.error(tool="the driver", target=target, what=said)
    return module


def configuration(launch: Launch, stream: int) -> Configuration:
    """Return the shape of a launch as the driver takes it."""
    attributes: list[Any] = []
    if launch.cluster != (1, 1, 1):
        attributes.append(_Attribute(_CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(*launch.cluster)))
    if launch.dependent:
        attributes.append(_Attribute(_DEPENDENT_LAUNCH, 0, (ctypes.c_uint * 16)(1)))
    array = (_Attribute * max(len(attributes), 1))(*attributes)
    return Configuration(
        (ctypes.c_uint * 3)(*launch.grid),
        (ctypes.c_uint * 3)(*launch.block),
        launch.shared_bytes,
        stream,
        ctypes.cast(array, ctypes.POINTER(_Attribute)),
        len(attributes),
    )


def resident_clusters(launch: Launch, device: Device) -> int:
    """Return the number of clusters of a launch that are resident at once: the most that a persistent grid may have."""
    loaded = load(launch.program, launch.entry, device)
    loaded.allow(launch.shared_bytes, launch.cluster)
    with device.current():
        if launch.cluster == (1, 1, 1):
            threads = launch.block[0] * launch.block[1] * launch.block[2]
            each = device.driver.number(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                loaded.function,
                threads,
                ctypes.c_size_t(launch.shared_bytes),
            )
            return each * device.gpu.sms
        asked = configuration(launch, 0)
        return device.driver.number("cuOccupancyMaxActiveClusters", loaded.function, ctypes.byref(asked))
