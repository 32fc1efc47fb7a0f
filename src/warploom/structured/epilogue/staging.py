"""Fragments of an accumulator in swizzled shared memory and back.

A fragment's element has a row and a column, in part the lane's and in part the register's. The two parts share no bits,
and a swizzle is linear in bits: so a lane's place is computed once, and each register's from it by an exclusive or of
a number that is known, or by an offset in the instruction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from warploom.hardware.swizzles import SWIZZLES, Swizzle
from warploom.hardware.targets import machine
from warploom.trace.builder import current
from warploom.trace.isa.emit import At, emit
from warploom.trace.language.packing import merge, pack, round_pair, unpack
from warploom.trace.language.types import TYPES
from warploom.trace.language.values import Value, literal
from warploom.trace.language.views import Index, View, dense
from warploom.trace.language.warps import lane

Values = Mapping[tuple[int, int], Value]
"""What a thread holds of a strip, by row and column from the thread's first."""


@dataclass(frozen=True)
class SharedLayout:
    """How a tile of `rows` × `columns` lies: blocks of `width` columns, one behind the other, swizzled.

    `transposed` tiles hold the accumulator's columns as their rows.
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
        """Bytes from the tile's first element to another, before the swizzle; places without common bits add up."""
        block, rest = (column // self.width, column % self.width) if self.width < self.columns else (0, column)
        return (block * self.rows + row) * (self.width * self.element_bytes) + rest * self.element_bytes

    def of_accumulator(self, row: Index, column: Index) -> tuple[Index, Index]:
        """Row and column in the tile of an accumulator's."""
        return (column, row) if self.transposed else (row, column)

    def view(self, tile: At) -> View:
        """A tile as [block, row, column in the block]."""
        shape = (self.columns // self.width, self.rows, self.width)
        return View(tile.address, self.dtype, shape, dense(shape), "shared", self.swizzle)

    def place(self, tile: At, row: Value, column: Value) -> LanePlace:
        """Where a lane's first element lies in a tile; `row` and `column` are the accumulator's."""
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
        """From a lane's place to that of an element further on: bits to change, and bytes to add."""
        offset = self.offset(*self.of_accumulator(row, column))
        assert isinstance(offset, int)
        moved = self.swizzle.apply(offset)
        return moved & self._exchanged, moved & ~self._exchanged


def block_width(dtype: str, swizzle: str, contiguous: int) -> int:
    """Elements of a block's row: the swizzle's span, or without one all that lie side by side in global memory."""
    return min(SWIZZLES[swizzle].span // TYPES[dtype].bytes or contiguous, contiguous)


@dataclass(frozen=True)
class LanePlace:
    """Where a lane's first element in a tile lies."""

    layout: SharedLayout
    first: At

    def at(self, row: int, column: int) -> At:
        """The element that is so many of the accumulator's rows and columns further on."""
        changed, added = self.layout.step(row, column)
        assert isinstance(self.first.base, Value)
        return At(self.first.base ^ changed, self.first.offset + added)


@dataclass(frozen=True)
class Axis:
    """A step between the small matrices that a warp moves: so many rows, so many columns further."""

    rows: int
    columns: int


@dataclass(frozen=True)
class MatrixMoves:
    """The `stmatrix` or `ldmatrix` instructions of a strip: each takes matrices that lie two steps apart at most.

    Lane l gives the address of row l % 8 of matrix l / 8.
    """

    together: tuple[Axis, ...]
    apart: tuple[Axis, ...]
    columns: int
    """Columns of the strip, which may be fewer than the steps lead to."""
    transposed: bool

    def lane_place(self) -> tuple[Value, Value]:
        """Row and column that a lane addresses."""
        row, column = literal(0, "u32"), literal(0, "u32")
        for bit, axis in enumerate(self.together):
            digit = (lane() >> (3 + bit)) & 1
            row, column = row + digit * axis.rows, column + digit * axis.columns
        along = lane() & 7
        return (row, column + along) if self.transposed else (row + along, column)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """The first row and column of each matrix of the strip, by instruction."""
        for start in _steps(self.apart):
            places = [(start[0] + row, start[1] + column) for row, column in _steps(self.together)]
            inside = [place for place in places if place[1] < self.columns]
            if inside:
                yield inside


def _steps(axes: tuple[Axis, ...]) -> Iterator[tuple[int, int]]:
    """All sums of steps, the first axis fastest."""
    for digits in product((0, 1), repeat=len(axes)):
        chosen = [axis for axis, digit in zip(reversed(axes), digits, strict=True) if digit]
        yield sum(axis.rows for axis in chosen), sum(axis.columns for axis in chosen)


_DOWN, _LOWER = Axis(8, 0), Axis(16, 0)


def first_place() -> tuple[Value, Value]:
    """Row and column, in its warp's part of a strip, of a thread's first element."""
    return lane() >> 2, (lane() & 3) * 2


def pair_of(low: Value, high: Value, dtype: str) -> Value:
    """Two neighbours, rounded to a narrow type, in one register."""
    if low.type == high.type == dtype:
        return pack(low, high)
    return round_pair(low.to("f32"), high.to("f32"), f"{dtype}x2")


@dataclass(frozen=True)
class SubtileStore:
    """Moves strips of `columns` columns between registers and tiles of one layout; `lower` where warps have 32 rows."""

    layout: SharedLayout
    columns: int
    lower: bool

    @cached_property
    def stores(self) -> MatrixMoves | None:
        """How matrix instructions write the strip, None where plain stores do."""
        transposed = self.layout.transposed
        match self.layout.element_bytes:
            case 2:
                return self._moves(_DOWN, *self._across, transposed=transposed)
            case 1 if transposed and machine(current("A strip").target).family != "sm_90":  # it has none for bytes
                return self._moves(*self._across, transposed=transposed)
        return None

    @cached_property
    def loads(self) -> MatrixMoves | None:
        """How matrix instructions read the strip, None where plain loads do."""
        return self.stores if self.layout.element_bytes == 2 else None

    @property
    def _across(self) -> list[Axis]:
        """Steps over all matrices of eight columns: two columns of them first, then down."""
        right = [Axis(0, step) for step in (8, 16, 32, 64, 128) if step < self.columns]
        return [*right[:1], *([_LOWER] if self.lower else []), *right[1:]]

    def _moves(self, *axes: Axis, transposed: bool) -> MatrixMoves:
        return MatrixMoves(axes[:2], axes[2:], self.columns, transposed)

    def _place(self, moves: MatrixMoves | None, tile: At, row: Value, column: Value) -> LanePlace:
        own = first_place() if moves is None else moves.lane_place()
        return self.layout.place(tile, row + own[0], column + own[1])

    def place_to_store(self, tile: At, row: Value, column: Value) -> LanePlace:
        """The lane's place in a tile, where its warp's part begins at a row and column of the accumulator."""
        return self._place(self.stores, tile, row, column)

    def place_to_load(self, tile: At, row: Value, column: Value) -> LanePlace:
        return self._place(self.loads, tile, row, column)

    def store(self, place: LanePlace, values: Values) -> None:
        """Round a strip to the tile's type, and write it."""
        if self.stores is not None:
            for matrices in self.stores:
                words = [self._word(values, *matrix) for matrix in matrices]
                emit(self._opcode("stmatrix", len(matrices)), place.at(*matrices[0]), words)
        elif self.layout.transposed:
            for where, value in values.items():
                emit(f"st.shared.{TYPES[self.layout.dtype].memory}", place.at(*where), value.to(self.layout.dtype))
        else:
            for row, column in self.places:
                if self.layout.element_bytes == 1:
                    emit("st.shared.b16", place.at(row, column), self._pair(values, row, column))
                else:
                    two = [values[row, column].to("f32"), values[row, column + 1].to("f32")]
                    emit("st.shared.v2.f32", place.at(row, column), two)

    def _word(self, values: Values, row: int, column: int) -> Value:
        """A thread's register of one matrix: two neighbours, or four 8-bit elements of two rows."""
        if self.layout.element_bytes == 2:
            return self._pair(values, row, column)
        return merge("u32", *(self._pair(values, down, column).bits("u16") for down in (row, row + 8)))

    def _pair(self, values: Values, row: int, column: int) -> Value:
        return pair_of(values[row, column], values[row, column + 1], self.layout.dtype)

    def _opcode(self, name: str, count: int) -> str:
        shape, element = ("m16n8", "b8") if self.layout.element_bytes == 1 else ("m8n8", "b16")
        transposed = ".trans" if self.layout.transposed else ""
        return f"{name}.sync.aligned.{shape}.x{count}{transposed}.shared.{element}"

    def load(self, place: LanePlace) -> dict[tuple[int, int], Value]:
        """Read a strip; values are of the tile's type."""
        dtype = self.layout.dtype
        found = dict[tuple[int, int], Value]()
        if self.loads is not None:
            for matrices in self.loads:
                words = emit(self._opcode("ldmatrix", len(matrices)), place.at(*matrices[0]))
                for (row, column), word in zip(matrices, words, strict=True):
                    found[row, column], found[row, column + 1] = unpack(word.bits(f"{dtype}x2"))
            return found
        for row, column in self.places:
            if self.layout.transposed:
                for right in (0, 1):
                    found[row, column + right] = self._element(place.at(row, column + right))
            elif self.layout.element_bytes == 1:
                (word,) = emit("ld.shared.u16", place.at(row, column))
                found[row, column], found[row, column + 1] = unpack(word.bits(f"{dtype}x2"))
            else:
                found[row, column], found[row, column + 1] = emit("ld.shared.v2.f32", place.at(row, column))
        return found

    def _element(self, place: At) -> Value:
        dtype = self.layout.dtype
        (value,) = emit(f"ld.shared.{TYPES[dtype].memory}", place)
        return Value(dtype, value.operand, value.region)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Rows and columns of a thread's pairs, from its first."""
        rows = (0, 8, 16, 24)[: 4 if self.lower else 2]
        return [(row, column) for row in rows for column in range(0, self.columns, 8)]
