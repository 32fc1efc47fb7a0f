"""The PTX of a few kernels as a whole: a change of what is emitted is read here, line by line."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.trace.harness import accepted
from tests.trace.test_examples import load

from warploom import TensorMap, launch
from warploom.trace import (
    Array,
    Variable,
    barriers,
    cta_index,
    elect,
    f32,
    fence_barrier_init,
    gelu,
    kernel,
    lane,
    loop,
    otherwise,
    s32,
    shared,
    shuffle,
    special,
    sync_threads,
    thread,
    warp_index,
    warp_roles,
    when,
)


@kernel
def saxpy(x: Array[f32], y: Array[f32], a: f32, n: s32):
    i = (cta_index() * special("ntid.x") + thread()).to(s32)
    with when(i < n):
        y[i] = x[i] * a + y[i]


@kernel
def row_sums(x: Array[f32], sums: Array[f32], columns: s32):
    row, total = cta_index(), Variable(f32, 0.0)
    partial = shared(f32, 4, name="partial")
    for column in loop(thread().to(s32), columns, step=128, unroll=2):
        total += x[row, column]
    value = total.get()
    for distance in (16, 8, 4, 2, 1):
        value = value + shuffle(value, "bfly", distance)
    with when(lane() == 0):
        partial[warp_index()] = value
    sync_threads()
    with when(thread() == 0):
        first, *rest = partial.load(0, count=4)
        sums[row] = sum(rest, first)


@kernel
def activate(x: Array[f32], low: f32):
    i = thread()
    values = x.load(i * 4, count=4)
    out = Variable(f32, 0.0)
    with when(values[0] < low):
        out.set(low)
    with otherwise():
        out.set(gelu(values[0]))
    x.store([out, *values[1:]], i * 4)


@kernel
def ring(x: Array[f32], y: Array[f32], n: s32):
    roles = warp_roles(load=1, store=1)
    slots = shared(f32, (2, 32), name="slots")
    full, empty = barriers("full", 2), barriers("empty", 2)
    with when(thread() == 0):
        full.init(32)
        empty.init(1)
        fence_barrier_init()
    sync_threads()
    with roles.load:
        for k in loop(n):
            empty[k % 2].wait((k // 2 & 1) ^ 1)
            slots[k % 2, lane()] = x[k, lane()]
            full[k % 2].arrive()
    with roles.store:
        for k in loop(n):
            full[k % 2].wait(k // 2 & 1)
            y[k, lane()] = slots[k % 2, lane()] * 2.0
            with when(elect()):
                empty[k % 2].arrive()


def _matmul():
    example = load("first_kernel")
    box = TensorMap(np.zeros((128, 128), ml_dtypes.bfloat16), box=(128, 64), swizzle="128B")
    return example.matmul.bind(box, box, np.zeros((128, 128), np.float32), 2, grid=(1, 1, 1), block=(288, 1, 1))


ROW = np.zeros(256, np.float32)
TABLE = np.zeros((8, 300), np.float32)
CASES = {
    "saxpy": lambda: saxpy.bind(ROW, ROW, 2.0, 256, grid=(2, 1, 1), block=(128, 1, 1)),
    "row_sums": lambda: row_sums.bind(TABLE, ROW, 300, grid=(8, 1, 1), block=(128, 1, 1)),
    "activate": lambda: activate.bind(ROW, 0.5, grid=(1, 1, 1), block=(64, 1, 1)),
    "ring": lambda: ring.bind(TABLE[:, :32], TABLE[:, 32:64], 8, grid=(1, 1, 1), block=(64, 1, 1)),
    "matmul": _matmul,
}


@pytest.mark.parametrize("name", CASES)
def test_text(name, golden):
    text = accepted(CASES[name]())
    kept = [line for line in text.splitlines() if not line.lstrip().startswith((".loc", ".file"))]
    golden(f"{name}.ptx", "\n".join(kept) + "\n")


def test_the_kernels_are_right():

    rng = np.random.default_rng()
    table = rng.integers(-9, 9, (8, 300)).astype(np.float32)
    sums = np.zeros(8, np.float32)
    launch(row_sums.bind(table, sums, 300, grid=(8, 1, 1), block=(128, 1, 1)))
    np.testing.assert_array_equal(sums, table.sum(1))
    for schedule in ("eager", "lazy", "reverse", "random"):
        out = np.zeros((8, 32), np.float32)
        launch(ring.bind(table[:, :32], out, 8, grid=(1, 1, 1), block=(64, 1, 1)), schedule=schedule)
        np.testing.assert_array_equal(out, table[:, :32] * 2)


def test_the_page_about_tracing_runs():
    page = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text("utf-8")
    source = page.partition("```python\n")[2].partition("```")[0]
    names = {}
    exec(compile(source, "docs/tracing.md", "exec"), names)
    np.testing.assert_array_equal(names["y"], names["x"] * 2 + 1)
