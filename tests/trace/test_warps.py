"""Shuffles, votes, elections; roles of warps."""

from __future__ import annotations

import numpy as np
import pytest
from tests.trace.harness import body, run

from warploom import launch
from warploom.diagnostics import Stuck, TraceError
from warploom.trace import (
    ballot,
    barriers,
    elect,
    fence_barrier_init,
    kernel,
    lane,
    s32,
    shared,
    shuffle,
    sync_threads,
    thread,
    vote_all,
    vote_any,
    warp_index,
    warp_roles,
    when,
)


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.uint64, np.float64, np.float16, np.int16])
def test_shuffles(dtype):
    @kernel
    def move(x, y):
        value = x[thread()]
        for row, (mode, amount) in enumerate((("bfly", 5), ("up", 3), ("down", 4), ("idx", 7))):
            y[row, thread()] = shuffle(value, mode, amount)

    x = np.random.default_rng().integers(0, 1000, 32).astype(dtype)
    y = np.zeros((4, 32), dtype)
    run(move, x, y)
    i = np.arange(32)
    sources = (i ^ 5, np.where(i >= 3, i - 3, i), np.where(i + 4 < 32, i + 4, i), i * 0 + 7)
    np.testing.assert_array_equal(y, [x[source] for source in sources])


def test_a_reduction_by_shuffles():
    @kernel
    def add_up(x, y):
        value = x[thread()]
        for distance in (16, 8, 4, 2, 1):
            value = value + shuffle(value, "bfly", distance)
        with when(lane() == 0):
            y[warp_index()] = value

    x = np.random.default_rng().integers(-99, 99, 96).astype(np.int32)
    y = np.zeros(3, np.int32)
    run(add_up, x, y, block=(96, 1, 1))
    np.testing.assert_array_equal(y, x.reshape(3, 32).sum(1))


def test_votes_and_elections():
    @kernel
    def vote(out):
        i = thread()
        out[0, i] = vote_all(i < 32).to(s32)
        out[1, i] = vote_all(i < 31).to(s32)
        out[2, i] = vote_any(i == 9).to(s32)
        out[3, i] = ballot(i % 2 == 0).to(s32)
        with when(elect()):
            out[4, i] = 1

    out = np.zeros((5, 32), np.int32)
    text = run(vote, out)
    assert out[:4, 0].tolist() == [1, 0, 1, 0x55555555]
    assert out[4].sum() == 1
    assert any(line.startswith("elect.sync _|%p") for line in body(text))


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random"])
def test_roles_divide_the_warps(schedule):
    @kernel
    def work(out, n: s32):
        roles = warp_roles(many=4, one=1, two=2)
        i = thread()
        assert roles.threads == 224
        assert roles.many.threads == 128
        base = i.to(s32) * n
        with roles.many:
            out[i] = base + 1000
        with roles.two:
            out[i] = roles.two.warp.to(s32) * 100 + (roles.two.thread % 32).to(s32)
        with roles.one:
            out[i] = base + 2000

    out = np.zeros(224, np.int32)
    text = run(work, out, 3, block=(224, 1, 1), schedule=schedule)
    i = np.arange(224)
    np.testing.assert_array_equal(
        out, np.where(i < 128, 3 * i + 1000, np.where(i < 160, 3 * i + 2000, (i - 160) // 32 * 100 + i % 32))
    )
    assert "//!wl role many 0-3" in text
    assert "//!wl role two 5-6" in text
    lines = body(text)
    assert sum(line.startswith("setp") for line in lines) == 3
    assert sum(line.startswith("shfl") for line in lines) == 1


def test_roles_request_registers():
    @kernel(maxnreg=128)
    def work(out):
        roles = warp_roles(multiply=8, load=4, registers={"load": 40, "multiply": 160})
        with roles.load:
            out[thread()] = 1
        with roles.multiply:
            out[thread()] = 2

    out = np.zeros(384, np.int32)
    lines = body(run(work, out, block=(384, 1, 1)))
    assert "setmaxnreg.dec.sync.aligned.u32 40;" in lines
    assert "setmaxnreg.inc.sync.aligned.u32 160;" in lines
    np.testing.assert_array_equal(out, np.repeat([2, 1], [256, 128]))


def test_a_hang_names_its_barriers():
    @kernel
    def hang(out):
        roles = warp_roles(load=1, multiply=1)
        full = barriers("full", 2)
        with when(thread() == 0):
            full.init(1)
            fence_barrier_init()
        sync_threads()
        with roles.multiply:
            full[1].wait(0)
        with roles.load:
            out[thread()] = 1

    with pytest.raises(Stuck) as caught:
        launch(hang.bind(np.zeros(64, np.int32), grid=(1, 1, 1), block=(64, 1, 1)))
    assert "full[1]" in str(caught.value)


def trace(function, threads=64):
    return kernel(function).bind(np.zeros(256, np.int32), grid=(1, 1, 1), block=(threads, 1, 1))


def test_a_value_of_another_role_is_refused():
    def leak(out):
        roles = warp_roles(load=1, multiply=1)
        with roles.load:
            mine = thread() * 3
        with roles.multiply:
            out[thread()] = mine.to("s32")

    with pytest.raises(TraceError) as caught:
        trace(leak)
    text = str(caught.value)
    assert caught.value.code == "WRONG_ROLE"
    assert "computed in role `load`" in text
    assert "used in role `multiply`" in text
    assert caught.value.loc.line == leak.__code__.co_firstlineno + 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"load": 1, "multiply": 2}, "the roles have 96 threads and the block 64"),
        ({"load": 0, "multiply": 2}, "role `load` has 0 warps"),
        ({"load": 2, "registers": {"store": 40}}, "`registers` names `store`, which is not a role"),
        ({"load": 2, "registers": {"load": 41}}, "asks for 41 registers"),
        ({"load": 2, "registers": {"load": 40}}, "not whole warpgroups"),
    ],
)
def test_wrong_roles_are_reported(arguments, says):
    def wrong(out):
        warp_roles(**arguments)

    with pytest.raises(TraceError) as caught:
        trace(wrong)
    assert says in str(caught.value)


def test_roles_do_not_nest():
    def wrong(out):
        roles = warp_roles(load=1, multiply=1)
        with roles.load, roles.multiply:
            out[thread()] = 1

    with pytest.raises(TraceError, match="BAD_KERNEL"):
        trace(wrong)


def test_a_role_that_does_not_exist_is_an_attribute_error():
    def wrong(out):
        _ = warp_roles(load=2).stroe

    with pytest.raises(AttributeError, match="no role `stroe`; there are load"):
        trace(wrong)


def test_shared_arrays_may_be_declared_before_the_roles():
    def fine(out):
        roles = warp_roles(load=1, multiply=1)
        tile = shared("s32", 64)
        with roles.load:
            tile[thread()] = 1
        with roles.multiply:
            out[thread()] = tile[thread()]

    trace(fine)


def test_a_deadlock_names_roles_and_barriers():
    @kernel
    def stuck(out):
        roles = warp_roles(load=1, multiply=4)
        full, empty = barriers("inputs.full", 2), barriers("inputs.empty", 2)
        with when(thread() == 0):
            full.init(1)
            empty.init(1)
            fence_barrier_init()
        sync_threads()
        with roles.load:
            empty[1].wait(0)
        with roles.multiply:
            full[1].wait(0)
            out[thread()] = 1

    out = np.zeros(160, np.int32)
    with pytest.raises(Stuck) as caught:
        launch(stuck.bind(out, grid=(1, 1, 1), block=(160, 1, 1)))
    rows = {
        line.split()[0]: line for line in str(caught.value).splitlines() if "test_warps.py" in line and "waits" in line
    }
    assert "warp 0 " in rows["load"]
    assert "inputs.empty[1]" in rows["load"]
    assert "warps 1-4" in rows["multiply"]
    assert "inputs.full[1]" in rows["multiply"]
