"""Prepared calls: an operation planned once for arrays of a GPU, and launched on any arrays like them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from warploom.diagnostics import Diag, user_traceback
from warploom.heuristics.problem_key import ProblemKey
from warploom.host.arrays import buffer_of, is_array
from warploom.host.launch import Launch
from warploom.kernels.call import Call
from warploom.ops.dense import matmul
from warploom.ops.operation import Operation
from warploom.ops.planning import planner
from warploom.ops.planning.arrays import ArrayDescriptor, Violations, clash, have_same_layout, leaves, mapped
from warploom.ops.planning.keywords import INPUTS
from warploom.ops.signatures import GemmOptions
from warploom.runtime.gpu.driver import Device, device_of
from warploom.runtime.gpu.prepared import Apart, Prepared, exchanged

_WRITTEN = ("out", "outputs")
_EPILOGUE_INPUTS = (*INPUTS, "gate_bias", "operands")


@dataclass(frozen=True)
class Bound:
    """An operation planned for a GPU: its launch, and its arrays by name as the launch takes them."""

    launch: Launch
    arrays: dict[str, ArrayDescriptor]
    """A copy that the launch needs in place of the caller's array is described in its place."""
    unused: tuple[str, ...]
    """Arrays that the launch does not read, as a residual whose factor is zero."""
    key: ProblemKey | None
    """The problem that the configuration was chosen for, where that can be tuned."""
    call: Call[Any] | None = None
    """The kernel call that the launch was made of."""

    @property
    def copied(self) -> tuple[str, ...]:
        """Arrays that the launch takes as a copy, because of their strides, or not at all."""
        return (*(name for name, each in self.arrays.items() if each.is_copy), *self.unused)


def bound(operation: Operation, arguments: Mapping[str, Any], device: Device) -> Bound:
    """Plan an operation for a GPU; its arrays may be anywhere, and `out` must be among them."""
    violations = Violations(operation.__name__)
    asked = arguments.get("target")
    if asked not in (None, device.target):
        violations.add("target", asked, f"must be {device.target}, the target of the GPU that holds the arrays")
        violations.check()
    roots = {path: ArrayDescriptor.of(path, array) for path, array in leaves(arguments)}
    described = {**mapped(arguments, lambda path, _: roots[path]), "target": device.target}
    request = operation.request(described, violations, gpu=device.gpu)
    return launch_of(planner.plan(request, violations), operation.__name__, roots)


def launch_of(planned: planner.Plan, function: str, roots: Mapping[str, ArrayDescriptor]) -> Bound:
    """The launch of a plan for a GPU, with the layout in which it takes each array."""
    launch = planned.single_launch(function)
    taken = {each.root: each for each in exchanged(launch) if isinstance(each, ArrayDescriptor)}
    arrays = {path: taken[root] if root in taken and taken[root].is_copy else root for path, root in roots.items()}
    unused = tuple(path for path, root in roots.items() if root not in taken)
    return Bound(launch, arrays, unused, planned.key, planned.call)


@user_traceback
def plan(operation: Operation, **arguments: Any) -> Prepared:
    """Prepare a call of an operation: `plan(matmul, a=a, b=b, bias=bias, out=d)`, then `call(a, b, bias, d)`.

    The call takes the arrays in the order in which they are named here; all other arguments stay as they are. `out` is
    required, and no array may be one that the operation would copy.
    """
    if not is_array(arguments.get("out")):
        raise Diag.BAD_PLAN.error(count=1, what="a prepared call writes into `out`, which is missing")
    arguments["out"] = arguments.pop("out")
    device, apart = _gpu_of(arguments), _apart(arguments)
    made = bound(operation, arguments, device)
    if made.copied:
        rule = "its strides are not TMA-compatible, or the kernel does not read it: make it contiguous, or leave it out"
        notes = [f"`{name}`: {rule}" for name in made.copied]
        raise Diag.BAD_PLAN.error(notes=notes[1:], count=len(notes), what=notes[0])
    return Prepared(made.launch, tuple(made.arrays.values()), device=device, apart=apart)


def _apart(arguments: Mapping[str, Any]) -> tuple[Apart, ...]:
    """The pairs of arrays that must not overlap: a result and another, unless an epilogue input is the very result."""
    arrays = tuple(leaves(arguments))
    pairs: list[Apart] = []
    for written, (result, out) in enumerate(arrays):
        if result.partition(".")[0] not in _WRITTEN:
            continue
        for read, (path, array) in enumerate(arrays):
            argument = path.partition(".")[0]
            if read == written or (argument in _WRITTEN and read > written):
                continue
            in_place = argument in _EPILOGUE_INPUTS and result == "out" and arguments.get("store") is None
            if clash(out, array, in_place=in_place):
                what = f"`{result}` overlaps `{path}`, which a single launch cannot handle"
                raise Diag.BAD_PLAN.error(count=1, what=what)
            pairs.append(Apart(written, read, may_be_one=in_place and have_same_layout(out, array)))
    return tuple(pairs)


@user_traceback
def plan_matmul(a: Any, b: Any, **options: Unpack[GemmOptions]) -> Prepared:
    """Prepare a `matmul`, to be called with arrays like these: a, b, then those of `options` in order, then `out`.

    `out` is required.
    """
    return plan(matmul, a=a, b=b, **options)


def _gpu_of(arguments: Mapping[str, Any]) -> Device:
    buffers = {name: buffer_of(value) for name, value in leaves(arguments)}
    places = {name: buffer.device for name, buffer in buffers.items()}
    if len(set(places.values())) != 1 or not buffers["out"].is_on_gpu:
        notes = [f"`{name}` is on {place}" for name, place in places.items()]
        raise Diag.BAD_PLAN.error(notes=notes, count=1, what="the arrays are not all on one GPU")
    return device_of(buffers["out"].device, buffers["out"].address)
