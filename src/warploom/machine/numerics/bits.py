"""The ground that all numerics stand on: types of arrays, views, packed registers and canonical NaNs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, WarploomError
from warploom.hardware.dtypes import ELEMENT_TYPES, PACKED_TYPES, ElementType
from warploom.machine.numerics.products import has_nan

Array = npt.NDArray[Any]
ArrayFunction = Callable[..., Any]
Signature = Mapping[str, Any]
Factory = Callable[[Signature], ArrayFunction]

U8, U16, U32, U64 = (np.dtype(f"u{size}") for size in (1, 2, 4, 8))
I8, I16, I32, I64 = (np.dtype(f"i{size}") for size in (1, 2, 4, 8))
F16, F32, F64 = (np.dtype(f"f{size}") for size in (2, 4, 8))
INTEGERS = frozenset(f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64))


def unknown(family: str, signature: Signature) -> WarploomError:
    """The error for a form without a meaning here."""
    words = " ".join(f"{name}={text}" for name, text in signature.items())
    return Diag.NOT_MODELLED.error(what=f"`{family}` with {words}")


def constant(value: int, dtype: Any) -> Array:
    """An operand of zero dimensions: ufuncs take it twice as quickly as a Python integer."""
    return np.array(value, dtype)


def pieces(bits: Array, dtype: np.dtype[Any]) -> Array:
    """Registers read as the narrower elements they hold, lowest first; every other row of a file is contiguous."""
    return (bits if bits.flags.c_contiguous else bits.copy()).view(dtype)


def per_element(function: ArrayFunction, type_name: str) -> ArrayFunction:
    """A function on elements made to work on registers that hold several of them."""
    packed = PACKED_TYPES.get(type_name)
    if packed is None:
        return function
    inner, outer = packed.element.storage, packed.storage

    def whole(*operands: Array) -> Array:
        result: Array = function(*[pieces(operand, inner) for operand in operands])
        return result.view(outer)

    return whole


def element_of(type_name: str) -> ElementType:
    """The element type of a packed type, or the type itself."""
    packed = PACKED_TYPES.get(type_name)
    return packed.element if packed else ELEMENT_TYPES[type_name]


def any_nan(values: Array) -> bool:
    """Return whether an array holds a NaN."""
    return has_nan(values) if values.itemsize > 2 else bool(np.count_nonzero(np.isnan(values)))


_NAN_F32 = ELEMENT_TYPES["f32"].nan_code
_NAN_F64 = ELEMENT_TYPES["f64"].nan_code
_QUIET_F64 = constant(1 << (ELEMENT_TYPES["f64"].mantissa - 1), U64)


def settle_lanes(values: Array, mask: Array | None) -> None:
    """Make every NaN of a single-precision row the one that the hardware writes, in the lanes of a mask."""
    where = np.isnan(values)
    values.view(U32)[where if mask is None else where & mask] = _NAN_F32


def settle_f64(values: Array, *operands: Array) -> Array:
    """The bits of double-precision results: a NaN comes, quieted, from the first operand that is one.

    The ISA says that payloads are supported and not which operand wins; the order is what an H200 does.
    """
    bits = values.view(U64)
    if any_nan(values):
        where = np.isnan(values)
        chosen = np.full(bits.shape, _NAN_F64, U64)
        for operand in reversed(operands):
            chosen = np.where(np.isnan(operand.view(F64)), operand | _QUIET_F64, chosen)
        bits[where] = chosen[where]
    return bits
