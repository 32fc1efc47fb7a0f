"""Fragments: which element a register holds, arithmetic on all of them, and accumulators that stay in place."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from tests.trace.harness import body, run

from warploom.diagnostics import TraceError
from warploom.hardware.fragments import mma_c, tensor_move, wgmma_d
from warploom.trace import (
    Accumulator,
    Fragment,
    TensorMemory,
    emit,
    gelu,
    kernel,
    lane,
    literal,
    load_matrix,
    loop,
    matrix_descriptor,
    max_,
    pack,
    s32,
    select,
    shared,
    store_matrix,
    sync_threads,
    tensor_load,
    tensor_store,
    thread,
    unpack,
    unpacked,
    wgmma_accumulator,
    when,
)


@pytest.mark.parametrize(
    ("layout", "threads"),
    [
        (wgmma_d(8), 128),
        (wgmma_d(40), 128),
        (mma_c(16), 32),
        (tensor_move("32x32b", 4), 32),
        (tensor_move("16x64b", 2), 32),
        (tensor_move("16x128b", 2), 32),
        (tensor_move("16x256b", 3), 32),
    ],
)
def test_rows_and_columns(layout, threads):
    count = layout.register_shape[0]

    @kernel
    def where(rows, columns):
        fragment = Fragment(tuple(literal(0.0, "f32") for _ in range(count)), layout)
        assert fragment.shape == layout.matrix_shape
        for at in range(count):
            rows[at, thread()] = fragment.rows[at]
            columns[at, thread()] = fragment.columns[at]

    rows, columns = (np.full((count, threads), -1, np.int32) for _ in range(2))
    run(where, rows, columns, block=(threads, 1, 1))
    expected = layout.coordinates()
    np.testing.assert_array_equal(rows, expected[0])
    np.testing.assert_array_equal(columns, expected[1])


def test_arithmetic_and_masks():
    layout = wgmma_d(16)

    @kernel
    def work(x, y, out, n: s32):
        at = Fragment(tuple(literal(0.0, "f32") for _ in range(8)), layout)
        a = Fragment(tuple(x[r, c] for r, c in zip(at.rows, at.columns, strict=True)), layout)
        b = Fragment(tuple(y[r, c] for r, c in zip(at.rows, at.columns, strict=True)), layout)
        total = (2.0 * a + b - 1.0) * (1.0 - b) / 4.0
        total = (-total).apply(max_, -0.5)
        masked = tuple(select(c < n, v, 0.0) for v, c in zip(total.values, total.columns, strict=True))
        for v, r, c in zip(masked, at.rows, at.columns, strict=True):
            out[r, c] = v

    rng = np.random.default_rng()
    x, y = (rng.integers(-8, 8, (64, 16)).astype(np.float32) for _ in range(2))
    out = np.zeros((64, 16), np.float32)
    run(work, x, y, out, 11, block=(128, 1, 1))
    expected = np.maximum(-((2 * x + y - 1) * (1 - y) / 4), -0.5)
    expected[:, 11:] = 0
    np.testing.assert_array_equal(out, expected)


def test_pairs_and_back():
    layout = wgmma_d(8)

    @kernel
    def through(x):
        at = Fragment(tuple(literal(0.0, "f32") for _ in range(4)), layout)
        a = Fragment(tuple(x[r, c] for r, c in zip(at.rows, at.columns, strict=True)), layout)
        words = a.apply(gelu).pairs("bf16x2")
        back = unpacked(words, layout).to("f32")
        for v, r, c in zip(back.values, at.rows, at.columns, strict=True):
            x[r, c] = v

    x = np.random.default_rng().normal(size=(64, 8)).astype(np.float32)
    before = x.copy()
    lines = body(run(through, x, block=(128, 1, 1)))
    assert sum(line.startswith("cvt.rn.bf16x2.f32") for line in lines) == 2
    tanh_free = before * 0.5 * (1 + np.vectorize(math.erf)(before / np.sqrt(2)))
    np.testing.assert_allclose(x, tanh_free, rtol=2**-8, atol=1e-5)


def test_accumulators_stay_in_place():
    @kernel
    def product(x, out, n: s32):
        tile = shared("f16", (64, 64), swizzle="128B")
        for row in range(0, 64, 2):
            i = thread() % 64
            tile[row + 0, i] = x[row, i]
            tile[row + 1, i] = x[row + 1, i]
        emit("fence.proxy.async.shared::cta")
        sync_threads()
        sums = wgmma_accumulator(64)
        base = matrix_descriptor(tile.place, leading=16, stride=1024)
        for k in loop(n):
            emit("wgmma.fence.sync.aligned")
            for step in range(4):
                operands = (base + 2 * step, base + 2 * step, k > 0 if step == 0 else True, 1, 1, 0, 0)
                emit("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", sums.registers, *operands)
            emit("wgmma.commit_group.sync.aligned")
            emit("wgmma.wait_group.sync.aligned", 0)
        result = sums.read() * 0.5
        for v, r, c in zip(result.values, result.rows, result.columns, strict=True):
            out[r, c] = v

    x = np.random.default_rng().integers(-3, 4, (64, 64)).astype(np.float16)
    out = np.zeros((64, 64), np.float32)
    lines = body(run(product, x, out, 3, block=(128, 1, 1)))
    wide = x.astype(np.float32)
    np.testing.assert_array_equal(out, 1.5 * wide @ wide.T)
    lists = {line.partition("{")[2].partition("}")[0] for line in lines if line.startswith("wgmma.mma")}
    assert len(lists) == 1
    assert not [line for line in lines if line.startswith("mov.b32 %f")]


def test_accumulators_are_set_and_read():
    @kernel
    def add(x, n: s32):
        sums = Accumulator("f32", mma_c(16), 1)
        for _ in loop(n):
            sums.set(sums.read() + 2.0)
        with when(thread() == 0):
            x.store(sums.read().values, 0)

    x = np.zeros(4, np.float32)
    lines = body(run(add, x, 5))
    assert x.tolist() == [11] * 4
    assert sum(line.startswith("mov.b32 %f") for line in lines) == 4


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda f: Fragment(f.values[:-1], f.layout), "3 registers in a layout of 4"),
        (lambda f: f + Fragment(f.values, mma_c(16)), "fragments of different layouts"),
        (lambda f: f.to("f16").pairs("f16x2"), ".f16x2 of 4 .f16 values"),
    ],
)
def test_wrong_fragments_are_reported(act, says):
    @kernel
    def wrong(x):
        act(Fragment(tuple(x[at, thread()] for at in range(4)), wgmma_d(8)))

    with pytest.raises(TraceError) as caught:
        wrong.bind(np.zeros((4, 128), np.float32), grid=(1, 1, 1), block=(128, 1, 1))
    assert says in str(caught.value)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transpose", [False, True])
def test_matrices_go_to_shared_memory_and_back(count, transpose):
    @kernel
    def through(x, y, back):
        tile = shared("bf16", (8 * count, 8), swizzle="none")
        row, column = (lane() // 4).to(s32), (lane() % 4 * 2).to(s32)
        pairs = [pack(*x.load(row + 8 * at, column, count=2)) for at in range(count)]
        place = tile.at(lane() % (8 * count), 0)
        store_matrix(place, pairs, transpose=transpose)
        sync_threads()
        for at in range(count):
            y.store(tile.load(row + 8 * at, column, count=2), row + 8 * at, column)
        for at, pair in enumerate(load_matrix(place, count, transpose=transpose, type_="bf16x2")):
            back.store(unpack(pair), row + 8 * at, column)

    x = np.random.default_rng().integers(-99, 99, (8 * count, 8)).astype(ml_dtypes.bfloat16)
    y, back = np.zeros_like(x), np.zeros_like(x)
    lines = body(run(through, x, y, back))
    matrices = x.reshape(count, 8, 8)
    np.testing.assert_array_equal(y, (matrices.transpose(0, 2, 1) if transpose else matrices).reshape(-1, 8))
    np.testing.assert_array_equal(back, x)
    assert sum(f"matrix.sync.aligned.m8n8.x{count}" in line for line in lines) == 2


def test_the_accumulator_shape_of_tmem_is_that_of_stmatrix():
    repeats = 4

    @kernel(target="sm_100a")
    def through(x, y):
        slot = shared("u32", 1)
        emit("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32", slot.place, 32)
        sync_threads()
        memory, tile = TensorMemory(slot[0], 32), shared("bf16", (16, 8 * repeats))
        whole = Fragment(tuple(x[lane(), column] for column in range(8 * repeats)), tensor_move("32x32b", 8 * repeats))
        tensor_store(memory.at(), whole)
        emit("tcgen05.wait::st.sync.aligned")
        part = tensor_load(memory.at(), "16x256b", repeats)
        emit("tcgen05.wait::ld.sync.aligned")
        for step, (low, high) in enumerate(zip(part.pairs("bf16x2")[::2], part.pairs("bf16x2")[1::2], strict=True)):
            store_matrix(tile.at(lane() % 16, 8 * step), [low, high])
        sync_threads()
        for row in range(16):
            y[row, lane()] = tile[row, lane()]
        emit("tcgen05.dealloc.cta_group::1.sync.aligned.b32", slot[0], 32)

    x = np.random.default_rng().integers(-99, 99, (32, 8 * repeats)).astype(np.float32)
    y = np.zeros((16, 8 * repeats), ml_dtypes.bfloat16)
    run(through, x, y)
    np.testing.assert_array_equal(y.astype(np.float32), x[:16])
