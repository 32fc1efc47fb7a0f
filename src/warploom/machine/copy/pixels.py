"""The pixels of an im2col copy: which elements of its tensor they are, and which lie outside.

A copy takes a fixed number of pixels from its first one on. They run through the pixel box along W, then H, then D,
then to the next image: from the lower corner of an axis to its upper corner, both included, one element stride apart.
The offsets of the instruction (a tap of the filter) shift every pixel, not the box (PTX ISA 5.5.4 and 5.5.5). The
wide modes have a pixel box of one row: D and H of the first pixel stay. Their halo is more pixels of the same walk, in
the rows after the others. That of im2col::w follows the last pixel. In im2col::w::128 each 32 pixels have one: the
first pixels of the four halos come first, then the second ones. The ISA shows the place of these in a figure only; it
is that of another simulator (docs/fidelity.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from warploom.diagnostics import Diag
from warploom.hardware.tensor_maps import (
    HALO_LIMIT,
    HALO_PIXELS,
    OFFSET_LIMIT,
    WIDE_MODES,
    WIDE_OFFSET_LIMIT,
    WIDE_PIXELS,
)
from warploom.host.tensor_map import BoxGeometry

Array = NDArray[np.int64]


def halo_and_shifts(
    geometry: BoxGeometry, coords: Sequence[int], offsets: Sequence[int]
) -> tuple[int, tuple[int, ...]]:
    """The pixels of a halo, and the shift along W, H and D, for the last operand of a load, after a check of it."""
    wide = geometry.mode in WIDE_MODES
    count = 2 if wide else geometry.rank - 2
    if len(offsets) != count:
        what = f".{geometry.mode} of a tensor of rank {geometry.rank} has {count} offsets, not {len(offsets)}"
        raise Diag.BAD_COORDINATES.error(coords=tuple(coords), what=what)
    halo = offsets[0] if wide else 0
    if wide and not 0 <= halo < HALO_LIMIT[geometry.mode]:
        what = f"the halo {halo} of .{geometry.mode} is 0 to {HALO_LIMIT[geometry.mode] - 1} pixels"
        raise Diag.BAD_COORDINATES.error(coords=tuple(coords), what=what)
    shift, limit = (offsets[1:], WIDE_OFFSET_LIMIT) if wide else (offsets, OFFSET_LIMIT[geometry.rank])
    if not all(0 <= value < limit for value in shift):
        what = f"the offsets {tuple(shift)} of .{geometry.mode} at rank {geometry.rank} are 0 to {limit - 1}"
        raise Diag.BAD_COORDINATES.error(coords=tuple(coords), what=what)
    return halo, tuple(shift)


def _outside(geometry: BoxGeometry, axis: int, first: int, low: int, high: int) -> str:
    """The problem with a first pixel outside its box; the wide modes allow one to the left of it."""
    if first <= high and (first >= low or geometry.mode in WIDE_MODES):
        return ""
    return f"the first pixel is at {first} of axis {axis}, outside the pixel box ({low} to {high})"


def _positions(geometry: BoxGeometry) -> Array:
    """The number of each pixel of a copy in the walk through the pixel box."""
    if geometry.mode != "im2col::w::128" or not geometry.halo:
        return np.arange(geometry.box[0], dtype=np.int64)
    pixels = np.arange(WIDE_PIXELS, dtype=np.int64)
    halos = np.arange(geometry.halo, dtype=np.int64)[:, None] + pixels[::HALO_PIXELS] + HALO_PIXELS
    return np.concatenate([pixels, halos.reshape(-1)])


def pixel_rows(
    geometry: BoxGeometry, coords: Sequence[int], shift: Sequence[int]
) -> tuple[NDArray[np.intp], Array, int, int]:
    """The rows of a box that lie inside the tensor, with their byte offsets in global memory; and the bytes of each
    that do: the first and the number. Bytes count as in global memory.
    """
    rank, element = geometry.rank, geometry.element
    left = _positions(geometry)
    inside = np.ones(len(left), bool)
    offset = np.zeros(len(left), np.int64)
    corners = len(geometry.lower_corner)
    for inner in range(1, rank - 1):  # W, H, D
        axis, first = rank - 1 - inner, coords[inner]
        if inner <= corners:
            low = geometry.lower_corner[-inner]
            high = geometry.shape[axis] - 1 + geometry.upper_corner[-inner]
            what = _outside(geometry, axis, first, low, high)
            if what:
                raise Diag.BAD_COORDINATES.error(coords=tuple(coords), what=what)
            step = geometry.element_strides[axis]
            begun = (high - first) // step + 1  # pixels up to the end of the row in which the copy begins
            whole = (high - low) // step + 1
            beyond = left - begun
            place = np.where(beyond < 0, first + left * step, low + beyond % whole * step)
            left = np.where(beyond < 0, 0, 1 + beyond // whole)
        else:
            place = np.full(len(left), first)
        place = place + (shift[inner - 1] if inner <= len(shift) else 0)
        inside &= (place >= 0) & (place < geometry.shape[axis])
        offset += place * geometry.strides[axis]
    image = coords[rank - 1] + left
    inside &= (image >= 0) & (image < geometry.shape[0])
    rows = np.flatnonzero(inside)
    channel, extent = coords[0], geometry.box[1]
    low = min(max(-channel, 0), extent)
    high = max(min(geometry.shape[-1] - channel, extent), low)
    start = element.global_row_bytes(channel + low)
    offsets = (offset + image * geometry.strides[0])[rows] + start
    return rows, offsets, element.global_row_bytes(low), element.global_row_bytes(high - low)
