"""Operations as prepared calls: bound once, on arrays that stand for those of a GPU, and launched on any like them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from warploom.diagnostics import Diag
from warploom.ops.dense import matmul
from warploom.ops.plan import Operation
from warploom.ops.request import MULTIPROCESSORS
from warploom.ptx.arrays import Buffer, buffer_of, is_array
from warploom.ptx.launch import Launch
from warploom.runtime.driver import Device, device_of
from warploom.runtime.prepared import Prepared, exchanged

_ALIGNMENT = 256
"""What an address is known of: its distance from a multiple of this, more than any rule asks for."""


def stand_in(buffer: Buffer) -> np.ndarray[Any, Any]:
    """A NumPy array like one of a GPU, in type, shape, strides and alignment; unread, its zeros take no memory."""
    dtype = np.dtype(getattr(ml_dtypes, buffer.dtype, buffer.dtype))
    skipped = buffer.address % _ALIGNMENT
    room = np.zeros(skipped + max(buffer.span, buffer.item), np.uint8)
    return np.ndarray(buffer.shape, dtype, room, skipped, buffer.strides)


@dataclass(frozen=True)
class Bound:
    """An operation bound on stand-ins: its launch, the stand-ins by name, and those that the launch passes not on."""

    launch: Launch
    arrays: dict[str, np.ndarray[Any, Any]]
    copied: tuple[str, ...]


def bound(operation: Operation[...], arguments: Mapping[str, Any], gpu: Device) -> Bound:
    """Bind an operation, for a GPU, on arguments of which the arrays are anywhere; `out` must be among them."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    standing: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            standing[name] = {each: _standing(each, item, arrays) for each, item in value.items()}
        else:
            standing[name] = _standing(name, value, arrays)
    token = MULTIPROCESSORS.set(gpu.gpu.sms)
    try:
        launch = operation.bind(**standing, target=gpu.target)
    finally:
        MULTIPROCESSORS.reset(token)
    passed = exchanged(launch, tuple(arrays.values()))
    return Bound(launch, arrays, tuple(name for number, name in enumerate(arrays) if number not in passed))


def _standing(name: str, value: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    if not is_array(value):
        return value
    arrays[name] = stand_in(buffer_of(value))
    return arrays[name]


def plan(operation: Operation[...], **arguments: Any) -> Prepared:
    """A prepared call of an operation: `plan(matmul, a=a, b=b, bias=bias, out=d)`, then `call(a, b, bias, d)`.

    The call takes the arrays in the order in which they were named here; everything else stays as it was. `out` is
    needed, and no array may be one that the operation would copy.
    """
    if not is_array(arguments.get("out")):
        raise Diag.BAD_PLAN.error(count=1, what="a prepared call writes into `out`, and none was given")
    arguments["out"] = arguments.pop("out")
    device = _gpu_of(arguments)
    made = bound(operation, arguments, device)
    if made.copied:
        what = "the kernel cannot step through it as it lies, or does not read it: make it contiguous, or leave it out"
        notes = [f"`{name}`: {what}" for name in made.copied]
        raise Diag.BAD_PLAN.error(notes=notes[1:], count=len(notes), what=notes[0])
    return Prepared(made.launch, tuple(made.arrays.values()), device=device)


def plan_matmul(a: Any, b: Any, *, out: Any, **options: Any) -> Prepared:
    """A prepared `matmul`, called with arrays like these: a, b, then those of `options` in their order, then `out`."""
    return plan(matmul, a=a, b=b, **options, out=out)


def _gpu_of(arguments: Mapping[str, Any]) -> Device:
    buffers = {name: buffer_of(value) for name, value in _arrays(arguments)}
    places = {name: buffer.device for name, buffer in buffers.items()}
    if len(set(places.values())) != 1 or not buffers["out"].is_on_gpu:
        notes = [f"`{name}` is on {place}" for name, place in places.items()]
        raise Diag.BAD_PLAN.error(notes=notes, count=1, what="the arrays are not all on one GPU")
    return device_of(buffers["out"].device, buffers["out"].address)


def _arrays(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            yield from _arrays(value)
        elif is_array(value):
            yield name, value
