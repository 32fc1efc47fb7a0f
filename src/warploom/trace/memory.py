"""Views of memory: an element type, a shape and strides over a base address, read and written by index."""

from __future__ import annotations

import math
from dataclasses import dataclass

from warploom.diagnostics import Diag
from warploom.ptx.isa.table import BITS
from warploom.ptx.model import Variable as Declared
from warploom.trace.builder import current, here
from warploom.trace.instructions import At, emit
from warploom.trace.values import Number, Value, address_of, binary, compute, literal

_ELEMENT = {"f16": "b16", "bf16": "b16"}


@dataclass(frozen=True)
class View:
    """An array in one space: `view[i, j]` loads an element, `view[i, j] = x` stores one."""

    base: Value
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    space: str

    @property
    def element_bytes(self) -> int:
        return BITS[self.dtype] // 8

    def at(self, *index: Value | int) -> At:
        """The place of an element: what is known while tracing goes into the instruction's offset."""
        if len(index) != len(self.shape):
            raise Diag.TYPE_MISMATCH.error(here(), what=f"{len(index)} indices into {len(self.shape)} dimensions")
        known = 0
        address = self.base
        for each, extent, stride in zip(index, self.shape, self.strides, strict=True):
            number = each if isinstance(each, int) else each.literal
            if number is not None:
                if not 0 <= number < extent:
                    raise Diag.TYPE_MISMATCH.error(here(), what=f"index {number} of {extent}")
                known += int(number) * stride * self.element_bytes
                continue
            assert isinstance(each, Value)
            address = binary("add", address, self._scaled(each, stride * self.element_bytes))
        return At(address, known)

    def _scaled(self, index: Value, size: int) -> Value:
        if BITS[self.base.type] == 64 and index.type in ("s32", "u32"):
            wide = compute(f"mul.wide.{index.type}", f"{index.type[0]}64", index, literal(size, index.type))
            return Value(self.base.type, wide.operand, wide.region)
        return index.to(self.base.type) * size

    def __getitem__(self, index: Value | int | tuple[Value | int, ...]) -> Value:
        place = self.at(*(index if isinstance(index, tuple) else (index,)))
        type_ = _ELEMENT.get(self.dtype, self.dtype)
        (value,) = emit(f"ld.{self.space}.{type_}", place)
        return Value(self.dtype, value.operand, value.region)

    def __setitem__(self, index: Value | int | tuple[Value | int, ...], value: Value | Number) -> None:
        place = self.at(*(index if isinstance(index, tuple) else (index,)))
        stored = value if isinstance(value, Value) else literal(value, self.dtype)
        if stored.type != self.dtype:
            raise Diag.TYPE_MISMATCH.error(here(), what=f"a .{stored.type} stored to a .{self.dtype} array")
        emit(f"st.{self.space}.{_ELEMENT.get(self.dtype, self.dtype)}", place, stored)


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a C-ordered array."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def shared(dtype: str, shape: int | tuple[int, ...], *, align: int = 16, name: str = "shared") -> View:
    """A new array in the CTA's shared memory; its first contents are unknown."""
    builder = current("shared()")
    extents = (shape,) if isinstance(shape, int) else shape
    label = builder.fresh(f"{name}_")
    size = math.prod(extents) * BITS[dtype] // 8
    builder.shared.append(Declared("shared", "b8", label, align, size))
    return View(address_of(label), dtype, extents, dense(extents), "shared")
