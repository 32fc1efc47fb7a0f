"""The operations on PyTorch tensors, as `warploom.matmul` and the others call them.

An eager call that was made before goes straight to its launch. Any other is checked, brought into the form of a custom
op, and run: directly where only warploom is concerned, else through PyTorch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from warploom.diagnostics import Diag, WarploomError
from warploom.host.arrays import buffer_of, is_array
from warploom.ops.planning.arrays import Violations
from warploom.ops.planning.keywords import ARRAY, DEFAULT_PAIR, INPUTS, KEYWORDS, NAME, NUMBER, NUMBERS, UNGATED
from warploom.ops.planning.planner import check_route
from warploom.ops.planning.quantised import Quantised, scales_shape, values_shape
from warploom.ops.planning.request import Request, check
from warploom.runtime.cache.fingerprint import source_version
from warploom.runtime.gpu.driver import device_of
from warploom.structured.epilogue.epilogue import PRE_ACTIVATION
from warploom.torch import scale_factors
from warploom.torch.arguments import (
    FUSED,
    GROUPED,
    MULTIPLIED,
    OPERATIONS,
    SCALED,
    Encoded,
    cast,
    check_tensors,
    encoded,
    extras_by,
    in_shape,
    is_regular,
    op_operands,
    op_shape,
    raise_all,
    request_of,
    tensors_of,
    torch_dtype,
)
from warploom.torch.autograd import differentiable
from warploom.torch.internals import constant, has_autocast
from warploom.torch.launch_cache import is_forward_ad, is_graded, launched, mark_written, remember
from warploom.torch.op_library import (
    LIBRARY,
    TAGS,
    clears_rows,
    compute,
    new_result,
    operands_as_read,
    result_of,
    write_into,
)
from warploom.torch.saved_values import run_saving
from warploom.torch.sharding import SHARDED, UNSHARDED_OPTIONS, is_distributed

_FUNCTIONS = tuple(name for name in OPERATIONS if name != "grouped_weights")
_PLAIN_INPUTS = tuple(name for name in INPUTS if name in UNGATED)
_KEYWORDS = {name: frozenset(signature(OPERATIONS[name]).parameters) for name in _FUNCTIONS}


def _known(function: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a call; an unknown one is the error that it is for any Python function."""
    for name in options:
        if name not in _KEYWORDS[function]:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    return options


@constant
def _of_this_version(function: str) -> str:
    """A function's name for the compiler, which keeps on disk what it made of the op that gets it."""
    return f"{function} {source_version() or ''}"


def matmul(a: Tensor, b: Tensor, **options: Any) -> Tensor:
    """`a @ b` with its epilogue, in one kernel."""
    return _gemm("matmul", a, b, options)


def linear(x: Tensor, w: Tensor, **options: Any) -> Tensor:
    """`x @ w.T` with its epilogue, in one kernel."""
    return _gemm("linear", x, w, options)


def conv2d(x: Tensor, w: Tensor, **options: Any) -> Tensor:
    """The convolution of images NCHW with filters OIHW, as views with the channels last; so is the result."""
    given = {name: _channels_last(value) for name, value in _known("conv2d", options).items()}
    made = _ran("conv2d", (_channels_last(x), _channels_last(w)), given)
    out: Tensor | None = options.get("out")
    return made.permute(0, 3, 1, 2) if out is None else out


def _channels_last(value: Any) -> Any:
    """A tensor (n, c, h, w), or a mapping of such, as (n, h, w, c); any other value as it is."""
    if isinstance(value, Mapping):
        return {name: _channels_last(each) for name, each in value.items()}
    return value.permute(0, 2, 3, 1) if isinstance(value, Tensor) and value.dim() == 4 else value


def gated_linear(x: Tensor, w_gate: Tensor, w_up: Tensor, **options: Any) -> Tensor:
    """Two GEMMs of one A, combined element by element, in one kernel."""
    return _gated("gated_linear", (x, w_gate, w_up), options)


def gated_grouped_matmul(a: Tensor, b_gate: Tensor, b_up: Tensor, ends: Tensor, **options: Any) -> Tensor:
    """Rows of a times both matrices of their group, combined element by element, in one kernel."""
    return _gated("gated_grouped_matmul", (a, b_gate, b_up, ends), options)


def _gated(function: str, operands: tuple[Tensor, ...], options: dict[str, Any]) -> Tensor:
    given = {"pair": DEFAULT_PAIR, **_known(function, options)}
    if "gate_bias" in given:
        given["bias"] = given.pop("gate_bias")
    return _ran(function, operands, given)


def grouped_matmul(a: Tensor, b: Tensor, ends: Tensor, **options: Any) -> Tensor:
    """Rows of a times the matrix of their group; `ends` are on the same device, and the host does not read them."""
    if isinstance(b, list | tuple):
        return _separate(a, b, ends, _known("grouped_matmul", options))
    return _ran("grouped_matmul", (a, b, ends), _known("grouped_matmul", options))


def _separate(a: Tensor, weights: Sequence[Tensor], ends: Tensor, options: dict[str, Any]) -> Tensor:
    """`grouped_matmul` with weights that are allocated separately; eager and without gradients."""
    violations = Violations("grouped_matmul")
    if not all(isinstance(each, Tensor) for each in weights):
        violations.add("b", weights, "must be a list of tensors")
    elif torch.is_grad_enabled() and any(each.requires_grad for each in (a, *weights)):
        violations.add("b", weights, "has no gradients as a list: stack the weights, or call it under torch.no_grad()")
    elif torch.compiler.is_compiling():
        violations.add("b", weights, "cannot be compiled as a list: stack the weights")
    violations.check()
    arguments = {"a": a, "b": {str(number): each for number, each in enumerate(weights)}, "ends": ends, **options}
    out = arguments.pop("out", None)
    if out is None:
        out = a.new_zeros((a.shape[0], *weights[0].shape[1:]), dtype=torch_dtype(options.get("out_dtype")) or a.dtype)
    plain = {name: each for name, each in options.items() if not isinstance(each, Tensor)}
    is_known = all(isinstance(each, str | float | int | torch.dtype | None) for each in plain.values())
    compute("grouped_matmul", {**arguments, "out": out}, tuple(plain.items()) if is_known else None)
    return out


def blockwise_matmul(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, **options: Any) -> Tensor:
    """The GEMM of FP8 operands with a scale for each block of 128."""
    return _ran("blockwise_matmul", (a, b, a_scale, b_scale), _known("blockwise_matmul", options))


def block_scaled_matmul(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, **options: Any) -> Tensor:
    """The GEMM of operands in a block format; 4-bit elements are packed, as float4_e2m1fn_x2 or uint8."""
    operands = (*map(as_bytes, (a, b)), a_scale, b_scale)
    return _ran("block_scaled_matmul", operands, _known("block_scaled_matmul", options))


def grouped_blockwise_matmul(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, ends: Tensor, **options: Any
) -> Tensor:
    """FP8 rows of a times the matrix of their group, with a scale for each block of 128."""
    operands = (a, b, a_scale, b_scale, ends)
    return _ran("grouped_blockwise_matmul", operands, _known("grouped_blockwise_matmul", options))


def grouped_block_scaled_matmul(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, ends: Tensor, **options: Any
) -> Tensor:
    """Rows of a times the matrix of their group, in a block format; the host does not read `ends`."""
    operands = (*map(as_bytes, (a, b)), a_scale, b_scale, ends)
    return _ran("grouped_block_scaled_matmul", operands, _known("grouped_block_scaled_matmul", options))


def gated_grouped_block_scaled_matmul(
    a: Tensor,
    b_gate: Tensor,
    b_up: Tensor,
    a_scale: Tensor,
    b_gate_scale: Tensor,
    b_up_scale: Tensor,
    ends: Tensor,
    **options: Any,
) -> Any:
    """Both GEMMs of a row in a block format, combined, and quantised to a block format if `quantise_to` is given."""
    operands = (*map(as_bytes, (a, b_gate, b_up)), a_scale, b_gate_scale, b_up_scale, ends)
    return _gated("gated_grouped_block_scaled_matmul", operands, options)


def quantise_mxfp8(x: Tensor, dtype: Any) -> Quantised:
    """MXFP8 of a tensor, on its device."""
    return scale_factors.quantise_mxfp8(x, torch_dtype(dtype))


def quantise_nvfp4(x: Tensor) -> Quantised:
    """NVFP4 of a tensor, on its device."""
    return scale_factors.quantise_nvfp4(x)


def as_bytes(operand: Any) -> Any:
    """An operand with 4-bit elements packed in bytes."""
    is_packed = isinstance(operand, Tensor) and operand.dtype == torch.float4_e2m1fn_x2
    return operand.view(torch.uint8) if is_packed else operand


def _ran(function: str, operands: tuple[Tensor, ...], options: dict[str, Any]) -> Tensor:
    """An operation whose gradient is that of its op: launched as before, or checked and run."""
    optional = tuple(name for name in OPERATIONS[function].optional if options.get(name) is not None)
    if optional:
        operands = (*operands, *(options[name] for name in optional))
        options = {name: value for name, value in options.items() if name not in optional}
    known_as = " ".join((function, *optional))
    made, key = (None, None) if torch.compiler.is_compiling() else launched(known_as, operands, options)
    return _checked(function, key, operands, options, optional) if made is None else made


_RETURNS = {"cupy": "cupy", "jax": "jax.numpy", "jaxlib": "jax.numpy"}
"""By the package of an array's type, the module that takes a tensor back."""


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch."""
    return isinstance(value, Tensor)


def for_others(operation: str) -> Callable[..., Any]:
    """An operation for arrays of other libraries, which share their memory with tensors (DLPack)."""

    def run(*args: Any, **options: Any) -> Any:
        violations, names = Violations(operation), OPERATIONS[operation].arrays
        tensors = [_tensor(name, value, violations) for name, value in zip(names, args, strict=False)]
        given = {name: _tensor(name, value, violations) for name, value in options.items()}
        violations.check()
        made = globals()[operation](*tensors, *args[len(names) :], **given)
        if options.get("out") is not None:
            return options["out"]
        first = args[0] if args else options[names[0]]
        package = type(first).__module__.partition(".")[0]
        return import_module(_RETURNS[package]).from_dlpack(made) if package in _RETURNS else made

    return run


def _tensor(name: str, value: Any, violations: Violations) -> Any:
    """An array as a tensor over the same memory; any other value as it is."""
    if isinstance(value, Mapping):
        return {each: _tensor(f"{name}[{each!r}]", item, violations) for each, item in value.items()}
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
        violations.add(name, value, f"must share its memory with PyTorch, which refuses it ({reason})")
        return value


def _gemm(function: str, a: Tensor, b: Tensor, options: dict[str, Any]) -> Tensor:
    """A GEMM; the compiler gets one op, and need not trace further, where the call is certainly valid."""
    if not torch.compiler.is_compiling():
        return _eager(function, a, b, options)
    if is_regular(function, a, b, **options):
        made: Tensor = torch.ops.warploom.front(_of_this_version(function), a, b, **options)
        return made
    return _checked(function, None, (a, b), _known(function, options))


def _eager(function: str, a: Tensor, b: Tensor, options: dict[str, Any]) -> Tensor:
    """A GEMM outside the compiler, with its gradient where one is needed."""
    if has_autocast() and isinstance(a, Tensor) and isinstance(b, Tensor):
        a, b = cast((a, b), 2)
    if is_graded() and _needs_gradient(a, b, options):
        made = differentiable(function, a, b, options, _run)
        if made is not None:
            return made
    return _run(function, a, b, options)


def _needs_gradient(a: Any, b: Any, options: dict[str, Any]) -> bool:
    if getattr(a, "requires_grad", False) or getattr(b, "requires_grad", False):
        return True
    return bool(options) and any(getattr(options.get(name), "requires_grad", False) for name in _PLAIN_INPUTS)


def _front_schema() -> str:
    """The schema of `front`, which has the keywords of an ungated GEMM."""
    types = {NUMBER: "float", NAME: "str?", ARRAY: "Tensor?"}
    given = [f"{types[KEYWORDS[name].kind]} {name}={NUMBERS.get(name)}" for name in KEYWORDS if name in UNGATED]
    return f"front(str function, Tensor a, Tensor b, *, {', '.join(given)}, ScalarType? out_dtype=None) -> Tensor"


LIBRARY.define(_front_schema(), tags=TAGS)
LIBRARY.impl(
    "front",
    lambda function, a, b, **options: _eager(function.partition(" ")[0], a, b, options),
    "CompositeImplicitAutograd",
)


def _run(function: str, a: Tensor, b: Tensor, options: dict[str, Any], kept: tuple[Tensor, ...] = ()) -> Tensor:
    """A GEMM without gradient: launched as before, or checked and run; `kept` gets the input of the activation."""
    made, key = launched(function, (a, b), options, kept)
    if made is not None:
        return made
    given = {**_known(function, options), "outputs": {PRE_ACTIVATION: kept[0]}} if kept else _known(function, options)
    return _checked(function, key, (a, b), given)


def _checked(
    function: str, key: Any, operands: tuple[Tensor, ...], options: dict[str, Any], optional: tuple[str, ...] = ()
) -> Tensor:
    """Check a call, bring it into the form of its op, and run it; `optional` are the names of its last operands."""
    violations, is_compiling = Violations(function), torch.compiler.is_compiling()
    operation = "matmul" if function == "linear" else function
    names = (*OPERATIONS[function].arrays, *optional)
    arrays = _arrays(names, operands, options)
    valid = check_tensors(arrays, len(operands), violations)
    given = {**options, "out_dtype": torch_dtype(options.get("out_dtype"))}
    if len(violations):
        given = _without(given, arrays, valid)
    if all(name in valid for name in names):
        cast_ = cast(operands, MULTIPLIED.get(function, 2))
        request = request_of(function, names, tuple(each.resolve_neg() for each in cast_), given, violations)
    else:
        known = {name: value for name, value in given.items() if name not in OPERATIONS[function].settings}
        request = Request(function=function, is_gated=function in MULTIPLIED, **known)
    check(request, violations, is_compiling=is_compiling)
    is_sharded = key is None and not is_compiling and is_distributed(arrays.values())
    if is_sharded:
        _check_sharded(function, operands[0], options, violations)
    if len(violations) and not is_compiling:
        check_route(request, violations)  # the rest of what planning would report
    raise_all(violations)
    _refuse_tangents([each for each in arrays.values() if isinstance(each, Tensor)])
    own = [each for each in arrays.values() if isinstance(each, Tensor)]
    return _run_checked(operation, request, key, own, optional, is_sharded=is_sharded)


def _check_sharded(function: str, first: Tensor, options: dict[str, Any], violations: Violations) -> None:
    """Check that there is a sharding rule for a call with distributed tensors."""
    name = OPERATIONS[function].arrays[0]
    if function not in SHARDED:
        violations.add(name, first, f"must not be distributed: only {', '.join(SHARDED)} have sharding rules")
    for each in UNSHARDED_OPTIONS:
        if options.get(each) is not None:
            violations.add(each, options[each], "must be None if the operands are distributed")


def _arrays(names: tuple[str, ...], operands: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a call by the caller's names, in the order in which its launch takes them."""
    inputs = {name: options.get(name) for name in INPUTS}
    if "pair" in options:
        inputs = {"gate_bias" if name == "bias" else name: each for name, each in inputs.items()}
    for group in ("operands", "outputs"):
        given = options.get(group)
        if isinstance(given, Mapping):
            inputs = {**inputs, **{f"{group}[{name!r}]": each for name, each in given.items()}}
    arrays = {**dict(zip(names, operands, strict=True)), **inputs, "out": options.get("out")}
    return {name: value for name, value in arrays.items() if value is not None or name in names}


def _without(options: dict[str, Any], arrays: dict[str, Any], valid: dict[str, Any]) -> dict[str, Any]:
    """The options without invalid arrays, which are reported already."""
    left = dict(options)
    for name in arrays:
        if name not in valid:
            left.pop("bias" if name == "gate_bias" else name, None)
    for group in ("operands", "outputs"):
        given = left.get(group)
        if isinstance(given, Mapping):
            wrong = [each for each in given if f"{group}[{each!r}]" in arrays and f"{group}[{each!r}]" not in valid]
            left[group] = {each: value for each, value in given.items() if each not in wrong}
    return left


def _run_checked(
    operation: str,
    request: Request,
    key: Any,
    own: list[Tensor],
    optional: tuple[str, ...] = (),
    *,
    is_sharded: bool = False,
) -> Tensor:
    """Run a valid call: launched here where only warploom is concerned, else by its custom op.

    With a key the call may be remembered; `own` are the caller's tensors.
    """
    operands, epilogue = op_operands(operation, request), encoded(request, optional)
    if key is None and not optional and operation not in FUSED:  # with a key no gradient is needed
        saved = run_saving(operation, operands, epilogue, request, is_sharded=is_sharded)
        if saved is not None:
            return saved
    if key is not None and (operation in GROUPED or operation in FUSED):
        taken = operands_as_read(operation, operands, optional).values()
        if request.quantise_to is not None or any(one is not own for one, own in zip(taken, operands, strict=True)):
            key = None  # the launch reads a copy of group ends or scale factors
    is_fused = request.is_gated or request.outputs is not None or optional or operation in FUSED
    if is_fused or request.out is not None:
        return _run_into(operation, request, operands, epilogue, key, own, has_gradient=not is_fused)
    if key is None:
        a, b, *extra = operands
        made = torch.ops.warploom.gemm(operation, a, b, extra, *epilogue, request.out_dtype)
        return in_shape(made, request.shape)
    shapes = {"shape": request.shape, "core": request.core}
    return new_result(operation, operands, epilogue, request.out_dtype, **shapes, key=key, own=own)


def _refuse_tangents(tensors: list[Tensor]) -> None:
    """There is no forward-mode gradient, which would silently be zero."""
    if not is_forward_ad() or torch.compiler.is_compiling():
        return
    if any(forward_ad.unpack_dual(each).tangent is not None for each in tensors):
        raise Diag.NO_DERIVATIVE.error(what="a GEMM in forward mode (`jvp`, `jacfwd`, dual tensors)")


def _run_into(
    operation: str,
    request: Request,
    operands: tuple[Tensor, ...],
    epilogue: Encoded,
    key: Any,
    own: list[Tensor],
    *,
    has_gradient: bool,
) -> Tensor:
    """Run a call that writes tensors of the caller, or one without a gradient: into a new tensor, or by way of a copy.

    `has_gradient` says whether the call would have one without `out`.
    """
    out, core = request.out, op_shape(request)
    outputs = [each.view(core) for each in (request.outputs or {}).values()]
    read = [*operands, *tensors_of(epilogue)]
    results = [each for each in (*outputs, out) if each is not None]
    if torch.is_grad_enabled() and any(each.requires_grad for each in (*read, *results)):
        raise Diag.NO_DERIVATIVE.error(what="`out`" if has_gradient else _underivable(operation, request, epilogue))
    if request.quantise_to is not None:
        return _run_quantised(operation, request, operands, outputs, epilogue)
    is_partial, is_viewable = operation in GROUPED, out is not None and _has_view(out, core)
    clears = False
    if out is None:
        made = result_of(operation, operands, request.out_dtype, tuple(request.shape))
        clears = key is not None and request.store is None and clears_rows(operation, made)
        made = made.zero_() if is_partial and not clears else made
    else:
        made = out if request.store is not None or is_viewable else out.reshape(core).clone()
    written = made if request.store is not None else made.view(core)
    if key is None:
        torch.ops.warploom.gemm_into(written, outputs, operation, list(operands), *epilogue)
    else:
        launcher = write_into(operation, operands, epilogue, written, outputs, clears=clears)
        if clears and launcher is None:
            made.zero_()  # there are no groups
        if out is None:
            remember(key, launcher, made, own, [*read, *outputs], starts_at_zero=is_partial and not clears)
        elif is_viewable and not outputs and request.store is None:
            remember(key, launcher, out, own[:-1], read, writes_out=True, matrices=len(operands))
    for each in outputs:
        mark_written(each)
    if out is None:
        return made
    return mark_written(out) if made is out else out.copy_(made.view(tuple(request.shape)))


def _has_view(out: Tensor, core: tuple[int, ...]) -> bool:
    """Return whether the caller's tensor has the kernel's shape without a copy."""
    return out.is_contiguous() or tuple(out.shape) == core


def _underivable(operation: str, request: Request, epilogue: Encoded) -> str:
    """The parts of a call that have no gradient."""
    named = [f"`{name}`" for name in ("epilogue", "outputs", "out") if getattr(request, name) is not None]
    named += ["a function for `pair`"] if callable(request.pair) else []
    named += [f"`{name}`" for name in extras_by(epilogue[-1]).optional]
    named += ["scaled operands"] if operation in SCALED else ["a convolution"] if operation in FUSED else []
    return " and ".join(named)


def _run_quantised(
    operation: str, request: Request, operands: tuple[Tensor, ...], outputs: list[Tensor], epilogue: Encoded
) -> Any:
    """Run a GEMM whose result is in a block format: its values, and its scales interleaved by groups."""
    format_, (m, n), like = request.quantise_to, tuple(request.core), operands[0]
    of_values, of_scales = _QUANTISED[format_]
    groups = request.extra["ends"].shape[0]
    values = torch.zeros(values_shape(format_, m, n), dtype=torch.uint8, device=like.device).view(of_values)
    scales = torch.zeros(scales_shape(format_, m, n, groups), dtype=torch.uint8, device=like.device)
    torch.ops.warploom.gemm_into(values, [*outputs, scales], operation, list(operands), *epilogue)
    made: Any = (values, scales.view(of_scales), float(request.quantise_scale))
    return Quantised(*made)


_QUANTISED = {
    "mxfp8": (torch.float8_e4m3fn, torch.float8_e8m0fnu),
    "nvfp4": (torch.uint8, torch.float8_e4m3fn),
}
"""By block format: the dtypes of the values, 4-bit ones packed, and of the scales."""
