"""A residual that is loaded into the buffers from which C is stored, so that it needs no shared memory of its own.

TMA fills a warpgroup's buffers while its MMAs run; then each subtile is read, added and overwritten in place. The
buffers hold a whole tile, or 64 rows of it: then the next rows are loaded after these have been stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from warploom.structured.epilogue.sinks import SubtileRing
from warploom.structured.epilogue.staging import Values
from warploom.structured.epilogue.subtiles import Subtile, TileSpot
from warploom.structured.epilogue.tile_store import box_place, load_box
from warploom.structured.pipelines.start_up import start_up
from warploom.structured.tensor_cores.wgmma import Warpgroup
from warploom.trace import isa
from warploom.trace.builder import current
from warploom.trace.language.barriers import barriers
from warploom.trace.language.control import when
from warploom.trace.language.values import literal
from warploom.trace.language.variables import Variable
from warploom.trace.parameters import TensorMapArgument


class InPlaceResidual:
    """The residual of a warpgroup's tiles; each of `groups` warpgroups has a barrier that counts its bytes."""

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
        """The number of 64-row blocks that the buffers hold."""
        return self._ring.buffers // self._subtiles

    def load(self, spots: Sequence[TileSpot]) -> None:
        """Load the 64-row blocks at `spots` into the buffers, after the stores from them have been read."""
        ring, barrier = self._ring, self._barriers[self._group.number]
        with when(self._group.first_thread):
            isa.cp.async_bulk_wait_group(0, read=True)
            barrier.arrive_and_expect(len(spots) * self._subtiles * ring.subtiles.layout.bytes)
            for number, spot in enumerate(spots):
                for subtile in range(self._subtiles):
                    place = ring.tile(number * self._subtiles + subtile).place
                    for box in ring.boxes(self._source, subtile * ring.part.epc.stageN):
                        load_box(place + box.offset, box_place(self._source, spot, box), barrier.at)

    def wait(self) -> None:
        """Wait until the buffers are full."""
        self._barriers[self._group.number].wait(self._parity)
        self._parity ^= 1

    def values(self, subtile: Subtile) -> Values:
        """Return the values to add to a subtile: the contents of its buffer."""
        subtiles, part = self._ring.subtiles, self._ring.part
        place = self._ring.current(subtile).place
        return subtiles.load(subtiles.place_to_load(place, part.staged_row, literal(0, "u32")))
