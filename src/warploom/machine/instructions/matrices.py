"""`ldmatrix`, `stmatrix` and `movmatrix`: small matrices between shared memory and the registers of a warp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, Loc
from warploom.hardware.fragments import MATRIX_MOVES, MatrixMove
from warploom.hardware.swizzles import GRANULE
from warploom.machine.core.group import WARP
from warploom.machine.core.participation import whole_warps
from warploom.machine.core.registry import Run, executes
from warploom.machine.memory.byte_memory import SHARED_WINDOW, WINDOW_BYTES
from warploom.machine.tensor.elements import expand_padded
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Vector

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Move:
    """`count` matrices of one shape for each warp: from rows [warp, matrix, row, element] to registers and back."""

    shape: MatrixMove
    count: int

    @property
    def registers(self) -> int:
        return self.count * self.shape.registers

    @property
    def rows(self) -> int:
        """Lanes of each warp that give a row's address."""
        return self.count * self.shape.rows

    def axes(self) -> tuple[str, str, dict[str, int]]:
        """The small axes as memory has them, as registers have them (W: warp, M: matrix), and their sizes."""
        recipe = self.shape.fragment
        memory = "WM" + recipe.rows + recipe.columns
        registers = "M" + recipe.registers + "W" + recipe.lanes + recipe.elements
        return memory, registers, dict(recipe.sizes) | {"W": -1, "M": self.count}


def _read(op: Op, operand: str) -> _Move:
    """The move of an instruction, its register list counted."""
    move = _Move(MATRIX_MOVES[op["shape"], bool(op["trans"]), op["type"].rpartition(".")[2]], int(op["count"][1:]))
    given = op.operands[operand]
    found = len(given.items) if isinstance(given, Vector) else 0
    if found != move.registers:
        what = f"the list has {found} registers and must have {move.registers}"
        where = op.instruction.loc or Loc("<ptx>", op.instruction.line)
        raise Diag.BAD_OPERANDS.error(where, text=op.instruction.text[:200], what=what, takes=op.form.takes)
    return move


def _addresses(g: Group, chosen: Array | None, address: Any, rows: int, generic: str) -> Array:
    """The row addresses of the executing warps, in shared memory's own numbers, one after the other."""
    lanes = np.full(g.lanes, address, np.uint64) if isinstance(address, int) else address
    if generic:
        outside = lanes[(lanes < SHARED_WINDOW) | (lanes >= SHARED_WINDOW + WINDOW_BYTES)]
        if len(outside):
            what = f"{generic} at the generic address {int(outside[0]):#x}"
            raise Diag.OUT_OF_BOUNDS.error(what=what, space="shared")
        lanes = lanes - np.uint64(SHARED_WINDOW)
    if rows == WARP and chosen is None:
        return lanes
    by_warp = lanes.reshape(-1, WARP)[:, :rows]
    return (by_warp if chosen is None else by_warp[chosen]).reshape(-1)


@executes("ldmatrix")
def load(op: Op) -> Run:
    """Read matrices whose rows are 16 bytes at the addresses that lanes give."""
    move, what = _read(op, "d"), f"`{op.instruction.opcode}`"
    generic = "" if op["space"] else what
    memory, registers, sizes = move.axes()
    split = tuple(sizes[letter] for letter in memory)
    order = tuple(memory.index(letter) for letter in registers)
    element, source = np.dtype(f"u{move.shape.element_bytes}"), move.shape.source

    def run(g: Group, mask: Array | None, address: Any) -> Array:
        chosen = whole_warps(g, mask, op)
        shared = g.cta.shared
        index = shared.index(_addresses(g, chosen, address, move.rows, generic), GRANULE, what)
        raw = shared.views[GRANULE].take(index)
        if source:
            raw = expand_padded(raw[:, None], source)
        moved = raw.view(element).reshape(split).transpose(order)
        words = np.ascontiguousarray(moved).reshape(-1).view(np.uint32).reshape(move.registers, -1)
        return words if chosen is None else _spread(words, chosen)

    return run


def _spread(words: Array, chosen: Array) -> Array:
    """Registers of the executing warps among those of all."""
    out = np.zeros((len(words), len(chosen) * WARP), np.uint32)
    out[:, chosen.repeat(WARP)] = words
    return out


def matrix_rows(op: Op) -> Callable[[int, tuple[Any, ...], Array | None], Array]:
    """The function that makes the rows of a `stmatrix`, of 16 bytes each, from the registers of the chosen warps."""
    move = _read(op, "b")
    memory, registers, sizes = move.axes()
    split = tuple(sizes[letter] for letter in registers)
    order = tuple(registers.index(letter) for letter in memory)
    element = np.dtype(f"u{move.shape.element_bytes}")

    @lru_cache
    def places(lanes: int) -> Array:
        """The elements of so many lanes in the order of memory."""
        found = np.arange(move.registers * lanes * (4 // element.itemsize)).reshape(split).transpose(order)
        return np.ascontiguousarray(found).reshape(-1)

    def rows_of(lanes: int, values: tuple[Any, ...], chosen: Array | None) -> Array:
        words = np.empty((move.registers, lanes), np.uint32)
        for row, value in zip(words, values, strict=True):
            row[...] = value
        if chosen is not None:
            words = words.compress(chosen.repeat(WARP), axis=1)
        return words.view(element).take(places(words.shape[1])).view(np.complex128)

    return rows_of


@executes("stmatrix")
def store(op: Op) -> Run:
    """Write matrices as rows of 16 bytes to the addresses that lanes give."""
    move, what, rows_of = _read(op, "b"), f"`{op.instruction.opcode}`", matrix_rows(op)
    generic = "" if op["space"] else what

    def run(g: Group, mask: Array | None, address: Any, values: tuple[Any, ...]) -> None:
        chosen = whole_warps(g, mask, op)
        g.grid.effects += 1
        rows = rows_of(g.lanes, values, chosen)
        addresses = _addresses(g, chosen, address, move.rows, generic)
        if g.grid.buffers is not None:
            g.grid.buffers.add(g, g.cta.shared, addresses, rows, GRANULE, None, what)
            return
        g.cta.shared.write(addresses, rows, GRANULE, None, what, g.number)

    return run


@executes("movmatrix")
def transpose(op: Op) -> Run:
    """Transpose an 8 × 8 matrix of 16-bit elements across the lanes of a warp."""

    def run(g: Group, mask: Array | None, a: Any) -> Array:
        whole_warps(g, mask, op)
        words = np.full(g.lanes, a, np.uint32) if isinstance(a, int) else np.ascontiguousarray(a)
        squares = words.view(np.uint16).reshape(-1, 8, 8)
        return np.ascontiguousarray(squares.transpose(0, 2, 1)).reshape(-1).view(np.uint32)

    return run
