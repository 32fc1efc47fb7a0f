"""Volatile, relaxed and atomic accesses: ordered ones are ordinary loads and stores, others may be late or lost."""

from __future__ import annotations

import pytest
from tests.checker.kernels import checked, codes

from warploom.checker.report import Verdict

FIRST = "mov.u32 %r7, %ctaid.x; setp.eq.u32 %p2, %r7, 0;"
SEND = (
    FIRST + "add.u32 %r8, %r1, 5; and.b32 %r9, %r1, 63; mul.wide.u32 %rd4, %r9, 4; add.u64 %rd5, %rd1, %rd4; "
    "@%p2 st.volatile.global.u32 [%rd5+1024], %r8; {fence} bar.sync 0; {after} and.pred %p3, %p1, %p2; "
    "@%p3 st.volatile.global.u32 [%rd1+2048], 1; not.pred %p4, %p2; and.pred %p4, %p4, %p1; @!%p4 bra done; poll: "
)
RECEIVE = (
    "setp.eq.u32 %p5, %r10, 0; @%p5 bra poll; {acquire} done: bar.sync 0; "
    "@!%p2 ld.volatile.global.u32 %r11, [%rd5+1024]; @!%p2 st.global.u32 [%rd5], %r11;"
)
POLL, FENCE = "ld.volatile.global.u32 %r10, [%rd1+2048];", "fence.acq_rel.gpu;"


def sent(fence: str = "", after: str = "", acquire: str = FENCE, poll: str = POLL, profile: str = "strict"):
    """A message in volatile words from CTA 0 to CTA 1, announced by a flag."""
    body = SEND.format(fence=fence, after=after) + poll + RECEIVE.format(acquire=acquire)
    return checked(body, grid=2, words=1024, profile=profile)


def test_a_volatile_message_is_ordered_by_the_fences_around_its_flag() -> None:
    report = sent(after=FENCE)
    assert report.verdict is Verdict.PROVED
    assert report.covers.interleavings == "all"


@pytest.mark.parametrize("parts", [{}, {"after": FENCE, "acquire": ""}], ids=["no release", "no acquire"])
@pytest.mark.parametrize("profile", ["strict", "lenient"])
def test_a_volatile_message_without_a_fence_may_be_late(parts: dict[str, str], profile: str) -> None:
    report = sent(**parts, profile=profile)
    assert report.verdict is Verdict.REFUTED
    (finding,) = report.findings
    reader, writer = finding.parties
    assert (finding.code, reader.action, writer.action) == ("VISIBILITY", "reads", "writes")
    assert (reader.cta, writer.cta) == ((1, 0, 0), (0, 0, 0))


def test_a_fence_of_each_writer_before_the_barrier_is_accepted_under_lenient() -> None:
    (finding,) = sent(fence=FENCE).findings
    assert (finding.code, finding.excused_by) == ("VISIBILITY", "fence-before-barrier")
    lenient = sent(fence=FENCE, profile="lenient")
    assert lenient.verdict is Verdict.PROVED
    assert [each.name for each in lenient.relaxed] == ["fence-before-barrier"]
    assert sent(fence=FENCE, after=FENCE, profile="lenient").relaxed == ()


def test_an_atomic_that_adds_nothing_polls_like_a_load() -> None:
    poll = "atom.global.add.u32 %r10, [%rd1+2048], 0;"
    assert sent(after=FENCE, poll=poll).verdict is Verdict.PROVED
    assert codes(sent(poll=poll)) == {"VISIBILITY"}
    assert sent(after=FENCE, poll=poll.replace(", 0", ", 1")).verdict is Verdict.INCOMPLETE


def test_a_thread_that_polls_by_an_atomic_hands_nothing_to_others() -> None:
    """Warps 0 and 1 of CTA 1 poll; what warp 0 stored before reaches warp 1 in this run only."""
    body = (
        FIRST + "setp.eq.u32 %p3, %r1, 32; and.pred %p4, %p1, %p2; @%p4 st.volatile.global.u32 [%rd1+2048], 1; "
        "or.pred %p5, %p1, %p3; not.pred %p4, %p2; and.pred %p5, %p5, %p4; and.pred %p4, %p4, %p1; "
        "@%p4 st.global.u32 [%rd1+1024], 7; @!%p5 bra done; fence.acq_rel.gpu; poll: "
        "atom.global.add.u32 %r10, [%rd1+2048], 0; setp.eq.u32 %p6, %r10, 0; @%p6 bra poll; fence.acq_rel.gpu; "
        "@%p3 ld.global.u32 %r11, [%rd1+1024]; @%p3 st.global.u32 [%rd1+512], %r11; done:"
    )
    assert codes(checked(body, grid=2, words=1024)) & {"RACE_RAW", "RACE_WAR"}


INCREMENT = "ld.volatile.{space}.u32 %r8, [{at}]; add.u32 %r8, %r8, 1; st.volatile.{space}.u32 [{at}], %r8;"


@pytest.mark.parametrize("profile", ["strict", "lenient"])
def test_a_volatile_counter_loses_updates(profile: str) -> None:
    body = "and.b32 %r7, %r1, 31; setp.eq.u32 %p2, %r7, 0; @!%p2 bra done; {} done:"
    in_global = checked(body.format(INCREMENT.format(space="global", at="%rd1")), grid=2, profile=profile)
    start = "@%p1 st.shared.u32 [%r2], 0; bar.sync 0;"
    in_shared = checked(start + body.format(INCREMENT.format(space="shared", at="%r2")), profile=profile)
    assert codes(in_global) == codes(in_shared) == {"LOST_UPDATE"}


def test_a_volatile_counter_that_is_handed_on_is_right() -> None:
    body = (
        FIRST + "@!%p1 bra done; poll: ld.volatile.global.u32 %r8, [%rd1]; setp.ne.u32 %p3, %r8, %r7; @%p3 bra poll; "
        + INCREMENT.format(space="global", at="%rd1") + "done:"
    )  # fmt: skip
    assert not checked(body, grid=4).findings


ARRIVE = (
    "@!%p1 bra met; mov.u32 %r7, %ctaid.x; setp.eq.u32 %p2, %r7, 0; selp.u32 %r8, 0x7ffffffd, 1, %p2; "
    "{fence} atom.add.release.gpu.global.u32 %r9, [%rd1+2048], %r8; wait: ld.acquire.gpu.global.u32 %r10, [%rd1+2048]; "
    "xor.b32 %r11, %r10, %r9; {test} met: bar.sync 0;"
)
TEST = "setp.gt.s32 %p3, %r11, -1; @%p3 bra wait;"


def met(test: str = TEST, fence: str = "", store: str = "st.global.u32 [%rd3], %r1; bar.sync 0;"):
    """Four CTAs meet at a barrier in memory like that of cooperative groups, then CTA 0 reads what CTA 3 has stored."""
    start = (
        "mov.u32 %r7, %ctaid.x; shl.b32 %r7, %r7, 8; cvt.u64.u32 %rd4, %r7; add.u64 %rd3, %rd3, %rd4; "
        "setp.eq.u32 %p5, %r7, 0; and.pred %p5, %p5, %p1; "
    )
    after = "@%p5 ld.global.u32 %r12, [%rd1+768]; @%p5 st.global.u32 [%rd1+2052], %r12;"
    return checked(start + store + ARRIVE.format(test=test, fence=fence) + after, grid=4, words=2048)


def test_a_barrier_by_the_sign_of_a_counter_is_proved() -> None:
    report = met()
    assert report.verdict is Verdict.PROVED
    assert any(each.startswith("arrival-sign") for each in report.assumptions)
    masked = "and.b32 %r11, %r11, 0x80000000; setp.eq.u32 %p3, %r11, 0; @%p3 bra wait;"
    assert met(masked).verdict is Verdict.PROVED


def test_a_result_of_an_atomic_that_decides_more_than_the_sign_is_not() -> None:
    assert met("setp.gt.s32 %p3, %r11, -1; @%p3 bra wait; and.b32 %r9, %r9, 1; setp.eq.u32 %p4, %r9, 0; "
               "@%p4 st.global.u32 [%rd3+4096], %r1;").verdict is Verdict.INCOMPLETE  # fmt: skip
    assert met("setp.gt.s32 %p3, %r11, 7; @%p3 bra wait;").verdict is Verdict.INCOMPLETE


def test_a_counter_that_has_changed_is_not_a_barrier() -> None:
    report = met("setp.eq.u32 %p3, %r11, 0; @%p3 bra wait;")
    assert report.verdict is not Verdict.PROVED


def test_the_barrier_by_sign_does_not_order_a_store_after_it() -> None:
    late = "setp.gt.s32 %p3, %r11, -1; @%p3 bra wait; st.global.u32 [%rd3], %r1;"
    assert codes(met(late)) & {"RACE_RAW", "RACE_WAR"}


def test_an_atomic_that_is_ordered_with_all_others_steers_like_a_load() -> None:
    body = "{} atom.global.add.u32 %r7, [%rd1], 1; setp.eq.u32 %p2, %r7, 0; @%p2 st.shared.u32 [%r5], %r1; done:"
    assert checked(body.format("@!%p1 bra done;")).verdict is Verdict.PROVED
    assert checked(body.format("")).verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize(("place", "is_shared"), [("[%rd1]", True), ("[%rd3]", False)])
def test_nothing_orders_the_lanes_of_one_atomic(place: str, is_shared: bool) -> None:
    """Any lane may find 5, although the warp is alone; lanes that each have a word find what was there."""
    atomic = f"atom.global.add.u32 %r10, {place}, 1;"
    steers = checked(f"{atomic} setp.eq.u32 %p2, %r10, 5; @%p2 st.global.u32 [%rd1+256], %r1;", block=32, words=128)
    assert steers.verdict is (Verdict.INCOMPLETE if is_shared else Verdict.PROVED)
    stored = checked(f"{atomic} st.global.u32 [%rd3+256], %r10;", block=32, words=128)
    assert stored.verdict is Verdict.PROVED
    assert any(each.startswith("strong-order") for each in stored.assumptions) == is_shared
