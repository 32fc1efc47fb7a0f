"""`matmul` and `linear`: products of matrices with whatever follows them, in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from warploom.ops.planning.arrays import NARROW, PRODUCT_TYPES, Array, is_array
from warploom.ops.planning.epilogue import Options
from warploom.ops.planning.epilogue_inputs import Result
from warploom.ops.planning.gemm import planned
from warploom.ops.planning.operation import Plan, operation
from warploom.ops.planning.request import Product
from warploom.ops.planning.violations import Faults
from warploom.structured.config import MatmulConfig
from warploom.structured.config.sm90 import HopperConfig

_ANY_RANK = range(1, 65)


@operation
def matmul(
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    residual: Any = None,
    beta: float = 1.0,
    alpha: float = 1.0,
    activation: str | None = None,
    epilogue: Callable[..., Any] | None = None,
    store: Callable[..., Any] | None = None,
    operands: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    out: Any = None,
    out_dtype: Any = None,
    config: MatmulConfig | HopperConfig | None = None,
    target: str | None = None,
) -> Plan:
    """`a @ b` as in NumPy, then epilogue(activation(alpha·acc + bias)) + beta·residual, in float32, rounded once.

    Factors may have any strides, broadcasting batches, or one axis only. Bias, residual and operands broadcast against
    the result: (n,) is a row, (m, 1) a column. `epilogue(acc, at, **operands)` gives one value for another; `at` has
    `row`, `column` and `batch`. `outputs` are arrays like the result that are filled too: `pre_activation` with what
    goes into the activation, and others by name with what `epilogue` gives, if it gives a mapping of `out` and those.
    `store(value, at, out, **operands)` stores by itself. With beta = 0 the residual is not read. `activation` is one of
    relu, gelu (by erf), gelu_tanh, silu, tanh, sigmoid and squared_relu. float32 is multiplied as tf32. NumPy arrays
    run on the machine.
    """
    faults = Faults("matmul")
    options = Options(
        bias=bias, residual=residual, beta=beta, alpha=alpha, activation=activation, epilogue=epilogue, store=store,
        operands=operands, outputs=outputs, out=out, out_dtype=out_dtype, config=config, target=target,
    )  # fmt: skip
    return planned(_product(a, b, faults), options, faults)


@operation
def linear(
    x: Any,
    w: Any,
    *,
    bias: Any = None,
    residual: Any = None,
    beta: float = 1.0,
    alpha: float = 1.0,
    activation: str | None = None,
    epilogue: Callable[..., Any] | None = None,
    store: Callable[..., Any] | None = None,
    operands: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    out: Any = None,
    out_dtype: Any = None,
    config: MatmulConfig | HopperConfig | None = None,
    target: str | None = None,
) -> Plan:
    """`x @ w.T` with all that `matmul` has; to the kernel, and to `at.row`, the leading axes of x are one."""
    faults = Faults("linear")
    options = Options(
        bias=bias, residual=residual, beta=beta, alpha=alpha, activation=activation, epilogue=epilogue, store=store,
        operands=operands, outputs=outputs, out=out, out_dtype=out_dtype, config=config, target=target,
    )  # fmt: skip
    return planned(flattened(x, w, ("x", "w"), faults), options, faults)


def _are_factors(first: Any, second: Any, names: tuple[str, str], axes: tuple[range, range], faults: Faults) -> bool:
    """Whether both are arrays whose elements multiply."""
    fine = [
        is_array(name, value, faults, types=PRODUCT_TYPES, axes=each)
        for name, value, each in zip(names, (first, second), axes, strict=True)
    ]
    if all(fine) and first.dtype != second.dtype and not {first.dtype.name, second.dtype.name} <= set(NARROW):
        faults.add(names[1], second, f"its elements must be those of `{names[0]}`, {first.dtype}")
        return False
    return all(fine)


def _product(a: Any, b: Any, faults: Faults) -> Product | None:
    """The factors of `a @ b`: vectors as matrices, batches broadcast."""
    if not _are_factors(a, b, ("a", "b"), (_ANY_RANK, _ANY_RANK), faults):
        return None
    a, b = np.asarray(a), np.asarray(b)
    left, right = (a if a.ndim > 1 else a[None]), (b if b.ndim > 1 else b[:, None])
    fine = left.shape[-1] == right.shape[-2]
    if not fine:
        faults.add("b", b, f"it has {right.shape[-2]} rows; `a`, {a.dtype} {a.shape}, has {left.shape[-1]} columns")
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        faults.add("b", b, f"its batches do not broadcast with those of `a`, {a.dtype} {a.shape}")
        return None
    rows, columns = left.shape[-2:-1] * (a.ndim > 1), right.shape[-1:] * (b.ndim > 1)
    result = Result((*batch, *rows, *columns), len(batch), len(rows))
    return Product(_batched(left, batch), _batched(right.mT, batch), result) if fine else None


def _batched(matrix: Array, batch: tuple[int, ...]) -> Array:
    """A matrix for every batch, in one axis."""
    core = matrix.shape[-2:]
    spread = np.broadcast_to(matrix, (*batch, *core))
    return spread.reshape(-1, *core) if batch and 0 not in spread.shape else spread


def flattened(x: Any, w: Any, names: tuple[str, str], faults: Faults) -> Product | None:
    """The factors of `x @ w.T`, with the leading axes of x as rows."""
    if not _are_factors(x, w, names, (_ANY_RANK, range(2, 3)), faults):
        return None
    if x.shape[-1] != w.shape[-1]:
        faults.add(names[1], w, f"it has {w.shape[-1]} columns; `x`, {x.dtype} {x.shape}, has {x.shape[-1]}")
        return None
    result = Result((*x.shape[:-1], w.shape[0]), 0, x.ndim - 1)
    return Product(np.asarray(x).reshape(result.m, x.shape[-1]), np.asarray(w), result)
