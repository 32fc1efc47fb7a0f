"""Microbenchmarks of peak rates: a kernel that only issues MMAs, and one that only reads.

Both have results that tests compare with NumPy: the first accumulates the operands in shared memory repeatedly, the second
writes what it read last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warploom import TensorMap
from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.hardware.mma_shapes import WGMMA
from warploom.host.launch import Launch
from warploom.trace import (
    Array,
    barriers,
    cta_index,
    emit,
    f32,
    fence_barrier_init,
    kernel,
    loop,
    matrix_descriptor,
    s32,
    shared,
    special,
    sync_threads,
    thread,
    u32,
    warp_roles,
    wgmma_accumulator,
    when,
)

ROWS, COLUMNS, ROW_BYTES, STAGES = 128, 256, 128, 4
"""The tile of two warpgroups with the widest MMA, and its number of operand stages."""
WORDS, SLOTS = 4096, 8
"""The box of the read kernel in 32-bit words, and how many are in flight."""
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
SWIZZLED = {"leading": 16, "stride": 1024, "swizzle": "128B"}


@kernel(target="sm_90a")
def multiply_only(a: TensorMap, b: TensorMap, d: Array[f32], turns: s32, *, element: str) -> None:
    """D = A·Bᵀ from operands that are loaded once; every iteration computes it again."""
    row, roles = WGMMA[element], warp_roles(multiply=8)
    a_tiles = shared("u8", (STAGES, 2, ROWS // 2 * ROW_BYTES), name="a_tiles", align=1024)
    b_tiles = shared("u8", (STAGES, COLUMNS * ROW_BYTES), name="b_tiles", align=1024)
    full = barriers("full", 1)
    along = a.geometry.box[1]
    with when(thread() == 0):
        full.init(1)
        fence_barrier_init()
    sync_threads()
    with when(thread() == 0):
        full[0].arrive_and_expect(STAGES * (a.box_bytes + b.box_bytes))
        for stage in range(STAGES):
            emit(LOAD, a_tiles.at(stage, 0, 0), a.at(0, stage * along), full[0].at)
            emit(LOAD, b_tiles.at(stage, 0), b.at(0, stage * along), full[0].at)
    full[0].wait(0)
    with roles.multiply:
        group = (roles.multiply.warp // 4).to(s32)
        sums = wgmma_accumulator(COLUMNS)
        opcode = f"wgmma.mma_async.sync.aligned.m64n{COLUMNS}k{row.k}.f32.{element}.{element}"
        turned = (0, 0) if row.transposable else ()
        for _ in loop(turns):
            for stage in range(STAGES):
                left = matrix_descriptor(a_tiles[stage, group].place, **SWIZZLED)
                right = matrix_descriptor(b_tiles[stage].place, **SWIZZLED)
                emit("wgmma.fence.sync.aligned")
                for step in range(4):
                    operands = (left + 2 * step, right + 2 * step, bool(stage or step), 1, 1, *turned)
                    emit(opcode, sums.registers, *operands)
                emit("wgmma.commit_group.sync.aligned")
                emit("wgmma.wait_group.sync.aligned", 1)
        emit("wgmma.wait_group.sync.aligned", 0)
        tile = d.window((cta_index().to(s32) * ROWS + group * 64, 0), (64, COLUMNS))
        result = sums.read()
        for at in range(0, len(result.values), 2):
            tile.store(result.values[at : at + 2], result.rows[at], result.columns[at])


@kernel(target="sm_90a")
def read_only(source: TensorMap, out: Array[u32], boxes: s32) -> None:
    """Read every box of an array, distributed over all CTAs; each writes the first words of its last box."""
    held = shared(u32, (SLOTS, WORDS), name="held", align=1024)
    full = barriers("full", SLOTS)
    first, step = cta_index().to(s32), special("nctaid.x").to(s32)
    mine = (boxes - first + step - 1) // step
    with when(thread() == 0):
        full.init(1)
        fence_barrier_init()
    sync_threads()
    with when(thread() == 0):
        for turn in loop(mine + SLOTS):
            slot, lap = turn % SLOTS, turn // SLOTS
            with when((turn >= SLOTS) & (turn - SLOTS < mine)):
                full[slot].wait((lap - 1) & 1)
            with when(turn < mine):
                full[slot].arrive_and_expect(source.box_bytes)
                rows = source.geometry.box[0]
                emit(LOAD, held.at(slot, 0), source.at((first + turn * step) * rows, 0), full[slot].at)
    sync_threads()
    with when(thread() < 32):
        out[first, thread().to(s32)] = held[(mine - 1) % SLOTS, thread()]


@dataclass(frozen=True)
class Multiplications:
    """Launch `multiply_only`: a (128 × k) and b (256 × k), with k four rows of 128 bytes, to d (sms · 128 × 256)."""

    element: str
    turns: int
    sms: int

    @property
    def depth(self) -> int:
        """K of the operands."""
        return STAGES * ROW_BYTES * 8 // ELEMENT_TYPES[self.element].storage_bits

    @property
    def flops(self) -> float:
        return 2.0 * self.sms * self.turns * ROWS * COLUMNS * self.depth

    def launch(self, a: Any, b: Any, d: Any) -> Launch:
        box = self.depth // STAGES
        maps = (TensorMap(each, box=(each.shape[0], box), swizzle="128B") for each in (a, b))
        shape = {"grid": (self.sms, 1, 1), "block": (256, 1, 1)}
        return multiply_only.bind(*maps, d, self.turns, **shape, element=self.element)


def reading(source: Any, out: Any, sms: int) -> Launch:
    """Launch `read_only`: source (rows × 64 words), out (sms × 32)."""
    rows = WORDS // source.shape[1]
    boxes = source.shape[0] // rows
    tensor = TensorMap(source, box=(rows, source.shape[1]))
    return read_only.bind(tensor, out, boxes, grid=(sms, 1, 1), block=(64, 1, 1))
