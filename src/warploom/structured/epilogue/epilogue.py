"""What happens to an accumulator on its way to C: scale, bias, activation, the author's function, residual.

D = function(activation(alpha·acc + bias)) + beta·residual, in float32 unless told otherwise, rounded once. Of a pair of
accumulators, gate and up, D = function(pair(alpha·gate + bias, alpha·up + up_bias)) + beta·residual. What comes on the
way may be kept as a further output. Order and meaning are the same however C is stored, and bounds are kept outside:
operands are zero where C has no element, and what a function gives there is not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
"""What is right to eleven bits: enough for results that keep eight or fewer. Half of an argument costs nothing where
the factor goes with alpha and bias.
"""
_HALF = 0.5
PAIRS: Mapping[str, str] = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "reglu": "relu",
    "glu": "sigmoid",
}
"""What is made of a pair, by name: the activation of the gate, times up."""
OUT, PRE_ACTIVATION, GATE, UP = "out", "pre_activation", "gate", "up"
"""Names of results: C's own, and what goes into the activation, or into the function of a pair."""
DTYPES = ("f32", "bf16", "f16")

Function = Callable[..., Any]
"""`function(value, at, **operands)`: a value for a value, or several by name; where it owns the store, nothing."""


@dataclass(frozen=True)
class Operand:
    """Something that a function reads at its element.

    A `scalar` is the same everywhere, a `row` has a value for each column, a `column` for each row, a `tile` for each
    element; a leading axis counts batches. A `view` is handed to the function whole. The source, an array in global
    memory or a value, is known inside a kernel only.
    """

    kind: str
    source: View | Value | None = None

    def at(self, name: str, position: Position) -> Any:
        """What the function gets: floats as float32; nothing is read where C has no element."""
        source = self.source
        if source is None:
            raise Diag.BAD_KERNEL.error(here(), what=f"the epilogue's operand `{name}` has no source; bind it")
        if self.kind == "view" or isinstance(source, Value):
            return source
        index, inside = self._place(position)
        batch = (position.batch,) if len(source.shape) > len(index) else ()
        return _loaded(source, (*batch, *index), inside)

    def _place(self, position: Position) -> tuple[tuple[Index, ...], Value | None]:
        """The indices of the element, and whether it is there."""
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
        """Axes of the source, batches aside."""
        return 2 if self.kind == "tile" else 1


KINDS = ("scalar", "row", "column", "tile", "view")


def _loaded(source: View, index: tuple[Index, ...], inside: Value | None) -> Value:
    """An element, zero where there is none; one that was read before in this tile is not read again."""
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
    """The whole way from accumulator to C. Without sources it is a plain value, known before a kernel is traced."""

    alpha: Number | Value = 1.0
    bias: Operand | None = None
    activation: str | None = None
    function: Function | None = None
    beta: Number | Value = 1.0
    residual: Operand | None = None
    store: Function | None = None
    """Owns the store: called for each element of C with its value in C's type."""
    pair: str | Function | None = None
    """Makes one value of two, where each element of C has two accumulators: a name, or `pair(gate, up)`."""
    up_bias: Operand | None = None
    outputs: tuple[str, ...] = ()
    """Further outputs, in order: `pre_activation`, of a pair `gate` and `up`; the function gives all others."""
    operands: tuple[tuple[str, Operand], ...] = ()
    dtype: str = "f32"
    """The type in which everything is computed."""
    fast: bool = False
    """Whether activations may be right to eleven bits only, because C keeps fewer."""

    def __post_init__(self) -> None:
        named = [("bias", self.bias), ("up_bias", self.up_bias), ("residual", self.residual), *self.operands]
        problems = [
            *(
                f"`{name}` is a {each.kind}, not one of {', '.join(KINDS)}"
                for name, each in named
                if each and each.kind not in KINDS
            ),
            *(
                f"operand `{name}` is named twice"
                for at, (name, _) in enumerate(self.operands)
                if name in dict(self.operands[:at])
            ),
            *(f"operand `{name}` is no name" for name, _ in self.operands if not name.isidentifier()),
        ]
        if self.activation is not None and self.activation not in ACTIVATIONS:
            problems.append(f"activation `{self.activation}` is not one of {', '.join(ACTIVATIONS)}")
        if isinstance(self.pair, str) and self.pair not in PAIRS:
            problems.append(f"pair `{self.pair}` is not one of {', '.join(PAIRS)}")
        if self.pair is not None and self.activation is not None:
            problems.append("a pair has no activation beside its own function")
        if self.pair is None and self.up_bias is not None:
            problems.append("there is a bias for the second of a pair, but no pair")
        if self.outputs and self.store is not None:
            problems.append("a function that owns the store stores further outputs itself")
        if self.asked and self.function is None:
            problems.append(f"there is no function that gives {', '.join(self.asked)}")
        if self.dtype not in DTYPES:
            problems.append(f"it is computed in {self.dtype}, not in one of {', '.join(DTYPES)}")
        if self.operands and self.function is None and self.store is None:
            problems.append("there are operands but no function that reads them")
        if problems:
            raise Diag.BAD_EPILOGUE.error(here(), count=len(problems), what="; ".join(problems))

    def bound(self, /, **sources: Any) -> Self:
        """The same with sources: `alpha`, `beta`, `bias`, `residual` and the operands by name."""
        operands = dict(self.operands)
        changes: dict[str, Any] = {}
        unknown = []
        for name, source in sources.items():
            if name in operands:
                operands[name] = replace(operands[name], source=source)
            elif name in ("alpha", "beta"):
                changes[name] = source
            elif name in ("bias", "up_bias", "residual") and getattr(self, name) is not None:
                changes[name] = replace(getattr(self, name), source=source)
            else:
                unknown.append(name)
        if unknown:
            what = f"it reads nothing named {', '.join(unknown)}"
            raise Diag.BAD_EPILOGUE.error(here(), count=len(unknown), what=what)
        return replace(self, operands=tuple(operands.items()), **changes)

    @property
    def needs_bounds(self) -> bool:
        """Whether C's shape must be known: by whatever reads or stores at an element's place."""
        return bool(self.bias or self.up_bias or self.residual or self.function or self.store)

    @property
    def asked(self) -> tuple[str, ...]:
        """The outputs that the function must give."""
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
        """What becomes of an accumulator's element, or of a pair's: C's, then the further outputs.

        What is added comes from elsewhere, if not from operands.
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
        """Read what is added to an element, so that it is there when the element is."""
        for name in ("bias", "up_bias", "residual"):
            self._input(name, at, None)

    def _input(self, name: str, at: Position, value: Value | None) -> Value | None:
        operand: Operand | None = getattr(self, name)
        return value if operand is None else operand.at(name, at)

    @property
    def _takes_half(self) -> bool:
        """Whether the activation is given half of its argument, which nobody else sees."""
        name = self.activation if self.pair is None else PAIRS.get(str(self.pair))
        seen = {PRE_ACTIVATION, GATE} & set(self.outputs)
        return self.fast and self.dtype == "f32" and name in FAST_OF_HALF and not seen

    def _activated(self, name: str, value: Value, factor: Number = 1.0) -> Value:
        """The activation of a value, of which a multiple is given."""
        if self.fast and name in FAST_OF_HALF:
            return FAST_OF_HALF[name](_times(value, _HALF / factor))
        exact = ACTIVATIONS[name]
        return (FAST.get(name, exact) if self.fast else exact)(value)

    def _paired(self, pair: str | Function, gate: Value, up: Value, factor: Number = 1.0) -> Value:
        """One value of two, of which the first is given by a multiple."""
        if isinstance(pair, str):
            return self._activated(PAIRS[pair], gate, factor) * up
        return self._made(pair, pair(gate, up))

    def _given(self, function: Function, made: Any) -> dict[str, Value]:
        """What a function gave, by name: one value, or with further outputs a mapping of them and `out`."""
        if not self.asked:
            return {OUT: self._made(function, made)}
        names = {OUT, *self.asked}
        if not isinstance(made, Mapping) or set(made) != names:
            gave = f"names {', '.join(map(str, made))}" if isinstance(made, Mapping) else f"{made!r:.40}"
            what = f"its function gave {gave}, not a mapping of {', '.join((OUT, *self.asked))} to device values"
            raise Diag.BAD_EPILOGUE.error(place_of(function), count=1, what=what)
        return {name: self._made(function, value) for name, value in made.items()}

    def _linear(self, value: Value, added: Value | None, factor: Number = 1.0) -> Value:
        """factor·(alpha·acc + bias)."""
        alpha = self.alpha if factor == 1 else self.alpha * factor
        if self.dtype == "f32" and added is not None and not _is_one(alpha):
            return fma(value, valued(alpha, "f32"), _times(added.to("f32"), factor))
        value = _times(value, alpha).to(self.dtype)
        return value if added is None else self._plus(value, added, 1.0)

    def _plus(self, value: Value, added: Value, factor: Value | Number) -> Value:
        """A sum with a multiple: in float32 rounded once, in a narrower type step by step."""
        if _is_one(factor):
            return value + added.to(self.dtype)
        if self.dtype == "f32":
            return fma(added.to("f32"), valued(factor, "f32"), value)
        scaled = added.to(self.dtype) * valued(factor, "f32").to(self.dtype)
        return value + scaled

    def _made(self, function: Function, value: Any) -> Value:
        """What an author's function gave."""
        if not isinstance(value, Value):
            what = f"its function gave {value!r:.40}, not a device value"
            raise Diag.BAD_EPILOGUE.error(place_of(function), count=1, what=what)
        return value.to(self.dtype)

    def _read(self, at: Position) -> dict[str, Any]:
        return {name: operand.at(name, at) for name, operand in self.operands}

    def store_at(self, value: Value, at: Position) -> None:
        """Let the author's function store an element."""
        assert self.store is not None
        self.store(value, at, **self._read(at))


def _is_one(factor: Value | Number) -> bool:
    number = factor.literal if isinstance(factor, Value) else factor
    return number == 1


def _times(value: Value, factor: Value | Number) -> Value:
    return value if _is_one(factor) else value * valued(factor, value.type)
