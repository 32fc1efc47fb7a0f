"""Operands in translated source: the names of registers, constants and masks.

Every register that lanes share is a slot `u[i]` of a list of Python integers; every other one is a row of a register
file, bound once per group to a local name (`a12` the unsigned row, `a12i` its signed and `a12f` its floating view).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warploom.diagnostics import Diag, Loc
from warploom.machine.memory.byte_memory import WIDTHS
from warploom.machine.translate.functions import Recipe, fixed, made
from warploom.machine.translate.register_layout import Layout, Place
from warploom.ptx.isa.table import BITS, Op
from warploom.ptx.syntax.model import Address, Guard, Immediate, Negated, Pair, Register, Sink, Special, Symbol, Vector

DTYPES = {
    ("u", 8): "uint8", ("u", 16): "uint16", ("u", 32): "uint32", ("u", 64): "uint64", ("u", 128): "complex128",
    ("s", 8): "int8", ("s", 16): "int16", ("s", 32): "int32", ("s", 64): "int64",
    ("f", 16): "float16", ("f", 32): "float32", ("f", 64): "float64", ("p", 1): "bool_",
}  # fmt: skip
_SUFFIX = {"u": "", "s": "i", "f": "f", "p": ""}
_REDUCING = frozenset({"and", "setp", "shr"})
"""Families that may give all lanes one value though their sources differ (`ptx/analysis/uniformity.py`)."""


def kind_of(type_: str) -> str:
    """The interpretation of the bits of a type: u(nsigned), s(igned), f(loating) or p(redicate)."""
    if type_ == "pred":
        return "p"
    if type_ in ("f16", "f32", "f64"):
        return "f"
    return "s" if type_ in ("s8", "s16", "s32", "s64") else "u"


def literal(operand: Immediate, type_: str) -> int:
    """A literal's bits in a type: integers wrap, floating-point literals convert to the type's width."""
    bits = BITS.get(type_, 64)
    if operand.kind == "int":
        if type_ in ("f32", "f64"):
            value = float(operand.value)
            return int.from_bytes(struct.pack("<f" if bits == 32 else "<d", value), "little")
        return operand.value & ((1 << bits) - 1)
    number = (
        struct.unpack("<f", struct.pack("<I", operand.value))[0]
        if operand.kind == "f32"
        else struct.unpack("<d", struct.pack("<Q", operand.value))[0]
    )
    if operand.kind == "f32" and bits == 32:
        return operand.value
    if operand.kind == "f64" and bits == 64:
        return operand.value
    with np.errstate(all="ignore"):
        if bits == 64:
            return int(np.float64(number).view(np.uint64))
        if bits == 16:
            return int(np.float16(number).view(np.uint16))
        return int(np.float32(number).view(np.uint32))


@dataclass
class Names:
    """The names that a translated program binds before its first block: rows, views, constants, specials, symbols,
    functions.
    """

    layout: Layout
    functions: dict[str, Any]
    recipes: dict[Recipe, str]
    """The names of functions by their recipes, the same in all texts of a program."""
    bindings: dict[str, str] = field(default_factory=dict)
    lane_specials: frozenset[str] = frozenset()
    _symbols: dict[str, str] = field(default_factory=dict)
    row_lists: dict[str, str] = field(default_factory=dict)

    def row(self, place: Place, kind: str = "u") -> str:
        """The local name of a register's row, read as unsigned, signed or floating."""
        base = f"{place.file}{place.index}"
        self.bindings.setdefault(base, f"F{place.file}[{place.index}]")
        suffix = _SUFFIX[kind]
        if suffix:
            self.bindings.setdefault(base + suffix, f"{base}.view({DTYPES[kind, place.bits]})")
        return base + suffix

    def half(self, place: Place, part: int, bits: int) -> str:
        """A view of one part of every lane's register: the low half of a pair, say."""
        base = self.row(place)
        name = f"{base}_{bits}_{part}"
        count = place.bits // bits
        self.bindings.setdefault(name, f"{base}.view({DTYPES['u', bits]})[{part}::{count}]")
        return name

    def constant(self, value: int, kind: str, bits: int) -> str:
        """A literal spread over the lanes once."""
        dtype = DTYPES[kind, bits]
        name = f"k{kind}{bits}_{value}"
        plain = f"full(W, {value}, {DTYPES['p' if kind == 'p' else 'u', bits]})"
        self.bindings.setdefault(name, plain if kind in "up" else f"{plain}.view({dtype})")
        return name

    def function(self, recipe: Recipe) -> str:
        """The name under which translated code finds what a recipe makes."""
        name = self.recipes.setdefault(recipe, f"N{len(self.recipes)}")
        if name not in self.functions:
            self.functions[name] = made(recipe)
        return name

    def special(self, name: str) -> tuple[str, bool]:
        """(local name, uniform?) of a special register's unsigned value."""
        local = "s_" + name[1:].replace(".", "_")
        if name in self.lane_specials:
            self.bindings.setdefault(local, f"LANES[{name!r}]")
            return local, False
        if name in CLOCKS:
            return f"G.{CLOCKS[name]}()", True
        if name in CTA_SPECIALS:
            return f"G.cta.specials[{name!r}]", True
        self.bindings.setdefault(local, f"SPECIALS[{name!r}]")
        return local, True

    def symbol(self, operand: Symbol) -> str:
        """The address of a variable or parameter, as an integer expression."""
        local = self._symbols.setdefault(operand.name, f"y{len(self._symbols)}")
        self.bindings.setdefault(local, f"SYMBOLS[{operand.name!r}]")
        return f"({local} + {operand.offset})" if operand.offset else local


CTA_SPECIALS = frozenset(
    {f"%{name}.{axis}" for name in ("ctaid", "cluster_ctaid", "clusterid") for axis in "xyz"}
    | {"%cluster_ctarank", "%smid"}
)
"""Special registers that differ between CTAs: read each time, because block functions outlive a CTA."""
CLOCKS = {
    "%clock": "clock",
    "%clock_hi": "clock_high",
    "%clock64": "clock64",
    "%globaltimer": "clock64",
    "%globaltimer_lo": "clock",
    "%globaltimer_hi": "clock_high",
}


@dataclass
class Lines:
    """Source under construction: one list of lines, and the instruction each came from."""

    text: list[str] = field(default_factory=list)
    ops: list[Op | None] = field(default_factory=list)
    op: Op | None = None
    indent: str = "  "

    def add(self, line: str) -> None:
        self.text.append(self.indent + line)
        self.ops.append(self.op)


class Writer:
    """Writes one instruction at a time; the families' writers ask it for operands and hand it results."""

    def __init__(self, names: Names, lines: Lines, masked: bool, file: str) -> None:
        self.names, self.lines, self.masked, self.file = names, lines, masked, file
        self.mask: str | None = None
        self.of_first_lane = False
        """True while an instruction is written whose result is uniform though its sources are not: it is computed from
        those of the first lane.
        """
        self._scratch = 0

    def place(self, register: Register) -> Place:
        return self.names.layout.places[register.name]

    def uniform(self, operand: object) -> bool:
        """Return whether an operand is one integer for the whole group."""
        match operand:
            case Register():
                return self.of_first_lane or self.place(operand).file == "u"
            case Negated(register):
                return self.of_first_lane or self.place(register).file == "u"
            case Special(name):
                return self.of_first_lane or name not in self.names.lane_specials
            case Vector(items):
                return all(self.uniform(item) for item in items)
            case Address(base, _, coordinates):
                return self.uniform(base) and (coordinates is None or self.uniform(coordinates))
        return True

    def reduces(self, op: Op) -> bool:
        """True for arithmetic whose result is uniform though its sources are not."""
        if op.form.family not in _REDUCING:
            return False
        d = op.operands.get("d")
        first = d.first if isinstance(d, Pair) else d
        if not isinstance(first, Register) or self.place(first).file != "u":
            return False
        return not all(self.uniform(op.operands[slot.name]) for slot in op.form.slots if slot.kind in ("in", "pred"))

    def scalar(self, operand: object, type_: str) -> str:
        """A uniform operand as an unsigned Python integer (a bool for predicates)."""
        bits = BITS.get(type_, 64)
        match operand:
            case Register():
                place = self.place(operand)
                text = self._uniform_text(place)
                return f"({text} & {(1 << bits) - 1})" if place.bits > bits > 1 else text
            case Negated(register):
                return f"(not {self._uniform_text(self.place(register))})"
            case Immediate():
                return repr(bool(operand.value)) if type_ == "pred" else str(literal(operand, type_))
            case Special(name):
                text, shared = self.names.special(name)
                if not shared:
                    text = self._first(text)
                if type_ == "pred":
                    return f"({text} != 0)"
                return f"({text} & {(1 << bits) - 1})" if bits < 64 else text
            case Symbol():
                text = self.names.symbol(operand)
                return f"({text} & {(1 << bits) - 1})" if operand.offset or bits < 64 else text
        raise Diag.NOT_MODELLED.error(self.where(), what=f"the operand `{operand}`")

    def _uniform_text(self, place: Place) -> str:
        """A uniform register, or the value of another one in the first lane."""
        return f"u[{place.index}]" if place.file == "u" else self._first(self.names.row(place))

    def _first(self, row: str) -> str:
        return f"{self.names.function(fixed('first_lane'))}({row}, {self.mask})"

    def signed(self, operand: object, type_: str) -> str:
        """A uniform operand as a signed Python integer."""
        top = 1 << (BITS[type_] - 1)
        if isinstance(operand, Immediate):
            value = literal(operand, type_)
            return str(value - 2 * top if value & top else value)
        return f"(({self.scalar(operand, type_)} ^ {top}) - {top})"

    def array(self, operand: object, type_: str, kind: str | None = None) -> str:
        """An operand as an array of the lanes, read as its type says (or as `kind`)."""
        kind = kind or kind_of(type_)
        bits = BITS.get(type_, 64)
        match operand:
            case Register() if self.place(operand).file != "u":
                place = self.place(operand)
                if place.bits == bits:
                    return self.names.row(place, kind)
                if place.bits < bits:
                    return f"{self.names.row(place)}.astype({DTYPES['u', bits]}).view({DTYPES[kind, bits]})"
                text = f"{self.names.row(place)}.astype({DTYPES['u', bits]})"
                return text if kind == "u" else f"{text}.view({DTYPES[kind, bits]})"
            case Negated(register) if self.place(register).file != "u":
                return f"logical_not({self.names.row(self.place(register))})"
            case Immediate():
                if type_ == "pred":
                    return self.names.constant(int(bool(operand.value)), "p", 1)
                return self.names.constant(literal(operand, type_), kind, bits)
            case Special(name) if name in self.names.lane_specials:
                text, _ = self.names.special(name)
                return (
                    text
                    if bits == 32 and kind == "u"
                    else f"{text}.astype({DTYPES['u', bits]}).view({DTYPES[kind, bits]})"
                )
        return self._spread(self.scalar(operand, type_), kind, bits)

    def _spread(self, scalar: str, kind: str, bits: int) -> str:
        self._scratch = (self._scratch + 1) % 8
        base = f"t{self._scratch}_{bits}"
        unsigned = "bool_" if kind == "p" else DTYPES["u", bits]
        self.names.bindings.setdefault(base, f"empty(W, {unsigned})")
        self.lines.add(f"{base}.fill({scalar})")
        if kind in "up":
            return base
        self.names.bindings.setdefault(base + _SUFFIX[kind], f"{base}.view({DTYPES[kind, bits]})")
        return base + _SUFFIX[kind]

    def value(self, operand: object, type_: str) -> str:
        """An operand as the semantics of an instruction receive it: an integer where uniform, else an unsigned
        array.
        """
        if self.uniform(operand):
            return self.scalar(operand, type_)
        return self.array(operand, type_, "p" if type_ == "pred" else "u")

    def address(self, operand: Address, *, wide: bool | None = None) -> str:
        """Base plus offset, wrapped to the base's width."""
        base, offset = operand.base, operand.offset
        bits = self.place(base).bits if isinstance(base, Register) else 64
        if self.uniform(base):
            text = self.scalar(base, f"b{bits}")
            if not offset:
                return text
            return f"(({text} + {offset}) & {(1 << bits) - 1})"
        text = self.array(base, f"b{bits}", "u")
        return f"({text} + {self.names.constant(offset & ((1 << bits) - 1), 'u', bits)})" if offset else text

    def where(self) -> Loc:
        op = self.lines.op
        assert op is not None
        return op.instruction.loc or Loc(self.file, op.instruction.line)

    def emit(self, line: str) -> None:
        self.lines.add(line)

    def put_scalar(self, operand: object, expression: str) -> None:
        """Assign a Python integer to a uniform register, or spread it over a row."""
        if isinstance(operand, Sink):
            return
        assert isinstance(operand, Register)
        place = self.place(operand)
        if place.file == "u":
            self.emit(f"u[{place.index}] = {expression}")
        elif self.mask is None:
            self.emit(f"{self.names.row(place)}.fill({expression})")
        else:
            self.emit(f"putmask({self.names.row(place)}, {self.mask}, {self._typed(place, expression)})")

    def _typed(self, place: Place, expression: str) -> str:
        return f"{DTYPES['p' if place.bits == 1 else 'u', place.bits]}({expression})"

    def put_array(self, operand: object, expression: str, bits: int) -> None:
        """Assign an unsigned (or boolean) array to a row, zero-extended where the register is wider."""
        if isinstance(operand, Sink):
            self.emit(expression)
            return
        assert isinstance(operand, Register)
        row = self.names.row(self.place(operand))
        where = f", where={self.mask}" if self.mask else ""
        self.emit(f"copyto({row}, {expression}{where})")

    def put(self, operand: object, expression: str, bits: int) -> None:
        """Assign a result of an instruction: an integer for a uniform register, else an array (or an integer) to a
        row.
        """
        if isinstance(operand, Register) and self.place(operand).file == "u":
            self.emit(f"u[{self.place(operand).index}] = {expression}")
        else:
            self.put_array(operand, expression, bits)

    def guard(self, guard: Guard | None) -> Callable[[], None]:
        """Open the scope of a guard: an `if` for a uniform predicate, a lane mask otherwise; the result closes it."""
        self.mask = "M" if self.masked else None
        if guard is None:
            return lambda: None
        before = self.lines.indent
        place = self.place(guard.register)
        if place.file == "u":
            self.emit(f"if {'not ' if guard.negated else ''}u[{place.index}]:")
        else:
            row = self.names.row(place)
            if self.masked:
                self.emit(f"m = {'greater(M, ' if guard.negated else 'logical_and(M, '}{row})")
            elif guard.negated:
                self.emit(f"m = logical_not({row})")
            else:
                self.emit(f"m = {row}")
            self.emit("mb = m.tobytes()")
            self.emit("if ONE in mb:")
            self.mask = "m"
        self.lines.indent = before + " "

        def close() -> None:
            self.lines.indent = before
            self.mask = "M" if self.masked else None

        return close


__all__ = ["BITS", "CLOCKS", "WIDTHS", "Lines", "Names", "Writer", "kind_of", "literal"]
