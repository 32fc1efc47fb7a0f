"""Operands of the tensor cores: the matrix in shared memory that a descriptor names, and the product of two of them.

Reading is one `take` of 16-byte granules through a cached index array, then one conversion. The index depends on the
layout and on where in the swizzle pattern the operand starts, not on the buffer it lies in: a kernel with many stages
builds few of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warploom.diagnostics import Diag
from warploom.hardware.matrix_descriptors import SharedDescriptor, decode_shared_descriptor
from warploom.hardware.mma_shapes import WGMMA
from warploom.hardware.swizzles import B128_ATOM_32B, GRANULE, SWIZZLES, Swizzle
from warploom.machine.numerics.products import Factor, product
from warploom.machine.routines.call_lists import Argument, Sequence
from warploom.machine.routines.granule_kernels import PAIRED, PER_GRANULE, Gather, Granules
from warploom.machine.tensor.elements import ELEMENTS, decode_scales

_CORE_ROWS = 8
_CORE_LINES = {True: 4, False: 8}
"""Lines (values of k) of an MN-major atom: with 32-byte atoms four, else eight (PTX ISA Table 55; CUTLASS agrees)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Gather:
    """Granule numbers [outer, inner] from a pattern-aligned base, and the first byte after the last of them."""

    index: NDArray[np.intp]
    reach: int


@lru_cache(maxsize=512)
def _gather(
    swizzle_name: str,
    leading: int,
    stride: int,
    base_offset: int,
    phase: int,
    outer: int,
    inner: int,
    mn_major: bool,
    steps: int,
    advance: int,
) -> _Gather:
    """The granules of an operand.

    K-major: `outer` rows of `inner` granules along k. MN-major: `outer` values of k with `inner` granules along m or
    n. `steps` operands, `advance` bytes apart, follow each other along k. The canonical layouts are PTX ISA
    9.7.15.5.1.2.1.3 and 9.7.16.3.3.
    """
    swizzle = SWIZZLES[swizzle_name]
    far, near = np.arange(outer)[:, None], np.arange(inner)[None, :]
    width = max(swizzle.span, GRANULE)
    if mn_major:
        lines = _CORE_LINES[swizzle is B128_ATOM_32B]
        per_line = width // GRANULE
        between = (leading, stride) if swizzle.bits else (stride, leading)
        lines_offset = (far % lines) * width + (far // lines) * between[1]
        offset = lines_offset + (near % per_line) * GRANULE + (near // per_line) * between[0]
    else:
        rows_offset = (far % _CORE_ROWS) * width + (far // _CORE_ROWS) * stride
        offset = rows_offset + near * (GRANULE if swizzle.bits else leading)
    starts = phase + advance * np.arange(steps)
    all_offsets = np.concatenate([offset + start for start in starts], axis=0 if mn_major else 1)
    placed = swizzle.apply(all_offsets.astype(np.intp), base_offset)
    return _Gather(np.ascontiguousarray(placed // GRANULE), int(placed.max()) + GRANULE)


def _check_major(descriptor: SharedDescriptor, element: str, mn_major: bool) -> None:
    """Check which types may be MN-major, and with which swizzle (wgmma: PTX ISA 9.7.15.5.2; tcgen05: Tables 51 and 54).

    Table 54 leaves out MN-major 4- and 6-bit elements; CUTLASS has kernels with them (kind::f8f6f4, all four
    layouts), so they are allowed here as the bytes they occupy. Table 54 allows K-major with 32-byte atoms and Table
    55 has no layout for it.
    """
    bits = ELEMENTS[element].bits
    atom = descriptor.swizzle is B128_ATOM_32B
    broken = ""
    if mn_major and descriptor.family == "sm_90" and not WGMMA[element].transposable:
        broken = f"wgmma reads {element} K-major only"
    elif mn_major and bits < 8:
        broken = f"tcgen05 reads {element} K-major only"
    elif mn_major and descriptor.family == "sm_100" and (bits == 32) != atom:
        broken = f"an MN-major operand of {bits}-bit elements {'needs' if bits == 32 else 'cannot have'} 128B_32B_atom"
    if broken:
        raise Diag.BAD_DESCRIPTOR.error(
            kind=f"{descriptor.family} shared-memory matrix",
            value=descriptor.value,
            what=f"{broken}, and the swizzle is {descriptor.swizzle.name}",
            fields=descriptor.fields,
        )
    if atom and not mn_major:
        raise Diag.NOT_MODELLED.error(
            what="A K-major operand with swizzle 128B_32B_atom (PTX ISA tables 54 and 55 disagree)"
        )


@lru_cache(maxsize=512)
def _layout(
    layout: tuple[str, int, int, int],
    phase: int,
    rows: int,
    k: int,
    element: str,
    mn_major: bool,
    steps: int,
    advance: int,
) -> _Gather:
    """The gather of an operand in elements."""
    per_granule = GRANULE * 8 // ELEMENTS[element].bits
    outer, inner = (k, -(-rows // per_granule)) if mn_major else (rows, -(-k // per_granule))
    return _gather(*layout, phase, outer, inner, mn_major, steps, advance)


class NativePlace(NamedTuple):
    """The granules of an operand for native code: the first, their numbers from there, and how they are converted."""

    first: int
    granules: NDArray[np.intp]
    form: Gather
    end: int
    """The first byte after the operand."""


def native_place(
    descriptor: SharedDescriptor,
    rows: int,
    k: int,
    element: str,
    *,
    mn_major: bool,
    steps: int,
    advance: int,
    transposed: bool,
) -> NativePlace | None:
    """The place of a matrix [rows, steps * k], or of its transpose; None where native code does not take it."""
    swizzle = descriptor.swizzle
    if swizzle is B128_ATOM_32B or element not in PER_GRANULE:
        return None
    if mn_major:
        _check_major(descriptor, element, mn_major)
        if rows % PER_GRANULE[element]:
            return None
    phase = descriptor.start % swizzle.alignment
    layout = (swizzle.name, descriptor.leading, descriptor.stride, descriptor.base_offset)
    gather = _layout(layout, phase, rows, k, element, mn_major, steps, advance)
    base = descriptor.start - phase
    form = _gather_form(element, transposed != mn_major)
    return NativePlace(base // GRANULE, gather.index, form, base + gather.reach)


class OperandReader:
    """Reads operands from one CTA's shared memory (uint8, 16-byte aligned, a multiple of 16 bytes long).

    `view` returns the bytes of that memory as the operation that completes sees those from a first to a last.
    """

    __slots__ = ("_granules", "_size", "_view")

    def __init__(self, shared: NDArray[np.uint8], view: Callable[[int, int], NDArray[np.uint8]] | None = None) -> None:
        self._granules = shared.view(np.complex128)
        self._size, self._view = shared.nbytes, view

    @property
    def granules(self) -> NDArray[np.complex128]:
        """The memory, as every operation sees it where there is one view."""
        return self._granules

    def read(
        self,
        descriptor: SharedDescriptor,
        rows: int,
        k: int,
        element: str,
        *,
        mn_major: bool = False,
        steps: int = 1,
        advance: int = 0,
    ) -> NDArray[Any]:
        """The matrix [rows, steps * k]: float32, or int8/uint8 for s8/u8.

        `steps` > 1 reads a run of MMAs along k whose descriptors start `advance` bytes after each other, in one go.
        """
        swizzle = descriptor.swizzle
        phase = descriptor.start % swizzle.alignment
        layout = (swizzle.name, descriptor.leading, descriptor.stride, descriptor.base_offset)
        if mn_major or swizzle is B128_ATOM_32B:
            _check_major(descriptor, element, mn_major)
        gather = _layout(layout, phase, rows, k, element, mn_major, steps, advance)
        matrix = ELEMENTS[element].decode(self._take(descriptor, descriptor.start - phase, gather))
        return matrix[:, :rows].T if mn_major else matrix

    def gather(
        self,
        routine: Granules,
        descriptor: SharedDescriptor,
        rows: int,
        k: int,
        element: str,
        *,
        mn_major: bool,
        steps: int,
        advance: int,
        transposed: bool,
    ) -> NDArray[np.float64] | None:
        """The matrix of `read`, or its transpose, in float64 by native code; None where that does not take it."""
        place = native_place(
            descriptor, rows, k, element, mn_major=mn_major, steps=steps, advance=advance, transposed=transposed
        )
        if place is None or place.end > self._size:
            return None
        granules = self._granules
        if self._view is not None:
            granules = self._view(place.first * GRANULE, place.end).view(np.complex128)
        return routine.gather(granules, place.first, place.granules, place.form)

    def read_bytes(self, descriptor: SharedDescriptor, rows: int, row_bytes: int) -> NDArray[np.uint8]:
        """The rows that tcgen05.cp copies: a K-major matrix of raw bytes."""
        swizzle = descriptor.swizzle
        phase = descriptor.start % swizzle.alignment
        layout = (swizzle.name, descriptor.leading, descriptor.stride, descriptor.base_offset)
        gather = _gather(*layout, phase, rows, row_bytes // GRANULE, False, 1, 0)
        return self._take(descriptor, descriptor.start - phase, gather).view(np.uint8)

    def _take(self, descriptor: SharedDescriptor, base: int, gather: _Gather) -> NDArray[np.complex128]:
        if base + gather.reach > self._size:
            raise Diag.OUT_OF_BOUNDS.error(
                notes=(f"descriptor {descriptor.value:#x}: {descriptor.fields}",),
                what=f"The operand at {descriptor.start:#x} to {base + gather.reach:#x} ({self._size:#x} bytes exist)",
                space="shared",
            )
        granules = self._granules
        if self._view is not None:
            granules = self._view(base, base + gather.reach).view(np.complex128)
        return granules[base // GRANULE :].take(gather.index)


class Operand:
    """An operand of an MMA: the reference reads it as float32, native code as float64.

    `gather` returns the matrix [rows, k], or transposed, in float64, and None where native code does not take it.
    """

    __slots__ = ("_factor", "_gather", "_read", "_right", "_wide")

    def __init__(
        self, read: Callable[[], Factor], gather: Callable[[bool], NDArray[np.float64] | None] | None = None
    ) -> None:
        self._read, self._gather = read, gather
        self._factor: Factor | None = None
        self._wide: NDArray[np.float64] | None = None
        self._right: NDArray[np.float64] | None = None

    def factor(self) -> Factor:
        if self._factor is None:
            self._factor = self._read()
        return self._factor

    def wide(self) -> NDArray[np.float64]:
        """[rows, k] in float64."""
        if self._wide is None:
            found = None if self._gather is None else self._gather(False)
            self._wide = self.factor().wide() if found is None else found
        return self._wide

    def right(self) -> NDArray[np.float64]:
        """[k, rows] in float64."""
        if self._right is None:
            found = None if self._gather is None else self._gather(True)
            self._right = self.factor().right() if found is None else found
        return self._right


@lru_cache(maxsize=64)
def _gather_form(element: str, transposed: bool, order: tuple[int, ...] = ()) -> Gather:
    return Gather(element, transposed, order)


Order = Callable[[int], NDArray[np.intp]]
"""The order in which the rows of an operand are read; the rows and columns of a product come in that order."""


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """An operand, or a run of them along k, that a descriptor names: where its granules lie and how they become a
    matrix.
    """

    start: int
    layout: tuple[str, int, int, int]
    end: int
    """The first byte after the operand."""
    first: int
    index: NDArray[np.intp]
    element: str
    k: int
    """Columns that one instruction multiplies."""
    columns: NDArray[np.intp] | None
    """For an MN-major operand the order of its rows, which are the columns that memory holds."""
    within: tuple[int, ...] | None = ()
    """That order within every granule, the same in all; None where it is another."""

    def gather(
        self, routine: Granules, granules: NDArray[np.complex128], transposed: bool
    ) -> NDArray[np.float64] | None:
        """The matrix [rows, k], or transposed, in float64 by native code; None where that does not take it."""
        across = transposed == (self.columns is None)
        if self.within is None or (self.within and across) or self.end > granules.nbytes:
            return None
        return routine.gather(granules, self.first, self.index, _gather_form(self.element, across, self.within))

    def convert(
        self, routine: Granules, sequence: Sequence, base: int, transposed: bool
    ) -> tuple[Argument, int] | None:
        """Add a call of `gather` to a sequence, with shared memory as one of its bases."""
        across = transposed == (self.columns is None)
        if self.within is None or (self.within and across):
            return None
        sequence.needs(base, self.end)
        return routine.convert(sequence, base, self.first, self.index, _gather_form(self.element, across, self.within))

    def read(self, granules: NDArray[np.complex128]) -> NDArray[Any]:
        """The matrix [rows, k] in float32, which holds every element exactly."""
        matrix = ELEMENTS[self.element].decode(granules[self.first :].take(self.index))
        if self.columns is not None:
            matrix = matrix.take(self.columns, axis=1).T
        return matrix if matrix.dtype == np.float32 else matrix.astype(np.float32)


@lru_cache(maxsize=64)
def _within(order: Order, rows: int) -> tuple[int, ...] | None:
    """The order of rows within every eight, if it is the plain one or that of `wgmma`."""
    if rows % len(PAIRED):
        return None
    places = order(rows)
    for within in ((), PAIRED):
        expected = np.arange(rows).reshape(-1, len(PAIRED))[:, list(within or range(len(PAIRED)))]
        if np.array_equal(places, expected.reshape(-1)):
            return within
    return None


@lru_cache(maxsize=256)
def _reordered(gather: _Gather, order: Order) -> _Gather:
    """A K-major gather with its rows in another order."""
    return _Gather(gather.index.take(order(len(gather.index)), axis=0), gather.reach)


@dataclass(frozen=True, slots=True, eq=False)
class OperandForm:
    """The operand that an instruction reads through a descriptor: a matrix [rows, k] of one element type, its rows
    in a chosen
    order.
    """

    family: str
    rows: int
    k: int
    element: str
    mn_major: bool
    order: Order

    def locate(self, value: int, steps: int = 1, advance: int = 0) -> Located:
        """The operand of a descriptor, or of `steps` descriptors whose starts are `advance` bytes apart."""
        descriptor = decode_shared_descriptor(value, self.family)
        swizzle = descriptor.swizzle
        phase = descriptor.start % swizzle.alignment
        layout = (swizzle.name, descriptor.leading, descriptor.stride, descriptor.base_offset)
        if self.mn_major or swizzle is B128_ATOM_32B:
            _check_major(descriptor, self.element, self.mn_major)
        gather = _layout(layout, phase, self.rows, self.k, self.element, self.mn_major, steps, advance)
        base, columns = descriptor.start - phase, None
        if self.mn_major:
            columns = self.order(self.rows)
        else:
            gather = _reordered(gather, self.order)
        end, within = base + gather.reach, _within(self.order, self.rows) if self.mn_major else ()
        first = base // GRANULE
        return Located(descriptor.start, layout, end, first, gather.index, self.element, self.k, columns, within)


def footprint(
    descriptor: SharedDescriptor, rows: int, k: int, element: str, *, mn_major: bool = False
) -> NDArray[np.intp]:
    """The shared-memory address of every granule that an operand reads, sorted: what an observer needs of it."""
    swizzle: Swizzle = descriptor.swizzle
    phase = descriptor.start % swizzle.alignment
    layout = (swizzle.name, descriptor.leading, descriptor.stride, descriptor.base_offset)
    gather = _layout(layout, phase, rows, k, element, mn_major, 1, 0)
    return np.sort(gather.index.reshape(-1)) * GRANULE + (descriptor.start - phase)


def multiply_scaled(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    scale_a: NDArray[np.uint8],
    scale_b: NDArray[np.uint8],
    scale_type: str,
) -> NDArray[np.float32]:
    """(a * scale_a) @ (b * scale_b).T, where a row's k elements are cut into as many blocks as it has scale factors.

    In float64: a ue8m0 factor alone can leave float32's range while the product of both does not.
    """
    k = a.shape[1]
    with np.errstate(all="ignore"):
        return product(Factor(scaled(a, scale_a, scale_type), k), Factor(scaled(b, scale_b, scale_type), k))


def scaled(values: NDArray[Any], codes: NDArray[np.uint8], scale_type: str) -> NDArray[np.float64]:
    """Values [row, k], each block of a row times its factor, in float64, which holds all of these products exactly."""
    rows, blocks = codes.shape
    with np.errstate(all="ignore"):
        factors = decode_scales(codes, scale_type)[:, :, None]
        return (values.reshape(rows, blocks, -1) * factors).reshape(rows, -1)


def scaled_columns(values: NDArray[np.float64], codes: NDArray[np.uint8], scale_type: str) -> NDArray[np.float64]:
    """The same for the transposed matrix [k, row]."""
    rows, blocks = codes.shape
    with np.errstate(all="ignore"):
        factors = decode_scales(codes, scale_type).T[:, None, :]
        return (values.reshape(blocks, -1, rows) * factors).reshape(-1, rows)
