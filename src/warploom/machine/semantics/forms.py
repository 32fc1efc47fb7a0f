"""The semantics of instruction forms: a family and its modifiers to a function of values."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from warploom.hardware.dtypes import PACKED_TYPES
from warploom.machine.numerics.bits import Signature, element_of
from warploom.machine.semantics import conversions, floating, integers
from warploom.machine.semantics.vectors import WIDTHS, UnsupportedError, Value
from warploom.ptx.isa.table import BITS

Results = tuple[Value, ...]
Semantics = Callable[..., Results]
_Factory = Callable[[Signature], Callable[..., Value]]
_UNSIGNED_TESTS = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}


def _by_kind(integer: _Factory, real: _Factory) -> _Factory:
    """A family that has integer and floating-point forms."""

    def make(signature: Signature) -> Callable[..., Value]:
        return (real if element_of(signature["type"]).is_float else integer)(signature)

    return make


def _comparison(signature: Signature) -> Callable[..., Value]:
    """The test of `setp` and `set` on single elements."""
    type_, name = signature["type"], signature["cmp"]
    if element_of(type_).is_float:
        return floating.comparison(signature)
    if name in _UNSIGNED_TESTS:
        name = _UNSIGNED_TESTS[name]
    elif name not in ("eq", "ne"):
        name = f"{'s' if type_.startswith('s') else 'u'}{name}"
    return lambda a, b: a.compare(name, b)


def _combined(signature: Signature, found: Value, c: Value | None) -> Value:
    match signature.get("bool"):
        case "and":
            return found & c  # type: ignore[operator]
        case "or":
            return found | c  # type: ignore[operator]
        case "xor":
            return found ^ c  # type: ignore[operator]
    return found


def _setp(signature: Signature) -> Semantics:
    """(a, b[, c]) → the comparison and its negation, or of packed types those of the low and the high elements; both
    combined with c.
    """
    packed = PACKED_TYPES.get(signature["type"])
    if packed is not None:
        test, inner = _comparison({**signature, "type": packed.element.name}), f"i{packed.field_bits}"

        def both(a: Value, b: Value, c: Value | None = None) -> Results:
            low, high = (test(*elements) for elements in zip(_halves(a, inner), _halves(b, inner), strict=True))
            return _combined(signature, low, c), _combined(signature, high, c)

        return both
    test = _comparison(signature)

    def pair(a: Value, b: Value, c: Value | None = None) -> Results:
        found = test(a, b)
        return _combined(signature, found, c), _combined(signature, ~found, c)

    return pair


def _halves(a: Value, inner: str) -> tuple[Value, Value]:
    """The two elements of a packed register, the lower first."""
    return a.trunc(inner), (a >> WIDTHS[inner]).trunc(inner)


def _set(signature: Signature) -> Callable[..., Value]:
    """(a, b[, c]) → all ones or zero in an integer type, 1.0 or 0.0 in a float type; packed types by element.

    The ISA names only 1.0f and 0xffffffff: u16 and s16 get 16 ones, and for a packed source each half is written.
    """
    source, target = PACKED_TYPES.get(signature["type"]), signature["dtype"]
    fits = target in PACKED_TYPES or target in ("u32", "s32") if source else target not in PACKED_TYPES
    if not fits:
        raise UnsupportedError("set")
    element = element_of(target)
    bits = source.field_bits if source else element.bits
    true = _ONES[element.name] if element.is_float else (1 << bits) - 1
    test = _comparison({**signature, "type": source.element.name} if source else signature)

    def select(a: Value, b: Value, c: Value | None = None) -> Value:
        return _combined(signature, test(a, b), c).where(true, 0, f"i{bits}")

    def both(a: Value, b: Value, c: Value | None = None) -> Value:
        inner = f"i{bits}"
        low, high = (select(*pair, c) for pair in zip(_halves(a, inner), _halves(b, inner), strict=True))
        return (high.zext(a.type) << bits) | low.zext(a.type)

    return both if source else select


_ONES = {"f32": 0x3F80_0000, "f16": 0x3C00, "bf16": 0x3F80}
"""The bits of 1.0."""


def _pack(signature: Signature) -> Callable[..., Value]:
    """(parts…) → one register, the first part lowest."""
    outer = f"i{BITS[signature['type']]}"

    def join(*parts: Value) -> Value:
        found = parts[0].zext(outer)
        for number, part in enumerate(parts[1:], 1):
            found = found | (part.zext(outer) << number * part.width)
        return found

    return join


def _unpack(signature: Signature) -> Semantics:
    """(register) → its parts, the lowest first."""
    count = int(signature["count"])
    bits = BITS[signature["type"]] // count
    return lambda a: tuple((a >> number * bits).trunc(f"i{bits}") for number in range(count))


def _slct(signature: Signature) -> Callable[..., Value]:
    """(a, b, c) → a where c ≥ 0."""
    if signature["ctype"] == "s32":
        return lambda a, b, c: c.slt(0).where(b, a)
    read = floating.reader("f32", signature)
    return lambda a, b, c: read(c).compare("ge", 0.0).where(a, b)


_FACTORIES: dict[str, _Factory] = {
    "add": _by_kind(integers.total("add"), floating.arithmetic("add")),
    "sub": _by_kind(integers.total("sub"), floating.arithmetic("sub")),
    "mul": _by_kind(integers.multiply(narrow=False), floating.arithmetic("mul")),
    "mad": _by_kind(integers.multiply_add(narrow=False), floating.arithmetic("fma")),
    "fma": floating.arithmetic("fma"),
    **{f"{name}.mixed": floating.mixed(name) for name in ("add", "sub", "mul", "fma")},
    "mul24": integers.multiply(narrow=True),
    "mad24": integers.multiply_add(narrow=True),
    "sad": integers.sad,
    "div": _by_kind(integers.quotient("div"), floating.function("div")),
    "rem": integers.quotient("rem"),
    "abs": _by_kind(integers.absolute, floating.sign_change("abs")),
    "neg": _by_kind(integers.negate, floating.sign_change("neg")),
    **{name: _by_kind(integers.extreme(name), floating.extreme(name)) for name in ("min", "max")},
    **{name: integers.logic(name) for name in ("and", "or", "xor", "not")},
    "cnot": integers.cnot,
    "lop3": integers.lop3,
    "shl": integers.shift_left,
    "shr": integers.shift_right,
    "shf": integers.funnel,
    "popc": integers.popc,
    "clz": integers.clz,
    "bfind": integers.bfind,
    "brev": integers.brev,
    "bfe": integers.bfe,
    "bfi": integers.bfi,
    "bmsk": integers.bmsk,
    "szext": integers.szext,
    "fns": integers.fns,
    "prmt": integers.prmt,
    "dp4a": integers.dp4a,
    "dp2a": integers.dp2a,
    **{
        f"v{name}{count}": integers.video(name, count)
        for name in ("add", "sub", "avrg", "absdiff", "min", "max", "set")
        for count in (2, 4)
    },
    **{name: floating.function(name) for name in ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")},
    "copysign": floating.copysign,
    "testp": floating.testp,
    "set": _set,
    "selp": lambda _: lambda a, b, c: c.where(a, b),
    "slct": _slct,
    "mov": lambda _: lambda a: a,
    "mov.pack": _pack,
    "cvt": conversions.convert,
    "cvt.pair": conversions.convert_pair,
    "cvt.pack": conversions.pack,
}
_PACKABLE = frozenset({"f16x2", "bf16x2", "f32x2", "u16x2", "s16x2"})
BY_ELEMENT = frozenset({"add", "sub", "mul", "mad", "fma", "min", "max", "abs", "neg", "ex2", "tanh"})
"""The families whose packed forms work on each element."""
_WITH_CARRY = {name: integers.carried(name) for name in ("add.cc", "addc", "sub.cc", "subc", "mad.cc", "madc")}


def _per_element(factory: _Factory, signature: Signature) -> Callable[..., Value]:
    """A function on elements as one on registers that hold two of them."""
    packed = PACKED_TYPES[signature["type"]]
    one = factory({**signature, "type": packed.element.name})
    bits, inner, outer = packed.field_bits, f"i{packed.field_bits}", f"i{packed.bits}"

    def both(*operands: Value) -> Value:
        low = one(*[operand.trunc(inner) for operand in operands])
        high = one(*[(operand >> bits).trunc(inner) for operand in operands])
        return (high.zext(outer) << bits) | low.zext(outer)

    return both


@lru_cache(maxsize=4096)
def _meaning(family: str, modifiers: tuple[tuple[str, str], ...]) -> Semantics | None:
    signature: dict[str, Any] = dict(modifiers)
    try:
        if family == "setp":
            return _setp(signature)
        if family == "mov.unpack":
            return _unpack(signature)
        if family in _WITH_CARRY:
            return _carried(family, signature)
        factory, type_ = _FACTORIES[family], signature.get("type", "")
        if type_ in PACKED_TYPES and family in BY_ELEMENT:
            if type_ not in _PACKABLE:
                return None
            one = _per_element(factory, signature)
        else:
            one = factory(signature)
    except (UnsupportedError, KeyError):
        return None
    return lambda *operands: (one(*operands),)


def _carried(family: str, signature: Signature) -> Semantics:
    both = _WITH_CARRY[family](signature)
    writes = family.endswith(".cc") or signature.get("cc")
    return both if writes else lambda *operands: both(*operands)[:1]


def meaning(family: str, signature: Signature) -> Semantics | None:
    """The function of a form, from its operands to its results; None for a form that has none in the vector language.

    A carry is the last operand and the second result.
    """
    return _meaning(family, tuple(sorted(signature.items())))


def semantics(family: str, signature: Signature) -> Semantics | None:
    """The function of a form that can have a native kernel: those with a carry keep a flag for each thread."""
    return None if family in _WITH_CARRY else meaning(family, signature)


FAMILIES = frozenset({*_FACTORIES, "setp", "mov.unpack"})
"""The families that have forms with native kernels."""
