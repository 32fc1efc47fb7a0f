"""The arguments of a call on PyTorch tensors: the rules that only tensors have, autocast, and the form for custom ops.

All other rules are those of `warploom.ops.planning.request`, for tensors as for NumPy arrays. PyTorch's compiler traces
this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from warploom.ops.dense import flattened
from warploom.ops.planning.arrays import Violations, is_number
from warploom.ops.planning.request import Request, is_named, type_name
from warploom.structured.epilogue.epilogue import ACTIVATIONS
from warploom.torch.op_library import OPERATIONS, SCALED

_CAST = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that autocast casts."""
_DEVICES = ("cpu", "cuda", "meta")
_CASTING = ("cpu", "cuda")
"""The devices that have autocast."""
MULTIPLIED = {"gated_linear": 3, "gated_grouped_matmul": 3, "gated_grouped_block_scaled_matmul": 3}
"""By function, the operands that are multiplied, where they are not two: autocast casts these."""


def check_tensors(arrays: Mapping[str, Any], operands: int, violations: Violations) -> dict[str, Any]:
    """Check that all are dense tensors on one device, or numbers where the epilogue may have one; the valid ones."""
    leading, first = next(iter(arrays.items()))
    valid: dict[str, Any] = {}
    for number, (name, value) in enumerate(arrays.items()):
        found, is_written = len(violations), name == "out" or name.startswith("outputs[")
        if isinstance(value, Tensor):
            if value.layout is not torch.strided or value.is_nested:
                layout = "nested" if value.is_nested else value.layout
                violations.add(name, value, f"must be dense, not of layout {layout}")
            if isinstance(first, Tensor) and value.device != first.device:
                violations.add(name, value, f"must be on {first.device} like `{leading}`, not on {value.device}")
            elif value.device.type not in _DEVICES:
                violations.add(name, value, "must be on an NVIDIA GPU or on the host")
            if is_written and not torch.compiler.is_compiling() and value.is_neg():
                violations.add(name, value, "must not be a negated view, as PyTorch makes them for `conj`")
        elif number < operands or is_written or not is_number(value):
            violations.add(name, value, "must be a tensor")
        if len(violations) == found:
            valid[name] = value
    return valid


def cast(operands: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
    """The operands with the first ones in the dtype of autocast; scales and group ends are left as they are."""
    kind = operands[0].device.type
    if kind not in _CASTING or not torch.is_autocast_enabled(kind):
        return operands
    dtype = torch.get_autocast_dtype(kind)
    changed = (each.to(dtype) if each.dtype in _CAST else each for each in operands[:count])
    return (*changed, *operands[count:])


def request_of(
    function: str,
    names: tuple[str, ...],
    operands: tuple[Tensor, ...],
    options: dict[str, Any],
    violations: Violations,
) -> Request:
    """The request of a call; many matrices times one are one tall matrix, unless a function asks for their batches."""
    operation = OPERATIONS[function]
    if function == "matmul" and options.get("epilogue") is None and options.get("store") is None:
        a, b = operands
        if a.dim() > 2 and b.dim() == 2 and a.shape[-1] == b.shape[0]:
            formed = flattened(a, b.mT, ("a", "b"), violations)
            return Request(function=function, **(formed or {}), **options)
    return operation.request({**dict(zip(names, operands, strict=True)), **options}, violations)


def op_operands(operation: str, request: Request) -> tuple[Tensor, ...]:
    """The operands in the form in which an op takes them."""
    a, b, up, extra = request.a, request.b, request.up, request.extra
    if operation == "matmul":
        return a, b.mT
    if operation == "conv2d":
        return a, b
    if operation in SCALED:
        return tuple(each for each in (a, b, up, *extra.values()) if each is not None)
    if operation == "grouped_matmul":
        return a, b.mT, *extra.values()
    if operation == "blockwise_matmul":
        return a, b, extra["a_scale"], extra["b_scale"]
    return (a, b, up) if operation == "gated_linear" else (a, b.mT, up.mT, *extra.values())


def op_shape(request: Request) -> tuple[int, ...]:
    """The shape of the result as an op takes it: one axis for all rows, but all axes of a convolution."""
    return tuple(request.core if request.window is None else request.shape)


def epilogue_input(name: str, value: Any, request: Request) -> Any:
    """An epilogue input as an op takes it: a tensor that broadcasts against the result in the kernel's shape."""
    if value is None or (not isinstance(value, Tensor) and name.startswith("operands[")):
        return value
    if not isinstance(value, Tensor):
        return request.a.new_full((), value, dtype=torch.float32)
    value, shape, core = value.resolve_neg(), tuple(request.shape), op_shape(request)
    is_row = value.dim() == 0 or (value.dim() == 1 and shape[-1:] == core[-1:])
    return value if is_row or shape == core else value.expand(shape).reshape(core)


def in_shape(made: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A result in the caller's shape: itself where it can be, since FSDP2 warns of layers that return views."""
    return made if tuple(made.shape) == tuple(shape) else made.reshape(shape)


def is_regular(
    function: str,
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    residual: Any = None,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    activation: Any = None,
    out_dtype: Any = None,
    **others: Any,
) -> bool:
    """Return whether a call is a GEMM of valid matrices without special options, as most are.

    PyTorch's compiler traces this and guards on all that it reads, at every call: it reads little.
    """
    given = [each for each in (a, b, bias, residual) if each is not None]
    if others or not all(isinstance(each, Tensor) for each in given):
        return False
    if b.dim() != 2 or a.dim() < 2 or (a.dim() > 2 and function != "linear"):
        return False
    depth, columns = (b.shape[1], b.shape[0]) if function == "linear" else (b.shape[0], b.shape[1])
    if a.shape[-1] != depth or a.dtype != b.dtype:
        return False
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != columns):
        return False
    if residual is not None and (residual.dim() != a.dim() or residual.shape != (*a.shape[:-1], columns)):
        return False
    return (
        all(each.device == a.device and each.dtype in _CAST for each in given)
        and type(alpha) is type(beta) is float
        and (activation is None or is_named(activation, ACTIVATIONS))
        and (out_dtype is None or out_dtype in _CAST)
    )


def torch_dtype(value: Any) -> Any:
    """`out_dtype` as PyTorch's dtype, if there is one for it; else as it is, for the rules to report."""
    if value is None or isinstance(value, torch.dtype):
        return value
    name = type_name(value)
    found = getattr(torch, name, None) if name is not None else None
    return found if isinstance(found, torch.dtype) else value


def raise_all(violations: Violations) -> None:
    """Raise all violations; PyTorch's compiler can report a plain error only, and gets one."""
    if len(violations) and torch.compiler.is_compiling():
        raise RuntimeError(*violations.notes)
    violations.check()
