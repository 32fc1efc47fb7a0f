"""Views of memory: an element type, a shape and strides over a base address, read and written by index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import add
from typing import Any, Literal

from warploom.diagnostics import Diag
from warploom.hardware.swizzles import GRANULE, NONE, SWIZZLES, Swizzle
from warploom.trace.builder import SharedArray, current, here
from warploom.trace.isa.emit import At, emit, load_into
from warploom.trace.language.operations import widening_product
from warploom.trace.language.packing import join, merge, parts_of, split
from warploom.trace.language.types import PAIR_OF, PER_BYTE, TYPES, Number
from warploom.trace.language.values import Value, address_of, fitting, literal, sum_parts, valued
from warploom.trace.language.variables import Variable

Index = Value | int
AtomicOperation = Literal["add", "min", "max", "and", "or", "xor", "exch"]
_ATOMIC_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "and": ("u32", "s32", "u64", "s64"),
    "or": ("u32", "s32", "u64", "s64"),
    "xor": ("u32", "s32", "u64", "s64"),
    "exch": ("u32", "s32", "u64", "s64", "f32", "f64"),
}
_BITWISE = ("and", "or", "xor", "exch")


@dataclass(frozen=True, slots=True)
class Origin:
    """Bytes from a base: those known, those that only the device knows, and what the latter are a multiple of."""

    known: int = 0
    moving: tuple[Value, ...] = ()
    multiple: int = 0

    def moved(self, known: int, by: Value | None = None, multiple: int = 0) -> Origin:
        """Further on by known bytes, or by a value that is a multiple of some."""
        if by is None:
            return replace(self, known=self.known + known)
        return Origin(self.known + known, (*self.moving, by), math.gcd(self.multiple, multiple))

    def added_to(self, base: Value) -> Value:
        """The sum of a base and what moves, from the outermost region inwards: what a loop repeats stands outside."""
        depth = {value: _depth(value) for value in self.moving}
        for _, group in groupby(sorted(self.moving, key=depth.__getitem__), key=depth.__getitem__):
            base = base + reduce(add, group)
        return base


def _depth(value: Value) -> int:
    """Return how many regions are around a value."""
    return 0 if value.region is None else sum(1 for _ in value.region.chain())


@dataclass(frozen=True, repr=False)
class View:
    """An array in one space: `view[i, j]` loads an element, `view[i, j] = x` stores one, `view[2:4]` is a view.

    `base` is aligned to the swizzle; `origin` are the bytes from there to the first element: what is known, and what
    only the device knows. A swizzle permutes those bytes.
    """

    base: Value
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int | Value, ...]
    space: str
    swizzle: Swizzle = NONE
    origin: Origin = Origin()
    alignment: int = 1
    """Bytes that the address of every first element of the last axis is known to be a multiple of."""
    name: str = ""
    """The name of the shared array, for messages."""

    def __repr__(self) -> str:
        name = f" `{self.name}`" if self.name else ""
        swizzle = f", swizzle {self.swizzle.name}" if self.swizzle.bits else ""
        return f"<View{name} of {self.dtype} {self.shape} in {self.space} memory{swizzle}>"

    @property
    def element_bytes(self) -> int:
        return TYPES[self.dtype].bytes

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.element_bytes

    @property
    def place(self) -> At:
        """The address of the first element."""
        return replace(self._at(self.origin), of=self)

    def at(self, *index: Index) -> At:
        """The place of an element: what is known while tracing goes into the instruction's offset."""
        if len(index) != len(self.shape):
            raise Diag.BAD_INDEX.error(here(), what=f"{len(index)} indices into {len(self.shape)} dimensions")
        return self._at(self._moved(index))

    def window(self, start: Sequence[Index], shape: Sequence[int]) -> View:
        """A part that begins anywhere, with a shape that is known."""
        if not len(start) == len(shape) == len(self.shape):
            raise Diag.BAD_INDEX.error(here(), what=f"a window of {len(shape)} dimensions in {len(self.shape)}")
        return replace(self, shape=tuple(shape), origin=self._moved(start))

    def reshape(self, *shape: int) -> View:
        """The same elements in another shape; they must lie without gaps."""
        if self.strides != dense(self.shape) or math.prod(shape) != math.prod(self.shape):
            raise Diag.BAD_INDEX.error(here(), what=f"{self.shape} reshaped to {shape}")
        return replace(self, shape=shape, strides=dense(shape))

    def bits(self, dtype: str) -> View:
        """The same bytes as elements of another type of the same size."""
        if TYPES[dtype].bits != TYPES[self.dtype].bits:
            raise Diag.TYPE_MISMATCH.error(here(), what=f"a view of .{self.dtype} read as .{dtype}")
        return replace(self, dtype=dtype)

    def _moved(self, index: Sequence[Index]) -> Origin:
        """The origin after a step to an index."""
        origin = self.origin
        for each, extent, stride in zip(index, self.shape, self.strides, strict=True):
            number = each if isinstance(each, int) else each.literal
            if isinstance(stride, Value):
                origin = origin.moved(0, self._strided(each, stride), self.element_bytes)
                continue
            size = stride * self.element_bytes
            if isinstance(each, Value) and number is None:
                # A signed index is taken not to overflow, so that its known part can stand in the instruction.
                root, apart = sum_parts(each) if TYPES[each.type].kind == "signed" else (each, 0)
                origin = origin.moved(apart * size, self._scaled(root, size), size)
                continue
            if number is None or not 0 <= number < extent:
                raise Diag.BAD_INDEX.error(here(), what=f"index {number} into {extent} elements")
            origin = origin.moved(int(number) * size)
        return origin

    def _strided(self, index: Index, stride: Value) -> Value:
        """An index in bytes where only the launch knows the stride."""
        return (valued(index, "s64").to("s64") * (stride * self.element_bytes)).to("u64")

    def _scaled(self, index: Value, size: int) -> Value:
        """An index in bytes, in the type of addresses."""
        row = TYPES[index.type]
        if row.kind not in ("signed", "unsigned"):
            raise Diag.TYPE_MISMATCH.error(here(), what=f"a .{index.type} as index")
        if self.base.type == "u32":
            return index.to("u32") * size
        if row.bits == 64:
            return index.to("u64") * size
        return widening_product(index if row.bits == 32 else index.to(f"{index.type[0]}32"), size).to("u64")

    def _at(self, origin: Origin) -> At:
        if not origin.moving:
            return At(self.base, self.swizzle.apply(origin.known))
        if origin.multiple % self.swizzle.period == 0:
            return At(origin.added_to(self.base), self.swizzle.apply(origin.known))
        if not self.swizzle.bits:
            return At(origin.added_to(self.base), origin.known)
        offset = origin.added_to(literal(origin.known, self.base.type))
        mask = ((1 << self.swizzle.bits) - 1) << self.swizzle.base
        return At(self.base + (offset ^ ((offset >> self.swizzle.shift) & mask)))

    def __getitem__(self, index: Any) -> Any:
        items = self._items(index)
        if len(items) == len(self.shape) and not any(isinstance(item, slice) for item in items):
            return self.load(*items)
        return self._sliced(items)

    def __setitem__(self, index: Any, value: Value | Number) -> None:
        items = self._items(index)
        if len(items) != len(self.shape) or any(isinstance(item, slice) for item in items):
            raise Diag.BAD_INDEX.error(here(), what="a store into a part of a view; store its elements")
        self.store((value,), *items)

    def _items(self, index: Any) -> tuple[Any, ...]:
        items = index if isinstance(index, tuple) else (index,)
        wrong = [item for item in items if not isinstance(item, Value | int | slice)]
        if wrong or len(items) > len(self.shape):
            raise Diag.BAD_INDEX.error(here(), what=f"`[{', '.join(map(repr, items)):.60}]` into shape {self.shape}")
        return items

    def _sliced(self, items: tuple[Any, ...]) -> View:
        padded = (*items, *(slice(None),) * (len(self.shape) - len(items)))
        start, shape, strides = list[Index](), list[int](), list[int | Value]()
        for item, extent, stride in zip(padded, self.shape, self.strides, strict=True):
            if not isinstance(item, slice):
                start.append(item)
                continue
            bounds = (item.start, item.stop, item.step)
            if any(isinstance(bound, Value) for bound in bounds):
                raise Diag.BAD_INDEX.error(here(), what="a slice with device values; use `window(start, shape)`")
            first, last, step = item.indices(extent)
            picked = range(first, last, step)
            if step < 1 or not picked:
                raise Diag.BAD_INDEX.error(here(), what=f"the empty or backward slice {first}:{last}:{step}")
            start.append(first)
            shape.append(len(picked))
            strides.append(stride * step)
        return replace(self, shape=tuple(shape), strides=tuple(strides), origin=self._moved(start))

    def load(self, *index: Index, count: int = 1) -> Any:
        """An element, or `count` neighbours along the last axis as a list, by the widest loads there are."""
        place = self.at(*index)
        if count == 1:
            (value,) = emit(f"ld.{self.space}.{TYPES[self.dtype].memory}", place)
            return Value(self.dtype, value.operand, value.region)
        found: list[Value] = []
        for words, width, type_, step in self._pieces(count):
            values = emit(f"ld.{self.space}{width}.{TYPES[type_].memory}", place + step)
            for value in values[:words]:
                typed = Value(type_, value.operand, value.region)
                found += [typed] if type_ == self.dtype else self._taken(typed)
        return found

    def _taken(self, word: Value) -> tuple[Value, ...]:
        """The elements in a word."""
        return parts_of(word, self.dtype) if TYPES[self.dtype].bits == 8 else split(word, self.dtype)

    def load_where(self, condition: Value, *index: Index, dtype: str = "") -> Value:
        """An element, or several in a wider type, zero where a condition does not hold: nothing is read there.

        The register is zero before: one that only a guarded load writes would be alive, to ptxas, since the loop began.
        """
        type_ = dtype or self.dtype
        held = Variable(f"u{max(TYPES[type_].bits, 16)}", 0)
        load_into(held, f"ld.{self.space}.{TYPES[type_].memory}", self.at(*index), condition)
        return Value(type_, held.get().operand, held.region)

    def store(self, values: Sequence[Value | Number], *index: Index) -> None:
        """Store neighbours along the last axis, by the widest stores there are."""
        place = self.at(*index)
        typed = [fitting(value, self.dtype, f"a .{{}} stored to a .{self.dtype} array") for value in values]
        if len(typed) == 1:
            emit(f"st.{self.space}.{TYPES[self.dtype].memory}", place, typed[0])
            return
        for words, width, type_, step in self._pieces(len(typed)):
            each = TYPES[type_].bits // TYPES[self.dtype].bits
            taken, typed = typed[: words * each], typed[words * each :]
            if each > 1:
                groups = [taken[at : at + each] for at in range(0, len(taken), each)]
                narrow = TYPES[self.dtype].bits == 8
                taken = [join(group) if narrow else merge(type_, *group) for group in groups]
            given: Any = taken if width else taken[0]
            emit(f"st.{self.space}{width}.{TYPES[type_].memory}", place + step, given)

    def _pieces(self, count: int) -> list[tuple[int, str, str, int]]:
        """Return how neighbours are moved: (words, vector, type of a word, byte offset) of each instruction."""
        if count not in (2, 4, 8, 16) or self.strides[-1] != 1:
            raise Diag.BAD_INDEX.error(here(), what=f"{count} neighbours at stride {self.strides[-1]}")
        bits = TYPES[self.dtype].bits
        type_ = PAIR_OF.get(self.dtype, f"u{min(count * bits, 32)}" if bits < 32 else self.dtype)
        words = count * self.element_bytes // TYPES[type_].bytes
        each = min(words, GRANULE // TYPES[type_].bytes, 4)
        vector = f".v{each}" if each > 1 else ""
        return [(each, vector, type_, at * TYPES[type_].bytes) for at in range(0, words, each)]

    def atomic(
        self, operation: AtomicOperation, value: Value | Number, *index: Index, result: bool = False
    ) -> Value | None:
        """Combine an element with a value in one indivisible step; gives the old element where asked."""
        given = valued(value, self.dtype)
        if given.type in ("s32", "u32", "s64", "u64") and self.dtype in ("s32", "u32", "s64", "u64"):
            given = fitting(given, self.dtype, f"atomic `{operation}` of a .{{}} on a .{self.dtype} array")
        if self.dtype not in _ATOMIC_TYPES.get(operation, ()) or given.type != self.dtype:
            what = f"atomic `{operation}` of a .{given.type} on a .{self.dtype} array"
            raise Diag.TYPE_MISMATCH.error(here(), what=what)
        type_ = TYPES[self.dtype].register if operation in _BITWISE else self.dtype
        halves = ".noftz" if TYPES[self.dtype].bits == 16 or TYPES[self.dtype].kind == "pair" else ""
        name = "atom" if result or operation == "exch" else "red"
        found = emit(f"{name}.{self.space}.{operation}{halves}.{type_}", self.at(*index), given)
        return Value(self.dtype, found[0].operand, found[0].region) if result else None


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a C-ordered array."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def shared(
    dtype: str, shape: int | tuple[int, ...], *, name: str = "array", align: int = 16, swizzle: str = "none"
) -> View:
    """A new array in the CTA's shared memory, with unknown contents; all arrays are laid out when the trace ends.

    Of `e2m1`, two to a byte, and `ue8m0` it is an array of bytes.
    """
    builder = current("shared()")
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    if (dtype not in TYPES and (dtype not in PER_BYTE or extents[-1] % PER_BYTE[dtype])) or swizzle not in SWIZZLES:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"a shared array of .{dtype} {extents} with swizzle {swizzle}")
    if dtype in PER_BYTE:
        dtype, extents = "u8", (*extents[:-1], extents[-1] // PER_BYTE[dtype])
    mode = SWIZZLES[swizzle]
    label = builder.fresh(f"{name}_")
    with builder.prologue():
        base = address_of(label)
    view = View(base, dtype, extents, dense(extents), "shared", mode, name=name)
    builder.shared.append(SharedArray(label, view.bytes, max(align, mode.alignment if mode.bits else 1)))
    return view


@dataclass(frozen=True)
class Tmem:
    """A range of TMEM: addresses for the instructions that access it. The lane begins at bit 16."""

    address: Value
    columns: int

    def at(self, lane: Index = 0, column: Index = 0) -> At:
        """The place of a lane and a 32-bit column."""
        place = At(self.address)
        for index, scale in ((lane, 1 << 16), (column, 1)):
            number = index if isinstance(index, int) else index.literal
            if number is not None:
                place += int(number) * scale
            else:
                place = At(place.base + index.to("u32") * scale, place.offset)  # type: ignore[union-attr,operator]
        return place


TensorMemory = Tmem
"""The name of `Tmem` in version 0.1."""
