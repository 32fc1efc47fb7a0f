"""References for the numerics: fractions, sorted tables of every value, and PTX opcodes as signatures."""

from __future__ import annotations

import struct
from fractions import Fraction
from functools import lru_cache

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES, PACKED_TYPES, ElementType, storage_of
from warploom.machine.semantics.functions import array_function

TYPES = {*ELEMENT_TYPES, *PACKED_TYPES, "u2", "s2", "u4", "s4"}
FLAGS = {"ftz", "sat", "satfinite", "relu", "shiftamt", "oob", "cc"}
ROUNDINGS = {"rn", "rz", "rm", "rp", "rna", "rs", "rni", "rzi", "rmi", "rpi", "approx", "full"}
ORDERED = {"eq", "ne", "lt", "le", "gt", "ge", "num"}
UNORDERED = {"equ", "neu", "ltu", "leu", "gtu", "geu", "nan"}
COMPARISONS = ORDERED | UNORDERED | {"lo", "ls", "hi", "hs"}
INFINITY = float("inf")


def signature_of(opcode: str) -> tuple[str, dict[str, str]]:
    """`fma.rn.ftz.f32` as the family and the modifiers that a factory takes."""
    root, *words = opcode.replace("xorsign.abs", "xorsign").split(".")
    types = [word for word in words if word in TYPES]
    family, found = root, {}
    for word in words:
        if word in TYPES:
            continue
        if word == "pack":
            family = "cvt.pack"
        elif root in ("set", "setp", "vset2", "vset4") and word in COMPARISONS:
            found["cmp"] = word
        elif root in ("set", "setp", "lop3") and word in ("and", "or", "xor"):
            found["bool"] = word
        elif word == "NaN":
            found["nan"] = word
        elif word in FLAGS or word in ("abs", "xorsign") or (root[0] == "v" and word == "add"):
            found[word] = word
        elif word in ROUNDINGS:
            found["rnd"] = word
        elif root == "testp":
            found["test"] = word
        elif root == "shf" and word in ("l", "r"):
            found["direction"] = word
        else:
            found["mode"] = word
    names = {"cvt": ("dtype", "atype"), "set": ("dtype", "type"), "slct": ("type", "ctype")}
    names |= dict.fromkeys(("dp4a", "dp2a", "vset2", "vset4"), ("atype", "btype"))
    names |= {root: ("dtype", "atype", "btype")} if root[0] == "v" and len(types) == 3 else {}
    if root in ("add", "sub", "fma") and len(types) == 2:
        family, names[root] = f"{root}.mixed", ("type", "atype")
    found |= dict(zip(names.get(root, ("type",)), types, strict=False))
    if root == "cvt" and found.get("dtype") in PACKED_TYPES and found.get("atype") == "f32":
        family = "cvt.pair"
    if "cc" in found and root in ("add", "sub", "mad"):
        family = f"{root}.cc"
    return family, found


def run(opcode: str, *operands: np.ndarray) -> np.ndarray:
    """Run an instruction on arrays, like the emulator."""
    types = tuple("" if isinstance(each, int) else type_of(each) for each in operands)
    literals = tuple(each if isinstance(each, int) else None for each in operands)
    with np.errstate(all="ignore"):
        function = array_function(*signature_of(opcode), types, literals)
        return function(*[each for each in operands if not isinstance(each, int)])


def type_of(array: np.ndarray) -> str:
    """A PTX type that an array can have."""
    return "pred" if array.dtype == np.bool_ else f"u{8 * array.itemsize}"


def extended(bits: np.ndarray, type_name: str, register: type[np.unsignedinteger]) -> np.ndarray:
    """The result of a `cvt` in a wider register: extended by its sign if the type is signed, else with zeros."""
    return bits.view(ELEMENT_TYPES[type_name].values).astype(register)


def f32_bits(values) -> np.ndarray:
    return np.asarray(values, np.float32).view(np.uint32)


def f64_bits(values) -> np.ndarray:
    return np.asarray(values, np.float64).view(np.uint64)


def random_bits(rng: np.random.Generator, type_name: str, count: int) -> np.ndarray:
    """Bits of a type: a third of them any pattern, a third near one, a third near one with few digits."""
    storage = storage_of(type_name)
    width = 8 * storage.itemsize
    any_bits = rng.integers(0, 1 << 64, count, dtype=np.uint64) >> np.uint64(64 - width)
    element = ELEMENT_TYPES.get(type_name)
    if element is None or not element.is_float:
        shorter = any_bits >> rng.integers(0, width, count).astype(np.uint64)
        some = np.where(rng.random(count) < 0.5, shorter, ~shorter + np.uint64(1))
        return np.where(rng.random(count) < 0.5, any_bits, some).astype(storage)
    exponent = (element.bias + rng.integers(-8, 9, count)).astype(np.uint64) << np.uint64(element.mantissa)
    fraction = any_bits & np.uint64((1 << element.mantissa) - 1)
    sign = rng.integers(0, 2, count).astype(np.uint64) << np.uint64(element.bits - 1)
    near = sign | exponent | fraction
    short = near & ~np.uint64((1 << (2 * element.mantissa // 3)) - 1)
    kind = rng.integers(0, 3, count)
    return np.choose(kind, [any_bits, near, short]).astype(storage)


def edge_bits(type_name: str) -> np.ndarray:
    """The boundary values of a type, with both signs."""
    element = ELEMENT_TYPES[type_name]
    storage, top = element.storage, 1 << (8 * element.storage.itemsize - 1)
    if not element.is_float:
        codes = {0, 1, 2, 3, 7, 31, 32, 33, 100, top - 2, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1}
        return np.array(sorted(code & (2 * top - 1) for code in codes), np.uint64).astype(storage)
    one = element.bias << element.mantissa
    normal, infinity = element.smallest_normal, element.infinity
    codes = [
        0,
        1,
        2,
        normal - 1,
        normal,
        normal + 1,
        normal // 2,
        one - 1,
        one,
        one + 1,
        one + normal // 2,
        one + normal,
    ]
    codes += [element.largest, infinity, infinity + 1, infinity + normal // 2, infinity + normal - 1]
    return np.array(codes + [code | element.sign for code in codes], np.uint64).astype(storage)


def value_of(bits: int, element: ElementType) -> Fraction | float:
    """The value of a code: a fraction, an infinity or NaN."""
    bits >>= element.padding
    fields = bits & ((1 << (element.exponent + element.mantissa)) - 1)
    negative = bool(element.has_sign and bits >> (element.bits - 1) & 1)
    if element.infinity is not None and fields >= element.infinity:
        if fields > element.infinity:
            return float("nan")
        return -INFINITY if negative else INFINITY
    exponent, mantissa = fields >> element.mantissa, fields & ((1 << element.mantissa) - 1)
    whole = mantissa + (1 << element.mantissa) if exponent else mantissa
    value = whole * Fraction(2) ** (max(exponent, 1) - element.bias - element.mantissa)
    return -value if negative else value


def code_of(value: Fraction, element: ElementType, rounding: str, *, negative_zero: bool = False) -> int:
    """The code of an exact number under a rounding mode, with overflow to infinity if the mode and the format have it."""
    negative = value < 0 or (value == 0 and negative_zero)
    sign = element.sign >> element.padding if negative else 0
    size = abs(value)
    if size == 0:
        return sign << element.padding
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    while Fraction(2) ** exponent > size:
        exponent -= 1
    exponent = max(exponent, 1 - element.bias)
    steps = size / Fraction(2) ** (exponent - element.mantissa)
    kept, rest = steps.numerator // steps.denominator, steps - steps.numerator // steps.denominator
    half = Fraction(1, 2)
    kept += {
        "rn": rest > half or (rest == half and kept % 2 == 1),
        "rna": rest >= half,
        "rz": False,
        "rm": rest > 0 and negative,
        "rp": rest > 0 and not negative,
    }[rounding]
    code = ((exponent - 1 + element.bias) << element.mantissa) + kept
    if code > element.largest:
        to_infinity = (
            rounding in ("rn", "rna") or (rounding == "rm" and negative) or (rounding == "rp" and not negative)
        )
        code = element.infinity if to_infinity and element.infinity is not None else element.largest
    return (code | sign) << element.padding


@lru_cache(maxsize=32)
def every_value(name: str) -> np.ndarray:
    """The non-negative finite values of a format of at most 19 bits, by code."""
    element = ELEMENT_TYPES[name]
    codes = [code << element.padding for code in range(element.largest + 1)]
    return np.array([float(value_of(code, element)) for code in codes])


def nearest_codes(values: np.ndarray, name: str, rounding: str, *, finite: bool = False) -> np.ndarray:
    """Round by search: find the two neighbouring values of a float64, and the side of their midpoint."""
    element = ELEMENT_TYPES[name]
    table = every_value(name)
    size = np.abs(values)
    below = np.clip(np.searchsorted(table, size, side="right") - 1, 0, len(table) - 1)
    step = table[-1] - table[-2]
    beyond = np.append(table, table[-1] + step)
    middle = (beyond[below] + beyond[below + 1]) / 2
    negative, inexact = np.signbit(values), size != table[below]
    away = {
        "rn": (size > middle) | ((size == middle) & (below % 2 == 1)),
        "rna": size >= middle,
        "rz": np.zeros(size.shape, bool),
        "rm": inexact & negative,
        "rp": inexact & ~negative,
    }[rounding] & inexact
    codes = below + away
    infinite = np.isinf(values)
    limit = element.infinity if element.infinity is not None and not finite else element.largest
    codes = np.where(codes > element.largest, limit, codes)
    codes = np.where(infinite, limit, codes)
    codes = codes | np.where(negative, element.sign >> element.padding, 0)
    nan = element.largest if element.nan is None else element.nan
    return (np.where(np.isnan(values), nan, codes) << element.padding).astype(element.storage)


def around_every_value(name: str) -> np.ndarray:
    """f32 inputs that decide the rounding of a format: all its values and midpoints, and their neighbours."""
    table = every_value(name)
    points = np.concatenate([table, (table[:-1] + table[1:]) / 2, [table[-1] * 1.5, table[-1] * 2]]).astype(np.float32)
    up, down = np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))
    every = np.concatenate([points, up, down])
    return np.concatenate([every, -every])


def to_signed(value: int, bits: int) -> int:
    return struct.unpack("<q", (value << (64 - bits)).to_bytes(8, "little"))[0] >> (64 - bits)
