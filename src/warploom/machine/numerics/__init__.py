"""The exact numerics of PTX, as functions of bit patterns.

Values travel as bits in unsigned arrays, one element per lane: f32 as uint32, f16 and bf16 as uint16, f64 as uint64,
s32 as uint32, packed types as one register (`f16x2` in uint32, `e4m3x2` in uint16, `e2m1x2` in uint8, the first element
lowest), predicates as bool. A family's factory takes the modifiers of an instruction once, for example
`{"type": "f32", "rnd": "rn", "ftz": "ftz"}` (the spelling of the instruction table; a flag that is absent is off), and
returns the function that the translated code calls:

    array_function("fma", {"type": "f32", "rnd": "rn"})(a, b, c)                        → uint32 array
    scalar_function("bfe", {"type": "u32"}, ("u32", "u32", "u32"))(0xAB00, 8, 8)        → 171

Arrays: operands in the order of the instruction, all of one length, in the storage type of their PTX type
(`storage_of`); shift counts, positions, selectors and `lop3`'s table may be Python integers. A function returns a new
array, or a pair where the instruction has two results (`.cc`, `setp` with `pair` or of packed types, `lop3` with
`bool`); where it is a plain `numpy.ufunc` it also takes `out=`. Operands are never written or returned.
Scalars: non-negative Python integers in and out, bools for predicates.

NumPy reports overflow and invalid operations that PTX takes for granted: call inside `numpy.errstate(all="ignore")`,
entered once per run rather than per call.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES, PACKED_TYPES, storage_of
from warploom.machine.numerics import bitfields, compare, floats, functions, integers, signs, video
from warploom.machine.numerics.bits import (
    INTEGERS,
    ArrayFunction,
    Factory,
    ScalarFunction,
    Signature,
    element_of,
    unknown,
)
from warploom.machine.numerics.convert import convert, pack
from warploom.machine.numerics.scalar import SCALAR_OPS

__all__ = [
    "ARRAY_OPS",
    "INTEGERS",
    "SCALAR_OPS",
    "array_function",
    "convert",
    "extension",
    "scalar_function",
    "storage_of",
]


def _by_kind(whole: Factory, real: Factory) -> Factory:
    """A family that has integer and floating-point forms."""
    return lambda signature: (real if element_of(signature["type"]).is_float else whole)(signature)


ARRAY_OPS: Mapping[str, Factory] = MappingProxyType(
    {
        "add": _by_kind(integers.sum_("add"), floats.arithmetic("add")),
        "sub": _by_kind(integers.sum_("sub"), floats.arithmetic("sub")),
        "mul": _by_kind(integers.mul, floats.arithmetic("mul")),
        "mad": _by_kind(integers.mad, floats.arithmetic("fma")),
        "fma": floats.arithmetic("fma"),
        **{f"{name}.mixed": floats.mixed(name) for name in ("add", "sub", "mul", "fma")},
        "mul24": integers.mul24,
        "mad24": integers.mad24,
        "sad": integers.sad,
        **{name: integers.carried(name) for name in ("add.cc", "addc", "sub.cc", "subc", "mad.cc", "madc")},
        "div": _by_kind(integers.div, functions.function("div")),
        "rem": integers.rem,
        "abs": _by_kind(integers.absolute, signs.change("abs")),
        "neg": _by_kind(integers.negate, signs.change("neg")),
        **{name: _by_kind(integers.extreme(name), compare.extreme(name)) for name in ("min", "max")},
        "dp4a": integers.dp4a,
        "dp2a": integers.dp2a,
        **{
            f"v{name}{count}": video.simd(name, count)
            for name in ("add", "sub", "avrg", "absdiff", "min", "max", "set")
            for count in (2, 4)
        },
        **{name: bitfields.logic(name) for name in ("and", "or", "xor", "not")},
        "cnot": bitfields.cnot,
        "lop3": bitfields.lop3,
        "shl": bitfields.shl,
        "shr": bitfields.shr,
        "shf": bitfields.shf,
        "popc": bitfields.popc,
        "clz": bitfields.clz,
        "bfind": bitfields.bfind,
        "brev": bitfields.brev,
        "bfe": bitfields.bfe,
        "bfi": bitfields.bfi,
        "bmsk": bitfields.bmsk,
        "szext": bitfields.szext,
        "fns": bitfields.fns,
        "prmt": bitfields.prmt,
        **{name: functions.function(name) for name in ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")},
        "copysign": signs.copysign,
        "testp": signs.testp,
        "setp": compare.setp,
        "set": compare.set_,
        "selp": compare.selp,
        "slct": compare.slct,
        "cvt": convert,
        "cvt.pair": convert,
        "cvt.pack": pack,
    }
)

_DEFAULT_TYPES = {"bmsk": "b32", "fns": "b32", "prmt": "b32", "shf": "b32", "lop3": "b32"}


def array_function(family: str, signature: Signature) -> ArrayFunction:
    """The function of an instruction on arrays of lanes, or the error that it has none."""
    try:
        return ARRAY_OPS[family](signature)
    except KeyError:
        raise unknown(family, signature) from None


def scalar_function(family: str, signature: Signature, types: tuple[str, ...]) -> ScalarFunction:
    """The function of an instruction on Python integers; `types` are its operands' (empty for an immediate).

    Where there is no scalar twin (floats, packed types), the array function runs on one lane.
    """
    kind = signature.get("type") or signature.get("atype") or _DEFAULT_TYPES.get(family, "")
    whole = kind == "pred" or (kind in ELEMENT_TYPES and not ELEMENT_TYPES[kind].is_float)
    converts = family == "cvt" and not (whole and signature["dtype"] in INTEGERS)
    if whole and family in SCALAR_OPS and not converts:
        return SCALAR_OPS[family](signature)
    return _on_one_lane(array_function(family, signature), types)


def _on_one_lane(function: ArrayFunction, types: tuple[str, ...]) -> ScalarFunction:
    dtypes = [np.dtype(bool) if name == "pred" else storage_of(name) if name else None for name in types]

    @lru_cache(maxsize=1 << 8)  # the same for every CTA, most often
    def whole(*values: int) -> Any:
        lanes = [
            value if dtype is None else np.array([value], dtype) for value, dtype in zip(values, dtypes, strict=True)
        ]
        with np.errstate(all="ignore"):
            result = function(*lanes)
        return tuple(part[0].item() for part in result) if isinstance(result, tuple) else result[0].item()

    return whole


def extension(type_name: str, register_bits: int) -> ArrayFunction:
    """The extension of a `cvt` result to a wider register: by sign for signed integers, else with zeros."""
    outer = np.dtype(f"u{register_bits // 8}")
    if type_name not in PACKED_TYPES and ELEMENT_TYPES[type_name].is_signed:
        view = ELEMENT_TYPES[type_name].values
        return lambda bits: bits.view(view).astype(outer)
    return lambda bits: bits.astype(outer)
