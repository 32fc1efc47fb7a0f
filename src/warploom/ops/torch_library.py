"""The operations as custom ops of PyTorch: shapes for its compiler, derivatives, and launches that are prepared once.

Tensors of a GPU are launched there, tensors of the host run on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warploom.diagnostics import Diag
from warploom.facts.tensor_maps import ADDRESS_ALIGNMENT, STRIDE_ALIGNMENT
from warploom.ops.dense import matmul as matmul_of_arrays
from warploom.ops.extras import PLAIN, Extras, extras_by
from warploom.ops.grouped import grouped_matmul as grouped_matmul_of_arrays
from warploom.ops.plan import Operation
from warploom.ops.prepare import bound
from warploom.ops.scaled import blockwise_matmul as blockwise_matmul_of_arrays
from warploom.ptx.arrays import numpy_of
from warploom.runtime.driver import device
from warploom.runtime.prepared import Prepared, current_stream

_OPERATIONS: dict[str, Operation[...]] = {
    "matmul": matmul_of_arrays,
    "grouped_matmul": grouped_matmul_of_arrays,
    "blockwise_matmul": blockwise_matmul_of_arrays,
}
_INNER = {("matmul", "b"): -2, ("grouped_matmul", "b"): -2, ("blockwise_matmul", "a_scale"): -2}
"""The axis along which a copy lies contiguous, where it is not the last."""
_NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
_MOST_PLANS = 4096


class Plan(NamedTuple):
    """A prepared call, and which of its tensors it gets as copies."""

    prepared: Prepared
    stream: Callable[[], int]
    copied: tuple[str, ...]


_PLANS: dict[Any, Plan] = {}


def _leaves(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors among arguments by name, those of mappings too."""
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, Mapping):
            yield from _leaves(value)


def compute(operation: str, arguments: dict[str, Any], key: Any) -> Plan | None:
    """Run an operation into `out`, the last of its arguments; `key` says what it depends on beside the tensors.

    The plan by which it ran on a GPU, if it did.
    """
    out: Tensor = arguments["out"]
    if out.numel() == 0:
        return None
    if not out.is_cuda:
        _OPERATIONS[operation](**_mapped(arguments, numpy_of))
        return None
    tensors = [tensor for _, tensor in _leaves(arguments)]
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    signature = (operation, key, out.get_device(), *((each.shape, each.stride(), each.dtype) for each in tensors))
    signature += tuple(address % ADDRESS_ALIGNMENT for address in addresses)
    plan = _PLANS.get(signature)
    if plan is None:
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        plan = _PLANS[signature] = _planned(operation, arguments)
    if plan.copied:
        held = _with_copies(operation, arguments, plan.copied)  # named, so that the copies live until they are launched
        addresses = tuple(tensor.data_ptr() for _, tensor in _leaves(held))
    plan.prepared.launch_at(addresses, plan.stream())
    return plan


def _planned(operation: str, arguments: dict[str, Any]) -> Plan:
    """Bind an operation; what its kernel cannot step through is bound once more, as a copy that it can."""
    gpu = device(arguments["out"].get_device())
    made = bound(_OPERATIONS[operation], arguments, gpu)
    copied = made.copied
    if copied:
        made = bound(_OPERATIONS[operation], _with_copies(operation, arguments, copied), gpu)
        if made.copied:
            what = f"`{operation}` copies {', '.join(made.copied)} whatever its strides are"
            raise Diag.INTERNAL.error(what=what)
    prepared = Prepared(made.launch, tuple(made.arrays.values()), device=gpu)
    return Plan(prepared, current_stream(gpu), copied)


def _mapped(arguments: Mapping[str, Any], change: Callable[[Tensor], Any]) -> dict[str, Any]:
    """The arguments with every tensor changed."""
    return {
        name: _mapped(value, change)
        if isinstance(value, Mapping)
        else change(value.detach())
        if isinstance(value, Tensor)
        else value
        for name, value in arguments.items()
    }


def _with_copies(operation: str, arguments: Mapping[str, Any], copied: tuple[str, ...]) -> dict[str, Any]:
    return {
        name: _steppable(value, _INNER.get((operation, name), -1)) if name in copied else value
        for name, value in arguments.items()
    }


def _steppable(tensor: Tensor, inner: int) -> Tensor:
    """A copy with an axis contiguous, in rows of whole 16 bytes; where there is nothing along it, one zero."""
    rows = tensor.transpose(inner, -1)
    bits = rows.view(torch.uint8) if rows.element_size() == 1 else rows
    *front, depth = rows.shape
    unit = STRIDE_ALIGNMENT // rows.element_size()
    padded = bits.new_zeros((*front, max(-(-depth // unit), 1) * unit))
    padded[..., :depth] = bits
    return padded[..., : max(depth, 1)].view(tensor.dtype).transpose(inner, -1)


_LIBRARY = torch.library.Library("warploom", "DEF")
_MATMUL = (
    "Tensor a, Tensor b, Tensor? bias, Tensor? residual, Tensor[] operands, float[] numbers, float alpha, float beta, "
    "str activation"
)
_GROUPED = "Tensor a, Tensor b, Tensor ends"
_BLOCKWISE = "Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, str activation"
for _schema in (
    f"matmul({_MATMUL}, ScalarType? out_dtype, str extras) -> Tensor",
    f"matmul_into(Tensor(z!) out, {_MATMUL}, str extras) -> ()",
    f"grouped_matmul({_GROUPED}, ScalarType? out_dtype, str extras) -> Tensor",
    f"blockwise_matmul({_BLOCKWISE}, ScalarType? out_dtype, str extras) -> Tensor",
):
    _LIBRARY.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


def _registered(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function what an op does, on a GPU and on the host."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for key in ("CUDA", "CPU"):
            _LIBRARY.impl(name, function, key)
        return function

    return register


def _result(a: Tensor, b: Tensor, out_dtype: torch.dtype | None) -> Tensor:
    """A new result of a product: the first factor's dtype, bfloat16 for those that are too narrow."""
    dtype = out_dtype or (torch.bfloat16 if a.dtype in _NARROW else a.dtype)
    return torch.empty((*a.shape[:-1], b.shape[-1]), dtype=dtype, device=a.device)


def _given(operands: list[Tensor], numbers: list[float], extras: Extras) -> dict[str, Any]:
    """The operands by name, tensors and numbers in the caller's order."""
    tensors, floats = iter(operands), iter(numbers)
    return {name: next(floats) if is_number else next(tensors) for name, is_number in extras.operands}


def matmul_into(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    operands: list[Tensor],
    numbers: list[float],
    alpha: float,
    beta: float,
    activation: str,
    extras: str,
) -> Plan | None:
    """D into `out`."""
    more = extras_by(extras)
    arguments: dict[str, Any] = {"a": a, "b": b, "alpha": alpha, **more.options()}
    if bias is not None:
        arguments["bias"] = bias
    if residual is not None and beta != 0:
        arguments |= {"residual": residual, "beta": beta}
    if activation:
        arguments["activation"] = activation
    if more.operands:
        arguments["operands"] = _given(operands, numbers, more)
    arguments["out"] = out
    return compute("matmul", arguments, (extras, alpha, beta, activation, *numbers, bias is None, residual is None))


@_registered("matmul_into")
def _(out: Tensor, *rest: Any) -> None:
    matmul_into(out, *rest)


@_registered("matmul")
def _matmul(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    out = _result(a, b, rest[-2])
    if extras_by(rest[-1]).store is not None:
        out.zero_()
    matmul_into(out, *(a, b, *rest[:-2], rest[-1]))
    return out


@torch.library.register_fake("warploom::matmul", lib=_LIBRARY)
def _(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    return _result(a, b, rest[-2])


@torch.library.register_fake("warploom::matmul_into", lib=_LIBRARY)
def _(out: Tensor, *rest: Any) -> None:
    return None


@_registered("grouped_matmul")
def _grouped_matmul(a: Tensor, b: Tensor, ends: Tensor, out_dtype: torch.dtype | None, extras: str) -> Tensor:
    out = _result(a, b, out_dtype).zero_()
    arguments = {"a": a, "b": b, "ends": ends.to(torch.int32).contiguous(), **extras_by(extras).options(), "out": out}
    compute("grouped_matmul", arguments, extras)
    return out


@torch.library.register_fake("warploom::grouped_matmul", lib=_LIBRARY)
def _(a: Tensor, b: Tensor, ends: Tensor, out_dtype: torch.dtype | None, extras: str) -> Tensor:
    return _result(a, b, out_dtype)


@_registered("blockwise_matmul")
def _blockwise_matmul(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    activation: str,
    out_dtype: torch.dtype | None,
    extras: str,
) -> Tensor:
    out = _result(a, b.mT, out_dtype)
    options = {"activation": activation} if activation else {}
    arguments = {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale, **options, **extras_by(extras).options()}
    compute("blockwise_matmul", {**arguments, "out": out}, (activation, extras))
    return out


@torch.library.register_fake("warploom::blockwise_matmul", lib=_LIBRARY)
def _(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    return _result(a, b.mT, rest[-2])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, bias, residual, operands, numbers, ctx.alpha, ctx.beta, ctx.activation, _, ctx.extras = inputs
    ctx.lists = [None] * len(operands), [None] * len(numbers)
    ctx.save_for_backward(a, b, bias)
    ctx.residual = None if residual is None else (residual.shape, residual.dtype)


def _derive(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    """The gradients of a product: two more products, sums for bias and residual, the activation's in float32."""
    a, b, bias = ctx.saved_tensors
    if ctx.extras != PLAIN:
        more = extras_by(ctx.extras)
        if more.epilogue is not None or more.store is not None:
            raise Diag.NO_DERIVATIVE.error(what="`epilogue` and `store`")
    residual = None
    if ctx.residual is not None and ctx.needs_input_grad[3]:
        shape, dtype = ctx.residual
        residual = (gradient * ctx.beta).sum_to_size(shape).to(dtype)
    if ctx.activation:
        before = _product(a, b, bias, ctx.alpha, torch.float32)
        gradient = _DERIVATIVES[ctx.activation](gradient.float(), before)
    by_bias = None
    if bias is not None and ctx.needs_input_grad[2]:
        by_bias = gradient.sum_to_size(bias.shape).to(bias.dtype)
    gradient = gradient.to(a.dtype)
    by_a = _product(gradient, b.mT, None, ctx.alpha, a.dtype) if ctx.needs_input_grad[0] else None
    by_b = _product(a.mT, gradient, None, ctx.alpha, b.dtype) if ctx.needs_input_grad[1] else None
    return (by_a, by_b, by_bias, residual, *ctx.lists, *(None,) * 5)


def _product(a: Tensor, b: Tensor, bias: Tensor | None, alpha: float, dtype: torch.dtype) -> Tensor:
    made: Tensor = torch.ops.warploom.matmul(a, b, bias, None, [], [], alpha, 1.0, "", dtype, PLAIN)
    return made


_aten = torch.ops.aten
_DERIVATIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda gradient, x: _aten.threshold_backward(gradient, x, 0),
    "gelu": _aten.gelu_backward,
    "gelu_tanh": lambda gradient, x: _aten.gelu_backward(gradient, x, approximate="tanh"),
    "silu": _aten.silu_backward,
    "tanh": lambda gradient, x: _aten.tanh_backward(gradient, torch.tanh(x)),
    "sigmoid": lambda gradient, x: _aten.sigmoid_backward(gradient, torch.sigmoid(x)),
    "squared_relu": lambda gradient, x: gradient * 2 * torch.relu(x),
}
torch.library.register_autograd("warploom::matmul", _derive, setup_context=_keep, lib=_LIBRARY)
