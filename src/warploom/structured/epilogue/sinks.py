"""Sinks of a computed subtile: through shared memory and TMA, directly to global memory, or to the author's function.

Every sink takes the same values at the same positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from warploom.hardware.tensor_maps import SHARED_ALIGNMENT
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.epilogue.staging import SubtileStore, Values, pair_of
from warploom.structured.epilogue.subtiles import Position, Subtile, WarpPart
from warploom.structured.epilogue.tile_store import Box, MaskedCopy, box_place, boxes_of, store_box, store_inside
from warploom.structured.epilogue.writer_protocols import GroupBarrier, WriterRole
from warploom.trace import isa
from warploom.trace.builder import current
from warploom.trace.isa.emit import At
from warploom.trace.language.control import otherwise, when
from warploom.trace.language.packing import unpack
from warploom.trace.language.types import PAIR_OF, TYPES
from warploom.trace.language.values import Value, literal, select
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import View, shared
from warploom.trace.parameters import TensorMapArgument


class Sink(Protocol):
    """Takes the subtiles of a tile in order."""

    def put(self, subtile: Subtile, values: Values, *auxiliary: Values) -> None: ...


@dataclass
class SubtileRing:
    """A ring of buffers in shared memory for the subtiles of one output, which continues across tiles."""

    tensor: TensorMapArgument
    subtiles: SubtileStore
    part: WarpPart
    buffers: int
    tiles: View | None = None
    """The buffers; allocated if they are not given."""
    name: str = "c_tiles"
    is_refilled: bool = False
    """True if a residual is loaded into a buffer before it is written again; the load waits for the store from it."""
    _slot: Variable | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.part.epc.num_stages % self.buffers:
            with current("A tile writer").prologue():
                self._slot = Variable("u32", 0)

    def allocate(self) -> View:
        """Return all buffers, and allocate them if necessary."""
        if self.tiles is None:
            layout = self.subtiles.layout
            align = max(SHARED_ALIGNMENT, layout.swizzle.alignment)
            with current("A tile writer").prologue():
                self.tiles = shared(
                    layout.dtype, (self.buffers, layout.rows, layout.columns), name=self.name, align=align
                )
        return self.tiles

    def tile(self, slot: Value | int) -> View:
        """Return one of the buffers."""
        buffer: View = self.allocate()[slot]
        return buffer

    def current(self, subtile: Subtile) -> View:
        """Return the buffer of a subtile."""
        return self.tile(subtile.index % self.buffers if self._slot is None else self._slot.get())

    def stage(self, tile: At, values: Values) -> None:
        """Write this thread's part of a subtile into a buffer."""
        self.subtiles.store(self.subtiles.place_to_store(tile, self.part.staged_row, literal(0, "u32")), values)

    def boxes(self, tensor: TensorMapArgument, column: int) -> list[Box]:
        """Return the boxes of a tensor map that cover a subtile, which starts at a column."""
        *_, rows, columns = tensor.geometry.box
        return boxes_of(self.subtiles.layout, (rows, columns), self.part.epc, column)

    def send(self, subtile: Subtile, tile: At) -> None:
        """Issue the TMA stores of a subtile that all threads have written into a buffer."""
        for box in self.boxes(self.tensor, subtile.column):
            store_box(tile + box.offset, box_place(self.tensor, subtile.spot, box))

    def advance(self) -> None:
        """Advance to the next buffer."""
        if self._slot is not None:
            upcoming = self._slot + 1
            self._slot.set(select(upcoming == self.buffers, literal(0, "u32"), upcoming))


@dataclass
class TmaStore:
    """Stages subtiles in rings of buffers, from which TMA stores them asynchronously, also across tiles.

    A subtile with all its outputs costs one barrier. Before it, the storing thread waits until TMA has read the *next*
    buffer of each ring, so that every thread may write that buffer after the barrier.
    """

    ring: SubtileRing
    role: WriterRole
    barrier: GroupBarrier
    auxiliary: Sequence[SubtileRing] = ()
    """The rings of auxiliary outputs."""
    targets: Sequence[View] = ()
    """C and the auxiliary outputs as arrays, for tiles that end inside a box: their rows are copied by threads."""
    _drained: list[object] = field(init=False, default_factory=list)

    @property
    def rings(self) -> tuple[SubtileRing, ...]:
        return (self.ring, *self.auxiliary)

    @property
    def _fewest(self) -> int:
        """Buffers of the shortest ring without a residual: a bulk group has the stores of a subtile to all rings."""
        return min((ring.buffers for ring in self.rings if not ring.is_refilled), default=0)

    def bounded(self, *targets: View) -> TmaStore:
        """Return a sink with the same buffers, for tiles that may end at a row that the tensor map does not know."""
        for ring in self.rings:
            ring.allocate()
        same = copy(self)
        same.targets = targets
        return same

    def put(self, subtile: Subtile, values: Values, *auxiliary: Values) -> None:
        tiles = self.open(subtile)
        for ring, tile, each in zip(self.rings, tiles, (values, *auxiliary), strict=True):
            ring.stage(tile, each)
        self.close(subtile, tiles)

    def open(self, subtile: Subtile) -> list[At]:
        """Return the buffers of a subtile, after they may be written."""
        self._drain_at_end()
        if self._fewest == 1:
            with when(self.role.first_thread):
                isa.cp.async_bulk_wait_group(0, read=True)
            self.barrier.sync()
        return [ring.current(subtile).place for ring in self.rings]

    def close(self, subtile: Subtile, tiles: Sequence[At]) -> None:
        """Store the buffers of a subtile with TMA, after all threads have written them."""
        isa.fence.proxy_async(
            space="shared::cta"
        )  # each writer, before the barrier: orders its stores before TMA's reads
        if self._fewest > 1:
            # All but the last `_fewest - 2` groups have been read, so the next buffer is free after the barrier.
            with when(self.role.first_thread):
                isa.cp.async_bulk_wait_group(self._fewest - 2, read=True)
        self.barrier.sync()
        self._send(subtile, tiles)
        for ring in self.rings:
            ring.advance()

    def _send(self, subtile: Subtile, tiles: Sequence[At]) -> None:
        with when(self._is_whole(subtile)), when(self.role.first_thread):
            for ring, tile in zip(self.rings, tiles, strict=True):
                ring.send(subtile, tile)
        if self.targets:
            with otherwise():
                for ring, tile, target in zip(self.rings, tiles, self.targets, strict=True):
                    copied = MaskedCopy(ring.subtiles.layout, ring.part.epc, target, self.role.threads)
                    copied.run(tile, self.role.thread, subtile)
        with when(self.role.first_thread):
            isa.cp.async_bulk_commit_group()  # empty if threads copied: buffers are counted by groups

    def _is_whole(self, subtile: Subtile) -> Value:
        """Return whether the subtile is inside the bounds that the tensor map does not know."""
        epc, spot = self.ring.part.epc, subtile.spot
        if not self.targets:
            return literal(True, "pred")
        if not spot.transposed:
            return spot.row + epc.BM <= spot.rows_end
        last = (epc.num_col_warp_groups - 1) * epc.accumulator_columns + subtile.column + epc.stageN
        return spot.column + last <= spot.columns_end

    def _drain_at_end(self) -> None:
        """Wait at the end of the role: the CTA must not exit before the last store has read its shared memory."""
        role = next(region for region in current().region.chain() if region.kind == "role")
        if role not in self._drained:
            self._drained.append(role)
            role.at_close.append(partial(self.drain, self.role.elected))

    def drain(self, elected: Value | None = None) -> None:
        """Wait until TMA has read every buffer; `elected` is the role's elected lane at the end of the role."""
        with when((self.role.warp == 0) & (self.role.elected if elected is None else elected)):
            isa.cp.async_bulk_wait_group(0, read=True)


@dataclass(frozen=True)
class DirectStore:
    """Stores elements directly from registers: for arrays with strides or lengths that TMA does not support."""

    target: View

    def put(self, subtile: Subtile, values: Values, *auxiliary: Values) -> None:
        assert not auxiliary, "each output has its own store"
        left = dict(values)
        while left:
            (row, column), value = next(iter(left.items()))
            del left[row, column]
            right = left.pop((row, column + 1), None) if self._has_pairs(subtile) and column % 2 == 0 else None
            at = subtile.at(row, column)
            if right is None:
                self.put_at(at, value)
            else:
                self._put_two(at, subtile.at(row, column + 1), pair_of(value, right, self.target.dtype))

    def _has_pairs(self, subtile: Subtile) -> bool:
        """Return whether two adjacent elements, the first at an even column, are one aligned word."""
        target, word = self.target, 2 * TYPES[self.target.dtype].bytes
        dense = isinstance(target.strides[-1], int) and target.strides[-1] == 1
        return dense and not subtile.spot.transposed and target.dtype in PAIR_OF and target.alignment % word == 0

    def put_at(self, at: Position, value: Value) -> None:
        """Store one element, if it is inside C."""
        store_inside(self.target, self._index(at), value.to(self.target.dtype), at.inside)

    def _put_two(self, first: Position, second: Position, pair: Value) -> None:
        """Store two adjacent elements with one instruction; if C ends between them, only the first."""
        index = self._index(first)
        isa.st(self.target.at(*index), pair, space=self.target.space, type="b32", guard=second.inside)
        store_inside(self.target, index, unpack(pair)[0], first.inside & ~second.inside)

    def _index(self, at: Position) -> tuple[Value, ...]:
        return (*((at.batch,) if len(self.target.shape) > 2 else ()), at.row, at.column)


@dataclass(frozen=True)
class AuthorStore:
    """Passes each element of C to the author's function, which owns the store."""

    epilogue: Epilogue
    dtype: str

    def put(self, subtile: Subtile, values: Values, *auxiliary: Values) -> None:
        assert not auxiliary, "the author's function stores all"
        for place, value in values.items():
            at = subtile.at(*place)
            with when(at.inside):
                self.epilogue.store_at(value.to(self.dtype), at)
