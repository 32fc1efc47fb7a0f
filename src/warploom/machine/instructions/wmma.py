"""`wmma`: a warp loads fragments of matrices, multiplies them and stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, Loc
from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.hardware.fragments import wmma_accumulator, wmma_operand
from warploom.hardware.mma_shapes import WARP_D_TYPES, WMMA_HALF_REGISTERS, WMMA_SHAPES, WarpShape
from warploom.machine.core.group import WARP
from warploom.machine.core.participation import whole_warps
from warploom.machine.core.registry import Run, executes
from warploom.machine.instructions.memory import Spaces
from warploom.machine.instructions.mma import Moves, check_counts, combined, decoder, gathered
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]


class _Tile:
    """One operand of wmma in memory: which element of it each register, lane and sub-word holds."""

    def __init__(self, op: Op, which: str) -> None:
        type_ = op["type"]
        shape = _shape(op, type_ if which in "ab" else "")
        bits = shape.bits if which in "ab" else ELEMENT_TYPES[type_].bits
        self.packed = 32 // bits if bits < 8 else 1  # elements narrower than a byte move as whole words
        self.bytes = bits * self.packed // 8
        if which in "ab":
            rows = shape.m if which == "a" else shape.n
            self.fragment = wmma_operand(rows, shape.k, shape.bits, elements=self.packed == 1)
        else:
            self.fragment = wmma_accumulator(shape.m, shape.n, packed=type_ == "f16", elements=True)
        row, column = self.fragment.coordinates()
        if which == "b":
            row, column = column, row
        held, lanes = self.fragment.register_shape[:2]
        self.along_rows = op["layout"] == "row"
        major, minor = (row, column) if self.along_rows else (column, row)
        self.major, self.minor = (x.reshape(held, lanes, -1) for x in (major, minor))
        self.repeats = WMMA_HALF_REGISTERS // held if which in "ab" and type_ == "f16" else 1
        self.count = held * self.repeats
        self.lines, self.line = int(major.max()) + 1, int(minor.max()) + 1

    def step(self, stride: Any) -> Any:
        """The number of bits moved at once, and how many times per line."""
        return self.line if stride is None else stride // self.packed

    def places(self, g: Group, address: Any, stride: Any) -> Array:
        """The address of every element as [register, sub-word, lane]; the stride counts elements."""
        warps = g.warps
        start = np.full(g.lanes, address, np.uint64) if isinstance(address, int) else address.astype(np.uint64)
        step = np.full(g.lanes, self.step(stride), np.uint64)
        major, minor = (np.tile(x.transpose(0, 2, 1).astype(np.uint64), warps) for x in (self.major, self.minor))
        return start + (major * step + minor) * np.uint64(self.bytes)


def lines_of(op: Op) -> tuple[int, int]:
    """The bytes of one line of the matrix in memory, and the number of lines."""
    tile = _Tile(op, op["which"])
    return tile.line * tile.bytes, tile.lines


def line_addresses(op: Op, address: Any, stride: Any, lanes: int) -> Array:
    """The address of one line of the matrix in each lane of its warp."""
    tile = _Tile(op, op["which"])
    step = np.uint64(tile.step(stride)) * np.uint64(tile.bytes)
    return np.asarray(address, np.uint64) + np.arange(lanes, dtype=np.uint64) % np.uint64(WARP) * step


@executes("wmma.load")
def load(op: Op) -> Run:
    """A fragment of A, B or C from memory."""
    tile, spaces = _Tile(op, op["which"]), Spaces(op)
    check_counts(op, {"d": tile.count})
    word = np.dtype(np.uint64 if tile.bytes == 8 else np.uint32)
    element = np.dtype(f"u{tile.bytes}")

    def run(g: Group, mask: Array | None, address: Any, stride: Any = None) -> Array:
        whole_warps(g, mask, op)
        places = _narrowed(tile.places(g, address, stride), spaces)
        held, parts, lanes = places.shape
        raw = np.empty((held, lanes, parts), element)
        for register in range(held):
            for part in range(parts):
                raw[register, :, part] = spaces.load(g, mask, places[register, part], tile.bytes)
        words = raw.reshape(held, -1).view(word)
        return words if tile.repeats == 1 else np.tile(words, (tile.repeats, 1))

    return run


@executes("wmma.store")
def store(op: Op) -> Run:
    """A fragment of D to memory."""
    tile, spaces = _Tile(op, "d"), Spaces(op)
    check_counts(op, {"b": tile.count})
    word = np.dtype(np.uint64 if tile.bytes == 8 else np.uint32)
    element = np.dtype(f"u{tile.bytes}")

    def run(g: Group, mask: Array | None, address: Any, values: tuple[Any, ...], stride: Any = None) -> None:
        whole_warps(g, mask, op)
        places = _narrowed(tile.places(g, address, stride), spaces)
        held, parts, lanes = places.shape
        raw = gathered(values, lanes, word).view(element).reshape(held, lanes, parts)
        for register in range(held):
            for part in range(parts):
                spaces.store(g, mask, places[register, part], np.ascontiguousarray(raw[register, :, part]), tile.bytes)

    return run


def _narrowed(places: Array, spaces: Spaces) -> Array:
    """Addresses in the width that the space's own have."""
    return places.astype(np.uint32) if spaces.space == "shared" else places


@executes("wmma.mma")
def multiply(op: Op) -> Run:
    """D = A·B + C."""
    a_type, b_type, d_type, c_type = op["a_type"] or "f16", op["b_type"] or "f16", op["d_type"], op["c_type"]
    shape = _shape(op, a_type)
    if b_type != a_type or not {c_type, d_type} <= set(WARP_D_TYPES[a_type]):
        raise _bad(op, f"A of .{a_type} does not go with B of .{b_type}, C of .{c_type} and D of .{d_type}")
    a, b = (Moves.of(wmma_operand(rows, shape.k, shape.bits, elements=False)) for rows in (shape.m, shape.n))
    c, d = (
        Moves.of(wmma_accumulator(shape.m, shape.n, packed=type_ == "f16", elements=False))
        for type_ in (c_type, d_type)
    )
    factors = {"a": a.registers, "b": b.registers} if a_type != "f16" else dict.fromkeys("ab", WMMA_HALF_REGISTERS)
    check_counts(op, {**factors, "c": c.registers, "d": d.registers})
    word = np.dtype(np.uint64 if shape.bits == 64 else np.uint32)
    decode, combine, c_values = decoder(a_type), combined(op), ELEMENT_TYPES[c_type].values
    saturate = bool(op["satfinite"])

    def run(g: Group, mask: Array | None, *operands: tuple[Any, ...]) -> Array:
        whole_warps(g, mask, op)
        left, right, start = (
            moves.matrices(gathered(values[: moves.registers], g.lanes, word))
            for moves, values in zip((a, b, c), operands, strict=True)
        )
        return d.lists(combine(decode(left), decode(right), start.view(c_values), saturate).view(word))

    return run


def _shape(op: Op, type_: str) -> WarpShape:
    """The shape of an instruction, if its multiplicands may have that type; empty: whatever they are."""
    fitting = [row for row in WMMA_SHAPES if not type_ or type_ in row.types]
    found = [row for row in fitting if f"m{row.m}n{row.n}k{row.k}" == op["shape"]]
    if not found:
        shapes = ", ".join(f"m{row.m}n{row.n}k{row.k}" for row in fitting)
        raise _bad(op, f".{type_} has the shapes {shapes}")
    return found[0]


def _bad(op: Op, what: str) -> Exception:
    where = op.instruction.loc or Loc("<ptx>", op.instruction.line)
    return Diag.BAD_SHAPE.error(where, text=op.instruction.opcode, what=what)
