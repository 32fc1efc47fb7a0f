"""Products that keep what their derivatives need: the value before an activation, or both of a pair.

The kernel that computes D stores them beside it; without them, the product would be computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warploom.ops.planning.epilogue import Options
from warploom.ops.planning.extras import extras_by, name_of
from warploom.structured.epilogue.epilogue import GATE, PAIRS, PRE_ACTIVATION, UP
from warploom.torch.arguments import Form
from warploom.torch.autograd import register_autograd
from warploom.torch.gradients import (
    DERIVATIVES,
    OF_FACTORS,
    by_bias,
    by_residual,
    keep_following,
    of_input,
    product,
    refuse,
    within_groups,
)
from warploom.torch.op_library import FACTORS, GROUPED, LIBRARY, result_of
from warploom.torch.outputs import PAIRED, fused_into

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


class Kept(NamedTuple):
    """An op that keeps what its derivative needs: its name, what it multiplies, and its further results."""

    op: str
    factors: tuple[str, ...]
    outputs: tuple[str, ...]


OPS = {
    "matmul": Kept("activated_matmul", FACTORS["matmul"], (PRE_ACTIVATION,)),
    "grouped_matmul": Kept("activated_grouped_matmul", FACTORS["grouped_matmul"], (PRE_ACTIVATION,)),
    **{operation: Kept(operation, factors, (GATE, UP)) for operation, factors in PAIRED.items()},
}
"""By operation; of a grouped one, rows behind the last group are not kept."""


def _results(operation: str, factors: Sequence[Tensor], out_dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    """D, and what is kept, in the factors' own type as PyTorch would keep it."""
    kept = (result_of(operation, factors, None) for _ in OPS[operation].outputs)
    return (result_of(operation, factors, out_dtype), *kept)


def _make(operation: str, *given: Any) -> tuple[Tensor, ...]:
    """What an op does: D, and what is kept."""
    count = len(OPS[operation].factors)
    factors, (*biases, residual, alpha, beta, activation, out_dtype, extras) = given[:count], given[count:]
    bias, up_bias = biases if operation in PAIRED else (*biases, None)
    out, *further = _results(operation, factors, out_dtype)
    if operation in GROUPED:
        out.zero_()  # not all of it is written
    name = name_of(replace(extras_by(extras), outputs=OPS[operation].outputs))
    fused_into(out, further, operation, list(factors), bias, up_bias, residual, [], [], alpha, beta, activation, name)
    return out, *further


def _inside(gradient: Tensor, ends: list[Tensor], needed: bool) -> Tensor:
    """A gradient whose rows are added up, or derived: of groups, without those behind the last, which are not kept."""
    return within_groups(gradient, *ends) if ends and (needed or torch.is_grad_enabled()) else gradient


def _keep_activated(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *factors, bias, residual, alpha, beta, ctx.activation, _, extras = inputs
    keep_following(ctx, residual, alpha, beta, extras)
    ctx.save_for_backward(*factors, bias, output[1])


def _of_activated(operation: str, ctx: Any, gradient: Tensor | None, of_before: Tensor | None) -> tuple[Any, ...]:
    """What is kept is a result like D, so that the gradients have gradients."""
    *factors, bias, before = ctx.saved_tensors
    a, _, *ends = factors
    needs, of_residual = ctx.needs_input_grad, None
    of_bias, of_added = needs[len(factors) : len(factors) + 2]
    refuse(ctx, OPS[operation].factors, a)
    if gradient is not None:
        gradient = _inside(gradient, ends, of_added)
        of_residual = by_residual(ctx, gradient, of_added)
    of_before = of_input(ctx.activation, before, gradient, of_before)
    if of_before is None:
        return (None,) * len(needs)
    of_before = _inside(of_before, ends, of_bias)
    of_factors = OF_FACTORS[operation](ctx, of_before.to(a.dtype), *factors)
    return (*of_factors, by_bias(bias, of_before, of_bias), of_residual, *(None,) * 5)


def _keep_gated(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, residual, alpha, beta, _, _, extras = inputs
    keep_following(ctx, residual, alpha, beta, extras)
    ctx.activation = PAIRS[extras_by(extras).pair]
    ctx.save_for_backward(*tensors, *output[1:])


def _of_gated(
    operation: str, ctx: Any, gradient: Tensor | None, of_gate: Tensor | None, of_up: Tensor | None
) -> tuple[Any, ...]:
    *factors, gate_bias, up_bias, gate, up = ctx.saved_tensors
    x, w_gate, w_up, *ends = factors
    needs, of_residual = ctx.needs_input_grad, None
    *of_biases, of_added = needs[len(factors) : len(factors) + 3]
    refuse(ctx, OPS[operation].factors, x)
    if gradient is not None:
        gradient = _inside(gradient, ends, of_added)
        of_residual = by_residual(ctx, gradient, of_added)
        gradient = gradient.to(gate.dtype)
        of_gate = _sum(of_gate, DERIVATIVES[ctx.activation](gradient * up, gate))
        of_up = _sum(of_up, gradient * ACTIVATED[ctx.activation](gate))
    by_x: Tensor | None = None
    by_weights: list[Tensor | None] = [None, None]
    by_biases: list[Tensor | None] = [None, None]
    for at, (made, weights, bias) in enumerate(((of_gate, w_gate, gate_bias), (of_up, w_up, up_bias))):
        if made is None:
            continue
        if needs[0]:
            by_x = _by_rows(ctx, made, x, weights, ends, by_x)
        if needs[1 + at]:
            by_weights[at] = _by_weights(ctx, made, x, weights, ends)
        by_biases[at] = by_bias(bias, _inside(made, ends, of_biases[at]), of_biases[at])
    return (by_x, *by_weights, *(None for _ in ends), *by_biases, of_residual, *(None,) * 5)


def _by_rows(ctx: Any, made: Tensor, x: Tensor, weights: Tensor, ends: list[Tensor], added: Tensor | None) -> Tensor:
    """What a gradient is to the rows that were multiplied by weights (n, k), or by those (k, n) of their groups."""
    name, turned = ("grouped_matmul", weights.mT) if ends else ("matmul", weights)
    return product(name, made, turned, *ends, like=ctx, dtype=x.dtype, residual=added)


def _by_weights(ctx: Any, made: Tensor, x: Tensor, weights: Tensor, ends: list[Tensor]) -> Tensor:
    if not ends:
        return product("matmul", made.mT, x, like=ctx, dtype=weights.dtype)
    of_groups: Tensor = torch.ops.warploom.grouped_weights(x, made, *ends, ctx.alpha, ctx.plain)
    return of_groups


def _sum(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one + other


def _define(operation: str) -> None:
    """The op of an operation: what it takes, what it does, its shapes and its derivative."""
    kept, is_paired = OPS[operation], operation in PAIRED
    tensors = ", ".join(f"Tensor {name}" for name in kept.factors)
    biases = "Tensor? gate_bias, Tensor? up_bias" if is_paired else "Tensor? bias"
    rest = "Tensor? residual, float alpha, float beta, str activation, ScalarType? out_dtype, str extras"
    results = ", ".join(["Tensor"] * (1 + len(kept.outputs)))
    LIBRARY.define(f"{kept.op}({tensors}, {biases}, {rest}) -> ({results})", tags=(torch.Tag.pt2_compliant_tag,))
    make = partial(_make, operation)
    for key in ("CUDA", "CPU"):
        LIBRARY.impl(kept.op, make, key)
    torch.library.register_fake(
        f"warploom::{kept.op}",
        lambda *given: _results(operation, given[: len(kept.factors)], given[-2]),
        lib=LIBRARY,
    )
    derive, keep = (_of_gated, _keep_gated) if is_paired else (_of_activated, _keep_activated)
    register_autograd(kept.op, partial(derive, operation), keep, make)


for _operation in OPS:
    _define(_operation)


def run_kept(operation: str, form: Form, addends: Mapping[str, Any], extras: str, options: Options) -> Tensor | None:
    """The result of a call that somebody will derive, and that keeps something for it; None for every other."""
    keeps = isinstance(options.pair, str) or (operation in OPS and options.activation is not None)
    if not keeps or not torch.is_grad_enabled():
        return None
    others = (options.epilogue, options.store, options.outputs, options.out)
    tensors = (each for each in (*form.factors, *addends.values()) if isinstance(each, Tensor))
    if any(each is not None for each in others) or not any(each.requires_grad for each in tensors):
        return None
    biases = (addends["bias"], addends["up_bias"]) if operation in PAIRED else (addends["bias"],)
    numbers = (float(options.alpha), float(options.beta), options.activation or "", options.out_dtype, extras)
    made, *_ = getattr(torch.ops.warploom, OPS[operation].op)(*form.factors, *biases, addends["residual"], *numbers)
    return made.reshape(form.shape)
