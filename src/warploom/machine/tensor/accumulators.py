"""Accumulators in TMEM: MMA results are added to it, and tcgen05.ld/st move it to and from registers.

Registers are uint32 arrays [register, lane]; TMEM is one uint32 array [lane, column] per CTA.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warploom.diagnostics import Diag
from warploom.hardware.fragments import TENSOR_MOVES, tensor_move
from warploom.hardware.tmem import QUADRANT, CopyShape, Placement
from warploom.machine.tensor.elements import contained, settle

Words = NDArray[np.uint32]


def _add_integers(
    current: NDArray[np.int32], product: NDArray[np.int32], accumulate: bool, saturate: bool
) -> NDArray[np.int32]:
    if not accumulate:
        return product.astype(np.int32)
    if not saturate:
        return current + product
    limits = np.iinfo(np.int32)
    total = current.astype(np.int64) + product
    return np.asarray(np.clip(total, limits.min, limits.max), np.int32)


def accumulator_view(memory: Words, placement: Placement, lane: int, column: int, n: int) -> Words:
    """The words of one CTA's share of D[rows, n], as [block, row of the block, column of the block]: a view."""
    width = n // placement.blocks if placement.folded else n
    lanes, columns = memory.shape
    if lane not in placement.lane_bases or column < 0 or column + width > columns:
        raise Diag.TENSOR_MEMORY.error(
            what=f"An accumulator of {placement.rows} rows, {n} columns cannot begin at lane {lane}, column {column}: "
            f"it takes {width} of {columns} columns and begins at lane {' or '.join(map(str, placement.lane_bases))}."
        )
    blocks = memory.reshape(placement.blocks, lanes // placement.blocks, columns)
    return blocks[:, lane : lane + placement.height, column : column + width]


def _in_blocks(product: NDArray[Any], placement: Placement) -> NDArray[Any]:
    """A [rows, n] product in the axes of `accumulator_view`: a view."""
    rows, n = product.shape
    if placement.folded:
        return product.reshape(rows, placement.blocks, n // placement.blocks).transpose(1, 0, 2)
    return product.reshape(placement.blocks, placement.height, n)


def tensor_accumulate(
    memory: Words,
    placement: Placement,
    lane: int,
    column: int,
    product: NDArray[Any],
    d_type: str,
    *,
    accumulate: bool,
    scale: int = 0,
    saturate: bool = False,
    disabled: NDArray[np.bool_] | None = None,
) -> None:
    """Add (or write, without `accumulate`) a [rows, n] product to TMEM: D = product + D * 2^-scale.

    f16 sits in the low half of its word; the high half is written as zero. `disabled` marks the lanes of the CTA that
    keep what they hold.
    """
    words = accumulator_view(memory, placement, lane, column, product.shape[1])
    moved = _in_blocks(product, placement)
    if d_type == "f32" and disabled is None and not scale:
        target = words.view(np.float32)
        if accumulate:
            target += moved
        else:
            target[...] = moved
        settle(target)
        return
    new = _combined(words, moved, d_type, accumulate=accumulate, scale=scale, saturate=saturate)
    if disabled is None:
        words[...] = new
    else:
        keep = disabled.reshape(placement.blocks, -1)[:, lane : lane + placement.height, None]
        np.copyto(words, new, where=~keep)


def add_products(
    memory: Words,
    placement: Placement,
    lane: int,
    column: int,
    products: Iterable[NDArray[Any]],
    *,
    accumulate: bool,
) -> None:
    """Add (or first write, without `accumulate`) float32 products [rows, n] to TMEM, one after the other."""
    target: NDArray[Any] | None = None
    for product in products:
        if target is None:
            target = accumulator_view(memory, placement, lane, column, product.shape[1]).view(np.float32)
        if accumulate:
            target += _in_blocks(product, placement)
        else:
            target[...] = _in_blocks(product, placement)
            accumulate = True
    if target is not None:
        settle(target)  # a sum with a NaN is a NaN, whatever its bits were in between


def _combined(
    words: Words, product: NDArray[Any], d_type: str, *, accumulate: bool, scale: int, saturate: bool
) -> Words:
    """The words that hold product + D * 2^-scale."""
    if d_type == "s32":
        return _add_integers(words.view(np.int32), product, accumulate, saturate).view(np.uint32)
    with np.errstate(all="ignore"):
        total = product
        if accumulate:
            total = product + np.ldexp(_values(words, d_type).astype(np.float32), -scale)
        rounded = np.array(total, dtype=np.float32 if d_type == "f32" else np.float16, order="C")
    settle(rounded)
    return rounded.view(np.uint32) if d_type == "f32" else rounded.view(np.uint16).astype(np.uint32)


def _values(words: Words, d_type: str) -> NDArray[Any]:
    if d_type == "f16":
        return words.astype(np.uint16).view(np.float16)
    return words.view(np.float32 if d_type == "f32" else np.int32)


def tensor_accumulator(
    memory: Words, placement: Placement, lane: int, column: int, n: int, d_type: str
) -> NDArray[Any]:
    """D[rows, n] as TMEM holds it: float32, float16 or int32, a copy."""
    values = _values(accumulator_view(memory, placement, lane, column, n), d_type)
    if placement.folded:
        return values.transpose(1, 0, 2).reshape(placement.rows, n)
    return values.reshape(placement.rows, n).copy()


def tensor_a(memory: Words, placement: Placement, lane: int, column: int, k: int, element: str) -> NDArray[Any]:
    """A[rows, k] from TMEM, whose rows lie in the lanes of the accumulator's rows, elements packed along the
    columns.

    Where the accumulator is folded, every block needs its own copy of A (CUTLASS, TmemAllocMode::Duplicated).
    """
    kind = contained(element)
    width = k * kind.bits // 32
    whole = width * placement.blocks if placement.folded else width
    words = accumulator_view(memory, placement, lane, column, whole)
    if placement.folded:
        _require_copies(words, "A operand")
        words = words[:1]
    return kind.decode(np.ascontiguousarray(words.reshape(placement.rows, width)))


def _require_copies(words: Words, what: str) -> None:
    if (words[1:] != words[:1]).any():
        raise Diag.TENSOR_MEMORY.error(
            what=f"The {what} is not the same in all groups of lanes that the MMA reads it from."
        )


def tensor_scales(
    memory: Words, column: int, rows: int, vectors: int, identifier: int, *, folded: bool = False
) -> NDArray[np.uint8]:
    """Scale factors [rows, vectors] of one operand: row r in lane r % 32 and column r / 32, bytes from `identifier`
    on.

    Every quadrant must hold a copy. `folded` is for B where D lies in two halves (cta_group::2, M = 128): the
    quadrants of each half hold the factors of their half of B's rows (CUTLASS, ScaleFactorDuplicated2by2).
    """
    lanes, columns = memory.shape
    parts = 2 if folded else 1
    part_rows = rows // parts
    width = -(-part_rows // QUADRANT)
    if column < 0 or column + width > columns:
        raise Diag.TENSOR_MEMORY.error(
            what=f"Scale factors in columns {column} to {column + width} exceed {columns} columns."
        )
    quadrants = memory.reshape(parts, lanes // QUADRANT // parts, QUADRANT, columns)[..., column : column + width]
    factors = []
    for part in quadrants:
        _require_copies(part, "scale factor")
        codes = (
            np.ascontiguousarray(part[0])
            .view(np.uint8)
            .reshape(QUADRANT, width, 4)[..., identifier : identifier + vectors]
        )
        factors.append(codes.transpose(1, 0, 2).reshape(-1, vectors)[:part_rows])
    return np.concatenate(factors)


def tensor_copy(memory: Words, shape: CopyShape, lane: int, column: int, rows: NDArray[np.uint8]) -> None:
    """Write what tcgen05.cp copies: the rows that the descriptor names, to the lanes of its shape."""
    words = np.ascontiguousarray(rows).view(np.uint32)
    width = words.shape[1]
    if column < 0 or column + width > memory.shape[1]:
        raise Diag.TENSOR_MEMORY.error(
            what=f"tcgen05.cp.{shape.name} to column {column} exceeds {memory.shape[1]} columns."
        )
    for block, targets in zip(words.reshape(-1, shape.height, width), shape.targets, strict=True):
        for target in targets:
            memory[lane + target : lane + target + shape.height, column : column + width] = block


def _columns(memory: Words, shape: str, lane: int, column: int, count: int) -> Words:
    if column < 0 or column + count > memory.shape[1] or lane < 0 or lane + TENSOR_MOVES[shape].lanes > memory.shape[0]:
        raise Diag.TENSOR_MEMORY.error(
            what=f"A .{shape} access of {count} columns at lane {lane}, column {column} leaves TMEM "
            f"({memory.shape[0]} lanes, {memory.shape[1]} columns)."
        )
    return memory[lane : lane + TENSOR_MOVES[shape].lanes, column : column + count]


def _pieces(
    memory: Words, shape: str, repeats: int, lane: int, column: int, split: int, *, packed: bool
) -> list[Words]:
    """The TMEM words that a tcgen05.ld or st of one warp touches, as one or two views."""
    count = TENSOR_MOVES[shape].columns * repeats * (2 if packed else 1)
    starts = (column, column + split) if shape == "16x32bx2" else (column,)
    return [_columns(memory, shape, lane, start, count) for start in starts]


def tensor_load(
    memory: Words, shape: str, repeats: int, lane: int, column: int, *, split: int = 0, packed: bool = False
) -> Words:
    """tcgen05.ld of one warp: registers [count, 32]. `packed` is .pack::16b, `split` the immHalfSplitoff of
    .16x32bx2.
    """
    pieces = _pieces(memory, shape, repeats, lane, column, split, packed=packed)
    words = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
    if packed:
        words = words[:, ::2] & np.uint32(0xFFFF) | words[:, 1::2] << np.uint32(16)
    return tensor_move(shape, repeats).to_registers(words)


def tensor_store(
    memory: Words,
    shape: str,
    repeats: int,
    lane: int,
    column: int,
    registers: Words,
    *,
    split: int = 0,
    packed: bool = False,
) -> None:
    """tcgen05.st of one warp. `packed` is .unpack::16b: each half goes to the low half of its own column."""
    pieces = _pieces(memory, shape, repeats, lane, column, split, packed=packed)
    words = tensor_move(shape, repeats).to_matrix(registers)
    if packed:
        words = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=-1).reshape(words.shape[0], -1)
    for piece, part in zip(pieces, np.split(words, len(pieces), axis=1), strict=True):
        piece[...] = part
