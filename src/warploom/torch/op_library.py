"""The operations as custom ops of PyTorch: shapes for its compiler, and launches that are prepared once.

Tensors of a GPU are launched there, tensors of the host run on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warploom.diagnostics import Diag
from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT, STRIDE_ALIGNMENT
from warploom.host.arrays import numpy_of
from warploom.ops.dense import matmul as matmul_of_arrays
from warploom.ops.determinism import CHOICE
from warploom.ops.gated import gated_grouped_matmul as gated_grouped_matmul_of_arrays
from warploom.ops.gated import gated_linear as gated_linear_of_arrays
from warploom.ops.grouped import grouped_matmul as grouped_matmul_of_arrays
from warploom.ops.grouped import padded_weights
from warploom.ops.planning.aliasing import clashes
from warploom.ops.planning.array_arguments import leaves, mapped
from warploom.ops.planning.extras import PLAIN, Extras, extras_by, may_change
from warploom.ops.planning.operation import Operation
from warploom.ops.planning.prepare import bound
from warploom.ops.planning.violations import called
from warploom.ops.scaled import blockwise_matmul as blockwise_matmul_of_arrays
from warploom.runtime.gpu.driver import current_stream, device
from warploom.runtime.gpu.prepared import Prepared
from warploom.torch.fast_path import launched_again, remember, state

OPERATIONS: dict[str, Operation[...]] = {
    "matmul": matmul_of_arrays,
    "grouped_matmul": grouped_matmul_of_arrays,
    "blockwise_matmul": blockwise_matmul_of_arrays,
    "gated_linear": gated_linear_of_arrays,
    "gated_grouped_matmul": gated_grouped_matmul_of_arrays,
    "padded_weights": padded_weights,
}
_ROWS_OF_WEIGHTS = ("blockwise_matmul", "gated_linear")
"""Operations whose second factor is (n, k)."""
GROUPED = ("grouped_matmul", "gated_grouped_matmul")
"""Operations that leave rows behind the last group as they are."""
_INNER = {
    ("matmul", "b"): -2,
    ("grouped_matmul", "b"): -2,
    ("gated_grouped_matmul", "b_gate"): -2,
    ("gated_grouped_matmul", "b_up"): -2,
    ("blockwise_matmul", "a_scale"): -2,
    ("padded_weights", "a"): -2,
    ("padded_weights", "d"): -2,
}
"""The axis along which a copy lies contiguous, where it is not the last."""
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
_MOST_PLANS = 4096


class Plan(NamedTuple):
    """A prepared call, and which of its tensors it gets as copies."""

    prepared: Prepared
    stream: Callable[[], int]
    copied: tuple[str, ...]


_PLANS: dict[Any, Plan] = {}


def compute(operation: str, arguments: dict[str, Any], key: Any, function: str | None = None) -> Plan | None:
    """Run an operation into `out`, the last of its arguments; the plan by which it ran on a GPU, if it did.

    `key` says what it depends on beside the tensors; None where that cannot be told, and nothing is kept. `function` is
    what the caller knows it by.
    """
    out: Tensor = arguments["out"]
    if not out.numel() or out.is_meta or not all(arguments.get("b", arguments.get("b_gate", out)).shape[:-2]):
        return None
    if not out.is_cuda:
        with called(function):
            OPERATIONS[operation](**mapped(arguments, lambda _, tensor: numpy_of(tensor.detach())))
        return None
    tensors = [tensor for _, tensor in leaves(arguments)]
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    signature: tuple[Any, ...] = (operation, key, CHOICE.batch_invariant, out.get_device())
    signature += tuple((each.shape, each.stride(), each.dtype) for each in tensors)
    signature += tuple(address % ADDRESS_ALIGNMENT for address in addresses)
    plan = _PLANS.get(signature) if key is not None else None
    if plan is None:
        with called(function):
            plan = _planned(operation, arguments)
        if key is not None:
            if len(_PLANS) >= _MOST_PLANS:
                _PLANS.clear()
            _PLANS[signature] = plan
    if plan.copied:
        held = _with_copies(operation, arguments, plan.copied)  # named, so that the copies live until they are launched
        addresses = tuple(tensor.data_ptr() for _, tensor in leaves(held))
    plan.prepared.launch_at(addresses, plan.stream())
    return plan


def _planned(operation: str, arguments: dict[str, Any]) -> Plan:
    """Bind an operation; what its kernel cannot step through is bound once more, as a copy that it can."""
    gpu = device(arguments["out"].get_device())
    made = bound(OPERATIONS[operation], arguments, gpu)
    copied = made.copied
    if copied:
        made = bound(OPERATIONS[operation], _with_copies(operation, arguments, copied), gpu)
        if made.copied:
            what = f"`{operation}` copies {', '.join(made.copied)} whatever its strides are"
            raise Diag.INTERNAL.error(what=what)
    prepared = Prepared(made.launch, tuple(made.arrays.values()), device=gpu)
    return Plan(prepared, current_stream(gpu), copied)


def _with_copies(operation: str, arguments: Mapping[str, Any], copied: tuple[str, ...]) -> dict[str, Any]:
    def held(path: str, tensor: Tensor) -> Tensor:
        return _steppable(tensor, _INNER.get((operation, path), -1)) if path in copied else tensor

    return mapped(arguments, held)


def _steppable(tensor: Tensor, inner: int) -> Tensor:
    """A copy with an axis contiguous, in rows of whole 16 bytes; where there is nothing along an axis, one zero."""
    rows = tensor.transpose(inner, -1)
    bits = rows.view(torch.uint8) if rows.element_size() == 1 else rows
    *front, depth = (max(extent, 1) for extent in rows.shape)
    unit = STRIDE_ALIGNMENT // rows.element_size()
    padded = bits.new_zeros((*front, -(-depth // unit) * unit))
    if bits.numel():
        padded[..., :depth] = bits
    return padded[..., :depth].view(tensor.dtype).transpose(inner, -1)


LIBRARY = torch.library.Library("warploom", "DEF")
FACTORS = {
    "matmul": ("a", "b"),
    "grouped_matmul": ("a", "b", "ends"),
    "blockwise_matmul": ("a", "b", "a_scale", "b_scale"),
}
"""By operation, the tensors that it multiplies; what follows the product is the same for all."""
_FOLLOWING = (
    "Tensor? bias, Tensor? residual, Tensor[] operands, float[] numbers, float alpha, float beta, str activation"
)


def result_of(operation: str, factors: Sequence[Tensor], out_dtype: torch.dtype | None) -> Tensor:
    """A new result of a product: the first factor's dtype, bfloat16 for those that are too narrow."""
    a, b = factors[:2]
    dtype = out_dtype or (torch.bfloat16 if a.dtype in NARROW else a.dtype)
    columns = b.shape[-2] if operation in _ROWS_OF_WEIGHTS else b.shape[-1]
    return torch.empty((*a.shape[:-1], columns), dtype=dtype, device=a.device)


def operands_by_name(operands: list[Tensor], numbers: list[float], extras: Extras) -> dict[str, Any]:
    """The operands by name, tensors and numbers in the caller's order."""
    tensors, floats = iter(operands), iter(numbers)
    return {name: next(floats) if is_number else next(tensors) for name, is_number in extras.operands}


def key_of(extras: str, *rest: Any) -> Any:
    """What a plan depends on beside tensors; None where a function of the caller's may change without notice."""
    return None if may_change(extras) else (extras, *rest)


def read_ends(ends: Tensor) -> Tensor:
    """Where groups end, as kernels read it."""
    return ends.to(torch.int32).contiguous()


def run_into(
    operation: str,
    out: Tensor,
    factors: Sequence[Tensor],
    bias: Tensor | None,
    residual: Tensor | None,
    operands: list[Tensor],
    numbers: list[float],
    alpha: float,
    beta: float,
    activation: str,
    extras: str,
) -> Plan | None:
    """D into `out`; the plan by which it was computed on a GPU, if it was."""
    more = extras_by(extras)
    arguments: dict[str, Any] = dict(zip(FACTORS[operation], factors, strict=True))
    if "ends" in arguments:
        arguments["ends"] = read_ends(arguments["ends"])
    arguments |= {"alpha": alpha, **more.options()}
    if bias is not None:
        arguments["bias"] = bias
    if residual is not None and beta != 0:
        arguments |= {"residual": residual, "beta": beta}
    if activation:
        arguments["activation"] = activation
    if more.operands:
        arguments["operands"] = operands_by_name(operands, numbers, more)
    arguments["out"] = out
    key = key_of(extras, alpha, beta, activation, *numbers, *arguments)
    return compute(operation, arguments, key, more.function)


def write_into(operation: str, out: Tensor, factors: Sequence[Tensor], *following: Any) -> None:
    """D into the caller's tensor, by way of another where it would change what is still to be read."""
    bias, residual, operands, *_, extras = following
    stores_anywhere = extras_by(extras).store is not None
    if clashes(out, factors, (bias, residual, *operands), stores_anywhere=stores_anywhere):
        apart = out.clone()  # what a kernel does not write is to stay
        run_into(operation, apart, factors, *following)
        out.copy_(apart)
    else:
        run_into(operation, out, factors, *following)


def make(operation: str, *given: Any, is_dispatched: bool = False) -> Tensor:
    """What the op of an operation does: a new result, of a call that was made before or of one that is planned.

    Below PyTorch's dispatcher tensors are not like those above it, and are remembered apart.
    """
    count = len(FACTORS[operation])
    factors, (*following, out_dtype, extras) = given[:count], given[count:]
    key, tensors = None, [each for each in given[: count + 2] if each is not None]
    if operation == "matmul" and extras == PLAIN:
        bias, residual, *numbers = following[:2] + following[4:]
        key = (is_dispatched, *state(), factors[0].shape, factors[1].shape)
        key += (out_dtype, bias is None, residual is None, *numbers)
        made = launched_again(key, tensors)
        if made is not None:
            return made
    out = result_of(operation, factors, out_dtype)
    if operation in GROUPED or extras_by(extras).store is not None:
        out.zero_()  # not all of it is written
    plan = run_into(operation, out, factors, *(*following, extras))
    if key is not None:
        remember(key, plan, out, tensors, tensors)
    return out


def _define(operation: str) -> None:
    """An op that makes its result, and one that writes the caller's: what they take, what they do, and their shapes."""
    count, tensors = len(FACTORS[operation]), ", ".join(f"Tensor {name}" for name in FACTORS[operation])
    schemas = (
        f"{operation}({tensors}, {_FOLLOWING}, ScalarType? out_dtype, str extras) -> Tensor",
        f"{operation}_into(Tensor(z!) out, {tensors}, {_FOLLOWING}, str extras) -> ()",
    )
    for schema in schemas:
        LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))

    def write(out: Tensor, *given: Any) -> None:
        write_into(operation, out, given[:count], *given[count:])

    for key in ("CUDA", "CPU"):
        LIBRARY.impl(operation, partial(make, operation, is_dispatched=True), key)
        LIBRARY.impl(f"{operation}_into", write, key)
    torch.library.register_fake(
        f"warploom::{operation}", lambda *given: result_of(operation, given[:count], given[-2]), lib=LIBRARY
    )
    torch.library.register_fake(f"warploom::{operation}_into", lambda *given: None, lib=LIBRARY)  # noqa: ARG005


for _operation in FACTORS:
    _define(_operation)
