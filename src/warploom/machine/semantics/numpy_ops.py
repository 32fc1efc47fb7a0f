"""The vector language on NumPy arrays, one operation at once: for literals, and for tests of the other lowerings."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.machine.semantics.tables import TABLES
from warploom.machine.semantics.vectors import WIDTHS, Ops, UnsupportedError, Value

Array = npt.NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    **{f"i{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
_BINARY: dict[str, np.ufunc] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "udiv": np.floor_divide, "urem": np.remainder, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "lshr": np.right_shift,
}  # fmt: skip
_COMPARE: dict[str, np.ufunc] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_UNARY: dict[str, np.ufunc] = {
    "sqrt": np.sqrt, "rint": np.rint, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "fabs": np.abs,
}  # fmt: skip


def _signed(array: Array) -> Array:
    return array.view(f"i{array.itemsize}")


class NumpyOps(Ops):
    """Computes at once; call inside `numpy.errstate(all="ignore")`."""

    def value(self, array: Array) -> Value:
        """An array of predicates or unsigned integers as a value."""
        return Value(self, "i1" if array.dtype == np.bool_ else f"i{8 * array.itemsize}", array)

    def constant(self, type_: str, value: float) -> Value:
        if type_.startswith("i") and type_ != "i1":
            value = int(value) & ((1 << WIDTHS[type_]) - 1)
        return Value(self, type_, np.array(value, DTYPES[type_]))

    def binary(self, name: str, a: Value, b: Value) -> Value:
        if name == "ashr":
            return Value(self, a.type, np.right_shift(_signed(a.ref), _signed(b.ref)).view(DTYPES[a.type]))
        return Value(self, a.type, np.asarray(_BINARY[name](a.ref, b.ref)))

    def unary(self, name: str, a: Value) -> Value:
        if name == "popcount":
            return Value(self, a.type, np.bitwise_count(a.ref).astype(a.ref.dtype))
        if name in ("leading_zeros", "reverse"):
            digits = [f"{int(each):0{a.width}b}" for each in np.atleast_1d(a.ref)]
            found = [len(d) - len(d.lstrip("0")) if name == "leading_zeros" else int(d[::-1], 2) for d in digits]
            return Value(self, a.type, np.array(found, a.ref.dtype).reshape(a.ref.shape))
        return Value(self, a.type, np.asarray(_UNARY[name](a.ref)))

    def compare(self, name: str, a: Value, b: Value) -> Value:
        left, right = a.ref, b.ref
        if name[0] in "us" and name[1:] in _COMPARE:
            left, right = (_signed(left), _signed(right)) if name[0] == "s" else (left, right)
            name = name[1:]
        return Value(self, "i1", np.asarray(_COMPARE[name](left, right)))

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        return Value(self, yes.type, np.where(condition.ref, yes.ref, no.ref))

    def convert(self, name: str, a: Value, type_: str) -> Value:
        dtype, array = DTYPES[type_], a.ref
        match name:
            case "bits":
                result = np.ascontiguousarray(array).view(dtype).reshape(array.shape)
            case "sext" | "from_signed":
                result = _signed(array).astype(dtype)
            case "to_signed":
                result = array.astype(f"i{dtype.itemsize}").view(dtype)
            case "trunc" if type_ == "i1":
                result = (array & 1) != 0
            case _:
                result = array.astype(dtype)
        return Value(self, type_, result)

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        raise UnsupportedError("NumPy has no fused multiply-add")

    def look_up(self, table: str, index: Value, type_: str) -> Value:
        found = TABLES[table]().view(DTYPES[type_])[index.ref]
        return Value(self, type_, found)
