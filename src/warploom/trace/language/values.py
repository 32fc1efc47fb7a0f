"""Device values: what a kernel's Python expressions are made of while it is traced.

A value has a type and an operand. Arithmetic on literals is done at once; on registers it emits one instruction, or
none where the same expression is already known in this region or one around it. Floating-point operations carry their
rounding (`add.rn.f32`): ptxas may fuse unmarked ones, and the GPU's results would differ from the emulator's.
"""

from __future__ import annotations

import linecache
import re
from typing import Any, NoReturn

from warploom.diagnostics import Diag
from warploom.ptx.syntax.model import LONG_SPECIALS, Immediate, Operand, Special, Symbol
from warploom.trace.builder import Region, current, here
from warploom.trace.language.folding import COMPARE, convert, fold
from warploom.trace.language.operators import Operators
from warploom.trace.language.types import TYPES, Number, decode_bits, encode, wrap
from warploom.trace.passes.hoisting import Landings

_BITWISE = ("and", "or", "xor", "shl")
_SHIFTS = ("shl", "shr")
_KINDS = {
    "and": ("pred", "signed", "unsigned"),
    "or": ("pred", "signed", "unsigned"),
    "xor": ("pred", "signed", "unsigned"),
    "shl": ("signed", "unsigned"),
    "shr": ("signed", "unsigned"),
    "rem": ("signed", "unsigned"),
    "div": ("signed", "unsigned", "float"),
    **dict.fromkeys(("add", "sub", "mul", "min", "max"), ("signed", "unsigned", "float", "pair")),
}
"""The kinds of type that have an operation."""
_NEUTRAL = {"add": 0, "sub": 0, "or": 0, "xor": 0, "shl": 0, "shr": 0, "mul": 1, "div": 1}
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_CHANGING = ("clock", "globaltimer", "pm", "smid", "warpid", "nsmid", "nwarpid")
_SMALL = ("tid", "ntid", "ctaid", "nctaid", "laneid", "cluster", "ncluster")
"""Hardware registers that are less than 2^31."""
_NONNEGATIVE = "not negative"
_INDEX = "an index"
_INDEX_FAMILIES = ("add", "mul", "shl", "shr", "and", "div", "rem", "min", "max")
_LARGEST_FACTOR = 1 << 24
"""Literals from here on are not factors of an index but of a hash."""
_COMMUTES = ("add", "mul", "and", "or", "xor", "min", "max")


class Value(Operators):
    """One device value: an operand of a type, alive in the region that made it."""

    __slots__ = ("operand", "region", "type")

    def __init__(self, type_: str, operand: Operand, region: Region | None = None) -> None:
        self.type, self.operand, self.region = type_, operand, region

    @property
    def literal(self) -> Number | None:
        """The Python number a literal stands for, None for what only the device knows."""
        if not isinstance(self.operand, Immediate):
            return None
        row = TYPES[self.type]
        if row.half:
            return None
        return decode_bits(self.operand.value, self.type) if row.kind in ("float", "narrow") else self.operand.value

    def get(self) -> Value:
        """The value as it is now."""
        return self

    def read(self) -> Operand:
        """The operand, for use in the region being traced."""
        check_scope(self.region)
        return self.operand

    def bits(self, type_: str) -> Value:
        """The same bits read as another type of the same register width; no instruction."""
        if TYPES[type_].register != TYPES[self.type].register or "pred" in (type_, self.type):
            raise Diag.TYPE_MISMATCH.error(here(), what=f"the bits of a .{self.type} read as .{type_}")
        now = self.get()
        if isinstance(now.operand, Immediate):
            pattern = now.operand.value & ((1 << TYPES[self.type].bits) - 1)
            return from_bits(pattern, type_)
        return Value(type_, now.operand, now.region)

    def to(self, type_: str, *, rounding: str = "", saturate: bool = False) -> Value:
        """Convert the value. Integers wrap or extend, or saturate if asked to; floats round to nearest even.

        `rounding` is `rn`, `rz`, `rm` or `rp` towards a float, and with an `i` after it towards an integer (`rzi` by
        default). `saturate` clamps to an integer's range, and a float to [0, 1]; 8-bit floats are clamped always.
        """
        if type_ not in TYPES or TYPES[type_].half or TYPES[self.type].half:
            raise Diag.TYPE_MISMATCH.error(here(), what=f"a .{self.type} converted to .{type_}")
        if type_ == self.type and not rounding and not saturate:
            return self.get()
        number = self.literal
        if number is not None and not rounding and not saturate:
            folded = convert(number, self.type, type_)
            if folded is not None:
                return literal(folded, type_)
        from warploom.trace.language.conversions import converted

        return converted(self.get(), type_, rounding, saturate)

    def __repr__(self) -> str:
        return f"Value({self.type} {self.operand})"

    def _decided(self) -> NoReturn:
        loc = here()
        builtin = re.search(r"\b(min|max)\(", linecache.getline(loc.file, loc.line))
        notes = (
            [f"`{builtin[1]}(a, b)` of Python compares while tracing; use `{builtin[1]}_(a, b)`."] if builtin else []
        )
        raise Diag.BRANCH_ON_DEVICE_VALUE.error(loc, notes=notes)

    def __float__(self) -> float:
        from warploom.trace.language.library_functions import as_float

        number = self.literal
        return float(number) if number is not None else as_float()

    def __abs__(self) -> Value:
        from warploom.trace.language.operations import abs_

        return abs_(self)

    def __pow__(self, exponent: Value | Number) -> Value:
        from warploom.trace.language.library_functions import power

        return power(self, exponent)

    def __rpow__(self, base: Number) -> Value:
        from warploom.trace.language.library_functions import power

        return power(base, self)

    def __round__(self) -> Value:
        return self._rounded("rni")

    def __floor__(self) -> Value:
        return self._rounded("rmi")

    def __ceil__(self) -> Value:
        return self._rounded("rpi")

    def __trunc__(self) -> Value:
        return self._rounded("rzi")

    def _rounded(self, mode: str) -> Value:
        """Round to an s32, as `round` and `math.floor` round to an int."""
        return self.to("s32", rounding=mode) if TYPES[self.type].kind == "float" else self.get()

    def __array_ufunc__(self, ufunc: Any, method: str, *arguments: Any, **options: Any) -> Any:
        from warploom.trace.language.library_functions import applied

        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        return applied("numpy", name, arguments, options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        from warploom.trace.language.library_functions import applied

        return applied("numpy", function.__name__, arguments, options)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        from warploom.trace.language.library_functions import applied

        return applied("torch", function.__name__, arguments, options or {})

    def __bool__(self) -> bool:
        number = self.literal
        return bool(number) if number is not None else self._decided()

    def __index__(self) -> int:
        number = self.literal
        return number if isinstance(number, int) else self._decided()

    def _binary(self, family: str, other: Value | Number, *, mirrored: bool = False) -> Value:
        return binary(family, valued(other, self.type), self) if mirrored else binary(family, self, other)

    def _compare(self, relation: str, other: object) -> Value:
        return compare(relation, self, other)

    def _divide(self, other: Value | Number, *, whole: bool, mirrored: bool = False) -> Value:
        if whole == (TYPES[self.type].kind == "float"):
            used, right = ("//", "floats divide with `/`") if whole else ("/", "integers divide with `//`")
            raise Diag.TYPE_MISMATCH.error(here(), what=f"`{used}` of .{self.type}; {right}")
        return self._binary("div", other, mirrored=mirrored)

    def __invert__(self) -> Value:
        if self.type == "pred":
            return binary("xor", self, True) if self.literal is not None else compute("not.pred", "pred", self)
        return binary("xor", self, -1)

    def __neg__(self) -> Value:
        row, number = TYPES[self.type], self.literal
        if number is not None:
            return literal(-number, self.type)
        if row.kind in ("signed", "unsigned"):
            return binary("sub", literal(0, self.type), self)
        return compute(f"neg.{self.type}", self.type, self)


def check_scope(region: Region | None) -> None:
    """A region must be open where something of it is used."""
    if region is None:
        return
    builder = current("A device value")
    now = builder.region
    if region is now or region is builder.root or region.holds(now):
        return
    if region.role and now.role and region.role != now.role:
        raise Diag.WRONG_ROLE.error(here(), made=region.loc, maker=region.role, user=now.role)
    raise Diag.VALUE_OUT_OF_SCOPE.error(here(), kind=region.kind, made=region.loc)


def from_bits(pattern: int, type_: str) -> Value:
    """The literal with these bits."""
    kind = TYPES[type_].kind
    if type_ in ("f32", "f64"):
        return Value(type_, Immediate(pattern, type_))
    whole = kind in ("signed", "unsigned", "pred")
    return Value(type_, Immediate(int(decode_bits(pattern, type_)) if whole else pattern))


def literal(number: Number, type_: str) -> Value:
    """A Python number as a value of a type; integers wrap, floats round."""
    kind = TYPES[type_].kind
    if kind == "pred":
        return Value(type_, Immediate(int(bool(number))))
    if kind in ("signed", "unsigned") and isinstance(number, float) and not number.is_integer():
        raise Diag.TYPE_MISMATCH.error(here(), what=f"{number} is not a .{type_}")
    return from_bits(encode(number, type_), type_)


def valued(value: Value | Number, type_: str) -> Value:
    """A value as it is, a Python number as one of the type."""
    return value if isinstance(value, Value) else literal(value, type_)


def special(name: str, type_: str = "u32") -> Value:
    """A hardware register such as `tid.x`; one that never changes is read once, before the body."""
    builder, operand = current(f"`%{name}`"), Special(f"%{name}")
    if (is_long := operand.name in LONG_SPECIALS) != type_.endswith("64"):
        bits = "64" if is_long else "32"
        raise Diag.TYPE_MISMATCH.error(here(), what=f"`%{name}`, which has {bits} bits, read as .{type_}")
    if name.startswith(_CHANGING):
        out = builder.register(type_)
        builder.add(f"mov.{type_}", (out, operand))
        return Value(type_, out, builder.region)
    with builder.prologue():
        read = compute(f"mov.{type_}", type_, Value(type_, operand))
    if name.startswith(_SMALL):
        mark_nonnegative(read)
        if read.region is not None:
            read.region.known[_INDEX, read.operand] = read
    return read


def address_of(name: str, type_: str = "u32") -> Value:
    """The address of a variable in its own space."""
    return compute(f"mov.{type_}", type_, Value(type_, Symbol(name)))


def compute(opcode: str, type_: str, *inputs: Value) -> Value:
    """Emit one pure instruction, or return its earlier result if the same was computed before."""
    builder = current(f"`{opcode}`")
    settled = [value.get() for value in inputs]
    operands = tuple(operand_of(value) for value in settled)
    key = (opcode, *operands)
    known = builder.known(key)
    if known is not None:
        return Value(type_, known.operand, known.region)
    out = builder.register(type_)
    builder.add(opcode, (out, *operands))
    regions = {value.region for value in settled}
    region = home = Landings.of(builder).move(builder, type_, regions)
    while home.kind == "loop turn" and home.parent is not None and home not in regions:
        home = home.parent  # one turn of an unrolled loop comes before the next
    home.known[key] = Value(type_, out, home)
    return Value(type_, out, region)


def operand_of(value: Value) -> Operand:
    """Return the operand; 16-bit floats and pairs have no literals in PTX and are moved to a register."""
    operand, row = value.read(), TYPES[value.type]
    if isinstance(operand, Immediate) and (row.kind == "pair" or value.type in ("f16", "bf16")):
        return compute(f"mov.{row.register}", value.type, Value(f"u{row.bits}", operand)).operand
    return operand


def unified(what: str, left: Value, right: Value) -> tuple[Value, Value]:
    """Return two values in one type; integers convert where no number can change, everything else must match.

    A narrower integer becomes the wider type if that holds all its numbers. Of an unsigned and a signed type of one
    width, an index (see `is_index`) becomes signed, and a signed value that is known not to be negative unsigned.
    """
    if left.type == right.type:
        return left, right
    for one, other in ((left, right), (right, left)):
        if _converts(one, other.type):
            return (one.to(other.type), right) if one is left else (left, one.to(other.type))
    raise Diag.TYPE_MISMATCH.error(here(), what=f"`{what}` of .{left.type} and .{right.type}")


def fitting(value: Value | Number, type_: str, what: str) -> Value:
    """Return a value for a place of a type: a number or an integer as `unified` converts them."""
    found = valued(value, type_)
    if found.type != type_ and _converts(found, type_):
        return found.to(type_)
    if found.type != type_:
        raise Diag.TYPE_MISMATCH.error(here(), what=what.format(found.type))
    return found.get()


def _converts(value: Value, type_: str) -> bool:
    """Return whether a value may become another type without being asked to."""
    source, target = TYPES[value.type], TYPES[type_]
    if {source.kind, target.kind} - {"signed", "unsigned"} or target.bits < source.bits:
        return False
    if isinstance(value.literal, int):
        return wrap(value.literal, type_) == value.literal
    if source.kind == target.kind:
        return True
    if source.kind == "unsigned":
        return target.bits > source.bits or is_index(value)
    return is_nonnegative(value)


def is_index(value: Value) -> bool:
    """Return whether a u32 is made of thread and CTA indices and small numbers, so that it is taken to be below 2^31.

    The same is assumed of signed indices into views: they do not overflow.
    """
    return value.literal is None and current("A device value").known((_INDEX, value.operand)) is not None


def _mark_index(family: str, result: Value, left: Value, right: Value) -> None:
    """Let a result be an index if its operands are: indices, and literals that no hash would use."""
    small = (isinstance(each.literal, int) and 0 <= each.literal < _LARGEST_FACTOR for each in (left, right))
    known = [literal or is_index(each) for literal, each in zip(small, (left, right), strict=True)]
    if family in _INDEX_FAMILIES and all(known) and result.literal is None and result.region is not None:
        result.region.known[_INDEX, result.operand] = result


def same_type(what: str, left: Value, right: Value) -> None:
    if left.type != right.type:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"`{what}` of .{left.type} and .{right.type}")


def binary(family: str, left: Value, other: Value | Number) -> Value:
    """Apply an operator to two values of one type; a Python number takes the type of the other side."""
    result = _binary(family, left, other)
    if left.type == "u32":
        _mark_index(family, result, left, valued(other, left.type))
    return result


def _binary(family: str, left: Value, other: Value | Number) -> Value:
    if isinstance(other, Value) and family not in _SHIFTS:
        left, other = unified(family, left, other)
    row = TYPES[left.type]
    if row.kind not in _KINDS[family]:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"`{family}` of .{left.type}")
    if family in _SHIFTS:
        right = valued(other, "u32")
        right = right if TYPES[right.type].bits == 32 else right.to("u32")
    else:
        right = valued(other, left.type)
        same_type(family, left, right)
    simple = _simplified(family, left, right)
    if simple is not None:
        return simple
    if row.wide:
        wide = right if family in _SHIFTS else right.to(row.wide)
        return _narrowed(binary(family, left.to(row.wide), wide), left.type)
    if family == "div" and left.type in ("f16", "bf16"):
        return (left.to("f32") / right.to("f32")).to(left.type)
    if family in ("div", "rem") and row.kind in ("signed", "unsigned"):
        from warploom.trace.language.division import divided, floored

        left, right = left.get(), right.get()
        if isinstance(right.literal, int):
            quotient = divided(left, right.literal, remainder=family == "rem")
            if quotient is not None:
                return quotient
        if row.kind == "signed" and not (is_nonnegative(left) and is_nonnegative(right)):
            return floored(left, right, remainder=family == "rem")
    if family in _COMMUTES and left.literal is not None:
        left, right = right, left
    if family in ("add", "sub") and isinstance(right.literal, int):
        return _shifted(left, right.literal if family == "add" else -right.literal)
    return compute(_spelling(family, left.type), left.type, left, right)


def mark_nonnegative(value: Value) -> None:
    """Mark a value as not negative, read as signed, in its region."""
    if value.literal is None and value.region is not None:
        value.region.known[_NONNEGATIVE, value.operand] = value


def is_nonnegative(value: Value) -> bool:
    """Return whether a value, read as signed, is known not to be negative."""
    if value.literal is not None:
        return value.literal >= 0
    return current("A device value").known((_NONNEGATIVE, value.operand)) is not None


def sum_parts(value: Value) -> tuple[Value, int]:
    """An integer as another plus a known number: what it was made from, if it was made so."""
    now = value.get()
    root, number = current("A device value").sums.get(now.operand, (now, 0))
    return Value(value.type, root.operand, root.region), number


def _shifted(value: Value, number: int) -> Value:
    """An integer plus a known one; sums of sums have one known part."""
    root, before = sum_parts(value)
    total = literal(before + number, value.type)
    if not total.literal:
        return Value(value.type, root.operand, root.region)
    result = compute(f"add.{value.type}", value.type, root, total)
    current("A device value").sums[result.operand] = (root, int(total.literal))
    return result


def _narrowed(wide: Value, type_: str) -> Value:
    if wide.literal is not None:
        return literal(wide.literal, type_)
    return compute(f"cvt.{type_}.{wide.type}", type_, wide)


def _simplified(family: str, left: Value, right: Value) -> Value | None:
    a, b = left.literal, right.literal
    kind = TYPES[left.type].kind
    if a is not None and b is not None and kind != "pair":
        folded = fold(family, left.type, a, b)
        return None if folded is None else literal(folded, left.type)
    exact = kind in ("signed", "unsigned", "pred")
    if b is not None and b == _NEUTRAL.get(family) and (exact or b == 1):
        return left.get()
    if a is not None and family in _COMMUTES and a == _NEUTRAL.get(family) and (exact or a == 1):
        return right.get()
    if exact and 0 in (a, b) and family in ("mul", "and"):
        return literal(0, left.type)
    if kind == "pred" and family in ("and", "or") and (a is not None or b is not None):
        known, unknown = (a, right) if a is not None else (b, left)
        return unknown.get() if bool(known) == (family == "and") else literal(bool(known), "pred")
    if family == "mul" and isinstance(a, int):
        left, a, b = right, b, a
    if family == "mul" and exact and isinstance(b, int) and b > 0 and b & (b - 1) == 0:
        return binary("shl", left, literal(b.bit_length() - 1, "u32"))
    return None


def _spelling(family: str, type_: str) -> str:
    row = TYPES[type_]
    if family in _BITWISE:
        return f"{family}.{row.register}"
    if family == "mul" and row.kind in ("signed", "unsigned"):
        return f"mul.lo.{type_}"
    if row.kind in ("float", "pair") and family in ("add", "sub", "mul", "div"):
        return f"{family}.rn.{type_}"
    return f"{family}.{type_}"


def compare(relation: str, left: Value, other: object) -> Value:
    """A predicate. As in Python and C, a comparison with NaN is false, and `!=` true."""
    if not isinstance(other, Value | int | float):
        raise Diag.TYPE_MISMATCH.error(here(), what=f"a .{left.type} compared with {other!r:.40}")
    left, right = unified(relation, left, valued(other, left.type))
    row, a, b = TYPES[left.type], left.literal, right.literal
    if row.half:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"`{relation}` of .{left.type}; unpack it first")
    if a is not None and b is not None:
        return literal(COMPARE[relation](a, b), "pred")
    if left.type == "pred":
        same = binary("xor", left, right)
        return same if relation == "ne" else ~same
    if a is not None:
        left, right, relation = right, left, _MIRRORED[relation]
    if row.wide:
        left, right = (side.to(row.wide) for side in (left, right))
        row = TYPES[row.wide]
    if row.kind == "float":
        return compute(f"setp.{'neu' if relation == 'ne' else relation}.{row.name}", "pred", left, right)
    kind = row.register if relation in ("eq", "ne") else row.name
    return compute(f"setp.{relation}.{kind}", "pred", left, right)


def select(condition: Value, then: Value | Number, otherwise: Value | Number) -> Value:
    """`then` where the condition holds, else `otherwise`."""
    typed = next((side for side in (then, otherwise) if isinstance(side, Value)), None)
    if typed is None or condition.type != "pred":
        what = "`select` needs a predicate, and a device value on one side at least"
        raise Diag.TYPE_MISMATCH.error(here(), what=what)
    a, b = unified("select", valued(then, typed.type), valued(otherwise, typed.type))
    if condition.literal is not None:
        return a.get() if condition.literal else b.get()
    if a.type == "pred":
        return (condition & a) | (~condition & b)
    return compute(f"selp.{TYPES[a.type].register}", a.type, a, b, condition)
