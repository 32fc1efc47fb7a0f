"""The arrays in a kernel's shared memory, and their total size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from warploom.hardware.swizzles import SWIZZLES
from warploom.hardware.synchronisation import BARRIER_BYTES
from warploom.hardware.tensor_maps import SHARED_ALIGNMENT


def ceil_div(value: int, unit: int) -> int:
    return -(-value // unit)


def align_up(value: int, unit: int) -> int:
    return ceil_div(value, unit) * unit


@dataclass(frozen=True, slots=True)
class SharedArray:
    """`count` elements of `element_bytes`, each aligned."""

    name: str
    count: int
    element_bytes: int
    alignment: int

    @property
    def bytes(self) -> int:
        return self.count * align_up(self.element_bytes, self.alignment)


def tiles(name: str, count: int, tile_bytes: int, swizzle: str = "none") -> SharedArray:
    """Return an array of tiles that TMA copies, each aligned to its swizzle pattern."""
    return SharedArray(name, count, tile_bytes, max(SWIZZLES[swizzle].alignment, SHARED_ALIGNMENT))


def barriers(name: str, count: int) -> SharedArray:
    return SharedArray(name, count, BARRIER_BYTES, BARRIER_BYTES)


def total_bytes(arrays: Iterable[SharedArray]) -> int:
    """Return the bytes of the arrays placed one after another, in their order."""
    end = 0
    for array in arrays:
        end = align_up(end, array.alignment) + array.bytes if array.count else end
    return end
