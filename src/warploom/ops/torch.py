"""The operations on PyTorch tensors, as `warploom.matmul` and the others call them.

Eager calls that need no derivative go straight to a prepared launch; all others go through PyTorch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warploom.diagnostics import Diag
from warploom.facts.tensor_maps import ADDRESS_ALIGNMENT
from warploom.ops.addends import is_number
from warploom.ops.extras import PLAIN, Extras, name_of
from warploom.ops.faults import Faults
from warploom.ops.following import Options
from warploom.ops.torch_library import Plan, matmul_into
from warploom.ptx.arrays import is_array

_MOST_QUICK = 4096
_EAGER = (Tensor, torch.nn.Parameter)
_ADDENDS = ("bias", "residual")
_ALWAYS_PLANNED = frozenset(("epilogue", "store", "operands", "out", "config", "target"))
"""Options with which a call is looked at each time."""
_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack  # noqa: SLF001


class _Quick(NamedTuple):
    """A call that was made before: how it is launched, and what its result is."""

    launch: Callable[[tuple[int, ...], int], None]
    stream: Callable[[], int]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


_QUICK: dict[Any, _Quick] = {}


@torch.compiler.assume_constant_result
def _name(*parts: Any) -> str:
    """The name of extras; PyTorch's compiler calls it with the parts, since it cannot make one value of them."""
    return name_of(Extras(*parts))


class _Form(NamedTuple):
    """Factors as a kernel takes them, the result's shape as the caller sees it, and as the kernel does."""

    a: Tensor
    b: Tensor
    shape: tuple[int, ...]
    core: tuple[int, ...]


def matmul(a: Tensor, b: Tensor, **options: Any) -> Tensor:
    """`a @ b` and what follows it, in one kernel."""
    return _called("matmul", a, b, options)


def linear(x: Tensor, w: Tensor, **options: Any) -> Tensor:
    """`x @ w.T` and what follows it, in one kernel."""
    return _called("linear", x, w, options)


def grouped_matmul(a: Tensor, b: Tensor, ends: Tensor, **options: Any) -> Tensor:
    """Rows of a times the matrix of their group; `ends` are on the same device, and are not read by the host."""
    faults = Faults("grouped_matmul")
    _same_device({"a": a, "b": b, "ends": ends}, faults)
    faults.check()
    given, into = Options(**options), options.get("out")
    made: Tensor = torch.ops.warploom.grouped_matmul(a, b, ends, _dtype(given), _extras(given))
    return made if into is None else into.copy_(made)


def blockwise_matmul(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, **options: Any) -> Tensor:
    """The product of 8-bit factors with a scale for each block of 128."""
    faults = Faults("blockwise_matmul")
    _same_device({"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale}, faults)
    faults.check()
    given, into = Options(**options), options.get("out")
    made: Tensor = torch.ops.warploom.blockwise_matmul(
        a, b, a_scale, b_scale, given.activation or "", _dtype(given), _extras(given)
    )
    return made if into is None else into.copy_(made)


_RETURNS = {"cupy": "cupy", "jax": "jax.numpy", "jaxlib": "jax.numpy"}
"""By the package of an array's type, the module that takes a tensor back."""


def for_others(operation: str) -> Callable[..., Any]:
    """An operation for arrays of other libraries, which share their memory with tensors (DLPack)."""

    def run(*args: Any, **options: Any) -> Any:
        made = globals()[operation](*map(_tensor, args), **{name: _tensor(value) for name, value in options.items()})
        given = (*args, *options.values())
        if options.get("out") is not None:
            return options["out"]
        package = type(given[0]).__module__.partition(".")[0]
        return import_module(_RETURNS[package]).from_dlpack(made) if package in _RETURNS else made

    return run


def _tensor(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _tensor(each) for name, each in value.items()}
    return torch.from_dlpack(value) if is_array(value) and not isinstance(value, Tensor) else value


def _called(function: str, a: Tensor, b: Tensor, options: dict[str, Any]) -> Tensor:
    """A product: as it was launched before, if it was."""
    key: Any = None
    if not torch.compiler.is_compiling() and _is_direct((a, b)) and _ALWAYS_PLANNED.isdisjoint(options):
        key = (function, a.get_device(), a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype)
        addresses: tuple[int, ...] = (a.data_ptr(), b.data_ptr())
        if options:
            addends = tuple(each for name in _ADDENDS if isinstance(each := options.get(name), Tensor))
            key += tuple((name, _signature(value)) for name, value in options.items())
            addresses += tuple(each.data_ptr() for each in addends)
            key = key if _is_direct(addends) else None
        quick = _QUICK.get(key)
        if quick is not None and not any(address % ADDRESS_ALIGNMENT for address in addresses):
            out = torch.empty(quick.shape, dtype=quick.dtype, device=quick.device)
            quick.launch((*addresses, out.data_ptr()), quick.stream())
            return out
    return _looked_at(function, key, a, b, Options(**options))


def _signature(value: Any) -> Any:
    return (value.shape, value.stride(), value.dtype) if isinstance(value, Tensor) else value


def _is_direct(tensors: tuple[Tensor, ...]) -> bool:
    """Whether a call on tensors concerns nobody but us: no derivative, subclass, mode, transform or autocast."""
    return (
        all(type(tensor) in _EAGER for tensor in tensors)
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
        and not _modes()
        and _transforms() is None
        and not torch.is_autocast_enabled("cuda")
    )


def _looked_at(function: str, key: Any, a: Tensor, b: Tensor, options: Options) -> Tensor:
    """Check a product, bring it into the form that kernels take, and run it."""
    faults = Faults(function)
    names = ("x", "w") if function == "linear" else ("a", "b")
    operands = dict(options.operands) if isinstance(options.operands, Mapping) else {}
    arrays = {names[0]: a, names[1]: b, "bias": options.bias, "residual": options.residual, **operands}
    _same_device({name: value for name, value in {**arrays, "out": options.out}.items() if value is not None}, faults)
    faults.check()
    a, b = _cast(a, b)
    form = (_linear_form if function == "linear" else _matmul_form)(a, b, options, faults)
    faults.check()
    assert form is not None
    addends = {name: _addend(name, value, form, faults) for name, value in arrays.items() if name not in names}
    out = options.out
    if out is not None and options.store is None and tuple(out.shape) != form.shape:
        faults.add("out", out, f"the result is {form.shape}")
    faults.check()
    given = [each for name, each in addends.items() if name in operands]
    arguments = (
        form.a,
        form.b,
        addends["bias"],
        addends["residual"],
        [each for each in given if isinstance(each, Tensor)],
        [float(each) for each in given if not isinstance(each, Tensor)],
        float(options.alpha),
        float(options.beta),
        options.activation or "",
    )
    extras = _extras(options)
    if out is not None:
        return _into(out, form, arguments, extras, options)
    made: Tensor
    tensors = [each for each in (*arguments[:4], *arguments[4]) if isinstance(each, Tensor)]
    if key is not None and all(each.is_cuda for each in tensors):
        made = torch.empty(form.core, dtype=_result_dtype(a, options), device=a.device)
        plan = matmul_into(made, *arguments, extras)
        made = made.view(form.shape)
        originals = [each for each in arrays.values() if isinstance(each, Tensor)]
        _remember(key, plan, made, list(zip(originals, tensors, strict=True)))
        return made
    made = torch.ops.warploom.matmul(*arguments, _dtype(options), extras)
    return made.reshape(form.shape)


def _remember(key: Any, plan: Plan | None, made: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Keep a call that needs no copies: then the addresses of its tensors are all that it needs."""
    if plan is None or plan.copied:
        return
    starts = [(own.data_ptr(), given.data_ptr()) for own, given in pairs]
    if any(own != given or own % ADDRESS_ALIGNMENT for own, given in starts):
        return
    if len(_QUICK) >= _MOST_QUICK:
        _QUICK.clear()
    _QUICK[key] = _Quick(plan.prepared.launch_at, plan.stream, tuple(made.shape), made.dtype, made.device)


def _into(out: Tensor, form: _Form, arguments: tuple[Any, ...], extras: str, options: Options) -> Tensor:
    """Write the caller's tensor: directly where it can be, else by way of another."""
    tensors = [each for each in (*arguments[:4], *arguments[4]) if isinstance(each, Tensor)]
    if torch.is_grad_enabled() and any(each.requires_grad for each in (out, *tensors)):
        raise Diag.NO_DERIVATIVE.error(what="`out`")
    run = torch.ops.warploom.matmul_into
    if options.store is not None:
        run(out, *arguments, extras)
        return out
    if out.is_contiguous() or tuple(out.shape) == form.core:
        written = out.view(form.core)
        if not any(_clash(written, each) for each in tensors):
            run(written, *arguments, extras)
            return out
    apart = torch.empty(form.core, dtype=out.dtype, device=out.device)
    run(apart, *arguments, extras)
    return out.copy_(apart.view(form.shape))


def _clash(out: Tensor, read: Tensor) -> bool:
    """Whether writing one tensor may change another that is still to be read; the same elements may be."""
    if torch.compiler.is_compiling() or out.untyped_storage().data_ptr() != read.untyped_storage().data_ptr():
        return False
    same = (out.data_ptr(), out.shape, out.stride(), out.dtype) == (
        read.data_ptr(),
        read.shape,
        read.stride(),
        read.dtype,
    )
    return not same


def _same_device(arrays: Mapping[str, Any], faults: Faults) -> None:
    """All are tensors, or numbers where an addend may be one, and on one device."""
    first = next(iter(arrays.values()))
    for number, (name, value) in enumerate(arrays.items()):
        if isinstance(value, Tensor):
            if isinstance(first, Tensor) and value.device != first.device:
                faults.add(name, value, f"it is on {value.device}, and `{next(iter(arrays))}` is on {first.device}")
        elif number < 2 or not is_number(value):
            faults.add(name, value, "it is no tensor")


def _cast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Under autocast, the factors in its dtype."""
    kind = a.device.type
    if not torch.is_autocast_enabled(kind):
        return a, b
    dtype = torch.get_autocast_dtype(kind)
    wide = (torch.float32, torch.float16, torch.bfloat16)
    cast = [each.to(dtype) if each.dtype in wide else each for each in (a, b)]
    return cast[0], cast[1]


def _linear_form(x: Tensor, w: Tensor, options: Options, faults: Faults) -> _Form | None:
    if w.dim() != 2 or x.dim() < 1 or x.shape[-1] != w.shape[-1]:
        faults.add("w", w, f"it must be (n, k), with k the last axis of `x`, {x.dtype} {tuple(x.shape)}")
        return None
    shape = (*x.shape[:-1], w.shape[0])
    rows = (
        x if x.dim() == 2 else x.reshape(-1, x.shape[-1]) if x.numel() else x.new_empty(prod(shape[:-1]), x.shape[-1])
    )
    return _Form(rows, w.mT, shape, (rows.shape[0], w.shape[0]))


def _matmul_form(a: Tensor, b: Tensor, options: Options, faults: Faults) -> _Form | None:
    """Vectors as matrices, batches in one axis; many matrices times one are one tall matrix to a kernel."""
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
    (m, k), n = left.shape[-2:], right.shape[-1]
    shape = (*batch, *((m,) if a.dim() > 1 else ()), *((n,) if b.dim() > 1 else ()))
    if not batch:
        return _Form(left, right, shape, (m, n))
    if right.dim() == 2 and options.epilogue is None and options.store is None and left.numel():
        return _Form(left.reshape(-1, k), right, shape, (prod(batch) * m, n))
    count = prod(batch)
    return _Form(
        left.expand(*batch, m, k).reshape(count, m, k),
        right.expand(*batch, k, n).reshape(count, k, n),
        shape,
        (count, m, n),
    )


def _addend(name: str, value: Any, form: _Form, faults: Faults) -> Any:
    """An addend that broadcasts against the result as the kernel sees it."""
    if not isinstance(value, Tensor):
        return value if value is None or name not in _ADDENDS else form.a.new_full((), value, dtype=torch.float32)
    is_row = value.dim() == 0 or (value.dim() == 1 and form.shape[-1:] == form.core[-1:])
    if value.dim() <= len(form.shape) and _broadcasts(value.shape, form.shape):
        return value if is_row or form.shape == form.core else value.expand(form.shape).reshape(form.core)
    faults.add(name, value, f"it does not broadcast to the result, which is {form.shape}")
    return None


def _broadcasts(shape: torch.Size, to: tuple[int, ...]) -> bool:
    return all(own == 1 or own == other for own, other in zip(reversed(shape), reversed(to), strict=False))  # noqa: PLR1714  (sizes may be symbols)


def _extras(options: Options) -> str:
    """The name of what is no tensor, number or text of a call."""
    parts = (options.epilogue, options.store, options.operands, options.config, options.target)
    if all(each is None for each in parts):
        return PLAIN
    operands = dict(options.operands) if isinstance(options.operands, Mapping) else {}
    kinds = tuple((name, not isinstance(value, Tensor)) for name, value in operands.items())
    name: str = _name(options.epilogue, options.store, kinds, options.config, options.target)
    return name


def _dtype(options: Options) -> torch.dtype | None:
    dtype: torch.dtype | None = options.out_dtype
    return dtype


def _result_dtype(a: Tensor, options: Options) -> torch.dtype:
    return _dtype(options) or (torch.bfloat16 if a.element_size() == 1 else a.dtype)
