"""The arguments of a call on PyTorch tensors: the rules that only tensors have, autocast, and the form for custom ops.

All other rules are those of `warploom.ops.planning.request`, for tensors as for NumPy arrays. A custom op takes
tensors, numbers and texts. An epilogue travels as its arrays, the tensors that the caller's functions read, its numbers
and one text, as the table of keywords says: nothing here knows a keyword. Whatever is no text is kept as `Extras`, by
name. PyTorch's compiler traces this module.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any

import torch
from torch import Tensor

from warploom.diagnostics import Diag
from warploom.ops.convolution import conv2d
from warploom.ops.dense import linear, matmul, with_rows
from warploom.ops.gated import gated_grouped_block_scaled_matmul, gated_grouped_matmul, gated_linear
from warploom.ops.grouped import grouped_matmul, padded_weights
from warploom.ops.operation import Operation
from warploom.ops.planning.arrays import Violations, is_number, type_name
from warploom.ops.planning.keywords import ACCUMULATOR, FACTORS, INPUTS, NAMES, NUMBERS, UNGATED
from warploom.ops.planning.request import Request, is_named
from warploom.ops.planning.user_functions import UserFunction, user_function
from warploom.ops.scaled import (
    block_scaled_matmul,
    blockwise_matmul,
    grouped_block_scaled_matmul,
    grouped_blockwise_matmul,
)
from warploom.structured.epilogue.epilogue import ACTIVATIONS
from warploom.torch.internals import constant

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
    "grouped_weights": padded_weights,
}
"""By name; the last one is only for gradients."""
OPERANDS = {
    "matmul": ("a", "b"),
    "grouped_matmul": ("a", "b", "ends"),
    "blockwise_matmul": ("a", "b", "a_scale", "b_scale"),
    "grouped_weights": ("a", "b", "ends"),
}
"""The operands of the operations that the op `gemm` runs."""
GATED = {"gated_linear": gated_linear.arrays, "gated_grouped_matmul": gated_grouped_matmul.arrays}
"""The operands of the gated operations with a gradient."""
SCALED = {
    "block_scaled_matmul": block_scaled_matmul.arrays,
    "grouped_block_scaled_matmul": grouped_block_scaled_matmul.arrays,
    "grouped_blockwise_matmul": grouped_blockwise_matmul.arrays,
    "gated_grouped_block_scaled_matmul": gated_grouped_block_scaled_matmul.arrays,
}
"""The operands of scaled operations without a gradient."""
FUSED = {**SCALED, "conv2d": conv2d.arrays}
"""The operands of all operations without a gradient, which the op `gemm_into` runs."""
SCALES_OF = {"a_scale": "a", "b_scale": "b", "b_gate_scale": "b_gate", "b_up_scale": "b_up"}
GROUPED = (
    "grouped_matmul",
    "gated_grouped_matmul",
    "grouped_block_scaled_matmul",
    "grouped_blockwise_matmul",
    "gated_grouped_block_scaled_matmul",
)
"""Operations that do not write rows after the last group."""
CLEARING = ("grouped_matmul", "gated_grouped_matmul")
"""Those whose kernel can set them to zero."""
INTEGERS = ("ends", "expert_ids")
"""Operands that kernels read as int32."""
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_CAST = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that autocast casts."""
_DEVICES = ("cpu", "cuda", "meta")
_CASTING = ("cpu", "cuda")
"""The devices that have autocast."""
_REGULAR_NUMBERS = tuple(name for name in NUMBERS if name in UNGATED)
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
            settings = {name: options[name] for name in operation.settings if name in options}
            formed = with_rows(a, b.mT, ("a", "b"), violations, **settings)
            rest = {name: value for name, value in options.items() if name not in settings}
            return Request(function=function, **(formed or {}), **rest)
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
    activation: Any = None,
    out_dtype: Any = None,
    **numbers: Any,
) -> bool:
    """Return whether a call is a GEMM of valid matrices without special options, as most are.

    PyTorch's compiler traces this and guards on all that it reads, at every call: it reads little.
    """
    given = [each for each in (a, b, bias, residual) if each is not None]
    if not all(isinstance(each, Tensor) for each in given):
        return False
    if numbers and not all(name in _REGULAR_NUMBERS and type(each) is float for name, each in numbers.items()):
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
        and (activation is None or is_named(activation, ACTIVATIONS))
        and (out_dtype is None or out_dtype in _CAST)
    )


Encoded = tuple[Any, ...]
"""An epilogue as ops take it: its arrays in order, the tensors that functions read, its numbers and its text."""


def optional_tensors(names: tuple[str, ...]) -> str:
    """The part of an op's schema for arrays that may be None."""
    return ", ".join(f"Tensor? {name}" for name in names)


EPILOGUE = f"{optional_tensors(INPUTS)}, Tensor[] operands, float[] numbers, str options"
"""The schema of an encoded epilogue."""
DEFAULT_NUMBERS = list(NUMBERS.values())
NO_INPUTS = (None,) * len(INPUTS)
NOT_FACTORS = frozenset(NUMBERS) - frozenset(FACTORS)
"""Numbers that gradients do not follow from."""
_FACTOR_PLACES = [(at, FACTORS[name]) for at, name in enumerate(NUMBERS) if name in FACTORS]
_OTHER_PLACES = [(at, name) for at, name in enumerate(NUMBERS) if name in NOT_FACTORS]
_COMPARES_FUNCTIONS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Return whether PyTorch's compiler recompiles for another function where a function's identity is read."""


@dataclass(frozen=True)
class Extras:
    """The parts of a call that are neither tensors nor numbers: first those that one text can hold, then the others.

    Names by keyword, the target, the names of auxiliary outputs, and the function that was called. The caller's
    functions, the operands that they read (with whether each is a number), configuration, the function of gate and up,
    the operands that the call has in addition to those of its op, and the settings on which the form of its operands
    depends.
    """

    names: tuple[tuple[str, str], ...] = ()
    target: str | None = None
    outputs: tuple[str, ...] = ()
    function: str | None = None
    epilogue: Callable[..., Any] | None = None
    store: Callable[..., Any] | None = None
    operands: tuple[tuple[str, bool], ...] = ()
    config: Any = None
    pair: Callable[..., Any] | None = None
    optional: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    def options(self) -> dict[str, Any]:
        """As an operation takes them, without those that are None."""
        names = ("epilogue", "store", "config", "target", "pair")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {**dict(self.names), **given, **dict(self.settings)}

    def name(self, keyword: str) -> str | None:
        """The value of a keyword that is a name."""
        return next((value for name, value in self.names if name == keyword), None)

    def key(self) -> Hashable:
        """Equal for equal functions; None where one captures a value that may change unnoticed."""
        names = tuple(name for name, _ in self.operands)
        functions = (self.epilogue, self.store, self.pair)
        keys = [_function_key(each, names) for each in functions if each is not None]
        texts = (self.names, self.target, self.outputs, self.function)
        others = (self.operands, self.config, self.optional, self.settings)
        return None if None in keys else (tuple(each is None for each in functions), *keys, *texts, *others)

    def text(self) -> str | None:
        """All of it as one text, which another process can read; None if there is more than names."""
        objects = (self.epilogue, self.store, self.config, self.pair)
        if any(each is not None for each in objects) or self.operands or self.optional or self.settings:
            return None
        given = (*self.names, ("target", self.target), ("function", self.function))
        parts = [f"{name}={value}" for name, value in given if value is not None]
        parts += [f"outputs={','.join(self.outputs)}"] if self.outputs else []
        is_readable = all(isinstance(each, str) and not set(each) & set(" =,") for _, each in given if each is not None)
        return " ".join(parts) if is_readable else None


def _function_key(function: Callable[..., Any], names: tuple[str, ...]) -> UserFunction | None:
    made = user_function("epilogue", function, (*names, "out"), Violations("matmul"))
    return made if made is not None and made.key is not None else None


PLAIN = ""
"""The name of extras that are all None."""
_CHANGING = "?"
"""The first character of names of extras whose functions may change unnoticed."""
_NUMBERED = "#"
"""In the name of extras that only this process knows."""
_NAMED: dict[str, Extras] = {}
_NAMES: dict[Hashable, str] = {}
_PERMANENT: set[str] = set()
_MOST_TEMPORARY = 1024
_numbers = count()


def name_of(extras: Extras, *, is_permanent: bool = True) -> str:
    """The name of extras: their text, or a number of this process where they are more than that.

    A number is the same for equal extras, and a new one where a function may change unnoticed. A temporary one is
    forgotten after a thousand others: it is needed until its call has run.
    """
    text = extras.text()
    if text is not None:
        return text
    key = extras.key()
    try:
        name = _NAMES.get(key) if key is not None else None
    except TypeError:  # an unhashable configuration: planning reports it
        key = name = None
    if name is None:
        name = f"{_CHANGING if key is None else ''}{_NUMBERED}{next(_numbers)}"
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


def is_text(name: str) -> bool:
    """Return whether the name of extras says all of them, in every process."""
    return _NUMBERED not in name


def extras_by(name: str) -> Extras:
    """The extras of a name."""
    if is_text(name):
        return _read(name)
    if name not in _NAMED:
        raise Diag.NOT_IN_THIS_PROCESS.error(name=name)
    return _NAMED[name]


@lru_cache(1024)
def _read(text: str) -> Extras:
    given = dict(part.split("=") for part in text.split())
    target, function = given.pop("target", None), given.pop("function", None)
    outputs = tuple(given.pop("outputs").split(",")) if "outputs" in given else ()
    return Extras(names=tuple(given.items()), target=target, outputs=outputs, function=function)


@lru_cache(1024)
def _with_outputs(text: str, outputs: tuple[str, ...]) -> str:
    return name_of(replace(extras_by(text), outputs=outputs))


def with_outputs(options: str, outputs: tuple[str, ...]) -> str:
    """The name of the same extras, with auxiliary outputs."""
    return _with_outputs(options, outputs) if is_text(options) else _with_outputs.__wrapped__(options, outputs)


@constant
def _name(is_permanent: bool, *parts: Any) -> str:
    """The name of extras; PyTorch's compiler calls it with the parts, since it cannot trace one value of them."""
    return name_of(Extras(*parts), is_permanent=is_permanent)


def encoded(request: Request, optional: tuple[str, ...] = ()) -> Encoded:
    """The epilogue of a valid request as ops take it; `optional` are the names of additional operands."""
    inputs = [epilogue_input(name, getattr(request, name), request) for name in INPUTS]
    named = [epilogue_input(f"operands[{name!r}]", each, request) for name, each in (request.operands or {}).items()]
    numbers = [float(getattr(request, name)) for name in NUMBERS]
    numbers += [float(each) for each in named if not isinstance(each, Tensor)]
    return *inputs, [each for each in named if isinstance(each, Tensor)], numbers, _options(request, optional)


def _options(request: Request, optional: tuple[str, ...]) -> str:
    """The name of all that is neither a tensor nor a number."""
    named = ((name, getattr(request, name)) for name in NAMES)
    names = tuple((name, value) for name, value in named if isinstance(value, str))
    pair = None if isinstance(request.pair, str) else request.pair
    others = (request.target, request.outputs, request.epilogue, request.store, request.operands, request.config, pair)
    settings = _settings(request)
    is_compiling = torch.compiler.is_compiling()
    if not optional and not settings and all(each is None for each in others):
        only: str = _name(is_compiling, names) if names else PLAIN
        return only
    if is_compiling and _COMPARES_FUNCTIONS:
        _ = [id(each) for each in (request.epilogue, request.store, pair)]  # guards, else equal code would pass for it
    kinds = tuple((name, not isinstance(value, Tensor)) for name, value in (request.operands or {}).items())
    texts = (names, request.target, tuple(request.outputs or {}), request.function)
    functions = (request.epilogue, request.store)
    made: str = _name(is_compiling, *texts, *functions, kinds, request.config, pair, optional, settings)
    return made


def _settings(request: Request) -> tuple[tuple[str, Any], ...]:
    """The settings on which the form of a call's operands depends, by name."""
    window, fields = request.window, request.fields or {}
    if window is None:
        return (("precision", fields["precision"]),) if "precision" in fields else ()
    return ("stride", window.stride), ("padding", window.padding), ("dilation", window.dilation)


def decoded(epilogue: Encoded, *, is_gated: bool) -> dict[str, Any]:
    """An encoded epilogue as the keywords of an operation; an array that is multiplied by zero is left out."""
    *inputs, tensors, numbers, options = epilogue
    more = extras_by(options)
    given: dict[str, Any] = dict(zip(NUMBERS, numbers, strict=False))
    arrays = {name: each for name, each in zip(INPUTS, inputs, strict=True) if each is not None}
    for name, of in FACTORS.items():
        if of in INPUTS:
            if given[name] == 0:
                arrays.pop(of, None)
            if of not in arrays:
                given[name] = NUMBERS[name]
    if is_gated and "bias" in arrays:
        arrays = {"gate_bias" if name == "bias" else name: each for name, each in arrays.items()}
    left, floats = iter(tensors), iter(numbers[len(NUMBERS) :])
    operands = {name: next(floats) if is_number else next(left) for name, is_number in more.operands}
    return {**given, **more.options(), **arrays, **({"operands": operands} if operands else {})}


def tensors_of(epilogue: Encoded) -> list[Tensor]:
    """The tensors of an encoded epilogue."""
    *inputs, operands, _, _ = epilogue
    return [each for each in (*inputs, *operands) if each is not None]


def numbers_of(options: Mapping[str, Any]) -> list[float]:
    """The numbers of a call's keywords, in order."""
    if NUMBERS.keys().isdisjoint(options):
        return DEFAULT_NUMBERS
    return [float(options.get(name, default)) for name, default in NUMBERS.items()]


def factors_of(numbers: list[float]) -> dict[str, float]:
    """The products of the numbers that are factors: of the accumulator, and of arrays by name."""
    found: dict[str, float] = {}
    for at, of in _FACTOR_PLACES:
        found[of] = found[of] * numbers[at] if of in found else numbers[at]
    return found


def underivable(numbers: list[float]) -> list[str]:
    """The numbers of a call that are not factors, and so have no gradient."""
    return [f"`{name}`" for at, name in _OTHER_PLACES if numbers[at] != NUMBERS[name]]


def scaled_by(factor: float) -> list[float]:
    """The numbers of an epilogue that only multiplies the accumulator."""
    first = next(name for name, of in FACTORS.items() if of == ACCUMULATOR)
    return [factor if name == first else default for name, default in NUMBERS.items()]


def plain_text(numbers: list[float], options: str, out_dtype: torch.dtype | None) -> str:
    """The numbers, the options and the dtype of a GEMM as one text, which another process can read."""
    return f"{','.join(map(repr, numbers))} {str(out_dtype).rpartition('.')[2]} {options}"


@lru_cache(4096)
def read_plain(text: str) -> tuple[list[float], str, torch.dtype | None]:
    """The parts of a text of `plain_text`."""
    numbers, dtype, options = text.split(" ", 2)
    return [float(each) for each in numbers.split(",")], options, None if dtype == "None" else getattr(torch, dtype)


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
