"""`grouped_matmul`: rows in groups, each group with a B matrix of its own; one kernel for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from warploom.ops.operation import operation
from warploom.ops.planning.arrays import GEMM_TYPES, ArrayDescriptor, Violations, check_array, dtype_name
from warploom.ops.signatures import GemmOptions

if TYPE_CHECKING:
    from warploom.ops.operation import Operation
    from warploom.ops.signatures import GroupedMatmul

_INTEGERS = ("int32", "int64")


def _grouped_matmul(a: Any, b: Any, ends: Any, violations: Violations) -> dict[str, Any] | None:
    """Rows of a (m, k) times the matrix b[g] (k, n) of their group, with every keyword of `matmul`.

    Group g has rows ends[g - 1] to ends[g]; `ends` are non-decreasing integers. Rows after the last group are zero in a
    new result, and are not written in `out` and `outputs`.
    """
    return in_groups(a, b, ends, "b", violations)


def _padded_weights(a: Any, d: Any, starts: Any, violations: Violations) -> dict[str, Any] | None:
    """For each group, alpha times the transpose of its rows of a (p, k), times its rows of d (p, n).

    Group g has the rows of the K tiles `starts[g]` to `starts[g + 1]`; rows there that belong to no group are zero.
    """
    shape = (starts.shape[0] - 1, a.shape[1], d.shape[1])
    return {"a": a.mT, "b": d.mT, "shape": shape, "batches": 1, "extra": {"starts": starts}}


grouped_matmul: GroupedMatmul = operation(_grouped_matmul, GemmOptions)
padded_weights: Operation = operation(_padded_weights, GemmOptions)


def in_groups(a: Any, b: Any, ends: Any, name: str, violations: Violations) -> dict[str, Any] | None:
    """The operands of a grouped GEMM, where `name` is what the caller calls b; None if they are invalid."""
    arrays = (("a", a, GEMM_TYPES, 2), (name, b, GEMM_TYPES, 3), ("ends", ends, _INTEGERS, 1))
    fine = [
        check_array(argument, value, violations, types=types, ranks=range(rank, rank + 1))
        for argument, value, types, rank in arrays
    ]
    found = len(violations)
    if fine[0] and fine[1] and dtype_name(a) != dtype_name(b):
        violations.add(name, b, f"must have the element type of `a`, {a.dtype}")
    if fine[0] and fine[1] and b.shape[1] != a.shape[1]:
        rule = f"must be (groups, k, n), where k is the last axis of `a`, {a.dtype} {tuple(a.shape)}"
        violations.add(name, b, rule)
    if fine[1] and fine[2] and ends.shape[0] != b.shape[0]:
        violations.add("ends", ends, f"must have one end for each matrix of `{name}`, {tuple(b.shape)}")
    if fine[0] and fine[2] and isinstance(ends, np.ndarray):
        _check_ends(ends, a, violations)
    if len(violations) > found or not all(fine):
        return None
    operands = {"a": a, "b": b.mT, "extra": {"ends": _as_read(ends)}, "groups": max(ends.shape[0], 1)}
    return {**operands, "kind": "grouped", "shape": (a.shape[0], b.shape[2])}


def _as_read(ends: Any) -> Any:
    """Group ends as kernels read them: contiguous int32."""
    if isinstance(ends, np.ndarray):
        return np.ascontiguousarray(ends, np.int32)
    return ends.as_contiguous(np.int32) if isinstance(ends, ArrayDescriptor) else ends


def _check_ends(ends: Any, a: Any, violations: Violations) -> None:
    """Check the values of `ends`, which are at hand on the host only."""
    steps = np.diff(ends, prepend=0, append=a.shape[0])
    if (steps < 0).any():
        where = int(np.argmax(steps < 0))
        shown = ends[max(where - 1, 0) : where + 1].tolist()
        rule = (
            f"must not decrease, as {shown} at {where} does"
            if where < len(ends)
            else (f"must not exceed the {a.shape[0]} rows of `a`, as {shown} does")
        )
        violations.add("ends", ends, rule)
