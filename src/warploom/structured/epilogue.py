"""What happens to an accumulator on its way to C: scale, bias, activation, the author's function, residual.

D = function(activation(alpha·acc + bias)) + beta·residual, in float32 unless told otherwise, rounded once. Order and
meaning are the same however C is stored, and bounds are kept outside: operands are zero where C has no element, and
what a function gives there is not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from warploom.diagnostics import Diag
from warploom.structured.strips import Position
from warploom.trace import mathematics
from warploom.trace.builder import current, here
from warploom.trace.memory import Index, View
from warploom.trace.operations import fma
from warploom.trace.types import TYPES, Number
from warploom.trace.values import Value, valued

ACTIVATIONS: Mapping[str, Callable[[Value], Value]] = {
    "relu": mathematics.relu,
    "gelu": mathematics.gelu,
    "gelu_tanh": mathematics.gelu_tanh,
    "silu": mathematics.silu,
    "tanh": mathematics.tanh,
    "sigmoid": mathematics.sigmoid,
    "squared_relu": mathematics.squared_relu,
}
FAST: Mapping[str, Callable[[Value], Value]] = {
    "gelu_tanh": mathematics.fast_gelu_tanh,
    "silu": mathematics.fast_silu,
    "tanh": mathematics.fast_tanh,
    "sigmoid": mathematics.fast_sigmoid,
}
"""What is right to eleven bits: enough for results that keep eight or fewer."""
DTYPES = ("f32", "bf16", "f16")

Function = Callable[..., Any]
"""`function(value, at, **operands)`: a value for a value, or, where it owns the store, nothing."""


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
    operands: tuple[tuple[str, Operand], ...] = ()
    dtype: str = "f32"
    """The type in which everything is computed."""
    fast: bool = False
    """Whether activations may be right to eleven bits only, because C keeps fewer."""

    def __post_init__(self) -> None:
        named = [("bias", self.bias), ("residual", self.residual), *self.operands]
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
        if self.dtype not in DTYPES:
            problems.append(f"it is computed in {self.dtype}, not in one of {', '.join(DTYPES)}")
        if self.operands and self.function is None and self.store is None:
            problems.append("there are operands but no function that reads them")
        if problems:
            raise Diag.BAD_EPILOGUE.error(here(), count=len(problems), what="; ".join(problems))

    def bound(self, **sources: Any) -> Self:
        """The same with sources: `alpha`, `beta`, `bias`, `residual` and the operands by name."""
        operands = dict(self.operands)
        changes: dict[str, Any] = {}
        unknown = []
        for name, source in sources.items():
            if name in operands:
                operands[name] = replace(operands[name], source=source)
            elif name in ("alpha", "beta"):
                changes[name] = source
            elif name in ("bias", "residual") and getattr(self, name) is not None:
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
        return bool(self.bias or self.residual or self.function or self.store)

    def apply(
        self,
        value: Value,
        at: Position,
        *,
        scale: Value | Number = 1.0,
        bias: Value | None = None,
        residual: Value | None = None,
    ) -> Value:
        """What becomes of an accumulator's element; `bias` and `residual` come from elsewhere, if not from operands."""
        value = self._linear(_times(value, scale), at, bias)
        if self.activation is not None:
            exact = ACTIVATIONS[self.activation]
            value = (FAST.get(self.activation, exact) if self.fast else exact)(value)
        if self.function is not None:
            value = self._typed(self.function(value, at, **self._read(at)))
        added = residual if self.residual is None else self.residual.at("residual", at)
        return value if added is None else self._plus(value, added, self.beta)

    def _linear(self, value: Value, at: Position, bias: Value | None) -> Value:
        """alpha·acc + bias."""
        added = bias if self.bias is None else self.bias.at("bias", at)
        if self.dtype == "f32" and added is not None and not _is_one(self.alpha):
            return fma(value, valued(self.alpha, "f32"), added.to("f32"))
        value = self._typed(_times(value, self.alpha))
        return value if added is None else self._plus(value, added, 1.0)

    def _plus(self, value: Value, added: Value, factor: Value | Number) -> Value:
        """A sum with a multiple: in float32 rounded once, in a narrower type step by step."""
        if _is_one(factor):
            return value + added.to(self.dtype)
        if self.dtype == "f32":
            return fma(added.to("f32"), valued(factor, "f32"), value)
        scaled = added.to(self.dtype) * valued(factor, "f32").to(self.dtype)
        return value + scaled

    def _typed(self, value: Any) -> Value:
        if not isinstance(value, Value):
            raise Diag.BAD_EPILOGUE.error(here(), count=1, what=f"its function gave {value!r:.40}, not a device value")
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
