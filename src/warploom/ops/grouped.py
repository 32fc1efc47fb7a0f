"""`grouped_matmul`: rows in groups, each group with a matrix of its own; one kernel for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from warploom.ops.planning.arrays import PRODUCT_TYPES, is_array
from warploom.ops.planning.epilogue import Options
from warploom.ops.planning.epilogue_inputs import Result
from warploom.ops.planning.gemm import planned
from warploom.ops.planning.operation import Plan, operation
from warploom.ops.planning.request import Product
from warploom.ops.planning.violations import Faults
from warploom.structured.config import MatmulConfig
from warploom.structured.config.sm90 import HopperConfig

_INTEGERS = ("int32", "int64")


@operation
def grouped_matmul(
    a: Any,
    b: Any,
    ends: Any,
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
    """Rows of a (m, k) times the matrix b[g] (k, n) of their group, with all that `matmul` has behind it.

    Group g has rows ends[g - 1] to ends[g]; `ends` are integers that do not fall. Rows behind the last group are zero
    in a new result, and left alone in `out` and `outputs`.
    """
    faults = Faults("grouped_matmul")
    options = Options(
        bias=bias, residual=residual, beta=beta, alpha=alpha, activation=activation, epilogue=epilogue, store=store,
        operands=operands, outputs=outputs, out=out, out_dtype=out_dtype, config=config, target=target,
    )  # fmt: skip
    return planned(in_groups(a, b, ends, "b", faults), options, faults)


@operation
def padded_weights(
    a: Any, d: Any, starts: Any, *, alpha: float = 1.0, out: Any = None, target: str | None = None
) -> Plan:
    """For each group, alpha times the transpose of its rows of a (p, k), times its rows of d (p, n).

    A group has the rows of the K tiles `starts[g]` to `starts[g + 1]`; what is not its own is zero there.
    """
    result = Result((len(starts) - 1, a.shape[1], d.shape[1]), 1, 1)
    product = Product(a.mT, d.mT, result, extra={"starts": starts})
    return planned(product, Options(alpha=alpha, out=out, target=target), Faults("padded_weights"))


def in_groups(a: Any, b: Any, ends: Any, called: str, faults: Faults) -> Product | None:
    """Rows of a times the matrices b of their groups, where b is called so by the caller; None if that cannot be."""
    fine = [
        is_array("a", a, faults, types=PRODUCT_TYPES, axes=range(2, 3)),
        is_array(called, b, faults, types=PRODUCT_TYPES, axes=range(3, 4)),
        is_array("ends", ends, faults, types=_INTEGERS, axes=range(1, 2)),
    ]
    if not all(fine):
        return None
    found = len(faults)
    if a.dtype != b.dtype:
        faults.add(called, b, f"its elements must be those of `a`, {a.dtype}")
    if b.shape[1] != a.shape[1]:
        what = f"its matrices have {b.shape[1]} rows; `a`, {a.dtype} {a.shape}, has {a.shape[1]} columns"
        faults.add(called, b, what)
    if ends.shape != b.shape[:1]:
        faults.add("ends", ends, f"`{called}` has {b.shape[0]} matrices, one for each group")
    steps = np.diff(ends, prepend=0, append=a.shape[0])
    if (steps < 0).any():
        where = int(np.argmax(steps < 0))
        what = f"falls at {where}" if where < len(ends) else f"ends behind the {a.shape[0]} rows of `a`"
        faults.add("ends", ends, f"{ends[max(where - 1, 0) : where + 1].tolist()} {what}")
    if len(faults) > found:
        return None
    extra = {"ends": np.ascontiguousarray(ends, np.int32)}
    result = Result((a.shape[0], b.shape[2]), 0, 1)
    return Product(a, b.mT, result, "grouped", extra=extra, groups=max(len(ends), 1))
