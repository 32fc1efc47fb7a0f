"""Products that keep what their derivatives need: the value before an activation, or both of a pair.

The kernel that computes D stores them beside it; without them, the product would be computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from warploom.ops.extras import extras_by, name_of
from warploom.ops.following import Options
from warploom.ops.torch_autograd import register_autograd
from warploom.ops.torch_forms import Form
from warploom.ops.torch_gradients import (
    DERIVATIVES,
    by_bias,
    by_residual,
    keep_following,
    of_input,
    of_matmul,
    product,
    refuse,
)
from warploom.ops.torch_library import LIBRARY, result_of
from warploom.ops.torch_outputs import fused_into
from warploom.structured.epilogue import GATE, PAIRS, PRE_ACTIVATION, UP

ACTIVATED: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "squared_relu": lambda x: torch.relu(x).square(),
}
"""The activations as PyTorch has them."""
_REST = "Tensor? residual, float alpha, float beta, str activation, ScalarType? out_dtype, str extras"
LIBRARY.define(
    f"activated_matmul(Tensor a, Tensor b, Tensor? bias, {_REST}) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
LIBRARY.define(
    f"gated_linear(Tensor x, Tensor w_gate, Tensor w_up, Tensor? gate_bias, Tensor? up_bias, {_REST})"
    " -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_KEPT = {"matmul": (PRE_ACTIVATION,), "gated_linear": (GATE, UP)}


def _results(operation: str, factors: tuple[Tensor, ...], out_dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    """D, and what is kept, in the factors' own type as PyTorch would keep it."""
    kept = (result_of(operation, factors, None) for _ in _KEPT[operation])
    return (result_of(operation, factors, out_dtype), *kept)


def _run(
    operation: str, factors: tuple[Tensor, ...], bias: Tensor | None, up_bias: Tensor | None, rest: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    residual, alpha, beta, activation, out_dtype, extras = rest
    out, *further = _results(operation, factors, out_dtype)
    name = name_of(replace(extras_by(extras), outputs=_KEPT[operation]))
    fused_into(out, further, operation, list(factors), bias, up_bias, residual, [], [], alpha, beta, activation, name)
    return out, *further


def _activated(a: Tensor, b: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return _run("matmul", (a, b), bias, None, rest)


def _gated(*given: Any) -> tuple[Tensor, ...]:
    return _run("gated_linear", given[:3], given[3], given[4], given[5:])


for _key in ("CUDA", "CPU"):
    LIBRARY.impl("activated_matmul", _activated, _key)
    LIBRARY.impl("gated_linear", _gated, _key)
torch.library.register_fake(
    "warploom::activated_matmul", lambda *given: _results("matmul", given[:2], given[-2]), lib=LIBRARY
)
torch.library.register_fake(
    "warploom::gated_linear", lambda *given: _results("gated_linear", given[:3], given[-2]), lib=LIBRARY
)


def _keep_activated(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    a, b, bias, residual, alpha, beta, ctx.activation, _, extras = inputs
    keep_following(ctx, residual, alpha, beta, extras)
    ctx.save_for_backward(a, b, bias, output[1])


def _of_activated(ctx: Any, gradient: Tensor | None, of_before: Tensor | None) -> tuple[Any, ...]:
    """What is kept is a result like D, so that the gradients have gradients."""
    a, b, bias, before = ctx.saved_tensors
    needs, of_residual = ctx.needs_input_grad, None
    refuse(ctx, ("a", "b"), a)
    if gradient is not None:
        of_residual = by_residual(ctx, gradient, needs[3])
    of_before = of_input(ctx.activation, before, gradient, of_before)
    if of_before is None:
        return (None,) * len(needs)
    of_factors = of_matmul(ctx, of_before.to(a.dtype), a, b)
    return (*of_factors, by_bias(bias, of_before, needs[2]), of_residual, *(None,) * 5)


def _keep_gated(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *factors, gate_bias, up_bias, residual, alpha, beta, _, _, extras = inputs
    keep_following(ctx, residual, alpha, beta, extras)
    ctx.activation = PAIRS[extras_by(extras).pair]
    ctx.save_for_backward(*factors, gate_bias, up_bias, *output[1:])


def _of_gated(ctx: Any, gradient: Tensor | None, of_gate: Tensor | None, of_up: Tensor | None) -> tuple[Any, ...]:
    x, w_gate, w_up, gate_bias, up_bias, gate, up = ctx.saved_tensors
    needs, of_residual = ctx.needs_input_grad, None
    refuse(ctx, ("x", "w_gate", "w_up"), x)
    if gradient is not None:
        of_residual = by_residual(ctx, gradient, needs[5])
        gradient = gradient.to(gate.dtype)
        of_gate = _sum(of_gate, DERIVATIVES[ctx.activation](gradient * up, gate))
        of_up = _sum(of_up, gradient * ACTIVATED[ctx.activation](gate))
    by_x: Tensor | None = None
    by_weights: list[Tensor | None] = [None, None]
    for number, (made, weights) in enumerate(((of_gate, w_gate), (of_up, w_up))):
        if made is None:
            continue
        if needs[0]:
            by_x = product("matmul", made, weights, like=ctx, dtype=x.dtype, residual=by_x)
        if needs[1 + number]:
            by_weights[number] = product("matmul", made.mT, x, like=ctx, dtype=weights.dtype)
    biases = (
        by_bias(bias, made, needed) if made is not None else None
        for bias, made, needed in ((gate_bias, of_gate, needs[3]), (up_bias, of_up, needs[4]))
    )
    return (by_x, *by_weights, *biases, of_residual, *(None,) * 5)


def _sum(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one + other


register_autograd("activated_matmul", _of_activated, _keep_activated, _activated)
register_autograd("gated_linear", _of_gated, _keep_gated, _gated)


def run_kept(operation: str, form: Form, addends: Mapping[str, Any], extras: str, options: Options) -> Tensor | None:
    """The result of a call that somebody will derive, and that keeps something for it; None for every other."""
    keeps = isinstance(options.pair, str) or (operation == "matmul" and options.activation is not None)
    if not keeps or not torch.is_grad_enabled():
        return None
    others = (options.epilogue, options.store, options.outputs, options.out)
    tensors = (each for each in (*form.factors, *addends.values()) if isinstance(each, Tensor))
    if any(each is not None for each in others) or not any(each.requires_grad for each in tensors):
        return None
    biases = (addends["bias"],) if operation == "matmul" else (addends["bias"], addends["up_bias"])
    numbers = (float(options.alpha), float(options.beta), options.activation or "", options.out_dtype, extras)
    op = torch.ops.warploom.activated_matmul if operation == "matmul" else torch.ops.warploom.gated_linear
    made, *_ = op(*form.factors, *biases, addends["residual"], *numbers)
    return made.reshape(form.shape)
