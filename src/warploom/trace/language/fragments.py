"""Register fragments: the part of a matrix that a thread holds, and which rows and columns those registers are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from warploom.diagnostics import Diag
from warploom.hardware.fragments import Fragment as Layout
from warploom.hardware.fragments import tensor_move, wgmma_d
from warploom.hardware.threads import WARP_LANES, WARPGROUP_WARPS
from warploom.trace.builder import here
from warploom.trace.isa.emit import At, emit
from warploom.trace.language.packing import PAIRS, round_pair, unpack
from warploom.trace.language.types import Number
from warploom.trace.language.values import Value, literal
from warploom.trace.language.variables import Variable
from warploom.trace.language.warps import lane, thread

_WARPGROUP = WARP_LANES * WARPGROUP_WARPS


def _steps(layout: Layout, letters: str) -> dict[str, int]:
    """Return the weight of each letter of a row or column."""
    sizes = dict(layout.sizes)
    return {letter: prod(sizes[after] for after in letters[at + 1 :]) for at, letter in enumerate(letters)}


@dataclass(frozen=True)
class Fragment:
    """Values with a layout: value i of a thread is an element of a matrix. Arithmetic is element by element."""

    values: tuple[Value, ...]
    layout: Layout

    def __post_init__(self) -> None:
        needed = self.layout.register_shape[0]
        if len(self.values) != needed:
            what = f"{len(self.values)} registers in a layout of {needed}"
            raise Diag.TYPE_MISMATCH.error(here(), what=what)

    @property
    def type(self) -> str:
        return self.values[0].type

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns that the threads hold together."""
        return self.layout.matrix_shape

    @cached_property
    def rows(self) -> tuple[Value, ...]:
        """The row of each value, counted from the fragment's first, as s32."""
        return self._positions(self.layout.rows)

    @cached_property
    def columns(self) -> tuple[Value, ...]:
        """The column of each value, counted from the fragment's first, as s32."""
        return self._positions(self.layout.columns)

    def _positions(self, letters: str) -> tuple[Value, ...]:
        """Digits of the thread's number and of the register's, weighed by what the letters of a row or column count."""
        weights = _steps(self.layout, letters)
        own: Value = literal(0, "s32")
        for letter, stride, size in self._thread_digits():
            if letter in weights:
                own = own + (self._thread // stride % size).to("s32") * weights[letter]
        sizes = dict(self.layout.sizes)
        digits = product(*(range(sizes[letter]) for letter in self.layout.registers))
        numbers = (
            sum(digit * weights.get(letter, 0) for letter, digit in zip(self.layout.registers, row, strict=True))
            for row in digits
        )
        return tuple(own + number for number in numbers)

    def _thread_digits(self) -> list[tuple[str, int, int]]:
        sizes = dict(self.layout.sizes)
        steps = _steps(self.layout, self.layout.lanes)
        return [(letter, steps[letter], sizes[letter]) for letter in self.layout.lanes]

    @property
    def _thread(self) -> Value:
        """The thread's number among those that hold the fragment together."""
        return lane() if self.layout.register_shape[1] < _WARPGROUP else thread() % _WARPGROUP

    def apply(self, function: Callable[..., Any], *others: Fragment | Value | Number) -> Fragment:
        """Apply a function to each value, and to the same element of other fragments."""
        for other in others:
            if isinstance(other, Fragment) and other.layout != self.layout:
                raise Diag.TYPE_MISMATCH.error(here(), what="fragments of different layouts")
        rows = [other.values if isinstance(other, Fragment) else (other,) * len(self.values) for other in others]
        return Fragment(tuple(function(*items) for items in zip(self.values, *rows, strict=True)), self.layout)

    def to(self, type_: str) -> Fragment:
        """Convert every value to another type."""
        return self.apply(lambda value: value.to(type_))

    def bits(self, type_: str) -> Fragment:
        """Reinterpret the bits of every value as another type."""
        return self.apply(lambda value: value.bits(type_))

    def pairs(self, type_: str) -> tuple[Value, ...]:
        """Neighbouring f32 values rounded to pairs, as stores and matrix moves want them."""
        if self.type != "f32" or len(self.values) % 2 or type_ not in PAIRS:
            raise Diag.TYPE_MISMATCH.error(here(), what=f".{type_} of {len(self.values)} .{self.type} values")
        return tuple(
            round_pair(low, high, type_) for low, high in zip(self.values[::2], self.values[1::2], strict=True)
        )

    def __add__(self, other: Fragment | Value | Number) -> Fragment:
        return self.apply(lambda a, b: a + b, other)

    def __radd__(self, other: Value | Number) -> Fragment:
        return self.apply(lambda a, b: b + a, other)

    def __sub__(self, other: Fragment | Value | Number) -> Fragment:
        return self.apply(lambda a, b: a - b, other)

    def __rsub__(self, other: Value | Number) -> Fragment:
        return self.apply(lambda a, b: b - a, other)

    def __mul__(self, other: Fragment | Value | Number) -> Fragment:
        return self.apply(lambda a, b: a * b, other)

    def __rmul__(self, other: Value | Number) -> Fragment:
        return self.apply(lambda a, b: b * a, other)

    def __truediv__(self, other: Fragment | Value | Number) -> Fragment:
        return self.apply(lambda a, b: a / b, other)

    def __rtruediv__(self, other: Value | Number) -> Fragment:
        return self.apply(lambda a, b: b / a, other)

    def __pow__(self, other: Fragment | Value | Number) -> Fragment:
        return self.apply(lambda a, b: a**b, other)

    def __neg__(self) -> Fragment:
        return self.apply(lambda a: -a)

    def __abs__(self) -> Fragment:
        return self.apply(abs)

    def __float__(self) -> float:
        return float(self.values[0])  # the error of a device value

    def __array_ufunc__(self, ufunc: Any, method: str, *arguments: Any, **options: Any) -> Any:
        return self._applied(lambda *values: Value.__array_ufunc__(self.values[0], ufunc, method, *values), arguments)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        first = next(each for each in arguments if isinstance(each, Fragment))
        return first._applied(  # noqa: SLF001 - of this class
            lambda *values: Value.__torch_function__(function, types, values, options), arguments
        )

    def _applied(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Fragment:
        """Apply a library's function to the values of all fragments among its arguments."""
        others = [each for each in arguments if isinstance(each, Fragment) and each is not self]
        if any(each.layout != self.layout for each in others):
            raise Diag.TYPE_MISMATCH.error(here(), what="fragments of different layouts")
        columns = [each.values if isinstance(each, Fragment) else (each,) * len(self.values) for each in arguments]
        return Fragment(tuple(function(*values) for values in zip(*columns, strict=True)), self.layout)


def unpacked(pairs: Sequence[Value], layout: Layout) -> Fragment:
    """The fragment whose neighbours lie in pairs."""
    return Fragment(tuple(half for pair in pairs for half in unpack(pair)), layout)


class Accumulator:
    """Registers that a tensor core reads and writes in place; nothing copies them while it does."""

    def __init__(self, type_: str, layout: Layout, start: Number | None = 0) -> None:
        self.layout = layout
        self.registers = [Variable(type_, start) for _ in range(layout.register_shape[0])]

    def read(self) -> Fragment:
        """Return the accumulator as a fragment, once the tensor core is done."""
        return Fragment(tuple(register.get() for register in self.registers), self.layout)

    def set(self, fragment: Fragment | Number) -> None:
        """Overwrite the registers with a fragment, or all of them with one number."""
        for at, register in enumerate(self.registers):
            register.set(fragment.values[at] if isinstance(fragment, Fragment) else fragment)


def wgmma_accumulator(columns: int, type_: str = "f32") -> Accumulator:
    """D of a wgmma with 64 rows; the first wgmma of a sum may leave what it holds aside, so it starts undefined."""
    return Accumulator(type_, wgmma_d(columns), None)


def store_matrix(place: At, pairs: Sequence[Value], *, transpose: bool = False) -> None:
    """One, two or four 8 × 8 matrices of 16-bit elements into shared memory by a warp: lane 8·i + r names row r of
    matrix i by its place, and each lane gives two neighbours of a row, or of a column where they are transposed.
    """
    turned = ".trans" if transpose else ""
    emit(f"stmatrix.sync.aligned.m8n8.x{len(pairs)}{turned}.shared.b16", place, list(pairs))


def load_matrix(place: At, count: int, *, transpose: bool = False, type_: str = "u32") -> tuple[Value, ...]:
    """One, two or four 8 × 8 matrices of 16-bit elements from shared memory, as `store_matrix` lays them."""
    words = emit(f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transpose else ''}.shared.b16", place)
    return tuple(word.bits(type_) for word in words)


def tensor_load(place: At, shape: str = "32x32b", repeats: int = 1, type_: str = "f32") -> Fragment:
    """Load a part of TMEM into registers, complete after `tcgen05.wait::ld`; rows are lanes of the warp's quarter."""
    words = emit(f"tcgen05.ld.sync.aligned.{shape}.x{repeats}.b32", place)
    return Fragment(tuple(word.bits(type_) for word in words), tensor_move(shape, repeats))


def tensor_store(place: At, fragment: Fragment, shape: str = "32x32b") -> None:
    """Store a fragment to TMEM, complete after `tcgen05.wait::st`."""
    repeats = len(fragment.values) // tensor_move(shape, 1).register_shape[0]
    if fragment.layout != tensor_move(shape, repeats):
        raise Diag.TYPE_MISMATCH.error(here(), what=f"a fragment of another layout stored as {shape}")
    emit(f"tcgen05.st.sync.aligned.{shape}.x{repeats}.b32", place, list(fragment.values))
