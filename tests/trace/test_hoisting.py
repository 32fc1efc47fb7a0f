"""Loop-invariant arithmetic, and nothing else, is moved before its loop."""

from __future__ import annotations

import numpy as np
import pytest
from tests.trace.harness import body, run

from warploom.trace import (
    Variable,
    While,
    emit,
    f32,
    kernel,
    loop,
    merge,
    otherwise,
    s32,
    shared,
    split,
    sync_threads,
    thread,
    u32,
    warp_roles,
    when,
)


def inside(lines, number=0):
    """The lines of the body of a loop."""
    start = lines.index(f"$loop_{number}:")
    return lines[start : next(at for at in range(start, len(lines)) if f"bra $loop_{number};" in lines[at])]


def test_invariant_arithmetic_is_computed_once():
    @kernel
    def table(out, n: s32):
        for k in loop(n):
            for j in loop(3):
                out[k, j, thread() * 3 % 7 + thread() // 5] = thread().to(s32) * 3 % 7 + k * n + j

    out = np.full((5, 3, 40), -1, np.int32)
    lines = body(run(table, out, 5))
    i, k, j = np.arange(32), np.arange(5)[:, None, None], np.arange(3)[None, :, None]
    expected = np.full((5, 3, 40), -1, np.int32)
    expected[:, :, i * 3 % 7 + i // 5] = -7
    last = {int(c): int(t) for t, c in zip(i, i * 3 % 7 + i // 5, strict=True)}
    for column, t in last.items():
        expected[:, :, column] = (t * 3 % 7 + k * 5 + j)[:, :, 0]
    np.testing.assert_array_equal(out, expected)
    inner = inside(lines, 1)
    assert not [line for line in inside(lines) if line.startswith(("mul.hi", "mad"))]
    assert sum(line.startswith(("mul.wide", "mul.lo")) for line in inner) == 1, "only j is scaled in the inner loop"
    assert sum(line.startswith(("mul.wide", "mul.lo")) for line in inside(lines)) == 3, "k, k·n and j"


def test_values_are_kept_if_a_loop_is_not_entered():
    @kernel
    def skip(out, n: s32):
        i = thread().to(s32)
        for _ in loop(n):
            out[i * 5 % 32] = 1
        out[i * 5 % 32] = out[i * 5 % 32] + i * 5 % 32

    for turns in (0, 3):
        out = np.zeros(32, np.int32)
        lines = body(run(skip, out, turns))
        np.testing.assert_array_equal(out, np.arange(32) + (turns > 0))
        assert sum(line.startswith("mul.lo") for line in lines) == 1


def test_branches_and_while_loops_are_left_too():
    @kernel
    def count(out, n: u32):
        k = Variable(u32, 0)
        for _ in While(lambda: k < n):  # noqa: B023 - it is asked at once
            with when(k % 2 == 0):
                out[thread()] = out[thread()] + thread() * thread()
            with otherwise():
                out[thread()] = out[thread()] + thread() * n
            k += 1

    out = np.zeros(32, np.uint32)
    lines = body(run(count, out, 5))
    i = np.arange(32)
    np.testing.assert_array_equal(out, 3 * i * i + 2 * i * 5)
    top = lines.index("$while_0:")
    assert all(at < top for at, line in enumerate(lines) if line.startswith("mul"))


def test_a_branch_alone_keeps_what_is_in_it():
    @kernel
    def rare(out, n: s32):
        with when(n > 3):
            out[thread() * 7] = 1

    out = np.zeros(256, np.int32)
    lines = body(run(rare, out, 4))
    assert out.nonzero()[0].tolist() == list(range(0, 224, 7))
    asked = next(at for at, line in enumerate(lines) if line.startswith("setp"))
    assert all(at > asked for at, line in enumerate(lines) if line.startswith("mul.lo"))
    assert [line.split()[1].partition(".")[0] for line in lines if line.startswith("@")] == ["st"]


def test_a_guard_is_emitted_only_for_effects_and_old_values():
    @kernel
    def chosen(out, n: s32):
        kept = Variable("s32", 5)
        with when(n > 3):
            kept.set(thread().to(s32) * 7)
        out[thread()] = kept

    for n in (3, 4):
        out = np.zeros(32, np.int32)
        lines = body(run(chosen, out, n))
        np.testing.assert_array_equal(out, 7 * np.arange(32) if n > 3 else 5)
    assert [line.split()[1].partition(".")[0] for line in lines if line.startswith("@")] in (["mov"], ["mul"])


def test_a_load_under_a_condition_gives_zero_where_it_does_not_hold():
    @kernel
    def edge(out, x, n: s32):
        i = thread().to(s32)
        out[i] = x.load_where(i < n, i)

    x, out = np.arange(1, 33, dtype=np.int32), np.full(32, -1, np.int32)
    run(edge, out, x, 20)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 20, x, 0))


def test_a_role_keeps_its_own_values():
    @kernel
    def parts(out, n: s32):
        roles = warp_roles(first=1, second=1)
        base = thread().to(s32) * n
        with roles.first:
            for _ in loop(n):
                out[base * 3 % 64] = 1
        with roles.second:
            out[thread()] = base

    out = np.zeros(64, np.int32)
    lines = body(run(parts, out, 1, block=(64, 1, 1)))
    np.testing.assert_array_equal(out[32:], np.arange(32, 64))
    begins = next(at for at, line in enumerate(lines) if "role first" in line)
    tripled = next(at for at, line in enumerate(lines) if re_tripled(line))
    assert begins < tripled < lines.index("$loop_0:")


def re_tripled(line):
    return line.startswith("mul.lo.s32") and line.endswith(", 3;")


def test_floats_predicates_loads_and_cheap_sums_stay():
    @kernel
    def work(x, out, n: s32):
        i = thread().to(s32)
        for _ in loop(n):
            value = x[i] * 2.0
            with when(i + 1 < n):
                out[i] = out[i] + value * 3.0
            out[i] = out[i] + (i + 7).to(f32)

    x = np.arange(32, dtype=np.float32)
    out = np.zeros(32, np.float32)
    lines = body(run(work, x, out, 4))
    i = np.arange(32)
    np.testing.assert_array_equal(out, 4 * np.where(i + 1 < 4, x * 6, 0) + 4 * (i + 7))
    stay = [line.split()[0] for line in inside(lines)]
    assert {"ld.global.f32", "mul.rn.f32", "add.s32", "cvt.rn.f32.s32"} <= set(stay)
    assert any("setp.lt" in line for line in inside(lines)[:-1])


def test_a_loop_keeps_few_registers():
    @kernel
    def many(out, n: s32):
        for k in loop(n):
            for j in range(40):
                out[k * 40 + (thread().to(s32) * (2 * j + 3) & 31)] = j

    out = np.zeros(120, np.int32)
    lines = body(run(many, out, 3))
    before = lines[: lines.index("$loop_0:")]
    assert sum(line.startswith("mul.lo") for line in before) <= 16
    assert sum(line.startswith("mul.lo") for line in inside(lines)) >= 20


def test_a_wait_inside_stays_where_it_is():
    @kernel
    def meet(out, n: s32):
        slot = shared(s32, 32)
        for k in loop(n):
            slot[31 - thread()] = thread().to(s32) * n
            sync_threads()
            out[k, thread()] = slot[thread()]
            emit("bar.sync", 1, 32)

    out = np.zeros((3, 32), np.int32)
    run(meet, out, 3)
    np.testing.assert_array_equal(out, [np.arange(31, -1, -1) * 3] * 3)


def test_iterations_share_invariant_values():
    @kernel
    def scaled(out, n: s32):
        for k in loop(8, unroll=4):
            out[k] = n * 5 + k

    out = np.zeros(8, np.int32)
    lines = body(run(scaled, out, 2, block=(1, 1, 1)))
    np.testing.assert_array_equal(out, 10 + np.arange(8))
    assert sum(line.startswith("mul.lo") for line in lines) == 1
    assert sum(line.startswith("mul.wide") for line in lines) == 1


def test_split_and_merged_parts_are_the_whole():
    @kernel
    def copy(x, y, words):
        i = thread() * 16
        y.store(x.load(i, count=16), i)
        words[thread()] = merge("u64", *split(words[thread()], "u32"))

    x = np.random.default_rng().integers(-128, 128, 512).astype(np.int8)
    y, words = np.zeros_like(x), np.arange(32, dtype=np.uint64)
    lines = body(run(copy, x, y, words))
    np.testing.assert_array_equal(x, y)
    assert not [line for line in lines if line.startswith(("prmt", "cvt.", "shr", "mov.b"))]


@pytest.mark.parametrize("peel", [0, 1, 2])
@pytest.mark.parametrize("unroll", [1, 3])
@pytest.mark.parametrize("turns", [0, 1, 2, 5, 7])
def test_peeled_and_unrolled_loops(peel, unroll, turns):
    @kernel
    def add(out, n: s32, m: s32):
        i = thread().to(s32)
        for k in loop(n, unroll=unroll, peel=peel):
            out[i] = out[i] + i * m // 3 + k

    out = np.zeros(32, np.int32)
    run(add, out, turns, 7)
    np.testing.assert_array_equal(out, turns * (np.arange(32) * 7 // 3) + sum(range(turns)))
