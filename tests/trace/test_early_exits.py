"""`return`, `break` and `continue` in device regions: guards where that is sound, else an error at their line."""

from __future__ import annotations

import functools
from contextlib import contextmanager

import numpy as np
import pytest
from tests.trace.harness import accepted, body, run
from tests.trace.test_errors import reported

import warploom.trace as wl
from warploom import launch
from warploom.diagnostics import TraceError
from warploom.trace import (
    Variable,
    cta_index,
    f32,
    kernel,
    loop,
    otherwise,
    s32,
    special,
    sync_threads,
    thread,
    warp_roles,
    when,
)

RNG = np.random.default_rng()


def index():
    return (cta_index() * special("ntid.x") + thread()).to("s32")


def test_a_guard_at_the_top_of_a_kernel_keeps_the_rest_for_the_other_threads():
    @kernel
    def scale(x, y, n: s32):
        i = index()
        with when(i >= n):
            return
        y[i] = x[i] * 2.0

    size = int(RNG.integers(33, 250))
    x, y = RNG.integers(-9, 9, 256).astype(np.float32), np.full(256, np.nan, np.float32)
    text = run(scale, x, y, size, grid=(2, 1, 1), block=(128, 1, 1))
    np.testing.assert_array_equal(y[:size], x[:size] * 2)
    assert np.isnan(y[size:]).all()
    assert not any("bra" in line for line in body(text)), "a short rest is predicated"


def test_a_guard_means_what_a_block_around_the_rest_means():
    @kernel
    def guarded(x, n: s32):
        i = index()
        with when(i >= n):
            return
        x[i] = x[i] + 1.0

    @kernel
    def nested(x, n: s32):
        i = index()
        with when(i < n):
            x[i] = x[i] + 1.0

    x = np.zeros(64, np.float32)
    guard, block = (body(accepted(each.bind(x, 5, grid=(1, 1, 1), block=(32, 1, 1)))) for each in (guarded, nested))
    same = {"guarded_": "nested_", "setp.ge": "setp.lt", "@!%p0": "@%p0"}
    assert [functools.reduce(lambda line, pair: line.replace(*pair), same.items(), line) for line in guard] == block


def test_guards_follow_each_other_do_work_first_and_see_closures():
    factor, other = float(RNG.integers(2, 9)), wl.when

    @kernel
    def several(x, y, n: s32, *, offset: float = 3.0):
        i = index()
        with other(i >= n):
            y[i] = -1.0
            return
        with wl.when(i < 3):
            y[i] = -2.0
            return
        for k in loop(4):
            with when(k == 2):
                continue
            y[i] = y[i] + x[i] * factor
        y[i] = y[i] + offset

    x, y = RNG.integers(-9, 9, 96).astype(np.float32), np.zeros(96, np.float32)
    launch(several.bind(x, y, 70, grid=(3, 1, 1), block=(32, 1, 1)))
    expected = 3 * x * factor + 3
    expected[:3], expected[70:] = -2, -1
    np.testing.assert_array_equal(y, expected)


def test_otherwise_after_a_guard_is_part_of_the_rest():
    @kernel
    def both(y, n: s32):
        i = index()
        with when(i < n):
            y[i] = 1.0
            return
        with otherwise():
            y[i] = 2.0
        y[i] = y[i] + 10.0

    y = np.full(32, np.nan, np.float32)
    run(both, y, 11)
    np.testing.assert_array_equal(y, [1.0] * 11 + [12.0] * 21)


@pytest.mark.parametrize("host", [False, True])
def test_continue_skips_the_rest_of_an_iteration(host):
    @kernel
    def odd(y, n: s32):
        total = Variable(s32, 0)
        for k in range(7) if host else loop(n):
            with when((thread().to(s32) + k) % 2 == 0):
                continue
            total += k
        y[thread()] = total

    y = np.full(32, -1, np.int32)
    run(odd, y, 7)
    np.testing.assert_array_equal(y, [sum(k for k in range(7) if (t + k) % 2) for t in range(32)])


def test_a_barrier_after_a_guard_waits_for_the_threads_that_are_left():
    @kernel
    def reverse(y, n: s32):
        parts = wl.shared(f32, 64, name="parts")
        i = thread().to(s32)
        with when(i >= 32):
            return
        parts[i] = i.to(f32)
        sync_threads()
        y[i] = parts[31 - i]

    y = np.full(64, np.nan, np.float32)
    run(reverse, y, 5, block=(64, 1, 1))
    np.testing.assert_array_equal(y[:32], np.arange(31, -1, -1))


def test_exits_after_which_nothing_is_left_are_allowed():
    def helper(x, flag):
        with when(thread() == 0):
            if flag:
                x[0] = 1.0
                return
            x[0] = 2.0

    @kernel
    def last(x, n: s32):
        roles = warp_roles(only=1)
        helper(x, flag=True)
        for k in loop(n):
            with when(k == 1):
                x[1] = 5.0
                continue
        with roles.only:
            x[2] = 7.0
            return

    x = np.zeros(3, np.float32)
    run(last, x, 3)
    assert x.tolist() == [1, 5, 7]


def helper_with_return(x):
    with when(x[0] > 0.0):
        return 1
    return 2


@contextmanager
def first_thread():
    with when(thread() == 0):
        yield


class FirstThread:
    """A context manager of a user's own."""

    def __enter__(self):
        self.inner = when(thread() == 0)
        self.inner.__enter__()

    def __exit__(self, *error):
        self.inner.__exit__(*error)


def test_exits_that_would_drop_code_are_errors_at_their_line():
    def value(x, n: s32):
        with when(n > 3):
            return 4  # HERE
        x[0] = 1.0
        return None

    def under_if(x, n: s32):
        if len(x.shape) == 1:
            with when(n > 3):
                return  # HERE
        x[0] = 1.0

    def in_a_loop(x, n: s32):
        for k in loop(n):
            with when(k > 3):
                return  # HERE
            x[k] = 1.0

    def break_(x, n: s32):
        for k in loop(n):
            with when(k > 3):
                x[k] = 2.0
                break  # HERE

    def host_break(x, n: s32):
        for k in range(3):
            with when(n > k):
                break  # HERE
            x[k] = 1.0

    def in_a_role(x, n: s32):
        roles = warp_roles(only=1)
        with roles.only:
            x[0] = 1.0
            return  # HERE
        x[1] = 1.0

    def guard_in_a_role(x, n: s32):
        roles = warp_roles(only=1)
        with roles.only:
            with when(n > 3):
                return  # HERE
            x[1] = 1.0

    def two_managers(x, n: s32):
        with when(n > 3), when(n < 9):
            return  # HERE
        x[1] = 1.0

    def closure(x, n: s32):
        def store():
            with when(n > 3):
                return  # HERE
            x[1] = 1.0

        store()

    def own_generator(x, n: s32):
        with first_thread():
            return  # HERE
        x[1] = 1.0

    def own_class(x, n: s32):
        with FirstThread():
            return  # HERE
        x[1] = 1.0

    def other_side(x, n: s32):
        with when(n > 3):
            x[0] = 1.0
        with otherwise():
            return  # HERE
        x[1] = 1.0

    for function in (
        value, under_if, in_a_loop, break_, host_break, in_a_role, guard_in_a_role, two_managers, closure,
        own_generator, own_class, other_side,
    ):  # fmt: skip
        reported(function, "LEFT_LOOP_EARLY", "drop code for all threads", "with when(...):")


def test_a_helper_that_returns_out_of_a_block_is_an_error_there():
    def calls(x, n: s32):
        helper_with_return(x)

    with pytest.raises(TraceError) as caught:
        kernel(calls).bind(np.zeros(4, np.float32), 3, grid=(1, 1, 1), block=(32, 1, 1))
    assert caught.value.code == "LEFT_LOOP_EARLY"
    assert caught.value.loc.line == helper_with_return.__code__.co_firstlineno + 2
    assert "`return`" in caught.value.what


SOURCE = """
def traced(x, n: "s32"):
    i = thread().to("s32")
    for k in loop(2):
        with when(i >= n):
            {statement}
        x[i] = x[i] + 1.0
"""


@pytest.mark.parametrize("statement", ["continue", "break", "return", "return k"])
def test_without_source_an_early_exit_is_an_error(statement):
    names = {"thread": thread, "when": when, "loop": loop}
    exec(compile(SOURCE.format(statement=statement), "<no source>", "exec"), names)
    with pytest.raises(TraceError, match="source is not available") as caught:
        kernel(names["traced"]).bind(np.zeros(32, np.float32), 3, grid=(1, 1, 1), block=(32, 1, 1))
    assert caught.value.loc.line == 5


@pytest.mark.parametrize("more", ["", "if n is None: return", "for _ in loop(2): pass", "with when(k == 9): pass"])
def test_without_source_ordinary_blocks_are_traced(more):
    names = {"thread": thread, "when": when, "loop": loop}
    exec(compile(SOURCE.format(statement=f"x[i] = 5.0\n            {more}"), "<no source>", "exec"), names)
    x = np.zeros(32, np.float32)
    run(kernel(names["traced"]), x, 3)
    assert x.tolist() == [2.0] * 3 + [6.0] * 29


def test_without_source_a_long_kernel_is_traced():
    """Its exception handlers are far from where they go on, so that jumps have long arguments."""
    source = "def traced(x, n: 's32'):\n with when(thread() < n):\n  x[0] = 1.0\n" + " x[0] = x[0] + 1.0\n" * 100
    names = {"thread": thread, "when": when}
    exec(source, names)
    x = np.zeros(1, np.float32)
    run(kernel(names["traced"]), x, 3, block=(1, 1, 1))
    assert x[0] == 101


def test_without_source_a_last_return_is_allowed():
    source = "def traced(x, n: 's32'):\n with when(thread() == 0):\n  x[0] = n.to('f32')\n  return"
    names = {"thread": thread, "when": when}
    exec(source, names)
    x = np.zeros(1, np.float32)
    run(kernel(names["traced"]), x, 3)
    assert x[0] == 3
