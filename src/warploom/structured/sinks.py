"""Where a computed strip goes: through shared memory and the copy engine, straight to memory, or to the author.

Every sink takes the same values at the same positions; only the way differs.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from warploom.facts.tensor_maps import SHARED_ALIGNMENT
from warploom.structured.epilogue import Epilogue
from warploom.structured.staging import StripStore, Values
from warploom.structured.strips import Strip, WarpPart
from warploom.structured.tile_store import MaskedCopy, box_place, boxes_of, store_box, store_inside
from warploom.structured.warp_group_barrier import WarpGroupBarrier
from warploom.trace.builder import current
from warploom.trace.control import otherwise, when
from warploom.trace.instructions import At, emit
from warploom.trace.memory import View, shared
from warploom.trace.parameters import TensorMapArgument
from warploom.trace.roles import Role
from warploom.trace.values import Value, literal, select
from warploom.trace.variables import Variable


class Sink(Protocol):
    """Takes the strips of a tile in order."""

    def put(self, strip: Strip, values: Values) -> None: ...


@dataclass
class TmaStore:
    """Stages strips in a ring of buffers that the copy engine empties, across tiles, behind the epilogue's back.

    A strip costs one barrier: before it the storing thread waits until the *next* buffer has been read, so that
    everybody who passes may write that one.
    """

    tensor: TensorMapArgument
    strips: StripStore
    part: WarpPart
    role: Role
    barrier: WarpGroupBarrier
    buffers: int
    tiles: View | None = None
    """The buffers, new ones unless they are given."""
    target: View | None = None
    """C, where rows that belong to somebody else follow the tile's: there threads copy."""
    _slot: Variable | None = field(init=False, default=None)
    _drained: list[object] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.part.epc.num_stages % self.buffers:
            with current("A tile writer").prologue():
                self._slot = Variable("u32", 0)

    def bounded(self, target: View) -> TmaStore:
        """The same ring of buffers, for tiles that a bound may cut which the copy engine does not know of."""
        self._allocate()
        same = copy(self)
        same.target = target
        return same

    def _allocate(self) -> View:
        if self.tiles is None:
            layout = self.strips.layout
            align = max(SHARED_ALIGNMENT, layout.swizzle.alignment)
            with current("A tile writer").prologue():
                self.tiles = shared(
                    layout.dtype, (self.buffers, layout.rows, layout.columns), name="c_tiles", align=align
                )
        return self.tiles

    def put(self, strip: Strip, values: Values) -> None:
        tile = self.open(strip)
        self.strips.store(self.strips.place_to_store(tile, self.part.staged_row, literal(0, "u32")), values)
        self.close(strip, tile)

    def open(self, strip: Strip) -> At:
        """The buffer of a strip, free to be written."""
        self._drain_at_end()
        if self.buffers == 1:
            with when(self.role.first_thread):
                emit("cp.async.bulk.wait_group.read", 0)
            self.barrier.sync()
        return self.current(strip).place

    def current(self, strip: Strip) -> View:
        """The buffer of a strip."""
        return self.tile(strip.index % self.buffers if self._slot is None else self._slot.get())

    def tile(self, slot: Value | int) -> View:
        """One of the buffers."""
        buffer: View = self._allocate()[slot]
        return buffer

    def close(self, strip: Strip, tile: At) -> None:
        """All threads have written: hand the buffer to the copy engine."""
        emit("fence.proxy.async.shared::cta")
        if self.buffers > 1:
            with when(self.role.first_thread):
                emit("cp.async.bulk.wait_group.read", self.buffers - 2)
        self.barrier.sync()
        self._send(strip, tile)
        if self._slot is not None:
            following = self._slot + 1
            self._slot.set(select(following == self.buffers, literal(0, "u32"), following))

    def _send(self, strip: Strip, tile: At) -> None:
        with when(self._is_whole(strip)), when(self.role.first_thread):
            self._store(strip, tile)
        if self.target is not None:
            with otherwise():
                copied = MaskedCopy(self.strips.layout, self.part.epc, self.target, self.role.threads)
                copied.run(tile, self.role.thread, strip)
        with when(self.role.first_thread):
            emit("cp.async.bulk.commit_group")  # empty where threads copied: buffers are counted by groups

    def _is_whole(self, strip: Strip) -> Value:
        """Whether no bound of ours cuts the strip."""
        epc, spot = self.part.epc, strip.spot
        if self.target is None:
            return literal(True, "pred")
        if not spot.transposed:
            return spot.row + epc.BM <= spot.rows_end
        last = (epc.num_col_warp_groups - 1) * epc.accumulator_columns + strip.column + epc.stageN
        return spot.column + last <= spot.columns_end

    def _store(self, strip: Strip, tile: At) -> None:
        *_, rows, columns = self.tensor.geometry.box
        for box in boxes_of(self.strips.layout, (rows, columns), self.part.epc, strip.column):
            store_box(tile + box.offset, box_place(self.tensor, strip.spot, box))

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

    def put(self, strip: Strip, values: Values) -> None:
        for place, value in values.items():
            at = strip.at(*place)
            batch = (at.batch,) if len(self.target.shape) > 2 else ()
            store_inside(self.target, (*batch, at.row, at.column), value.to(self.target.dtype), at.inside)


@dataclass(frozen=True)
class AuthorStore:
    """Hands each element of C to the author's function, which owns the store."""

    epilogue: Epilogue
    dtype: str

    def put(self, strip: Strip, values: Values) -> None:
        for place, value in values.items():
            at = strip.at(*place)
            with when(at.inside):
                self.epilogue.store_at(value.to(self.dtype), at)
