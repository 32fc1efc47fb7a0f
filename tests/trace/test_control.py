"""Loops, branches and variables: what they compute, and what a careful person would have written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.harness import accepted, body, run

from warploom import WarploomError, launch
from warploom.trace import (
    Variable,
    While,
    f32,
    kernel,
    loop,
    otherwise,
    s32,
    special,
    sync_threads,
    thread,
    warp_index,
    when,
)

SCHEDULES = ("eager", "lazy", "reverse", "random")


def total(n, *, bounds, step=1, unroll=1, peel=0):
    """The indices of a loop as the device sees them: how many, their sum, and a number that knows their order."""

    @kernel
    def traced(out, n: s32):
        count, added, order = Variable("s32", 0), Variable("s32", 0), Variable("s32", 0)
        sides = [n if side == "n" else side for side in bounds]
        for k in loop(*sides, step=step, unroll=unroll, peel=peel):
            count += 1
            added += k
            order.set(order * 3 + k)
        with when(thread() == 0):
            out[0] = count
            out[1] = added
            out[2] = order

    out = np.zeros(3, np.int32)
    bound = traced.bind(out, n, grid=(1, 1, 1), block=(32, 1, 1))
    launch(bound)
    return out.tolist(), bound


def expected(bounds, n, step):
    indices = list(range(*[n if side == "n" else side for side in bounds], *([step] if len(bounds) == 2 else [])))
    order = 0
    for index in indices:
        order = (order * 3 + index) & 0xFFFFFFFF
    return [len(indices), sum(indices), order - (1 << 32) if order >> 31 else order]


@settings(max_examples=40)
@given(
    n=st.integers(-3, 13),
    start=st.integers(-4, 6),
    step=st.sampled_from([1, 2, 3, -1, -2]),
    unroll=st.integers(1, 4),
    peel=st.integers(0, 3),
    known=st.booleans(),
)
def test_loops_run_as_python_ranges_do(n, start, step, unroll, peel, known):
    bounds = (start, n if known else "n")
    found, _ = total(n, bounds=bounds, step=step, unroll=unroll, peel=peel)
    assert found == expected(bounds, n, step)


@pytest.mark.parametrize(("unroll", "peel", "known"), [(1, 0, False), (4, 0, False), (4, 2, True), (1, 1, False)])
def test_loops_assemble(unroll, peel, known):
    _, bound = total(9, bounds=(9 if known else "n",), unroll=unroll, peel=peel)
    accepted(bound)


def test_a_known_trip_count_needs_no_test_at_the_entry():
    _, bound = total(5, bounds=(5,))
    lines = body(accepted(bound))
    assert sum(line.startswith("setp") for line in lines) == 2
    assert not any("$done" in line for line in lines)
    assert "add.s32 %r1, %r1, 1;" in lines or any(line.startswith("add.s32 %r") for line in lines)


def test_variables_are_updated_in_place():
    @kernel
    def count(out, n: s32):
        x = Variable("s32", 0)
        for _ in loop(n):
            x += 1
        out[thread()] = x

    out = np.zeros(32, np.int32)
    lines = body(run(count, out, 7))
    assert out.tolist() == [7] * 32
    moves = [line for line in lines if line.startswith("mov.b32")]
    assert len(moves) == 2, "one for each variable's start"
    register = moves[0].split()[1].strip(",")
    assert f"add.s32 {register}, {register}, 1;" in lines


def test_old_values_survive_assignments():
    @kernel
    def swap(x, y, n: s32):
        a, b = Variable("f32", x[thread()]), Variable("f32", y[thread()])
        for _ in loop(n):
            old = a.get()
            a.set(b)
            b.set(old)
        x[thread()] = a
        y[thread()] = b

    x, y = np.arange(32, dtype=np.float32), np.arange(32, dtype=np.float32) * -2
    before = x.copy(), y.copy()
    run(swap, x, y, 3)
    np.testing.assert_array_equal(x, before[1])
    np.testing.assert_array_equal(y, before[0])


def test_a_value_read_before_a_loop_keeps_its_number_in_it():
    @kernel
    def fibonacci(out, n: s32):
        a, b = Variable("s32", 0), Variable("s32", 1)
        first = b + 10
        seen = a.get()
        for _ in loop(n):
            following = a + b
            a.set(b)
            b.set(following)
            out[1] = seen
            out[2] = first
        out[0] = a

    out = np.full(3, -1, np.int32)
    run(fibonacci, out, 20)
    assert out.tolist() == [6765, 0, 11]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_divergent_branches(schedule):
    @kernel
    def collatz(x, steps):
        i = thread()
        value, count = Variable("s32", x[i]), Variable("s32", 0)
        for _ in While(lambda: value != 1):
            with when(value % 2 == 0):
                value.set(value // 2)
            with otherwise():
                value.set(value * 3 + 1)
            count += 1
        steps[i] = count

    def reference(n):
        steps = 0
        while n != 1:
            n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
        return steps

    x = np.random.default_rng().integers(1, 60, 64, np.int32)
    steps = np.zeros(64, np.int32)
    run(collatz, x, steps, block=(64, 1, 1), schedule=schedule)
    assert steps.tolist() == [reference(int(n)) for n in x]


def test_short_branches_are_predicated():
    @kernel
    def clip(x, low: f32):
        i = thread()
        value = Variable("f32", x[i])
        with when(value < low):
            value.set(low)
        with otherwise():
            value += 1.0
        x[i] = value

    x = np.random.default_rng().normal(size=32).astype(np.float32)
    before = x.copy()
    lines = body(run(clip, x, 0.25))
    np.testing.assert_array_equal(x, np.where(before < 0.25, np.float32(0.25), before + np.float32(1)))
    assert not any("bra" in line for line in lines)
    assert sum(line.startswith("@%p0 ") for line in lines) == 1
    assert sum(line.startswith("@!%p0 ") for line in lines) == 1


def test_long_branches_and_those_that_wait_stay_branches():
    @kernel
    def long(x, n: s32):
        i = thread()
        with when(i < 5):
            for number in range(9):
                x[number, i] = number
        with when(n > 3):
            sync_threads()

    x = np.zeros((9, 32), np.int32)
    lines = body(run(long, x, 4))
    np.testing.assert_array_equal(x[:, :5], np.repeat(np.arange(9), 5).reshape(9, 5))
    assert not x[:, 5:].any()
    assert sum(" bra " in line for line in lines) == 2


def test_branches_nest():
    @kernel
    def quadrants(x, y, out):
        i = thread()
        with when(x[i] > 0):
            with when(y[i] > 0):
                out[i] = 1
            with otherwise():
                out[i] = 2
        with otherwise():
            with when(y[i] > 0):
                out[i] = 3
            with otherwise():
                out[i] = 4

    rng = np.random.default_rng()
    x, y = (rng.choice([-1, 1], 32).astype(np.int32) for _ in range(2))
    out = np.zeros(32, np.int32)
    run(quadrants, x, y, out)
    np.testing.assert_array_equal(out, np.where(x > 0, np.where(y > 0, 1, 2), np.where(y > 0, 3, 4)))


def test_known_conditions_are_decided_while_tracing():
    @kernel
    def known(out, *, wide):
        with when(wide):
            out[thread()] = 1
        with otherwise():
            out[thread()] = 2

    for wide in (True, False):
        out = np.zeros(32, np.int32)
        run(known, out, wide=wide)
        assert out.tolist() == [1 if wide else 2] * 32


def test_expressions_are_computed_once():
    @kernel
    def twice(x):
        i = thread()
        a = (i * 12 + 5) ^ 3
        with when(i < 10):
            b = (i * 12 + 5) ^ 3
            x[i] = (a + b).to("s32")

    x = np.zeros(32, np.int32)
    lines = body(run(twice, x))
    np.testing.assert_array_equal(x[:10], 2 * ((np.arange(10) * 12 + 5) ^ 3))
    assert sum("mul.lo" in line for line in lines) == 1
    assert sum("xor" in line for line in lines) == 1


def test_loads_are_not_reused_across_stores():
    @kernel
    def again(x):
        i = thread()
        first = x[i]
        x[i] = first + 1
        x[i] = x[i] * 2

    x = np.arange(32, dtype=np.int32)
    lines = body(run(again, x))
    np.testing.assert_array_equal(x, (np.arange(32) + 1) * 2)
    assert sum(line.startswith("ld.global") for line in lines) == 2


def test_unread_results_are_gone():
    @kernel
    def idle(x, n: s32):
        _ = thread() * 3 + n.to("u32")
        unused = Variable("s32", 0)
        for _ in loop(4):
            unused += n
        x[0] = 1

    lines = body(run(idle, np.zeros(4, np.int32), 3))
    assert not any(word in line for line in lines for word in ("mul", "tid", "idle_n", "add.s32 %r1, %r1, %r0"))


def test_variables_of_predicates():
    @kernel
    def found(x, out, n: s32):
        any_, all_ = Variable("pred", False), Variable("pred", True)
        for k in loop(n):
            any_ |= x[k] == 3
            all_ &= x[k] == 3
            with when(~any_):
                out[2, thread()] = k
        out[0, thread()] = any_.to("s32")
        out[1, thread()] = all_.to("s32")

    for row in ([1, 2, 3, 4], [3, 3, 3, 3], [1, 1, 2, 2]):
        out = np.full((3, 32), -1, np.int32)
        run(found, np.array(row, np.int32), out, 4)
        before = row.index(3) - 1 if 3 in row else 3
        assert out[:, 7].tolist() == [3 in row, row == [3] * 4, before]


def test_clocks_are_read_each_time():
    @kernel
    def ticks(out):
        before = special("clock64", "u64")
        sync_threads()
        out[thread()] = special("clock64", "u64") - before

    out = np.zeros(32, np.uint64)
    lines = body(run(ticks, out))
    assert sum("%clock64" in line for line in lines) == 2


def test_a_register_is_read_with_its_width():
    @kernel
    def time(out):
        out[thread()] = special("globaltimer").to("u64")

    with pytest.raises(WarploomError, match=r"`%globaltimer`, which has 64 bits, read as \.u32"):
        run(time, np.zeros(32, np.uint64))


def test_constants_are_read_before_the_body():
    @kernel
    def halves(out):
        with when(thread() < 16):
            out[thread() * 2] = warp_index().to("s32") + 1
        with otherwise():
            out[thread() * 2] = warp_index().to("s32") + 2

    out = np.zeros(128, np.int32)
    lines = body(run(halves, out, block=(64, 1, 1)))
    assert out[::2].tolist() == [1] * 16 + [2] * 16 + [3] * 32
    assert sum("shfl" in line for line in lines) == sum("%tid.x" in line for line in lines) == 1
