"""Two products of one matrix, whose elements meet in pairs before anything is stored (SwiGLU); in groups too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from warploom.ops.dense import flattened
from warploom.ops.grouped import in_groups
from warploom.ops.planning.arrays import PRODUCT_TYPES, Array, is_array
from warploom.ops.planning.epilogue import Options, check_pair
from warploom.ops.planning.gemm import planned
from warploom.ops.planning.operation import Plan, operation
from warploom.ops.planning.violations import Faults
from warploom.structured.config import MatmulConfig
from warploom.structured.config.sm90 import HopperConfig


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
    check_pair(pair, faults)
    options = Options(
        bias=gate_bias, up_bias=up_bias, residual=residual, beta=beta, alpha=alpha, pair=pair, epilogue=epilogue,
        operands=operands, outputs=outputs, out=out, out_dtype=out_dtype, config=config, target=target,
    )  # fmt: skip
    product = flattened(x, w_gate, ("x", "w_gate"), faults)
    up = _second({"w_gate": w_gate, "w_up": w_up}, 2, faults)
    return planned(None if product is None or up is None else replace(product, up=up), options, faults)


@operation
def gated_grouped_matmul(
    a: Any,
    b_gate: Any,
    b_up: Any,
    ends: Any,
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
    """As `gated_linear`, for rows of a (m, k) in groups: gate is a times b_gate[g] (k, n) of a row's group, up b_up[g].

    Groups are as in `grouped_matmul`. Both weights are (groups, k, n), of any strides: the halves of one array as
    `b[..., :n]` and `b[..., n:]`, or its columns in turn as `b[..., 0::2]` and `b[..., 1::2]`.
    """
    faults = Faults("gated_grouped_matmul")
    check_pair(pair, faults)
    options = Options(
        bias=gate_bias, up_bias=up_bias, residual=residual, beta=beta, alpha=alpha, pair=pair, epilogue=epilogue,
        operands=operands, outputs=outputs, out=out, out_dtype=out_dtype, config=config, target=target,
    )  # fmt: skip
    product = in_groups(a, b_gate, ends, "b_gate", faults)
    up = _second({"b_gate": b_gate, "b_up": b_up}, 3, faults)
    return planned(None if product is None or up is None else replace(product, up=up.mT), options, faults)


def _second(both: Mapping[str, Any], axes: int, faults: Faults) -> Array | None:
    """The second of two weights, if it is as the first."""
    (first, gate), (second, up) = both.items()
    if not is_array(second, up, faults, types=PRODUCT_TYPES, axes=range(axes, axes + 1)):
        return None
    if isinstance(gate, np.ndarray) and (up.shape, up.dtype) != (gate.shape, gate.dtype):
        faults.add(second, up, f"it must be as `{first}` is, {gate.dtype} {gate.shape}")
        return None
    return np.asarray(up)
