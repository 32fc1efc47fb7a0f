"""Timelines of operations: when each role of each CTA began and ended its tiles, from time stamps in the kernel."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from inspect import signature
from math import prod
from typing import Any

import numpy as np

from warploom.diagnostics import Diag
from warploom.host.arrays import buffer_of, numpy_of
from warploom.host.launch import Launch
from warploom.kernels.call import Call
from warploom.launcher import launch
from warploom.ops.planning.arrays import ArrayDescriptor, leaves, mapped
from warploom.ops.planning.planner import TARGETS
from warploom.ops.planning.prepare import bound
from warploom.runtime.gpu.driver import Device, device_of
from warploom.runtime.gpu.prepared import Prepared
from warploom.runtime.gpu.workspace import allocated
from warploom.structured import Span, spans

_STAMPS = 2


def timeline(operation: Any, *args: Any, tiles: int = 16, **options: Any) -> list[Span]:
    """Run a call of an operation and return its spans: `timeline(matmul, a, b, bias=bias, out=d)`.

    Each role records the begin and the end of its first `tiles` tiles. Pass `out` to keep the result; arrays on a GPU
    need it. On a GPU times are nanoseconds; the emulator counts steps, which order events only.
    `warploom.structured.chrome_trace` writes spans as a file for Chrome and Perfetto.
    """
    if not (callable(operation) and hasattr(operation, "plan")):
        what = f"the first argument is {type(operation).__name__}, not an operation as in `timeline(matmul, a, b)`"
        raise Diag.BAD_LAUNCH.error(what=what)
    given = signature(operation).bind(*args, **options).arguments
    if operation.__name__ == "conv2d":
        given = mapped(given, lambda _, array: _channels_last(array))
    on_gpu = [buffer for _, array in leaves(given) if (buffer := buffer_of(array)).is_on_gpu]
    if on_gpu:
        return _on_gpu(operation, given, tiles, device_of(on_gpu[0].device, on_gpu[0].address))
    planned = operation.plan(**mapped(given, lambda _, array: numpy_of(array)))
    if planned.call is None:
        return []
    plain = planned.single_launch(operation.__name__)
    stamps = np.zeros(_shape(planned.call, plain, tiles), np.uint64)
    target = given.get("target") or next(
        name for name, route in TARGETS.items() if isinstance(planned.call.config, tuple(route.configs.values()))
    )
    launch(_traced(planned.call, stamps, target))
    return spans(stamps, planned.call.config.roles)


def _channels_last(array: Any) -> Any:
    """Return images or filters with the channels last; PyTorch has them first."""
    is_image = hasattr(array, "permute") and array.dim() == 4
    return array.permute(0, 2, 3, 1) if is_image else array


def _on_gpu(operation: Any, given: dict[str, Any], tiles: int, device: Device) -> list[Span]:
    """Do the same on a GPU, in the current stream; `out` must be given, and the call waits for the kernel."""
    if "out" not in given:
        raise Diag.BAD_LAUNCH.error(what=f"a timeline of `{operation.__name__}` on a GPU writes into `out`: missing")
    made = bound(operation, given, device)
    if made.call is None or made.copied:
        what = f"`{operation.__name__}` would copy {', '.join(made.copied)}: a timeline is of a single launch"
        raise Diag.BAD_LAUNCH.error(what=what)
    shape, stream = _shape(made.call, made.launch, tiles), device.stream()
    stamps = np.zeros(shape, np.uint64)
    memory = allocated(device, stream, stamps.nbytes, zero=True)
    place = ArrayDescriptor(
        "trace", shape, stamps.strides, stamps.dtype, memory.address, buffer_of(made.arrays["out"]).device
    )
    arrays = (*made.arrays.values(), place)
    traced = Prepared(_traced(made.call, place, str(device.target), device.gpu.sms), arrays, device=device)
    traced.launch_at(tuple(buffer_of(each).address for each in arrays), stream)
    with device.current():
        device.driver.call("cuStreamSynchronize", ctypes.c_void_p(stream))
        to, size = stamps.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(stamps.nbytes)
        device.driver.call("cuMemcpyDtoH_v2", to, ctypes.c_uint64(memory.address), size)
    return spans(stamps, made.call.config.roles)


def _shape(call: Call[Any], plain: Launch, tiles: int) -> tuple[int, ...]:
    """Return CTAs, roles, tiles, and begin and end."""
    if isinstance(tiles, bool) or not isinstance(tiles, int) or tiles < 1:
        raise Diag.BAD_LAUNCH.error(what=f"`tiles` is {tiles!r}; it must be a positive integer")
    return (prod(plain.grid), len(call.config.roles), tiles, _STAMPS)


def _traced(call: Call[Any], stamps: Any, target: str, sms: int | None = None) -> Launch:
    """Return the launch with a buffer for time stamps."""
    return TARGETS[target].bind(replace(call, trace=stamps), sms)
