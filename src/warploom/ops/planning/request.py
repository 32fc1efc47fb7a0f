"""`Request`: one GEMM as the caller asked for it, with the rules for its epilogue and output.

The same request serves NumPy arrays, PyTorch tensors and descriptors of GPU arrays. `check` holds it to the rules and
collects every violation; it reads nothing that PyTorch's compiler could not trace. `complete` then makes of it what
kernels take: the epilogue with its inputs, and the matrix that is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import numpy as np

from warploom.hardware.swizzles import SWIZZLES
from warploom.kernels.call import is_row, is_storable
from warploom.kernels.convolution import Window
from warploom.ops.planning.arrays import (
    ANY_RANK,
    OUT_OF_RANGE,
    OVERLAPPING_STRIDES,
    RESULT_TYPES,
    Shape,
    Violations,
    as_matrix,
    broadcast_to,
    broadcasts,
    check_array,
    clashes,
    default_result_type,
    dtype_name,
    has_overlapping_strides,
    is_in_range,
    is_number,
    is_planned,
    is_tensor,
    overlap,
    plain_array,
    type_name,
)
from warploom.ops.planning.keywords import (
    ARRAY,
    FACTORS,
    INPUTS,
    KEYWORDS,
    NAME,
    NAMES,
    NUMBERS,
    UNGATED,
    EpilogueKeywords,
)
from warploom.ops.planning.quantised import ELEMENTS, SCALES, Quantised, scales_shape, values_shape
from warploom.ops.planning.user_functions import UserFunction, user_function
from warploom.structured.config import GemmConfig
from warploom.structured.epilogue.epilogue import (
    FORMATS,
    GATE,
    OUT,
    PAIRS,
    PRE_ACTIVATION,
    UP,
    Epilogue,
    Operand,
)
from warploom.trace.language.types import OF_NUMPY

_BIASES = ("bias", "gate_bias", "up_bias")
_PLAIN_NAMES = tuple(name for name in NAMES if name in UNGATED)
_RESERVED = (*(name for name in NUMBERS if name in UNGATED), *INPUTS, OUT)
_RESERVED_OF_FORMATS = ("quantise_scale", "scales")


class Gpu(Protocol):
    """The facts of a GPU that a configuration depends on: CTAs that wait for each other must all be resident."""

    @property
    def name(self) -> str: ...

    @property
    def sms(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Request(EpilogueKeywords):
    """A (…, m, k) times the transpose of B (…, n, k), its epilogue, and where D goes."""

    function: str
    """The function that was called, for messages."""
    kind: str = "dense"
    """dense, blockwise or block_scaled; grouped, grouped_blockwise or grouped_block_scaled."""
    a: Any = None
    b: Any = None
    up: Any = None
    """The second B of a gated GEMM."""
    extra: Any = None
    """Further kernel arguments by name: scales, group ends."""
    fields: Any = None
    """Configuration fields that follow from the operands."""
    packing: tuple[int, int] = (1, 1)
    """Elements in one item of A and of B."""
    window: Window | None = None
    """Of a convolution: A are images (N, H, W, C) and B are filters (K, R, S, C)."""
    groups: int = 0
    """Groups of rows; a configuration should suit one of them, and rows after the last are not written."""

    shape: Any = None
    """D as the caller sees it: batch axes, row axes (several where they are flattened), column axis."""
    batches: int = 0
    row_axes: int = 1

    is_gated: bool = False
    epilogue: Any = None
    store: Any = None
    operands: Any = None
    outputs: Any = None
    out: Any = None
    out_dtype: Any = None
    clears: bool = False
    """D is new, and the kernel sets rows that belong to no group to zero (`planner.clears_rows`)."""
    scales_out: Any = None
    """The array that gets the scales of a block format, with `out` for the values; both are made for a new result."""
    config: Any = None
    target: Any = None
    gpu: Gpu | None = None
    """The GPU that the launch is for; None for the emulator, which has what the target has."""

    dtype: Any = None
    """From here on filled in by `complete`: D's dtype, and the array that the caller gets."""
    result: Any = None
    d: Any = None
    """The matrix that the kernel writes; a copy of the result where that overlaps an input."""
    is_apart: bool = False
    traced: Any = None
    """The `Epilogue` as a trace knows it, and its inputs by name."""
    sources: Any = None

    @property
    def extents(self) -> tuple[Shape, Shape, Shape]:
        """The extents of the batch, row and column axes."""
        middle = self.batches + self.row_axes
        return self.shape[: self.batches], self.shape[self.batches : middle], self.shape[middle:]

    @property
    def core(self) -> Shape:
        """D's shape as the kernel sees it: one axis for all batches if there are any, then m and n."""
        batch, rows, columns = (prod(each) for each in self.extents)
        return (batch, rows, columns) if self.batches else (rows, columns)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """m, n, k and batches; with an empty K one zero is added up.

        Of a convolution k counts whole rows of the widest swizzle for each tap, which is what kernels multiply.
        """
        batch, m, n = (prod(each) for each in self.extents)
        if self.window is not None:
            span = SWIZZLES["128B"].span // self.a.itemsize
            return m, n, -(-self.a.shape[-1] // span) * span * self.window.taps, batch
        return m, n, max(self.a.shape[-1] * self.packing[0], 1), batch

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to compute."""
        return 0 in self.core or 0 in self.b.shape[:-2]

    @property
    def bias_name(self) -> str:
        """The caller's name of `bias`."""
        return "gate_bias" if self.is_gated else "bias"

    @property
    def matrices(self) -> list[Any]:
        """The arrays that are read for many elements of D."""
        extra = dict(self.extra or {})
        read = (self.a, self.b, self.up, *extra.pop("weights", {}).values(), *extra.values())
        return [each for each in read if each is not None]

    @property
    def epilogue_inputs(self) -> dict[str, Any]:
        """The values that the epilogue reads, by the caller's names."""
        operands = self.operands if isinstance(self.operands, Mapping) else {}
        given = {self.bias_name: self.bias, "up_bias": self.up_bias, "residual": self.residual}
        given |= {f"operands[{name!r}]": each for name, each in operands.items()}
        return {name: each for name, each in given.items() if each is not None}

    @property
    def is_storable(self) -> bool:
        """Return whether TMA can store D."""
        return self.store is None and self.quantise_to is None and self.d is not None and is_storable(self.d)

    @property
    def output_types(self) -> tuple[str, ...]:
        """The types of the auxiliary outputs, where TMA can store D and all of them; else nothing."""
        outputs = (self.outputs or {}).values()
        if not self.is_storable or not all(map(is_storable, outputs)):
            return ()
        return tuple(OF_NUMPY[dtype_name(each)] for each in outputs)

    @property
    def drops_residual(self) -> bool:
        """Return whether there is a residual that is not read, because its factor is zero."""
        return self.residual is not None and self.is_unread("residual")

    def is_unread(self, name: str) -> bool:
        """Return whether an array of the epilogue is multiplied by zero: then it is not read."""
        factors = (getattr(self, factor) for factor, of in FACTORS.items() if of == name)
        return any(is_number(factor) and factor == 0 for factor in factors)

    @property
    def experts(self) -> int:
        """The number of B matrices of a grouped GEMM."""
        return int(self.b.shape[0]) if self.groups else 0

    def load_source(self, name: str) -> Any:
        """An epilogue input in the shape in which an epilogue load brings it, without a copy; else as it is.

        Axes of extent 1 are missing in what other kernels read.
        """
        source: Any = (self.sources or {}).get(name)
        if not is_planned(source) or self.d is None:
            return source
        wanted = self.d.shape[-1:] if name == "bias" else self.d.shape
        return source.reshape(*wanted) if source.size == prod(wanted) else source

    def load_problem(self, name: str) -> str:
        """Why an epilogue load cannot bring an input; nothing if it can."""
        source = self.load_source(name)
        if not is_planned(source) or self.d is None:
            return f"there is no array `{name}`"
        row = name == "bias"
        wanted = self.d.shape[-1:] if row else self.d.shape
        if source.shape != wanted or source.dtype != self.d.dtype:
            return f"`{name}` must be {self.d.dtype} {wanted}, like the result"
        if not (is_row(source) if row else is_storable(source)):
            return f"the strides {source.strides} of `{name}` are not multiples of 16 bytes"
        return ""


def check(request: Request, violations: Violations, *, is_compiling: bool = False) -> None:
    """Hold the epilogue and the output of a request to the rules.

    Numbers and strides of a call that is being compiled are not known yet, and its functions are checked when it runs.
    """
    _check_choices(request, violations, are_known=not is_compiling)
    _check_format(request, violations)
    operands = _named_operands(request, violations)
    if not is_compiling:
        functions = _functions(request, operands, violations)
        read = {name for each in functions.values() if each is not None for name in each.names}
        for name in operands:
            if name not in read and None not in functions.values():
                violations.add("operands", name, "must hold only what `epilogue` or `store` takes")
    for name, value in request.epilogue_inputs.items():
        _check_input(name, value, request, violations, are_known=not is_compiling)
    _check_output_names(request, violations)
    _check_result_type(request, violations)
    _check_out(request, violations, are_known=not is_compiling)
    _check_outputs(request, violations, are_known=not is_compiling)


def _check_choices(request: Request, violations: Violations, *, are_known: bool) -> None:
    for name, default in NUMBERS.items():
        number, of = getattr(request, name), KEYWORDS[name].of
        kind = KEYWORDS[of].kind if of in KEYWORDS else ""
        if kind == NAME:
            continue
        if not is_number(number):
            violations.add(name, number, "must be a number")
        elif are_known and not is_in_range(number):
            violations.add(name, number, OUT_OF_RANGE)
        elif are_known and kind == ARRAY and getattr(request, of) is None and number != default:
            violations.add(name, number, f"needs a `{of}`, which it is the factor of")
    for name in _PLAIN_NAMES:
        value, choices = getattr(request, name), KEYWORDS[name].choices
        if value is not None and not is_named(value, choices):
            violations.add(name, value, f"must be one of {', '.join(choices)}")
    if request.is_gated and not (is_named(request.pair, PAIRS) or callable(request.pair)):
        rule = f"must be one of {', '.join(PAIRS)}, or a function of gate and up"
        violations.add("pair", request.pair, rule)


def _check_format(request: Request, violations: Violations) -> None:
    """Check the block format of the result: it has whole runs, and arrays that are made for it."""
    if request.quantise_to is None:
        if not is_number(request.quantise_scale) or request.quantise_scale != 1:
            violations.add("quantise_scale", request.quantise_scale, "needs `quantise_to`, whose scale it is")
        return
    if not is_named(request.quantise_to, FORMATS):
        violations.add("quantise_to", request.quantise_to, f"must be one of {', '.join(FORMATS)}")
        return
    scale = request.quantise_scale
    if not is_number(scale) or not is_in_range(scale) or not scale > 0:
        violations.add("quantise_scale", scale, "must be a positive number in the range of float32")
    elif request.quantise_to == "mxfp8" and scale != 1:
        violations.add("quantise_scale", scale, "must be 1 for mxfp8, whose scales are powers of two")
    run = FORMATS[request.quantise_to]
    if request.shape is not None and request.shape[-1] % run:
        rule = f"needs a result with a multiple of {run} columns, not {request.shape[-1]}"
        violations.add("quantise_to", request.quantise_to, rule)
    for name in ("out", "out_dtype"):
        if getattr(request, name) is not None and request.scales_out is None:
            violations.add(name, getattr(request, name), "cannot be used with `quantise_to`, which makes the result")


def is_named(value: Any, among: Mapping[str, Any]) -> bool:
    """Return whether a value is one of some names."""
    return isinstance(value, str) and value in among


def _is_identifier(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and name.isascii()


def _named_operands(request: Request, violations: Violations) -> dict[str, Any]:
    """The operands of the caller's functions, by names that a function can have."""
    operands = request.operands
    if operands is None:
        return {}
    if not isinstance(operands, Mapping):
        violations.add("operands", operands, "must be a mapping of names to arrays")
        return {}
    reserved = _RESERVED if request.quantise_to is None else (*_RESERVED, *_RESERVED_OF_FORMATS)
    for name in operands:
        if not _is_identifier(name):
            violations.add("operands", name, "must have names that a Python parameter can have")
        elif name in reserved:
            violations.add("operands", name, f"must not use the reserved names {', '.join(reserved)}")
    if request.epilogue is None and request.store is None and operands:
        violations.add("operands", tuple(operands), "needs an `epilogue` or `store` function that reads them")
        return {}
    return dict(operands)


def _functions(
    request: Request, operands: Mapping[str, Any], violations: Violations | None
) -> dict[str, UserFunction | None]:
    """The caller's functions, as a trace calls them."""
    given = {"epilogue": tuple(operands), "store": (*operands, OUT), "pair": ()}
    collected = Violations(request.function) if violations is None else violations
    return {
        name: user_function(name, function, names, collected)
        for name, names in given.items()
        if (function := getattr(request, name)) is not None and (name != "pair" or callable(function))
    }


def _check_input(name: str, value: Any, request: Request, violations: Violations, *, are_known: bool) -> None:
    """Check an array that broadcasts against D as in NumPy, or a number.

    () is a scalar, (n,) or (1, n) a row that is added to every row of D, (m, 1) a column, (m, n) a tile; batches come
    first. A vector is a row, also where m equals n.
    """
    if is_number(value):
        if are_known and not is_in_range(value):
            violations.add(name, value, OUT_OF_RANGE)
        return
    if not (is_planned(value) or is_tensor(value)):
        violations.add(name, value, "must be an array or a number")
        return
    if not check_array(name, value, violations, types=tuple(OF_NUMPY), ranks=ANY_RANK):
        return
    shape = request.shape
    if shape is not None and is_per_expert(name, value, request):
        wanted = (request.experts, shape[-1])
        if tuple(value.shape) != wanted:
            rule = f"must be a row {wanted[1:]}, a column ({shape[-2]}, 1), or a row for each expert {wanted}"
            violations.add(name, value, rule)
    elif shape is not None and not (value.ndim <= len(shape) and broadcasts(value.shape, shape)):
        rule = f"must broadcast to D, which is {tuple(shape)}{_hint(value, request)}"
        violations.add(name, value, rule)


def is_per_expert(name: str, value: Any, request: Request) -> bool:
    """Return whether an epilogue input has a row for each expert of a grouped GEMM: a bias with two axes.

    A single row (1, n) and a column (m, 1) broadcast as everywhere.
    """
    if not request.groups or name not in _BIASES or is_number(value) or value.ndim != 2:
        return False
    rows, columns = value.shape
    is_column = columns == 1 and request.shape is not None and request.shape[-1] != 1
    return bool(rows != 1 and not is_column)


def _hint(value: Any, request: Request) -> str:
    rows = request.extents[1]
    if len(rows) == 1 and tuple(value.shape) == tuple(rows):
        return f" (one value for each row has the shape ({rows[0]}, 1))"
    return ""


def _check_output_names(request: Request, violations: Violations) -> None:
    """Check that each auxiliary output has a name, and is computed."""
    outputs = request.outputs
    if outputs is None:
        return
    if not isinstance(outputs, Mapping):
        violations.add("outputs", outputs, "must be a mapping of names to arrays")
        return
    known = (GATE, UP) if request.is_gated else (PRE_ACTIVATION,)
    for name in outputs:
        if not _is_identifier(name):
            violations.add("outputs", name, "must have names that a Python parameter can have")
        elif name == OUT:
            violations.add("outputs", name, f"must not use the reserved name {OUT}")
        elif name not in known and request.epilogue is None:
            violations.add("outputs", name, f"must be {' or '.join(known)} unless an `epilogue` returns it")
    if request.store is not None:
        violations.add("outputs", tuple(outputs), "cannot be used with `store`, which stores to arrays in `operands`")


def _check_result_type(request: Request, violations: Violations) -> None:
    """Check the dtypes that the caller names: each is a result type, and they agree."""
    asked = _asked_types(request, violations)
    for argument, name in asked.items():
        leading = next(iter(asked))
        if name not in RESULT_TYPES:
            violations.add(argument, getattr(request, argument), f"must have a dtype of {', '.join(RESULT_TYPES)}")
            return
        if name != asked[leading]:
            rule = f"must have the dtype of `{leading}`, {asked[leading]}, not {name}"
            violations.add(argument, getattr(request, argument), rule)


def _asked_types(request: Request, violations: Violations | None) -> dict[str, str]:
    """The result dtypes that the caller names, by argument."""
    out, config = request.out, request.config
    asked: dict[str, str] = {}
    if request.out_dtype is not None:
        name = type_name(request.out_dtype)
        if name is not None:
            asked["out_dtype"] = name
        elif violations is not None:
            violations.add("out_dtype", request.out_dtype, "must be a dtype")
    has_type = is_planned(out) or is_tensor(out)
    if has_type and (request.store is None or dtype_name(out) in RESULT_TYPES):
        asked["out"] = dtype_name(out)
    if isinstance(config, GemmConfig) and "c_type" not in dict(config.derived):
        asked["config"] = next(name for name, type_ in OF_NUMPY.items() if type_ == config.c_type)
    if request.store is not None and "out_dtype" in asked:
        asked.pop("out", None)  # a function that stores by itself may convert once more
    return asked


def _check_out(request: Request, violations: Violations, *, are_known: bool) -> None:
    out = request.out
    if out is None:
        return
    if not check_array("out", out, violations, types=tuple(OF_NUMPY), ranks=ANY_RANK):
        return
    if request.shape is not None and request.store is None and tuple(out.shape) != tuple(request.shape):
        violations.add("out", out, f"must have the result's shape, {tuple(request.shape)}")
    _check_writable("out", out, violations, are_known=are_known)


def _check_writable(argument: str, array: Any, violations: Violations, *, are_known: bool) -> None:
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        violations.add(argument, array, "must not be read-only")
    if not are_known or 0 in array.shape:
        return
    strides = array.stride() if is_tensor(array) else array.strides
    if has_overlapping_strides(array.shape, strides):
        violations.add(argument, array, OVERLAPPING_STRIDES)


def _check_outputs(request: Request, violations: Violations, *, are_known: bool) -> None:
    """Check that each auxiliary output is like D, can be written, and shares memory with no other array."""
    outputs = request.outputs if isinstance(request.outputs, Mapping) else {}
    read = (*request.matrices, *request.epilogue_inputs.values())
    others: dict[str, Any] = {"out": request.out} if request.out is not None else {}
    for name, array in outputs.items():
        argument, shape = f"outputs[{name!r}]", request.shape
        if not check_array(argument, array, violations, types=RESULT_TYPES, ranks=ANY_RANK):
            continue
        if shape is not None and tuple(array.shape) != tuple(shape):
            violations.add(argument, array, f"must have the result's shape, {tuple(shape)}")
        elif shape is not None and not as_matrix(array, request.core, are_known=are_known):
            violations.add(argument, array, f"must have strides that make it a matrix {request.core} without a copy")
        _check_writable(argument, array, violations, are_known=are_known)
        if are_known and any(overlap(array, each) for each in read):
            violations.add(argument, array, "must not overlap an array that is read")
        for other in (other for other, each in others.items() if are_known and overlap(array, each)):
            violations.add(argument, array, f"must not overlap `{other}`")
        others[argument] = array


def result_type(request: Request) -> str:
    """D's dtype: the one that the caller names, else by the type of A."""
    asked = _asked_types(request, None)
    if request.quantise_to is not None:
        return "float8_e4m3fn"
    if asked:
        return next(iter(asked.values()))
    if request.store is not None and request.out is not None:
        return "float32"
    return default_result_type(dtype_name(request.a))


def with_type(request: Request) -> Request:
    """The request with D's dtype: enough for the choice of a configuration."""
    return replace(request, dtype=np.dtype(result_type(request)), traced=Epilogue())


def complete(request: Request) -> Request:
    """The request with its epilogue assembled, and with D: the caller's array if there is one, else a new one."""
    typed = with_type(request)
    traced, sources = _assembled(typed)
    if typed.quantise_to is not None:
        result, scales = _quantised(typed)
        sources["scales"] = scales
        traced = replace(traced, quantise_to=typed.quantise_to, scales=Operand("view"))
        outputs = {name: plain_array(each).reshape(*typed.core) for name, each in (typed.outputs or {}).items()}
        d = result.values.view(typed.dtype)
        return replace(typed, traced=traced, sources=sources, result=result, d=d, outputs=outputs)
    result, d, is_apart = _destination(typed)
    outputs = {name: plain_array(each).reshape(*typed.core) for name, each in (typed.outputs or {}).items()}
    return replace(typed, traced=traced, sources=sources, result=result, d=d, is_apart=is_apart, outputs=outputs)


def _assembled(request: Request) -> tuple[Epilogue, dict[str, Any]]:
    """The epilogue as a trace knows it, and what it reads by name."""
    operands = dict(request.operands or {})
    functions = _functions(request, operands, None)
    inputs = {name: getattr(request, name) for name in INPUTS} | operands
    kinds: dict[str, Operand] = {}
    sources: dict[str, Any] = {}
    for name, value in inputs.items():
        if value is not None and not request.is_unread(name):
            kinds[name], sources[name] = _placed(name, value, request)
    for name, default in NUMBERS.items():
        of, number = KEYWORDS[name].of, getattr(request, name)
        is_used = of not in KEYWORDS or of in kinds or (KEYWORDS[of].kind == NAME and getattr(request, of) is not None)
        if is_used and number != default:
            sources[name] = float(number)
    if "store" in functions:
        kinds[OUT] = Operand("view")
    given: dict[str, Any] = {name: kinds.pop(name, None) for name in INPUTS}
    given |= {name: getattr(request, name) for name in _PLAIN_NAMES}
    epilogue = Epilogue(
        **given,
        pair=request.pair if isinstance(request.pair, str) else functions.get("pair"),
        outputs=tuple(request.outputs or ()),
        function=functions.get("epilogue"),
        store=functions.get("store"),
        operands=tuple(kinds.items()),
    )
    return epilogue, sources


def _placed(name: str, value: Any, request: Request) -> tuple[Operand, Any]:
    """An epilogue input as a trace knows it, and as a launch passes it: an axis for each that it varies along."""
    if is_number(value):
        return Operand("scalar"), float(value)
    if is_per_expert(name, value, request):
        return Operand("row"), plain_array(value)
    value, shape = plain_array(value), request.shape
    value = value.reshape(*(1,) * (len(shape) - value.ndim), *value.shape)
    extents, full, at = list[int](), list[int](), 0
    for group in request.extents:
        own = value.shape[at : at + len(group)]
        varies = any(extent != 1 for extent in own)
        extents.append(prod(group) if varies else 1)
        full += group if varies else own
        at += len(group)
    batch, m, n = (extent != 1 for extent in extents)
    kind = {(False, False): "scalar", (False, True): "row", (True, False): "column", (True, True): "tile"}[m, n]
    core = {"scalar": [1], "row": extents[2:], "column": extents[1:2], "tile": extents[1:]}[kind]
    return Operand(kind), broadcast_to(value, tuple(full)).reshape(*(extents[:1] if batch else []), *core)


def _quantised(request: Request) -> tuple[Quantised, Any]:
    """The result in a block format, with zeros where no group is, and its scales as chunks of bytes."""
    format_, (m, n) = request.quantise_to, request.core
    if request.scales_out is not None:
        values, scales = request.out, request.scales_out
        return Quantised(values, scales, float(request.quantise_scale)), scales.reshape(*scales.shape[:2], -1)
    values = np.zeros(values_shape(format_, m, n), ELEMENTS[format_][0])
    scales = np.zeros(scales_shape(format_, m, n, request.extra["ends"].shape[0]), np.uint8)
    made = Quantised(values, scales.view(SCALES[format_]), float(request.quantise_scale))
    return made, scales.reshape(*scales.shape[:2], -1)


def _destination(request: Request) -> tuple[Any, Any, bool]:
    """The caller's result, the matrix that the kernel writes, and whether that is a copy, because of an overlap.

    Elements that a kernel does not write are zero in a new result, and keep their values in the caller's array.
    """
    out, stores_anywhere = request.out, request.store is not None
    if out is None:
        make = np.zeros if stores_anywhere or request.groups else np.empty
        result = make(request.shape, request.dtype)
        return result, result if stores_anywhere else result.reshape(request.core), False
    inputs = [each for each in request.epilogue_inputs.values() if is_planned(each)]
    is_host = isinstance(out, np.ndarray)
    is_apart = is_host and clashes(out, request.matrices, inputs, stores_anywhere=stores_anywhere)
    matrix = plain_array(out)
    if not stores_anywhere:
        is_apart = is_apart or not as_matrix(matrix, request.core)
        matrix = matrix.reshape(*request.core)
    return out, matrix.copy() if is_apart and is_host else matrix, is_apart
