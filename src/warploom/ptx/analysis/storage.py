"""Sizes, alignment and offsets of declared variables, and the scalar arguments of a launch as bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from warploom.ptx.isa.table import BITS
from warploom.ptx.syntax.model import Kernel, Variable

_CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "s8": "b", "s16": "h", "s32": "i", "s64": "q"}
_PACKED: dict[tuple[str, type], Callable[[Any], bytes]] = {
    **{(name, int): struct.Struct(f"<{code}").pack for name, code in _CODES.items()},
    **{(name, float): struct.Struct(f"<{code}").pack for name, code in (("f32", "f"), ("f64", "d"))},
}
"""Packers of the most common values, by the types of parameter and value."""


def element_bytes(variable: Variable) -> int:
    """The bytes of one scalar of a variable's type."""
    return max(BITS.get(variable.type.rpartition(".")[2], 8) // 8, 1)


def size_of(variable: Variable) -> int:
    """The bytes of a whole variable: a scalar, a vector (`v4.f32`) or an array of either."""
    width = variable.type.rpartition(".")[0]
    lanes = int(width[1:]) if width else 1
    return element_bytes(variable) * lanes * (1 if variable.count is None else variable.count)


def aligned(offset: int, variable: Variable) -> int:
    """The next offset at which a variable may begin, by its declaration and its type."""
    width = variable.type.rpartition(".")[0]
    natural = element_bytes(variable) * (int(width[1:]) if width else 1)
    align = max(variable.align, natural)
    return (offset + align - 1) // align * align


def parameter_offsets(kernel: Kernel) -> tuple[tuple[int, ...], int]:
    """The offset of each parameter, and the total number of bytes."""
    offsets, end = [], 0
    for param in kernel.params:
        offsets.append(aligned(end, param))
        end = offsets[-1] + size_of(param)
    return tuple(offsets), end


def scalar_bytes(param: Variable, value: Any) -> bytes:
    """A number, or raw bytes, as the bytes of a parameter; a Python exception if it does not fit."""
    pack = _PACKED.get((param.type, type(value)))
    if pack is not None and param.count is None:
        try:
            return pack(value)
        except (struct.error, OverflowError):
            pass  # it fits as the other kind of integer, or not at all
    size = size_of(param)
    if isinstance(value, bytes | bytearray):
        if len(value) != size:
            raise ValueError(f"{len(value)} bytes given, {size} needed")
        return bytes(value)
    if isinstance(value, np.generic) and value.dtype.itemsize == size and not isinstance(value, np.bool_):
        return value.tobytes()
    if param.count is not None:
        raise ValueError(f"an aggregate of {size} bytes takes `bytes` or a tensor map")
    if isinstance(value, bool | np.bool_):
        value = int(value)
    if param.type in ("f32", "f64"):
        return struct.pack("<f" if size == 4 else "<d", float(value))
    if param.type in ("f16", "bf16"):
        return bytes(np.array(value, np.float16 if param.type == "f16" else ml_dtypes.bfloat16).tobytes())
    if isinstance(value, float):
        if param.type.startswith("b") and size in (4, 8):
            return struct.pack("<f" if size == 4 else "<d", value)
        raise ValueError("a float for an integer parameter")
    number = int(value)
    if not -(1 << (8 * size - 1)) <= number < 1 << (8 * size):
        raise ValueError(f"{number} does not fit in {8 * size} bits")
    return (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
