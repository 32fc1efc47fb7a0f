"""Gated GEMMs (SwiGLU and others): two GEMMs of one A, combined element by element in the epilogue; grouped too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warploom.ops.dense import flattened
from warploom.ops.grouped import in_groups
from warploom.ops.operation import operation
from warploom.ops.planning.arrays import GEMM_TYPES, Violations, check_array, is_planned, is_tensor
from warploom.ops.scaled import scaled_groups
from warploom.ops.signatures import GatedGroupedBlockScaledOptions, GatedGroupedOptions, GatedOptions

if TYPE_CHECKING:
    from warploom.ops.signatures import GatedGroupedBlockScaledMatmul, GatedGroupedMatmul, GatedLinear


def _gated_linear(x: Any, w_gate: Any, w_up: Any, violations: Violations) -> dict[str, Any] | None:
    """epilogue(pair(gate, up)) + beta·residual, where gate is alpha·x·w_gateᵀ + gate_bias, and up likewise.

    `pair` is swiglu (silu(gate)·up), geglu, geglu_tanh, reglu, glu, or any function of two values. Both weights are
    (n, k), of any strides: the halves of one matrix as `w[:n]` and `w[n:]`, or its alternating rows as `w[0::2]` and
    `w[1::2]`. `outputs` may keep `gate` and `up`. Everything else is as in `linear`.
    """
    formed = flattened(x, w_gate, ("x", "w_gate"), violations)
    fits = _check_second({"w_gate": w_gate, "w_up": w_up}, 2, violations)
    return {**formed, "up": w_up} if formed is not None and fits else None


def _gated_grouped_matmul(
    a: Any,
    b_gate: Any,
    b_up: Any,
    ends: Any,
    violations: Violations,
    *,
    expert_ids: Any = None,
    expert_scales: Any = None,
) -> dict[str, Any] | None:
    """`gated_linear` for rows of a (m, k) in groups: gate is a times b_gate[g] (k, n) of a row's group, up b_up[g].

    Groups, experts and biases are as in `grouped_matmul`. Both weights are (groups, k, n), of any strides: the halves
    of one array as `b[..., :n]` and `b[..., n:]`, or its alternating columns as `b[..., 0::2]` and `b[..., 1::2]`.
    """
    formed = in_groups(a, b_gate, ends, "b_gate", violations, expert_ids, expert_scales)
    fits = _check_second({"b_gate": b_gate, "b_up": b_up}, 3, violations)
    return {**formed, "up": b_up.mT} if formed is not None and fits else None


def _gated_grouped_block_scaled_matmul(
    a: Any,
    b_gate: Any,
    b_up: Any,
    a_scale: Any,
    b_gate_scale: Any,
    b_up_scale: Any,
    ends: Any,
    violations: Violations,
    *,
    expert_ids: Any = None,
    expert_scales: Any = None,
) -> dict[str, Any] | None:
    """`gated_grouped_matmul` in the formats of `grouped_block_scaled_matmul`: gate is a times b_gate[g]ᵀ, up b_up[g]ᵀ.

    Both weights are (experts, n, k), and both have scales (experts, n, k/run). With `quantise_to`, `mxfp8` or `nvfp4`,
    the same kernel quantises the result, which is a `Quantised` for the next grouped GEMM: values, those of `nvfp4`
    packed, and scales interleaved by groups. `quantise_scale` is the scale of the whole tensor, for `nvfp4`. Everything
    else is as in those two.
    """
    weights, scales = {"b_gate": b_gate, "b_up": b_up}, {"b_gate_scale": b_gate_scale, "b_up_scale": b_up_scale}
    return scaled_groups(a, weights, a_scale, scales, ends, violations, expert_ids, expert_scales)


gated_linear: GatedLinear = operation(_gated_linear, GatedOptions)
gated_grouped_matmul: GatedGroupedMatmul = operation(_gated_grouped_matmul, GatedGroupedOptions)
gated_grouped_block_scaled_matmul: GatedGroupedBlockScaledMatmul = operation(
    _gated_grouped_block_scaled_matmul, GatedGroupedBlockScaledOptions
)


def _check_second(both: dict[str, Any], rank: int, violations: Violations) -> bool:
    """Check that the second of two weights is like the first."""
    (first, gate), (second, up) = both.items()
    ranks = range(rank, rank + 1)
    if not check_array(second, up, violations, types=GEMM_TYPES, ranks=ranks):
        return False
    is_known = is_planned(gate) or is_tensor(gate)
    if is_known and (tuple(up.shape) != tuple(gate.shape) or up.dtype != gate.dtype):
        violations.add(second, up, f"must be like `{first}`, {gate.dtype} {tuple(gate.shape)}")
        return False
    return True
