"""Operands of the tensor core: tiles in global memory, in shared memory, and as matrix descriptors.

CTAs that share an operand slice its tiles: each CTA loads one slice and multicasts it to all of them. Slices are cut
across the dimension that is not contiguous, so that the swizzle pattern is the same as without slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warploom.hardware.swizzles import GRANULE, SWIZZLES
from warploom.hardware.tensor_maps import SHARED_ALIGNMENT
from warploom.structured.cluster import Cluster, Mask
from warploom.structured.pipelines.start_up import start_up
from warploom.trace import isa
from warploom.trace.isa.emit import At
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
    """A tile of `rows` × `k_extent` elements; `major` is the contiguous dimension, "k" or "mn"."""

    rows: int
    k_extent: int
    element_bits: int
    major: str = "k"
    swizzle: str = "128B"
    slices: int = 1

    @property
    def halved(self) -> OperandLayout:
        """The layout of half of the rows."""
        return replace(self, rows=self.rows // 2)

    @property
    def span(self) -> int:
        """Contiguous elements in one row of the swizzle pattern; without a swizzle, one 16-byte granule."""
        return self._span_bytes * _BITS // self.element_bits

    @property
    def _span_bytes(self) -> int:
        return SWIZZLES[self.swizzle].span or GRANULE

    @property
    def tile_bytes(self) -> int:
        return self.rows * self.k_extent * self.element_bits // _BITS

    @property
    def box(self) -> tuple[int, int]:
        """The TMA box of one copy, in the order of the array's axes."""
        if self.major == "k":
            return (self.rows // self.slices, self.span)
        return (self.k_extent // self.slices, self.span)

    @property
    def columns(self) -> int:
        """The number of boxes in a row of a tile."""
        return (self.k_extent if self.major == "k" else self.rows) // self.span

    @property
    def column_bytes(self) -> int:
        return self.tile_bytes // self.columns

    @property
    def slice_bytes(self) -> int:
        """Bytes from one slice to the next inside a column of boxes."""
        return self.column_bytes // self.slices

    @property
    def leading(self) -> int:
        """The descriptor's leading-dimension byte offset: from one span to the next along M or N; unused if K-major.

        Without a swizzle it is the step along K, and `stride` is the step along M or N.
        """
        if not SWIZZLES[self.swizzle].bits:
            return self.column_bytes if self.major == "k" else self._pattern_bytes
        return _UNUSED_LEADING if self.major == "k" else self.column_bytes

    @property
    def stride(self) -> int:
        """The descriptor's stride-dimension byte offset: from one repeat of the swizzle pattern to the next."""
        if not SWIZZLES[self.swizzle].bits and self.major == "mn":
            return self.column_bytes
        return self._pattern_bytes

    @property
    def _pattern_bytes(self) -> int:
        """Bytes of one repeat of the swizzle pattern; without a swizzle, eight granules."""
        swizzle = SWIZZLES[self.swizzle]
        return swizzle.period if swizzle.bits else _CORE_ROWS * GRANULE

    def down(self, rows: int) -> int:
        """Return the increment of a descriptor that moves it down by `rows` rows."""
        if self.major == "k":
            return rows * SWIZZLES[self.swizzle].span // _UNIT
        return rows // self.span * self.column_bytes // _UNIT

    def step(self, k: int) -> int:
        """Return the increment of a descriptor that moves it to element `k` along K."""
        if self.major == "mn":
            return k * self._span_bytes // _UNIT
        column, rest = divmod(k, self.span)
        return (column * self.column_bytes + rest * self.element_bits // _BITS) // _UNIT


class OperandTiles:
    """All tiles of one operand in shared memory, and the copies that fill them."""

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
        """`row` maps a tile of work to its first row; `share` is the slice that this CTA multicasts to `peers`."""
        self.name, self.source, self.layout, self.row = name, source, layout, row
        self.share, self.peers = (share, peers) if layout.slices > 1 else (0, None)
        align = max(SWIZZLES[layout.swizzle].alignment, SHARED_ALIGNMENT)
        self.storage: View = shared("u8", (count, layout.tile_bytes), name=name, align=align)

    @property
    def bytes(self) -> int:
        """Bytes that fill one tile; padding in shared memory does not count."""
        moved = self.source.geometry
        return self.layout.tile_bytes * moved.box_bytes // moved.shared_bytes

    def descriptor(self, index: Value) -> Value:
        """Return the matrix descriptor of a tile."""
        layout = self.layout
        place = self.storage[index].place
        return matrix_descriptor(place, leading=layout.leading, stride=layout.stride, swizzle=layout.swizzle)

    def load(self, index: Value, tile: Any, k: Value, barrier: At, cluster: Cluster) -> None:
        """Issue the copies of this CTA's slice of K tile `k`; their bytes complete on `barrier`."""
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
    """The weights of a gated GEMM: the first half of a tile's rows is of the gate matrix, the second half of up.

    Row r of both halves belongs to the same output column, so that one thread holds both accumulators. If `of_cta`, the
    leader of a CTA pair holds the tile of gate and its peer that of up.
    """

    def __init__(
        self,
        name: str,
        sources: tuple[TensorMapArgument, TensorMapArgument],
        *rest: Any,
        of_cta: bool = False,
        **how: Any,
    ) -> None:
        super().__init__(name, sources[0], *rest, **how)
        self._sources, self._of_cta = sources, of_cta
        start_up().maps.append(sources[1])

    def load(self, index: Value, tile: Any, k: Value, barrier: At, cluster: Cluster) -> None:
        if self._of_cta:
            with when(cluster.leader):
                self._copy(self._sources[0], self.layout, self.storage[index], tile, k, barrier, cluster)
            with otherwise():
                self._copy(self._sources[1], self.layout, self.storage[index], tile, k, barrier, cluster)
            return
        half = self.layout.halved
        for number, source in enumerate(self._sources):
            storage = self.storage[index].window((number * half.tile_bytes,), (half.tile_bytes,))
            self._copy(source, half, storage, tile, k, barrier, cluster)


def tiles_of(name: str, source: Source, *rest: Any, of_cta: bool = False, **how: Any) -> OperandTiles:
    """Create the tiles of an operand, or of a (gate, up) pair of operands."""
    if isinstance(source, tuple):
        return PairedTiles(name, source, *rest, of_cta=of_cta, **how)
    return OperandTiles(name, source, *rest, **how)


def copy_box(
    to: At, source: At, barrier: At, cluster: Cluster, peers: Mask | None = None, offsets: Sequence[Value] = ()
) -> None:
    """Copy one box from global to shared memory; with CTA pairs its bytes complete on the leader's barrier.

    `offsets` shift the pixels of an im2col map along W and H.
    """
    mask = cluster.mask(peers) if peers is not None else None
    pair = 2 if cluster.cta_group == 2 else None
    how: dict[str, Any] = {"offsets": list(offsets), "mode": "im2col"} if offsets else {}
    isa.cp.async_bulk_tensor_load(to, source, barrier, mask=mask, cta_group=pair, **how)
