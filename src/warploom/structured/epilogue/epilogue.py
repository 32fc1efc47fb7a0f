"""The epilogue: scale, bias, activation, the author's function and residual, from the accumulator to C.

D = function(activation(alpha·acc + bias)) + beta·residual, by default computed in float32 and rounded once. In a gated
GEMM, D = function(pair(alpha·gate + bias, alpha·up + up_bias)) + beta·residual. Intermediate values may be stored as
auxiliary outputs. Order and semantics do not depend on how C is stored. Bounds are handled outside: operands are zero
outside C, and results there are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from warploom.diagnostics import Diag
from warploom.structured.epilogue.subtiles import Position
from warploom.trace.builder import current, here, place_of
from warploom.trace.language import mathematics
from warploom.trace.language.operations import fma
from warploom.trace.language.types import TYPES, Number
from warploom.trace.language.values import Value, valued
from warploom.trace.language.views import Index, View

ACTIVATIONS: Mapping[str, Callable[[Value], Value]] = {
    "relu": mathematics.relu,
    "gelu": mathematics.gelu,
    "gelu_tanh": mathematics.gelu_tanh,
    "silu": mathematics.silu,
    "tanh": mathematics.tanh,
    "sigmoid": mathematics.sigmoid,
    "squared_relu": mathematics.squared_relu,
}
FAST: Mapping[str, Callable[[Value], Value]] = {"tanh": mathematics.fast_tanh}
FAST_OF_HALF: Mapping[str, Callable[[Value], Value]] = {
    "gelu_tanh": mathematics.fast_gelu_tanh_of_half,
    "silu": mathematics.fast_silu_of_half,
    "sigmoid": mathematics.fast_sigmoid_of_half,
}
"""Activations that are accurate to eleven bits, for outputs with a significand of eight bits or fewer.

They take half of their argument; the factor 0.5 is folded into alpha and bias at no cost.
"""
_HALF = 0.5
PAIRS: Mapping[str, str] = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "reglu": "relu",
    "glu": "sigmoid",
}
"""Functions of gate and up by name: the activation of the gate, times up."""
OUT, PRE_ACTIVATION, GATE, UP = "out", "pre_activation", "gate", "up"
"""Names of outputs: C itself, and the inputs of the activation or of the gated function."""
DTYPES = ("f32", "bf16", "f16")
FORMATS: Mapping[str, int] = {"mxfp8": 32, "nvfp4": 16}
"""Block formats in which C can be stored, and the columns that share a scale."""

Function = Callable[..., Any]
"""`function(value, at, **operands)` returns a value, or a mapping with auxiliary outputs; a store returns nothing."""


@dataclass(frozen=True)
class Operand:
    """An operand that the epilogue reads at each element.

    A `scalar` is the same for all elements, a `row` has a value per column, a `column` per row, a `tile` per element; a
    leading axis counts batches. A `view` is passed to the function as a whole. The source, an array in global memory or
    a value, is known inside a kernel only.
    """

    kind: str
    source: View | Value | None = None

    def at(self, name: str, position: Position) -> Any:
        """Return the value at an element, floats as float32; nothing is read outside C."""
        source = self.source
        if source is None:
            what = f"the epilogue's operand `{name}` has no source; pass it to `Epilogue.bound`"
            raise Diag.BAD_KERNEL.error(here(), what=what)
        if self.kind == "view" or isinstance(source, Value):
            return source
        index, inside = self._place(position)
        batch = (position.batch,) if len(source.shape) > len(index) else ()
        return _loaded(source, (*batch, *index), inside)

    def _place(self, position: Position) -> tuple[tuple[Index, ...], Value | None]:
        """Return the indices of the element, and a predicate that it is inside the operand."""
        match self.kind:
            case "scalar":
                return (0,), None
            case "row":
                return (position.column,), position.column_inside
            case "column":
                return (position.row,), position.row_inside
        return (position.row, position.column), position.inside

    @property
    def rank(self) -> int:
        """Axes of the source, without batches."""
        return 2 if self.kind == "tile" else 1


KINDS = ("scalar", "row", "column", "tile", "view")


def _loaded(source: View, index: tuple[Index, ...], inside: Value | None) -> Value:
    """Load an element, zero outside; an element that this tile has already read is not read again."""
    builder, place = current("An operand"), source.at(*index)
    assert isinstance(place.base, Value)
    key = ("operand", source.dtype, place.base.operand, place.offset)
    known = builder.known(key)
    if known is not None:
        return known
    value = source.load(*index) if inside is None or inside.literal else source.load_where(inside, *index)
    if TYPES[source.dtype].kind in ("float", "narrow"):
        value = value.to("f32")
    builder.region.known[key] = value
    return value


@dataclass(frozen=True)
class Epilogue:
    """The operations from accumulator to C. Without sources it is a plain value, known before a kernel is traced."""

    alpha: Number | Value = 1.0
    bias: Operand | None = None
    activation: str | None = None
    function: Function | None = None
    beta: Number | Value = 1.0
    residual: Operand | None = None
    store: Function | None = None
    """A function that owns the store: called for each element of C with its value in C's type."""
    pair: str | Function | None = None
    """The function of the two accumulators of a gated GEMM: a name, or `pair(gate, up)`."""
    up_bias: Operand | None = None
    outputs: tuple[str, ...] = ()
    """Auxiliary outputs in order: `pre_activation`, or `gate` and `up`; the function returns all others."""
    operands: tuple[tuple[str, Operand], ...] = ()
    quantise_to: str | None = None
    """The block format that C is stored in: `mxfp8` or `nvfp4`."""
    scales: Operand | None = None
    """The array of bytes that gets the scale factors of a block format."""
    quantise_scale: Number | Value = 1.0
    """The scale of the whole tensor in a block format: C is divided by it first."""
    dtype: str = "f32"
    """The type in which the epilogue computes."""
    fast: bool = False
    """Allow activations that are accurate to eleven bits, because C has fewer."""

    def __post_init__(self) -> None:
        named = [("bias", self.bias), ("up_bias", self.up_bias), ("residual", self.residual), *self.operands]
        problems = [
            *(
                f"`{name}` is a {each.kind}; it must be one of {', '.join(KINDS)}"
                for name, each in named
                if each and each.kind not in KINDS
            ),
            *(
                f"operand `{name}` is given twice"
                for at, (name, _) in enumerate(self.operands)
                if name in dict(self.operands[:at])
            ),
            *(f"operand `{name}` is not an identifier" for name, _ in self.operands if not name.isidentifier()),
        ]
        if self.activation is not None and self.activation not in ACTIVATIONS:
            problems.append(f"activation `{self.activation}` is not one of {', '.join(ACTIVATIONS)}")
        if isinstance(self.pair, str) and self.pair not in PAIRS:
            problems.append(f"pair `{self.pair}` is not one of {', '.join(PAIRS)}")
        if self.pair is not None and self.activation is not None:
            problems.append("`activation` cannot be combined with `pair`, which has its own")
        if self.quantise_to is not None and (self.quantise_to not in FORMATS or self.scales is None):
            problems.append(f"`quantise_to` must be one of {', '.join(FORMATS)}, with an array `scales`")
        if self.pair is None and self.up_bias is not None:
            problems.append("`up_bias` needs `pair`")
        if self.outputs and self.store is not None:
            problems.append("`outputs` cannot be combined with `store`, which stores auxiliary outputs itself")
        if self.asked and self.function is None:
            problems.append(f"no function returns {', '.join(self.asked)}")
        if self.dtype not in DTYPES:
            problems.append(f"dtype is {self.dtype}; it must be one of {', '.join(DTYPES)}")
        if self.operands and self.function is None and self.store is None:
            problems.append("`operands` need a function that reads them")
        if problems:
            raise Diag.BAD_EPILOGUE.error(here(), count=len(problems), what="; ".join(problems))

    def bound(self, /, **sources: Any) -> Self:
        """Return the epilogue with sources: numbers, `bias`, `residual` and the operands by name."""
        operands = dict(self.operands)
        changes: dict[str, Any] = {}
        unknown = []
        for name, source in sources.items():
            if name in operands:
                operands[name] = replace(operands[name], source=source)
            elif name in _NUMBERS:
                changes[name] = source
            elif name in ("bias", "up_bias", "residual", "scales") and getattr(self, name) is not None:
                changes[name] = replace(getattr(self, name), source=source)
            else:
                unknown.append(name)
        if unknown:
            what = f"it has no operand named {', '.join(unknown)}"
            raise Diag.BAD_EPILOGUE.error(here(), count=len(unknown), what=what)
        return replace(self, operands=tuple(operands.items()), **changes)

    @property
    def needs_bounds(self) -> bool:
        """True if C's shape must be known, because operands are read or elements stored by position."""
        return bool(self.bias or self.up_bias or self.residual or self.function or self.store)

    @property
    def asked(self) -> tuple[str, ...]:
        """The outputs that the function must return."""
        own = (PRE_ACTIVATION,) if self.pair is None else (GATE, UP)
        return tuple(name for name in self.outputs if name not in own)

    def apply(
        self,
        value: Value,
        at: Position,
        *,
        up: Value | None = None,
        scale: Value | Number = 1.0,
        bias: Value | None = None,
        up_bias: Value | None = None,
        residual: Value | None = None,
    ) -> tuple[Value, ...]:
        """Compute the outputs of an accumulator element, or of a gate and up pair: C's, then the auxiliary ones.

        `bias`, `up_bias` and `residual` are values that were loaded elsewhere, not from operands.
        """
        factor = _HALF if self._takes_half else 1.0
        value = self._linear(_times(value, scale), self._input("bias", at, bias), factor)
        if self.pair is None:
            kept = {PRE_ACTIVATION: value}
            value = value if self.activation is None else self._activated(self.activation, value, factor)
        else:
            assert up is not None
            up = self._linear(_times(up, scale), self._input("up_bias", at, up_bias))
            kept = {GATE: value, UP: up}
            value = self._paired(self.pair, value, up, factor)
        if self.function is not None:
            given = self._given(self.function, self.function(value, at, **self._read(at)))
            value = given.pop(OUT)
            kept |= given
        added = self._input("residual", at, residual)
        value = value if added is None else self._plus(value, added, self.beta)
        return (value, *(kept[name] for name in self.outputs))

    def read_early(self, at: Position) -> None:
        """Load bias and residual of an element early, to hide their latency."""
        for name in ("bias", "up_bias", "residual"):
            self._input(name, at, None)

    def _input(self, name: str, at: Position, value: Value | None) -> Value | None:
        operand: Operand | None = getattr(self, name)
        return value if operand is None else operand.at(name, at)

    @property
    def _takes_half(self) -> bool:
        """True if the activation takes half of its argument: only if that value is not an output."""
        name = self.activation if self.pair is None else PAIRS.get(str(self.pair))
        seen = {PRE_ACTIVATION, GATE} & set(self.outputs)
        return self.fast and self.dtype == "f32" and name in FAST_OF_HALF and not seen

    def _activated(self, name: str, value: Value, factor: Number = 1.0) -> Value:
        """Apply an activation; `value` is `factor` times its argument."""
        if self.fast and name in FAST_OF_HALF:
            return FAST_OF_HALF[name](_times(value, _HALF / factor))
        exact = ACTIVATIONS[name]
        return (FAST.get(name, exact) if self.fast else exact)(value)

    def _paired(self, pair: str | Function, gate: Value, up: Value, factor: Number = 1.0) -> Value:
        """Apply the gated function; `gate` is given `factor` times."""
        if isinstance(pair, str):
            return self._activated(PAIRS[pair], gate, factor) * up
        return self._made(pair, pair(gate, up))

    def _given(self, function: Function, made: Any) -> dict[str, Value]:
        """Return the results of a function by name: one value, or a mapping of `out` and the auxiliary outputs."""
        if not self.asked:
            return {OUT: self._made(function, made)}
        names = {OUT, *self.asked}
        if not isinstance(made, Mapping) or set(made) != names:
            gave = f"a mapping of {', '.join(map(str, made))}" if isinstance(made, Mapping) else f"{made!r:.40}"
            wanted = f"a mapping of {', '.join((OUT, *self.asked))} to device values"
            what = f"its function returned {gave}; it must be {wanted}"
            raise Diag.BAD_EPILOGUE.error(place_of(function), count=1, what=what)
        return {name: self._made(function, value) for name, value in made.items()}

    def _linear(self, value: Value, added: Value | None, factor: Number = 1.0) -> Value:
        """Compute factor·(alpha·acc + bias)."""
        alpha = self.alpha if factor == 1 else self.alpha * factor
        if self.dtype == "f32" and added is not None and not _is_one(alpha):
            return fma(value, valued(alpha, "f32"), _times(added.to("f32"), factor))
        value = _times(value, alpha).to(self.dtype)
        return value if added is None else self._plus(value, added, 1.0)

    def _plus(self, value: Value, added: Value, factor: Value | Number) -> Value:
        """Compute value + factor·added: in float32 with one rounding, in a narrower type step by step."""
        if _is_one(factor):
            return value + added.to(self.dtype)
        if self.dtype == "f32":
            return fma(added.to("f32"), valued(factor, "f32"), value)
        scaled = added.to(self.dtype) * valued(factor, "f32").to(self.dtype)
        return value + scaled

    def _made(self, function: Function, value: Any) -> Value:
        """Check the result of an author's function."""
        if not isinstance(value, Value):
            what = f"its function returned {value!r:.40}; it must be a device value"
            raise Diag.BAD_EPILOGUE.error(place_of(function), count=1, what=what)
        return value.to(self.dtype)

    def _read(self, at: Position) -> dict[str, Any]:
        return {name: operand.at(name, at) for name, operand in self.operands}

    def store_at(self, value: Value, at: Position) -> None:
        """Call the author's store for an element."""
        assert self.store is not None
        self.store(value, at, **self._read(at))


_NUMBERS = frozenset(each.name for each in fields(Epilogue) if type(each.default) is float)
"""The fields that a kernel may get as a value: those whose default is a number."""


def _is_one(factor: Value | Number) -> bool:
    number = factor.literal if isinstance(factor, Value) else factor
    return number == 1


def _times(value: Value, factor: Value | Number) -> Value:
    return value if _is_one(factor) else value * valued(factor, value.type)
