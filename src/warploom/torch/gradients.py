"""The gradients of the custom ops: GEMMs by the same kernels, and sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from warploom.diagnostics import Diag
from warploom.ops.determinism import SETTINGS
from warploom.structured.config.sm90 import ROW_BYTES
from warploom.torch.launch_cache import are_plain, is_graded, is_observed, launched_again
from warploom.torch.op_library import (
    FP8,
    LIBRARY,
    OPERANDS,
    PLAIN,
    Extras,
    compute,
    extras_by,
    make,
    name_of,
    plain_or_whole,
    register_autograd,
)

Gradients = tuple[Tensor | None, ...]
_aten = torch.ops.aten


def _silu_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """Written out in grad mode: PyTorch's `silu_backward` has no gradient itself."""
    if not torch.is_grad_enabled():
        made: Tensor = _aten.silu_backward(gradient, x)
        return made
    part = torch.sigmoid(x)
    return gradient * part * (1 + x * (1 - part))


ACTIVATION_GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda gradient, x: _aten.threshold_backward(gradient, x, 0),
    "gelu": _aten.gelu_backward,
    "gelu_tanh": lambda gradient, x: _aten.gelu_backward(gradient, x, approximate="tanh"),
    "silu": _silu_gradient,
    "tanh": lambda gradient, x: _aten.tanh_backward(gradient, torch.tanh(x)),
    "sigmoid": lambda gradient, x: _aten.sigmoid_backward(gradient, torch.sigmoid(x)),
    "squared_relu": lambda gradient, x: gradient * 2 * torch.relu(x),
}
"""By activation, the gradient of its input."""


def activation_gradient(
    activation: str, before: Tensor, gradient: Tensor | None, of_before: Tensor | None
) -> Tensor | None:
    """The gradient of an activation's input: by its output, plus the gradient that the input got as a result."""
    if gradient is None:
        return of_before
    made = ACTIVATION_GRADIENTS[activation](gradient.to(before.dtype), before)
    return made if of_before is None else of_before + made


def save_epilogue(ctx: Any, residual: Tensor | None, alpha: float, beta: float, extras: str) -> None:
    """Save what every gradient needs of the epilogue."""
    more = extras_by(extras)
    ctx.alpha, ctx.beta = alpha, beta
    ctx.has_function = more.epilogue is not None or more.store is not None
    ctx.plain = PLAIN if more.target is None else name_of(Extras(target=more.target))
    ctx.residual = None if residual is None else (residual.shape, residual.dtype)
    ctx.set_materialize_grads(False)


def residual_gradient(ctx: Any, gradient: Tensor, needed: bool) -> Tensor | None:
    if ctx.residual is None or not needed:
        return None
    shape, dtype = ctx.residual
    return (gradient * ctx.beta).sum_to_size(shape).to(dtype)


def bias_gradient(bias: Tensor | None, gradient: Tensor, needed: bool, *ends: Tensor) -> Tensor | None:
    """The gradient of a bias; `ends` are those of the groups, each of which may have its own row of it."""
    if bias is None or not needed:
        return None
    if not ends or bias.dim() < 2:
        return gradient.sum_to_size(bias.shape).to(bias.dtype)
    rows = torch.arange(gradient.shape[0], device=gradient.device)
    group = torch.searchsorted(ends[0], rows, right=True).clamp(max=bias.shape[0] - 1)
    made = gradient.new_zeros(bias.shape, dtype=torch.float32)
    return made.index_add(0, group, gradient.float()).to(bias.dtype)


def refuse(ctx: Any, names: tuple[str, ...], first: Tensor) -> None:
    """Report calls without gradient: those with a caller's function, and FP8 operands."""
    if ctx.has_function:
        raise Diag.NO_DERIVATIVE.error(what="`epilogue` and `store`")
    needed = [f"`{name}`" for name, needs in zip(names, ctx.needs_input_grad, strict=False) if needs]
    if first.dtype in FP8 and needed:
        raise Diag.NO_DERIVATIVE.error(what=f"an FP8 operand or its scale (here {', '.join(needed)})")


def gemm(
    operation: str,
    *operands: Tensor,
    like: Any,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """`alpha` times a GEMM, for the target of the one that is differentiated."""
    key: Any = None
    is_direct = not is_graded() and not is_observed() and not torch.compiler.is_compiling() and are_plain(operands)
    if is_direct and operation == "matmul" and bias is None and residual is None:
        shapes = operands[0].shape, operands[1].shape
        key = ("gradient", like.alpha, like.plain, dtype, SETTINGS.batch_invariant, *shapes)
        made: Tensor | None = launched_again(key, operands)
        if made is not None:
            return made
    rest: tuple[Any, ...] = (bias, residual, [], [], like.alpha, 1.0, "", dtype, like.plain)
    if is_direct:
        return make(operation, *(each.resolve_neg() for each in operands), *rest, key=key)
    computed: Tensor = getattr(torch.ops.warploom, operation)(*operands, *rest)
    return computed


def _is_transposed(matrix: Tensor) -> bool:
    """Return whether the columns of a matrix are contiguous, and not its rows, as those of a transposed parameter."""
    return bool(matrix.stride(-2) == 1 and matrix.stride(-1) != 1)


def matmul_gradients(ctx: Any, gradient: Tensor, a: Tensor, b: Tensor) -> Gradients:
    """Each gradient has the layout of its operand: autograd would copy that of a parameter, `w` of `x @ w.mT`."""
    needs, product = ctx.needs_input_grad, partial(gemm, "matmul", like=ctx)
    of_a = of_b = None
    if needs[0]:
        of_a = (
            product(b, gradient.mT, dtype=a.dtype).mT if _is_transposed(a) else product(gradient, b.mT, dtype=a.dtype)
        )
    if needs[1]:
        of_b = (
            product(gradient.mT, a, dtype=b.dtype).mT if _is_transposed(b) else product(a.mT, gradient, dtype=b.dtype)
        )
    return of_a, of_b


def linear_gradients(ctx: Any, gradient: Tensor, x: Tensor, w: Tensor) -> Gradients:
    """Each gradient has the layout of its operand."""
    needs = ctx.needs_input_grad
    of_x = gemm("matmul", gradient, w, like=ctx, dtype=x.dtype) if needs[0] else None
    of_w = gemm("matmul", gradient.mT, x, like=ctx, dtype=w.dtype) if needs[1] else None
    return of_x, of_w


def _grouped_gradients(ctx: Any, gradient: Tensor, a: Tensor, b: Tensor, ends: Tensor) -> Gradients:
    needs, weights = ctx.needs_input_grad, torch.ops.warploom.grouped_weights
    of_a = gemm("grouped_matmul", gradient, b.mT, ends, like=ctx, dtype=a.dtype) if needs[0] else None
    of_b = None
    if needs[1]:
        rest = (ends, ctx.alpha, ctx.plain)
        of_b = weights(gradient, a, *rest).mT if _is_transposed(b) else weights(a, gradient, *rest)
    return of_a, of_b, None


def _no_gradients(ctx: Any, gradient: Tensor, *operands: Tensor) -> Gradients:
    return (None,) * len(operands)


OPERAND_GRADIENTS: dict[str, Callable[..., Gradients]] = {
    "matmul": matmul_gradients,
    "grouped_matmul": _grouped_gradients,
    "blockwise_matmul": _no_gradients,
}


def _register(operation: str) -> None:
    count = len(OPERANDS[operation])

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        bias, residual, function_operands, numbers, alpha, beta, ctx.activation, _, extras = inputs[count:]
        save_epilogue(ctx, residual, alpha, beta, extras)
        ctx.lists = [None] * len(function_operands), [None] * len(numbers)
        ctx.save_for_backward(*inputs[:count], bias)

    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The activation's gradient is taken in float32, of its input, which is recomputed."""
        *operands, bias = ctx.saved_tensors
        needs = ctx.needs_input_grad
        refuse(ctx, OPERANDS[operation], operands[0])
        if operation == "grouped_matmul" and (needs[count] or needs[count + 1]):
            gradient = within_groups(gradient, operands[2])
        of_residual = residual_gradient(ctx, gradient, needs[count + 1])
        if ctx.activation:
            before = gemm(operation, *operands, like=ctx, dtype=torch.float32, bias=bias)
            gradient = ACTIVATION_GRADIENTS[ctx.activation](gradient.float(), before)
        of_bias = bias_gradient(bias, gradient, needs[count], *(operands[2:3] if operation == "grouped_matmul" else ()))
        of_operands = OPERAND_GRADIENTS[operation](ctx, gradient.to(operands[0].dtype), *operands)
        return (*of_operands, of_bias, of_residual, *ctx.lists, *(None,) * 5)

    below = plain_or_whole if operation == "matmul" else None
    register_autograd(operation, backward, setup, partial(make, operation), below)


def within_groups(gradient: Tensor, ends: Tensor) -> Tensor:
    """A gradient without the rows after the last group, on which nothing depends."""
    if not ends.shape[0]:
        return torch.zeros_like(gradient)
    rows = torch.arange(gradient.shape[0], device=gradient.device)
    return gradient.masked_fill((rows >= ends[-1])[:, None], 0)


for _operation in OPERANDS:
    _register(_operation)

LIBRARY.define(
    "grouped_weights(Tensor a, Tensor d, Tensor ends, float alpha, str extras) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _weights(a: Tensor, d: Tensor, ends: Tensor, alpha: float, extras: str) -> Tensor:
    """For each group, alpha times the transpose of its rows of a, times its rows of d.

    Rows are first moved so that each group begins with a K tile: only the device knows where groups end.
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
    """Groups padded to whole tiles of rows, one at least: the tile where each begins, the row at every place, and which
    places are padding.

    There are as many places as any group ends can need: the host does not read them.
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


def _weight_gradients(ctx: Any, gradient: Tensor) -> Gradients:
    """The gradients of both operands are grouped GEMMs."""
    a, d, ends = ctx.saved_tensors
    of_a = gemm("grouped_matmul", d, gradient.mT, ends, like=ctx, dtype=a.dtype)
    of_d = gemm("grouped_matmul", a, gradient, ends, like=ctx, dtype=d.dtype)
    return of_a, of_d, None, None, None


def _setup_weights(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.alpha, ctx.plain = inputs
    ctx.save_for_backward(*tensors)


for _key in ("CUDA", "CPU"):
    LIBRARY.impl("grouped_weights", _weights, _key)
torch.library.register_fake("warploom::grouped_weights", lambda *given: _empty_weights(*given[:3]), lib=LIBRARY)
register_autograd("grouped_weights", _weight_gradients, _setup_weights, _weights)
