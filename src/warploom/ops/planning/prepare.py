"""Operations as prepared calls: bound once, on arrays that stand for those of a GPU, and launched on any like them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from warploom.diagnostics import Diag
from warploom.heuristics.problem_key import ProblemKey
from warploom.host.arrays import Buffer, buffer_of, is_array
from warploom.host.launch import Launch
from warploom.ops.dense import matmul
from warploom.ops.planning.aliasing import are_alike, clash
from warploom.ops.planning.array_arguments import leaves, mapped
from warploom.ops.planning.operation import Operation
from warploom.ops.planning.request import GPU
from warploom.ops.planning.violations import Faults
from warploom.runtime.gpu.driver import Device, device_of
from warploom.runtime.gpu.prepared import Apart, Prepared, exchanged
from warploom.trace.trace_store import for_a_gpu

_WRITTEN = ("out", "outputs")
_ADDENDS = ("bias", "gate_bias", "up_bias", "residual", "operands")
_ALIGNMENT = 256
"""What an address is known of: its distance from a multiple of this, more than any rule asks for."""


def stand_in(buffer: Buffer) -> np.ndarray[Any, Any]:
    """A NumPy array like one of a GPU, in type, shape, strides and alignment; unread, its zeros take no memory."""
    try:
        dtype = np.dtype(getattr(ml_dtypes, buffer.dtype, buffer.dtype))
    except TypeError:
        raise Diag.BAD_PLAN.error(count=1, what=f"there is no kernel for arrays of {buffer.dtype}") from None
    skipped = buffer.address % _ALIGNMENT
    room = np.zeros(skipped + max(buffer.span, buffer.item), np.uint8)
    return np.ndarray(buffer.shape, dtype, room, skipped, buffer.strides)


@dataclass(frozen=True)
class Bound:
    """An operation bound on stand-ins: its launch, the stand-ins by name, and those that the launch passes not on."""

    launch: Launch
    arrays: dict[str, np.ndarray[Any, Any]]
    copied: tuple[str, ...]
    sought: ProblemKey | None


def bound(operation: Operation[...], arguments: Mapping[str, Any], gpu: Device) -> Bound:
    """Bind an operation, for a GPU, on arguments of which the arrays are anywhere; to run it needs `out` among them."""
    asked = arguments.get("target")
    if asked not in (None, gpu.target):
        faults = Faults(operation.__name__)
        faults.add("target", asked, f"the arrays are on a GPU whose target is {gpu.target}")
        faults.check()
    arrays = {path: stand_in(buffer_of(array)) for path, array in leaves(arguments)}
    standing = {**mapped(arguments, lambda path, _: arrays[path]), "target": gpu.target}
    token = GPU.set(gpu.gpu)
    try:
        with for_a_gpu():
            planned = operation.plan(**standing)
    finally:
        GPU.reset(token)
    launch = planned.alone(operation.__name__)
    passed = exchanged(launch, tuple(arrays.values()))
    copied = tuple(name for number, name in enumerate(arrays) if number not in passed)
    return Bound(launch, arrays, copied, planned.sought)


def plan(operation: Operation[...], **arguments: Any) -> Prepared:
    """A prepared call of an operation: `plan(matmul, a=a, b=b, bias=bias, out=d)`, then `call(a, b, bias, d)`.

    The call takes the arrays in the order in which they were named here; everything else stays as it was. `out` is
    needed, and no array may be one that the operation would copy.
    """
    if not is_array(arguments.get("out")):
        raise Diag.BAD_PLAN.error(count=1, what="a prepared call writes into `out`, and none was given")
    arguments["out"] = arguments.pop("out")
    device, apart = _gpu_of(arguments), _apart(arguments)
    made = bound(operation, arguments, device)
    if made.copied:
        what = "the kernel cannot step through it as it lies, or does not read it: make it contiguous, or leave it out"
        notes = [f"`{name}`: {what}" for name in made.copied]
        raise Diag.BAD_PLAN.error(notes=notes[1:], count=len(notes), what=notes[0])
    return Prepared(made.launch, tuple(made.arrays.values()), device=device, apart=apart)


def _apart(arguments: Mapping[str, Any]) -> tuple[Apart, ...]:
    """What a result must not overlap: other results, and what is read, but for an addend that is the very array."""
    arrays = tuple(leaves(arguments))
    pairs: list[Apart] = []
    for written, (result, out) in enumerate(arrays):
        if result.partition(".")[0] not in _WRITTEN:
            continue
        for read, (path, array) in enumerate(arrays):
            argument = path.partition(".")[0]
            if read == written or (argument in _WRITTEN and read > written):
                continue
            in_place = argument in _ADDENDS and result == "out" and arguments.get("store") is None
            if clash(out, array, in_place=in_place):
                what = f"`{result}` overlaps `{path}`, and one launch cannot read and write both"
                raise Diag.BAD_PLAN.error(count=1, what=what)
            pairs.append(Apart(written, read, may_be_one=in_place and are_alike(out, array)))
    return tuple(pairs)


def plan_matmul(a: Any, b: Any, *, out: Any, **options: Any) -> Prepared:
    """A prepared `matmul`, called with arrays like these: a, b, then those of `options` in their order, then `out`."""
    return plan(matmul, a=a, b=b, **options, out=out)


def _gpu_of(arguments: Mapping[str, Any]) -> Device:
    buffers = {name: buffer_of(value) for name, value in leaves(arguments)}
    places = {name: buffer.device for name, buffer in buffers.items()}
    if len(set(places.values())) != 1 or not buffers["out"].is_on_gpu:
        notes = [f"`{name}` is on {place}" for name, place in places.items()]
        raise Diag.BAD_PLAN.error(notes=notes, count=1, what="the arrays are not all on one GPU")
    return device_of(buffers["out"].device, buffers["out"].address)
