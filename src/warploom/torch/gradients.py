"""The gradients of the custom ops: GEMMs by the same kernels, and sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from warploom.diagnostics import Diag
from warploom.ops.determinism import SETTINGS
from warploom.ops.planning.keywords import ACCUMULATOR, INPUTS
from warploom.torch.arguments import (
    DEFAULT_NUMBERS,
    FP8,
    OPERANDS,
    PLAIN,
    Extras,
    extras_by,
    factors_of,
    name_of,
    scaled_by,
    underivable,
)
from warploom.torch.launch_cache import are_plain, is_graded, is_observed, launched_again
from warploom.torch.op_library import make, plain_or_whole, register_autograd, run_gemm

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


def save_epilogue(ctx: Any, residual: Tensor | None, numbers: list[float], options: str) -> None:
    """Save what every gradient needs of the epilogue."""
    more, is_plain = extras_by(options), numbers is DEFAULT_NUMBERS
    factors = {} if is_plain else factors_of(numbers)
    ctx.scale = factors.get(ACCUMULATOR, 1.0)
    ctx.underivable = [] if is_plain else underivable(numbers)
    if more.epilogue is not None or more.store is not None:
        ctx.underivable.append("`epilogue` and `store`")
    kept = tuple(each for each in more.settings if each[0] == "precision")
    ctx.plain = PLAIN if more.target is None and not kept else name_of(Extras(target=more.target, settings=kept))
    ctx.residual = None if residual is None else (residual.shape, residual.dtype, factors.get("residual", 1.0))
    ctx.set_materialize_grads(False)


def residual_gradient(ctx: Any, gradient: Tensor, needed: bool) -> Tensor | None:
    """The gradient of a residual: what its factor makes of the result's, summed over the axes that it broadcasts."""
    if ctx.residual is None or not needed:
        return None
    shape, dtype, factor = ctx.residual
    return (gradient * factor).sum_to_size(shape).to(dtype)


def in_order(needs: Sequence[bool], **made: Tensor | None) -> list[Tensor | None]:
    """The gradients of the epilogue's arrays, in the order of the table; one without a rule is reported."""
    wrong = [f"`{name}`" for name, needed in zip(INPUTS, needs, strict=True) if needed and name not in made]
    if wrong:
        raise Diag.NO_DERIVATIVE.error(what=" and ".join(wrong))
    return [made.get(name) for name in INPUTS]


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


def refuse(ctx: Any, names: tuple[str, ...], needs: Sequence[bool], first: Tensor) -> None:
    """Report what has no gradient: the caller's functions, numbers that are not factors, and FP8 operands."""
    if ctx.underivable:
        raise Diag.NO_DERIVATIVE.error(what=" and ".join(ctx.underivable))
    needed = [f"`{name}`" for name, each in zip(names, needs, strict=False) if each]
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
    """A GEMM with the factors and for the target of the one that is differentiated."""
    key: Any = None
    is_direct = not is_graded() and not is_observed() and not torch.compiler.is_compiling() and are_plain(operands)
    if is_direct and operation == "matmul" and bias is None and residual is None:
        shapes = operands[0].shape, operands[1].shape
        key = ("gradient", like.scale, like.plain, dtype, SETTINGS.batch_invariant, *shapes)
        made: Tensor | None = launched_again(key, operands)
        if made is not None:
            return made
    given = {"bias": bias, "residual": residual}
    epilogue = (*(given.get(name) for name in INPUTS), [], scaled_by(like.scale), like.plain)
    if is_direct:
        return make(operation, tuple(each.resolve_neg() for each in operands), epilogue, dtype, key=key)
    a, b, *extra = operands
    computed: Tensor = torch.ops.warploom.gemm(operation, a, b, extra, *epilogue, dtype)
    return computed


def _is_transposed(matrix: Tensor) -> bool:
    """Return whether the columns of a matrix are contiguous, and not its rows, as those of a transposed parameter."""
    return bool(matrix.stride(-2) == 1 and matrix.stride(-1) != 1)


def matmul_gradients(ctx: Any, needs: Sequence[bool], gradient: Tensor, a: Tensor, b: Tensor) -> Gradients:
    """Each gradient has the layout of its operand: autograd would copy that of a parameter, `w` of `x @ w.mT`."""
    product = partial(gemm, "matmul", like=ctx)
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


def linear_gradients(ctx: Any, needs: Sequence[bool], gradient: Tensor, x: Tensor, w: Tensor) -> Gradients:
    """Each gradient has the layout of its operand."""
    of_x = gemm("matmul", gradient, w, like=ctx, dtype=x.dtype) if needs[0] else None
    of_w = gemm("matmul", gradient.mT, x, like=ctx, dtype=w.dtype) if needs[1] else None
    return of_x, of_w


def weights_gradient(ctx: Any, a: Tensor, d: Tensor, ends: Tensor) -> Tensor:
    """For each group, the transpose of its rows of a, times its rows of d, with the factor of the accumulator."""
    return gemm("grouped_weights", a, d, ends, like=ctx, dtype=a.dtype)


def _grouped_gradients(
    ctx: Any, needs: Sequence[bool], gradient: Tensor, a: Tensor, b: Tensor, ends: Tensor
) -> Gradients:
    of_b = None
    of_a = gemm("grouped_matmul", gradient, b.mT, ends, like=ctx, dtype=a.dtype) if needs[0] else None
    if needs[1]:
        is_turned = _is_transposed(b)
        of_b = weights_gradient(ctx, gradient, a, ends).mT if is_turned else weights_gradient(ctx, a, gradient, ends)
    return of_a, of_b, None


def _weights_gradients(
    ctx: Any, needs: Sequence[bool], gradient: Tensor, a: Tensor, d: Tensor, ends: Tensor
) -> Gradients:
    """Both are grouped GEMMs."""
    of_a = gemm("grouped_matmul", d, gradient.mT, ends, like=ctx, dtype=a.dtype) if needs[0] else None
    of_d = gemm("grouped_matmul", a, gradient, ends, like=ctx, dtype=d.dtype) if needs[1] else None
    return of_a, of_d, None


def _no_gradients(ctx: Any, needs: Sequence[bool], gradient: Tensor, *operands: Tensor) -> Gradients:
    return (None,) * len(operands)


OPERAND_GRADIENTS: dict[str, Callable[..., Gradients]] = {
    "matmul": matmul_gradients,
    "grouped_matmul": _grouped_gradients,
    "blockwise_matmul": _no_gradients,
    "grouped_weights": _weights_gradients,
}


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.operation, a, b, extra, *arrays, operands, numbers, options, _ = inputs
    given = dict(zip(INPUTS, arrays, strict=True))
    save_epilogue(ctx, given["residual"], numbers, options)
    ctx.activation = extras_by(options).name("activation")
    ctx.lists = [None] * len(extra), [None] * len(operands)
    ctx.save_for_backward(a, b, *extra, given["bias"])


def _backward(ctx: Any, gradient: Tensor | None) -> tuple[Any, ...]:
    """The activation's gradient is taken in float32, of its input, which is recomputed."""
    _, of_a, of_b, of_extra, *of_inputs = ctx.needs_input_grad
    if gradient is None:
        return (None, None, None, ctx.lists[0], *(None for _ in INPUTS), ctx.lists[1], None, None, None)
    *operands, bias = ctx.saved_tensors
    ends = operands[2:] if ctx.operation == "grouped_matmul" else []
    needs = dict(zip(INPUTS, of_inputs, strict=False))
    refuse(ctx, OPERANDS[ctx.operation], (of_a, of_b, *of_extra), operands[0])
    if ends and (needs["bias"] or needs["residual"]):
        gradient = within_groups(gradient, *ends)
    of_residual = residual_gradient(ctx, gradient, needs["residual"])
    if ctx.activation:
        before = gemm(ctx.operation, *operands, like=ctx, dtype=torch.float32, bias=bias)
        gradient = ACTIVATION_GRADIENTS[ctx.activation](gradient.float(), before)
    of_bias = bias_gradient(bias, gradient, needs["bias"], *ends)
    found = in_order(tuple(needs.values()), bias=of_bias, up_bias=None, residual=of_residual)
    made = OPERAND_GRADIENTS[ctx.operation](ctx, (of_a, of_b), gradient.to(operands[0].dtype), *operands)
    return (None, *made[:2], list(made[2:]), *found, ctx.lists[1], None, None, None)


def within_groups(gradient: Tensor, ends: Tensor) -> Tensor:
    """A gradient without the rows after the last group, on which nothing depends."""
    if not ends.shape[0]:
        return torch.zeros_like(gradient)
    rows = torch.arange(gradient.shape[0], device=gradient.device)
    return gradient.masked_fill((rows >= ends[-1])[:, None], 0)


register_autograd("gemm", _backward, _setup, run_gemm, plain_or_whole)
