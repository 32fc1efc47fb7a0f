"""Runs a tile writer on the machine: tensor memory is filled with a known accumulator, and C is compared with NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from tests.trace.harness import assembled, find_ptxas

from warploom import TensorMap, launch
from warploom.facts.tensor_memory import PLACEMENTS
from warploom.ptx.printer import print_module
from warploom.structured.config import MatmulConfig
from warploom.structured.tensor_memory import TmemAllocation
from warploom.structured.tile_writer import TileWriter
from warploom.structured.writer_geometry import c_box
from warploom.trace import (
    Array,
    Operands,
    emit,
    kernel,
    lane,
    loop,
    s32,
    shared,
    sync_threads,
    tensor_store,
    u32,
    warp_roles,
    when,
)
from warploom.trace.fragments import Fragment, tensor_move
from warploom.trace.instructions import At

NUMPY = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
THREADS = 128
COLUMNS = 8


@dataclass(frozen=True)
class Accumulator:
    """Stands for a stage of the output pipeline."""

    offset: Any
    released: list[int] = field(default_factory=list)

    @property
    def tmem(self):
        return self

    def release(self):
        self.released.append(1)
        assert len(self.released) == 1, "released once"
        emit("tcgen05.fence::before_thread_sync")


def fill(sums, config, role, offset, row, column):
    """The accumulator of a tile into tensor memory, lane by lane, from an array in which it begins at (row, column)."""
    placement = PLACEMENTS[config.cta_group, config.MMA_M, False]
    folded = placement.folded
    warp, number = role.warp.to(s32), lane().to(s32)
    if placement.pitch > placement.height:  # sixteen rows to a quadrant
        down = warp * 16 + number % 16
    else:
        down = (warp % 2 if folded else warp) * 32 + number
    right = (warp // 2) * (config.MMA_N // 2) if folded else 0
    for step in loop(config.accumulator_columns // COLUMNS):
        values = [sums[row + down, column + right + step * COLUMNS + c] for c in range(COLUMNS)]
        place = At(offset + role.warp * (32 << 16) + step.to(u32) * COLUMNS)
        tensor_store(place, Fragment(tuple(values), tensor_move("32x32b", COLUMNS)), "32x32b")
    emit("tcgen05.wait::st.sync.aligned")


@kernel(target="sm_100a")
def writing(sums: Array, c, d: Array, operands: Operands, m: s32, n: s32, *, config, tiles, body, options):
    """Write some tiles, one after another, by one CTA."""
    roles = warp_roles(epilogue=4)
    role = roles.epilogue
    slot = shared(u32, 1, name="slot")
    writer = TileWriter(d if c is None else c, config, role=role, **options(operands))
    with role:
        with when(role.warp == 0):
            emit("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32", slot.place, 512)
        emit("tcgen05.fence::before_thread_sync")
        sync_threads()
        emit("tcgen05.fence::after_thread_sync")
        memory = TmemAllocation.from_shared(slot)
        for number, tile in enumerate(tiles):
            offset = memory.addr + (number % 2) * 256
            fill(sums, config, role, offset, tile[0] * config.BM, tile[1] * config.MMA_N)
            stage = Accumulator(offset)
            body(writer, stage, tile, (m, n), d, operands)
            assert stage.released
        emit("tcgen05.fence::before_thread_sync")
        sync_threads()
        with when(role.warp == 0):
            TmemAllocation.from_shared(slot).deallocate()


def plain(writer, stage, tile, shape, d, operands):
    writer.write(stage, tile, shape)


def empty(shape, dtype):
    """Poison."""
    return np.full(shape, np.nan, NUMPY[dtype])


def accumulator(config, m, n, rng, low=-8, high=9):
    """Small integers that every output type holds, in the accumulator's orientation, whole tiles of them."""
    rows, columns = (n, m) if config.AB_swapped else (m, n)
    rows, columns = -(-rows // config.BM) * config.BM, -(-columns // config.MMA_N) * config.MMA_N
    return rng.integers(low, high, (rows, columns)).astype(np.float32)


def tiles_of(config, m, n, batch=()):
    rows, columns = (n, m) if config.AB_swapped else (m, n)
    return [(i, j, *batch) for i in range(-(-rows // config.BM)) for j in range(-(-columns // config.MMA_N))]


def user(config, sums, m, n):
    """The accumulators as C has them."""
    whole = sums.T if config.AB_swapped else sums
    return whole[:m, :n]


def run(
    config, m, n, *, body=plain, options=dict, operands=None, sums=None, d=None, tma=True, seed=0, schedule="eager", tiles=None
):
    """C after the writer has written all tiles, and the launch."""
    rng = np.random.default_rng(seed)
    sums = accumulator(config, m, n, rng) if sums is None else sums
    d = empty((m, n), config.c_type) if d is None else d
    c = TensorMap(d, box=(1,) * (d.ndim - 2) + c_box(config), swizzle=config.c_swizzle) if tma else None
    given = options if options is not dict else no_options
    bound = writing.bind(
        sums,
        c,
        d,
        operands or {},
        m,
        n,
        grid=(1, 1, 1),
        block=(THREADS, 1, 1),
        config=config,
        tiles=tuple(tiles or tiles_of(config, m, n)),
        body=body,
        options=given,
    )
    launch(bound, schedule=schedule)
    return d, sums, bound


def no_options(operands):
    return {}


def assemble(bound):
    """ptxas takes it, and nothing spills."""
    if find_ptxas() is None:
        return
    verdict = assembled(print_module(bound.program))
    assert verdict.startswith("0\n"), verdict
    assert "0 bytes spill stores" in verdict, verdict


def matmul_config(m, n, group, *, swapped=False, c_type="bf16", **fields):
    return MatmulConfig(c_type=c_type, cta_group=group, mma_shape=(m, n, 16), AB_swapped=swapped, **fields)
