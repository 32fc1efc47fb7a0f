"""A user's kernels, as the documentation writes them."""

from __future__ import annotations

import numpy as np

from warploom import TensorMap, launch
from warploom.trace import (
    Array,
    Tensor,
    Variable,
    barriers,
    bf16,
    cta_index,
    device_assert,
    device_print,
    exp,
    f32,
    kernel,
    loop,
    max_,
    otherwise,
    s32,
    select,
    shared,
    special,
    sync_threads,
    thread,
    warp_roles,
    when,
)
from warploom.trace.isa import cp, mbarrier


@kernel(target="sm_90a")
def saxpy(x: Array[f32], y: Array[f32], a: f32, n: s32) -> None:
    i = cta_index() * special("ntid.x") + thread()
    with when(i >= n):
        return
    y[i] = x[i] * a + y[i]


@kernel
def row_sums(x: Tensor, out: Tensor[f32], rows: s32, columns: s32, *, scale: float = 1.0) -> None:
    row = cta_index().to(s32)
    total = Variable(f32, 0.0)
    for column in loop(thread(), columns, step=32):
        total += x[row, column].to(f32)
    with when((row < rows) & (thread() == 0)):
        out[row] = exp(total * scale) ** 2
    with otherwise():
        device_print("row", row, -row % 4, row // 2, abs(row), 2 * row + 1)
    device_assert(rows > 0, "rows")


@kernel
def copy(source: TensorMap, out: Array, n: s32) -> None:
    roles = warp_roles(load=1, store=1)
    tile, full = shared(bf16, (8, 64), name="tile", swizzle="128B"), barriers("full")
    with when(thread() == 0):
        full.init(1)
    sync_threads()
    with roles.load, when(roles.load.elected):
        mbarrier.arrive_expect_tx(full[0], source.box_bytes)
        cp.async_bulk_tensor_load(tile, source.at(0, n * 8), full[0])
    with roles.store:
        full[0].wait(0)
        lane = roles.store.thread
        largest = max_(select(lane < 8, lane, 0), 1)
        out[largest] = tile[largest, 0].to(f32)


def main() -> None:
    x, y = np.ones(1000, np.float32), np.ones(1000, np.float32)
    saxpy[8, 128](x, y, 2.0, 1000)
    launch(saxpy.bind(x, y, 2.0, 1000, grid=8, block=(128, 1, 1)))
    copy[1](TensorMap(x.reshape(10, 100), box=(8, 64)), y, 3)
    saxpy.ptx(x, y, 2.0, 1000, block=128)
