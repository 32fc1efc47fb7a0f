"""Fragment layouts: the thread and register of each matrix element, as recipes over NumPy axes.

A warp's (or warpgroup's) registers are an array [register, lane, element]: `element` counts the sub-words of a
register, low bits first, and is absent where whole 32-bit words move. A recipe splits these three axes into small
ones, named by a letter, and lists the letters that, in order, make up the row and the column of the matrix. Moving a
fragment is therefore one reshape and one transpose, in either direction, without index arrays.

Letters: g = lane / 4 and q = lane % 4 inside a warp, w = the warp of a warpgroup, h = the half that is eight rows
further down, c and j count repeats along the columns, p = the left or right of two neighbours.

Sources: PTX ISA 9.7.14.5 (mma, ldmatrix, stmatrix), 9.7.15.5.1.1 (wgmma), 9.7.16.2.3.1 (tcgen05.ld and st). The
figures of the m16n16 and m16n8 8-bit forms were read from CUTLASS (copy_traits_sm100.hpp: SM100_U8x8_LDSM_T,
SM100_U8x4_STSM_T).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Fragment:
    """A recipe: sizes of the letters, how they make up each register axis, and how they make up row and column."""

    sizes: tuple[tuple[str, int], ...]
    registers: str
    lanes: str
    elements: str
    rows: str
    columns: str

    def _sizes(self, letters: str) -> tuple[int, ...]:
        sizes = dict(self.sizes)
        return tuple(sizes[letter] for letter in letters)

    @cached_property
    def register_shape(self) -> tuple[int, ...]:
        """[register, lane], and the element axis where a register holds several."""
        shape = tuple(prod(self._sizes(letters)) for letters in (self.registers, self.lanes, self.elements))
        return shape if self.elements else shape[:2]

    @cached_property
    def matrix_shape(self) -> tuple[int, int]:
        return (prod(self._sizes(self.rows)), prod(self._sizes(self.columns)))

    @cached_property
    def split(self) -> tuple[int, ...]:
        """The shape of the register axes, one letter each."""
        return self._sizes(self.registers + self.lanes + self.elements)

    @cached_property
    def matrix_split(self) -> tuple[int, ...]:
        """The shape of the matrix axes, one letter each."""
        return self._sizes(self.rows + self.columns)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The transpose from register letters to matrix letters."""
        held = self.registers + self.lanes + self.elements
        return tuple(held.index(letter) for letter in self.rows + self.columns)

    @cached_property
    def inverse(self) -> tuple[int, ...]:
        """The transpose from matrix letters to register letters."""
        spelled = self.rows + self.columns
        return tuple(spelled.index(letter) for letter in self.registers + self.lanes + self.elements)

    def to_matrix(self, registers: NDArray[Any]) -> NDArray[Any]:
        """The matrix that registers [register, lane(, element)] hold; a view where the recipe permits one."""
        return registers.reshape(self.split).transpose(self.order).reshape(self.matrix_shape)

    def to_registers(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """The registers [register, lane(, element)] that hold a matrix; a view where the recipe permits one."""
        return matrix.reshape(self.matrix_split).transpose(self.inverse).reshape(self.register_shape)

    def coordinates(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Row and column held by each [register, lane(, element)]."""
        flat = np.arange(prod(self.matrix_shape), dtype=np.intp).reshape(self.matrix_shape)
        return np.divmod(self.to_registers(flat), self.matrix_shape[1])


_WARP = {"g": 8, "q": 4}
_WARPGROUP = {"w": 4, "g": 8, "q": 4}
_HALVES = {"h": 2, "p": 2}


def _recipe(registers: str, lanes: str, rows: str, columns: str, sizes: dict[str, int], elements: str = "") -> Fragment:
    used = registers + lanes + elements
    return Fragment(tuple((k, v) for k, v in sizes.items() if k in used), registers, lanes, elements, rows, columns)


@lru_cache(maxsize=64)
def wgmma_d(n: int) -> Fragment:
    """Accumulator D[64, n] of 32-bit elements: n/2 registers of 128 threads."""
    return _recipe("jhp", "wgq", "whg", "jqp", {**_WARPGROUP, **_HALVES, "j": n // 8})


WGMMA_A = _recipe("ch", "wgq", "whg", "cq", {**_WARPGROUP, "h": 2, "c": 2})
"""A[64, 32 bytes] from four registers of 128 threads, as words [64, 8], whatever the element type."""


@lru_cache(maxsize=64)
def mma_a(m: int, registers: int) -> Fragment:
    """A[m, k] of mma.sync as whole registers: 32-bit words along k (for f64 one register is one element)."""
    if m == 8:
        return _recipe("c", "gq", "g", "cq", {**_WARP, "c": registers})
    return _recipe("ch", "gq", "hg", "cq", {**_WARP, "h": 2, "c": registers // 2})


@lru_cache(maxsize=64)
def mma_b(registers: int) -> Fragment:
    """B of mma.sync, transposed to [n, k]: 32-bit words along k (for f64 one register is one element)."""
    return _recipe("c", "gq", "g", "cq", {**_WARP, "c": registers})


@lru_cache(maxsize=64)
def mma_c(m: int) -> Fragment:
    """C and D[m, 8] of mma.sync with one element per register."""
    if m == 8:
        return _recipe("p", "gq", "g", "qp", {**_WARP, "p": 2})
    return _recipe("hp", "gq", "hg", "qp", {**_WARP, **_HALVES})


@lru_cache(maxsize=64)
def mma_c_packed(m: int) -> Fragment:
    """C and D[m, 8] of mma.sync in f16 as words of two columns: a matrix [m, 4] of words."""
    if m == 8:
        return _recipe("", "gq", "g", "q", _WARP)
    return _recipe("h", "gq", "hg", "q", {**_WARP, "h": 2})


_WMMA_ROWS = {8: ("", "g"), 16: ("h", "hg"), 32: ("th", "thg")}
"""The letters that count registers, and those that make up the row, of a wmma operand with a number of rows."""


@lru_cache(maxsize=64)
def wmma_operand(rows: int, k: int, bits: int, *, elements: bool) -> Fragment:
    """A[m, k] or, transposed, B[n, k] of wmma, as words along k or as the elements in them.

    The manual does not specify the positions of the elements, so a kernel can only move whole fragments; this layout
    is that of the mma.sync instructions that a wmma consists of.
    """
    down, spelled = _WMMA_ROWS[rows]
    per_word = max(32 // bits, 1)
    sizes = {**_WARP, "h": 2, "t": 2, "c": k // per_word // 4, "e": per_word}
    inner = "e" if elements and per_word > 1 else ""
    return _recipe(down + "c", "gq", spelled, "cq" + inner, sizes, inner)


@lru_cache(maxsize=64)
def wmma_accumulator(m: int, n: int, *, packed: bool, elements: bool) -> Fragment:
    """C and D[m, n] of wmma; `packed` puts two f16 of a row in one word."""
    down, spelled = _WMMA_ROWS[m]
    sizes = {**_WARP, **_HALVES, "t": 2, "j": n // 8}
    if not packed:
        return _recipe("j" + down + "p", "gq", spelled, "jqp", sizes)
    inner = "p" if elements else ""
    return _recipe("j" + down, "gq", spelled, "jq" + inner, sizes, inner)


@dataclass(frozen=True, slots=True)
class MatrixMove:
    """One ldmatrix or stmatrix shape: the recipe of one matrix over the bytes that its row addresses name.

    Row r of matrix i is the 16 bytes at the address that lane i * rows + r gives.
    """

    fragment: Fragment
    rows: int
    registers: int
    element_bytes: int
    source: str = ""
    """The packed source format, expanded to bytes by the load."""


_M8N8 = _recipe("", "gq", "g", "qp", {**_WARP, "p": 2}, elements="p")
_M8N8_TRANS = _recipe("", "gq", "qp", "g", {**_WARP, "p": 2}, elements="p")
_M8N16 = _recipe("", "gq", "g", "qe", {**_WARP, "e": 4}, elements="e")
_M16N16_TRANS = _recipe("r", "gq", "qe", "rg", {**_WARP, "e": 4, "r": 2}, elements="e")
_M16N8_TRANS = _recipe("", "gq", "qp", "mg", {**_WARP, "m": 2, "p": 2}, elements="mp")

MATRIX_MOVES: dict[tuple[str, bool, str], MatrixMove] = {
    ("m8n8", False, "b16"): MatrixMove(_M8N8, 8, 1, 2),
    ("m8n8", True, "b16"): MatrixMove(_M8N8_TRANS, 8, 1, 2),
    ("m8n16", False, "b4x16_p64"): MatrixMove(_M8N16, 8, 1, 1, "b4x16_p64"),
    ("m8n16", False, "b6x16_p32"): MatrixMove(_M8N16, 8, 1, 1, "b6x16_p32"),
    ("m16n16", True, "b8"): MatrixMove(_M16N16_TRANS, 16, 2, 1),
    ("m16n16", True, "b4x16_p64"): MatrixMove(_M16N16_TRANS, 16, 2, 1, "b4x16_p64"),
    ("m16n16", True, "b6x16_p32"): MatrixMove(_M16N16_TRANS, 16, 2, 1, "b6x16_p32"),
    ("m16n8", True, "b8"): MatrixMove(_M16N8_TRANS, 8, 1, 1),
}
"""By (shape, .trans, element or source format). The recipe's matrix is [row address, element along the 16 bytes].

Expanded 4-bit elements sit in the low bits of their byte, as CUTLASS and Triton note; mma.sync expects them
in bits 2-5, so a kernel has to shift them.
"""


@dataclass(frozen=True, slots=True)
class TensorMove:
    """One tcgen05.ld/st shape: lanes it touches, registers per repeat, 32-bit columns per repeat."""

    name: str
    lanes: int
    registers: int
    columns: int


TENSOR_MOVES: dict[str, TensorMove] = {
    move.name: move
    for move in (
        TensorMove("32x32b", 32, 1, 1),
        TensorMove("16x64b", 16, 1, 2),
        TensorMove("16x128b", 16, 2, 4),
        TensorMove("16x256b", 16, 4, 8),
        TensorMove("16x32bx2", 16, 1, 1),
    )
}
"""`.16x32bx2` touches its columns twice: lanes 0-15 of the warp at the address, lanes 16-31 at address +
immHalfSplitoff.
"""

MOVE_REGISTER_LIMIT = 128
"""The longest register list of tcgen05.ld and st (PTX ISA Table 49)."""


@lru_cache(maxsize=128)
def tensor_move(shape: str, repeats: int) -> Fragment:
    """tcgen05.ld/st as [register, lane of the warp] against [TMEM lane, 32-bit column].

    For `16x32bx2` the columns are the first access's `repeats`, then the second's. `.pack::16b` and `.unpack::16b`
    use the same recipe over words whose halves are the low halves of two neighbouring columns (CUTLASS, the `_16b`
    copy traits).
    """
    sizes = {**_WARP, **_HALVES, "r": repeats, "l": 32, "m": 16, "s": 2, "t": 2, "b": 2}
    return {
        "32x32b": lambda: _recipe("r", "l", "l", "r", sizes),
        "16x64b": lambda: _recipe("r", "gst", "tg", "rs", sizes),
        "16x128b": lambda: _recipe("rh", "gq", "hg", "rq", sizes),
        "16x256b": lambda: _recipe("rhp", "gq", "hg", "rqp", sizes),
        "16x32bx2": lambda: _recipe("r", "bm", "m", "br", sizes),
    }[shape]()
