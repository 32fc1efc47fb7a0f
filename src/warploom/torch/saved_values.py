"""GEMMs that save values for backward: the input of an activation, or gate and up.

The kernel that computes D stores them as auxiliary outputs; without them the GEMM would be recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warploom.ops.planning.keywords import INPUTS
from warploom.ops.planning.request import Request
from warploom.structured.epilogue.epilogue import GATE, PAIRS, PRE_ACTIVATION, UP
from warploom.torch.arguments import GATED, GROUPED, OPERANDS, Encoded, extras_by, optional_tensors, with_outputs
from warploom.torch.gradients import (
    OPERAND_GRADIENTS,
    activation_gradient,
    bias_gradient,
    gemm,
    in_order,
    refuse,
    residual_gradient,
    save_epilogue,
    weights_gradient,
    within_groups,
)
from warploom.torch.op_library import clears_rows, define, launch, register_autograd, result_of
from warploom.torch.pair_gradients import pair_gradients

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
    """An op that saves values for backward: its name, and the outputs that it saves."""

    op: str
    outputs: tuple[str, ...]


ACTIVATED_OP, GATED_OP = Saving("activated_gemm", (PRE_ACTIVATION,)), Saving("gated_gemm", (GATE, UP))
OPS = {"matmul": ACTIVATED_OP, "grouped_matmul": ACTIVATED_OP, **dict.fromkeys(GATED, GATED_OP)}
"""By operation; of a grouped one, rows after the last group are not saved."""


def _results(operation: str, operands: Sequence[Tensor], out_dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    """D, and the saved outputs, in the type of the operands as PyTorch would save them."""
    saved = (result_of(operation, operands, None) for _ in OPS[operation].outputs)
    return (result_of(operation, operands, out_dtype), *saved)


def _parts(saving: Saving, given: Sequence[Any]) -> tuple[list[Tensor], list[Any], list[float], str]:
    """The arguments of an op: operands, arrays of the epilogue, its numbers and its text."""
    count = 4 if saving is GATED_OP else 3
    *arrays, numbers, options, _ = given[count:]
    return [each for each in given[:count] if each is not None], arrays, numbers, options


def _make(saving: Saving, operation: str, *given: Any) -> tuple[Tensor, ...]:
    """The implementation of an op: D, and the saved outputs."""
    operands, arrays, numbers, options = _parts(saving, given)
    out, *outputs = _results(operation, operands, given[-1])
    clears = clears_rows(operation, out)
    if operation in GROUPED and not clears:
        out.zero_()  # not all of it is written
    given_epilogue = (*arrays, [], numbers, with_outputs(options, saving.outputs))
    if launch(operation, operands, given_epilogue, out, outputs, clears=clears) is None and clears:
        out.zero_()  # there are no groups
    return out, *outputs


def _shapes(saving: Saving, operation: str, *given: Any) -> tuple[Tensor, ...]:
    return _results(operation, _parts(saving, given)[0], given[-1])


def _inside(gradient: Tensor, ends: list[Tensor], needed: bool) -> Tensor:
    """A gradient that is summed or differentiated: without rows after the last group, whose values are not saved."""
    return within_groups(gradient, *ends) if ends and (needed or torch.is_grad_enabled()) else gradient


def _setup(saving: Saving, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.operation, *given = inputs
    operands, arrays, numbers, options = _parts(saving, given)
    *biases, residual = (each for name, each in zip(INPUTS, arrays, strict=True) if name in _DERIVED)
    save_epilogue(ctx, residual, numbers, options)
    more = extras_by(options)
    ctx.activation = PAIRS[str(more.name("pair"))] if saving is GATED_OP else more.name("activation")
    ctx.save_for_backward(*operands, *biases, *output[1:])


_DERIVED = ("bias", "up_bias", "residual")
"""The arrays of an epilogue that have a gradient here."""


def _needs(saving: Saving, ctx: Any) -> tuple[Sequence[bool], dict[str, bool]]:
    """The operands that need a gradient, and the arrays of the epilogue."""
    count = 5 if saving is GATED_OP else 4
    needs = ctx.needs_input_grad
    return needs[1:count], dict(zip(INPUTS, needs[count:], strict=False))


def _activated_gradients(ctx: Any, gradient: Tensor | None, of_before: Tensor | None) -> tuple[Any, ...]:
    """The saved input is a result like D, so that the gradients have gradients."""
    *operands, bias, _, before = ctx.saved_tensors
    a, _, *ends = operands
    (needs, of_inputs), of_residual = _needs(ACTIVATED_OP, ctx), None
    refuse(ctx, OPERANDS[ctx.operation], needs, a)
    if gradient is not None:
        gradient = _inside(gradient, ends, of_inputs["residual"])
        of_residual = residual_gradient(ctx, gradient, of_inputs["residual"])
    of_before = activation_gradient(ctx.activation, before, gradient, of_before)
    if of_before is None:
        return (None,) * len(ctx.needs_input_grad)
    of_before = _inside(of_before, ends, of_inputs["bias"])
    of_a, of_b, *_ = OPERAND_GRADIENTS[ctx.operation](ctx, needs, of_before.to(a.dtype), *operands)
    of_bias = bias_gradient(bias, of_before, of_inputs["bias"], *ends)
    found = in_order(tuple(of_inputs.values()), bias=of_bias, up_bias=None, residual=of_residual)
    return (None, of_a, of_b, None, *found, None, None, None)


def _gated_gradients(
    ctx: Any, gradient: Tensor | None, of_gate: Tensor | None, of_up: Tensor | None
) -> tuple[Any, ...]:
    *operands, gate_bias, up_bias, gate, up = ctx.saved_tensors
    x, w_gate, w_up, *ends = operands
    (needs, of_inputs), of_residual = _needs(GATED_OP, ctx), None
    refuse(ctx, GATED[ctx.operation], needs, x)
    if gradient is not None:
        gradient = _inside(gradient, ends, of_inputs["residual"])
        of_residual = residual_gradient(ctx, gradient, of_inputs["residual"])
        pair = pair_gradients(ctx.activation, ACTIVATED[ctx.activation], gradient.to(gate.dtype), gate, up)
        of_gate, of_up = _sum(of_gate, pair[0]), _sum(of_up, pair[1])
    of_x: Tensor | None = None
    of_weights: list[Tensor | None] = [None, None]
    of_biases: dict[str, Tensor | None] = {"bias": None, "up_bias": None}
    pairs = ("bias", of_gate, w_gate, gate_bias), ("up_bias", of_up, w_up, up_bias)
    for at, (name, made, weights, bias) in enumerate(pairs):
        if made is None:
            continue
        if needs[0]:
            of_x = _of_rows(ctx, made, x, weights, ends, of_x)
        if needs[1 + at]:
            of_weights[at] = _of_weights(ctx, made, x, weights, ends)
        of_biases[name] = bias_gradient(bias, _inside(made, ends, of_inputs[name]), of_inputs[name], *ends)
    found = in_order(tuple(of_inputs.values()), **of_biases, residual=of_residual)
    return (None, of_x, *of_weights, None, *found, None, None, None)


def _of_rows(ctx: Any, made: Tensor, x: Tensor, weights: Tensor, ends: list[Tensor], added: Tensor | None) -> Tensor:
    """The gradient of the rows that were multiplied by weights (n, k), or by those (k, n) of their groups."""
    name, turned = ("grouped_matmul", weights.mT) if ends else ("matmul", weights)
    return gemm(name, made, turned, *ends, like=ctx, dtype=x.dtype, residual=added)


def _of_weights(ctx: Any, made: Tensor, x: Tensor, weights: Tensor, ends: list[Tensor]) -> Tensor:
    if not ends:
        return gemm("matmul", made.mT, x, like=ctx, dtype=weights.dtype)
    return weights_gradient(ctx, x, made, *ends)


def _sum(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one + other


def _define(saving: Saving, backward: Callable[..., Any]) -> None:
    """Define an op: schema, implementation, shapes and gradient."""
    operands = f"str operation, Tensor a, Tensor b{', Tensor up' * (saving is GATED_OP)}, Tensor? ends"
    arrays = optional_tensors(INPUTS)
    results = ", ".join(["Tensor"] * (1 + len(saving.outputs)))
    make = partial(_make, saving)
    rest = "float[] numbers, str options, ScalarType? out_dtype"
    define(f"{saving.op}({operands}, {arrays}, {rest}) -> ({results})", make, partial(_shapes, saving))
    register_autograd(saving.op, backward, partial(_setup, saving), make)


_define(ACTIVATED_OP, _activated_gradients)
_define(GATED_OP, _gated_gradients)


def run_saving(
    operation: str, operands: tuple[Tensor, ...], epilogue: Encoded, request: Request, *, is_sharded: bool = False
) -> Tensor | None:
    """The result of a call that needs a gradient, and saves values for it; None for every other call.

    A call with distributed tensors saves them in any case: only ops with these results have rules for an activation.
    """
    saves = isinstance(request.pair, str) or (operation in OPS and request.activation is not None)
    if not saves or not (is_sharded or torch.is_grad_enabled()):
        return None
    *arrays, functions, numbers, options = epilogue
    others = (request.epilogue, request.store, request.outputs, request.out)
    tensors = (each for each in (*operands, *arrays, *functions) if each is not None)
    if any(each is not None for each in others) or not (is_sharded or any(each.requires_grad for each in tensors)):
        return None
    given = operands if operation in GROUPED else (*operands, None)
    op = getattr(torch.ops.warploom, OPS[operation].op)
    made, *_ = op(operation, *given, *arrays, numbers, options, request.out_dtype)
    return made if tuple(made.shape) == tuple(request.shape) else made.reshape(request.shape)
