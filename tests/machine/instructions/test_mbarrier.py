"""mbarriers: counts, bytes, phases, illegal uses, and the report of a hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from tests.machine.asynchronous import SCHEDULES, fault, init, run, wait

RNG = np.random.default_rng()

RING = """
 @%first mbarrier.init.shared::cta.b64 [bars], 32;      @%first mbarrier.init.shared::cta.b64 [bars+8], 32;
 @%first mbarrier.init.shared::cta.b64 [bars+16], 32;   @%first mbarrier.init.shared::cta.b64 [bars+24], 1;
 @%first mbarrier.init.shared::cta.b64 [bars+32], 1;    @%first mbarrier.init.shared::cta.b64 [bars+40], 1;
 bar.sync 0;
 ld.param.u64 %rd1, [src]; ld.param.u64 %rd2, [out]; ld.param.u32 %r9, [n];
 mul.wide.u32 %rd3, %lane, 4; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
 mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0;
 mov.u32 %r10, bars; mov.u32 %r11, data; shl.b32 %r12, %lane, 2; add.u32 %r11, %r11, %r12;
 setp.ne.u32 %p1, %warp, 0;
 @%p1 bra CONSUMER;
 PRODUCER:
 shl.b32 %r4, %r2, 3; add.u32 %r4, %r4, %r10;
 xor.b32 %r5, %r3, 1;
 PW: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4+24], %r5; @!%p2 bra PW;
 ld.global.u32 %r6, [%rd1]; shl.b32 %r7, %r2, 7; add.u32 %r7, %r7, %r11; st.shared.u32 [%r7], %r6;
 mbarrier.arrive.shared::cta.b64 _, [%r4];
 add.u64 %rd1, %rd1, 128;
 add.u32 %r2, %r2, 1; setp.eq.u32 %p3, %r2, 3; selp.u32 %r2, 0, %r2, %p3; @%p3 xor.b32 %r3, %r3, 1;
 add.u32 %r1, %r1, 1; setp.lt.u32 %p4, %r1, %r9; @%p4 bra PRODUCER;
 ret;
 CONSUMER:
 shl.b32 %r4, %r2, 3; add.u32 %r4, %r4, %r10;
 CW: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], %r3; @!%p2 bra CW;
 shl.b32 %r7, %r2, 7; add.u32 %r7, %r7, %r11; ld.shared.u32 %r6, [%r7]; st.global.u32 [%rd2], %r6;
 bar.warp.sync -1;
 @%leader mbarrier.arrive.shared::cta.b64 _, [%r4+24];
 add.u64 %rd2, %rd2, 128;
 add.u32 %r2, %r2, 1; setp.eq.u32 %p3, %r2, 3; selp.u32 %r2, 0, %r2, %p3; @%p3 xor.b32 %r3, %r3, 1;
 add.u32 %r1, %r1, 1; setp.lt.u32 %p4, %r1, %r9; @%p4 bra CONSUMER;
"""


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_ring_of_three_stages_carries_every_word(schedule, seed):
    for steps in (1, 2, 3, 4, 17):
        source = RNG.integers(0, 1 << 32, (steps, 32), dtype=np.uint32)
        out = np.zeros_like(source)
        run(RING, "ptr:src ptr:out int:n", (source, out, steps), block=64, schedule=schedule, seed=seed)
        assert (out == source).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("lanes", ["uniform", "by lane"])
def test_only_bit_0_of_a_parity_counts(schedule, seed, lanes):
    """Compilers negate or count a phase and rely on it: here it goes 0, -1, -2, … or differs from lane to lane."""
    body = RING.replace("@%p3 xor.b32 %r3, %r3, 1;", "@%p3 sub.u32 %r3, %r3, 1;")
    assert body != RING
    if lanes == "by lane":
        body = body.replace("mov.u32 %r3, 0;", "shl.b32 %r3, %lane, 1;")
    source = RNG.integers(0, 1 << 32, (17, 32), dtype=np.uint32)
    out = np.zeros_like(source)
    run(body, "ptr:src ptr:out int:n", (source, out, 17), block=64, schedule=schedule, seed=seed)
    assert (out == source).all()


def test_a_ring_without_its_release_reports_the_hang():
    source, out = np.zeros((7, 32), np.uint32), np.zeros((7, 32), np.uint32)
    body = RING.replace("@%leader mbarrier.arrive.shared::cta.b64 _, [%r4+24];", "")
    notes = "//!wl barrier ring.full bars 8 3\n//!wl barrier ring.empty bars+24 8 3"
    error = fault(body, "ptr:src ptr:out int:n", (source, out, 7), block=64, notes=notes)
    assert error.code == "DEADLOCK"
    told = "\n".join(error.notes)
    assert "warp 0" in told
    assert "ring.empty[0] phase 0: 1 of 1 arrivals missing" in told
    assert "ring.full[0] phase 1: 32 of 32 arrivals missing" in told


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("block", [32, 96, 128])
def test_every_lane_counts(schedule, seed, block):
    out = np.zeros(block, np.uint32)
    body = f"""{init(3 * block)}
    ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %thread, 4; add.u64 %rd1, %rd1, %rd2;
    mbarrier.arrive.shared::cta.b64 %rd3, [bars];
    mbarrier.arrive.shared::cta.b64 %rd4, [bars], 2;
    W: mbarrier.try_wait.shared::cta.b64 %p1, [bars], %rd3; @!%p1 bra W;
    mbarrier.test_wait.shared::cta.b64 %p2, [bars], %rd4;
    selp.u32 %r1, 7, 9, %p2; st.global.u32 [%rd1], %r1;"""
    run(body, "ptr:out", (out,), block=block, schedule=schedule, seed=seed)
    assert (out == 7).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_lanes_may_arrive_on_different_barriers(schedule, seed):
    """Lane i arrives on barrier i % 4 with count i + 1; each barrier expects exactly that."""
    counts = [sum(lane + 1 for lane in range(32) if lane % 4 == b) for b in range(4)]
    out = np.zeros(32, np.uint32)
    body = f"""{init(*counts)}
    ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %thread, 4; add.u64 %rd1, %rd1, %rd2;
    and.b32 %r1, %lane, 3; shl.b32 %r1, %r1, 3; mov.u32 %r2, bars; add.u32 %r1, %r1, %r2;
    add.u32 %r3, %lane, 1;
    mbarrier.arrive.shared::cta.b64 %rd3, [%r1], %r3;
    W: mbarrier.try_wait.shared::cta.b64 %p1, [%r1], %rd3; @!%p1 bra W;
    mov.u32 %r4, 5; st.global.u32 [%rd1], %r4;"""
    run(body, "ptr:out", (out,), schedule=schedule, seed=seed)
    assert (out == 5).all()


def test_lanes_that_wait_on_different_barriers_pass_one_by_one():
    """Barrier 0 completes, barrier 1 does not: the wait succeeds in half of the lanes."""
    out = np.zeros(32, np.uint32)
    body = f"""{init(1, 1)}
    ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %thread, 4; add.u64 %rd1, %rd1, %rd2;
    @%first mbarrier.arrive.shared::cta.b64 _, [bars];
    and.b32 %r1, %lane, 1; shl.b32 %r1, %r1, 3; mov.u32 %r2, bars; add.u32 %r1, %r1, %r2;
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    selp.u32 %r4, 1, 2, %p1; st.global.u32 [%rd1], %r4;"""
    run(body, "ptr:out", (out,))
    assert out.tolist() == [1, 2] * 16


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_parities_and_states_name_the_same_phases(schedule, seed):
    """Ten phases; after each, its parity passes and the other does not."""
    out = np.zeros((10, 32), np.uint32)
    body = f"""{init(32)}
    ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %thread, 4; add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r1, 0;
    LOOP: and.b32 %r2, %r1, 1; xor.b32 %r3, %r2, 1;
    mbarrier.test_wait.parity.shared::cta.b64 %p1, [bars], %r3;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [bars], %r2;
    bar.warp.sync -1;
    mbarrier.arrive.shared::cta.b64 %rd4, [bars];
    W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [bars], %r2; @!%p3 bra W;
    mbarrier.test_wait.shared::cta.b64 %p4, [bars], %rd4;
    mbarrier.test_wait.parity.shared::cta.b64 %p6, [bars], %r2;
    selp.u32 %r4, 1, 0, %p1; selp.u32 %r5, 2, 0, %p2; selp.u32 %r6, 4, 0, %p6; selp.u32 %r7, 8, 0, %p4;
    add.u32 %r4, %r4, %r5; add.u32 %r4, %r4, %r6; add.u32 %r4, %r4, %r7;
    st.global.u32 [%rd1], %r4; add.u64 %rd1, %rd1, 128;
    add.u32 %r1, %r1, 1; setp.lt.u32 %p5, %r1, 10; @%p5 bra LOOP;"""
    run(body, "ptr:out", (out,), schedule=schedule, seed=seed)
    assert (out == 1 + 4 + 8).all()


def test_bytes_may_come_before_they_are_expected():
    out = np.zeros(3, np.uint32)
    body = f"""{init(1)}
    ld.param.u64 %rd1, [out];
    @%first mbarrier.complete_tx.shared::cta.b64 [bars], 96;
    @%first mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bars], 32;
    mbarrier.test_wait.parity.shared::cta.b64 %p1, [bars], 0; selp.u32 %r1, 1, 2, %p1; st.global.u32 [%rd1], %r1;
    @%first mbarrier.arrive.shared::cta.b64 _, [bars];
    mbarrier.test_wait.parity.shared::cta.b64 %p1, [bars], 0; selp.u32 %r1, 1, 2, %p1; st.global.u32 [%rd1+4], %r1;
    @%first mbarrier.expect_tx.shared::cta.b64 [bars], 64;
    mbarrier.test_wait.parity.shared::cta.b64 %p1, [bars], 0; selp.u32 %r1, 1, 2, %p1; st.global.u32 [%rd1+8], %r1;"""
    run(body, "ptr:out", (out,))
    assert out.tolist() == [2, 2, 1]


def test_missing_bytes_are_reported():
    error = fault(f"{init(1)} @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 96; {wait('W')}")
    assert error.code == "DEADLOCK"
    assert "bars phase 0: all arrivals are in, 96 bytes missing" in error.notes[0]


def test_dropped_arrivals_lower_the_expected_count():
    """Two of 34 drop out; later phases need the warp alone."""
    out = np.zeros(1, np.uint32)
    body = f"""{init(34)} ld.param.u64 %rd1, [out];
    @%first mbarrier.arrive_drop.shared::cta.b64 _, [bars], 2; bar.warp.sync -1;
    mbarrier.arrive.shared::cta.b64 _, [bars]; {wait("A")}
    mbarrier.arrive.shared::cta.b64 _, [bars]; {wait("B", parity=1)}
    mov.u32 %r1, 3; st.global.u32 [%rd1], %r1;"""
    run(body, "ptr:out", (out,))
    assert out[0] == 3


def test_an_arrival_that_must_not_complete_counts_down():
    out = np.zeros(32, np.uint32)
    body = f"""{init(100)} ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %thread, 4; add.u64 %rd1, %rd1, %rd2;
    mbarrier.arrive.noComplete.shared::cta.b64 %rd3, [bars], 3;
    mbarrier.pending_count.b64 %r1, %rd3; st.global.u32 [%rd1], %r1;"""
    run(body, "ptr:out", (out,))
    assert sorted(out.tolist(), reverse=True) == list(range(100, 4, -3))
    error = fault(f"{init(32)} mbarrier.arrive.noComplete.shared::cta.b64 _, [bars], 1;")
    assert error.code == "BARRIER_OVERFLOW"
    assert "would complete phase 0 of bars" in error.what


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_loop_of_tests_lets_the_others_run(schedule, seed):
    out = np.zeros(1, np.uint32)
    body = f"""{init(1)} ld.param.u64 %rd1, [out]; setp.eq.u32 %p1, %warp, 0; @!%p1 bra OTHER;
    T: mbarrier.test_wait.parity.shared::cta.b64 %p2, [bars], 0; @!%p2 bra T;
    mov.u32 %r1, 8; st.global.u32 [%rd1], %r1; ret;
    OTHER: @%leader mbarrier.arrive.shared::cta.b64 _, [bars];"""
    run(body, "ptr:out", (out,), block=64, schedule=schedule, seed=seed, limit=20_000)
    assert out[0] == 8


@dataclass
class _GivesUp:
    """Prefers warp 0, and lets its first waits return early."""

    name: str = "gives up"
    convoys: bool = False
    two_views: bool = True
    preempts: bool = True
    left: int = 5

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind == "giveup" and self.left:
            self.left -= 1
            return 1
        return next((i for i in range(groups) if options[i].endswith("warp 0")), 0) if kind == "step" else 0


def test_a_wait_may_end_early():
    out = np.zeros(1, np.uint32)
    body = f"""{init(1)} ld.param.u64 %rd1, [out]; mov.u32 %r1, 0; setp.eq.u32 %p1, %warp, 0; @!%p1 bra OTHER;
    T: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bars], 0, 100; add.u32 %r1, %r1, 1; @!%p2 bra T;
    st.global.u32 [%rd1], %r1; ret;
    OTHER: @%leader mbarrier.arrive.shared::cta.b64 _, [bars];"""
    run(body, "ptr:out", (out,), block=64, schedule=_GivesUp())
    assert out[0] == 6, "five early ends and one success"


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("cluster", [2, 4])
def test_peers_arrive_and_expect_bytes_on_a_remote_barrier(schedule, seed, cluster):
    """Every CTA arrives on CTA 0's barrier with expect_tx; another CTA completes the bytes."""
    out = np.zeros(cluster, np.uint32)
    body = f"""{init(32 * cluster + 1)}
    ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %rank, 4; add.u64 %rd1, %rd1, %rd2;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 %r1, bars; mapa.shared::cluster.u32 %r2, %r1, 0;
    setp.eq.u32 %p1, %rank, 1; and.pred %p1, %p1, %first;
    @%p1 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r2], 64;
    @%p1 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r2], 64;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];
    setp.ne.u32 %p2, %rank, 0; @%p2 bra END;
    {wait("W")}
    END: mov.u32 %r3, 1; st.global.u32 [%rd1], %r3;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""
    run(body, "ptr:out", (out,), grid=cluster, cluster=cluster, schedule=schedule, seed=seed)
    assert (out == 1).all()


FAULTS = {
    "not initialised": ("mbarrier.arrive.shared::cta.b64 _, [bars];", "BARRIER_NOT_INITIALISED", "it has no barriers"),
    "invalidated": (
        f"{init(1)} @%first mbarrier.inval.shared::cta.b64 [bars]; @%first mbarrier.arrive.shared::cta.b64 _, [bars];",
        "BARRIER_NOT_INITIALISED",
        "0xffffffffffffffff at 0x",
    ),
    "overwritten": (
        f"{init(1)} @%first st.shared.u32 [bars], %thread; @%first mbarrier.arrive.shared::cta.b64 _, [bars];",
        "BARRIER_NOT_INITIALISED",
        "written over the barrier",
    ),
    "misaligned": ("@%first mbarrier.init.shared::cta.b64 [bars+4], 1;", "MISALIGNED", "8 bytes"),
    "outside": ("@%first mbarrier.init.shared::cta.b64 [bars+4096], 1;", "OUT_OF_BOUNDS", "shared memory"),
    "count 0": ("@%first mbarrier.init.shared::cta.b64 [bars], 0;", "BARRIER_OVERFLOW", "takes 1 to 1048575"),
    "count 2^20": ("@%first mbarrier.init.shared::cta.b64 [bars], 1048576;", "BARRIER_OVERFLOW", "1048576 arrivals"),
    "twice": (f"{init(5)} {init(5)}", "BARRIER_REINITIALISED", "5 of 5 arrivals"),
    "by every lane": ("mbarrier.init.shared::cta.b64 [bars], 1;", "BARRIER_REINITIALISED", "32 lanes"),
    "one arrival too many": (
        f"{init(31)} mbarrier.arrive.shared::cta.b64 _, [bars];",
        "BARRIER_OVERFLOW",
        "32 arrivals on bars in phase 0, which waits for 31 of 31",
    ),
    "too many bytes": (
        f"{init(1)} mbarrier.expect_tx.shared::cta.b64 [bars], 65536;",
        "BARRIER_OVERFLOW",
        "goes from 0 to 2097152",
    ),
    "too few bytes": (
        f"{init(1)} mbarrier.complete_tx.shared::cta.b64 [bars], 65536;",
        "BARRIER_OVERFLOW",
        "goes from 0 to -2097152",
    ),
    "a state two phases old": (
        f"""{init(32)} mbarrier.arrive.shared::cta.b64 %rd1, [bars]; mbarrier.arrive.shared::cta.b64 _, [bars];
        mbarrier.test_wait.shared::cta.b64 %p1, [bars], %rd1;""",
        "BAD_BARRIER",
        "in phase 2; a state of phase 0",
    ),
    "another CTA's for a wait": (
        f"""{init(1)} mov.u32 %r1, bars; add.u32 %r1, %r1, 16777216;
        mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;""",
        "BAD_BARRIER",
        "another CTA's mbarrier",
    ),
    "no such CTA": (
        "mov.u32 %r1, bars; add.u32 %r1, %r1, 16777216; mbarrier.arrive.shared::cluster.b64 _, [%r1];",
        "OUT_OF_BOUNDS",
        "CTA 1 of a cluster of 1",
    ),
    "more drops than arrivals": (
        f"{init(40)} mbarrier.arrive_drop.shared::cta.b64 _, [bars], 2;",
        "BARRIER_OVERFLOW",
        "64 cannot be dropped",
    ),
}


@pytest.mark.parametrize(("body", "code", "words"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_misuse_is_a_fault_that_names_the_line(body, code, words, schedule):
    error = fault(body, schedule=schedule)
    assert error.code == code
    assert words in str(error)
    assert error.loc is not None


def test_memory_may_become_a_barrier_again():
    """After inval, and after an ordinary store has ended the barrier's bytes."""
    run(f"{init(1)} @%first mbarrier.inval.shared::cta.b64 [bars]; {init(2)}")
    run(f"{init(1)} @%first st.shared.u64 [bars], 0; {init(2)}")


def test_generic_addresses_reach_barriers():
    out = np.zeros(1, np.uint32)
    body = f"""mov.u32 %r1, bars; cvt.u64.u32 %rd1, %r1; cvta.shared.u64 %rd2, %rd1; ld.param.u64 %rd3, [out];
    @%first mbarrier.init.b64 [%rd2], 32; bar.sync 0;
    mbarrier.arrive.b64 %rd4, [%rd2];
    W: mbarrier.try_wait.b64 %p1, [%rd2], %rd4; @!%p1 bra W;
    {wait("V")} mov.u32 %r2, 6; st.global.u32 [%rd3], %r2;"""
    run(body, "ptr:out", (out,))
    assert out[0] == 6


def test_a_late_arrival_at_an_invalidated_barrier_names_the_invalidation():
    body = (
        f"{init(1)} @%first mbarrier.inval.shared::cta.b64 [bars]; @%first mbarrier.arrive.shared::cta.b64 _, [bars];"
    )
    note = fault(body).notes[-1]
    assert note.startswith("warp 0")
    assert "has invalidated it, <ptx>:" in note
    assert "arrivals in flight too" in note
