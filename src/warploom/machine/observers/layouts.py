"""Layouts: the form in which a tensor copy or a matrix descriptor expects a tile to be in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from warploom.hardware.matrix_descriptors import SharedDescriptor
from warploom.hardware.swizzles import GRANULE
from warploom.host.tensor_map import BoxGeometry

PADDED_BYTES = {"e2m1": 8, "e2m3": 12, "e3m2": 12}
"""By name of an MMA's element, the bytes of 16 that it takes where sixteen elements are followed by padding."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a tile in shared memory, as the tensor map of a copy or the descriptor of an operand says it."""

    swizzle: str
    element: str = ""
    """The type in a tensor map, or that of an MMA's operand; empty where bytes are moved whatever they mean."""
    used: int = GRANULE
    """Bytes of every 16 that hold elements; the others are padding."""
    base_offset: int = 0
    """The line of 128 bytes in which the descriptor's pattern begins."""
    contiguous: int = 0
    """Bytes of a box that follow each other in global memory as they do in shared memory; 0 for a descriptor."""


@lru_cache(maxsize=1 << 8)
def layout_of_map(geometry: BoxGeometry) -> Layout:
    """The layout in which a tensor copy with a map writes or reads shared memory."""
    element = geometry.element
    used = element.global_bytes if element.padded else GRANULE
    return Layout(geometry.swizzle.name, element.name, used, contiguous=_contiguous(geometry))


def _contiguous(geometry: BoxGeometry) -> int:
    """The bytes at the start of a box that are next to each other in global memory, too."""
    run = geometry.element.global_row_bytes(geometry.box[-1])
    if geometry.mode != "tile" or geometry.element_strides[-1] != 1:
        return run
    axes = range(len(geometry.box) - 2, -1, -1)
    for axis in axes:
        if geometry.box[axis] > 1 and geometry.strides[axis] * geometry.element_strides[axis] != run:
            break
        run *= geometry.box[axis]
    return run


@lru_cache(maxsize=1 << 10)
def layout_of_operand(descriptor: SharedDescriptor, element: str = "") -> Layout:
    """The layout in which an instruction reads a matrix through its descriptor."""
    used = PADDED_BYTES.get(element, GRANULE)
    return Layout(descriptor.swizzle.name, element, used, descriptor.base_offset)
