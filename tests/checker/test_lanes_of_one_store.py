"""Lanes of a warp that store to one address with one instruction: the values must be equal."""

from __future__ import annotations

import pytest
from tests.checker.kernels import checked, codes

from warploom.checker.report import Verdict

PLACES = (
    "and.b32 %r7, %r1, 31; mul.lo.u32 %r10, %r6, 512; add.u32 %r9, %r2, %r10; mul.wide.u32 %rd4, %r6, 64; "
    "add.u64 %rd5, %rd1, %rd4;"
)
"""%r7 is the lane; %r9 in shared memory and %rd5 in the output are places of the warp."""
CLASHES = {
    "shared": "st.shared.u32 [%r9], %r7;",
    "global": "st.global.u32 [%rd5], %r7;",
    "generic": "st.u32 [%rd5], %r7;",
    "vector": "st.shared.v2.u32 [%r9], {%r6, %r7};",
    "low byte": "st.shared.u8 [%r9], %r7;",
    "two of 32 lanes": "max.u32 %r8, %r7, 1; shl.b32 %r8, %r8, 2; add.u32 %r8, %r8, %r9; st.shared.u32 [%r8], %r7;",
    "two lanes that take part": "setp.lt.u32 %p2, %r7, 2; @%p2 st.shared.u32 [%r9], %r7;",
    "falling pairs": "shr.u32 %r8, %r7, 1; sub.u32 %r8, 15, %r8; shl.b32 %r8, %r8, 2; add.u32 %r8, %r8, %r9; "
    "st.shared.u32 [%r8], %r7;",
    "rows of a matrix": "and.b32 %r8, %r7, 6; shl.b32 %r8, %r8, 4; add.u32 %r8, %r8, %r9; "
    "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r8], {%r7};",
    "cp.async": "shl.b32 %r8, %r7, 2; cvt.u64.u32 %rd6, %r8; add.u64 %rd7, %rd1, %rd6; "
    "cp.async.ca.shared.global [%r9], [%rd7], 4; cp.async.wait_all;",
}
CLEAN = {
    "equal values": "st.shared.u32 [%r9], 7;",
    "equal registers": "st.global.u32 [%rd5], %r6;",
    "equal low bytes": "shl.b32 %r8, %r7, 8; st.shared.u8 [%r9], %r8;",
    "equal vectors": "st.shared.v2.u32 [%r9], {%r6, %r9};",
    "addresses of their own": "st.shared.u32 [%r5], %r7;",
    "falling addresses": "sub.u32 %r8, 31, %r7; shl.b32 %r8, %r8, 2; add.u32 %r8, %r8, %r9; st.shared.u32 [%r8], %r7;",
    "one lane that takes part": "setp.eq.u32 %p2, %r7, 3; @%p2 st.shared.u32 [%r9], %r7;",
    "pairs of equal values": "shr.u32 %r8, %r7, 1; shl.b32 %r11, %r8, 2; add.u32 %r11, %r11, %r9; "
    "st.shared.u32 [%r11], %r8;",
    "lanes that have parted": "setp.lt.u32 %p2, %r7, 9; mov.u32 %r8, 5; @%p2 bra less; st.shared.u32 [%r5+2048], %r7; "
    "less: bar.warp.sync -1; @%p2 st.shared.u32 [%r5+2048], %r7; st.shared.u32 [%r9], %r8;",
    "atomics": "red.global.add.u32 [%rd5], %r7; atom.global.exch.b32 %r8, [%rd5+4], %r7;",
    "equal rows of a matrix": "and.b32 %r8, %r7, 6; shl.b32 %r8, %r8, 4; add.u32 %r8, %r8, %r9; "
    "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r8], {%r6};",
    "equal copies": "cp.async.ca.shared.global [%r9], [%rd5], 4; cp.async.wait_all;",
}


@pytest.fixture(autouse=True, params=["native", "numpy"])
def _engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPLOOM_ENGINE", request.param)


@pytest.mark.parametrize("profile", ["strict", "lenient"])
@pytest.mark.parametrize("name", CLASHES)
def test_different_values_at_one_address_are_refuted(name: str, profile: str) -> None:
    report = checked(PLACES + CLASHES[name], profile=profile)
    assert codes(report) == {"LANE_RACE"}
    (finding,) = report.findings
    one, other = finding.parties
    assert one.lanes < other.lanes
    assert one.lanes.bit_count() == other.lanes.bit_count() == 1
    assert one.addresses == other.addresses
    assert finding.count == 2  # one of each warp
    assert finding.witness is not None
    assert not finding.witness.kind
    assert "no schedule" in finding.witness.text


@pytest.mark.parametrize("name", CLEAN)
def test_equal_values_and_different_addresses_are_not(name: str) -> None:
    assert checked(PLACES + CLEAN[name]).verdict is Verdict.PROVED


def test_the_lanes_and_their_address_are_named() -> None:
    body = "setp.ge.u32 %p2, %r1, 12; max.u32 %r8, %r1, 20; shl.b32 %r8, %r8, 2; add.u32 %r8, %r8, %r2;"
    (finding,) = checked(f"{body} @%p2 st.shared.u32 [%r8], %r1;", block=32).findings
    assert [party.lanes for party in finding.parties] == [1 << 12, 1 << 13]
    ((start, end),) = {party.addresses for party in finding.parties}
    assert (start % 128, end - start) == (80, 4)
    assert "Lanes 12 and 13" in finding.sentence


def test_numbers_that_differ_in_rounding_are_accepted_under_lenient() -> None:
    body = "setp.gt.u32 %p2, %r7, 9; selp.b32 %r8, 0x3f800001, {one}, %p2; st.shared.b32 [%r9], %r8;"
    near, far = (PLACES + body.format(one=one) for one in ("0x3f800000", "0x3f7f0000"))
    (finding,) = checked(near, block=32).findings
    assert (finding.code, finding.excused_by) == ("LANE_RACE", "replica-rounding")
    lenient = checked(near, block=32, profile="lenient")
    assert lenient.verdict is Verdict.PROVED
    assert [each.name for each in lenient.relaxed] == ["replica-rounding"]
    assert codes(checked(far, block=32, profile="lenient")) == {"LANE_RACE"}


def test_warps_that_store_numbers_with_other_rounding_are_accepted_under_lenient() -> None:
    body = "setp.eq.u32 %p2, %r6, 1; selp.b32 %r8, {one}, 0x3f800000, %p2; st.shared.b32 [%r2], %r8;"
    near, far = (body.format(one=one) for one in ("0x3f800001", "0x3f7f0000"))
    (finding,) = checked(PLACES + near, block=96).findings
    assert (finding.code, finding.excused_by) == ("RACE_WAW", "replica-rounding")
    lenient = checked(PLACES + near, block=96, profile="lenient")
    assert lenient.verdict is Verdict.PROVED
    assert [each.name for each in lenient.relaxed] == ["replica-rounding"]
    assert codes(checked(PLACES + far, block=96, profile="lenient")) == {"RACE_WAW"}
    again = "st.shared.b32 [%r2], 7;"  # nothing orders it after the store of another warp
    assert codes(checked(PLACES + near + again, block=96, profile="lenient")) == {"RACE_WAW"}


def test_small_sums_may_differ_by_the_rounding_of_large_ones() -> None:
    """Terms of other signs cancel: the rounding of what is left is that of the terms."""
    body = (
        "setp.eq.u32 %p2, %r6, 0; setp.gt.u32 %p3, %r7, 9; selp.b32 %r8, 0x3727c5ac, 0x3727d5ac, %p3; "
        "selp.b32 %r8, {other}, %r8, %p2; st.shared.b32 [%r9], %r8;"
    )
    large, small = (PLACES + body.format(other=other) for other in ("0x3f800000", "0x3727c5ac"))
    assert checked(large, profile="lenient").verdict is Verdict.PROVED
    assert codes(checked(small, profile="lenient")) == {"LANE_RACE"}


def test_one_wrong_cluster_and_one_wrong_pass_of_many_are_found() -> None:
    last = "mov.u32 %r8, %ctaid.x; setp.eq.u32 %p2, %r8, 5; selp.u32 %r9, %r1, 3, %p2; st.shared.u32 [%r2], %r9;"
    assert codes(checked(last, block=32, grid=6)) == {"LANE_RACE"}
    loop = (
        "mov.u32 %r8, 0; again: setp.eq.u32 %p2, %r8, 300; selp.u32 %r9, %r1, 3, %p2; st.shared.u32 [%r2], %r9; "
        "add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 400; @%p3 bra again;"
    )
    assert codes(checked(loop, block=32)) == {"LANE_RACE"}


def test_strong_stores_do_not_race_but_the_value_that_a_thread_waits_for_may_be_missed() -> None:
    store = "st.relaxed.gpu.global.u32 [%rd1], %r1;"
    report = checked(store, block=32)
    assert report.verdict is Verdict.PROVED
    assert any(each.startswith("strong-order") for each in report.assumptions)
    wait = (
        "setp.lt.u32 %p2, %r1, 32; @!%p2 bra wait; {store} bra end; wait: ld.acquire.gpu.global.u32 %r8, [%rd1]; "
        "setp.ne.u32 %p3, %r8, 31; @%p3 bra wait; end:"
    )
    assert checked(wait.format(store=store)).verdict is Verdict.INCOMPLETE


MEETINGS = {
    "nothing": ("", False),
    "bar.warp.sync": ("bar.warp.sync 0xffffffff;", True),
    "bar.sync": ("bar.sync 0;", True),
    "shfl": ("shfl.sync.idx.b32 %r12, %r1, 0, 31, -1;", False),
    "mbarrier": (
        "mbarrier.arrive.shared.b64 _, [%r3]; WAIT: mbarrier.try_wait.parity.shared.b64 %p7, [%r3], 0; @!%p7 bra WAIT;",
        True,
    ),
    "halves": ("@%p2 bra LOW; bar.warp.sync 0xffff0000; bra BOTH; LOW: bar.warp.sync 0x0000ffff; BOTH:", None),
}


@pytest.mark.parametrize("meeting", MEETINGS)
@pytest.mark.parametrize("distance", [4, 64], ids=["next lane", "other half"])
@pytest.mark.parametrize("writes_first", [True, False])
def test_lanes_exchange_values_through_shared_memory(meeting: str, distance: int, writes_first: bool) -> None:
    """Lanes of a warp are threads: without bar.warp.sync a store and a load of another lane race."""
    text, is_right = MEETINGS[meeting]
    is_right = distance == 4 if is_right is None else is_right
    other = f"xor.b32 %r7, %r4, {distance}; add.u32 %r7, %r7, %r2;"
    store, load = "st.shared.u32 [%r5], %r1;", "ld.shared.u32 %r9, [%r7]; st.global.u32 [%rd3], %r9;"
    first, second = (store, load) if writes_first else (f"{store} bar.warp.sync -1; {load}", store)
    start = "@%p1 mbarrier.init.shared.b64 [%r3], 32; and.b32 %r10, %r1, 16; setp.eq.u32 %p2, %r10, 0; bar.sync 0;"
    body = f"{start} {other} {first} {text} {second.replace('%r1;', '%r10;') if not writes_first else second}"
    report = checked(body, block=32, budget=0)
    assert codes(report) == (set() if is_right else {"RACE_RAW" if writes_first else "RACE_WAR"})
    assert {each.excused_by for each in report} <= {"warp-synchronous"}
    assert not checked(body, block=32, budget=0, profile="lenient").findings


def test_lanes_may_use_their_own_words_again() -> None:
    body = "st.shared.u32 [%r5], %r1; ld.shared.u32 %r9, [%r5]; st.shared.u32 [%r5], %r4; ld.shared.u8 %r9, [%r5+1];"
    assert not checked(f"{body} st.global.u32 [%rd3], %r9;", block=32, budget=0).findings
