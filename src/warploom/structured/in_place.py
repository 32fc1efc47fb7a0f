"""A residual that comes into the very buffers from which C will be stored: it costs no shared memory of its own.

A warpgroup lets the copy engine fill its buffers while it multiplies; afterwards each strip is read, added and written
where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warploom.structured.sinks import TmaStore
from warploom.structured.staging import Values
from warploom.structured.start_up import start_up
from warploom.structured.strips import Strip, TileSpot
from warploom.structured.tile_store import box_place, boxes_of, load_box
from warploom.trace.barriers import barriers
from warploom.trace.builder import current
from warploom.trace.control import when
from warploom.trace.instructions import emit
from warploom.trace.parameters import TensorMapArgument
from warploom.trace.values import literal
from warploom.trace.variables import Variable


class InPlaceResidual:
    """The residual of a warpgroup's tiles; a barrier for each of `groups` warpgroups counts its bytes."""

    def __init__(self, source: TensorMapArgument, sink: TmaStore, group: Any, groups: int) -> None:
        self._source, self._sink, self._group = source, sink, group
        self._barriers = barriers("residual", groups)
        start_up().barriers.append((self._barriers, lambda: 1))
        start_up().maps.append(source)
        with current("A residual").prologue():
            self._parity = Variable("u32", 0)

    def load(self, spots: Sequence[TileSpot]) -> None:
        """Fill the buffers for the tiles at some spots, once the stores from them have been read."""
        sink, strips = self._sink, self._sink.part.epc.num_stages
        layout = sink.strips.layout
        barrier = self._barriers[self._group.number]
        with when(self._group.first_thread):
            emit("cp.async.bulk.wait_group.read", 0)
            barrier.arrive_and_expect(len(spots) * strips * layout.bytes)
            for number, spot in enumerate(spots):
                for strip in range(strips):
                    place = sink.tile(number * strips + strip).place
                    for box in self._boxes(strip):
                        load_box(place + box.offset, box_place(self._source, spot, box), barrier.at)

    def _boxes(self, strip: int) -> list[Any]:
        epc = self._sink.part.epc
        *_, rows, columns = self._source.geometry.box
        return boxes_of(self._sink.strips.layout, (rows, columns), epc, strip * epc.stageN)

    def wait(self) -> None:
        """Go on when the buffers are full."""
        self._barriers[self._group.number].wait(self._parity)
        self._parity ^= 1

    def values(self, strip: Strip) -> Values:
        """What is to be added to a strip: its buffer's contents."""
        strips, part = self._sink.strips, self._sink.part
        place = self._sink.current(strip).place
        return strips.load(strips.place_to_load(place, part.staged_row, literal(0, "u32")))
