"""GEMMs that save values for backward: the input of an activation, or gate and up.

The kernel that computes D stores them as auxiliary outputs; without them the GEMM would be recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warploom.ops.planning.request import Request
from warploom.structured.epilogue.epilogue import GATE, PAIRS, PRE_ACTIVATION, UP
from warploom.torch.gradients import (
    ACTIVATION_GRADIENTS,
    OPERAND_GRADIENTS,
    activation_gradient,
    bias_gradient,
    gemm,
    refuse,
    residual_gradient,
    save_epilogue,
    within_groups,
)
from warploom.torch.op_library import (
    GATED,
    GROUPED,
    LIBRARY,
    OPERANDS,
    extras_by,
    fused_into,
    name_of,
    register_autograd,
    result_of,
)

ACTIVATED: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "squared_relu": lambda x: torch.relu(x).square(),
}
"""The activations as functions of PyTorch."""


class Saving(NamedTuple):
    """An op that saves values for backward: its name, its operands, and the outputs that it saves."""

    op: str
    operands: tuple[str, ...]
    outputs: tuple[str, ...]


OPS = {
    "matmul": Saving("activated_matmul", OPERANDS["matmul"], (PRE_ACTIVATION,)),
    "grouped_matmul": Saving("activated_grouped_matmul", OPERANDS["grouped_matmul"], (PRE_ACTIVATION,)),
    **{operation: Saving(operation, operands, (GATE, UP)) for operation, operands in GATED.items()},
}
"""By operation; of a grouped one, rows after the last group are not saved."""


def _results(operation: str, operands: Sequence[Tensor], out_dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    """D, and the saved outputs, in the type of the operands as PyTorch would save them."""
    saved = (result_of(operation, operands, None) for _ in OPS[operation].outputs)
    return (result_of(operation, operands, out_dtype), *saved)


def _make(operation: str, *given: Any) -> tuple[Tensor, ...]:
    """The implementation of an op: D, and the saved outputs."""
    count = len(OPS[operation].operands)
    operands, (*biases, residual, alpha, beta, activation, out_dtype, extras) = given[:count], given[count:]
    bias, up_bias = biases if operation in GATED else (*biases, None)
    out, *outputs = _results(operation, operands, out_dtype)
    if operation in GROUPED:
        out.zero_()  # not all of it is written
    name = name_of(replace(extras_by(extras), outputs=OPS[operation].outputs))
    fused_into(out, outputs, operation, list(operands), bias, up_bias, residual, [], [], alpha, beta, activation, name)
    return out, *outputs


def _inside(gradient: Tensor, ends: list[Tensor], needed: bool) -> Tensor:
    """A gradient that is summed or differentiated: without rows after the last group, whose values are not saved."""
    return within_groups(gradient, *ends) if ends and (needed or torch.is_grad_enabled()) else gradient


def _setup_activated(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *operands, bias, residual, alpha, beta, ctx.activation, _, extras = inputs
    save_epilogue(ctx, residual, alpha, beta, extras)
    ctx.save_for_backward(*operands, bias, output[1])


def _activated_gradients(
    operation: str, ctx: Any, gradient: Tensor | None, of_before: Tensor | None
) -> tuple[Any, ...]:
    """The saved input is a result like D, so that the gradients have gradients."""
    *operands, bias, before = ctx.saved_tensors
    a, _, *ends = operands
    needs, of_residual = ctx.needs_input_grad, None
    of_bias, of_added = needs[len(operands) : len(operands) + 2]
    refuse(ctx, OPS[operation].operands, a)
    if gradient is not None:
        gradient = _inside(gradient, ends, of_added)
        of_residual = residual_gradient(ctx, gradient, of_added)
    of_before = activation_gradient(ctx.activation, before, gradient, of_before)
    if of_before is None:
        return (None,) * len(needs)
    of_before = _inside(of_before, ends, of_bias)
    of_operands = OPERAND_GRADIENTS[operation](ctx, of_before.to(a.dtype), *operands)
    return (*of_operands, bias_gradient(bias, of_before, of_bias, *ends), of_residual, *(None,) * 5)


def _setup_gated(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, residual, alpha, beta, _, _, extras = inputs
    save_epilogue(ctx, residual, alpha, beta, extras)
    ctx.activation = PAIRS[extras_by(extras).pair]
    ctx.save_for_backward(*tensors, *output[1:])


def _gated_gradients(
    operation: str, ctx: Any, gradient: Tensor | None, of_gate: Tensor | None, of_up: Tensor | None
) -> tuple[Any, ...]:
    *operands, gate_bias, up_bias, gate, up = ctx.saved_tensors
    x, w_gate, w_up, *ends = operands
    needs, of_residual = ctx.needs_input_grad, None
    *of_biases, of_added = needs[len(operands) : len(operands) + 3]
    refuse(ctx, OPS[operation].operands, x)
    if gradient is not None:
        gradient = _inside(gradient, ends, of_added)
        of_residual = residual_gradient(ctx, gradient, of_added)
        gradient = gradient.to(gate.dtype)
        of_gate = _sum(of_gate, ACTIVATION_GRADIENTS[ctx.activation](gradient * up, gate))
        of_up = _sum(of_up, gradient * ACTIVATED[ctx.activation](gate))
    of_x: Tensor | None = None
    of_weights: list[Tensor | None] = [None, None]
    bias_gradients: list[Tensor | None] = [None, None]
    for at, (made, weights, bias) in enumerate(((of_gate, w_gate, gate_bias), (of_up, w_up, up_bias))):
        if made is None:
            continue
        if needs[0]:
            of_x = _of_rows(ctx, made, x, weights, ends, of_x)
        if needs[1 + at]:
            of_weights[at] = _of_weights(ctx, made, x, weights, ends)
        bias_gradients[at] = bias_gradient(bias, _inside(made, ends, of_biases[at]), of_biases[at], *ends)
    return (of_x, *of_weights, *(None for _ in ends), *bias_gradients, of_residual, *(None,) * 5)


def _of_rows(ctx: Any, made: Tensor, x: Tensor, weights: Tensor, ends: list[Tensor], added: Tensor | None) -> Tensor:
    """The gradient of the rows that were multiplied by weights (n, k), or by those (k, n) of their groups."""
    name, turned = ("grouped_matmul", weights.mT) if ends else ("matmul", weights)
    return gemm(name, made, turned, *ends, like=ctx, dtype=x.dtype, residual=added)


def _of_weights(ctx: Any, made: Tensor, x: Tensor, weights: Tensor, ends: list[Tensor]) -> Tensor:
    if not ends:
        return gemm("matmul", made.mT, x, like=ctx, dtype=weights.dtype)
    of_groups: Tensor = torch.ops.warploom.grouped_weights(x, made, *ends, ctx.alpha, ctx.plain)
    return of_groups


def _sum(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one + other


def _define(operation: str) -> None:
    """Define the op of an operation: schema, implementation, shapes and gradient."""
    saving, is_gated = OPS[operation], operation in GATED
    tensors = ", ".join(f"Tensor {name}" for name in saving.operands)
    biases = "Tensor? gate_bias, Tensor? up_bias" if is_gated else "Tensor? bias"
    rest = "Tensor? residual, float alpha, float beta, str activation, ScalarType? out_dtype, str extras"
    results = ", ".join(["Tensor"] * (1 + len(saving.outputs)))
    LIBRARY.define(f"{saving.op}({tensors}, {biases}, {rest}) -> ({results})", tags=(torch.Tag.pt2_compliant_tag,))
    make = partial(_make, operation)
    for key in ("CUDA", "CPU"):
        LIBRARY.impl(saving.op, make, key)
    torch.library.register_fake(
        f"warploom::{saving.op}",
        lambda *given: _results(operation, given[: len(saving.operands)], given[-2]),
        lib=LIBRARY,
    )
    backward, setup = (_gated_gradients, _setup_gated) if is_gated else (_activated_gradients, _setup_activated)
    register_autograd(saving.op, partial(backward, operation), setup, make)


for _operation in OPS:
    _define(_operation)


def run_saving(
    operation: str,
    operands: tuple[Tensor, ...],
    inputs: tuple[Any, ...],
    extras: str,
    request: Request,
    *,
    is_sharded: bool = False,
) -> Tensor | None:
    """The result of a call that needs a gradient, and saves values for it; None for every other call.

    A call with distributed tensors saves them in any case: only ops with these results have rules for an activation.
    """
    saves = isinstance(request.pair, str) or (operation in OPS and request.activation is not None)
    if not saves or not (is_sharded or torch.is_grad_enabled()):
        return None
    others = (request.epilogue, request.store, request.outputs, request.out)
    tensors = (each for each in (*operands, *inputs, *(request.operands or {}).values()) if isinstance(each, Tensor))
    if any(each is not None for each in others) or not (is_sharded or any(each.requires_grad for each in tensors)):
        return None
    bias, up_bias, residual = inputs
    biases = (bias, up_bias) if operation in GATED else (bias,)
    numbers = (float(request.alpha), float(request.beta), request.activation or "", request.out_dtype, extras)
    made, *_ = getattr(torch.ops.warploom, OPS[operation].op)(*operands, *biases, residual, *numbers)
    return made if tuple(made.shape) == tuple(request.shape) else made.reshape(request.shape)
