"""`grouped_matmul`: rows in groups, each group with a B matrix of its own; one kernel for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from warploom.kernels.call import major_of
from warploom.ops.operation import operation
from warploom.ops.planning.arrays import GEMM_TYPES, ArrayDescriptor, Violations, check_array, dtype_name
from warploom.ops.signatures import GemmOptions, GroupedOptions

if TYPE_CHECKING:
    from warploom.ops.operation import Operation
    from warploom.ops.signatures import GroupedMatmul

_INTEGERS = ("int32", "int64")
_VECTOR = range(1, 2)


def _grouped_matmul(
    a: Any, b: Any, ends: Any, violations: Violations, *, expert_ids: Any = None, expert_scales: Any = None
) -> dict[str, Any] | None:
    """Rows of a (m, k) times the matrix b[g] (k, n) of their group, with every keyword of `matmul`.

    Group g has rows ends[g - 1] to ends[g]; `ends` are non-decreasing integers. With `expert_ids`, (groups,), group g
    has the matrix b[expert_ids[g]]: ids may repeat and leave matrices out, and a group with the id -1 is not computed.
    `expert_scales`, (experts,) of float32, multiply the accumulators. `bias` is a row (n,), or one for each expert
    (experts, n). Rows that are not computed, and rows after the last group, are zero in a new result, and are not
    written in `out` and `outputs`. `b` may be a list of arrays (k, n), which are allocated separately: the kernel makes
    a tensor map for each group.
    """
    if isinstance(b, list | tuple | Mapping):  # planning has arrays in mappings, by their paths
        weights = [*b.values()] if isinstance(b, Mapping) else [*b]
        return _separate_groups(a, weights, ends, violations, expert_ids, expert_scales)
    return in_groups(a, b, ends, "b", violations, expert_ids, expert_scales)


def _padded_weights(a: Any, d: Any, starts: Any, violations: Violations) -> dict[str, Any] | None:
    """For each group, alpha times the transpose of its rows of a (p, k), times its rows of d (p, n).

    Group g has the rows of the K tiles `starts[g]` to `starts[g + 1]`; rows there that belong to no group are zero.
    """
    shape = (starts.shape[0] - 1, a.shape[1], d.shape[1])
    return {"a": a.mT, "b": d.mT, "shape": shape, "batches": 1, "extra": {"starts": starts}}


grouped_matmul: GroupedMatmul = operation(_grouped_matmul, GroupedOptions)
padded_weights: Operation = operation(_padded_weights, GemmOptions)


def in_groups(
    a: Any, b: Any, ends: Any, name: str, violations: Violations, expert_ids: Any = None, expert_scales: Any = None
) -> dict[str, Any] | None:
    """The operands of a grouped GEMM, where `name` is what the caller calls b; None if they are invalid."""
    arrays = (("a", a, 2), (name, b, 3))
    fine = [
        check_array(argument, value, violations, types=GEMM_TYPES, ranks=range(rank, rank + 1))
        for argument, value, rank in arrays
    ]
    found = len(violations)
    if all(fine) and dtype_name(a) != dtype_name(b):
        violations.add(name, b, f"must have the element type of `a`, {a.dtype}")
    if all(fine) and b.shape[1] != a.shape[1]:
        rule = f"must be (groups, k, n), where k is the last axis of `a`, {a.dtype} {tuple(a.shape)}"
        violations.add(name, b, rule)
    groups = groups_of(
        a if fine[0] else None, b if fine[1] else None, ends, name, violations, expert_ids, expert_scales
    )
    if len(violations) > found or not all(fine) or groups is None:
        return None
    return {"a": a, "b": b.mT, "kind": "grouped", "shape": (a.shape[0], b.shape[2]), **groups}


def _separate_groups(
    a: Any, weights: Sequence[Any], ends: Any, violations: Violations, expert_ids: Any, expert_scales: Any
) -> dict[str, Any] | None:
    """The operands of a grouped GEMM whose matrices are allocated separately, with the same shape and strides."""
    found = len(violations)
    if not weights:
        violations.add("b", weights, "must have at least one matrix")
    for number, each in enumerate(weights):
        fine = check_array(f"b[{number}]", each, violations, types=GEMM_TYPES, ranks=range(2, 3))
        if not fine or not isinstance(each, np.ndarray | ArrayDescriptor):
            if fine:
                violations.add(f"b[{number}]", each, "must be a NumPy array or a PyTorch tensor")
        elif (each.shape, each.dtype, each.strides) != (weights[0].shape, weights[0].dtype, weights[0].strides):
            violations.add(f"b[{number}]", each, "must have the shape, type and strides of `b[0]`")
        elif major_of(each.mT) is None:
            violations.add(f"b[{number}]", each, "must be aligned to 16 bytes, with rows a multiple of 16 bytes apart")
    if len(violations) > found:
        return None
    first = weights[0]
    shape = (len(weights), *first.shape)
    if isinstance(first, ArrayDescriptor):
        repeated: Any = first.broadcast_to(shape)
    else:
        repeated = np.lib.stride_tricks.as_strided(first, shape, (0, *first.strides))
    formed = in_groups(a, repeated, ends, "b", violations, expert_ids, expert_scales)
    if formed is not None:
        formed["extra"]["weights"] = {f"w{number}": each.mT for number, each in enumerate(weights)}
    return formed


def groups_of(
    a: Any, b: Any, ends: Any, name: str, violations: Violations, expert_ids: Any = None, expert_scales: Any = None
) -> dict[str, Any] | None:
    """The fields of a request that describe its groups; `a` and `b` are None where they are invalid.

    Rows are along the first axis of A, and B has a matrix for each expert.
    """
    found = len(violations)
    fine = check_array("ends", ends, violations, types=_INTEGERS, ranks=_VECTOR)
    has_ids = expert_ids is not None and check_array(
        "expert_ids", expert_ids, violations, types=_INTEGERS, ranks=_VECTOR
    )
    if fine and expert_ids is None and b is not None and ends.shape[0] != b.shape[0]:
        rule = f"must have one end for each matrix of `{name}`, {tuple(b.shape)}, unless there are `expert_ids`"
        violations.add("ends", ends, rule)
    if fine and has_ids and expert_ids.shape != ends.shape:
        violations.add("expert_ids", expert_ids, f"must have one id for each of the {ends.shape[0]} groups")
    if has_ids and b is not None and isinstance(expert_ids, np.ndarray):
        _check_ids(expert_ids, b.shape[0], name, violations)
    has_scales = expert_scales is not None and check_array(
        "expert_scales", expert_scales, violations, types=("float32",), ranks=_VECTOR
    )
    if has_scales and b is not None and expert_scales.shape[0] != b.shape[0]:
        rule = f"must have one scale for each matrix of `{name}`, {tuple(b.shape)}"
        violations.add("expert_scales", expert_scales, rule)
    if fine and a is not None and isinstance(ends, np.ndarray):
        _check_ends(ends, a, violations)
    if len(violations) > found:
        return None
    given = {"ends": (ends, np.int32), "experts": (expert_ids, np.int32), "expert_scales": (expert_scales, np.float32)}
    extra = {each: _as_read(value, dtype) for each, (value, dtype) in given.items() if value is not None}
    return {"extra": extra, "groups": max(ends.shape[0], 1)}


def _as_read(array: Any, dtype: Any) -> Any:
    """An array as kernels read it: contiguous, of a dtype."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array, dtype)
    return array.as_contiguous(dtype) if isinstance(array, ArrayDescriptor) else array


def _check_ids(ids: Any, experts: int, name: str, violations: Violations) -> None:
    """Check the values of `expert_ids`, which are at hand on the host only."""
    wrong = (ids < -1) | (ids >= experts)
    if wrong.any():
        where = int(np.argmax(wrong))
        rule = f"must be indices of the {experts} matrices of `{name}`, or -1, unlike {int(ids[where])} at {where}"
        violations.add("expert_ids", ids, rule)


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
