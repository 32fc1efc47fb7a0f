"""The semantics of every form that the engine executes: a family and its modifiers to a function of values."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from warploom.hardware.dtypes import ELEMENT_TYPES, PACKED_TYPES
from warploom.machine.engine import conversions, floating, whole
from warploom.machine.engine.vectors import UnsupportedError, Value
from warploom.machine.numerics.bits import Signature, element_of
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
    """(a, b[, c]) → the comparison and its negation, both combined with c."""
    if signature["type"] in PACKED_TYPES:
        raise UnsupportedError("setp")
    test = _comparison(signature)

    def pair(a: Value, b: Value, c: Value | None = None) -> Results:
        found = test(a, b)
        return _combined(signature, found, c), _combined(signature, ~found, c)

    return pair


def _set(signature: Signature) -> Callable[..., Value]:
    """(a, b[, c]) → all ones or zero in an integer type, 1.0 or 0.0 in a float type."""
    target = signature["dtype"]
    if signature["type"] in PACKED_TYPES or target in PACKED_TYPES:
        raise UnsupportedError("set")
    test, element = _comparison(signature), ELEMENT_TYPES[target]
    ones = {"f32": 0x3F80_0000, "f16": 0x3C00, "bf16": 0x3F80}.get(target, (1 << element.bits) - 1)

    def select(a: Value, b: Value, c: Value | None = None) -> Value:
        return _combined(signature, test(a, b), c).where(ones, 0, f"i{element.bits}")

    return select


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
    "add": _by_kind(whole.total("add"), floating.arithmetic("add")),
    "sub": _by_kind(whole.total("sub"), floating.arithmetic("sub")),
    "mul": _by_kind(whole.multiply(narrow=False), floating.arithmetic("mul")),
    "mad": _by_kind(whole.multiply_add(narrow=False), floating.arithmetic("fma")),
    "fma": floating.arithmetic("fma"),
    **{f"{name}.mixed": floating.mixed(name) for name in ("add", "sub", "mul", "fma")},
    "mul24": whole.multiply(narrow=True),
    "mad24": whole.multiply_add(narrow=True),
    "sad": whole.sad,
    "div": _by_kind(whole.quotient("div"), floating.function("div")),
    "rem": whole.quotient("rem"),
    "abs": _by_kind(whole.absolute, floating.sign_change("abs")),
    "neg": _by_kind(whole.negate, floating.sign_change("neg")),
    **{name: _by_kind(whole.extreme(name), floating.extreme(name)) for name in ("min", "max")},
    **{name: whole.logic(name) for name in ("and", "or", "xor", "not")},
    "cnot": whole.cnot,
    "lop3": whole.lop3,
    "shl": whole.shift_left,
    "shr": whole.shift_right,
    "shf": whole.funnel,
    "popc": whole.popc,
    "clz": whole.clz,
    "bfind": whole.bfind,
    "brev": whole.brev,
    "bfe": whole.bfe,
    "bfi": whole.bfi,
    "prmt": whole.prmt,
    "dp4a": whole.dp4a,
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
}
_PACKABLE = frozenset({"f16x2", "bf16x2", "f32x2", "u16x2", "s16x2"})
_BY_ELEMENT = frozenset(
    {"add", "sub", "mul", "mad", "fma", "min", "max", "abs", "neg", "ex2", "tanh"}
)  # the families whose packed forms work on each element


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
def _semantics(family: str, modifiers: tuple[tuple[str, str], ...]) -> Semantics | None:
    signature: dict[str, Any] = dict(modifiers)
    try:
        if family == "setp":
            return _setp(signature)
        if family == "mov.unpack":
            return _unpack(signature)
        factory, type_ = _FACTORIES[family], signature.get("type", "")
        if type_ in PACKED_TYPES and family in _BY_ELEMENT:
            if type_ not in _PACKABLE:
                return None
            one = _per_element(factory, signature)
        else:
            one = factory(signature)
    except (UnsupportedError, KeyError):
        return None
    return lambda *operands: (one(*operands),)


def semantics(family: str, signature: Signature) -> Semantics | None:
    """The function of a form, from its operands to its results; None for a form that only the reference executes."""
    return _semantics(family, tuple(sorted(signature.items())))


FAMILIES = frozenset({*_FACTORIES, "setp", "mov.unpack"})
"""The families that have forms with native kernels."""
