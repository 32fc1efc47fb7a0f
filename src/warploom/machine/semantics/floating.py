"""Floating-point semantics: sums, products, extremes, comparisons, division, roots, signs.

Single precision goes through f64, with rounding to odd, where one f32 operation is not enough: an inexact sum gets an
odd last bit, so that it can sit neither on a representable value nor on a midpoint, and the second rounding is right.
Half precision computes in f32, whose rounding does no harm (24 ≥ 2·11 + 2 bits for sums and products of f16). In f64
the quotient or root of f32 numbers lies on the right side of every f32 and midpoint. The ISA leaves f32 and half NaNs
unspecified and says only that `.ftz` flushes subnormal results: a result is flushed when it is subnormal after
rounding as if the exponent had no lower end. Both are what an H200 does.

The approximate forms (`.approx`, `.full`) are computed in f64 and rounded to nearest: closer than the ISA asks, so
that a kernel may differ from a GPU by the GPU's own error. Seen on an H200 for normal arguments and results: rcp,
sqrt and rsqrt one unit in the last place, ex2 two, tanh 2^-16 relative, lg2 and (over a few turns) sin and cos about
1e-6 absolute. Special values are the ISA's; sin and cos of huge arguments, for which the ISA promises nothing, are
those of the exact argument.
"""

from __future__ import annotations

from collections.abc import Callable

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.machine.numerics.bits import Signature
from warploom.machine.semantics import transcendental
from warploom.machine.semantics.vectors import UnsupportedError, Value

Semantics = Callable[..., Value]

NAN_F32 = ELEMENT_TYPES["f32"].nan_code
_NAN_F64 = ELEMENT_TYPES["f64"].nan_code
_QUIET_F64 = 1 << 51
_SIGN = {16: 0x8000, 32: 0x8000_0000, 64: 1 << 63}
_LEAST_F32, _LEAST_F16 = 2.0**-126, 2.0**-14
_LIFT_F32, _LIFT_F16 = 2.0**64, 2.0**10


def negated(x: Value) -> Value:
    return (x.bits ^ _SIGN[x.width]).number


def canonical(x: Value) -> Value:
    """The bits of an f32 result, every NaN being the one that the hardware writes."""
    return x.is_nan.rarely(NAN_F32, x.bits)


def settled(x: Value, *operands: Value) -> Value:
    """The bits of an f64 result: a NaN comes, quieted, from the first operand (bits) that is one."""
    chosen = x.constant("i64", _NAN_F64)
    for operand in reversed(operands):
        chosen = operand.number.is_nan.where(operand | _QUIET_F64, chosen)
    return x.is_nan.rarely(chosen, x.bits)


def flushed(bits: Value) -> Value:
    """Subnormal f32 or f16 patterns as zeros of the same sign."""
    sign = _SIGN[bits.width]
    least = 1 << (23 if bits.width == 32 else 10)
    return (bits & (sign - 1)).ult(least).rarely(bits & sign, bits)


def odd_sum(left: Value, right: Value) -> Value:
    """The sum in f64, rounded to odd."""
    total = left + right
    part = total - left
    lost = (left - (total - part)) + (right - part)
    bits = total.bits
    inexact = (lost.gt(0.0) | lost.lt(0.0)) & (bits & 1).eq(0)
    away = ~(lost.gt(0.0) ^ total.gt(0.0))
    return (bits + inexact.where(away.where(1, -1, "i64"), 0)).number


def narrowed(x: Value, rounding: str) -> Value:
    """f64 to f32 under a rounding mode of PTX, or to odd."""
    result = x.narrow
    if rounding == "rn":
        return result
    back, bits = result.wide, result.bits
    negative = bits.slt(0)
    match rounding:
        case "rz":
            step = back.fabs().gt(x.fabs()).where(-1, 0, "i32")
        case "rm":
            step = back.gt(x).where(negative.where(1, -1, "i32"), 0)
        case "rp":
            step = back.lt(x).where(negative.where(-1, 1, "i32"), 0)
        case "odd":
            inexact = (back.lt(x) | back.gt(x)) & (bits & 1).eq(0)
            step = inexact.where(back.fabs().lt(x.fabs()).where(1, -1, "i32"), 0)
        case _:
            raise UnsupportedError(rounding)
    return (bits + step).number


def half_to_single(bits: Value) -> Value:
    """f16 bits as the f32 with the same value; a NaN keeps its sign."""
    if (found := bits.ops.from_half(bits)) is not None:
        return found
    wide = bits.zext("i32")
    size = (wide & 0x7FFF) << 13
    rebased = size + (112 << 23)
    special = (wide & 0x7C00).eq(0x7C00).where(size + (224 << 23), rebased)
    # The implicit bit of a normal number is put on and taken off again: exact, and normalised by the subtraction.
    small = ((size + (113 << 23)).number - 2.0**-14).bits
    found = (wide & 0x7C00).eq(0).where(small, special)
    return (found | ((wide & 0x8000) << 16)).number


def single_to_half(x: Value) -> Value:
    """f32 to f16 bits, to nearest even; NaN canonical."""
    if (found := x.ops.to_half(x)) is not None:
        return x.is_nan.rarely(0x7FFF, found)
    bits = x.bits
    size = bits & 0x7FFF_FFFF
    normal = (size + (((size >> 13) & 1) + 0xC800_0FFF)) >> 13
    # Adding 0.5 puts the last bit of a subnormal f16 at the last bit of the sum.
    small = (size.number + 0.5).bits - 0x3F00_0000
    code = size.ult(0x3880_0000).where(small, normal)
    code = size.ult(0x4780_0000).where(code, 0x7C00)
    code = x.is_nan.where(0x7FFF, code | ((bits >> 16) & 0x8000))
    return code.trunc("i16")


def brain_to_single(bits: Value) -> Value:
    return (bits.zext("i32") << 16).number


def single_to_brain(x: Value) -> Value:
    """f32 to bf16 bits, to nearest even; NaN canonical."""
    bits = x.bits
    code = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    return x.is_nan.rarely(0x7FFF, code).trunc("i16")


WIDEN: dict[str, Callable[[Value], Value]] = {
    "f32": lambda bits: bits.number,
    "f16": half_to_single,
    "bf16": brain_to_single,
}


def saturated(x: Value) -> Value:
    """A float cut to [0, 1]; NaN and negative zero are zero."""
    return x.gt(0.0).where(x.lt(1.0).where(x, 1.0), 0.0)


def saturated_half(code: Value, name: str) -> Value:
    """The same of f16 or bf16 bits."""
    element = ELEMENT_TYPES[name]
    one = element.bias << element.mantissa
    return (code - 1).ult(element.infinity_code).where(code.umin(one), 0)


def rectified(bits: Value) -> Value:
    """Negative results as zero, negative zero too."""
    return (bits & _SIGN[bits.width]).ne(0).where(0, bits)


_EXACT: dict[str, Callable[..., Value]] = {
    "add": odd_sum,
    "sub": lambda a, b: odd_sum(a, negated(b)),
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: odd_sum(a * b, c),
}
_NATIVE: dict[str, Callable[..., Value]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}
_TERMS: dict[str, Callable[..., tuple[Value, ...]]] = {
    "add": lambda a, b: (a, b),
    "sub": lambda a, b: (a, negated(b)),
    "fma": lambda a, b, c: (a * b, c),
}
_NAN_ORDER: dict[str, Callable[..., tuple[Value, ...]]] = {
    "add": lambda a, b: (b, a),
    "sub": lambda a, b: (b, a),
    "mul": lambda a, b: (b, a),
    "fma": lambda a, b, c: (b, c, a),
}


def arithmetic(operation: str) -> Callable[[Signature], Semantics]:
    """The factory of `add`, `sub`, `mul` or `fma` of one float type."""

    def make(signature: Signature) -> Semantics:
        rounding = signature.get("rnd") or "rn"
        match signature["type"]:
            case "f32":
                return _single(operation, rounding, signature)
            case "f16":
                return _half(operation, rounding, signature)
            case "bf16":
                return _brain(operation, rounding, signature)
            case "f64" if rounding == "rn" and not signature.get("ftz") and not signature.get("sat"):
                return _double(operation)
        raise UnsupportedError(operation)

    return make


def mixed(operation: str) -> Callable[[Signature], Semantics]:
    """The factory of `add.f32.f16` and its like."""

    def make(signature: Signature) -> Semantics:
        function = _single(operation, signature.get("rnd") or "rn", signature)
        widen = WIDEN[signature["atype"]]
        narrow_operands = 1 if operation in ("add", "sub") else 2

        def whole(*operands: Value) -> Value:
            wide = [widen(bits).bits for bits in operands[:narrow_operands]]
            return function(*wide, *operands[narrow_operands:])

        return whole

    return make


def fused_single(a: Value, b: Value, c: Value) -> Value:
    """One rounding of a × b + c in f32: the host's instruction, or f64, in which the product is exact.

    The sum in f64 is rounded to odd only where rounding it twice may mislead: where it is a midpoint of f32, or below
    the normal numbers of f32.
    """
    try:
        return a.ops.fused(a, b, c)
    except UnsupportedError:
        product, addend = a.wide * b.wide, c.wide
    total = product + addend
    size = total.fabs()
    doubtful = (total.bits & ((1 << 29) - 1)).eq(1 << 28) | (size.lt(_LEAST_F32) & size.gt(0.0))
    return doubtful.rarely(odd_sum(product, addend).narrow, total.narrow)


def flushed_result(result: Value, exact: Callable[[], Value], rounding: str) -> Value:
    """Zero where an f32 result is subnormal once rounded without a lower end of the exponent."""
    lifted = narrowed(exact() * _LIFT_F32, rounding).fabs()
    size = result.fabs()
    small = lifted.lt(_LEAST_F32 * _LIFT_F32) & result.eq(result)
    close = size.compare("le", _LEAST_F32) & size.gt(0.0)
    return close.rarely(small.where(result.bits & _SIGN[32], result.bits), result.bits).number


def _single(operation: str, rounding: str, signature: Signature) -> Semantics:
    ftz, sat = signature.get("ftz"), signature.get("sat")
    exactly, terms = _EXACT[operation], _TERMS.get(operation)

    def compute(*values: Value) -> Value:
        if rounding == "rn":
            return fused_single(*values) if operation == "fma" else _NATIVE[operation](*values)
        wide = [value.wide for value in values]
        total = exactly(*wide)
        result = narrowed(total, rounding)
        if rounding == "rm" and terms is not None:
            signs = [(term.bits >> 63).ne(0) for term in terms(*wide)]
            result = (total.eq(0.0) & (signs[0] | signs[1])).where(-0.0, result)
        return result

    def whole(*operands: Value) -> Value:
        values = [(flushed(bits) if ftz else bits).number for bits in operands]
        result = compute(*values)
        if ftz:
            result = flushed_result(result, lambda: exactly(*[value.wide for value in values]), rounding)
        return canonical(saturated(result) if sat else result)

    return whole


def _half(operation: str, rounding: str, signature: Signature) -> Semantics:
    if rounding != "rn":
        raise UnsupportedError(operation)
    ftz, sat, relu, oob = (signature.get(flag) for flag in ("ftz", "sat", "relu", "oob"))
    exactly = _EXACT[operation]

    def whole(*operands: Value) -> Value:
        values = [half_to_single(flushed(bits) if ftz else bits) for bits in operands]
        if operation == "fma":
            a, b, c = (value.wide for value in values)
            result = narrowed(a * b + c, "odd")
        else:
            result = _NATIVE[operation](*values)
        code = single_to_half(result)
        if ftz:
            lifted = half_to_single(
                single_to_half(narrowed(exactly(*[value.wide for value in values]) * _LIFT_F16, "odd"))
            )
            size = code & 0x7FFF
            small = lifted.fabs().lt(_LEAST_F16 * _LIFT_F16)
            code = (size - 1).ult(0x0400).rarely(small.where(code & 0x8000, code), code)
        if sat:
            code = saturated_half(code, "f16")
        if relu:
            code = rectified(code)
        return _zero_out_of_bounds(code, *operands[:2]) if oob else code

    return whole


def _product_brain(a: Value, b: Value) -> Value:
    """Exact in f32 unless subnormal there, where rounding to odd keeps the second rounding right."""
    product = a * b
    size = product.fabs()
    exact = a.wide * b.wide
    return (size.lt(_LEAST_F32) & exact.ne(0.0)).rarely(narrowed(exact, "odd"), product)


def _fused_brain(a: Value, b: Value, c: Value) -> Value:
    """Rounded to f32 first, which misleads only at a midpoint of bf16 that is not exact: there, rounded to odd."""
    product, addend = a.wide * b.wide, c.wide
    result = (product + addend).narrow
    middle = (result.bits & 0xFFFF).eq(0x8000)
    return middle.rarely(narrowed(odd_sum(product, addend), "odd"), result)


_BRAIN: dict[str, Semantics] = {
    "add": _NATIVE["add"],
    "sub": _NATIVE["sub"],
    "mul": _product_brain,
    "fma": _fused_brain,
}


def _brain(operation: str, rounding: str, signature: Signature) -> Semantics:
    if rounding != "rn" or signature.get("ftz") or signature.get("sat"):
        raise UnsupportedError(operation)
    relu, oob = signature.get("relu"), signature.get("oob")

    def whole(*operands: Value) -> Value:
        values = [brain_to_single(bits) for bits in operands]
        code = single_to_brain(_BRAIN[operation](*values))
        if relu:
            code = rectified(code)
        return _zero_out_of_bounds(code, *operands[:2]) if oob else code

    return whole


def _zero_out_of_bounds(code: Value, a: Value, b: Value) -> Value:
    first, second = ELEMENT_TYPES["f16"].out_of_bounds
    return (a.eq(first) | a.eq(second) | b.eq(first) | b.eq(second)).rarely(0, code)


def _double(operation: str) -> Semantics:
    order = _NAN_ORDER[operation]

    def whole(*operands: Value) -> Value:
        values = [bits.number for bits in operands]
        result = values[0].ops.fused(*values) if operation == "fma" else _NATIVE[operation](*values)
        return settled(result, *order(*operands))

    return whole


def _choose(name: str, a: Value, b: Value, propagate: bool) -> Value:
    """The lesser or greater of two floats; -0 is below +0."""
    first = a.lt(b) if name == "min" else a.gt(b)
    result = first.where(a.bits, b.bits)
    # Equal operands are the same bits or zeros of two signs, which the sign bits decide.
    result = a.eq(b).rarely(a.bits | b.bits if name == "min" else a.bits & b.bits, result)
    if propagate:
        result = b.is_nan.rarely(b.bits, result)
        return a.is_nan.rarely(a.bits, result).number
    result = b.is_nan.rarely(a.bits, result)
    return a.is_nan.rarely(b.bits, result).number


def extreme(name: str) -> Callable[[Signature], Semantics]:
    """The factory of `min` or `max` of one float type."""

    def make(signature: Signature) -> Semantics:
        type_ = signature["type"]
        propagate, ftz = bool(signature.get("nan")), signature.get("ftz")
        xorsign, absolute = signature.get("xorsign"), signature.get("abs")
        if type_ == "f64":
            if set(signature) - {"type", "nan"}:
                raise UnsupportedError(name)
            return lambda a, b: settled(_choose(name, a.number, b.number, propagate), b, a)
        if type_ not in WIDEN or (ftz and type_ == "bf16"):
            raise UnsupportedError(name)

        def whole(*operands: Value) -> Value:
            wide = [WIDEN[type_](flushed(bits) if ftz else bits).bits for bits in operands]
            values = [(bits & 0x7FFF_FFFF if xorsign or absolute else bits).number for bits in wide]
            result = values[0]
            for value in values[1:]:
                result = _choose(name, result, value, propagate)
            bits = canonical(result)
            if xorsign:
                bits = bits.eq(NAN_F32).where(bits, bits | ((wide[0] ^ wide[1]) & _SIGN[32]))
            if type_ == "f32":
                return bits
            return single_to_half(bits.number) if type_ == "f16" else (bits >> 16).trunc("i16")

        return whole

    return make


def sign_change(name: str) -> Callable[[Signature], Semantics]:
    """The factory of `abs` or `neg` of floats: a NaN becomes canonical; of f64 it passes quieted."""

    def make(signature: Signature) -> Semantics:
        element, ftz = ELEMENT_TYPES[signature["type"]], signature.get("ftz")
        if ftz and element.name not in ("f32", "f16"):
            raise UnsupportedError(name)

        def whole(bits: Value) -> Value:
            operand = flushed(bits) if ftz else bits
            size = operand & (element.sign - 1)
            result = size if name == "abs" else operand ^ element.sign
            nan = size.compare("ugt", element.infinity_code)
            return nan.rarely(bits | _QUIET_F64 if element.name == "f64" else element.nan_code, result)

        return whole

    return make


_FLOAT_TESTS: dict[str, Callable[[Value, Value], Value]] = {
    **{name: (lambda a, b, name=name: a.compare(name, b)) for name in ("eq", "lt", "le", "gt", "ge")},  # type: ignore[misc]
    "ne": lambda a, b: a.lt(b) | a.gt(b),
    "equ": lambda a, b: ~(a.lt(b) | a.gt(b)),
    "neu": lambda a, b: ~a.eq(b),
    "ltu": lambda a, b: ~a.compare("ge", b),
    "leu": lambda a, b: ~a.gt(b),
    "gtu": lambda a, b: ~a.compare("le", b),
    "geu": lambda a, b: ~a.lt(b),
    "num": lambda a, b: a.eq(a) & b.eq(b),
    "nan": lambda a, b: ~(a.eq(a) & b.eq(b)),
}


def comparison(signature: Signature) -> Semantics:
    """The comparison of two floats, alone."""
    test, read = _FLOAT_TESTS[signature["cmp"]], reader(signature["type"], signature)
    return lambda a, b: test(read(a), read(b))


def reader(type_: str, signature: Signature) -> Callable[[Value], Value]:
    """The numbers that the bits of a float type stand for; halves are read as f32."""
    if type_ == "f64":
        return lambda bits: bits.number
    if type_ not in WIDEN or (signature.get("ftz") and type_ == "bf16"):
        raise UnsupportedError(type_)
    widen = WIDEN[type_]
    return (lambda bits: widen(flushed(bits))) if signature.get("ftz") else widen


_DOUBLE: dict[str, Callable[..., Value]] = {
    "div": lambda a, b: a / b,
    "rcp": lambda x: 1.0 / x,
    "sqrt": lambda x: x.sqrt(),
    "rsqrt": lambda x: 1.0 / x.sqrt(),
    "ex2": transcendental.exp2,
    "lg2": transcendental.log2,
    "sin": transcendental.sin,
    "cos": transcendental.cos,
    "tanh": transcendental.tanh,
}


def function(name: str) -> Callable[[Signature], Semantics]:
    """The factory of a division, root or transcendental function of one float type."""

    def make(signature: Signature) -> Semantics:
        rounding = signature.get("rnd") or "rn"
        match signature["type"]:
            case "f32":
                return _function_single(name, signature)
            case "f16" | "bf16" if name in ("ex2", "tanh"):
                return _function_half(name, signature["type"])
            case "f64" if rounding == "rn" and name in ("div", "rcp", "sqrt"):
                return lambda *operands: settled(_DOUBLE[name](*[bits.number for bits in operands]), *operands)
        raise UnsupportedError(name)

    return make


def _function_single(name: str, signature: Signature) -> Semantics:
    compute, ftz = _DOUBLE[name], signature.get("ftz")
    rounding = signature.get("rnd") or "rn"
    directed = rounding if rounding in ("rn", "rz", "rm", "rp") else "rn"

    def whole(*operands: Value) -> Value:
        bits = [flushed(operand) if ftz else operand for operand in operands]
        wide = compute(*[operand.number.wide for operand in bits])
        result = narrowed(wide, directed)
        if ftz:
            result = flushed_result(result, lambda: wide, directed)
        found = canonical(result)
        return _huge_divisors(found, *operands) if name == "div" and rounding == "approx" else found

    return whole


def _huge_divisors(quotient: Value, a: Value, b: Value) -> Value:
    """`div.approx` by |b| > 2^126 gives a zero of the quotient's sign, and NaN where a is infinite."""
    size, top = b & 0x7FFF_FFFF, a & 0x7FFF_FFFF
    huge = size.compare("ugt", 0x7E80_0000) & size.ult(0x7F80_0000) & top.compare("ule", 0x7F80_0000)
    special = top.eq(0x7F80_0000).where(NAN_F32, (a ^ b) & _SIGN[32])
    return huge.rarely(special, quotient)


def _function_half(name: str, type_: str) -> Semantics:
    """f16 and bf16 have ex2 and tanh; bf16's ex2 always flushes subnormals."""

    def brain(bits: Value) -> Value:
        wide = brain_to_single(bits).bits
        if name == "ex2":
            wide = flushed(wide)
        result = narrowed(_DOUBLE[name](wide.number.wide), "odd")
        if name == "ex2":
            result = flushed(result.bits).number
        return single_to_brain(result)

    def half(bits: Value) -> Value:
        return single_to_half(narrowed(_DOUBLE[name](half_to_single(bits).wide), "odd"))

    return brain if type_ == "bf16" else half


def copysign(signature: Signature) -> Semantics:
    """(a, b) → b with the sign of a."""
    sign = ELEMENT_TYPES[signature["type"]].sign
    return lambda a, b: (a & sign) | (b & (sign - 1))


def testp(signature: Signature) -> Semantics:
    """(a) → a predicate: a float has a property; zeros count as normal."""
    element = ELEMENT_TYPES[signature["type"]]
    infinity, normal = element.infinity_code, element.smallest_normal
    tests: dict[str, Callable[[Value], Value]] = {
        "finite": lambda size: size.ult(infinity),
        "infinite": lambda size: size.eq(infinity),
        "number": lambda size: size.compare("ule", infinity),
        "notanumber": lambda size: size.compare("ugt", infinity),
        "normal": lambda size: size.eq(0) | (size.compare("uge", normal) & size.ult(infinity)),
        "subnormal": lambda size: size.ne(0) & size.ult(normal),
    }
    test = tests[signature["test"]]
    return lambda a: test(a & (element.sign - 1))
