"""The derivatives of the operations: more products by the same kernels, and sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from warploom.diagnostics import Diag
from warploom.ops.planning.extras import PLAIN, Extras, extras_by, name_of
from warploom.structured.config.sm90 import ROW_BYTES
from warploom.torch.autograd import register_autograd
from warploom.torch.fast_path import are_plain, is_graded, is_heard
from warploom.torch.op_library import FACTORS, LIBRARY, NARROW, compute, make
from warploom.torch.plain import plain_or_whole

Gradients = tuple[Tensor | None, ...]
_aten = torch.ops.aten


def _of_silu(gradient: Tensor, x: Tensor) -> Tensor:
    """PyTorch's own has no derivative, for which it is written out."""
    if not torch.is_grad_enabled():
        made: Tensor = _aten.silu_backward(gradient, x)
        return made
    part = torch.sigmoid(x)
    return gradient * part * (1 + x * (1 - part))


DERIVATIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda gradient, x: _aten.threshold_backward(gradient, x, 0),
    "gelu": _aten.gelu_backward,
    "gelu_tanh": lambda gradient, x: _aten.gelu_backward(gradient, x, approximate="tanh"),
    "silu": _of_silu,
    "tanh": lambda gradient, x: _aten.tanh_backward(gradient, torch.tanh(x)),
    "sigmoid": lambda gradient, x: _aten.sigmoid_backward(gradient, torch.sigmoid(x)),
    "squared_relu": lambda gradient, x: gradient * 2 * torch.relu(x),
}
"""By activation, the gradient of what goes into it."""


def of_input(activation: str, before: Tensor, gradient: Tensor | None, of_before: Tensor | None) -> Tensor | None:
    """The gradient of what goes into an activation: by what comes out of it, and by itself."""
    if gradient is None:
        return of_before
    made = DERIVATIVES[activation](gradient.to(before.dtype), before)
    return made if of_before is None else of_before + made


def keep_following(ctx: Any, residual: Tensor | None, alpha: float, beta: float, extras: str) -> None:
    """What every derivative knows of what followed the product."""
    more = extras_by(extras)
    ctx.alpha, ctx.beta = alpha, beta
    ctx.has_function = more.epilogue is not None or more.store is not None
    ctx.plain = PLAIN if more.target is None else name_of(Extras(target=more.target))
    ctx.residual = None if residual is None else (residual.shape, residual.dtype)
    ctx.set_materialize_grads(False)


def by_residual(ctx: Any, gradient: Tensor, needed: bool) -> Tensor | None:
    if ctx.residual is None or not needed:
        return None
    shape, dtype = ctx.residual
    return (gradient * ctx.beta).sum_to_size(shape).to(dtype)


def by_bias(bias: Tensor | None, gradient: Tensor, needed: bool) -> Tensor | None:
    return gradient.sum_to_size(bias.shape).to(bias.dtype) if bias is not None and needed else None


def refuse(ctx: Any, names: tuple[str, ...], first: Tensor) -> None:
    """Say what has no derivative: the caller's functions, and elements of 8 bits, whose gradients have no room."""
    if ctx.has_function:
        raise Diag.NO_DERIVATIVE.error(what="`epilogue` and `store`")
    needed = [f"`{name}`" for name, needs in zip(names, ctx.needs_input_grad, strict=False) if needs]
    if first.dtype in NARROW and needed:
        raise Diag.NO_DERIVATIVE.error(what=f"8-bit factors and their scales (here {', '.join(needed)})")


def product(
    operation: str,
    *factors: Tensor,
    like: Any,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """`alpha` times a product, for the same target as the one that is derived."""
    given = (*factors, bias, residual, [], [], like.alpha, 1.0, "", dtype, like.plain)
    if torch.compiler.is_compiling() or is_graded() or is_heard() or not are_plain(factors):
        made: Tensor = getattr(torch.ops.warploom, operation)(*given)
        return made
    return make(operation, *(each.resolve_neg() for each in factors), *given[len(factors) :])


def of_matmul(ctx: Any, gradient: Tensor, a: Tensor, b: Tensor) -> Gradients:
    needs = ctx.needs_input_grad
    by_a = product("matmul", gradient, b.mT, like=ctx, dtype=a.dtype) if needs[0] else None
    by_b = product("matmul", a.mT, gradient, like=ctx, dtype=b.dtype) if needs[1] else None
    return by_a, by_b


def of_linear(ctx: Any, gradient: Tensor, x: Tensor, w: Tensor) -> Gradients:
    """Each as its factor lies in memory."""
    needs = ctx.needs_input_grad
    by_x = product("matmul", gradient, w, like=ctx, dtype=x.dtype) if needs[0] else None
    by_w = product("matmul", gradient.mT, x, like=ctx, dtype=w.dtype) if needs[1] else None
    return by_x, by_w


def _of_grouped(ctx: Any, gradient: Tensor, a: Tensor, b: Tensor, ends: Tensor) -> Gradients:
    needs, weights = ctx.needs_input_grad, torch.ops.warploom.grouped_weights
    by_a = product("grouped_matmul", gradient, b.mT, ends, like=ctx, dtype=a.dtype) if needs[0] else None
    by_b = weights(a, gradient, ends, ctx.alpha, ctx.plain) if needs[1] else None
    return by_a, by_b, None


def _of_blockwise(ctx: Any, gradient: Tensor, *factors: Tensor) -> Gradients:
    return (None,) * len(factors)


OF_FACTORS: dict[str, Callable[..., Gradients]] = {
    "matmul": of_matmul,
    "grouped_matmul": _of_grouped,
    "blockwise_matmul": _of_blockwise,
}


def _register(operation: str) -> None:
    count = len(FACTORS[operation])

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        bias, residual, operands, numbers, alpha, beta, ctx.activation, _, extras = inputs[count:]
        keep_following(ctx, residual, alpha, beta, extras)
        ctx.lists = [None] * len(operands), [None] * len(numbers)
        ctx.save_for_backward(*inputs[:count], bias)

    def derive(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The activation's derivative is taken in float32, of the value before it, which is computed again."""
        *factors, bias = ctx.saved_tensors
        needs = ctx.needs_input_grad
        refuse(ctx, FACTORS[operation], factors[0])
        if operation == "grouped_matmul" and (needs[count] or needs[count + 1]):
            gradient = within_groups(gradient, factors[2])
        of_residual = by_residual(ctx, gradient, needs[count + 1])
        if ctx.activation:
            before = product(operation, *factors, like=ctx, dtype=torch.float32, bias=bias)
            gradient = DERIVATIVES[ctx.activation](gradient.float(), before)
        of_bias = by_bias(bias, gradient, needs[count])
        of_factors = OF_FACTORS[operation](ctx, gradient.to(factors[0].dtype), *factors)
        return (*of_factors, of_bias, of_residual, *ctx.lists, *(None,) * 5)

    below = plain_or_whole if operation == "matmul" else None
    register_autograd(operation, derive, keep, partial(make, operation), below)


def within_groups(gradient: Tensor, ends: Tensor) -> Tensor:
    """Without the rows behind the last group, on which nothing depends."""
    if not ends.shape[0]:
        return torch.zeros_like(gradient)
    rows = torch.arange(gradient.shape[0], device=gradient.device)
    return gradient.masked_fill((rows >= ends[-1])[:, None], 0)


for _operation in FACTORS:
    _register(_operation)

LIBRARY.define(
    "grouped_weights(Tensor a, Tensor d, Tensor ends, float alpha, str extras) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _weights(a: Tensor, d: Tensor, ends: Tensor, alpha: float, extras: str) -> Tensor:
    """For each group, alpha times the transpose of its rows of a, times its rows of d.

    Rows are first moved apart, so that groups begin with a K tile: where they end only the device knows.
    """
    out = _empty_weights(a, d, ends)
    if not a.shape[0] or not out.numel():
        return out.zero_()
    starts, rows, is_filling = _whole_tiles(ends, a.shape[0], ROW_BYTES // a.element_size())
    a, d = (each.index_select(0, rows).masked_fill_(is_filling[:, None], 0) for each in (a, d))
    arguments = {"a": a, "d": d, "starts": starts, "alpha": alpha, **extras_by(extras).options(), "out": out}
    compute("padded_weights", arguments, (alpha, extras))
    return out


def _whole_tiles(ends: Tensor, count: int, tile: int) -> tuple[Tensor, Tensor, Tensor]:
    """Groups in whole tiles of rows, one at least: where each begins, the row at every place, and which are none.

    There are as many places as there may be: where groups end is not asked.
    """
    groups = ends.shape[0]
    firsts = torch.cat((ends.new_zeros(1), ends[:-1])).long()
    tiles = ((ends - firsts + tile - 1) // tile).clamp(min=1)
    starts = torch.cat((tiles.new_zeros(1), tiles.cumsum(0)))
    place = torch.arange((count // tile + groups) * tile, device=ends.device)
    group = torch.searchsorted(starts[1:] * tile, place, right=True).clamp(max=groups - 1)
    rows = place - starts[group] * tile + firsts[group]
    return starts.to(torch.int32), rows.clamp(max=count - 1), rows >= ends[group]


def _empty_weights(a: Tensor, d: Tensor, ends: Tensor) -> Tensor:
    return a.new_empty((ends.shape[0], a.shape[1], d.shape[1]))


def _of_weights(ctx: Any, gradient: Tensor) -> Gradients:
    """Both factors' gradients are grouped products."""
    a, d, ends = ctx.saved_tensors
    by_a = product("grouped_matmul", d, gradient.mT, ends, like=ctx, dtype=a.dtype)
    by_d = product("grouped_matmul", a, gradient, ends, like=ctx, dtype=d.dtype)
    return by_a, by_d, None, None, None


def _keep_weights(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.alpha, ctx.plain = inputs
    ctx.save_for_backward(*tensors)


for _key in ("CUDA", "CPU"):
    LIBRARY.impl("grouped_weights", _weights, _key)
torch.library.register_fake("warploom::grouped_weights", lambda *given: _empty_weights(*given[:3]), lib=LIBRARY)
register_autograd("grouped_weights", _of_weights, _keep_weights, _weights)
