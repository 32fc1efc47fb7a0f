"""Kernels without asynchronous operations: races between warps and programs, flags, lost updates, unwritten memory."""

from __future__ import annotations

import pytest
from tests.checker.kernels import checked, codes

import warploom
from warploom.checker.report import Verdict

NEIGHBOUR = "xor.b32 %r7, %r4, 128; add.u32 %r8, %r2, %r7;"
EXCHANGE = f"st.shared.u32 [%r5], %r1; {NEIGHBOUR} {{sync}} ld.shared.u32 %r9, [%r8]; st.global.u32 [%rd3], %r9;"


def test_an_exchange_through_shared_memory_needs_a_barrier() -> None:
    whole, racy = checked(EXCHANGE.format(sync="bar.sync 0;")), checked(EXCHANGE.format(sync=""))
    assert whole.verdict is Verdict.PROVED
    assert whole.covers.interleavings == "all"
    assert racy.verdict is Verdict.REFUTED
    assert codes(racy) & {"RACE_RAW", "RACE_WAR", "UNINITIALISED"}
    assert racy.remaining_under_lenient


def test_a_race_names_both_parties() -> None:
    report = checked("setp.lt.u32 %p2, %r1, 32; @%p2 st.shared.u32 [%r5], %r1; @!%p2 ld.shared.u32 %r9, [%r5+-128];")
    (finding,) = (each for each in report.findings if each.code == "RACE_RAW")
    reader, writer = finding.parties
    assert (reader.action, reader.warp) == ("reads", 1)
    assert (writer.action, writer.warp) == ("writes", 0)
    assert reader.addresses == writer.addresses
    assert reader.addresses[1] - reader.addresses[0] == 128
    assert reader.number != writer.number


def test_lanes_of_one_warp_need_a_warp_barrier() -> None:
    body = "st.shared.u32 [%r5], %r1; xor.b32 %r7, %r4, 64; add.u32 %r8, %r2, %r7; {sync} ld.shared.u32 %r9, [%r8];"
    assert checked(body.format(sync="bar.warp.sync 0xffffffff;"), block=32).verdict is Verdict.PROVED


IN_PLACE = (
    "and.b32 %r7, %r1, 31; mul.wide.u32 %rd4, %r7, 4; add.u64 %rd5, %rd1, %rd4; setp.lt.u32 %p2, %r1, 32; "
    "ld.global.u32 %r8, [%rd5]; shfl.sync.bfly.b32 %r9, %r8, 1, 31, -1; add.u32 %r9, %r9, %r8; "
    "@%p2 st.global.u32 [%rd5], %r9;"
)
"""Both warps load the same row, and one of them stores what becomes of it in place of it."""


def test_a_race_with_a_read_that_is_used_for_nothing_is_accepted_under_lenient() -> None:
    (finding,) = checked(IN_PLACE).findings
    assert (finding.code, finding.excused_by) == ("RACE_WAR", "unused-read")
    assert [party.warp for party in finding.parties] == [0, 1]
    lenient = checked(IN_PLACE, profile="lenient")
    assert lenient.verdict is Verdict.PROVED
    assert [each.name for each in lenient.relaxed] == ["unused-read"]


@pytest.mark.parametrize(
    "use",
    [
        "@!%p2 st.global.u32 [%rd3], %r9;",
        "@!%p2 st.shared.u32 [%r5], %r8;",
        "setp.eq.u32 %p3, %r9, 5; mov.u32 %r8, 0; @%p3 st.shared.u32 [%r5], 1; @!%p3 st.shared.u32 [%r5], 2;",
        "setp.eq.u32 %p3, %r9, 5; @%p3 bra end; bar.warp.sync -1; end:",
        "and.b32 %r8, %r9, 4; add.u32 %r8, %r8, %r2; ld.shared.u8 %r9, [%r8];",
        "red.shared.add.u32 [%r2], %r9;",
    ],
)
def test_a_race_with_a_read_that_is_used_is_not(use: str) -> None:
    """The value reaches memory, the guard of a store, a branch, an address, an atomic."""
    report = checked("st.shared.u32 [%r2], 0; bar.sync 0; " + IN_PLACE + use, profile="lenient")
    assert "RACE_WAR" in codes(report)


UPDATE = "ld.global.u32 %r7, [%rd1]; add.u32 %r7, %r7, 1; st.global.u32 [%rd1], %r7;"


@pytest.mark.parametrize(("grid", "block"), [(1, 64), (2, 32)])
def test_updates_without_atomics_are_lost(grid: int, block: int) -> None:
    report = checked(
        f"and.b32 %r8, %r1, 31; setp.eq.u32 %p2, %r8, 0; @!%p2 bra end; {UPDATE} end:", grid=grid, block=block
    )
    assert codes(report) == {"LOST_UPDATE"}
    assert report.findings[0].parties[0].place


def test_atomic_updates_are_not() -> None:
    report = checked("red.relaxed.gpu.global.add.u32 [%rd1], 1;", grid=4, block=64)
    assert report.verdict is Verdict.PROVED


def test_atomics_of_too_small_a_scope_race() -> None:
    report = checked("red.relaxed.cta.global.add.u32 [%rd1], 1;", grid=2, block=32)
    assert report.verdict is Verdict.REFUTED


FLAG = """
    setp.eq.u32 %p3, %r6, 0;
    @%p3 bra producer;
poll:
    {load} %r10, [%r2+512];
    setp.ne.u32 %p2, %r10, 1;
    @%p2 bra poll;
    ld.shared.u32 %r11, [%r2+256];
    bra end;
producer:
    mov.u32 %r12, 1;
    @%p1 st.shared.u32 [%r2+256], %r12;
    @%p1 {store} [%r2+512], %r12;
end:
    bar.sync 0;
"""
START = "mov.u32 %r13, 0; @%p1 st.shared.u32 [%r2+512], %r13; bar.sync 0;"


def test_a_flag_is_released_and_acquired() -> None:
    release, acquire = "st.release.cta.shared.u32", "ld.acquire.cta.shared.u32"
    report = checked(START + FLAG.format(load=acquire, store=release))
    assert codes(report) == set()
    assert any("monotone-flags" in each for each in report.assumptions)


@pytest.mark.parametrize(
    ("load", "store"),
    [("ld.shared.u32", "st.shared.u32"), ("ld.relaxed.cta.shared.u32", "st.relaxed.cta.shared.u32")],
)
def test_an_unsynchronised_flag_is_refuted(load: str, store: str) -> None:
    report = checked(START + FLAG.format(load=load, store=store))
    assert report.verdict is Verdict.REFUTED
    assert codes(report) & {"RACE_RAW", "RACE_WAW", "VISIBILITY"}


def test_stores_of_equal_values_are_an_assumption_and_others_a_race() -> None:
    equal = checked("mov.u32 %r7, 5; st.global.u32 [%rd1], %r7;", grid=2)
    assert equal.verdict is Verdict.PROVED
    assert any("equal-values" in each for each in equal.assumptions)
    other = checked("mov.u32 %r7, %ctaid.x; st.global.u32 [%rd1], %r7;", grid=2)
    assert codes(other) == {"RACE_WAW"}


def test_unwritten_shared_memory_is_found() -> None:
    assert codes(checked("ld.shared.u32 %r9, [%r5]; st.global.u32 [%rd3], %r9;", block=32)) == {"UNINITIALISED"}


def test_a_deadlock_and_a_fault_are_findings() -> None:
    half = checked("setp.eq.u32 %p2, %r6, 0; @%p2 bar.sync 1, 64;")
    assert half.verdict is Verdict.REFUTED
    assert codes(half) == {"DEADLOCK"}
    assert half.error is not None
    wild = checked("mov.u64 %rd4, 64; st.global.u32 [%rd4], %r1;")
    assert codes(wild) == {"FAULT"}


def test_control_that_depends_on_the_order_of_atomics_is_incomplete() -> None:
    body = "atom.global.add.u32 %r7, [%rd1], 1; setp.eq.u32 %p2, %r7, 0; @%p2 st.shared.u32 [%r2], %r7;"
    report = checked(body, grid=2, block=32)
    assert report.verdict is Verdict.INCOMPLETE
    assert report.covers.interleavings == "this run"
    (reason,) = report.reasons
    assert "atomic" in reason


LAST_BLOCK = """
    mov.u32 %r7, %ctaid.x;
    mul.wide.u32 %rd4, %r7, 4;
    add.u64 %rd5, %rd1, %rd4;
    add.u32 %r8, %r7, 40;
    @%p1 st.global.u32 [%rd5], %r8;
    {before}
    @%p1 atom.relaxed.gpu.global.inc.u32 %r9, [%rd1+64], 7;
    {after}
    @%p1 st.shared.u32 [%r2], %r9;
    bar.sync 0;
    ld.shared.u32 %r10, [%r2];
    setp.ne.u32 %p2, %r10, 3;
    @%p2 bra end;
    setp.ge.u32 %p3, %r1, 4;
    @%p3 bra end;
    ld.global.u32 %r11, [%rd1+{place}];
    st.global.u32 [%rd3+128], %r11;
    mov.u32 %r12, 0;
    @%p1 st.global.u32 [%rd1+64], %r12;
end:
"""
FENCE = "fence.acq_rel.gpu;"


@pytest.mark.parametrize("place", [0, 8])
def test_the_last_block_reads_what_others_wrote_before_their_ticket(place: int) -> None:
    """The example of `__threadfence()` in CUDA's guide has no fence after the atomic, and PTX asks for one."""

    def judged(before: str, after: str, profile: str) -> warploom.Report:
        body = LAST_BLOCK.format(before=before, after=after, place=place)
        return checked(body, grid=4, block=32, words=64, profile=profile)

    for profile in ("strict", "lenient"):
        assert judged(FENCE, FENCE, profile).verdict is Verdict.INCOMPLETE  # which CTA is the last is not enumerated
        assert judged("", FENCE, profile).verdict is Verdict.REFUTED
    assert judged("", "", "lenient").verdict is Verdict.REFUTED
    guide = judged(FENCE, "", "strict")
    assert guide.verdict is Verdict.REFUTED
    assert {finding.excused_by for finding in guide.findings} == {"atomic-acquire"}
    assert not guide.remaining_under_lenient
    lenient = judged(FENCE, "", "lenient")
    assert lenient.verdict is Verdict.INCOMPLETE
    assert [(each.name, each.count > 0) for each in lenient.relaxed] == [("atomic-acquire", True)]


@pytest.mark.parametrize(
    ("last", "verdict"), [("mov.u32 %r10, %r9;", Verdict.INCOMPLETE), ("mov.u32 %r10, %ctaid.x;", Verdict.REFUTED)]
)
def test_a_counter_is_reset_by_the_thread_whose_atomic_found_it_complete(last: str, verdict: Verdict) -> None:
    """In the second kernel the last CTA does it, whatever it found: the atomics of others may come later."""
    atomic = "atom.relaxed.gpu.global.inc.u32 %r9, [%rd1+64], 7;"
    body = f"@!%p1 bra end; {atomic} {last} setp.ne.u32 %p2, %r10, 3; @%p2 bra end; st.global.u32 [%rd1+64], %r1; end:"
    for profile in ("strict", "lenient"):
        report = checked(body, grid=4, block=32, words=64, profile=profile)
        assert report.verdict is verdict
        assert any("order of the atomics" in each for each in report.reasons) == (verdict is Verdict.INCOMPLETE)


def test_a_test_of_a_barrier_that_decides_more_than_to_wait_is_incomplete() -> None:
    begin = "mov.u32 %r7, 1; @%p1 mbarrier.init.shared.b64 [%r3], %r7; bar.sync 0; @%p1 mbarrier.arrive.shared.b64 _, [%r3];"
    spin = "again: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra again;"
    other = "mbarrier.test_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 st.global.u32 [%rd3], %r1;"
    assert checked(begin + spin).verdict is Verdict.PROVED
    assert checked(begin + other).verdict is Verdict.INCOMPLETE


BEGIN = (
    "mov.u32 %r7, 1; @%p1 mbarrier.init.shared.b64 [%r3], %r7; bar.sync 0; @%p1 mbarrier.arrive.shared.b64 _, [%r3];"
)
TEST = "mbarrier.test_wait.parity.shared.b64 %p2, [%r3], 0;"


@pytest.mark.parametrize(
    "body",
    [
        f"mov.u32 %r8, 0; {TEST} @!%p2 bra skip; mov.u32 %r8, 4; skip: add.u32 %r9, %r2, %r8; @%p1 st.shared.u8 [%r9], %r1;",
        f"mov.u32 %r8, 0; again: add.u32 %r8, %r8, 1; {TEST} @!%p2 bra again; add.u32 %r9, %r2, %r8; st.shared.u8 [%r9], 1;",
        f"st.shared.u32 [%r5], %r1; again: red.shared.add.u32 [%r5], 1; {TEST} @!%p2 bra again;",
        f"{TEST} @!%p2 bra other; bra end; other: exit; end: st.shared.u32 [%r5], %r1;",
        "mov.u64 %rd4, %globaltimer; cvt.u32.u64 %r8, %rd4; and.b32 %r8, %r8, 4; add.u32 %r9, %r5, %r8; st.shared.u32 [%r9], %r1;",
        "mov.u32 %r8, %clock; setp.lt.u32 %p2, %r8, 64; @%p2 bra skip; st.shared.u32 [%r5], %r1; skip:",
    ],
)
def test_effects_that_the_time_of_a_wait_decides_are_incomplete(body: str) -> None:
    """An address, the number of rounds of a loop, an effect in its first block, an end."""
    report = checked(BEGIN + body)
    assert report.verdict is Verdict.INCOMPLETE
    assert "mbarrier test" in report.reasons[0] or "clock" in report.reasons[0]


SLEEP = f"""
    {TEST}
    @%p2 bra done;
    mov.u64 %rd4, %globaltimer;
again:
    {TEST}
    @%p2 bra done;
    mov.u64 %rd5, %globaltimer;
    sub.u64 %rd5, %rd5, %rd4;
    setp.lt.u64 %p3, %rd5, 1000;
    @%p3 bra again;
    shr.u64 %rd5, %rd5, 2;
    cvt.u32.u64 %r8, %rd5;
    min.u32 %r8, %r8, 64;
    nanosleep.u32 %r8;
    bra again;
done:
    st.shared.u32 [%r5], %r1;
"""


@pytest.mark.parametrize(
    "body",
    [
        f"again: add.u32 %r8, %r3, 0; {TEST} @!%p2 bra again; add.u32 %r9, %r8, 8; st.shared.u32 [%r9], 1;",
        f"mov.u32 %r8, 0; again: add.u32 %r8, %r8, 1; {TEST} @!%p2 bra again; st.shared.u32 [%r5], %r8;",
        f"again: {TEST} @!%p2 bra again; ret;",
        SLEEP,
    ],
)
def test_waits_that_compute_or_sleep_are_waits(body: str) -> None:
    """The last is the loop of `cuda::barrier`, which sleeps for longer the longer it has waited."""
    assert checked(BEGIN + body).verdict is Verdict.PROVED


def test_a_budget_and_a_profile_are_verified() -> None:
    from warploom import LaunchError

    with pytest.raises(LaunchError, match="profile"):
        checked("bar.sync 0;", profile="gentle")
    with pytest.raises(LaunchError, match="budget"):
        checked("bar.sync 0;", budget=-1)


def test_outputs_that_are_written_twice_or_not_at_all_are_remarked() -> None:
    whole = checked("st.global.u32 [%rd3], %r1;")
    assert whole.lints == ()
    twice = checked("st.global.u32 [%rd3], %r1;", grid=2)
    assert {lint.code for lint in twice.lints} == {"OUTPUT_OVERLAP", "OUTPUT_GAP"}
    overlap = next(lint for lint in twice.lints if lint.code == "OUTPUT_OVERLAP")
    assert {party.cta[0] for party in overlap.parties} == {0, 1}
    part = checked("setp.lt.u32 %p2, %r1, 60; @%p2 st.global.u32 [%rd3], %r1;")
    assert [lint.code for lint in part.lints] == ["OUTPUT_GAP"]
    assert "16 of 256 bytes" in part.lints[0].sentence
    assert part.verdict is Verdict.PROVED


MESSAGE = """
    mov.u32 %r7, %ctaid.x; setp.eq.u32 %p2, %r7, 0; mov.u32 %r8, 1;
    @%p2 bra producer;
poll:
    {load} %r9, [%rd1];
    setp.ne.u32 %p3, %r9, 1;
    @%p3 bra poll;
    {after}
    ld.global.u32 %r10, [%rd1+4];
    st.global.u32 [%rd1+8], %r10;
    bra end;
producer:
    @%p1 st.global.u32 [%rd1+4], %r8;
    {before}
    @%p1 {store} [%rd1], %r8;
end:
"""


@pytest.mark.parametrize(
    ("store", "load", "before", "after", "right"),
    [
        ("st.release.gpu.global.u32", "ld.acquire.gpu.global.u32", "", "", True),
        ("st.release.cta.global.u32", "ld.acquire.gpu.global.u32", "", "", False),
        ("st.release.gpu.global.u32", "ld.acquire.cta.global.u32", "", "", False),
        ("st.release.gpu.global.u32", "ld.relaxed.gpu.global.u32", "", "", False),
        ("st.relaxed.gpu.global.u32", "ld.relaxed.gpu.global.u32", "fence.acq_rel.gpu;", "fence.acq_rel.gpu;", True),
        ("st.relaxed.gpu.global.u32", "ld.relaxed.gpu.global.u32", "membar.gl;", "membar.gl;", True),
        ("st.relaxed.gpu.global.u32", "ld.relaxed.gpu.global.u32", "fence.acq_rel.cta;", "fence.acq_rel.gpu;", False),
        ("st.relaxed.gpu.global.u32", "ld.relaxed.gpu.global.u32", "fence.acq_rel.gpu;", "fence.acq_rel.cta;", False),
        ("st.relaxed.gpu.global.u32", "ld.relaxed.gpu.global.u32", "fence.acq_rel.gpu;", "", False),
    ],
)
def test_a_message_between_ctas_needs_release_acquire_and_scope(
    store: str, load: str, before: str, after: str, right: bool
) -> None:
    report = checked(MESSAGE.format(store=store, load=load, before=before, after=after), grid=2, block=32, budget=0)
    assert report.verdict is (Verdict.PROVED if right else Verdict.REFUTED)


def test_a_message_that_is_polled_before_it_is_sent_is_proved() -> None:
    """The reads that find the old value are repeated, so that nothing must order them before the store."""
    late = MESSAGE.replace("setp.eq.u32 %p2, %r7, 0;", "setp.eq.u32 %p2, %r7, 1;")
    body = late.format(store="st.release.gpu.global.u32", load="ld.acquire.gpu.global.u32", before="", after="")
    assert checked(body, grid=2, block=32, budget=0).verdict is Verdict.PROVED


RELEASE, ACQUIRE = "st.release.cta.shared.u32", "ld.acquire.cta.shared.u32"


def test_a_flag_that_another_thread_overwrites_may_be_missed() -> None:
    other = "setp.eq.u32 %p4, %r1, 64; mov.u32 %r14, 2; @%p4 st.relaxed.cta.shared.u32 [%r2+512], %r14;"
    report = checked(START + other + FLAG.format(load=ACQUIRE, store=RELEASE), block=96, limit=20_000)
    assert report.verdict is not Verdict.PROVED
    assert report.findings or any("waits for the value" in each for each in report.reasons)


def test_a_second_store_of_the_same_value_releases_nothing() -> None:
    early = f"@%p1 {RELEASE} [%r2+512], %r12; @%p1 st.shared.u32 [%r2+256], %r12; @%p1 {RELEASE}"
    body = FLAG.replace("@%p1 st.shared.u32 [%r2+256], %r12;", "").format(
        load=ACQUIRE, store=early.removeprefix("@%p1 ")
    )
    assert codes(checked(START + body)) & {"RACE_RAW", "UNINITIALISED"}


def test_the_result_of_an_atomic_reaches_control_through_shared_memory() -> None:
    body = (
        "@%p1 atom.acq_rel.gpu.global.add.u32 %r7, [%rd1], 1; @%p1 st.shared.u32 [%r2], %r7; bar.sync 0; "
        "ld.shared.u32 %r8, [%r2]; setp.eq.u32 %p2, %r8, 1; @%p2 st.global.u32 [%rd3+64], %r1;"
    )
    report = checked(body, grid=2, block=32)
    assert report.verdict is Verdict.INCOMPLETE
    assert "atomic" in report.reasons[0]


def test_the_result_of_an_atomic_reaches_control_through_global_memory() -> None:
    report = checked(
        "atom.relaxed.gpu.global.add.u32 %r7, [%rd1], 1; @%p1 st.global.u32 [%rd1+8], %r7; bar.sync 0; "
        "ld.global.u32 %r8, [%rd1+8]; setp.eq.u32 %p2, %r8, 0; @%p2 st.global.u32 [%rd3+128], %r1;",
        words=256,
    )
    assert report.verdict is Verdict.INCOMPLETE
    assert "atomic" in report.reasons[0]


STRONG = "@%p1 {strong}; mov.u32 %r7, 5; st.shared.u32 [%r5], %r7; bar.sync 0; ld.shared.u32 %r8, [%r8];"
STEERS = "setp.eq.u32 %p2, %r8, 5; @%p2 st.global.u32 [%rd3], %r1;"


@pytest.mark.parametrize(
    "strong", ["ld.relaxed.gpu.global.u32 %r7, [%rd1]", "atom.relaxed.gpu.global.add.u32 %r7, [%rd1], 1"]
)
def test_a_register_that_held_the_result_of_a_strong_access_may_be_used_again(strong: str) -> None:
    body = f"xor.b32 %r8, %r4, 128; add.u32 %r8, %r2, %r8; add.u64 %rd3, %rd3, 256; {STRONG.format(strong=strong)}"
    whole = checked(f"{body} {STEERS}", block=64, grid=1, words=256)
    assert whole.verdict is Verdict.PROVED
    handed = body.replace("mov.u32 %r7, 5;", "add.u32 %r7, %r7, 5;")
    assert checked(f"{handed} {STEERS}", words=256).verdict is Verdict.PROVED
    other = "setp.eq.u32 %p4, %r1, 32; @%p4 st.relaxed.gpu.global.u32 [%rd1], %r1;"
    handed = checked(f"{other} {handed} {STEERS}", words=256)
    assert handed.verdict is Verdict.INCOMPLETE


def test_a_store_of_the_same_value_does_not_stand_for_the_one_before() -> None:
    """Warps 0 and 1 store 5 without an order, and warp 2 stores 7 after warp 1: warp 0 may come last."""
    body = """
    setp.eq.u32 %p2, %r6, 0; setp.eq.u32 %p3, %r6, 1; setp.eq.u32 %p4, %r6, 2;
    mov.u32 %r7, 5; mov.u32 %r8, 7; @%p1 st.shared.u32 [%r2], 0; bar.sync 0;
    @%p2 st.shared.u32 [%r2], %r7;
    @%p3 st.shared.u32 [%r2], %r7;
    {meet}
    @%p4 st.shared.u32 [%r2], %r8;
    bar.sync 0; ld.shared.u32 %r9, [%r2]; st.global.u32 [%rd3], %r9;
    """
    two = checked(body.format(meet="@!%p2 bar.sync 1, 64;"), block=96)
    assert codes(two) == {"RACE_WAW"}
    assert two.findings[0].witness is not None
    assert not checked(body.format(meet="bar.sync 1, 96;"), block=96).findings


@pytest.mark.parametrize("nc", ["", ".nc"])
def test_a_load_with_nc_does_not_see_what_the_launch_writes(nc: str) -> None:
    other = "xor.b32 %r7, %r1, 32; mul.wide.u32 %rd5, %r7, 4; add.u64 %rd5, %rd1, %rd5;"
    load = f"{other} ld.global{nc}.u32 %r8, [%rd5]; st.global.u32 [%rd3+256], %r8;"
    assert codes(checked(f"st.global.u32 [%rd3], %r1; bar.sync 0; {load}", words=128)) == (
        {"VISIBILITY"} if nc else set()
    )
    assert not checked(f"ld.global{nc}.u32 %r8, [%rd3]; st.global.u32 [%rd3], %r8;").findings


TIMES = {
    "clock": "mov.u32 %r10, %clock;",
    "lanes": "activemask.b32 %r10;",
    "test": "@%p1 mbarrier.arrive.shared.b64 _, [%r3]; mbarrier.test_wait.parity.shared.b64 %p7, [%r3], 0; "
    "selp.u32 %r10, 1, 0, %p7;",
}
HANDED = {
    "shared": "st.shared.u32 [%r5], %r10; ld.shared.u32 %r11, [%r5];",
    "local": ".local .align 4 .b8 depot[16]; mov.u64 %rd5, depot; st.local.u32 [%rd5], %r10; ld.local.u32 %r11, [%rd5];",
}


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("through", HANDED)
def test_a_result_that_depends_on_time_reaches_control_through_memory(time: str, through: str) -> None:
    body = f"@%p1 mbarrier.init.shared.b64 [%r3], 1; bar.sync 0; {TIMES[time]} {HANDED[through]}"
    steers = checked(f"{body} setp.eq.u32 %p2, %r11, 77; @%p2 st.global.u32 [%rd3], %r1;")
    assert steers.verdict is Verdict.INCOMPLETE
    stored = checked(f"{body} st.global.u32 [%rd3], %r11;")
    assert stored.verdict is Verdict.PROVED
    assert any(each.startswith("timing-values") for each in stored.assumptions)
