"""Shared memory under the names of the five pages: arrays of words and barriers, and arrays of tiles."""

from __future__ import annotations

from dataclasses import dataclass

from warploom.trace.isa.emit import At
from warploom.trace.language.barriers import Barrier, Barriers, barriers
from warploom.trace.language.values import Value
from warploom.trace.language.views import View, shared
from warploom.trace.parameters import TensorMapArgument

SharedMemBarrier = Barrier
TMATensorTile = TensorMapArgument


@dataclass(frozen=True)
class SMemArray:
    """`size` words of a type in shared memory, or an array of barriers."""

    storage: View | Barriers

    @classmethod
    def make(cls, dtype: str | type[SharedMemBarrier], size: int, *, name: str = "array") -> SMemArray:
        """Allocate an array; barriers are not yet initialised."""
        return cls(shared(dtype, size, name=name) if isinstance(dtype, str) else barriers(name, size))

    @property
    def size(self) -> int:
        return len(self.storage) if isinstance(self.storage, Barriers) else self.storage.shape[0]

    def ptr(self) -> At:
        """Return the address of the first element."""
        return self.storage[0].at if isinstance(self.storage, Barriers) else self.storage.place


def is_at(given: SMemArray | View | Barriers | Barrier, own: View | Barriers) -> bool:
    """Return whether two objects in shared memory have the same address."""
    places = []
    for each in (given, own):
        array = SMemArray(each) if isinstance(each, View | Barriers) else each
        place = array.at if isinstance(array, Barrier) else array.ptr()
        places.append((place.base.operand if isinstance(place.base, Value) else place.base, place.offset))
    return places[0] == places[1]


@dataclass(frozen=True)
class SMemTileArray2DRowMajor:
    """`count` consecutive tiles of `dim0` rows by `dim1` columns."""

    storage: View

    @classmethod
    def make(
        cls,
        dtype: str,
        dim0: int,
        dim1: int,
        count: int,
        *,
        name: str = "tiles",
        swizzle: str = "none",
        align: int = 128,
    ) -> SMemTileArray2DRowMajor:
        """Allocate an array of row-major tiles in shared memory."""
        return cls(shared(dtype, (count, dim0, dim1), name=name, swizzle=swizzle, align=align))

    @property
    def dtype(self) -> str:
        return self.storage.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.storage.shape[1:]

    def __len__(self) -> int:
        return self.storage.shape[0]

    def __getitem__(self, index: Value | int) -> View:
        tile: View = self.storage[index]
        return tile
