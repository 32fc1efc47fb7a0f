"""Shuffles, votes, matches, reductions and elections against a lane-by-lane reading of the ISA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.machine.simt import SCHEDULES, threads

from warploom.diagnostics import WarploomError

RNG = np.random.default_rng()
FULL = 0xFFFFFFFF


def shuffled(mode: str, values: list[int], b: list[int], c: list[int]) -> list[tuple[int, int]]:
    """The values that the lanes of a warp get, by the ISA's pseudo-code."""
    out = []
    for lane in range(32):
        bval, cval, mask = b[lane] & 31, c[lane] & 31, c[lane] >> 8 & 31
        bound, lowest = (lane & mask) | (cval & ~mask), lane & mask
        j = {"up": lane - bval, "down": lane + bval, "bfly": lane ^ bval, "idx": lowest | (bval & ~mask)}[mode]
        inside = j >= bound if mode == "up" else j <= bound
        out.append((values[j if inside else lane], int(inside)))
    return out


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("warps", [1, 4])
def test_shuffles_follow_the_pseudo_code(mode: str, warps: int) -> None:
    values = RNG.integers(0, 1 << 32, 32 * warps, dtype=np.uint32)
    for b, c in [(1, 31), (16, 31), (3, 0), (5, 0x1C1F), (9, 0x1003), (33, 31), (31, 7), (0, 0x1F1F), (2, 0x181C)]:
        body = f"""
        shfl.sync.{mode}.b32 %r3|%p1, %r1, {b}, {c}, -1;
        selp.u32 %r4, 1, 0, %p1;
        st.global.v2.u32 [%rd0], {{%r3, %r4}};"""
        got = threads(body, 32 * warps, words=2, source=values)
        want = [
            pair
            for w in range(warps)
            for pair in shuffled(mode, values[32 * w : 32 * w + 32].tolist(), [b] * 32, [c] * 32)
        ]
        assert got.tolist() == [list(pair) for pair in want], (b, c)


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_shuffles_take_a_source_per_lane(mode: str, schedule: str, seed: int) -> None:
    values = RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
    body = f"""
    and.b32 %r3, %r1, 63; shr.u32 %r4, %r1, 9; and.b32 %r4, %r4, 0x1F1F;
    shfl.sync.{mode}.b32 %r5|%p1, %r1, %r3, %r4, -1;
    selp.u32 %r6, 1, 0, %p1;
    st.global.v2.u32 [%rd0], {{%r5, %r6}};"""
    got = threads(body, 64, words=2, source=values, schedule=schedule, seed=seed)
    for w in range(2):
        mine = values[32 * w : 32 * w + 32].tolist()
        want = shuffled(mode, mine, [v & 63 for v in mine], [v >> 9 & 0x1F1F for v in mine])
        assert got[32 * w : 32 * w + 32].tolist() == [list(pair) for pair in want]


def test_a_shuffle_of_a_uniform_value_gives_it_to_every_lane() -> None:
    body = """
    mov.u32 %r3, 77; shfl.sync.idx.b32 %r4|%p1, %r3, 0, 31, -1; @!%p1 mov.u32 %r4, 0;
    shfl.sync.down.b32 %r5|%p1, %r3, 1, 31, -1; selp.u32 %r6, 1, 0, %p1;
    st.global.u32 [%rd0], %r4; st.global.v2.u32 [%rd0+8], {%r5, %r6};"""
    got = threads(body, 128, words=4)
    assert (got[:, 0] == 77).all()
    assert (got[:, 2] == 77).all()
    assert got[:, 3].tolist() == [int(t % 32 < 31) for t in range(128)]


def test_a_broadcast_is_uniform_and_branches_without_divergence() -> None:
    body = """
    shr.u32 %r3, %r0, 5; shfl.sync.idx.b32 %r4, %r3, 0, 31, -1; setp.eq.u32 %p1, %r4, 1; @%p1 bra ONE;
    setp.eq.u32 %p1, %r4, 2; @%p1 bra TWO;
    mov.u32 %r5, 5; bra END; ONE: mov.u32 %r5, 11; bar.sync 1, 32; bra END; TWO: mov.u32 %r5, 22;
    END: bar.sync 0; st.global.u32 [%rd0], %r5;"""
    for schedule, seed in SCHEDULES:
        got = threads(body, 128, schedule=schedule, seed=seed)
        assert got[:, 0].tolist() == [{1: 11, 2: 22}.get(t // 32, 5) for t in range(128)]


VOTES = """
 setp.gt.u32 %p1, %r1, 99;
 vote.sync.all.pred %p2, %p1, -1; vote.sync.any.pred %p3, !%p1, -1; vote.sync.uni.pred %p4, %p1, -1;
 vote.sync.ballot.b32 %r6, %p1, -1;
 selp.u32 %r3, 1, 0, %p2; selp.u32 %r4, 1, 0, %p3; selp.u32 %r5, 1, 0, %p4;
 st.global.v4.u32 [%rd0], {%r3, %r4, %r5, %r6};"""


@pytest.mark.parametrize("size", [1, 20, 32, 33, 128, 250])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
def test_votes(size: int, schedule: str, seed: int) -> None:
    for values in (np.full(size, 5), np.full(size, 500), RNG.integers(90, 110, size)):
        got = threads(VOTES, size, words=4, source=values.astype(np.uint32), schedule=schedule, seed=seed)
        for first in range(0, size, 32):
            mine = [v > 99 for v in values[first : first + 32].tolist()]
            ballot = sum(1 << i for i, yes in enumerate(mine) if yes)
            want = [int(all(mine)), int(not all(mine)), int(all(mine) or not any(mine)), ballot]
            assert got[first : first + 32].tolist() == [want] * len(mine)


@pytest.mark.parametrize("size", [7, 32, 128])
def test_matches(size: int) -> None:
    for top in (1, 3, 1 << 31):
        values = RNG.integers(0, top, size, dtype=np.uint32) * np.uint32(2)
        body = """
        match.any.sync.b32 %r3, %r1, -1; match.all.sync.b32 %r4|%p1, %r1, -1; selp.u32 %r5, 1, 0, %p1;
        cvt.u64.u32 %rd3, %r1; shl.b64 %rd3, %rd3, 20; match.any.sync.b64 %r6, %rd3, -1;
        st.global.v4.u32 [%rd0], {%r3, %r4, %r5, %r6};"""
        got = threads(body, size, words=4, source=values)
        for first in range(0, size, 32):
            mine = values[first : first + 32].tolist()
            every = (1 << len(mine)) - 1
            for lane, value in enumerate(mine):
                same = sum(1 << i for i, other in enumerate(mine) if other == value)
                assert got[first + lane].tolist() == [same, every if same == every else 0, int(same == every), same]


@pytest.mark.parametrize("size", [5, 32, 96])
@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_reductions(size: int, schedule: str) -> None:
    values = RNG.integers(0, 1 << 32, size, dtype=np.uint32)
    names = ["add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32"]
    body = "\n".join(
        f"redux.sync.{name} %r3, %r1, -1; st.global.u32 [%rd0+{4 * i}], %r3;" for i, name in enumerate(names)
    )
    got = threads(body, size, words=9, source=values, schedule=schedule)
    for first in range(0, size, 32):
        mine = values[first : first + 32]
        signed = mine.view(np.int32)
        total = int(mine.sum(dtype=np.uint64)) & FULL
        want = [total, total, int(mine.min()), int(signed.min()) & FULL, int(mine.max()), int(signed.max()) & FULL]
        want += [int(ufunc.reduce(mine)) for ufunc in (np.bitwise_and, np.bitwise_or, np.bitwise_xor)]
        assert got[first : first + 32].tolist() == [want] * len(mine)


def test_float_reductions_order_zeros_and_ignore_nans() -> None:
    names = ["min", "max", "min.abs", "max.abs", "min.NaN", "max.abs.NaN"]
    body = "\n".join(
        f"redux.sync.{name}.f32 %r3, %r1, -1; st.global.u32 [%rd0+{4 * i}], %r3;" for i, name in enumerate(names)
    )

    def bits(values: list[float]) -> np.ndarray[Any, Any]:
        return np.array(values, np.float32).view(np.uint32)

    cases = {
        "plain": (bits([1.5, -2.0, 3.25, 0.5] * 8), [-2.0, 3.25, 0.5, 3.25, -2.0, 3.25]),
        "zeros": (bits([0.0, -0.0] * 16), [-0.0, 0.0, 0.0, 0.0, -0.0, 0.0]),
        "a nan": (bits([np.nan] + [-1.0, 4.0, np.inf] * 10 + [7.0]), [-1.0, np.inf, 1.0, np.inf, None, None]),
        "nans": (bits([np.nan] * 32), [None] * 6),
    }
    for source, want in cases.values():
        got = threads(body, 32, words=6, source=source, target="sm_100a")
        expected = [0x7FFFFFFF if w is None else int(np.float32(w).view(np.uint32)) for w in want]
        assert got.tolist() == [expected] * 32


def test_float_reductions_need_blackwell() -> None:
    with pytest.raises(WarploomError) as caught:
        threads("redux.sync.min.f32 %f1, %f2, -1;")
    assert caught.value.code == "WRONG_TARGET"


@pytest.mark.parametrize("size", [1, 32, 40, 128])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_one_lane_is_elected(size: int, schedule: str, seed: int) -> None:
    body = """
    elect.sync %r3|%p1, -1; selp.u32 %r4, 1, 0, %p1; activemask.b32 %r5;
    st.global.v2.u32 [%rd0], {%r3, %r4}; st.global.u32 [%rd0+8], %r5;"""
    got = threads(body, size, words=4, schedule=schedule, seed=seed)
    for t in range(size):
        live = min(32, size - t // 32 * 32)
        assert got[t].tolist() == [0, int(t % 32 == 0), (1 << live) - 1, 0]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_election_in_divergent_code(schedule: str, seed: int) -> None:
    """In both arms of a branch, with masks that name only the lanes there, and with the active mask."""
    body = """
    and.b32 %r3, %r0, 31; setp.lt.u32 %p1, %r3, 12; @%p1 bra LOW;
    activemask.b32 %r7; elect.sync %r4|%p2, 0xFFFFF000; vote.sync.ballot.b32 %r6, %p2, %r7; bra END;
    LOW: activemask.b32 %r7; elect.sync %r4|%p2, %r7; vote.sync.ballot.b32 %r6, !%p2, 0xFFF;
    END: selp.u32 %r5, 1, 0, %p2; st.global.v4.u32 [%rd0], {%r4, %r5, %r6, %r7};"""
    got = threads(body, 64, words=4, schedule=schedule, seed=seed)
    for t in range(64):
        if t % 32 < 12:
            assert got[t].tolist() == [0, int(t % 32 == 0), 0xFFE, 0xFFF]
        else:
            assert got[t].tolist() == [12, int(t % 32 == 12), 1 << 12, 0xFFFFF000]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_lanes_of_both_arms_of_a_branch_synchronise(schedule: str, seed: int) -> None:
    """A full membermask in divergent code: each arm waits for the other, at its own instruction."""
    body = """
    and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra EVEN;
    shfl.sync.bfly.b32 %r4, %r1, 1, 31, -1; redux.sync.add.u32 %r5, %r4, -1; bar.warp.sync -1; bra END;
    EVEN: add.u32 %r1, %r1, 1000; shfl.sync.bfly.b32 %r4, %r1, 1, 31, -1; redux.sync.add.u32 %r5, %r4, -1;
    bar.warp.sync -1;
    END: st.global.v2.u32 [%rd0], {%r4, %r5};"""
    values = RNG.integers(0, 1 << 20, 64, dtype=np.uint32)
    got = threads(body, 64, words=2, source=values, schedule=schedule, seed=seed)
    mine = [int(v) + (1000 if t % 2 == 0 else 0) for t, v in enumerate(values)]
    for t in range(64):
        first = t // 32 * 32
        assert got[t].tolist() == [mine[t ^ 1], sum(mine[first : first + 32])]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_exited_lanes_are_not_waited_for(schedule: str, seed: int) -> None:
    """Some lanes return early, some while others already wait for them."""
    body = """
    and.b32 %r3, %r0, 31; setp.ge.u32 %p1, %r3, 28; @%p1 ret;
    setp.lt.u32 %p2, %r3, 4; @%p2 bra LEAVE;
    redux.sync.add.u32 %r4, %r1, -1; bra END;
    LEAVE: mov.u32 %r5, 50; LOOP: sub.u32 %r5, %r5, 1; setp.ne.u32 %p3, %r5, 0; @%p3 bra LOOP;
    st.global.u32 [%rd0], 7; ret;
    END: vote.sync.ballot.b32 %r6, %p1, -1; not.b32 %r6, %r6; st.global.v2.u32 [%rd0], {%r4, %r6};"""
    values = RNG.integers(1, 1 << 20, 64, dtype=np.uint32)
    got = threads(body, 64, words=2, source=values, schedule=schedule, seed=seed)
    for t in range(64):
        lane, first = t % 32, t // 32 * 32
        want = [0, 0] if lane >= 28 else [7, 0] if lane < 4 else [int(values[first + 4 : first + 28].sum()), FULL]
        assert got[t].tolist() == want


@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_a_reader_of_an_absent_lane_gets_poison(schedule: str) -> None:
    body = """
    setp.ge.u32 %p1, %r0, 16; @%p1 ret; shfl.sync.down.b32 %r3, %r1, 8, 31, -1; st.global.u32 [%rd0], %r3;"""
    values = np.arange(100, 132, dtype=np.uint32)
    got = threads(body, 32, source=values, schedule=schedule)
    assert got[:16, 0].tolist() == [*range(108, 116), *[FULL] * 8]


@pytest.mark.parametrize("size", [32, 128])
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
@pytest.mark.parametrize(
    "body",
    [
        "shfl.sync.idx.b32 %r3, %r1, 0, 31, 0xFFFF;",
        "and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 shfl.sync.idx.b32 %r3, %r1, 0, 31, -1;",
        "and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra A; vote.sync.ballot.b32 %r4, %p1, 0x55555555; A:",
        "mov.u32 %r3, %lanemask_le; bar.warp.sync %r3;",
        "elect.sync _|%p1, 0;",
    ],
)
def test_lanes_outside_the_mask_are_a_fault(body: str, schedule: str, size: int) -> None:
    with pytest.raises(WarploomError) as caught:
        threads(body, size, schedule=schedule)
    assert caught.value.code == "BAD_PARTICIPATION"


def test_a_lane_that_never_arrives_is_named_in_the_deadlock() -> None:
    body = """
    setp.eq.u32 %p1, %r0, 3; @%p1 bra ALONE; redux.sync.add.u32 %r3, %r1, -1; bra END;
    ALONE: redux.sync.or.b32 %r3, %r1, -1; END: st.global.u32 [%rd0], %r3;"""
    with pytest.raises(WarploomError) as caught:
        threads(body)
    assert caught.value.code == "DEADLOCK"
    assert any("lane 3 of warp 0 still to come" in note for note in caught.value.notes)


@pytest.mark.parametrize(
    "text", ["shfl.idx.b32 %r1, %r2, 0, 31;", "vote.ballot.b32 %r1, %p1;", "shfl.sync.bfly.u32 %r1, %r2, 1, 31, -1;"]
)
def test_old_forms_are_refused(text: str) -> None:
    with pytest.raises(WarploomError) as caught:
        threads(text)
    assert caught.value.code == "UNKNOWN_INSTRUCTION"


def test_modifiers_may_come_in_another_order() -> None:
    body = """
    shfl.idx.sync.b32 %r3, %r1, 5, 31, -1; setp.ne.u32 %p1, %r1, 0; vote.ballot.sync.b32 %r4, %p1, -1;
    st.global.v2.u32 [%rd0], {%r3, %r4};"""
    values = RNG.integers(0, 2, 32, dtype=np.uint32)
    got = threads(body, 32, words=2, source=values)
    ballot = sum(1 << i for i, v in enumerate(values.tolist()) if v)
    assert got.tolist() == [[int(values[5]), ballot]] * 32


TEAMS = """
 and.b32 %r3, %r0, 24; shl.b32 %r4, 255, %r3; setp.gt.u32 %p1, %r1, 99;
 and.b32 %r10, %r0, PART; setp.eq.u32 %p3, %r10, 0; @%p3 bra OTHER;
 WORK bra JOIN;
 OTHER: WORK
 JOIN: st.global.v4.u32 [%rd0], {%r5, %r6, %r7, %r8}; st.global.u32 [%rd0+16], %r9;"""
WORK = """
 shfl.sync.bfly.b32 %r5, %r1, 5, 0x181f, %r4; redux.sync.max.u32 %r6, %r1, %r4;
 vote.sync.ballot.b32 %r7, %p1, %r4; match.any.sync.b32 %r8, %r3, %r4; elect.sync %r9|%p2, %r4; bar.warp.sync %r4;"""


@pytest.mark.parametrize("size", [32, 128])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("part", [0, 1, 6, 8, 32], ids=["together", "odd lanes", "pairs", "tiles", "warps"])
def test_tiles_of_a_warp_work_independently(size: int, schedule: str, seed: int, part: int) -> None:
    """Every eight lanes name only themselves, as cooperative groups spell it, on any code path."""
    values = RNG.integers(0, 200, size, dtype=np.uint32)
    body = TEAMS.replace("PART", str(part)).replace("WORK", WORK)
    got = threads(body, size, words=8, source=values, schedule=schedule, seed=seed)
    for t in range(size):
        first = t // 8 * 8
        mine, shift = values[first : first + 8].tolist(), first % 32
        votes = sum(1 << shift + i for i, v in enumerate(mine) if v > 99)
        assert got[t, :5].tolist() == [values[first + (t % 8 ^ 5)], max(mine), votes, 255 << shift, shift]
