"""The arguments of a call on PyTorch tensors: what is wrong with them, and the form in which an op takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from warploom.ops.planning.aliasing import FOLDED, is_folded
from warploom.ops.planning.arrays import PRODUCT_TYPES, RESULT_TYPES
from warploom.ops.planning.epilogue import Options, is_named
from warploom.ops.planning.epilogue_inputs import OUT_OF_RANGE, is_in_range, is_number
from warploom.ops.planning.violations import Faults
from warploom.ops.scaled import BLOCK
from warploom.structured.epilogue.epilogue import ACTIVATIONS
from warploom.torch.op_library import NARROW
from warploom.trace.language.types import OF_NUMPY

_PRODUCT_TYPES = tuple(getattr(torch, name) for name in PRODUCT_TYPES)
_CAST = (torch.float32, torch.float16, torch.bfloat16)
"""What autocast casts."""
_INTEGERS = (torch.int32, torch.int64)
_DEVICES = ("cpu", "cuda", "meta")
_CASTING = ("cpu", "cuda")
"""Where there is an autocast."""


class Form(NamedTuple):
    """Factors as an op takes them, the result's shape as the caller sees it, and as the kernel does."""

    factors: tuple[Tensor, ...]
    shape: tuple[int, ...]
    core: tuple[int, ...]


def check_places(arrays: Mapping[str, Any], factors: int, faults: Faults) -> bool:
    """All are tensors, or numbers where an addend may be one, and on one device; says whether all tensors are dense."""
    first, is_dense = next(iter(arrays.values())), True
    for number, (name, value) in enumerate(arrays.items()):
        if isinstance(value, Tensor):
            if value.layout is not torch.strided or value.is_nested:
                layout = "nested" if value.is_nested else value.layout
                faults.add(name, value, f"its layout is {layout}: make it dense")
                is_dense = False
            if isinstance(first, Tensor) and value.device != first.device:
                faults.add(name, value, f"it is on {value.device}, and `{next(iter(arrays))}` is on {first.device}")
            elif value.device.type not in _DEVICES:
                faults.add(name, value, "kernels run on NVIDIA's GPUs, and on the host")
        elif number < factors or name == "out" or not is_number(value):
            faults.add(name, value, "it is no tensor")
        elif not torch.compiler.is_compiling() and not is_in_range(value):
            faults.add(name, value, OUT_OF_RANGE)
    return is_dense


def are_factors(factors: Mapping[str, Tensor], faults: Faults) -> bool:
    """Whether the first two have elements that multiply."""
    (first, a), (second, b), *_ = factors.items()
    fine = True
    for name, each in ((first, a), (second, b)):
        if each.dtype not in _PRODUCT_TYPES:
            faults.add(name, each, f"its elements are none of {', '.join(PRODUCT_TYPES)}")
            fine = False
    if fine and a.dtype != b.dtype and not {a.dtype, b.dtype} <= set(NARROW):
        faults.add(second, b, f"its elements must be those of `{first}`, {a.dtype}")
        fine = False
    return fine


def cast(factors: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
    """Under autocast, the first factors in its dtype; scales and ends are what they are."""
    kind = factors[0].device.type
    if kind not in _CASTING or not torch.is_autocast_enabled(kind):
        return factors
    dtype = torch.get_autocast_dtype(kind)
    changed = (each.to(dtype) if each.dtype in _CAST else each for each in factors[:count])
    return (*changed, *factors[count:])


def _linear_form(factors: Sequence[Tensor], options: Options, faults: Faults) -> Form | None:
    x, w = factors
    if w.dim() != 2 or x.dim() < 1 or x.shape[-1] != w.shape[-1]:
        faults.add("w", w, f"it must be (n, k), with k the last axis of `x`, {x.dtype} {tuple(x.shape)}")
        return None
    rows = x if x.dim() == 2 else x.reshape(prod(x.shape[:-1]), x.shape[-1])
    return Form((rows, w.mT), (*x.shape[:-1], w.shape[0]), (rows.shape[0], w.shape[0]))


def _gated_form(factors: Sequence[Tensor], options: Options, faults: Faults) -> Form | None:
    x, gate, up = factors
    found = len(faults)
    if (up.shape, up.dtype) != (gate.shape, gate.dtype):
        faults.add("w_up", up, f"it must be as `w_gate` is, {gate.dtype} {tuple(gate.shape)}")
    if gate.dim() != 2 or x.dim() < 1 or x.shape[-1] != gate.shape[-1]:
        faults.add("w_gate", gate, f"it must be (n, k), with k the last axis of `x`, {x.dtype} {tuple(x.shape)}")
    if len(faults) > found:
        return None
    rows = x if x.dim() == 2 else x.reshape(prod(x.shape[:-1]), x.shape[-1])
    return Form((rows, gate, up), (*x.shape[:-1], gate.shape[0]), (rows.shape[0], gate.shape[0]))


def _matmul_form(factors: Sequence[Tensor], options: Options, faults: Faults) -> Form | None:
    """Vectors as matrices, batches in one axis; many matrices times one are one tall matrix to a kernel."""
    a, b = factors
    if not a.dim() or not b.dim():
        faults.add("a" if not a.dim() else "b", a if not a.dim() else b, "it has no axes")
        return None
    left, right = (a if a.dim() > 1 else a.unsqueeze(0)), (b if b.dim() > 1 else b.unsqueeze(1))
    if left.shape[-1] != right.shape[-2]:
        what = f"it has {right.shape[-2]} rows; `a`, {a.dtype} {tuple(a.shape)}, has {left.shape[-1]} columns"
        faults.add("b", b, what)
        return None
    try:
        batch = tuple(torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]))
    except RuntimeError:
        faults.add("b", b, f"its batches do not broadcast with those of `a`, {a.dtype} {tuple(a.shape)}")
        return None
    (m, k), n, count = left.shape[-2:], right.shape[-1], prod(batch)
    shape = (*batch, *((m,) if a.dim() > 1 else ()), *((n,) if b.dim() > 1 else ()))
    if not batch:
        return Form((left, right), shape, (m, n))
    if right.dim() == 2 and options.epilogue is None and options.store is None:
        return Form((left.reshape(count * m, k), right), shape, (count * m, n))
    spread = (left.expand(*batch, m, k).reshape(count, m, k), right.expand(*batch, k, n).reshape(count, k, n))
    return Form(spread, shape, (count, m, n))


def _grouped_form(factors: Sequence[Tensor], options: Options, faults: Faults) -> Form | None:
    a, b, ends = factors
    return _in_groups(a, b, ends, "b", faults)


def _in_groups(a: Tensor, b: Tensor, ends: Tensor, called: str, faults: Faults) -> Form | None:
    """Rows of a and the matrices b of their groups, where b is called so by the caller."""
    found = len(faults)
    if a.dim() != 2:
        faults.add("a", a, "it must be (m, k)")
    if b.dim() != 3 or (a.dim() == 2 and b.shape[1] != a.shape[1]):
        faults.add(called, b, f"it must be (groups, k, n), with k the last axis of `a`, {a.dtype} {tuple(a.shape)}")
    if ends.dim() != 1 or ends.dtype not in _INTEGERS or (b.dim() == 3 and ends.shape[0] != b.shape[0]):
        faults.add("ends", ends, f"it must be a row of integers, one for each matrix of `{called}`")
    if len(faults) > found:
        return None
    shape = (a.shape[0], b.shape[2])
    return Form((a, b, ends), shape, shape)


def _gated_groups_form(factors: Sequence[Tensor], options: Options, faults: Faults) -> Form | None:
    a, gate, up, ends = factors
    if (up.shape, up.dtype) != (gate.shape, gate.dtype):
        faults.add("b_up", up, f"it must be as `b_gate` is, {gate.dtype} {tuple(gate.shape)}")
    form = _in_groups(a, gate, ends, "b_gate", faults)
    return None if form is None else form._replace(factors=(a, gate, up, ends))


def _blockwise_form(factors: Sequence[Tensor], options: Options, faults: Faults) -> Form | None:
    a, b, a_scale, b_scale = factors
    found = len(faults)
    if a.dim() != 2:
        faults.add("a", a, "it must be (m, k)")
    if b.dim() != 2 or (a.dim() == 2 and b.shape[1] != a.shape[1]):
        faults.add("b", b, f"it must be (n, k), with k the last axis of `a`, {a.dtype} {tuple(a.shape)}")
    if len(faults) > found:
        return None
    blocks = -(-a.shape[1] // BLOCK)
    wanted = {"a_scale": (a.shape[0], blocks), "b_scale": (-(-b.shape[0] // BLOCK), blocks)}
    for (name, shape), each in zip(wanted.items(), (a_scale, b_scale), strict=True):
        if tuple(each.shape) != shape:
            faults.add(name, each, f"it must be {shape}")
    return Form((a, b, a_scale, b_scale), (a.shape[0], b.shape[0]), (a.shape[0], b.shape[0]))


class Function(NamedTuple):
    """An operation as the caller knows it: the op that does it, its factors' names, and how they come to it."""

    operation: str
    names: tuple[str, ...]
    form: Callable[[Sequence[Tensor], Options, Faults], Form | None]
    multiplied: int = 2
    """Factors that are multiplied; the others tell how."""

    @property
    def is_paired(self) -> bool:
        """Whether there are two weights, whose products meet."""
        return self.multiplied > 2

    @property
    def bias(self) -> str:
        """What the caller calls the first bias."""
        return "gate_bias" if self.is_paired else "bias"


FUNCTIONS = {
    "matmul": Function("matmul", ("a", "b"), _matmul_form),
    "linear": Function("matmul", ("x", "w"), _linear_form),
    "gated_linear": Function("gated_linear", ("x", "w_gate", "w_up"), _gated_form, 3),
    "grouped_matmul": Function("grouped_matmul", ("a", "b", "ends"), _grouped_form),
    "gated_grouped_matmul": Function("gated_grouped_matmul", ("a", "b_gate", "b_up", "ends"), _gated_groups_form, 3),
    "blockwise_matmul": Function("blockwise_matmul", ("a", "b", "a_scale", "b_scale"), _blockwise_form),
}


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
    """Whether a product is of matrices with which nothing is wrong: the calls that most are.

    PyTorch's compiler follows this, and compares what it reads at every call: it reads little.
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


def told(dtype: torch.dtype) -> str:
    """A dtype by its name, which is NumPy's too."""
    return str(dtype).rpartition(".")[2]


def asked_dtype(value: Any, faults: Faults) -> torch.dtype | None:
    """`out_dtype`: PyTorch's, or whatever NumPy takes for one."""
    found = value
    if value is not None and not isinstance(value, torch.dtype):
        try:
            found = getattr(torch, np.dtype(value).name, None)
        except TypeError:
            found = None
        if not isinstance(found, torch.dtype):
            faults.add("out_dtype", value, "it is no dtype")
            return None
    if found is not None and told(found) not in RESULT_TYPES:
        faults.add("out_dtype", value, f"a result is one of {', '.join(RESULT_TYPES)}")
    return found


def check_out(options: Options, shape: tuple[int, ...] | None, faults: Faults) -> None:
    """Whether the caller's tensor can be written, and is as the result is."""
    out = options.out
    if not isinstance(out, Tensor):
        return
    if options.store is None:
        if shape is not None and tuple(out.shape) != shape:
            faults.add("out", out, f"the result is {shape}")
        if told(out.dtype) not in RESULT_TYPES:
            faults.add("out", out, f"a result is one of {', '.join(RESULT_TYPES)}")
        elif options.out_dtype is not None and options.out_dtype != out.dtype:
            faults.add("out", out, f"its dtype is {out.dtype}, that of `out_dtype` is {options.out_dtype}")
    check_written("out", out, faults)


def check_written(name: str, tensor: Tensor, faults: Faults) -> None:
    """Whether a kernel can write a tensor; the strides of one that is compiled for are not known yet."""
    if tensor.layout is not torch.strided or torch.compiler.is_compiling():
        return
    if tensor.numel() and is_folded(tensor.shape, tensor.stride()):
        faults.add(name, tensor, FOLDED)
    if tensor.is_neg():
        faults.add(name, tensor, "its elements are kept with the other sign, as PyTorch does behind `conj`")


def addend_of(name: str, value: Any, form: Form, faults: Faults) -> Any:
    """An addend that broadcasts against the result as the kernel sees it."""
    if value is None or (not isinstance(value, Tensor) and name.startswith("operands[")):
        return value
    if not isinstance(value, Tensor):
        is_sound = torch.compiler.is_compiling() or (is_number(value) and is_in_range(value))
        return form.factors[0].new_full((), value, dtype=torch.float32) if is_sound else None
    if told(value.dtype) not in OF_NUMPY:
        faults.add(name, value, f"its elements are none of {', '.join(OF_NUMPY)}")
        return None
    value = value.resolve_neg()
    is_row = value.dim() == 0 or (value.dim() == 1 and form.shape[-1:] == form.core[-1:])
    if value.dim() <= len(form.shape) and _broadcasts(value.shape, form.shape):
        return value if is_row or form.shape == form.core else value.expand(form.shape).reshape(form.core)
    faults.add(name, value, f"it does not broadcast to the result, which is {form.shape}")
    return None


def _broadcasts(shape: torch.Size, to: tuple[int, ...]) -> bool:
    # Sizes may be symbols, of which nothing is known but that they are the same: that is asked first.
    return all(own == other or own == 1 for own, other in zip(reversed(shape), reversed(to), strict=False))  # noqa: PLR1714


def raise_all(faults: Faults) -> None:
    """Raise what was found, if anything; PyTorch's compiler can tell a plain error only, and gets one."""
    if len(faults) and torch.compiler.is_compiling():
        raise RuntimeError(*faults.notes)
    faults.check()
