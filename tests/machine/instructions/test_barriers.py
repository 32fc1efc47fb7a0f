"""Named barriers: counts, identifiers, producers and consumers, reductions, partial warps, and misuse."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.simt import SCHEDULES, threads

from warploom.diagnostics import WarploomError

RNG = np.random.default_rng()
by_schedule = pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
EXCHANGE = """
 mov.u32 %r6, sh; mad.lo.u32 %r7, %r0, 4, %r6; st.shared.u32 [%r7], %r1;
 {barrier}
 mov.u32 %r8, %ntid.x; sub.u32 %r8, %r8, 1; sub.u32 %r8, %r8, %r0; mad.lo.u32 %r8, %r8, 4, %r6;
 ld.shared.u32 %r9, [%r8];
 st.global.u32 [%rd0], %r9;"""


@by_schedule
@pytest.mark.parametrize("size", [1, 31, 33, 64, 100, 256, 1024])
def test_all_threads_synchronise(size: int, schedule: str, seed: int) -> None:
    values = RNG.integers(0, 1 << 32, size, dtype=np.uint32)
    for barrier in (
        "bar.sync 0;",
        "barrier.sync 7;",
        "barrier.cta.sync.aligned 3;",
        "mov.u32 %r5, 9; bar.cta.sync %r5;",
    ):
        got = threads(EXCHANGE.format(barrier=barrier), size, source=values, schedule=schedule, seed=seed, shared=4096)
        assert got[:, 0].tolist() == values[::-1].tolist()


@by_schedule
def test_halves_of_a_cta_synchronise_separately_with_counts_in_registers(schedule: str, seed: int) -> None:
    body = """
    shr.u32 %r3, %r0, 6; add.u32 %r3, %r3, 4; mov.u32 %r4, 64; mov.u32 %r6, sh; mad.lo.u32 %r7, %r0, 4, %r6;
    mov.u32 %r10, 3; mov.u32 %r11, 0;
    LOOP: add.u32 %r1, %r1, %r10; st.shared.u32 [%r7], %r1; barrier.sync %r3, %r4; xor.b32 %r8, %r0, 33;
    mad.lo.u32 %r8, %r8, 4, %r6; ld.shared.u32 %r9, [%r8]; add.u32 %r11, %r11, %r9; barrier.sync.aligned %r3, 64;
    sub.u32 %r10, %r10, 1; setp.ne.u32 %p1, %r10, 0; @%p1 bra LOOP; st.global.u32 [%rd0], %r11;"""
    values = RNG.integers(0, 1 << 20, 128, dtype=np.uint32)
    got = threads(body, 128, source=values, schedule=schedule, seed=seed)
    assert got[:, 0].tolist() == [3 * int(values[t ^ 33]) + 3 + 5 + 6 for t in range(128)]


@by_schedule
def test_producer_and_consumer(schedule: str, seed: int) -> None:
    """Warp 0 fills a buffer and does not wait; warp 1 waits, reads, and releases it."""
    body = """
    mov.u32 %r6, sh; and.b32 %r3, %r0, 31; mad.lo.u32 %r7, %r3, 4, %r6; mov.u32 %r10, 0; mov.u32 %r11, 0;
    setp.ge.u32 %p1, %r0, 32; @%p1 bra CONSUMER;
    PRODUCE: mad.lo.u32 %r4, %r10, 100, %r1; st.shared.u32 [%r7], %r4; bar.arrive 1, 64; bar.sync 2, 64;
    add.u32 %r10, %r10, 1; setp.lt.u32 %p2, %r10, 5; @%p2 bra PRODUCE; ret;
    CONSUMER: bar.sync 1, 64; ld.shared.u32 %r4, [%r7]; add.u32 %r11, %r11, %r4; barrier.arrive 2, 64;
    add.u32 %r10, %r10, 1; setp.lt.u32 %p2, %r10, 5; @%p2 bra CONSUMER; st.global.u32 [%rd0], %r11;"""
    values = RNG.integers(0, 1000, 64, dtype=np.uint32)
    got = threads(body, 64, source=values, schedule=schedule, seed=seed)
    assert got[32:, 0].tolist() == [5 * int(v) + 1000 for v in values[:32]]


@by_schedule
@pytest.mark.parametrize("size", [32, 50, 128, 300])
def test_reductions_at_a_barrier(size: int, schedule: str, seed: int) -> None:
    body = """
    setp.gt.u32 %p1, %r1, 10; bar.red.popc.u32 %r3, 0, %p1; barrier.red.and.aligned.pred %p2, 1, !%p1;
    barrier.red.or.pred %p3, 2, %p1; selp.u32 %r4, 1, 0, %p2; selp.u32 %r5, 1, 0, %p3;
    setp.eq.u32 %p4, %r3, %r3; bar.red.and.pred %p5, 0, %p4; selp.u32 %r6, 1, 0, %p5;
    st.global.v4.u32 [%rd0], {%r3, %r4, %r5, %r6};"""
    for top in (11, 12, 40):
        values = RNG.integers(0, top, size, dtype=np.uint32)
        got = threads(body, size, words=4, source=values, schedule=schedule, seed=seed)
        yes = int((values > 10).sum())
        assert (got == [yes, int(yes == 0), int(yes > 0), 1]).all()


@by_schedule
def test_a_reduction_over_some_warps(schedule: str, seed: int) -> None:
    body = """
    setp.ge.u32 %p1, %r0, 96; @%p1 ret; and.b32 %r3, %r0, 1; setp.eq.u32 %p2, %r3, 0;
    setp.lt.u32 %p3, %r0, 32; @%p3 bra SKIP; bar.red.popc.u32 %r4, 5, 64, %p2; bra END; SKIP: mov.u32 %r4, 1;
    END: st.global.u32 [%rd0], %r4;"""
    got = threads(body, 128, schedule=schedule, seed=seed)
    assert got[:, 0].tolist() == [1] * 32 + [32] * 64 + [0] * 32


@by_schedule
def test_lanes_of_a_warp_may_reach_a_barrier_on_different_paths(schedule: str, seed: int) -> None:
    """Without `.aligned` the warp arrives when the last of its lanes does."""
    body = """
    mov.u32 %r6, sh; mad.lo.u32 %r7, %r0, 4, %r6; and.b32 %r3, %r0, 3; setp.eq.u32 %p1, %r3, 1; @%p1 bra A;
    st.shared.u32 [%r7], %r1; barrier.sync 4{count}; bra END;
    A: add.u32 %r1, %r1, 7; st.shared.u32 [%r7], %r1; barrier.sync 4{count};
    END: xor.b32 %r8, %r0, 33; mad.lo.u32 %r8, %r8, 4, %r6; ld.shared.u32 %r9, [%r8]; st.global.u32 [%rd0], %r9;"""
    values = RNG.integers(0, 1 << 20, 64, dtype=np.uint32)
    own = [int(v) + 7 * (t % 4 == 1) for t, v in enumerate(values)]
    for count in ("", ", 64"):
        got = threads(body.replace("{count}", count), 64, source=values, schedule=schedule, seed=seed)
        assert got[:, 0].tolist() == [own[t ^ 33] for t in range(64)]


@by_schedule
def test_exited_threads_count_as_arrived(schedule: str, seed: int) -> None:
    body = """
    setp.lt.u32 %p1, %r0, 40; @%p1 bra LEAVE; bar.sync 0; barrier.sync 1; st.global.u32 [%rd0], 3; ret;
    LEAVE: mov.u32 %r3, 60; LOOP: sub.u32 %r3, %r3, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra LOOP;
    st.global.u32 [%rd0], 4;"""
    got = threads(body, 90, schedule=schedule, seed=seed)
    assert got[:, 0].tolist() == [4] * 40 + [3] * 50


BAD = {
    "number": ("mov.u32 %r3, 16; bar.sync %r3;", 64, "BAD_BARRIER", "does not exist"),
    "count": ("mov.u32 %r3, 48; bar.sync 1, %r3;", 64, "BAD_BARRIER", "multiple of 32"),
    "zero": ("mov.u32 %r3, 0; bar.sync 1, %r3;", 64, "BAD_BARRIER", "multiple of 32"),
    "many": ("bar.sync 1, 96;", 64, "BAD_BARRIER", "has 2 warps"),
    "lanes": ("and.b32 %r3, %r0, 1; bar.sync %r3;", 64, "BAD_BARRIER", "differs among the lanes"),
    "mixed": (
        "shr.u32 %r3, %r0, 5; setp.eq.u32 %p1, %r3, 0; @%p1 bra A; bar.sync 1; bra B; A: bar.sync 1, 64; B:",
        64,
        "BAD_BARRIER",
        "open for",
    ),
    "votes": (
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra A; bar.red.popc.u32 %r3, 1, 64, %p1; A: bar.sync 1, 64;",
        64,
        "BAD_BARRIER",
        "reduction",
    ),
    "arm": (
        "and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra A; bar.sync 0; A: st.global.u32 [%rd0], 1;",
        64,
        "BAD_PARTICIPATION",
        "",
    ),
    "arms": (
        "and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra A; bar.sync 0; bra B; A: bar.sync 0; B:",
        64,
        "BAD_PARTICIPATION",
        "",
    ),
    "guard": ("and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 barrier.sync 0;", 64, "BAD_PARTICIPATION", ""),
    "dead": ("setp.lt.u32 %p1, %r0, 32; @%p1 bra A; bar.sync 1, 64; A: bar.sync 2, 64;", 64, "DEADLOCK", ""),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
def test_misuse(name: str, schedule: str, seed: int) -> None:
    body, size, code, words = BAD[name]
    with pytest.raises(WarploomError) as caught:
        threads(body, size, schedule=schedule, seed=seed)
    assert caught.value.code == code
    assert words in caught.value.what


def test_a_deadlock_names_every_barrier() -> None:
    body, size, _, _ = BAD["dead"]
    with pytest.raises(WarploomError) as caught:
        threads(body, size)
    text = "\n".join(caught.value.notes)
    assert "barrier 1: 32 of 64 threads have come" in text
    assert "barrier 2: 32 of 64 threads have come" in text


@by_schedule
@pytest.mark.parametrize("instruction", ["bar.sync 1, 64;", "bar.arrive 1, 64;", "bar.red.popc.u32 %r3, 1, 64, %p1;"])
def test_more_warps_than_a_barrier_expects_form_several_generations(instruction: str, schedule: str, seed: int) -> None:
    # Without the barrier of all warps between the rounds, three warps could finish and leave the fourth without a partner.
    rounds = f"{instruction} bar.sync 0;" * 3
    body = f"setp.lt.u32 %p1, %r0, 999; {rounds} st.global.u32 [%rd0], 5;"
    assert (threads(body, 128, schedule=schedule, seed=seed) == 5).all()


@by_schedule
def test_guards_that_differ_between_warps(schedule: str, seed: int) -> None:
    """Two warps of a warpgroup wait for two of another one; the rest continue and arrive for them."""
    body = """
    shr.u32 %r3, %r0, 5; and.b32 %r4, %r3, 2; setp.eq.u32 %p1, %r4, 0; mov.u32 %r6, sh;
    @%p1 bar.sync 3, 128; setp.eq.u32 %p2, %r3, 2; @%p2 bra SEND; bra ALL; SEND: @%p2 st.shared.u32 [%r6], 12;
    ALL: bar.sync 0; ld.shared.u32 %r5, [%r6]; st.global.u32 [%rd0], %r5;"""
    assert (threads(body, 256, schedule=schedule, seed=seed) == 12).all()
