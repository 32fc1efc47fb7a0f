"""The operations on PyTorch tensors, as `warploom.matmul` and the others call them.

Eager calls go straight to a prepared launch where they concern nobody else; all others go through PyTorch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from warploom.diagnostics import Diag, WarploomError
from warploom.host.arrays import buffer_of, is_array
from warploom.ops.planning.epilogue import Options, check_choices, check_names, check_pair, functions_of, named_operands
from warploom.ops.planning.extras import PLAIN, Extras, name_of
from warploom.ops.planning.gemm import check_way
from warploom.ops.planning.violations import Faults
from warploom.runtime.cache.fingerprint import source_version
from warploom.runtime.gpu.driver import device_of
from warploom.structured.epilogue.epilogue import PRE_ACTIVATION
from warploom.torch.arguments import (
    FUNCTIONS,
    Form,
    addend_of,
    are_factors,
    asked_dtype,
    cast,
    check_out,
    check_places,
    is_regular,
    raise_all,
)
from warploom.torch.autograd_fast_path import derived
from warploom.torch.fast_path import changed, has_autocast, is_forward, is_graded, launched, remember
from warploom.torch.op_library import GROUPED, LIBRARY, OPERATIONS, read_ends, result_of, run_into
from warploom.torch.outputs import run_fused
from warploom.torch.saved_values import run_kept

_COMPARES_FUNCTIONS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether PyTorch's compiler, asked for a function's identity, compiles anew for another."""
_TAKEN = {name: frozenset(signature(OPERATIONS[kind.operation]).parameters) for name, kind in FUNCTIONS.items()}
"""By operation, the arguments that it has."""


def _known(function: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a call; one that the operation does not have is what it is to any function."""
    for name in options:
        if name not in _TAKEN[function]:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    return options


@torch.compiler.assume_constant_result
def _name(lasts: bool, *parts: Any) -> str:
    """The name of extras; PyTorch's compiler calls it with the parts, since it cannot make one value of them."""
    return name_of(Extras(*parts), lasts=lasts)


@torch.compiler.assume_constant_result
def _of_this_version(function: str) -> str:
    """A function's name for the compiler, which keeps on disk what it made of the op that gets it."""
    return f"{function} {source_version() or ''}"


def matmul(a: Tensor, b: Tensor, **options: Any) -> Tensor:
    """`a @ b` and what follows it, in one kernel."""
    return _called("matmul", a, b, options)


def linear(x: Tensor, w: Tensor, **options: Any) -> Tensor:
    """`x @ w.T` and what follows it, in one kernel."""
    return _called("linear", x, w, options)


def gated_linear(x: Tensor, w_gate: Tensor, w_up: Tensor, **options: Any) -> Tensor:
    """Two products of one matrix, whose elements meet in pairs, in one kernel."""
    return _paired("gated_linear", (x, w_gate, w_up), options)


def gated_grouped_matmul(a: Tensor, b_gate: Tensor, b_up: Tensor, ends: Tensor, **options: Any) -> Tensor:
    """Rows of a times both matrices of their group, whose elements meet in pairs, in one kernel."""
    return _paired("gated_grouped_matmul", (a, b_gate, b_up, ends), options)


def _paired(function: str, factors: tuple[Tensor, ...], options: dict[str, Any]) -> Tensor:
    given = {"pair": "swiglu", **_known(function, options), "bias": options.get("gate_bias")}
    given.pop("gate_bias", None)
    return _ran(function, factors, given)


def grouped_matmul(a: Tensor, b: Tensor, ends: Tensor, **options: Any) -> Tensor:
    """Rows of a times the matrix of their group; `ends` are on the same device, and are not read by the host."""
    return _ran("grouped_matmul", (a, b, ends), _known("grouped_matmul", options))


def blockwise_matmul(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, **options: Any) -> Tensor:
    """The product of 8-bit factors with a scale for each block of 128."""
    return _ran("blockwise_matmul", (a, b, a_scale, b_scale), _known("blockwise_matmul", options))


def _ran(function: str, factors: tuple[Tensor, ...], options: dict[str, Any]) -> Tensor:
    """An operation that is derived as an op only; else as it was launched before, if it was."""
    made, key = (None, None) if torch.compiler.is_compiling() else launched(function, factors, options)
    return _looked_at(function, key, factors, Options(**options)) if made is None else made


_RETURNS = {"cupy": "cupy", "jax": "jax.numpy", "jaxlib": "jax.numpy"}
"""By the package of an array's type, the module that takes a tensor back."""


def is_tensor(value: Any) -> bool:
    """Whether a value is PyTorch's own."""
    return isinstance(value, Tensor)


def for_others(operation: str) -> Callable[..., Any]:
    """An operation for arrays of other libraries, which share their memory with tensors (DLPack)."""

    def run(*args: Any, **options: Any) -> Any:
        faults, names = Faults(operation), FUNCTIONS[operation].names
        tensors = [_tensor(name, value, faults) for name, value in zip(names, args, strict=False)]
        given = {name: _tensor(name, value, faults) for name, value in options.items()}
        faults.check()
        made = globals()[operation](*tensors, *args[len(names) :], **given)
        if options.get("out") is not None:
            return options["out"]
        first = args[0] if args else options[names[0]]
        package = type(first).__module__.partition(".")[0]
        return import_module(_RETURNS[package]).from_dlpack(made) if package in _RETURNS else made

    return run


def _tensor(name: str, value: Any, faults: Faults) -> Any:
    """An array as a tensor over the same memory; what is no array as it is."""
    if isinstance(value, Mapping):
        return {each: _tensor(f"{name}[{each!r}]", item, faults) for each, item in value.items()}
    if not is_array(value) or isinstance(value, Tensor):
        return value
    try:
        if hasattr(value, "__dlpack__"):
            return torch.from_dlpack(value)
        where = device_of("cuda", buffer_of(value).address)  # on any other GPU it would be a copy
        return torch.as_tensor(value, device=f"cuda:{where.index}")
    except WarploomError:
        raise
    except (RuntimeError, TypeError, ValueError, BufferError) as error:
        reason = str(error).partition("\n")[0]
        faults.add(name, value, f"PyTorch, by way of which it is passed, cannot share its memory: {reason}")
        return value


def _called(function: str, a: Tensor, b: Tensor, options: dict[str, Any]) -> Tensor:
    """A product; the compiler is given an op that it need not follow, where nothing can be wrong with the call."""
    if not torch.compiler.is_compiling():
        return _eager(function, a, b, options)
    if is_regular(function, a, b, **options):
        made: Tensor = torch.ops.warploom.front(_of_this_version(function), a, b, **options)
        return made
    return _looked_at(function, None, (a, b), Options(**_known(function, options)))


def _eager(function: str, a: Tensor, b: Tensor, options: dict[str, Any]) -> Tensor:
    """A product: as it was launched before, if it was."""
    if has_autocast() and isinstance(a, Tensor) and isinstance(b, Tensor):
        a, b = cast((a, b), 2)
    made = derived(function, a, b, options, _run) if is_graded() else None
    return _run(function, a, b, options) if made is None else made


LIBRARY.define(
    "front(str function, Tensor a, Tensor b, *, Tensor? bias=None, Tensor? residual=None, float alpha=1.0, "
    "float beta=1.0, str? activation=None, ScalarType? out_dtype=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
LIBRARY.impl(
    "front",
    lambda function, a, b, **options: _eager(function.partition(" ")[0], a, b, options),
    "CompositeImplicitAutograd",
)


def _run(function: str, a: Tensor, b: Tensor, options: dict[str, Any], kept: tuple[Tensor, ...] = ()) -> Tensor:
    """A product outside the compiler, with what goes into its activation where that is to be kept."""
    made, key = launched(function, (a, b), options, kept)
    if made is not None:
        return made
    given = Options(**_known(function, options))
    return _looked_at(function, key, (a, b), replace(given, outputs={PRE_ACTIVATION: kept[0]}) if kept else given)


def _looked_at(function: str, key: Any, given: tuple[Tensor, ...], options: Options) -> Tensor:
    """Check a call, bring it into the form that kernels take, and run it."""
    faults, kind = Faults(function), FUNCTIONS[function]
    out_dtype = asked_dtype(options.out_dtype, faults)
    if out_dtype is not options.out_dtype:
        options = replace(options, out_dtype=out_dtype)
    factors, own_names = dict(zip(kind.names, given, strict=True)), {"bias": kind.bias}
    by_name = named_operands(options, faults)
    operands = {f"operands[{name!r}]": each for name, each in by_name.items()}
    addends = {"bias": options.bias, "up_bias": options.up_bias, "residual": options.residual, **operands}
    outputs = options.outputs if isinstance(options.outputs, Mapping) else {}
    written = {**{f"outputs[{name!r}]": each for name, each in outputs.items()}, "out": options.out}
    arrays = {**factors, **addends, **written}
    places = {own_names.get(name, name): value for name, value in arrays.items() if value is not None}
    is_dense = check_places(places, len(factors), faults)
    form: Form | None = None
    if is_dense and all(isinstance(each, Tensor) for each in given):
        given = tuple(each.resolve_neg() for each in cast(given, kind.multiplied))
        if are_factors(dict(zip(kind.names, given, strict=True)), faults):
            form = kind.form(given, options, faults)
    if form is not None:
        addends = {name: addend_of(own_names.get(name, name), each, form, faults) for name, each in addends.items()}
    if is_dense:
        check_out(options, form.shape if form is not None else None, faults)
    check_choices(options, faults, are_known=not torch.compiler.is_compiling())
    if kind.is_paired:
        check_pair(options.pair, faults)
    if len(faults) and not torch.compiler.is_compiling():  # all that binding would tell next
        functions_of(options, by_name, faults)
        check_names(options, faults)
        check_way(options, faults)
    raise_all(faults)
    _refuse_tangents([each for each in arrays.values() if isinstance(each, Tensor)])
    assert form is not None
    named = [addends[name] for name in operands]
    following = (
        addends["bias"],
        addends["residual"],
        [each for each in named if isinstance(each, Tensor)],
        [float(each) for each in named if not isinstance(each, Tensor)],
        float(options.alpha),
        float(options.beta),
        options.activation or "",
    )
    extras = _extras(function, options)
    kept = run_kept(kind.operation, form, addends, extras, options)
    if kept is not None:
        return kept
    tensors, own = _tensors_of(form, following), [each for each in arrays.values() if isinstance(each, Tensor)]
    is_partial = kind.operation in GROUPED
    if not all(each.is_cuda for each in tensors) or (is_partial and read_ends(given[-1]) is not given[-1]):
        key = None
    if options.pair is not None or options.outputs is not None:
        return run_fused(function, kind.operation, form, addends, following[2:], extras, options, key, own)
    if options.out is not None:
        return _into(kind.operation, options.out, form, following, extras, options)
    if key is not None:
        made = result_of(kind.operation, form.factors, options.out_dtype)
        made = made.zero_() if is_partial else made
        plan = run_into(kind.operation, made, form.factors, *following, extras)
        made = made.view(form.shape)
        remember(key, plan, made, own, tensors, starts_at_zero=is_partial)
        return made
    op = getattr(torch.ops.warploom, kind.operation)
    return op(*form.factors, *following, options.out_dtype, extras).reshape(form.shape)


def _refuse_tangents(tensors: list[Tensor]) -> None:
    """There are no derivatives in forward mode, and without a word they would be zero."""
    if not is_forward() or torch.compiler.is_compiling():
        return
    if any(forward_ad.unpack_dual(each).tangent is not None for each in tensors):
        raise Diag.NO_DERIVATIVE.error(what="a product in forward mode (`jvp`, `jacfwd`, dual tensors)")


def _tensors_of(form: Form, following: tuple[Any, ...]) -> list[Tensor]:
    """What a call reads, in the order in which its launch takes it."""
    return [each for each in (*form.factors, *following[:2], *following[2]) if isinstance(each, Tensor)]


def _into(operation: str, out: Tensor, form: Form, following: tuple[Any, ...], extras: str, options: Options) -> Tensor:
    """Write the caller's tensor: directly where it can be, else by way of another."""
    tensors = _tensors_of(form, following)
    if torch.is_grad_enabled() and any(each.requires_grad for each in (out, *tensors)):
        raise Diag.NO_DERIVATIVE.error(what="`out`")
    run = getattr(torch.ops.warploom, f"{operation}_into")
    if options.store is not None:
        run(out, *form.factors, *following, extras)
        return changed(out)
    if out.is_contiguous() or tuple(out.shape) == form.core:
        run(out.view(form.core), *form.factors, *following, extras)
        return changed(out)
    apart = out.reshape(form.core).clone()  # what a kernel does not write is to stay
    run(apart, *form.factors, *following, extras)
    return out.copy_(apart.view(form.shape))


def _extras(function: str, options: Options) -> str:
    """The name of what is no tensor, number or text of a call."""
    functions = (options.epilogue, options.store)
    rest = (options.config, options.target, options.pair)
    if all(each is None for each in (*functions, options.operands, *rest, options.outputs)):
        return PLAIN
    operands = dict(options.operands) if isinstance(options.operands, Mapping) else {}
    kinds = tuple((name, not isinstance(value, Tensor)) for name, value in operands.items())
    outputs = tuple(options.outputs) if isinstance(options.outputs, Mapping) else ()
    is_compiling = torch.compiler.is_compiling()
    if is_compiling and _COMPARES_FUNCTIONS:
        _ = [id(each) for each in (*functions, options.pair)]  # else one of the same code passes for what was compiled
    name: str = _name(is_compiling, *functions, kinds, *rest, outputs, function)
    return name
