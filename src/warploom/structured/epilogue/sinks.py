"""Where a computed strip goes: through shared memory and the copy engine, straight to memory, or to the author.

Every sink takes the same values at the same positions; only the way differs.
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
from warploom.trace.builder import current
from warploom.trace.isa.emit import At, emit
from warploom.trace.language.control import otherwise, when
from warploom.trace.language.packing import unpack
from warploom.trace.language.types import PAIR_OF, TYPES
from warploom.trace.language.values import Value, literal, select
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import View, shared
from warploom.trace.parameters import TensorMapArgument


class Sink(Protocol):
    """Takes the strips of a tile in order."""

    def put(self, subtile: Subtile, values: Values, *auxiliary: Values) -> None: ...


@dataclass
class SubtileRing:
    """Buffers in shared memory for the strips of one output, taken in turn, across tiles."""

    tensor: TensorMapArgument
    subtiles: SubtileStore
    part: WarpPart
    buffers: int
    tiles: View | None = None
    """The buffers, new ones unless they are given."""
    name: str = "c_tiles"
    is_refilled: bool = False
    """Whether somebody fills a buffer before it is written again, and waits for the store from it."""
    _slot: Variable | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.part.epc.num_stages % self.buffers:
            with current("A tile writer").prologue():
                self._slot = Variable("u32", 0)

    def allocate(self) -> View:
        """All buffers."""
        if self.tiles is None:
            layout = self.subtiles.layout
            align = max(SHARED_ALIGNMENT, layout.swizzle.alignment)
            with current("A tile writer").prologue():
                self.tiles = shared(
                    layout.dtype, (self.buffers, layout.rows, layout.columns), name=self.name, align=align
                )
        return self.tiles

    def tile(self, slot: Value | int) -> View:
        """One of the buffers."""
        buffer: View = self.allocate()[slot]
        return buffer

    def current(self, subtile: Subtile) -> View:
        """The buffer of a strip."""
        return self.tile(subtile.index % self.buffers if self._slot is None else self._slot.get())

    def stage(self, tile: At, values: Values) -> None:
        """Write this thread's part of a strip into a buffer."""
        self.subtiles.store(self.subtiles.place_to_store(tile, self.part.staged_row, literal(0, "u32")), values)

    def boxes(self, tensor: TensorMapArgument, column: int) -> list[Box]:
        """The boxes of a map that fill a strip, which starts at a column."""
        *_, rows, columns = tensor.geometry.box
        return boxes_of(self.subtiles.layout, (rows, columns), self.part.epc, column)

    def send(self, subtile: Subtile, tile: At) -> None:
        """Let the copy engine store a strip that all threads have written into a buffer."""
        for box in self.boxes(self.tensor, subtile.column):
            store_box(tile + box.offset, box_place(self.tensor, subtile.spot, box))

    def advance(self) -> None:
        """Go on to the next buffer."""
        if self._slot is not None:
            upcoming = self._slot + 1
            self._slot.set(select(upcoming == self.buffers, literal(0, "u32"), upcoming))


@dataclass
class TmaStore:
    """Stages strips in rings of buffers that the copy engine empties, across tiles, behind the epilogue's back.

    A strip costs one barrier, with all its outputs: before it the storing thread waits until the *next* buffer of each
    has been read, so that everybody who passes may write those.
    """

    ring: SubtileRing
    role: WriterRole
    barrier: GroupBarrier
    auxiliary: Sequence[SubtileRing] = ()
    """The rings of further outputs."""
    targets: Sequence[View] = ()
    """C and the further outputs, where rows that belong to somebody else follow the tile's: there threads copy."""
    _drained: list[object] = field(init=False, default_factory=list)

    @property
    def rings(self) -> tuple[SubtileRing, ...]:
        return (self.ring, *self.auxiliary)

    @property
    def _fewest(self) -> int:
        """Buffers of the shortest ring that nobody refills: a group of stores is one strip, of all rings."""
        return min((ring.buffers for ring in self.rings if not ring.is_refilled), default=0)

    def bounded(self, *targets: View) -> TmaStore:
        """The same rings of buffers, for tiles that a bound may cut which the copy engine does not know of."""
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
        """The buffers of a strip, free to be written."""
        self._drain_at_end()
        if self._fewest == 1:
            with when(self.role.first_thread):
                emit("cp.async.bulk.wait_group.read", 0)
            self.barrier.sync()
        return [ring.current(subtile).place for ring in self.rings]

    def close(self, subtile: Subtile, tiles: Sequence[At]) -> None:
        """All threads have written: hand the buffers to the copy engine."""
        emit("fence.proxy.async.shared::cta")
        if self._fewest > 1:
            with when(self.role.first_thread):
                emit("cp.async.bulk.wait_group.read", self._fewest - 2)
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
            emit("cp.async.bulk.commit_group")  # empty where threads copied: buffers are counted by groups

    def _is_whole(self, subtile: Subtile) -> Value:
        """Whether no bound of ours cuts the strip."""
        epc, spot = self.ring.part.epc, subtile.spot
        if not self.targets:
            return literal(True, "pred")
        if not spot.transposed:
            return spot.row + epc.BM <= spot.rows_end
        last = (epc.num_col_warp_groups - 1) * epc.accumulator_columns + subtile.column + epc.stageN
        return spot.column + last <= spot.columns_end

    def _drain_at_end(self) -> None:
        """Shared memory must live until the last store has read it."""
        role = next(region for region in current().region.chain() if region.kind == "role")
        if role not in self._drained:
            self._drained.append(role)
            role.at_close.append(partial(self.drain, self.role.elected))

    def drain(self, elected: Value | None = None) -> None:
        """Wait until every buffer has been read; `elected` is the role's lane, where the role is about to end."""
        with when((self.role.warp == 0) & (self.role.elected if elected is None else elected)):
            emit("cp.async.bulk.wait_group.read", 0)


@dataclass(frozen=True)
class DirectStore:
    """Stores elements from registers: for rows that the copy engine cannot reach, of any stride and length."""

    target: View

    def put(self, subtile: Subtile, values: Values, *auxiliary: Values) -> None:
        assert not auxiliary, "each output has a store of its own"
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
        """Whether neighbours in a row, of which the first has an even column, are one aligned word."""
        target, word = self.target, 2 * TYPES[self.target.dtype].bytes
        dense = isinstance(target.strides[-1], int) and target.strides[-1] == 1
        return dense and not subtile.spot.transposed and target.dtype in PAIR_OF and target.alignment % word == 0

    def put_at(self, at: Position, value: Value) -> None:
        """Store one element, if C has it."""
        store_inside(self.target, self._index(at), value.to(self.target.dtype), at.inside)

    def _put_two(self, first: Position, second: Position, pair: Value) -> None:
        """Store two neighbours at once; where C ends between them, the first."""
        index = self._index(first)
        emit(f"st.{self.target.space}.b32", self.target.at(*index), pair, guard=second.inside)
        store_inside(self.target, index, unpack(pair)[0], first.inside & ~second.inside)

    def _index(self, at: Position) -> tuple[Value, ...]:
        return (*((at.batch,) if len(self.target.shape) > 2 else ()), at.row, at.column)


@dataclass(frozen=True)
class AuthorStore:
    """Hands each element of C to the author's function, which owns the store."""

    epilogue: Epilogue
    dtype: str

    def put(self, subtile: Subtile, values: Values, *auxiliary: Values) -> None:
        assert not auxiliary, "the author's function stores all"
        for place, value in values.items():
            at = subtile.at(*place)
            with when(at.inside):
                self.epilogue.store_at(value.to(self.dtype), at)
