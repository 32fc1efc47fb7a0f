"""SIMD video instructions: two half-words or four bytes of a register at once (PTX ISA 9.7.18.2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from warploom.machine.numerics.bits import I8, I16, I64, U8, U16, U32, Array, ArrayFunction, Signature, pieces

_PARTS = {(2, "u32"): U16, (2, "s32"): I16, (4, "u32"): U8, (4, "s32"): I8}


def _average(a: Array, b: Array) -> Array:
    """Half of the sum, where a half counts away from minus infinity only if the sum is not negative."""
    total: Array = a + b
    return total + (total >= 0) >> 1


_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "avrg": _average,
    "absdiff": lambda a, b: abs(a - b),
    "min": np.minimum,
    "max": np.maximum,
}
_COMPARISONS: dict[str, np.ufunc] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def simd(name: str, count: int) -> Callable[[Signature], ArrayFunction]:
    """The factory of one instruction: (a, b, c) → the results part by part, or with `add` c plus all of them."""

    def make(signature: Signature) -> ArrayFunction:
        a_part, b_part = (_PARTS[count, signature[side]] for side in ("atype", "btype"))
        narrow = _PARTS[count, "u32"]
        limits = np.iinfo(_PARTS[count, signature.get("dtype", "u32")]) if signature.get("sat") else None
        operate = _OPERATIONS[name] if name != "set" else _COMPARISONS[signature["cmp"]]
        adds = bool(signature.get("add"))

        def whole(a: Array, b: Array, c: Array) -> Array:
            parts = operate(pieces(a, a_part).astype(I64), pieces(b, b_part).astype(I64)).astype(I64)
            if adds:
                total: Array = parts.reshape(-1, count).sum(axis=1, dtype=np.int64).astype(U32)
                total += c
                return total
            if limits is not None:
                parts = np.clip(parts, limits.min, limits.max)
            return parts.astype(narrow).view(U32)

        return whole

    return make
