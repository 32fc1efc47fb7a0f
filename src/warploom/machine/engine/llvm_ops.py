"""The vector language as LLVM text: vectors of `lanes` elements, no fast-math flags, no calls of a library."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from warploom.machine.semantics.tables import ORDER
from warploom.machine.semantics.vectors import WIDTHS, Ops, UnsupportedError, Value

SCALARS = {"i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "f32": "float", "f64": "double"}
_INTEGER_BINARY = frozenset({"add", "sub", "mul", "udiv", "urem", "and", "or", "xor", "shl", "lshr", "ashr"})
_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTRINSICS = {
    "sqrt": "sqrt", "rint": "rint", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "fabs": "fabs",
    "popcount": "ctpop", "leading_zeros": "ctlz", "reverse": "bitreverse",
}  # fmt: skip
_CONVERSIONS = {
    "zext": "zext", "sext": "sext", "trunc": "trunc", "bits": "bitcast", "extend": "fpext", "round": "fptrunc",
    "from_signed": "sitofp", "from_unsigned": "uitofp", "to_signed": "fptosi", "to_unsigned": "fptoui",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Host:
    """The properties of the host's processor that the text depends on.

    Functions that LLVM would turn into calls of a math library are written only where the processor has them.
    """

    lanes: int
    fused: bool
    rounds: bool
    """Rounding to an integer is one instruction."""


@dataclass
class LlvmOps(Ops):
    """Writes instructions into `body`; `declarations` and `tables` are what they need."""

    host: Host
    body: list[str] = field(default_factory=list)
    declarations: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    _count: int = 0

    def vector(self, type_: str) -> str:
        return f"<{self.host.lanes} x {SCALARS[type_]}>"

    def fresh(self, text: str) -> str:
        """Write an instruction and name its result."""
        self._count += 1
        name = f"%v{self._count}"
        self.body.append(f"  {name} = {text}")
        return name

    def make(self, type_: str, text: str) -> Value:
        return Value(self, type_, self.fresh(text))

    def constant(self, type_: str, value: float) -> Value:
        if type_ == "i1":
            literal = "true" if value else "false"
        elif type_.startswith("i"):
            literal = str(int(value) & ((1 << WIDTHS[type_]) - 1))
        else:
            literal = f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
        return Value(self, type_, f"splat ({SCALARS[type_]} {literal})")

    def binary(self, name: str, a: Value, b: Value) -> Value:
        opcode = _FLOAT_BINARY[name] if a.type.startswith("f") else name
        if a.type.startswith("i") and name not in _INTEGER_BINARY:
            raise UnsupportedError(name)
        return self.make(a.type, f"{opcode} {self.vector(a.type)} {a.ref}, {b.ref}")

    def unary(self, name: str, a: Value) -> Value:
        if name in ("rint", "floor", "ceil", "trunc") and not self.host.rounds:
            raise UnsupportedError(name)
        shape, more = f"v{self.host.lanes}{a.type}", ", i1 false" if name == "leading_zeros" else ""
        vector, function = self.vector(a.type), f"@llvm.{_INTRINSICS[name]}.{shape}"
        self.declarations.add(f"declare {vector} {function}({vector}{', i1' if more else ''})")
        return self.make(a.type, f"call {vector} {function}({vector} {a.ref}{more})")

    def compare(self, name: str, a: Value, b: Value) -> Value:
        ordered = "u" if name == "ne" else "o"
        opcode = f"fcmp {ordered}{name}" if a.type.startswith("f") else f"icmp {name}"
        return self.make("i1", f"{opcode} {self.vector(a.type)} {a.ref}, {b.ref}")

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        vector = self.vector(yes.type)
        return self.make(yes.type, f"select {self.vector('i1')} {condition.ref}, {vector} {yes.ref}, {vector} {no.ref}")

    def convert(self, name: str, a: Value, type_: str) -> Value:
        return self.make(type_, f"{_CONVERSIONS[name]} {self.vector(a.type)} {a.ref} to {self.vector(type_)}")

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        if not self.host.fused:
            raise UnsupportedError("fma")
        vector, function = self.vector(a.type), f"@llvm.fma.v{self.host.lanes}{a.type}"
        self.declarations.add(f"declare {vector} {function}({vector}, {vector}, {vector})")
        return self.make(a.type, f"call {vector} {function}({', '.join(f'{vector} {x.ref}' for x in (a, b, c))})")

    def look_up(self, table: str, index: Value, type_: str) -> Value:
        self.tables.add(table)
        lanes, vector, scalar = self.host.lanes, self.vector(type_), SCALARS[type_]
        places = self.fresh(f"getelementptr {scalar}, ptr %table{ORDER[table]}, {self.vector('i64')} {index.ref}")
        function = f"@llvm.masked.gather.v{lanes}{type_}.v{lanes}p0"
        self.declarations.add(f"declare {vector} {function}(<{lanes} x ptr>, i32, <{lanes} x i1>, {vector})")
        every = f"<{lanes} x i1> splat (i1 true)"
        return self.make(type_, f"call {vector} {function}(<{lanes} x ptr> {places}, i32 8, {every}, {vector} poison)")

    def splat(self, type_: str, scalar: str) -> Value:
        """A scalar (an LLVM name) in every lane."""
        vector = self.vector(type_)
        first = self.fresh(f"insertelement {vector} poison, {SCALARS[type_]} {scalar}, i64 0")
        mask = f"<{self.host.lanes} x i32> zeroinitializer"
        return self.make(type_, f"shufflevector {vector} {first}, {vector} poison, {mask}")
