"""Views: indices, parts, neighbours, swizzles, atomics; shared memory laid out at the end."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.trace.harness import body, run

from warploom.diagnostics import TraceError
from warploom.hardware.swizzles import SWIZZLES
from warploom.trace import (
    Array,
    TensorMemory,
    barriers,
    emit,
    f32,
    fence_barrier_init,
    kernel,
    loop,
    s32,
    shared,
    sync_threads,
    tensor_load,
    tensor_store,
    thread,
    when,
)
from warploom.trace.builder import SharedArray
from warploom.trace.passes.finish import layout


def test_strided_and_transposed_arrays():
    @kernel
    def transpose(x, y, rows: s32, columns: s32):
        for i in loop(rows):
            with when(thread().to("s32") < columns):
                y[thread(), i] = x[i, thread()]

    x = np.random.default_rng().normal(size=(14, 40)).astype(np.float32)[::2, 3:20]
    y = np.zeros((17, 7), np.float32)
    run(transpose, x, y, 7, 17)
    np.testing.assert_array_equal(y, x.T)


def test_parts_of_views():
    @kernel
    def parts(x, out):
        row = x[2]
        every_other = x[1:5:2, 8:40]
        window = x.window((thread() // 16, 4), (2, 8))
        i = thread()
        out[0, i] = row[i]
        out[1, i] = every_other[1, i]
        out[2, i] = window[1, i % 8]
        out[3, i] = x.reshape(4, 2, 40)[1, 1, i]
        out[4, i] = x.bits("u32")[0, i].bits("f32")

    x = np.random.default_rng().normal(size=(8, 40)).astype(np.float32)
    out = np.zeros((5, 32), np.float32)
    run(parts, x, out)
    i = np.arange(32)
    np.testing.assert_array_equal(out, [x[2, i], x[3, 8 + i], x[i // 16 + 1, 4 + i % 8], x[3, i], x[0, i]])


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.uint64, np.int16]
)
@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_neighbours_move_together(dtype, count):
    @kernel
    def copy(x, y):
        i = thread() * count
        y.store(list(reversed(x.load(i, count=count))), i)

    x = np.random.default_rng().integers(-128, 128, 32 * count).astype(dtype)
    y = np.zeros_like(x)
    lines = body(run(copy, x, y))
    np.testing.assert_array_equal(y.reshape(32, count), x.reshape(32, count)[:, ::-1])
    loads = sum(line.startswith("ld.global") for line in lines)
    assert loads == max(1, count * x.itemsize // 16)


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_swizzled_shared_memory(swizzle):
    mode = SWIZZLES[swizzle]

    @kernel
    def through(x, flat):
        tile = shared(f32, (16, 32), name="tile", swizzle=swizzle)
        plain = shared(f32, 4, name="plain")
        i = thread()
        for row in range(8):
            tile[row, i] = x[row, i]
        for row in loop(8, 16):
            tile[row, i] = x[row, i]
        plain.store([0.0, 1.0, 2.0, 3.0], 0)
        sync_threads()
        bare = tile.place.base
        for word in range(16):
            (value,) = emit("ld.shared.f32", tile.place.__class__(bare + i * 4, word * 128))
            flat[word * 32 + i] = value

    x = np.random.default_rng().normal(size=(16, 32)).astype(np.float32)
    flat = np.zeros(512, np.float32)
    run(through, x, flat)
    places = mode.apply(np.arange(0, 2048, 4)) // 4
    expected = np.zeros(512, np.float32)
    expected[places] = x.reshape(-1)
    np.testing.assert_array_equal(flat, expected)


def test_whole_tiles_need_no_swizzle_arithmetic():
    @kernel
    def stages(x, n: s32):
        tiles = shared(f32, (4, 8, 32), swizzle="128B")
        tiles[n, 0, 0] = 1.0
        tiles[n, 2, 5] = 1.0
        sync_threads()
        x[0] = tiles[n, 2, 5]

    x = np.zeros(1, np.float32)
    lines = body(run(stages, x, 3))
    assert x[0] == 1
    assert not any("xor" in line for line in lines)


def test_shared_memory_is_laid_out_once():
    arrays = [
        SharedArray("a", 24, 8),
        SharedArray("b", 100, 1024),
        SharedArray("c", 6, 2),
        SharedArray("d", 1024, 1024),
    ]
    places, size, align = layout(arrays)
    assert places == {"b": 0, "d": 1024, "a": 2048, "c": 2072}
    assert (size, align) == (2078, 1024)
    assert layout([]) == ({}, 0, 1)

    @kernel
    def two(x: Array[f32]):
        small, large = shared("u8", 3, name="small"), shared(f32, (64,), name="large", align=128)
        small[0] = 7
        large[thread()] = x[thread()]
        sync_threads()
        x[thread()] = large[31 - thread()] + small[0].to(f32)

    x = np.arange(32, dtype=np.float32)
    bound = two.bind(x, grid=(1, 1, 1), block=(32, 1, 1))
    assert bound.shared_bytes == 64 * 4 + 3
    run(two, x)
    np.testing.assert_array_equal(x, np.arange(31, -1, -1) + 7)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.float32, np.uint64, np.float64, np.float16])
def test_atomics(dtype):
    @kernel
    def count(total, old):
        before = total.atomic("add", 2, 0, result=True)
        total.atomic("add", 1, thread() % 3 + 1)
        old[thread()] = before

    total, old = np.zeros(4, dtype), np.zeros(32, dtype)
    run(count, total, old)
    assert total.tolist() == [64, 11, 11, 10]
    assert sorted(old.tolist()) == list(range(0, 64, 2))


def test_atomics_of_every_operation():
    @kernel
    def combine(x):
        table = shared("s32", 6)
        with when(thread() == 0):
            table.store([0, 1000], 0)
            table.store([-1, 0], 2)
            table.store([0, 0], 4)
        sync_threads()
        i = thread().to(s32)
        table.atomic("max", i, 0)
        table.atomic("min", i, 1)
        table.atomic("and", i | 64, 2)
        table.atomic("or", i, 3)
        table.atomic("xor", i, 4)
        table.atomic("exch", i, 5)
        sync_threads()
        with when(i < 6):
            x[i] = table[i]

    x = np.zeros(6, np.int32)
    run(combine, x)
    assert x[:5].tolist() == [31, 0, 64, 31, 0]
    assert 0 <= x[5] < 32


def test_tmem():
    @kernel(target="sm_100a")
    def through(x, y):
        slot = shared("u32", 1)
        emit("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32", slot.place, 32)
        sync_threads()
        memory = TensorMemory(slot[0], 32)
        i = thread()
        fragment = tensor_load(memory.at(), repeats=8).apply(lambda _: x[0, i])
        values = tuple(x[column, i] for column in range(8))
        tensor_store(memory.at(column=4), fragment.__class__(values, fragment.layout))
        emit("tcgen05.wait::st.sync.aligned")
        back = tensor_load(memory.at(0, (i * 0 + 4)), repeats=8)
        emit("tcgen05.wait::ld.sync.aligned")
        for column, value in enumerate(back.values):
            y[column, i] = value
        emit("tcgen05.dealloc.cta_group::1.sync.aligned.b32", slot[0], 32)

    x = np.random.default_rng().normal(size=(8, 32)).astype(np.float32)
    y = np.zeros_like(x)
    text = run(through, x, y)
    np.testing.assert_array_equal(y, x)
    assert text.startswith(".version 8.6\n")


def test_barriers_carry_names():
    @kernel
    def handshake(x):
        done = barriers("done", 2)
        with when(thread() == 0):
            done.init(32)
            fence_barrier_init()
        sync_threads()
        done[1].arrive()
        done[1].wait(0)
        x[thread()] = done[1].test(0).to(s32)

    x = np.zeros(32, np.int32)
    text = run(handshake, x)
    assert x.tolist() == [1] * 32
    assert "//!wl barrier done shared_memory+0 8 2" in text


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda x: x[8, 0], "index 8 into 8 elements"),
        (lambda x: x.at(1), "1 indices into 2 dimensions"),
        (lambda x: x[1, 2, 3], "into shape (8, 40)"),
        (lambda x: x["a", 2], "into shape (8, 40)"),
        (lambda x: x[3:3], "empty or backward slice"),
        (lambda x: x[thread() :], "window(start, shape)"),
        (lambda x: x.reshape(3, 5), "reshaped to (3, 5)"),
        (lambda x: x.load(0, 0, count=3), "3 neighbours"),
        (lambda x: x.__setitem__(slice(0, 2), 1.0), "store its elements"),
        (lambda x: x.__setitem__((0, 0), thread()), "a .u32 stored to a .f32 array"),
        (lambda x: x.atomic("min", 1.0, 0, 0), "atomic `min` of a .f32"),
        (lambda x: x[x[0, 0], 0], "a .f32 as index"),
        (lambda x: x.bits("u16"), "a view of .f32 read as .u16"),
        (lambda x: x.window((0,), (1,)), "a window of 1 dimensions in 2"),
        (lambda x: shared("f8", 3), "a shared array of .f8"),
    ],
)
def test_wrong_indices_are_reported(act, says):
    @kernel
    def wrong(x):
        act(x)

    with pytest.raises(TraceError) as caught:
        wrong.bind(np.zeros((8, 40), np.float32), grid=(1, 1, 1), block=(32, 1, 1))
    assert says in str(caught.value)
    assert caught.value.code in ("BAD_INDEX", "TYPE_MISMATCH")
    assert caught.value.loc.file == __file__
