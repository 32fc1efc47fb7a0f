"""TMA boxes: global memory to dense bytes and back, and dense bytes to their swizzled place in shared
memory.

Coordinates come as PTX gives them, innermost first, and count elements; everything else is in NumPy axis order.
`origin` is the byte of `memory` (flat uint8) at which the tensor begins. A dense box is a flat uint8 array: the
elements in order, no swizzle and no gaps. Checked against an H200 byte by byte: fill, clipping, element strides,
every rank, swizzles at every 128-byte line. The im2col modes (`pixels.py`) follow the PTX ISA.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warploom.diagnostics import Diag
from warploom.hardware.swizzles import GRANULE, SWIZZLES
from warploom.hardware.tensor_maps import NAN_FILL, SHARED_ALIGNMENT
from warploom.host.tensor_map import BoxGeometry
from warploom.machine.copy.pixels import pixel_rows
from warploom.machine.copy.reductions import DTYPES, reduce_values
from warploom.machine.engine.addresses import address_of
from warploom.machine.memory.exact_sums import ExactSums
from warploom.machine.routines.tensor_map_rows import MapRow
from warploom.machine.tensor.elements import pack_six_bits, round_to_tf32

if TYPE_CHECKING:
    from warploom.machine.engine.native import Routines

Bytes = NDArray[np.uint8]
Slices = tuple[slice, ...]

_MOST_WINDOWS = 1 << 12
"""Coordinates that a tensor map remembers."""
_NEGATIVE = 1 << 31
"""Registers with larger values are coordinates below 0."""
_HALF = 1 << 63
_UNDEFINED = 0xFF
"""The byte that the emulator leaves in padding that PTX calls uninitialised."""


def _check(geometry: BoxGeometry, coords: Sequence[int], *, storing: bool) -> None:
    """Raise for what hardware answers with an illegal instruction (seen on an H200), or what PTX forbids for the
    type.
    """
    element = geometry.element
    broken = []
    if geometry.interleave != "none":
        raise Diag.NOT_MODELLED.error(what=f"A tensor map with interleave {geometry.interleave}")
    if len(coords) != geometry.rank:
        broken.append(f"the tensor has {geometry.rank} axes")
    if coords[0] % element.coordinate_unit:
        broken.append(f"the innermost one of a {element.name} tensor is a multiple of {element.coordinate_unit}")
    if storing and geometry.mode == "tile" and min(coords) < 0:
        broken.append("a store takes none below 0")
    if storing and element.padded and element.group * 6 != element.global_bytes * 8:
        broken.append(f"a {element.name} tensor cannot be stored to")
    if broken:
        raise Diag.BAD_COORDINATES.error(coords=tuple(coords), what=", and ".join(broken))


def _window(geometry: BoxGeometry, coords: Sequence[int]) -> tuple[Slices | None, int, Sequence[int], Sequence[int]]:
    """The part of a box inside the tensor.

    Its slices of the box in elements (None: all of it), and its offset, counts and strides in global memory; the
    innermost count is in bytes.
    """
    element, box, shape = geometry.element, geometry.box, geometry.shape
    whole = True
    inside: list[slice] = []
    counts: list[int] = []
    strides: list[int] = []
    offset = 0
    for axis in range(len(box) - 1, -1, -1):
        first, step, extent = coords[len(box) - 1 - axis], geometry.element_strides[axis], box[axis]
        low, high = (-(first // step) if first < 0 else 0), -((first - shape[axis]) // step)
        if low or high < extent:
            whole = False
            low, high = min(low, extent), max(min(high, extent), 0)
            high = max(low, high)
        else:
            high = extent
        inside.append(slice(low, high))
        if strides:
            offset += (first + low * step) * geometry.strides[axis]
            counts.append(high - low)
            strides.append(step * geometry.strides[axis])
        else:
            offset += element.global_row_bytes(first + low)
            counts.append(element.global_row_bytes(high - low))
            strides.append(1)
    return None if whole else tuple(reversed(inside)), _wrapped(offset), counts[::-1], strides[::-1]


def _wrapped(offset: int) -> int:
    """A distance modulo 2^64, as a signed number: addresses wrap around."""
    return (offset + _HALF) % (2 * _HALF) - _HALF


def _rows(memory: Bytes, offset: int, counts: Sequence[int], strides: Sequence[int]) -> Bytes:
    """Rows of bytes in global memory: a view. An empty one needs no memory."""
    if 0 in counts:
        return np.empty(counts, np.uint8)
    return np.ndarray(tuple(counts), np.uint8, memory, offset, tuple(strides))


def _part(
    memory: Bytes, geometry: BoxGeometry, coords: Sequence[int], shift: Sequence[int], origin: int
) -> tuple[Any, Bytes, Any]:
    """The part of a box inside the tensor: its index in the box, whose innermost axis counts bytes of global memory
    (None: all of it), and the memory with the index that gives the same bytes there.
    """
    if geometry.mode != "tile":
        rows, offsets, first, count = pixel_rows(geometry, coords, shift)
        columns = np.arange(first, first + count)
        return (rows[:, None], columns), memory, (origin + offsets[:, None]) + (columns - first)
    inside, offset, counts, strides, _ = _known_window(geometry, tuple(coords))
    return inside, _rows(memory, origin + offset, counts, strides), ...


def _known_window(geometry: BoxGeometry, coords: tuple[int, ...]) -> Any:
    """`_window` with the innermost slice in bytes, and the rows for native code if it takes them; remembered."""
    known = geometry.windows.get(coords)
    if known is None:
        inside, offset, counts, strides = _window(geometry, coords)
        source = None
        if inside is not None:
            count_of = geometry.element.global_row_bytes
            inside = (*inside[:-1], slice(count_of(inside[-1].start), count_of(inside[-1].stop)))
        else:
            counts, strides = _one(tuple(counts)), _one(tuple(strides))
            if not (geometry.element.rounds_to_tf32 or geometry.element.padded):
                rows = _whole_rows(counts, strides)
                source = None if rows is None else (offset, rows)
        if len(geometry.windows) >= _MOST_WINDOWS:
            geometry.windows.clear()
        known = geometry.windows[coords] = inside, offset, counts, strides, source
    return known


@lru_cache(maxsize=256)
def _one(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """One object for equal tuples: the boxes inside a tensor have the same counts and strides."""
    return numbers


def window_of(geometry: BoxGeometry, coords: tuple[int, ...]) -> Any:
    """The window of a box that is loaded; None for coordinates that are to be examined first."""
    known = geometry.windows.get(coords)
    if known is not None or geometry.mode != "tile" or max(coords) >= _NEGATIVE:
        return known
    is_plain = geometry.interleave == "none" and len(coords) == geometry.rank
    return _known_window(geometry, coords) if is_plain and not coords[0] % geometry.element.coordinate_unit else None


def read_box(
    memory: Bytes, geometry: BoxGeometry, coords: Sequence[int], origin: int = 0, shift: Sequence[int] = ()
) -> Bytes:
    """The dense box at `coords`; elements outside the tensor are zero, or NaN if the map asks for it. `shift` moves the
    pixels of an im2col copy along W, H and D.
    """
    element = geometry.element
    if geometry.mode != "tile" or tuple(coords) not in geometry.windows:
        _check(geometry, coords, storing=False)
    inside, place, index = _part(memory, geometry, coords, shift, origin)
    rows: Bytes = place[index]
    if element.rounds_to_tf32:
        rows = round_to_tf32(np.ascontiguousarray(rows).view(np.uint32)).view(np.uint8)
    if inside is None:
        box = rows.copy()
    else:
        box = np.zeros((*geometry.box[:-1], element.global_row_bytes(geometry.box[-1])), np.uint8)
        if geometry.fill == "nan":
            box.view(np.uint16)[...] = NAN_FILL
        box[inside] = rows
    if element.padded:
        groups = np.full((box.size // element.global_bytes, element.shared_bytes), _UNDEFINED, np.uint8)
        groups[:, : element.global_bytes] = box.reshape(-1, element.global_bytes)
        return groups.reshape(-1)
    return box.reshape(-1)


@lru_cache(maxsize=256)
def _row_offsets(counts: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[np.int64]:
    """The distance of each row of a box from the first."""
    offsets = np.zeros(1, np.int64)
    for count, stride in zip(counts, strides, strict=True):
        offsets = (offsets[:, None] + stride * np.arange(count, dtype=np.int64)).reshape(-1)
    return offsets


class _Rows(NamedTuple):
    """The rows of a box that is wholly inside its tensor: whole granules."""

    end: int
    """The first byte after them, from the first of them on."""
    offsets: NDArray[np.int64]
    address: int
    """Of the offsets."""
    rows: int
    granules: int
    """Of a row."""


class _Target(NamedTuple):
    """The granules of a box in shared memory."""

    first: int
    end: int
    """The first byte after them."""
    places: NDArray[np.intp]
    address: int
    """Of the places."""


@lru_cache(maxsize=256)
def _whole_rows(counts: tuple[int, ...], strides: tuple[int, ...]) -> _Rows | None:
    """The rows of a box for native code; None where they are not whole granules, or there are none."""
    width = counts[-1]
    if 0 in counts or width % GRANULE or min(strides) < 0:
        return None
    offsets = _row_offsets(counts[:-1], strides[:-1])
    return _Rows(int(offsets.max()) + width, offsets, address_of(offsets), len(offsets), width // GRANULE)


def _target(geometry: BoxGeometry, address: int) -> _Target:
    """The place of a box at an aligned address, remembered."""
    known: _Target | None = geometry.places.get(address)
    if known is None:
        if len(geometry.places) >= _MOST_WINDOWS:
            geometry.places.clear()
        row_bytes, swizzle = geometry.row_bytes, geometry.swizzle
        rows, phase = geometry.shared_bytes // row_bytes, address % swizzle.alignment if swizzle.bits else 0
        pitch = geometry.pitch if swizzle.bits else row_bytes
        places = _granules(swizzle.name, row_bytes, pitch, rows, phase)
        base = address - phase
        end = base + (int(places.max()) + 1) * GRANULE
        known = geometry.places[address] = _Target(base, end, places, address_of(places))
    return known


def copy_box(
    routines: Routines,
    memory: Bytes,
    geometry: BoxGeometry,
    coords: tuple[int, ...],
    origin: int,
    shared: Bytes,
    address: int,
    *,
    stores: bool = False,
) -> bool:
    """Copy a box from global to shared memory by native code, as `read_box` and `place_box` would do; `stores`: back,
    as `collect_box` and `write_box` would do.

    False, and nothing is done, for a box that is not wholly inside its tensor, that changes on the way, or that is a
    fault.
    """
    known = geometry.windows.get(coords)
    if known is None or stores:
        if geometry.mode != "tile":
            return False
        _check(geometry, coords, storing=stores)
        known = _known_window(geometry, coords)
    if known[4] is None or address % SHARED_ALIGNMENT:
        return False
    offset, source = known[4]
    target: _Target = geometry.places.get(address) or _target(geometry, address)
    first = origin + offset
    if first < 0 or first + source.end > memory.nbytes or target.end > shared.nbytes:
        return False
    if source.rows * source.granules != len(target.places):
        return False
    routines.granules.copy_box(
        address_of(memory) + first, source.address, source.rows, source.granules,
        address_of(shared) + target.first, target.address, stores=stores,
    )  # fmt: skip
    return True


def map_row(geometry: BoxGeometry, memory: tuple[int, int], origin: int, limit: int) -> MapRow | None:
    """A tensor map for native code, which copies its boxes as `copy_box` does where they are wholly inside; None where
    it copies none of them. `memory` is a host address and the bytes there, `limit` that of an mbarrier's bytes.
    """
    element, unit = geometry.element, geometry.element.coordinate_unit
    changes = element.rounds_to_tf32 or element.padded or geometry.element_strides[-1] != 1
    if geometry.mode != "tile" or geometry.interleave != "none" or changes or unit & (unit - 1):
        return None
    inside, _, counts, strides = _window(geometry, (0,) * geometry.rank)
    source = _whole_rows(tuple(counts), tuple(strides))
    if inside is not None or source is None:
        return None
    swizzle, target = geometry.swizzle, _target(geometry, 0)
    if source.rows * source.granules != len(target.places):
        return None
    span = geometry.shared_bytes // geometry.row_bytes * geometry.pitch
    alignment = max(SHARED_ALIGNMENT, swizzle.alignment if swizzle.bits else 1)
    axes: list[int] = []
    for axis in range(geometry.rank - 1, -1, -1):
        step, extent = geometry.element_strides[axis], geometry.box[axis]
        bits = element.global_row_bytes(8 * unit) // unit
        axes += [geometry.shape[axis] - (extent - 1) * step - 1, geometry.strides[axis] if axes else bits]
    words = (
        geometry.rank, geometry.box_bytes, *memory, origin, source.rows, source.granules, source.address, source.end,
        max(span, target.end), alignment - 1, target.address, unit - 1, limit, *axes,
    )  # fmt: skip
    return MapRow(np.array(words, np.int64), (source, target))


def placed_at(geometry: BoxGeometry, shared: int, address: int) -> tuple[int, int, int]:
    """The target and the places of a box that was copied to shared memory, as host addresses, and its granules."""
    target = _target(geometry, address)
    return shared + target.first, target.address, len(target.places)


def _stored(geometry: BoxGeometry, dense: Bytes) -> Bytes:
    """The rows of a dense box as global memory packs them."""
    element = geometry.element
    if element.padded:
        dense = pack_six_bits(dense)
    return dense.reshape(*geometry.box[:-1], element.global_row_bytes(geometry.box[-1]))


def write_box(memory: Bytes, geometry: BoxGeometry, coords: Sequence[int], dense: Bytes, origin: int = 0) -> None:
    """Store a dense box at `coords`; elements outside the tensor are dropped."""
    _check(geometry, coords, storing=True)
    inside, place, index = _part(memory, geometry, coords, (), origin)
    box = _stored(geometry, dense)
    place[index] = box if inside is None else box[inside]


def _places(place: Bytes, index: Any, size: int) -> NDArray[np.int64]:
    """The host addresses of the elements of `place[index]`, whose innermost axis counts bytes."""
    if index is not ...:
        return np.ascontiguousarray(address_of(place) + index[..., ::size])
    found = np.full((1,) * place.ndim, address_of(place), np.int64)
    for axis, (count, stride) in enumerate(zip(place.shape, place.strides, strict=True)):
        found = found + (np.arange(count) * stride).reshape((-1,) + (1,) * (place.ndim - 1 - axis))
    return np.ascontiguousarray(found[..., ::size])


def reduce_box(
    operation: str,
    memory: Bytes,
    geometry: BoxGeometry,
    coords: Sequence[int],
    dense: Bytes,
    origin: int = 0,
    sums: ExactSums | None = None,
) -> None:
    """Combine a dense box with what lies at `coords`; elements outside the tensor are dropped."""
    _check(geometry, coords, storing=True)
    inside, place, index = _part(memory, geometry, coords, (), origin)
    box = _stored(geometry, dense)
    operand = np.ascontiguousarray(box if inside is None else box[inside])
    dtype = DTYPES.get(geometry.element.name, np.dtype(np.uint8))
    current = np.ascontiguousarray(place[index]).view(dtype)
    places = None if sums is None else _places(place, index, dtype.itemsize)
    changed = reduce_values(operation, geometry.element.name, current, operand.view(dtype), sums, places)
    place[index] = changed.view(np.uint8)


def read_rows(memory: Bytes, geometry: BoxGeometry, column: int, rows: Sequence[int], origin: int = 0) -> Bytes:
    """tile::gather4: one row of a 2-D tensor for each of the coordinates, from `column` on, one after the other."""
    return np.concatenate([read_box(memory, geometry, (column, row), origin) for row in rows])


def write_rows(
    memory: Bytes, geometry: BoxGeometry, column: int, rows: Sequence[int], dense: Bytes, origin: int = 0
) -> None:
    """tile::scatter4: the parts of a dense box to one row each of a 2-D tensor."""
    for row, part in zip(rows, np.split(dense, len(rows)), strict=True):
        write_box(memory, geometry, (column, row), part, origin)


@lru_cache(maxsize=256)
def _granules(swizzle_name: str, row_bytes: int, pitch: int, rows: int, phase: int) -> NDArray[np.intp]:
    """The granule of shared memory, from a pattern-aligned base, in which each granule of a dense box lies."""
    starts = phase + pitch * np.arange(rows, dtype=np.intp)[:, None]
    placed = SWIZZLES[swizzle_name].apply(starts + np.arange(0, row_bytes, GRANULE, dtype=np.intp))
    return np.ascontiguousarray(placed.reshape(-1) // GRANULE)


def _place(shared: Bytes, address: int, geometry: BoxGeometry, size: int) -> tuple[int, NDArray[np.intp] | None]:
    """The place of a box of `size` dense bytes: its base granule and the granules from there (None: one run of
    them).
    """
    if address % SHARED_ALIGNMENT:
        raise Diag.MISALIGNED.error(
            what=f"The shared-memory address {address:#x} of a tensor copy", align=SHARED_ALIGNMENT
        )
    swizzle, row_bytes = geometry.swizzle, geometry.row_bytes
    rows = size // row_bytes
    pitch = geometry.pitch
    if address + rows * pitch > shared.nbytes:
        raise Diag.OUT_OF_BOUNDS.error(
            what=f"The tensor copy to {address:#x} ({rows * pitch} bytes; {shared.nbytes:#x} exist)", space="shared"
        )
    if not swizzle.bits:
        return address // GRANULE, None
    phase = address % swizzle.alignment
    return (address - phase) // GRANULE, _granules(swizzle.name, row_bytes, pitch, rows, phase)


def global_runs(
    geometry: BoxGeometry, coords: Sequence[int], start: int, shift: Sequence[int] = ()
) -> tuple[NDArray[np.int64], int]:
    """The runs of global memory that a box covers, clipped to the tensor that begins at `start`: addresses, bytes
    each.
    """
    if geometry.mode != "tile":
        rows, offsets, _, width = pixel_rows(geometry, coords, shift)
        return (start + offsets, width) if width and len(rows) else (np.empty(0, np.int64), 0)
    _, offset, counts, strides = _window(geometry, coords)
    if 0 in counts:
        return np.empty(0, np.int64), 0
    addresses = np.array([_wrapped(start + offset)], np.int64)
    for count, stride in zip(counts[:-1], strides[:-1], strict=True):
        addresses = (addresses[:, None] + stride * np.arange(count, dtype=np.int64)).reshape(-1)
    return addresses, counts[-1]


def first_outside(geometry: BoxGeometry, coords: Sequence[int], origin: int, size: int) -> int | None:
    """The first byte that a box would move outside a buffer of `size` bytes, counted from where that begins; None if
    there is none, as for every box of a tensor that is wholly in its buffer.
    """
    rows, width = global_runs(geometry, coords, origin)
    beyond = np.flatnonzero((rows < 0) | (rows > size - width))
    if not len(beyond):
        return None
    first = int(rows[beyond[0]])
    return first if first < 0 else max(first, size)


def shared_runs(geometry: BoxGeometry, address: int, size: int) -> tuple[NDArray[np.int64], int]:
    """The runs of shared memory that a box of `size` dense bytes takes at an address: addresses, bytes each."""
    if not geometry.swizzle.bits or geometry.pitch == geometry.row_bytes:
        return np.array([address], np.int64), size
    phase = address % geometry.swizzle.alignment
    index = _granules(geometry.swizzle.name, geometry.row_bytes, geometry.pitch, size // geometry.row_bytes, phase)
    return np.sort(index).astype(np.int64) * GRANULE + (address - phase), GRANULE


def stored_runs(geometry: BoxGeometry, coords: Sequence[int], address: int) -> tuple[NDArray[np.int64], int]:
    """The runs of shared memory whose bytes a store of a box writes to the tensor: addresses, bytes each.

    Elements outside the tensor are dropped, so that a kernel may leave them unwritten.
    """
    inside = _window(geometry, coords)[0] if geometry.mode == "tile" and not geometry.element.padded else None
    if inside is None:
        return shared_runs(geometry, address, geometry.shared_bytes)
    first, last = (geometry.element.global_row_bytes(at) for at in (inside[-1].start, inside[-1].stop))
    unit = gcd(GRANULE, first, last)
    kept = np.zeros((*geometry.box[:-1], geometry.row_bytes // unit), np.bool_)
    kept[(*inside[:-1], slice(first // unit, last // unit))] = True
    granules, rest = np.divmod(np.flatnonzero(kept) * unit, GRANULE)
    phase = address % geometry.swizzle.alignment if geometry.swizzle.bits else 0
    rows = geometry.shared_bytes // geometry.row_bytes
    index = _granules(geometry.swizzle.name, geometry.row_bytes, geometry.pitch, rows, phase)
    return np.sort(index[granules] * GRANULE + rest).astype(np.int64) + (address - phase), unit


def place_box(shared: Bytes, address: int, geometry: BoxGeometry, dense: Bytes) -> None:
    """Write a dense box to its swizzled place in shared memory at `address`."""
    base, index = _place(shared, address, geometry, dense.nbytes)
    if index is None:
        shared[address : address + dense.nbytes] = dense
    else:
        shared.view(np.complex128)[base:][index] = dense.view(np.complex128)


def collect_box(shared: Bytes, address: int, geometry: BoxGeometry, rows: int | None = None) -> Bytes:
    """The dense box that lies swizzled in shared memory at `address`; `rows` limits it (scatter4 has four)."""
    count = prod(geometry.box[:-1]) if rows is None else rows
    size = count * geometry.row_bytes
    base, index = _place(shared, address, geometry, size)
    if index is None:
        return shared[address : address + size].copy()
    return shared.view(np.complex128)[base:].take(index).view(np.uint8)
