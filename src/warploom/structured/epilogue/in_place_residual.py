"""A residual that comes into the very buffers from which C will be stored: it costs no shared memory of its own.

A warpgroup lets the copy engine fill its buffers while it multiplies; afterwards each strip is read, added and written
where it lies. The buffers hold a whole tile, or 64 rows of it: then the next rows come when these have been stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from warploom.structured.epilogue.sinks import SubtileRing
from warploom.structured.epilogue.staging import Values
from warploom.structured.epilogue.subtiles import Subtile, TileSpot
from warploom.structured.epilogue.tile_store import box_place, load_box
from warploom.structured.pipelines.start_up import start_up
from warploom.structured.tensor_cores.wgmma import Warpgroup
from warploom.trace.builder import current
from warploom.trace.isa.emit import emit
from warploom.trace.language.barriers import barriers
from warploom.trace.language.control import when
from warploom.trace.language.values import literal
from warploom.trace.language.variables import Variable
from warploom.trace.parameters import TensorMapArgument


class InPlaceResidual:
    """The residual of a warpgroup's tiles; a barrier for each of `groups` warpgroups counts its bytes."""

    def __init__(self, source: TensorMapArgument, ring: SubtileRing, group: Warpgroup, groups: int) -> None:
        self._source, self._ring, self._group = source, ring, group
        self._subtiles = ring.part.epc.num_stages
        ring.is_refilled = True
        self._barriers = barriers("residual", groups)
        start_up().barriers.append((self._barriers, lambda: 1))
        start_up().maps.append(source)
        with current("A residual").prologue():
            self._parity = Variable("u32", 0)

    @property
    def pieces(self) -> int:
        """How many times 64 rows the buffers hold."""
        return self._ring.buffers // self._subtiles

    def load(self, spots: Sequence[TileSpot]) -> None:
        """Fill the buffers for the pieces at some spots, once the stores from them have been read."""
        ring, barrier = self._ring, self._barriers[self._group.number]
        with when(self._group.first_thread):
            emit("cp.async.bulk.wait_group.read", 0)
            barrier.arrive_and_expect(len(spots) * self._subtiles * ring.subtiles.layout.bytes)
            for number, spot in enumerate(spots):
                for subtile in range(self._subtiles):
                    place = ring.tile(number * self._subtiles + subtile).place
                    for box in ring.boxes(self._source, subtile * ring.part.epc.stageN):
                        load_box(place + box.offset, box_place(self._source, spot, box), barrier.at)

    def wait(self) -> None:
        """Go on when the buffers are full."""
        self._barriers[self._group.number].wait(self._parity)
        self._parity ^= 1

    def values(self, subtile: Subtile) -> Values:
        """What is to be added to a strip: its buffer's contents."""
        subtiles, part = self._ring.subtiles, self._ring.part
        place = self._ring.current(subtile).place
        return subtiles.load(subtiles.place_to_load(place, part.staged_row, literal(0, "u32")))
