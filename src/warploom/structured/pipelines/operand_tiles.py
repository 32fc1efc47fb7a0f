"""An operand of the tensor core on its way: a tile in global memory, in shared memory, and as a descriptor.

Where an operand is sliced among CTAs that share it, each copies one slice to all of them. A slice is cut across the
dimension that is not contiguous, so that any swizzle keeps its pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from warploom.hardware.swizzles import GRANULE, SWIZZLES
from warploom.hardware.tensor_maps import SHARED_ALIGNMENT
from warploom.structured.cluster import Cluster, Mask
from warploom.structured.pipelines.start_up import start_up
from warploom.trace.isa.emit import At, emit
from warploom.trace.language.control import otherwise, when
from warploom.trace.language.descriptors import matrix_descriptor
from warploom.trace.language.values import Value, valued
from warploom.trace.language.views import View, shared
from warploom.trace.parameters import TensorMapArgument

_UNUSED_LEADING = 16
_UNIT = 16
_CORE_ROWS = 8
_BITS = 8


@dataclass(frozen=True)
class OperandLayout:
    """A tile of `rows` by `depth` (along K) elements; `major` says which of the two is contiguous: "k" or "mn"."""

    rows: int
    k_extent: int
    element_bits: int
    major: str = "k"
    swizzle: str = "128B"
    slices: int = 1

    @property
    def halved(self) -> OperandLayout:
        """One half of the rows."""
        return replace(self, rows=self.rows // 2)

    @property
    def span(self) -> int:
        """Elements that lie side by side in one row of the pattern; without a swizzle it is a granule wide."""
        return self._span_bytes * _BITS // self.element_bits

    @property
    def _span_bytes(self) -> int:
        return SWIZZLES[self.swizzle].span or GRANULE

    @property
    def tile_bytes(self) -> int:
        return self.rows * self.k_extent * self.element_bits // _BITS

    @property
    def box(self) -> tuple[int, int]:
        """The box of one copy, in the order of the array's axes."""
        if self.major == "k":
            return (self.rows // self.slices, self.span)
        return (self.k_extent // self.slices, self.span)

    @property
    def columns(self) -> int:
        """How many boxes lie side by side in a tile."""
        return (self.k_extent if self.major == "k" else self.rows) // self.span

    @property
    def column_bytes(self) -> int:
        return self.tile_bytes // self.columns

    @property
    def slice_bytes(self) -> int:
        """From one slice to the next inside a column of boxes."""
        return self.column_bytes // self.slices

    @property
    def leading(self) -> int:
        """A descriptor's leading offset: from one span to the next, along M or N; along K nothing reads it.

        Without a swizzle it is the step along K, and the stride the step along M or N.
        """
        if not SWIZZLES[self.swizzle].bits:
            return self.column_bytes if self.major == "k" else self._pattern_bytes
        return _UNUSED_LEADING if self.major == "k" else self.column_bytes

    @property
    def stride(self) -> int:
        """A descriptor's stride: from one repeat of the pattern to the next."""
        if not SWIZZLES[self.swizzle].bits and self.major == "mn":
            return self.column_bytes
        return self._pattern_bytes

    @property
    def _pattern_bytes(self) -> int:
        """From one repeat of the pattern to the next; without a swizzle it is eight granules."""
        swizzle = SWIZZLES[self.swizzle]
        return swizzle.period if swizzle.bits else _CORE_ROWS * GRANULE

    def down(self, rows: int) -> int:
        """What a descriptor grows by to begin so many rows further down."""
        if self.major == "k":
            return rows * SWIZZLES[self.swizzle].span // _UNIT
        return rows // self.span * self.column_bytes // _UNIT

    def step(self, k: int) -> int:
        """What a descriptor grows by to reach element `k` of the depth."""
        if self.major == "mn":
            return k * self._span_bytes // _UNIT
        column, rest = divmod(k, self.span)
        return (column * self.column_bytes + rest * self.element_bits // _BITS) // _UNIT


class OperandTiles:
    """All tiles of one operand in shared memory, and how they are filled."""

    local = False

    def __init__(
        self,
        name: str,
        source: TensorMapArgument,
        layout: OperandLayout,
        count: int,
        row: Callable[[Any], Value],
        *,
        share: Value | int = 0,
        peers: Mask | None = None,
    ) -> None:
        """`row` is the first row of the operand for a tile of work; `share` which slice this CTA copies to `peers`."""
        self.name, self.source, self.layout, self.row = name, source, layout, row
        self.share, self.peers = (share, peers) if layout.slices > 1 else (0, None)
        align = max(SWIZZLES[layout.swizzle].alignment, SHARED_ALIGNMENT)
        self.storage: View = shared("u8", (count, layout.tile_bytes), name=name, align=align)

    @property
    def bytes(self) -> int:
        """Bytes that fill one tile."""
        return self.layout.tile_bytes

    def descriptor(self, index: Value) -> Value:
        """The descriptor of a tile's first element."""
        layout = self.layout
        place = self.storage[index].place
        return matrix_descriptor(place, leading=layout.leading, stride=layout.stride, swizzle=layout.swizzle)

    def load(self, index: Value, tile: Any, k: Value, barrier: At, cluster: Cluster) -> None:
        """Copy this CTA's slice of a tile, K tile `k`; its bytes are counted at a barrier."""
        self._copy(self.source, self.layout, self.storage[index], tile, k, barrier, cluster)

    def _copy(
        self,
        source: TensorMapArgument,
        layout: OperandLayout,
        storage: View,
        tile: Any,
        k: Value,
        barrier: At,
        cluster: Cluster,
    ) -> None:
        row, k_offset = valued(self.row(tile), "s32"), k * layout.k_extent
        share = valued(self.share, "u32")
        step = (layout.rows if layout.major == "k" else layout.k_extent) // layout.slices
        for column in range(layout.columns):
            along = column * layout.span
            if layout.major == "k":
                at = (row + share.to("s32") * step, k_offset + along)
            else:
                at = (k_offset + share.to("s32") * step, row + along)
            batch = (tile.batch,) if len(source.geometry.box) > len(at) else ()
            place = storage.window((share * layout.slice_bytes,), (1,)).place + column * layout.column_bytes
            copy_box(place, source.at(*batch, *at), barrier, cluster, self.peers)


Source = TensorMapArgument | tuple[TensorMapArgument, TensorMapArgument]


class PairedTiles(OperandTiles):
    """An operand of pairs: the first half of a tile's rows is one matrix's, the second half another's.

    Row r of both halves is one of a pair: accumulators that belong together are in one thread. Where two CTAs multiply
    together, each has one half.
    """

    def __init__(self, name: str, sources: tuple[TensorMapArgument, TensorMapArgument], *rest: Any, **how: Any) -> None:
        super().__init__(name, sources[0], *rest, **how)
        self._sources = sources
        start_up().maps.append(sources[1])

    def load(self, index: Value, tile: Any, k: Value, barrier: At, cluster: Cluster) -> None:
        if cluster.cta_group == 2:
            with when(cluster.leader):
                self._copy(self._sources[0], self.layout, self.storage[index], tile, k, barrier, cluster)
            with otherwise():
                self._copy(self._sources[1], self.layout, self.storage[index], tile, k, barrier, cluster)
            return
        half = self.layout.halved
        for number, source in enumerate(self._sources):
            storage = self.storage[index].window((number * half.tile_bytes,), (half.tile_bytes,))
            self._copy(source, half, storage, tile, k, barrier, cluster)


def tiles_of(name: str, source: Source, *rest: Any, **how: Any) -> OperandTiles:
    """The tiles of an operand, or of a pair of them."""
    if isinstance(source, tuple):
        return PairedTiles(name, source, *rest, **how)
    return OperandTiles(name, source, *rest, **how)


def copy_box(to: At, source: At, barrier: At, cluster: Cluster, peers: Mask | None = None) -> None:
    """One box from global to shared memory; with pairs its bytes count at the leader's barrier."""
    assert source.coordinates is not None
    pair = ".cta_group::2" if cluster.cta_group == 2 else ""
    cast = ".multicast::cluster" if peers is not None else ""
    rank = len(source.coordinates)
    opcode = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes{cast}{pair}"
    emit(opcode, to, source, barrier, *([cluster.mask(peers)] if peers is not None else []))
