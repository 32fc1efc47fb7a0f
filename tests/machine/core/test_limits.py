"""Limits for untrusted kernels: they cannot run forever, use all memory, or crash the process."""

from __future__ import annotations

import _thread
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from tests.pace import cost

from warploom import Launch, launch
from warploom.diagnostics import WarploomError
from warploom.launcher import MOST_STATIC_BYTES, prepare
from warploom.machine.core.grid import Grid
from warploom.machine.core.schedule import by_name
from warploom.machine.core.setup import MOST_RESIDENT_BYTES

HEAD = ".version 8.7\n.target {target}\n.address_size 64\n{module}\n.visible .entry k({params})\n{{\n{registers}\n"
REGISTERS = ".reg .pred %p<8>; .reg .b32 %r<64>; .reg .b64 %rd<16>; .reg .f32 %f<8>;"


def text(body="", *, params="", module="", target="sm_90a", registers=REGISTERS):
    head = HEAD.format(target=target, module=module, params=params, registers=registers)
    return f"{head}{body}\nret;\n}}\n"


def run(
    body="",
    args=(),
    *,
    grid=(1, 1, 1),
    block=(32, 1, 1),
    params="",
    module="",
    target="sm_90a",
    registers=REGISTERS,
    **options,
):
    ptx = text(body, params=params, module=module, target=target, registers=registers)
    return launch(ptx, grid=grid, block=block, args=args, **options)


def fault(*args, **options):
    with pytest.raises(WarploomError) as caught:
        run(*args, **options)
    return caught.value


@pytest.mark.parametrize("threads", [32, 1024])
def test_the_largest_grid_ends_at_the_limit(threads):
    def ended():
        assert fault(grid=(2**31 - 1, 65535, 65535), block=(threads, 1, 1), limit=50_000).code == "LIMIT"

    assert cost(ended, 1) < 1000


def test_a_large_cta_counts_for_more():
    """Creating its memory takes time, which must count too."""
    error = fault(".local .b8 x[131072]; st.local.u32 [x], 1;", grid=(10_000, 1, 1), block=(256, 1, 1), limit=30_000)
    assert error.code == "LIMIT"


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"grid": (2**31, 1, 1)}, "at most (2147483647, 65535, 65535)"),
        ({"grid": (1, 65536, 1)}, "at most (2147483647, 65535, 65535)"),
        ({"grid": (1, 1, 65536)}, "at most (2147483647, 65535, 65535)"),
        ({"block": (1, 1, 65)}, "at most (1024, 1024, 64)"),
        ({"block": (33, 32, 1)}, "at most 1024"),
        ({"grid": (0, 1, 1)}, "every extent must be positive"),
        ({"sms": 0}, "at least 1"),
    ],
)
def test_shapes_beyond_the_hardware_are_refused(shape, words):
    error = fault(**shape)
    assert error.code == "BAD_LAUNCH"
    assert words in "\n".join(error.notes)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"module": ".global .b8 x[99999999999];"}, f"at most {MOST_STATIC_BYTES}"),
        ({"module": ".const .v4 .f32 x[100000000];"}, f"take {16 * 10**8} bytes"),
        ({"body": ".local .b8 x[600000];"}, "at most 524288"),
        ({"params": ".param .b8 x[32768]", "args": [bytes(32768)]}, "at most 32764"),
        (
            {"body": ".local .b8 x[500000];", "block": (1024, 1, 1), "grid": (4, 1, 1), "cluster": (4, 1, 1)},
            f"at most {MOST_RESIDENT_BYTES}",
        ),
    ],
)
def test_declarations_that_are_too_large_are_refused_before_allocation(given, words):
    tracemalloc.start()
    error = fault(**given)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.code == "BAD_LAUNCH"
    assert words in "\n".join(error.notes)
    assert peak < 4 << 20


def test_shared_memory_beyond_the_block_is_refused():
    assert fault(module=".shared .b8 x[99999999999];").code == "TOO_MUCH_SHARED"


def test_a_long_grid_frees_its_ended_ctas():
    body = ".shared .b8 x[65536]; mov.u32 %r0, %tid.x; st.shared.u32 [x], %r0;"
    run(body, grid=(4, 1, 1))
    tracemalloc.start()
    done = run(body, grid=(600, 1, 1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert done.instructions == 600 * 3
    assert len(done.warps) == 600
    assert peak < 16 << 20


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", ""),
        ("setp.eq.u32 %p0, %r0, 33; @%p0 trap;", "TRAP"),
        ("setp.lt.u32 %p0, %r1, 32; @%p0 bra A; bar.sync 1, 64; A: bar.sync 2, 64;", "DEADLOCK"),
        ("ld.param.u64 %rd0, [p]; mov.u32 %r2, x; cp.async.ca.shared.global [%r2], [%rd0], 16;", ""),
    ],
)
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_memory_is_freed_without_the_garbage_collector(body, code, schedule):
    """CTAs and their operations in flight refer to each other, and are freed nevertheless."""
    ptx = text(
        f".shared .align 128 .b8 x[150000]; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; st.shared.u32 [x], %r0; {body}",
        params=".param .u64 p",
        module=".global .b8 large[4000000];",
    )
    array = np.zeros(4, np.uint32)

    def once():
        try:
            launch(ptx, grid=(40, 1, 1), block=(64, 1, 1), args=[array], schedule=schedule)
        except WarploomError as error:
            return error.code
        return ""

    assert once() == code
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(3):
            once()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left < 2 << 20, "one launch has 10 MB"


def test_a_launch_lets_the_garbage_collector_reach_old_objects():
    """Resetting the collector's counts at every launch would keep it from ever reaching them."""
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.set_threshold(700, 10, 1_000)
    try:
        gc.collect()
        for _ in range(5):
            gc.collect(1)
        counted = gc.get_count()[2]
        run("mov.u32 %r0, 1;")
        assert gc.get_count()[2] >= counted == 5
        assert gc.get_freeze_count() == frozen
    finally:
        gc.set_threshold(*before)


def test_fewer_ctas_are_resident_if_they_need_too_much_memory():
    """All that fit may start before the first ends: on 132 SMs these would need 64 GB."""
    ptx = text(".local .b8 x[262144]; st.local.u32 [x], 1;")
    given = Launch(ptx, (5000, 1, 1), (128, 1, 1), ())
    large = Grid(prepare(given, by_name("random", 0), None, None, (), None))
    assert large._capacity * 262144 * 128 <= MOST_RESIDENT_BYTES < (large._capacity + 2) * 262144 * 128
    small = Grid(prepare(replace(given, program=text()), by_name("random", 0), None, None, (), None))
    assert small._capacity == 132 * 16


@pytest.mark.parametrize(
    "body",
    [
        "L: bra L;",
        "L: nanosleep.u32 100000; bra L;",
        "mov.u32 %r0, %tid.x; setp.gt.u32 %p0, %r0, 7; @%p0 bra M; L: bra L; M: bra M;",
        "ld.param.u64 %rd0, [flag]; L: ld.global.u32 %r0, [%rd0]; setp.eq.u32 %p0, %r0, 0; @%p0 bra L;",
        "ld.param.u64 %rd0, [flag]; L: atom.global.cas.b32 %r0, [%rd0], 1, 2; setp.ne.u32 %p0, %r0, 1; @%p0 bra L;",
    ],
)
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_loops_that_change_nothing_end_without_a_limit(body, schedule):
    error = fault(body, [np.zeros(4, np.uint32)], params=".param .u64 flag", schedule=schedule)
    assert error.code == "DEADLOCK"
    assert "polling what nothing changes" in error.what
    polled = "polls byte 0 of `argument 0, flag` (16 bytes), which holds 0"
    assert any(polled in note for note in error.notes) == ("flag" in body)
    assert {waiter.state for waiter in error.waiters} == {"polling"}


def test_a_loop_that_polls_is_reported_at_its_load():
    body = "ld.param.u64 %rd0, [flag]; L: mov.u32 %r1, 0; ld.global.u32 %r0, [%rd0]; setp.eq.u32 %p0, %r0, %r1; @%p0 bra L;"
    error = fault(body, [np.zeros(4, np.uint32)], params=".param .u64 flag")
    assert all("`ld.global.u32 %r0, [%rd0]`" in note for note in error.notes)
    assert {waiter.instruction for waiter in error.waiters} == {"ld.global.u32 %r0, [%rd0]"}


def test_a_loop_that_counts_forever_ends_at_the_limit():
    error = fault("mov.u64 %rd0, 0; L: add.u64 %rd0, %rd0, 1; bra L;", limit=300_000)
    assert error.code == "LIMIT"


def test_long_loops_over_registers_are_legal():
    done = run("mov.u32 %r0, 0; L: add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, 2000000; @%p0 bra L;")
    assert done.instructions == 3 * 2_000_000 + 2


def test_the_idle_limit_grows_with_the_warps(monkeypatch):
    """Many warps that count together are as legal as one."""
    monkeypatch.setattr("warploom.machine.core.grid._IDLE_LIMIT", 40_000)
    loop = "mov.u32 %r0, 0; L: add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, {count}; @%p0 bra L;"
    run(loop.format(count=10_000), block=(1024, 1, 1))
    assert fault(loop.format(count=20_000), block=(1024, 1, 1)).code == "NO_PROGRESS"


def test_unbounded_recursion_is_reported():
    error = fault(
        "call f;",
        module=".func f() { call g; ret; }\n.func g() { call f; ret; }".replace(
            ".func f()", ".func g();\n.func f()", 1
        ),
    )
    assert error.code == "OUT_OF_BOUNDS"
    assert "recursion" in str(error)


def test_calls_that_would_expand_to_billions_of_instructions_are_refused():
    levels = [".func f0() { .reg .b32 %a; mov.u32 %a, 1; ret; }"]
    levels += [f".func f{i}() {{ call f{i - 1}; call f{i - 1}; call f{i - 1}; ret; }}" for i in range(1, 30)]

    def refused():
        assert fault("call f29;", module="\n".join(levels)).code == "TOO_LONG"

    assert cost(refused, 1) < 400


CALLS = """.version 8.7
.target sm_100a
.address_size 64
.func (.param .b32 out) twice (.param .b32 x) { .reg .b32 %a<3>;
 ld.param.b32 %a0, [x]; add.u32 %a1, %a0, %a0; st.param.b32 [out], %a1; ret; }
.func (.param .b32 out) odd (.param .b32 x, .param .b32 n) { .reg .b32 %a<6>; .reg .pred %p<2>;
 ld.param.b32 %a0, [x]; ld.param.b32 %a1, [n]; and.b32 %a2, %a0, 1; setp.eq.u32 %p0, %a2, 0; mov.u32 %a3, %a0; @%p0 bra EVEN;
 { .param .b32 p; .param .b32 r; st.param.b32 [p], %a0; call (r), twice, (p); ld.param.b32 %a3, [r]; }
EVEN: add.u32 %a3, %a3, %a1; bar.sync 0; st.param.b32 [out], %a3; ret; }
.visible .entry k(.param .u64 y) { .reg .b32 %r<9>; .reg .b64 %rd<3>;
 ld.param.u64 %rd0, [y]; mov.u32 %r0, %tid.x; mov.u32 %r1, %r0;
CALLS mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd0; st.global.u32 [%rd1], %r1; ret; }
"""


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_functions_of_a_very_long_kernel_are_called(schedule, monkeypatch):
    """Every function is there once then, lanes return to where they came from, and the results are those of inlining."""
    call = """{ .param .b32 p; .param .b32 q; .param .b32 r; st.param.b32 [p], %r1; st.param.b32 [q], NUMBER;
 call (r), odd, (p, q); ld.param.b32 %r1, [r]; }
"""
    text = CALLS.replace("CALLS", "".join(call.replace("NUMBER", str(number)) for number in range(7)))
    expected = np.arange(96, dtype=np.uint32)
    for number in range(7):
        expected = np.where(expected % 2, 2 * expected, expected) + np.uint32(number)
    counts = []
    for most in (1 << 17, 10):
        monkeypatch.setattr("warploom.ptx.analysis.inlining.MOST_INLINED", most)
        y = np.zeros(96, np.uint32)
        ran = launch(text.replace("visible", f"visible /* {most} */"), grid=1, block=96, args=[y], schedule=schedule)
        assert (y == expected).all()
        counts.append(ran.instructions)
    assert counts[0] < counts[1]


def straight(count):
    return "mov.u32 %r0, %tid.x;\n" + "\n".join(f"add.u32 %r{1 + i % 60}, %r{i % 61}, {i % 9};" for i in range(count))


def nested(count):
    ifs = "\n".join(f"setp.gt.u32 %p0, %r0, {i % 31}; @%p0 bra E{i}; add.u32 %r1, %r1, 1;" for i in range(count))
    ends = "\n".join(f"E{i}: add.u32 %r1, %r1, 2;" for i in reversed(range(count)))
    return f"mov.u32 %r0, %tid.x; mov.u32 %r1, 0;\n{ifs}\n{ends}"


def leaving(count):
    ifs = "\n".join(f"setp.gt.u32 %p0, %r0, 99; @%p0 bra E{i}; add.u32 %r1, %r1, 1;" for i in range(count))
    ends = "\n".join(f"E{i}: mov.u32 %r2, {i}; ret;" for i in range(count))
    return f"mov.u32 %r0, %tid.x; mov.u32 %r1, 0;\n{ifs}\nret;\n{ends}"


def table(count):
    names = ", ".join(f"E{i}" for i in range(count))
    cases = "\n".join(f"E{i}: add.u32 %r1, %r1, {i}; bra X;" for i in range(count))
    return f"mov.u32 %r0, %tid.x; mov.u32 %r1, 0; T: .branchtargets {names}; brx.idx %r0, T;\n{cases}\nX:"


def renamed(count):
    """A chain of copies in reverse text order, in a loop: the worst case for the uniformity analysis."""
    copies = "\n".join(f"mov.u32 %r{i}, %r{i + 1};" for i in range(count))
    return f"L: {copies}\nmov.u32 %r{count}, %tid.x; setp.eq.u32 %p0, %r0, 77; @%p0 bra L;"


def jumping(count):
    """Branches to and fro, around a store and a look: as many loops as blocks, most of them inside each other."""
    look = "st.shared.u32 [word], %r0; ld.volatile.shared.u32 %r1, [word];"
    ways = [f"L{i}: @%p0 bra L{i * 7919 % count};" for i in range(count)]
    ways.insert(count // 2, look)
    return ".shared .b32 word; mov.u32 %r0, 0; setp.ne.u32 %p0, %r0, %r0;\n" + "\n".join(ways)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        (straight, (2500, 10_000)),
        (jumping, (2500, 10_000)),
        (nested, (250, 1000)),
        (leaving, (250, 1000)),
        (table, (500, 2000)),
        (renamed, (1000, 4000)),
    ],
)
def test_analysis_time_is_linear_in_the_text(shape, sizes):
    """Four times the text takes about four times the time."""

    def taken(size):
        registers = f".reg .pred %p<8>; .reg .b32 %r<{max(64, size + 8)}>;"
        return cost(lambda: run(shape(size), registers=registers, limit=1_000_000), 1)

    small, large = map(taken, sizes)
    assert large < 10 * small + 200


def test_a_kernel_with_many_registers_is_split_into_parts():
    count = 6000
    body = "mov.u32 %r0, %tid.x;\n" + "\n".join(f"add.u32 %r{i + 1}, %r{i}, 1;" for i in range(count))
    out = np.zeros(32, np.uint32)
    store = f"mul.wide.u32 %rd1, %r0, 4; ld.param.u64 %rd0, [out]; add.u64 %rd0, %rd0, %rd1; st.global.u32 [%rd0], %r{count};"
    registers = f".reg .b32 %r<{count + 1}>; .reg .b64 %rd<2>;"
    assert cost(lambda: run(body + store, [out], params=".param .u64 out", registers=registers), 1) < 3000
    assert (out == np.arange(32) + count).all()


def test_fully_diverged_lanes_share_the_code_of_their_warp():
    """32 paths in each of 32 warps: for a while every lane is a separate group."""
    body = table(32).replace("mov.u32 %r0, %tid.x;", "mov.u32 %r2, %tid.x; and.b32 %r0, %r2, 31;")
    body += (
        """ ld.param.u64 %rd0, [out]; mul.wide.u32 %rd1, %r2, 4; add.u64 %rd0, %rd0, %rd1; st.global.u32 [%rd0], %r1;"""
    )
    for schedule in ("eager", "random"):
        out = np.zeros(1024, np.uint32)
        run(body, [out], params=".param .u64 out", block=(1024, 1, 1), schedule=schedule)
        assert (out == np.arange(1024) % 32).all()


def test_many_barriers_of_many_threads():
    body = "mov.u32 %r0, 0; L: bar.sync 0; add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, 300; @%p0 bra L;"
    for schedule in ("eager", "reverse"):
        assert run(body, block=(1024, 1, 1), schedule=schedule).counts["bar.sync"] == 32 * 300


@pytest.mark.parametrize("offset", [-1, -4096, 2**31, 2**32, 2**62, -(2**63), 2**64 - 4])
@pytest.mark.parametrize("space", ["global", "shared", "local", "const", "param"])
def test_any_offset_gives_a_fault_with_its_address(space, offset):
    declared = {"global": ("", ".global .b32 x[8];"), "const": ("", ".const .b32 x[8];"), "param": ("", "")}
    body, module = declared.get(space, (f".{space} .align 4 .b32 x[8];", ""))
    error = fault(f"{body} ld.{space}.u32 %r0, [x+{offset}];", [bytes(32)] if space == "param" else [],
                  params=".param .align 4 .b8 x[32]" if space == "param" else "", module=module)  # fmt: skip
    assert error.code in ("OUT_OF_BOUNDS", "MISALIGNED")
    assert error.loc is not None


@pytest.mark.parametrize("offset", [-4, 2**40])
def test_a_symbol_with_an_offset_is_truncated_to_its_register(offset):
    out = np.zeros(4, np.uint32)
    body = f".shared .b32 x[8]; ld.param.u64 %rd0, [out]; mov.u32 %r0, x; mov.u32 %r1, x+{offset}; sub.u32 %r2, %r1, %r0; st.global.u32 [%rd0], %r2;"
    run(body, [out], params=".param .u64 out")
    assert out[0] == offset & 0xFFFFFFFF


INITIAL = """
.global .align 4 .u32 x = 7;
.global .align 8 .u64 p = generic(x);
.global .align 8 .u64 q[2] = {generic(v)+4, x+8};
.global .v4 .f32 v = {0f3F800000, 0f40000000, 0f40400000, 0f40800000};
.global .align 8 .u8 bytes[8] = {0xFF(x), 0xFF00(x), 0xFF0000(generic(x)), 0xFF000000(x), 0xFF00000000(x), 0xFF0000000000(x), 0, 0};
.const .v2 .u32 c[2] = {{1, 2}, {3, 4}};
"""


def test_variables_start_with_addresses_bytes_and_vectors():
    out = np.zeros(6, np.uint32)
    body = """ld.param.u64 %rd0, [out];
    ld.global.u64 %rd1, [p]; ld.global.u32 %r0, [%rd1]; st.global.u32 [%rd0], %r0;
    ld.global.u64 %rd2, [q]; ld.global.u32 %r1, [%rd2]; st.global.u32 [%rd0+4], %r1;
    ld.global.u64 %rd3, [bytes]; sub.u64 %rd4, %rd3, %rd1; st.global.u64 [%rd0+8], %rd4;
    ld.const.u32 %r2, [c+12]; st.global.u32 [%rd0+16], %r2;
    ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [v]; st.global.f32 [%rd0+20], %f3;"""
    run(body, [out], params=".param .u64 out", module=INITIAL)
    assert out[:5].tolist() == [7, np.float32(2).view(np.uint32), 0, 0, 4]
    assert out[5:].view(np.float32)[0] == 4


@pytest.mark.parametrize("target", ["sm_50", "sm_52", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90"])
def test_ordinary_kernels_for_earlier_targets_run(target):
    out = np.zeros(1, np.uint32)
    run("ld.param.u64 %rd0, [out]; st.global.u32 [%rd0], 5;", [out], params=".param .u64 out", target=target)
    assert out[0] == 5


def test_an_earlier_target_lacks_later_instructions():
    assert fault("barrier.cluster.arrive;", target="sm_75").code == "WRONG_TARGET"


@pytest.mark.parametrize("target", ["sm_13", "sm_99", "sm_90b", "sm_120", "sm_1000000"])
def test_an_unknown_target_is_reported_with_the_known_ones(target):
    error = fault(target=target)
    assert error.code == "WRONG_TARGET"
    assert "sm_100a" in error.what


def test_undefined_symbols_are_reported():
    assert fault("mov.u64 %rd0, x;", module=".extern .global .b32 x;").code == "UNDECLARED"
    assert fault("mov.u32 %r0, %envreg3;").code == "NOT_MODELLED"


def test_inner_names_hide_outer_ones():
    out = np.zeros(2, np.uint32)
    body = ".shared .b32 y[2]; ld.param.u64 %rd0, [x]; st.global.u32 [%rd0], 3; st.shared.u32 [y+4], 1; ld.shared.u32 %r0, [y+4]; st.global.u32 [%rd0+4], %r0;"
    run(body, [out], params=".param .u64 x", module=".global .b32 x = 9;\n.global .b32 y = 9;")
    assert out.tolist() == [3, 1]


def test_threads_index_parameters_separately():
    out = np.zeros(32, np.uint32)
    numbers = np.arange(100, 132, dtype=np.uint32)
    body = """mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; mov.b64 %rd2, many; add.u64 %rd3, %rd2, %rd1; ld.param.u32 %r1, [%rd3];
    cvta.param.u64 %rd4, %rd3; ld.u32 %r2, [%rd4]; add.u32 %r1, %r1, %r2; ld.param.u64 %rd0, [out]; add.u64 %rd0, %rd0, %rd1; st.global.u32 [%rd0], %r1;"""
    run(body, [out, numbers.tobytes()], params=".param .u64 out, .param .align 4 .b8 many[128]")
    assert (out == 2 * numbers).all()


def test_generic_addresses_of_local_memory_are_per_thread():
    out = np.zeros(32, np.uint32)
    body = """.local .align 8 .b8 own[16]; mov.u32 %r0, %tid.x; st.local.u32 [own+4], %r0; mov.b64 %rd1, own; cvta.local.u64 %rd1, %rd1;
    .shared .b64 there; st.shared.u64 [there], %rd1; ld.shared.u64 %rd2, [there]; ld.u32 %r1, [%rd2+4];
    ld.param.u64 %rd0, [out]; mul.wide.u32 %rd3, %r0, 4; add.u64 %rd0, %rd0, %rd3; st.global.u32 [%rd0], %r1;"""
    run(body, [out], params=".param .u64 out")
    assert (out == np.arange(32)).all()


@pytest.mark.parametrize("shared", [False, True])
def test_signed_elements_are_sign_extended(shared):
    """The same whether all lanes load from one address or each from its own."""
    out, source = np.zeros((32, 4), np.int64), np.full(256, -3, np.int8)
    body = f"""ld.param.u64 %rd0, [out]; ld.param.u64 %rd1, [source]; mov.u32 %r9, %tid.x; mul.wide.u32 %rd2, %r9, 32; add.u64 %rd0, %rd0, %rd2;
    {"" if shared else "mul.wide.u32 %rd3, %r9, 4; add.u64 %rd1, %rd1, %rd3;"}
    ld.global.v2.s8 {{%r0, %rd4}}, [%rd1]; ld.global.s8 %r1, [%rd1]; ld.global.s8 %rd5, [%rd1];
    cvt.u64.u32 %rd6, %r0; cvt.u64.u32 %rd7, %r1;
    st.global.v2.u64 [%rd0], {{%rd6, %rd4}}; st.global.v2.u64 [%rd0+16], {{%rd7, %rd5}};"""
    run(body, [out, source], params=".param .u64 out, .param .u64 source")
    assert (out == [2**32 - 3, -3, 2**32 - 3, -3]).all()


interruptible = pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is not signal.default_int_handler,
    reason="a shell that starts a process in the background lets it ignore interrupts",
)
# Each store changes memory, so that the run is never taken for one that only polls, however fast it is.
ENDLESS = ".shared .b32 counter; mov.u32 %r0, 0; L: add.u32 %r0, %r0, 1; st.shared.u32 [counter], %r0; bra L;"


@interruptible
def test_an_interrupt_stops_a_run_and_breaks_nothing():
    out = np.zeros(4, np.uint32)
    timer = threading.Timer(0.3, _thread.interrupt_main)

    def interrupted():
        timer.start()
        run(ENDLESS)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        np.float32(3e38) * np.float32(10)
    run("ld.param.u64 %rd0, [out]; st.global.u32 [%rd0], 6;", [out], params=".param .u64 out")
    assert out[0] == 6


@interruptible
def test_an_interrupted_process_ends_at_once():
    program = f"""
import warploom
print("started", flush=True)
warploom.launch({text(ENDLESS)!r}, grid=(1, 1, 1), block=(32, 1, 1), args=[])
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(0.3)
        process.send_signal(2)
        _, said = process.communicate(timeout=300)
    assert "KeyboardInterrupt" in said
    assert process.returncode != 0


def test_running_out_of_memory_is_an_error_of_the_catalogue(monkeypatch):
    def refuse(*_args, **_options):
        raise MemoryError("Unable to allocate 8.00 GiB.")

    monkeypatch.setattr("warploom.machine.core.cta.SharedMemory", refuse)
    error = fault()
    assert error.code == "OUT_OF_MEMORY"
    assert "8.00 GiB" in error.what


SMALL, LARGE = ".local .b8 x[16]; st.local.u32 [x], 1;", ".local .b8 x[400000]; st.local.u32 [x], 1;"
SHORT_OF_MEMORY = f"""
import resource
import warploom
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 28), taken + (1 << 28)))
for text in ({text(SMALL)!r}, {text(LARGE)!r}) * 3:
    try:
        warploom.launch(text, grid=(4, 1, 1), block=(1024, 1, 1))
        print("a run")
    except warploom.WarploomError as error:
        print(error.code)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of address space is Linux's")
def test_a_process_continues_after_running_out_of_memory():
    command = [sys.executable, "-c", SHORT_OF_MEMORY]
    environment = {**os.environ, "WARPLOOM_ENGINE": "numpy"}  # llvmlite may not fit into the limit either
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, env=environment)
    assert (done.stdout.split("\n"), done.stderr) == (["a run", "OUT_OF_MEMORY"] * 3 + [""], "")


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random", "explore"])
def test_a_timeout_ends_a_run_with_what_each_warp_was_doing(schedule):
    for seconds in (0.05, 0.5, 5.0, 50.0):  # a busy machine may take longer until the first instruction
        error = fault(ENDLESS, block=(64, 1, 1), schedule=schedule, timeout=seconds)
        assert error.code == "TIMEOUT"
        if error.waiters:
            break
    assert {waiter.warp for waiter in error.waiters} == {0, 1}
    assert any("can run" in note for note in error.notes)


@pytest.mark.parametrize("timeout", [0, -1.0, "1"])
def test_an_invalid_timeout_is_refused(timeout):
    assert fault(ENDLESS, timeout=timeout).code == "BAD_LAUNCH"


def test_patience_is_the_former_name_of_timeout():
    with pytest.warns(DeprecationWarning, match="timeout"):
        assert fault(ENDLESS, patience=0.05).code == "TIMEOUT"
