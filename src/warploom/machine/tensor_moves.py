"""Tensor memory to registers and back: `tcgen05.ld`, `tcgen05.st` and the waits for them.

A load reads at issue. Hardware may read later, up to the first use of a result, which counts as a wait: a kernel that
lets an MMA overwrite what it has not waited for is found by its events, not by its numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, Loc
from warploom.facts.fragments import MOVE_REGISTER_LIMIT, TENSOR_MOVES
from warploom.facts.tensor_memory import LANE_ALIGNMENT, QUADRANT
from warploom.machine.accumulators import tensor_load, tensor_store
from warploom.machine.asynchrony import Operation
from warploom.machine.bulk import submit
from warploom.machine.group import WARP, Waitable
from warploom.machine.participation import whole_warps
from warploom.machine.registry import Run, executes
from warploom.machine.tensor_memory import TensorMemory, split_address, tensor_memory
from warploom.ptx.isa.table import Op
from warploom.ptx.model import Vector

if TYPE_CHECKING:
    from warploom.machine.group import Group

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]

_QUADRANTS = 4
_WHOLE = "32x32b"
_SPLIT = "16x32bx2"


class _Move:
    """What ld and st have in common: the shape, and the lanes that each warp of a group reaches."""

    __slots__ = ("lanes", "op", "packed", "registers", "repeats", "shape", "text", "width")

    def __init__(self, op: Op, listed: object) -> None:
        self.op, self.text = op, f"`{op.instruction.opcode}`"
        self.shape, self.repeats = op["shape"], int(op["count"][1:])
        self.packed = bool(op["pack"] or op["unpack"])
        move = TENSOR_MOVES[self.shape]
        self.lanes = move.lanes
        self.registers = move.registers * self.repeats
        self.width = move.columns * self.repeats * (2 if self.packed else 1)
        where = op.instruction.loc or Loc("<ptx>", op.instruction.line)
        if self.registers > MOVE_REGISTER_LIMIT:
            what = f"{self.registers} registers; a list has at most {MOVE_REGISTER_LIMIT}"
            raise Diag.BAD_SHAPE.error(where, text=op.instruction.opcode, what=what)
        given = len(listed.items) if isinstance(listed, Vector) else 1
        if given != self.registers:
            what, takes = f"the list has {given} registers", f"{self.registers} registers"
            raise Diag.BAD_OPERANDS.error(where, text=op.instruction.opcode, what=what, takes=takes)

    def places(self, g: Group, mask: Array | None, address: Any, half: int) -> list[tuple[int, int] | None]:
        """(lane, column) for each warp that takes part, checked against its quadrant and the allocation."""
        chosen = whole_warps(g, mask, self.op)
        memory = tensor_memory(g.cta)
        memory.settle()
        found: list[tuple[int, int] | None] = []
        for warp, first in enumerate(self._addresses(g, chosen, address)):
            if chosen is not None and not chosen[warp]:
                found.append(None)
                continue
            lane, column = split_address(first)
            within, quadrant = lane % QUADRANT, (g.first_warp + warp) % _QUADRANTS
            if lane // QUADRANT != quadrant or within % LANE_ALIGNMENT or within + self.lanes > QUADRANT:
                self._misplaced(g.first_warp + warp, lane, quadrant)
            memory.require(column, self.width, self.text)
            if half or self.shape == _SPLIT:
                memory.require(column + half, self.width, self.text)
            found.append((lane, column))
        return found

    def _addresses(self, g: Group, chosen: Array | None, address: Any) -> list[int]:
        """The address of each warp, which its lanes must agree on."""
        if isinstance(address, int):
            return [address] * g.warps
        firsts = address[::WARP]
        differs = (address.reshape(-1, WARP) != firsts[:, None]).any(axis=1)
        if (differs if chosen is None else differs & chosen).any():
            raise Diag.TENSOR_MEMORY.error(what=f"{self.text}: the address differs among the lanes of a warp.")
        listed: list[int] = firsts.tolist()
        return listed

    def _misplaced(self, warp: int, lane: int, quadrant: int) -> None:
        low = QUADRANT * quadrant
        raise Diag.TENSOR_MEMORY.error(
            what=f"{self.text} at lane {lane}: warp {warp} reaches lanes {low} to {low + QUADRANT - 1} only, "
            f"in runs of {self.lanes} that begin at a multiple of {LANE_ALIGNMENT}."
        )

    def block(self, memory: TensorMemory, places: list[tuple[int, int] | None]) -> Words | None:
        """The cells of all warps as [register, lane], where shape and addresses make them one block."""
        first = places[0]
        if first is None or self.shape != _WHOLE or self.packed:
            return None
        lane, column = first
        if any(place != (lane + QUADRANT * warp, column) for warp, place in enumerate(places)):
            return None
        return memory.cells[column : column + self.repeats, lane : lane + QUADRANT * len(places)]


@executes("tcgen05.ld")
def load(op: Op) -> Run:
    """Tensor memory to registers."""
    move = _Move(op, op.operands["d"])

    def run(g: Group, mask: Array | None, address: Any, half: int = 0) -> Words:
        places = move.places(g, mask, address, half)
        memory = tensor_memory(g.cta)
        block = move.block(memory, places)
        if block is not None:
            return block
        table = np.empty((move.registers, g.lanes), np.uint32)
        for warp, place in enumerate(places):
            if place is not None:
                part = tensor_load(memory.words, move.shape, move.repeats, *place, split=half, packed=move.packed)
                table[:, warp * WARP : (warp + 1) * WARP] = part
        return table

    return run


@executes("tcgen05.st")
def store(op: Op) -> Run:
    """Registers to tensor memory, asynchronously: tcgen05.wait::st tells when."""
    move = _Move(op, op.operands["b"])

    def run(g: Group, mask: Array | None, address: Any, *rest: Any) -> None:
        half: int = rest[0] if len(rest) > 1 else 0
        places = move.places(g, mask, address, half)
        memory, table = tensor_memory(g.cta), np.empty((move.registers, g.lanes), np.uint32)
        for row, value in zip(table, rest[-1], strict=True):
            row[...] = value
        if g.grid.schedule.convoys and not g.grid.observers:
            g.grid.effects += 1
            _write(move, memory, places, table, half)
            return
        stores = _stores(g)
        stores.add(submit(g, op, lambda: _write(move, memory, places, table, half), after=stores.last))

    return run


def _write(move: _Move, memory: TensorMemory, places: list[tuple[int, int] | None], table: Words, half: int) -> None:
    block = move.block(memory, places)
    if block is not None:
        block[...] = table
        return
    for warp, place in enumerate(places):
        if place is not None:
            part = table[:, warp * WARP : (warp + 1) * WARP]
            tensor_store(memory.words, move.shape, move.repeats, *place, part, split=half, packed=move.packed)


class _Stores(Waitable):
    """The tensor-memory stores of one warp that are under way."""

    __slots__ = ("last", "open")

    def __init__(self) -> None:
        super().__init__()
        self.last: Operation | None = None
        self.open: list[Operation] = []

    def add(self, operation: Operation) -> None:
        operation.then.append(self)
        self.last = operation
        self.open.append(operation)

    def drained(self) -> bool:
        self.open = [operation for operation in self.open if not operation.done]
        return not self.open

    def describe(self) -> str:
        return f"tcgen05.wait::st: {sum(not operation.done for operation in self.open)} stores incomplete"


def _stores(g: Group) -> _Stores:
    stores: _Stores = g.cta.state.setdefault(("tensor_stores", g.first_warp), _Stores())
    return stores


@executes("tcgen05.wait")
def wait(op: Op) -> Run:
    """Wait until this warp's stores to tensor memory are done; its loads were done at issue."""
    stores = op["what"] == "st"

    def run(g: Group, mask: Array | None) -> bool:
        whole_warps(g, mask, op)
        if stores:
            for warp in range(g.first_warp, g.first_warp + g.warps):
                pending: _Stores | None = g.cta.state.get(("tensor_stores", warp))
                if pending is not None and not pending.drained():
                    g.wait(pending)
                    return False
        return True

    return run
