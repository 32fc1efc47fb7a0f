"""Autograd fast path: eager GEMMs that need a gradient are launched without PyTorch's dispatcher.

Calls with subclasses, modes, transforms or the compiler are custom ops, whose gradients `gradients` registers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from warploom.ops.planning.keywords import INPUTS, UNGATED
from warploom.torch.arguments import FP8, NOT_FACTORS, PLAIN, numbers_of
from warploom.torch.gradients import (
    Gradients,
    activation_gradient,
    bias_gradient,
    linear_gradients,
    matmul_gradients,
    residual_gradient,
    save_epilogue,
)
from warploom.torch.internals import apply_function, unwrap_dead
from warploom.torch.launch_cache import are_plain, is_observed

Run = Callable[[str, Tensor, Tensor, dict[str, Any], tuple[Tensor, ...]], Tensor]
"""Computes a GEMM without gradient, and fills the tensors to be saved for backward."""
_OPERAND_GRADIENTS: dict[str, Callable[..., Gradients]] = {"matmul": matmul_gradients, "linear": linear_gradients}
_INPUTS = ("bias", "residual")
_FP8 = frozenset(FP8)
_UNSUPPORTED = frozenset(
    ("epilogue", "store", "operands", "outputs", "out", "config", "target", "precision", *NOT_FACTORS)
)
_UNSUPPORTED |= (frozenset(INPUTS) & UNGATED) - frozenset(_INPUTS)
"""Options with which a call is a custom op, or has no gradient."""


def differentiable(function: str, a: Tensor, b: Tensor, options: dict[str, Any], run: Run) -> Tensor | None:
    """The result of a GEMM that needs a gradient; None where its custom op must be called."""
    tensors: list[Tensor] = [a, b]
    if options:
        if not _UNSUPPORTED.isdisjoint(options):
            return None
        tensors += [each for name in _INPUTS if isinstance(each := options.get(name), Tensor)]
    if not are_plain(tensors) or is_observed() or a.dtype in _FP8:
        return None
    rows = a.dim()
    if b.dim() != 2 or (rows != 2 and (function != "linear" or not rows)):
        return None
    made: Tensor | tuple[Tensor, Tensor] = _apply(*map(unwrap_dead, tensors), (function, options, run))
    return made if type(made) is not tuple else made[0]


class _Gemm(torch.autograd.Function):
    """A GEMM of two matrices, or of flattened rows and a matrix; with an activation, its input is a result too.

    The arguments are the tensors of the call, and then the call as one value: each argument takes time.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, *rest: Any) -> Any:
        function, options, run = rest[-1]
        ctx.function = function
        if not options:
            ctx.save_for_backward(a, b)
            return run(function, a, b, options, ())
        bias, residual = (each if isinstance(each := options.get(name), Tensor) else None for name in _INPUTS)
        ctx.activation, kept = options.get("activation"), tuple[Tensor, ...]()
        if ctx.activation is not None:
            kept = (a.new_empty((*a.shape[:-1], b.shape[0 if function == "linear" else 1])),)
        made = run(function, a, b, options, kept)
        save_epilogue(ctx, residual, numbers_of(options), PLAIN)
        ctx.save_for_backward(a, b, bias, *kept)
        return (made, *kept) if kept else made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        a, b, *rest = ctx.saved_tensors
        if not rest:
            ctx.scale, ctx.plain = 1.0, PLAIN
            return (*_operand_gradients(ctx, gradients[0], a, b), None)
        (bias, *kept), (gradient, *of_kept) = rest, gradients
        needs, of_inputs = iter(ctx.needs_input_grad[2:]), list[Tensor | None]()
        needs_bias, needs_residual = bias is not None and next(needs), ctx.residual is not None and next(needs)
        of_residual = residual_gradient(ctx, gradient, needs_residual) if gradient is not None else None
        if kept:
            gradient = activation_gradient(ctx.activation, kept[0], gradient, of_kept[0])
        if gradient is None:
            return (None,) * len(ctx.needs_input_grad)
        if bias is not None:
            of_inputs.append(bias_gradient(bias, gradient, needs_bias))
        if ctx.residual is not None:
            of_inputs.append(of_residual)
        return (*_operand_gradients(ctx, gradient, a, b), *of_inputs, None)


_apply: Any = _Gemm.apply if apply_function is None else super(torch.autograd.Function, _Gemm).apply
"""`_Gemm.apply` without its check for transforms, which `is_observed` has made."""


def _operand_gradients(ctx: Any, gradient: Tensor | None, a: Tensor, b: Tensor) -> Gradients:
    if gradient is None:
        return None, None
    rows = gradient if gradient.dtype is a.dtype else gradient.to(a.dtype)
    needs = ctx.needs_input_grad
    if a.dim() == 2:
        return _OPERAND_GRADIENTS[ctx.function](ctx, needs, rows, a, b)
    count = prod(a.shape[:-1])
    of_a, of_b = linear_gradients(ctx, needs, rows.reshape(count, b.shape[0]), a.reshape(count, a.shape[-1]), b)
    return of_a.view(a.shape) if of_a is not None else None, of_b
