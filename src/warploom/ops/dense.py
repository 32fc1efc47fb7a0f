"""`matmul` and `linear`: GEMMs with a fused epilogue, in one kernel."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from warploom.ops.operation import operation
from warploom.ops.planning.arrays import (
    FP8_TYPES,
    GEMM_TYPES,
    Shape,
    Violations,
    broadcast_to,
    check_array,
    dtype_name,
)
from warploom.ops.signatures import DenseOptions

if TYPE_CHECKING:
    from warploom.ops.signatures import Linear, Matmul

_ANY_RANK = range(1, 65)


def _matmul(a: Any, b: Any, violations: Violations, *, precision: str = "tf32") -> dict[str, Any] | None:
    """`a @ b` as in NumPy, then epilogue(activation(alpha·acc + bias)) + beta·residual, in float32, rounded once.

    Operands may have any strides, broadcasting batches, or one axis only. Bias, residual and `operands` broadcast
    against the result: (n,) is a row, (m, 1) a column. `epilogue(acc, at, **operands)` maps one value to another; `at`
    has `row`, `column` and `batch`. `outputs` are arrays like the result that are filled as well: `pre_activation` with
    the input of the activation, and others by name with what `epilogue` returns, if it returns a mapping of `out` and
    those. `store(value, at, out, **operands)` stores by itself. With beta = 0 the residual is not read. `activation` is
    one of relu, gelu (by erf), gelu_tanh, silu, tanh, sigmoid and squared_relu. float32 is multiplied as tf32; with
    `precision="tf32x3"` as three products of large and small tf32 parts, which has the precision of float32. NumPy
    arrays and CPU tensors run on the emulator.
    """
    if not check_operands({"a": a, "b": b}, (_ANY_RANK, _ANY_RANK), violations):
        return None
    left = a if a.ndim > 1 else a.reshape(1, a.shape[0])
    right = b if b.ndim > 1 else b.reshape(b.shape[0], 1)
    fits = left.shape[-1] == right.shape[-2]
    if not fits:
        rule = f"must have {left.shape[-1]} rows, the columns of `a`, {a.dtype} {tuple(a.shape)}"
        violations.add("b", b, rule)
    batch = broadcast_batches(left.shape[:-2], right.shape[:-2])
    if batch is None:
        violations.add("b", b, f"must have batches that broadcast with those of `a`, {a.dtype} {tuple(a.shape)}")
    if not fits or batch is None:
        return None
    shape = (*batch, *(left.shape[-2:-1] if a.ndim > 1 else ()), *(right.shape[-1:] if b.ndim > 1 else ()))
    operands = {"a": batched(left, batch), "b": batched(right.mT, batch), **precision_fields(precision, a, violations)}
    return {**operands, "shape": shape, "batches": len(batch), "row_axes": int(a.ndim > 1)}


def _linear(x: Any, w: Any, violations: Violations, *, precision: str = "tf32") -> dict[str, Any] | None:
    """`x @ w.T` with every keyword of `matmul`; the kernel, and `at.row`, count the leading axes of x as one."""
    return with_rows(x, w, ("x", "w"), violations, precision=precision)


def with_rows(
    x: Any, w: Any, names: tuple[str, str], violations: Violations, *, precision: str = "tf32"
) -> dict[str, Any] | None:
    """The operands of `x @ w.T`, with the leading axes of x as rows, and the settings of a GEMM."""
    formed = flattened(x, w, names, violations)
    fields = precision_fields(precision, x, violations)
    return formed and {**formed, **fields}


matmul: Matmul = operation(_matmul, DenseOptions)
linear: Linear = operation(_linear, DenseOptions)


def precision_fields(precision: Any, operand: Any, violations: Violations) -> dict[str, Any]:
    """The configuration fields of a precision, which is for float32 operands."""
    if precision == "tf32":
        return {}
    if precision != "tf32x3":
        violations.add("precision", precision, "must be 'tf32' or 'tf32x3'")
    elif dtype_name(operand) != "float32":
        violations.add("precision", precision, "must be 'tf32' unless the operands are float32")
    return {"fields": {"precision": "tf32x3", "a_type": "f32", "b_type": "f32"}}


def check_operands(operands: dict[str, Any], ranks: tuple[range, range], violations: Violations) -> bool:
    """Check that A and B are arrays of types that can be multiplied with each other."""
    (first, a), (second, b) = operands.items()
    fine = [
        check_array(name, each, violations, types=GEMM_TYPES, ranks=allowed)
        for (name, each), allowed in zip(operands.items(), ranks, strict=True)
    ]
    if not all(fine):
        return False
    types = dtype_name(a), dtype_name(b)
    if types[0] != types[1] and not (types[0] in FP8_TYPES and types[1] in FP8_TYPES):
        violations.add(second, b, f"must have the element type of `{first}`, {a.dtype}")
        return False
    return True


def broadcast_batches(one: Shape, other: Shape) -> Shape | None:
    """The shape that two batch shapes broadcast to; None where they do not."""
    count = max(len(one), len(other))
    pairs = zip((1,) * (count - len(one)) + tuple(one), (1,) * (count - len(other)) + tuple(other), strict=True)
    found: list[int] = []
    for mine, theirs in pairs:
        if mine != theirs and mine != 1 and theirs != 1:  # noqa: PLR1714
            return None
        found.append(theirs if mine == 1 else mine)
    return tuple(found)


def batched(matrix: Any, batch: Shape, rank: int = 2) -> Any:
    """A matrix, or an array of another rank, for every batch, with one batch axis."""
    core = tuple(matrix.shape[-rank:])
    if tuple(matrix.shape[:-rank]) != batch:
        matrix = broadcast_to(matrix, (*batch, *core))
    return matrix.reshape(prod(batch), *core) if len(batch) > 1 and 0 not in matrix.shape else matrix


def flattened(x: Any, w: Any, names: tuple[str, str], violations: Violations) -> dict[str, Any] | None:
    """The operands of `x @ w.T`, with the leading axes of x as rows."""
    if not check_operands(dict(zip(names, (x, w), strict=True)), (_ANY_RANK, range(2, 3)), violations):
        return None
    if w.ndim != 2 or x.ndim < 1 or x.shape[-1] != w.shape[-1]:
        rule = f"must be (n, k), where k is the last axis of `{names[0]}`, {x.dtype} {tuple(x.shape)}"
        violations.add(names[1], w, rule)
        return None
    rows = x if x.ndim == 2 else x.reshape(prod(x.shape[:-1]), x.shape[-1])
    return {"a": rows, "b": w, "shape": (*x.shape[:-1], w.shape[0]), "row_axes": x.ndim - 1}
