"""The operations as custom ops of PyTorch: schemas, shapes for its compiler, gradients, and the launches below them.

A custom op takes tensors, numbers and texts; whatever else a call has travels as `Extras`, by name. Tensors of a GPU
are launched there, tensors of the host run on the emulator.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from warploom.diagnostics import Diag, user_traceback
from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT, STRIDE_ALIGNMENT
from warploom.host.arrays import numpy_of
from warploom.ops.convolution import conv2d
from warploom.ops.dense import linear, matmul
from warploom.ops.determinism import SETTINGS
from warploom.ops.gated import gated_grouped_block_scaled_matmul, gated_grouped_matmul, gated_linear
from warploom.ops.grouped import grouped_matmul, padded_weights
from warploom.ops.operation import Operation
from warploom.ops.planning.arrays import ArrayDescriptor, Violations, clashes, leaves, mapped
from warploom.ops.planning.planner import plan
from warploom.ops.planning.prepare import launch_of
from warploom.ops.planning.user_functions import UserFunction, user_function
from warploom.ops.scaled import (
    block_scaled_matmul,
    blockwise_matmul,
    grouped_block_scaled_matmul,
    grouped_blockwise_matmul,
)
from warploom.runtime.gpu.driver import current_stream, device
from warploom.runtime.gpu.prepared import Prepared
from warploom.torch.internals import AFTER_AUTOGRAD, BACKEND_KEYS, autograd_impl
from warploom.torch.launch_cache import (
    Launcher,
    is_below_autograd,
    is_graded,
    launched_again,
    launcher_of,
    remember,
    state,
    store,
)
from warploom.torch.scale_factors import interleaved, padded_by_groups

OPERATIONS: dict[str, Operation] = {
    "matmul": matmul,
    "linear": linear,
    "conv2d": conv2d,
    "grouped_matmul": grouped_matmul,
    "blockwise_matmul": blockwise_matmul,
    "gated_linear": gated_linear,
    "gated_grouped_matmul": gated_grouped_matmul,
    "block_scaled_matmul": block_scaled_matmul,
    "grouped_block_scaled_matmul": grouped_block_scaled_matmul,
    "grouped_blockwise_matmul": grouped_blockwise_matmul,
    "gated_grouped_block_scaled_matmul": gated_grouped_block_scaled_matmul,
    "padded_weights": padded_weights,
}
LIBRARY = torch.library.Library("warploom", "DEF")
OPERANDS = {
    "matmul": ("a", "b"),
    "grouped_matmul": ("a", "b", "ends"),
    "blockwise_matmul": ("a", "b", "a_scale", "b_scale"),
}
"""The operands of the ops with one B; the rest of their arguments is the same for all."""
GATED = {"gated_linear": gated_linear.arrays, "gated_grouped_matmul": gated_grouped_matmul.arrays}
"""The operands of the gated ops."""
SCALED = {
    "block_scaled_matmul": block_scaled_matmul.arrays,
    "grouped_block_scaled_matmul": grouped_block_scaled_matmul.arrays,
    "grouped_blockwise_matmul": grouped_blockwise_matmul.arrays,
    "gated_grouped_block_scaled_matmul": gated_grouped_block_scaled_matmul.arrays,
}
"""The operands of scaled operations without a gradient."""
FUSED = {**SCALED, "conv2d": conv2d.arrays}
"""The operands of all operations without a gradient, which run by the op `fused_into`."""
SCALES_OF = {"a_scale": "a", "b_scale": "b", "b_gate_scale": "b_gate", "b_up_scale": "b_up"}
GROUPED = (
    "grouped_matmul",
    "gated_grouped_matmul",
    "grouped_block_scaled_matmul",
    "grouped_blockwise_matmul",
    "gated_grouped_block_scaled_matmul",
)
"""Operations that do not write rows after the last group."""
INTEGERS = ("ends", "expert_ids")
"""Operands that kernels read as int32."""
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_ROWS_OF_WEIGHTS = ("blockwise_matmul", "gated_linear", *SCALED)
"""Operations whose B is (n, k)."""
_EPILOGUE = (
    "Tensor? bias, Tensor? residual, Tensor[] operands, float[] numbers, float alpha, float beta, str activation"
)
_TAGS = (torch.Tag.pt2_compliant_tag,)


@dataclass(frozen=True)
class Extras:
    """The parts of a call that are neither tensors nor numbers nor texts of its op.

    The caller's functions, the operands that they read (with whether each is a number), configuration, target, the
    function of gate and up, the names of auxiliary outputs, the function that was called, the operands that it may have
    in addition to those of its op, the block format of its result, and the settings on which the form of its operands
    depends.
    """

    epilogue: Callable[..., Any] | None = None
    store: Callable[..., Any] | None = None
    operands: tuple[tuple[str, bool], ...] = ()
    config: Any = None
    target: str | None = None
    pair: Any = None
    outputs: tuple[str, ...] = ()
    function: str | None = None
    optional: tuple[str, ...] = ()
    quantise_to: str | None = None
    quantise_scale: float | None = None
    settings: tuple[tuple[str, Any], ...] = ()

    def options(self) -> dict[str, Any]:
        """As an operation takes them, without those that are None."""
        names = ("epilogue", "store", "config", "target", "pair", "quantise_to", "quantise_scale")
        return {**{name: value for name in names if (value := getattr(self, name)) is not None}, **dict(self.settings)}

    def key(self) -> Hashable:
        """Equal for equal functions; None where one captures a value that may change unnoticed."""
        names = tuple(name for name, _ in self.operands)
        functions = (self.epilogue, self.store, self.pair if callable(self.pair) else None)
        keys = [_function_key(each, names) for each in functions if each is not None]
        pair = None if callable(self.pair) else self.pair
        named = (self.operands, self.config, self.target, pair, self.outputs, self.function, self.optional)
        more = (self.quantise_to, self.quantise_scale, self.settings)
        return None if None in keys else (tuple(each is None for each in functions), *keys, *named, *more)


def _function_key(function: Callable[..., Any], names: tuple[str, ...]) -> UserFunction | None:
    made = user_function("epilogue", function, (*names, "out"), Violations("matmul"))
    return made if made is not None and made.key is not None else None


PLAIN = ""
"""The name of extras that are all None."""
_CHANGING = "?"
"""The first character of names of extras whose functions may change unnoticed."""
_NAMED: dict[str, Extras] = {PLAIN: Extras()}
_NAMES: dict[Hashable, str] = {Extras().key(): PLAIN}
_PERMANENT: set[str] = {PLAIN}
_MOST_TEMPORARY = 1024
_numbers = count()


def name_of(extras: Extras, *, is_permanent: bool = True) -> str:
    """The name of extras: the same for equal ones, and a new one where a function may change unnoticed.

    A temporary name is forgotten after a thousand others: it is needed until its call has run.
    """
    key = extras.key()
    try:
        name = _NAMES.get(key) if key is not None else None
    except TypeError:  # an unhashable configuration: planning reports it
        key = name = None
    if name is None:
        name = f"{_CHANGING if key is None else ''}{next(_numbers)}"
        if key is not None:
            _NAMES[key] = name
    _NAMED[name] = extras  # an earlier one was equal, but what its functions capture may have changed since
    if is_permanent:
        _PERMANENT.add(name)
    elif len(_NAMED) > len(_PERMANENT) + _MOST_TEMPORARY:
        _forget()
    return name


def _forget() -> None:
    """Drop the older half of the temporary names."""
    temporary = [name for name in list(_NAMED) if name not in _PERMANENT]
    gone = set(temporary[: len(temporary) // 2])
    for name in gone:
        del _NAMED[name]
    for key in [key for key, name in list(_NAMES.items()) if name in gone]:
        del _NAMES[key]


def may_change(name: str) -> bool:
    """Return whether the functions of extras may do something else at the next call."""
    return name.startswith(_CHANGING)


def extras_by(name: str) -> Extras:
    """The extras of a name."""
    if name not in _NAMED:
        raise Diag.NOT_IN_THIS_PROCESS.error(name=name)
    return _NAMED[name]


def compute(operation: str, arguments: dict[str, Any], key: Any, function: str | None = None) -> Launcher | None:
    """Run an operation into `out`, the last of its arguments; its launcher if it ran on a GPU.

    `key` has all that the launch depends on in addition to tensors; None where a function may change, and nothing is
    kept.
    `function` is the caller's name for it.
    """
    out: Tensor = arguments["out"]
    if not out.numel() or out.is_meta or not all(arguments.get("b", arguments.get("b_gate", out)).shape[:-2]):
        return None
    if not out.is_cuda:
        _run_on_host(operation, arguments, function)
        return None
    tensors = [tensor for _, tensor in leaves(arguments)]
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    signature: tuple[Any, ...] = ("signature", operation, key, SETTINGS.batch_invariant, out.get_device())
    signature += tuple((each.shape, each.stride(), each.dtype) for each in tensors)
    signature += tuple(address % ADDRESS_ALIGNMENT for address in addresses)
    launcher = launcher_of(signature) if key is not None else None
    if launcher is None:
        launcher = _planned(operation, arguments, function)
        if key is not None:
            store(signature, launcher)
    if launcher.copies:
        for _, at, axis in launcher.copies:
            tensors[at] = _padded(tensors[at], axis)  # the list keeps the copies until they are launched
        addresses = tuple(tensor.data_ptr() for tensor in tensors)
    launcher.prepared.launch_at(addresses, launcher.stream())
    return launcher


def _run_on_host(operation: str, arguments: dict[str, Any], function: str | None) -> None:
    violations = Violations(function or operation)
    arrays = mapped(arguments, lambda _, tensor: numpy_of(tensor.detach()))
    request = OPERATIONS[operation].request(arrays, violations)
    violations.check()
    plan(replace(request, function=function or operation)).run()


def _planned(operation: str, arguments: dict[str, Any], function: str | None) -> Launcher:
    """Plan an operation for the GPU of its tensors, which were checked before."""
    gpu = device(arguments["out"].get_device())
    violations = Violations(function or operation)
    asked = arguments.get("target")
    if asked not in (None, gpu.target):
        violations.add("target", asked, f"must be {gpu.target}, the target of the GPU that holds the tensors")
    violations.check()
    roots = {path: ArrayDescriptor.of(path, tensor) for path, tensor in leaves(arguments)}
    described = {**mapped(arguments, lambda path, _: roots[path]), "target": gpu.target}
    request = OPERATIONS[operation].request(described, violations, gpu=gpu.gpu)
    violations.check()
    made = launch_of(plan(replace(request, function=function or operation)), operation, roots)
    if made.unused:
        raise Diag.INTERNAL.error(what=f"the launch of `{operation}` does not read {', '.join(made.unused)}")
    prepared = Prepared(made.launch, tuple(made.arrays.values()), device=gpu)
    copies = [
        (name, at, -2 if each.is_transposed else -1)
        for at, (name, each) in enumerate(made.arrays.items())
        if each.is_copy
    ]
    return Launcher(prepared, current_stream(gpu), tuple(copies))


def _padded(tensor: Tensor, axis: int) -> Tensor:
    """A copy with an axis contiguous, in rows of whole 16 bytes; of an empty axis, one zero."""
    rows = tensor.transpose(axis, -1)
    bits = rows.view(torch.uint8) if rows.element_size() == 1 else rows
    *front, depth = (max(extent, 1) for extent in rows.shape)
    unit = STRIDE_ALIGNMENT // rows.element_size()
    padded = bits.new_zeros((*front, -(-depth // unit) * unit))
    if bits.numel():
        padded[..., :depth] = bits
    return padded[..., :depth].view(tensor.dtype).transpose(axis, -1)


def result_of(
    operation: str, operands: Sequence[Tensor], out_dtype: torch.dtype | None, shape: Sequence[int] | None = None
) -> Tensor:
    """A new result: of the dtype of A, bfloat16 for FP8; in the caller's shape if that is given, not as a view."""
    a, b = operands[:2]
    dtype = out_dtype or (torch.bfloat16 if a.dtype in FP8 or operation in SCALED else a.dtype)
    columns = b.shape[-2] if operation in _ROWS_OF_WEIGHTS else b.shape[-1]
    return torch.empty((*a.shape[:-1], columns) if shape is None else shape, dtype=dtype, device=a.device)


def read_integers(array: Tensor) -> Tensor:
    """Group ends and expert ids as kernels read them: contiguous int32."""
    return array.to(torch.int32).contiguous()


def operands_as_read(operation: str, operands: Sequence[Tensor], optional: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """The operands of an operation by name, as kernels read them: integers of 32 bits, scale factors interleaved."""
    names = (*{**OPERANDS, **GATED, **FUSED}[operation], *optional)
    arguments = dict(zip(names, operands, strict=True))
    arguments |= {name: read_integers(arguments[name]) for name in INTEGERS if name in arguments}
    if operation == "grouped_blockwise_matmul":
        arguments["a_scale"] = padded_by_groups(arguments["a_scale"], arguments["a"].shape[0], arguments["ends"])
        return arguments
    for scale, of in SCALES_OF.items():
        if operation in SCALED and scale in arguments and arguments[scale].dim() == arguments[of].dim():
            groups = arguments.get("ends") if of == "a" else None
            arguments[scale] = interleaved(arguments[scale], groups)
    return arguments


def _operands_by_name(tensors: list[Tensor], numbers: list[float], extras: Extras) -> dict[str, Any]:
    """The operands of the caller's functions by name, tensors and numbers in the caller's order."""
    given, floats = iter(tensors), iter(numbers)
    return {name: next(floats) if is_number else next(given) for name, is_number in extras.operands}


def run_into(
    operation: str,
    out: Tensor,
    operands: Sequence[Tensor],
    bias: Tensor | None,
    residual: Tensor | None,
    function_operands: list[Tensor],
    numbers: list[float],
    alpha: float,
    beta: float,
    activation: str,
    extras: str,
    *,
    up_bias: Tensor | None = None,
    outputs: Sequence[Tensor] = (),
) -> Launcher | None:
    """Compute D into `out`, and auxiliary outputs; the launcher if it was on a GPU."""
    more = extras_by(extras)
    is_gated = operation.startswith("gated")
    arguments: dict[str, Any] = operands_as_read(operation, operands, more.optional)
    *outputs, scales = outputs if more.quantise_to is not None else (*outputs, None)
    has_residual = residual is not None and beta != 0
    arguments |= {"alpha": alpha, "beta": beta if has_residual else 1.0, **more.options()}
    given = {
        "gate_bias" if is_gated else "bias": bias,
        "up_bias": up_bias,
        "residual": residual if has_residual else None,
        "activation": activation or None,
        "operands": _operands_by_name(function_operands, numbers, more) or None,
        "outputs": dict(zip(more.outputs, outputs, strict=True)) or None,
    }
    given["scales_out"] = scales
    arguments |= {name: value for name, value in given.items() if value is not None}
    arguments["out"] = out
    key = None if may_change(extras) else (extras, alpha, beta, activation, *numbers, *arguments)
    return compute(operation, arguments, key, more.function)


def write_into(operation: str, out: Tensor, operands: Sequence[Tensor], *epilogue: Any) -> Launcher | None:
    """Compute D into the caller's tensor, by way of a copy where it overlaps an input that is still to be read."""
    bias, residual, function_operands, *_, extras = epilogue
    stores_anywhere = extras_by(extras).store is not None
    if not clashes(out, operands, (bias, residual, *function_operands), stores_anywhere=stores_anywhere):
        return run_into(operation, out, operands, *epilogue)
    apart = out.clone()  # elements that the kernel does not write keep their values
    run_into(operation, apart, operands, *epilogue)
    out.copy_(apart)
    return None


def make(operation: str, *given: Any, is_dispatched: bool = False, key: Any = None) -> Tensor:
    """The implementation of an op: a new result, of a call that was remembered or of one that is planned.

    Below PyTorch's dispatcher tensors differ from those above it, and are remembered separately. With a key the caller
    has looked for the call itself, and remembers it by that.
    """
    number = len(OPERANDS[operation])
    operands, out_dtype = given[:number], given[-2]
    epilogue: tuple[Any, ...] = given[number:-2]
    extras: str = given[-1]
    tensors = [each for each in given[: number + 2] if each is not None]
    if operation == "matmul" and extras == PLAIN and key is None:
        bias, residual, numbers = epilogue[0], epilogue[1], epilogue[4:]
        key = ("op", is_dispatched, *state(), operands[0].shape, operands[1].shape)
        key += (out_dtype, bias is None, residual is None, *numbers)
        made = launched_again(key, tensors)
        if made is not None:
            return made
    out = result_of(operation, operands, out_dtype)
    if operation in GROUPED or extras_by(extras).store is not None:
        out.zero_()  # not all of it is written
    rest: Any = (*epilogue, extras)
    launcher = run_into(operation, out, operands, *rest)
    if key is not None:
        remember(key, launcher, out, tensors, tensors)
    return out


def _define(operation: str) -> None:
    """Define an op that makes its result."""
    number, tensors = len(OPERANDS[operation]), ", ".join(f"Tensor {name}" for name in OPERANDS[operation])
    LIBRARY.define(f"{operation}({tensors}, {_EPILOGUE}, ScalarType? out_dtype, str extras) -> Tensor", tags=_TAGS)
    for key in ("CUDA", "CPU"):
        LIBRARY.impl(operation, partial(make, operation, is_dispatched=True), key)
    torch.library.register_fake(
        f"warploom::{operation}", lambda *given: result_of(operation, given[:number], given[-2]), lib=LIBRARY
    )


for _operation in OPERANDS:
    _define(_operation)

LIBRARY.define(
    "fused_into(Tensor(z!) out, Tensor(y!)[] outputs, str operation, Tensor[] operands, Tensor? bias, Tensor? up_bias, "
    "Tensor? residual, Tensor[] function_operands, float[] numbers, float alpha, float beta, str activation, "
    "str extras) -> ()",
    tags=_TAGS,
)


def fused_into(
    out: Tensor,
    outputs: list[Tensor],
    operation: str,
    operands: list[Tensor],
    bias: Tensor | None,
    up_bias: Tensor | None,
    residual: Tensor | None,
    *epilogue: Any,
) -> Launcher | None:
    """Compute into tensors of the caller, as the only op that writes such; it has no gradient itself.

    A result without auxiliary outputs may overlap an input of an operation with one B.
    """
    rest: Any = (bias, residual, *epilogue)
    if operation in OPERANDS and not outputs:
        return write_into(operation, out, operands, *rest)
    return run_into(operation, out, operands, *rest, up_bias=up_bias, outputs=outputs)


def _write_fused(*given: Any) -> None:
    fused_into(*given)


for _backend in ("CUDA", "CPU"):
    LIBRARY.impl("fused_into", _write_fused, _backend)
torch.library.register_fake("warploom::fused_into", lambda *given: None, lib=LIBRARY)  # noqa: ARG005

LIBRARY.define(
    "plain_matmul(Tensor a, Tensor b, Tensor? bias, Tensor? residual, str following) -> Tensor",
    tags=_TAGS,
)


def plain_text(alpha: float, beta: float, activation: str, out_dtype: torch.dtype | None) -> str:
    """The epilogue of a GEMM without extras as one text, which another process can read."""
    return f"{alpha!r} {beta!r} {activation or '-'} {str(out_dtype).rpartition('.')[2]}"


@cache
def _read_plain(text: str) -> tuple[float, float, str, torch.dtype | None]:
    alpha, beta, activation, dtype = text.split(" ")
    return float(alpha), float(beta), activation.strip("-"), None if dtype == "None" else getattr(torch, dtype)


def _plain_matmul(a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, text: str) -> Tensor:
    """The op that compiled graphs call: few arguments, since each takes time at every call, and no gradient."""
    tensors = [each for each in (a, b, bias, residual) if each is not None]
    key = (text, a.shape, b.shape, bias is None, residual is None, is_below_autograd(), *state())
    made = launched_again(key, tensors)
    if made is None:
        alpha, beta, activation, out_dtype = _read_plain(text)
        made = result_of("matmul", (a, b), out_dtype)
        launcher = run_into("matmul", made, (a, b), bias, residual, [], [], alpha, beta, activation, PLAIN)
        remember(key, launcher, made, tensors, tensors)
    return made


for _backend in ("CUDA", "CPU"):
    LIBRARY.impl("plain_matmul", _plain_matmul, _backend)
LIBRARY.impl("plain_matmul", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake(
    "warploom::plain_matmul", lambda *given: result_of("matmul", given[:2], _read_plain(given[-1])[3]), lib=LIBRARY
)


def plain_or_whole(keys: Any, *given: Any) -> Any:
    """The op `matmul` below its gradient: `plain_matmul` where a call has no extras."""
    a, b, bias, residual, operands, numbers, *epilogue, extras = given
    if operands or numbers or extras != PLAIN:
        return torch.ops.warploom.matmul.default.redispatch(keys, *given)
    return torch.ops.warploom.plain_matmul.default.redispatch(keys, a, b, bias, residual, plain_text(*epilogue))


class _Replaced:
    """An op in whose place another is dispatched to below the gradient."""

    def __init__(self, op: Any, redispatch: Callable[..., Any]) -> None:
        self._op, self.redispatch = op, redispatch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


def register_autograd(
    name: str,
    backward: Callable[..., Any],
    setup_context: Callable[..., None],
    implementation: Callable[..., Any],
    below: Callable[..., Any] | None = None,
) -> None:
    """Register the gradient of an op, with a short cut for calls without grad mode.

    Compiled code calls ops that were differentiated already; by PyTorch's own registration each would still go through
    Python twice. `implementation` is what the op does on every device; `below` takes the dispatcher's keys and the op's
    arguments, and goes on in the place of the op.
    """
    backward, private = user_traceback(backward), autograd_impl()
    if private is None or AFTER_AUTOGRAD is None or None in BACKEND_KEYS:
        torch.library.register_autograd(f"warploom::{name}", backward, setup_context=setup_context, lib=LIBRARY)
        return
    info, make_impl = private
    op = getattr(torch.ops.warploom, name).default
    followed = make_impl(op if below is None else _Replaced(op, below), info(backward, setup_context))

    def call(keys: Any, *given: Any) -> Any:
        if not is_graded() and (keys & AFTER_AUTOGRAD).highestPriorityTypeId() in BACKEND_KEYS:
            return implementation(*given)
        return followed(keys, *given)

    LIBRARY.impl(name, call, "Autograd", with_keyset=True)
