"""A warpgroup's registers as the matrices that `wgmma` reads and writes.

Four neighbouring lanes hold sixteen consecutive bytes of a row, so that registers move as 16-byte granules. To keep it
so for 32-bit accumulators, whose neighbouring columns lie in neighbouring registers, products are made with their rows
and columns in the order that registers have them: `row_order` puts the two halves of a warp's sixteen rows apart,
`column_order` the even and the odd columns of every eight. The recipes of `hardware/fragments` define both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warploom.hardware.fragments import WGMMA_A, wgmma_d
from warploom.hardware.mma_shapes import WGMMA_M
from warploom.machine.tensor.elements import ELEMENTS, settle
from warploom.machine.tensor.register_rows import RowNames

Words = NDArray[np.uint32]
Matrix = NDArray[Any]

A_REGISTERS = WGMMA_A.register_shape[0]
_LANES = wgmma_d(8).register_shape[1]
_QUADS = _LANES // 4
_LIMITS = np.iinfo(np.int32)


@lru_cache(maxsize=8)
def row_order(rows: int) -> NDArray[np.intp]:
    """The matrix row of each row of a product: first those that lanes hold in their first register of each pair."""
    held, _ = wgmma_d(8).coordinates()
    return np.concatenate([held[0, ::4], held[2, ::4]])


@lru_cache(maxsize=64)
def column_order(columns: int) -> NDArray[np.intp]:
    """The matrix column of each column of a product: of every eight the even ones, then the odd ones."""
    _, held = wgmma_d(columns).coordinates()
    return held.reshape(columns // 8, 2, 2, _LANES)[:, 0, :, :4].reshape(-1)


def read_a(words: Words, element: str) -> Matrix:
    """A[64, 32 bytes of k] in float32 from four registers, its rows in `row_order`."""
    granules = np.ascontiguousarray(words).view(np.complex128).reshape(2, 2, _QUADS)
    matrix = ELEMENTS[element].decode(np.ascontiguousarray(granules.transpose(1, 2, 0)).reshape(WGMMA_M, 2))
    return matrix if matrix.dtype == np.float32 else matrix.astype(np.float32)


@lru_cache(maxsize=256)
def a_granules(names: tuple[RowNames, ...]) -> NDArray[np.intp]:
    """The granules of the registers that `read_a` takes, of each instruction in turn along k: [64, granules]."""
    quads = np.arange(_QUADS)
    parts = []
    for each in names:
        first = np.array(each.indices).reshape(2, 2) * _QUADS
        parts.append((first[None, :, :] + quads[:, None, None]).transpose(2, 0, 1).reshape(WGMMA_M, 2))
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


Add = Callable[[Matrix | None, Matrix, bool, bool], Matrix]


@dataclass(frozen=True, slots=True)
class Accumulator:
    """D[64, n] of one type: how many registers, how they move, and how a product is added."""

    n: int
    dtype: np.dtype[Any]
    paired: bool
    """Neighbouring columns are in neighbouring registers rather than in one."""
    add: Add

    @property
    def registers(self) -> int:
        return self.n * self.dtype.itemsize // 8

    @property
    def split(self) -> tuple[int, ...]:
        """The granules of the registers as (eight columns, half, parity of the column, lanes of a row)."""
        return (self.n // 8, 2, 2 if self.paired else 1, _QUADS)

    def load(self, words: Words) -> Matrix:
        """The matrix in registers: a copy."""
        granules = words.view(np.complex128).reshape(-1).take(_load_index(self.split))
        return granules.reshape(WGMMA_M, -1).view(self.dtype)

    def store(self, words: Words, matrix: Matrix) -> None:
        """Put a matrix into registers."""
        if matrix.dtype.kind == "f":
            settle(matrix)
        eights, halves, parities, quads = self.split
        granules = matrix.view(np.complex128).reshape(halves, quads, eights, parities)
        words.view(np.complex128).reshape(self.split)[...] = granules.transpose(2, 0, 3, 1)


@lru_cache(maxsize=128)
def _load_index(split: tuple[int, ...]) -> NDArray[np.intp]:
    count = prod(split)
    return np.ascontiguousarray(np.arange(count, dtype=np.intp).reshape(split).transpose(1, 3, 0, 2))


def _add_f32(total: Matrix | None, product: Matrix, negative: bool, saturate: bool) -> Matrix:
    if total is None:
        return np.negative(product, out=product) if negative else product
    return np.subtract(total, product, out=total) if negative else np.add(total, product, out=total)


def _add_f16(total: Matrix | None, product: Matrix, negative: bool, saturate: bool) -> Matrix:
    """One rounding to f16 per instruction."""
    wide = None if total is None else total.astype(np.float32)
    return _add_f32(wide, product, negative, saturate).astype(np.float16)


def _add_s32(total: Matrix | None, product: Matrix, negative: bool, saturate: bool) -> Matrix:
    """The product of one instruction is exact in float32: 32 terms below 2^16."""
    whole = product.astype(np.int32)
    if total is None:
        return whole
    if not saturate:
        total += whole
        return total
    exact: Matrix = np.clip(total.astype(np.int64) + whole, _LIMITS.min, _LIMITS.max)
    return exact.astype(np.int32)


ACCUMULATORS: dict[str, Callable[[int], Accumulator]] = {
    "f32": lambda n: Accumulator(n, np.dtype(np.float32), True, _add_f32),
    "s32": lambda n: Accumulator(n, np.dtype(np.int32), True, _add_s32),
    "f16": lambda n: Accumulator(n, np.dtype(np.float16), False, _add_f16),
}
"""By the type of D."""
