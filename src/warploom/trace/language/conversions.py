"""Conversions of values from type to type, also where PTX has no single instruction."""

from __future__ import annotations

from warploom.diagnostics import Diag
from warploom.trace.builder import here
from warploom.trace.language.packing import lengthened, rounded, widened
from warploom.trace.language.types import TYPES, Type
from warploom.trace.language.values import Value, compare, compute, literal, select


def converted(value: Value, type_: str, rounding: str, saturate: bool) -> Value:
    """The value in another type, as `Value.to` says."""
    source, target = TYPES[value.type], TYPES[type_]
    if "narrow" in (source.kind, target.kind):
        return _converted_narrow(value, target, rounding, saturate)
    if target.kind == "pred":
        return compare("ne", value, 0)
    if source.kind == "pred":
        return select(value, literal(1, type_), literal(0, type_))
    if (value.type, type_) == ("bf16", "f32") and not rounding and not saturate:
        longer = lengthened(value)
        if longer is not None:
            return longer
    whole = source.kind != "float" and target.kind != "float"
    if whole and not saturate and target.bits == source.bits and target.bits >= 16:
        return Value(type_, value.operand, value.region)
    if "bf16" in (type_, value.type) and 8 in (source.bits, target.bits):
        # PTX has no such conversion; the type between holds every number of the other.
        middle = source.wide if type_ == "bf16" else "f32"
        return value.to(middle).to(type_, rounding=rounding, saturate=saturate)
    if not rounding:
        if source.kind == "float" and target.kind != "float":
            rounding = "rzi"
        elif target.kind == "float" and (source.kind != "float" or _loses(source, target)):
            rounding = "rn"
    words = ["cvt", *([rounding] if rounding else []), *(["sat"] if saturate else []), type_, value.type]
    return compute(".".join(words), type_, value)


def _converted_narrow(value: Value, target: Type, rounding: str, saturate: bool) -> Value:
    if TYPES[value.type].kind == "narrow":
        wide = widened(value)
        return wide.to(target.name, rounding=rounding, saturate=saturate)
    if rounding or saturate:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"a .{target.name} rounds to nearest even and stays finite, always")
    return rounded(value, target)


def _loses(source: Type, target: Type) -> bool:
    """Return whether a float type cannot hold every number of another."""
    return target.bits < source.bits or (target.bits == source.bits and target is not source)
