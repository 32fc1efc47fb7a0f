"""Runs a tile writer on the emulator: TMEM is filled with a known accumulator, and C is compared with NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from tests.trace.harness import assembled, find_ptxas

from warploom import TensorMap, launch
from warploom.hardware.tmem import PLACEMENTS
from warploom.ptx.syntax.printer import print_module
from warploom.structured import MatmulConfig, TileWriter, TmemAllocation, c_box
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
from warploom.trace.isa.emit import At
from warploom.trace.language.fragments import Fragment, tensor_move
from warploom.trace.language.warps import cta_index, warp_index

NUMPY = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
LAYOUTS = [(128, 32, 1), (64, 32, 1), (256, 32, 2), (128, 64, 2), (64, 8, 1), (64, 24, 1), (128, 48, 2)]
"""MMA_M, MMA_N and CTAs of the four accumulator layouts, with one, few and an odd number of subtiles."""
ONE_OF_EACH = [(128, 16, 1), (64, 24, 1), (256, 32, 2), (128, 48, 2)]
PAIRS = [((128, 32, 1), False), ((128, 48, 2), True)]
"""Layouts, and whether A and B are swapped: the plainest and the least plain."""
SCHEDULES = ("eager", "lazy", "reverse", "random")
THREADS = 128
COLUMNS = 8


@dataclass(frozen=True)
class Accumulator:
    """Stands for a stage of the output pipeline: it counts releases, and fences as that does."""

    offset: Any
    released: list[int] = field(default_factory=list)

    @property
    def tmem(self):
        return self

    def release(self):
        assert not self.released, "released once"
        self.released.append(1)
        emit("tcgen05.fence::before_thread_sync")


def config_of(layout, *, swapped=False, c_type="bf16", **fields):
    m, n, group = layout
    return MatmulConfig(c_type=c_type, cta_group=group, mma_shape=(m, n, 16), AB_swapped=swapped, **fields)


def allocate(slot):
    """Allocate TMEM, with the first warp, before the roles."""
    with when(warp_index() == 0):
        emit("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32", slot.place, 512)
    emit("tcgen05.fence::before_thread_sync")
    sync_threads()
    emit("tcgen05.fence::after_thread_sync")


def deallocate(slot, barrier):
    """By the epilogue's first warp, when the role is done."""
    emit("tcgen05.fence::before_thread_sync")
    barrier.sync()
    with when(warp_index() == 0):
        TmemAllocation.from_shared(slot).deallocate()


def fill(sums, config, role, offset, row, column):
    """Fill TMEM with the accumulator of a tile, lane by lane, from an array in which it starts at (row, column)."""
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


def accumulators(slot, sums, config, role, tiles):
    """Each tile's coordinates and its accumulator, in turn in two places; `sums` may have one layer for each CTA."""
    memory = TmemAllocation.from_shared(slot)
    layer = sums[cta_index("z").to(s32)] if len(sums.shape) > 2 else sums
    for number in loop(tiles[0] * tiles[1]):
        tile = (number // tiles[1], number % tiles[1])
        offset = memory.addr + (number % 2).to(u32) * 256
        fill(layer, config, role, offset, tile[0] * config.BM, tile[1] * config.MMA_N)
        stage = Accumulator(offset)
        yield tile, stage
        assert stage.released


@kernel(target="sm_100a", maxnreg=240)
def writing(sums: Array, c, d: Array, operands: Operands, m: s32, n: s32, *, config, tiles, body, options):
    """Write some tiles, one after another, by one CTA."""
    roles = warp_roles(epilogue=4)
    slot = shared(u32, 1, name="slot")
    writer = TileWriter(d if c is None else c, config, role=roles.epilogue, **options(operands))
    allocate(slot)
    with roles.epilogue:
        for tile, stage in accumulators(slot, sums, config, roles.epilogue, tiles):
            body(writer, stage, tile, (m, n), operands)
        deallocate(slot, writer.barrier)


def plain(writer, stage, tile, shape, operands):
    writer.write(stage, tile, shape)


def no_options(operands):
    return {}


def empty(shape, dtype):
    """Poison."""
    return np.full(shape, np.nan, NUMPY[dtype])


def aligned(shape, dtype):
    """Return poison whose rows TMA can reach, and the whole array with the padding between rows."""
    unit = 16 // np.dtype(NUMPY[dtype]).itemsize
    whole = empty((*shape[:-1], -(-shape[-1] // unit) * unit), dtype)
    return whole[..., : shape[-1]], whole


def accumulator(config, m, n, low=-8, high=9):
    """Small integers that every output type holds, in the accumulator's orientation, whole tiles of them."""
    rows, columns = (n, m) if config.AB_swapped else (m, n)
    rows, columns = -(-rows // config.BM) * config.BM, -(-columns // config.MMA_N) * config.MMA_N
    return np.random.default_rng().integers(low, high, (rows, columns)).astype(np.float32)


def tiles_of(config, m, n):
    """Tiles along the accumulator's rows and columns."""
    rows, columns = (n, m) if config.AB_swapped else (m, n)
    return (-(-rows // config.BM), -(-columns // config.MMA_N))


def user(config, sums, m, n):
    """The accumulators as C has them."""
    whole = sums.swapaxes(-1, -2) if config.AB_swapped else sums
    return whole[..., :m, :n]


def c_map(config, d):
    return TensorMap(d, box=(1,) * (d.ndim - 2) + c_box(config), swizzle=config.c_swizzle)


@dataclass
class Written:
    """The results of a run: C, the accumulators in C's orientation, and the launch."""

    c: Any
    sums: Any
    launch: Any

    def check(self, expected=None):
        """Check that C has the expected numbers, rounded once."""
        wanted = np.asarray(self.sums if expected is None else expected).astype(self.c.dtype)
        np.testing.assert_array_equal(self.c.astype(np.float32), wanted.astype(np.float32))


def run(
    config, m, n, *, body=plain, options=no_options, operands=None, tma=True, schedule="eager", shape=None, tiles=None
):
    """Write all tiles of C."""
    sums = accumulator(config, m, n)
    d, whole = aligned(shape or (m, n), config.c_type) if tma else (empty(shape or (m, n), config.c_type),) * 2
    bound = writing.bind(
        sums,
        c_map(config, d) if tma else None,
        d,
        operands or {},
        m,
        n,
        grid=(1, 1, 1),
        block=(THREADS, 1, 1),
        config=config,
        tiles=tiles or tiles_of(config, m, n),
        body=body,
        options=options,
    )
    launch(bound, schedule=schedule)
    assert np.isnan(whole[..., d.shape[-1] :].astype(np.float32)).all()
    return Written(d, user(config, sums, m, n), bound)


def assemble(bound):
    """ptxas takes it, and nothing spills."""
    if find_ptxas() is None:
        return
    verdict = assembled(print_module(bound.program))
    assert verdict.startswith("0\n"), verdict
    assert " 0 bytes spill stores" in verdict, verdict


def opcodes(bound):
    """The instructions of a launch's kernel, in order."""
    (entry,) = bound.program.kernels
    return [instruction.opcode for instruction in entry.instructions]
