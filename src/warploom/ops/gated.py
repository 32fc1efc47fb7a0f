"""`gated_linear`: two products of one matrix, whose elements meet in pairs before anything is stored (SwiGLU)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from warploom.ops.arrays import PRODUCT_TYPES, is_array
from warploom.ops.dense import flattened
from warploom.ops.faults import Faults
from warploom.ops.following import Options
from warploom.ops.plan import Plan, operation
from warploom.ops.product import planned
from warploom.ops.request import Product
from warploom.structured.config import MatmulConfig
from warploom.structured.config.hopper import HopperConfig


@operation
def gated_linear(
    x: Any,
    w_gate: Any,
    w_up: Any,
    *,
    pair: str | Callable[..., Any] = "swiglu",
    gate_bias: Any = None,
    up_bias: Any = None,
    residual: Any = None,
    beta: float = 1.0,
    alpha: float = 1.0,
    epilogue: Callable[..., Any] | None = None,
    operands: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    out: Any = None,
    out_dtype: Any = None,
    config: MatmulConfig | HopperConfig | None = None,
    target: str | None = None,
) -> Plan:
    """epilogue(pair(gate, up)) + beta·residual, where gate is alpha·x·w_gateᵀ + gate_bias, and up the same of `up`.

    `pair` is swiglu (silu(gate)·up), geglu, geglu_tanh, reglu, glu, or any function of two values. Both weights are
    (n, k), of any strides: the halves of one matrix as `w[:n]` and `w[n:]`, or its rows in turn as `w[0::2]` and
    `w[1::2]`. `outputs` may keep `gate` and `up`. All else is as in `linear`.
    """
    faults = Faults("gated_linear")
    options = Options(
        bias=gate_bias, up_bias=up_bias, residual=residual, beta=beta, alpha=alpha, pair=pair, epilogue=epilogue,
        operands=operands, outputs=outputs, out=out, out_dtype=out_dtype, config=config, target=target,
    )  # fmt: skip
    return planned(_paired(x, w_gate, w_up, faults), options, faults)


def _paired(x: Any, w_gate: Any, w_up: Any, faults: Faults) -> Product | None:
    """The product of the first of the pair, with the second beside it."""
    product = flattened(x, w_gate, ("x", "w_gate"), faults)
    if not is_array("w_up", w_up, faults, types=PRODUCT_TYPES, axes=range(2, 3)) or product is None:
        return None
    if (w_up.shape, w_up.dtype) != (w_gate.shape, w_gate.dtype):
        faults.add("w_up", w_up, f"it must be as `w_gate` is, {w_gate.dtype} {w_gate.shape}")
        return None
    return replace(product, up=np.asarray(w_up))
