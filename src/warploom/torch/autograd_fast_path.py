"""Eager products that somebody will derive: launched as those that nobody will, without PyTorch's dispatcher.

Calls in which others take part (subclasses, modes, transforms, the compiler) are custom ops.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from warploom.ops.planning.extras import PLAIN
from warploom.torch.fast_path import ALWAYS_PLANNED, are_plain, is_heard
from warploom.torch.gradients import Gradients, by_bias, by_residual, keep_following, of_input, of_linear, of_matmul
from warploom.torch.op_library import NARROW

Run = Callable[[str, Tensor, Tensor, dict[str, Any], tuple[Tensor, ...]], Tensor]
"""What computes a product that nobody derives, and fills what is to be kept."""
_OF_FACTORS: dict[str, Callable[..., Gradients]] = {"matmul": of_matmul, "linear": of_linear}
_ADDENDS = ("bias", "residual")
_unwrapped = torch._C._functorch.unwrap_if_dead  # noqa: SLF001


def derived(function: str, a: Tensor, b: Tensor, options: dict[str, Any], run: Run) -> Tensor | None:
    """The result of a product, if it is to be derived and concerns nobody else."""
    tensors = [a, b]
    if options:
        tensors += [each for name in _ADDENDS if isinstance(each := options.get(name), Tensor)]
    if not are_plain(tensors) or not any(each.requires_grad for each in tensors):
        return None
    if is_heard() or not ALWAYS_PLANNED.isdisjoint(options) or a.dtype in NARROW:
        return None
    if b.dim() != 2 or (a.dim() != 2 and (function != "linear" or not a.dim())):
        return None
    made: Tensor | tuple[Tensor, Tensor] = _apply(*map(_unwrapped, tensors), (function, options, run))
    return made if isinstance(made, Tensor) else made[0]


class _Derived(torch.autograd.Function):
    """A product of two matrices, or of rows and a matrix; with an activation, what goes into it is a result too.

    It is given the tensors of the call, and the call behind them: each argument takes time.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, *rest: Any) -> Any:
        function, options, run = rest[-1]
        ctx.function = function
        if not options:
            ctx.save_for_backward(a, b)
            return run(function, a, b, options, ())
        bias, residual = (each if isinstance(each := options.get(name), Tensor) else None for name in _ADDENDS)
        ctx.activation, kept = options.get("activation"), tuple[Tensor, ...]()
        if ctx.activation is not None:
            kept = (a.new_empty((*a.shape[:-1], b.shape[0 if function == "linear" else 1])),)
        made = run(function, a, b, options, kept)
        keep_following(ctx, residual, float(options.get("alpha", 1.0)), float(options.get("beta", 1.0)), PLAIN)
        ctx.save_for_backward(a, b, bias, *kept)
        return (made, *kept) if kept else made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        a, b, *rest = ctx.saved_tensors
        if not rest:
            ctx.alpha, ctx.plain = 1.0, PLAIN
            return (*_of_factors(ctx, gradients[0], a, b), None)
        (bias, *kept), (gradient, *of_kept) = rest, gradients
        needs, of_addends = iter(ctx.needs_input_grad[2:]), list[Tensor | None]()
        needs_bias, needs_residual = bias is not None and next(needs), ctx.residual is not None and next(needs)
        of_residual = by_residual(ctx, gradient, needs_residual) if gradient is not None else None
        if kept:
            gradient = of_input(ctx.activation, kept[0], gradient, of_kept[0])
        if gradient is None:
            return (None,) * len(ctx.needs_input_grad)
        if bias is not None:
            of_addends.append(by_bias(bias, gradient, needs_bias))
        if ctx.residual is not None:
            of_addends.append(of_residual)
        return (*_of_factors(ctx, gradient, a, b), *of_addends, None)


_apply = super(torch.autograd.Function, _Derived).apply
"""What `_Derived.apply` does where there are no transforms, without asking for them once more."""


def _of_factors(ctx: Any, gradient: Tensor | None, a: Tensor, b: Tensor) -> Gradients:
    if gradient is None:
        return None, None
    rows = gradient.to(a.dtype)
    if a.dim() == 2:
        return _OF_FACTORS[ctx.function](ctx, rows, a, b)
    count = prod(a.shape[:-1])
    by_a, by_b = of_linear(ctx, rows.reshape(count, b.shape[0]), a.reshape(count, a.shape[-1]), b)
    return by_a.view(a.shape) if by_a is not None else None, by_b
