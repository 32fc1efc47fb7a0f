"""Moves fragments of an accumulator to swizzled shared memory and back.

The row and column of a fragment's element are a sum of a lane's part and a register's part. The two parts have no bits
in common, and a swizzle is linear over bits (XOR). So a lane's address is computed once, and each register's address
follows from it by an XOR with a constant, or by an immediate offset in the instruction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from warploom.hardware.swizzles import SWIZZLES, Swizzle
from warploom.hardware.targets import machine
from warploom.trace import isa
from warploom.trace.builder import current
from warploom.trace.isa.emit import At
from warploom.trace.language.packing import merge, pack, round_pair, unpack
from warploom.trace.language.types import TYPES
from warploom.trace.language.values import Value, literal
from warploom.trace.language.views import Index, View, dense
from warploom.trace.language.warps import lane

Values = Mapping[tuple[int, int], Value]
"""The values of a subtile in a thread, by row and column relative to the thread's first element."""


@dataclass(frozen=True)
class SharedLayout:
    """A tile of `rows` × `columns` in shared memory: consecutive blocks of `width` columns, swizzled.

    In a `transposed` tile the accumulator's columns are rows.
    """

    dtype: str
    rows: int
    columns: int
    width: int
    swizzle: Swizzle
    transposed: bool = False

    @property
    def element_bytes(self) -> int:
        return TYPES[self.dtype].bytes

    @property
    def bytes(self) -> int:
        return self.rows * self.columns * self.element_bytes

    def offset(self, row: Index, column: Index) -> Index:
        """Return the byte offset of an element before the swizzle; offsets of disjoint bits can be added."""
        block, rest = (column // self.width, column % self.width) if self.width < self.columns else (0, column)
        return (block * self.rows + row) * (self.width * self.element_bytes) + rest * self.element_bytes

    def of_accumulator(self, row: Index, column: Index) -> tuple[Index, Index]:
        """Map a row and column of the accumulator to those of the tile."""
        return (column, row) if self.transposed else (row, column)

    def view(self, tile: At) -> View:
        """Return a tile as a view [block, row, column in the block]."""
        shape = (self.columns // self.width, self.rows, self.width)
        return View(tile.address, self.dtype, shape, dense(shape), "shared", self.swizzle)

    def place(self, tile: At, row: Value, column: Value) -> LanePlace:
        """Return the address of a lane's first element in a tile; `row` and `column` are the accumulator's."""
        offset = self.offset(*self.of_accumulator(row, column))
        assert isinstance(offset, Value)
        moved = (offset >> self.swizzle.shift) & self._exchanged if self.swizzle.bits else literal(0, "u32")
        assert isinstance(tile.base, Value)
        return LanePlace(self, At(tile.base + (offset ^ moved), tile.offset))

    @property
    def _exchanged(self) -> int:
        """The address bits that the swizzle changes."""
        return ((1 << self.swizzle.bits) - 1) << self.swizzle.base

    def step(self, row: int, column: int) -> tuple[int, int]:
        """Return the step from a lane's first element to another one: the bits to XOR and the bytes to add."""
        offset = self.offset(*self.of_accumulator(row, column))
        assert isinstance(offset, int)
        moved = self.swizzle.apply(offset)
        return moved & self._exchanged, moved & ~self._exchanged


def block_width(dtype: str, swizzle: str, contiguous: int) -> int:
    """Return the columns of a block: the swizzle's span, or without a swizzle the whole contiguous extent."""
    return min(SWIZZLES[swizzle].span // TYPES[dtype].bytes or contiguous, contiguous)


@dataclass(frozen=True)
class LanePlace:
    """The address of a lane's first element in a tile."""

    layout: SharedLayout
    first: At

    def at(self, row: int, column: int) -> At:
        """Return the address of the element at a row and column relative to the lane's first."""
        changed, added = self.layout.step(row, column)
        assert isinstance(self.first.base, Value)
        return At(self.first.base ^ changed, self.first.offset + added)


@dataclass(frozen=True)
class Axis:
    """A step between the 8×8 matrices that a warp moves, in rows and columns."""

    rows: int
    columns: int


@dataclass(frozen=True)
class MatrixMoves:
    """The `stmatrix` or `ldmatrix` instructions of a subtile: each moves up to four matrices, along two axes.

    Lane l provides the address of row l % 8 of matrix l / 8.
    """

    together: tuple[Axis, ...]
    apart: tuple[Axis, ...]
    columns: int
    """Columns of the subtile, which may be fewer than the axes cover."""
    transposed: bool

    def lane_place(self) -> tuple[Value, Value]:
        """Return the row and column that a lane addresses."""
        row, column = literal(0, "u32"), literal(0, "u32")
        for bit, axis in enumerate(self.together):
            digit = (lane() >> (3 + bit)) & 1
            row, column = row + digit * axis.rows, column + digit * axis.columns
        along = lane() & 7
        return (row, column + along) if self.transposed else (row + along, column)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """Yield, for each instruction, the first row and column of its matrices."""
        for start in _steps(self.apart):
            places = [(start[0] + row, start[1] + column) for row, column in _steps(self.together)]
            inside = [place for place in places if place[1] < self.columns]
            if inside:
                yield inside


def _steps(axes: tuple[Axis, ...]) -> Iterator[tuple[int, int]]:
    """Yield all combinations of steps, with the first axis running fastest."""
    for digits in product((0, 1), repeat=len(axes)):
        chosen = [axis for axis, digit in zip(reversed(axes), digits, strict=True) if digit]
        yield sum(axis.rows for axis in chosen), sum(axis.columns for axis in chosen)


_DOWN, _LOWER = Axis(8, 0), Axis(16, 0)


def first_place() -> tuple[Value, Value]:
    """Return the row and column of a thread's first element in its warp's part of a subtile."""
    return lane() >> 2, (lane() & 3) * 2


def pair_of(low: Value, high: Value, dtype: str) -> Value:
    """Round two adjacent values to a narrow type and pack them into one register."""
    if low.type == high.type == dtype:
        return pack(low, high)
    return round_pair(low.to("f32"), high.to("f32"), f"{dtype}x2")


@dataclass(frozen=True)
class SubtileStore:
    """Moves subtiles of `columns` columns between registers and shared memory; `lower` if warps have 32 rows."""

    layout: SharedLayout
    columns: int
    lower: bool

    @cached_property
    def stores(self) -> MatrixMoves | None:
        """The `stmatrix` instructions that write a subtile, or None if plain stores are used."""
        transposed = self.layout.transposed
        match self.layout.element_bytes:
            case 2:
                return self._moves(_DOWN, *self._across, transposed=transposed)
            case 1 if transposed and machine(current("A subtile").target).family != "sm_90":  # no stmatrix for bytes
                return self._moves(*self._across, transposed=transposed)
        return None

    @cached_property
    def loads(self) -> MatrixMoves | None:
        """The `ldmatrix` instructions that read a subtile, or None if plain loads are used."""
        return self.stores if self.layout.element_bytes == 2 else None

    @property
    def _across(self) -> list[Axis]:
        """Steps over all matrices of eight columns: two columns of them first, then the lower half, then the rest."""
        right = [Axis(0, step) for step in (8, 16, 32, 64, 128) if step < self.columns]
        return [*right[:1], *([_LOWER] if self.lower else []), *right[1:]]

    def _moves(self, *axes: Axis, transposed: bool) -> MatrixMoves:
        return MatrixMoves(axes[:2], axes[2:], self.columns, transposed)

    def _place(self, moves: MatrixMoves | None, tile: At, row: Value, column: Value) -> LanePlace:
        own = first_place() if moves is None else moves.lane_place()
        return self.layout.place(tile, row + own[0], column + own[1])

    def place_to_store(self, tile: At, row: Value, column: Value) -> LanePlace:
        """Return the lane's address for stores; its warp's part starts at a row and column of the accumulator."""
        return self._place(self.stores, tile, row, column)

    def place_to_load(self, tile: At, row: Value, column: Value) -> LanePlace:
        return self._place(self.loads, tile, row, column)

    def store(self, place: LanePlace, values: Values) -> None:
        """Round a subtile to the tile's type and write it."""
        if self.stores is not None:
            for matrices in self.stores:
                words = [self._word(values, *matrix) for matrix in matrices]
                isa.stmatrix(place.at(*matrices[0]), words, count=len(words), **self._words)
        elif self.layout.transposed:
            for where, value in values.items():
                isa.st(
                    place.at(*where), value.to(self.layout.dtype), space="shared", type=TYPES[self.layout.dtype].memory
                )
        else:
            for row, column in self.places:
                if self.layout.element_bytes == 1:
                    isa.st(place.at(row, column), self._pair(values, row, column), space="shared", type="b16")
                else:
                    two = [values[row, column].to("f32"), values[row, column + 1].to("f32")]
                    isa.st.v2(place.at(row, column), two, space="shared", type="f32")

    def _word(self, values: Values, row: int, column: int) -> Value:
        """Return a thread's register of one matrix: two adjacent elements, or four 8-bit elements of two rows."""
        if self.layout.element_bytes == 2:
            return self._pair(values, row, column)
        return merge("u32", *(self._pair(values, down, column).bits("u16") for down in (row, row + 8)))

    def _pair(self, values: Values, row: int, column: int) -> Value:
        return pair_of(values[row, column], values[row, column + 1], self.layout.dtype)

    @property
    def _words(self) -> dict[str, Any]:
        """The words of an `stmatrix` or `ldmatrix` instruction."""
        shape, element = ("m16n8", "b8") if self.layout.element_bytes == 1 else ("m8n8", "b16")
        return {"shape": shape, "type": element, "trans": self.layout.transposed or None, "space": "shared"}

    def load(self, place: LanePlace) -> dict[tuple[int, int], Value]:
        """Read a subtile; values have the tile's type."""
        dtype = self.layout.dtype
        found = dict[tuple[int, int], Value]()
        if self.loads is not None:
            for matrices in self.loads:
                loaded = isa.ldmatrix(place.at(*matrices[0]), count=len(matrices), **self._words)
                words = loaded if isinstance(loaded, tuple) else (loaded,)
                for (row, column), word in zip(matrices, words, strict=True):
                    found[row, column], found[row, column + 1] = unpack(word.bits(f"{dtype}x2"))
            return found
        for row, column in self.places:
            if self.layout.transposed:
                for right in (0, 1):
                    found[row, column + right] = self._element(place.at(row, column + right))
            elif self.layout.element_bytes == 1:
                both: Value = isa.ld(place.at(row, column), space="shared", type="u16")
                found[row, column], found[row, column + 1] = unpack(both.bits(f"{dtype}x2"))
            else:
                pair = isa.ld.v2(place.at(row, column), space="shared", type="f32")
                found[row, column], found[row, column + 1] = pair
        return found

    def _element(self, place: At) -> Value:
        dtype = self.layout.dtype
        value: Value = isa.ld(place, space="shared", type=TYPES[dtype].memory)
        return Value(dtype, value.operand, value.region)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Rows and columns of a thread's pairs of elements, relative to its first."""
        rows = (0, 8, 16, 24)[: 4 if self.lower else 2]
        return [(row, column) for row in rows for column in range(0, self.columns, 8)]
