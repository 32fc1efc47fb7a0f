"""Fences: whose accesses they release and acquire, and in which scope."""

from __future__ import annotations

import numpy as np
import pytest
from tests.checker.kernels import checked, codes

import warploom

PUBLISH = """
    mov.u32 %r10, %ctaid.x; setp.eq.u32 %p2, %r10, 0;
    mov.u32 %r11, 1;
    @!%p2 bra READ;
    st.global.u32 [%rd3+4], %r11;
    {release}
    @%p1 st.relaxed.gpu.global.u32 [%rd1], %r11;
    bra END;
READ:
    {poll}
    ld.global.u32 %r13, [%rd3+4];
    st.global.u32 [%rd3+256], %r13;
END:
"""
POLL = "AGAIN: {guard}ld.relaxed.gpu.global.u32 %r12, [%rd1]; {guard}setp.eq.u32 %p3, %r12, 0; {guard}@%p3 bra AGAIN;"
ALL_POLL = POLL.format(guard="") + "fence.acq_rel.gpu;"
ONE_POLLS = f"@!%p1 bra MET; {POLL.format(guard='')} MET: "


@pytest.mark.parametrize(
    ("release", "poll", "is_right"),
    [
        ("bar.warp.sync 0xffffffff; @%p1 fence.acq_rel.gpu;", ALL_POLL, True),
        ("fence.acq_rel.gpu;", ALL_POLL, False),
        ("fence.acq_rel.gpu; bar.warp.sync 0xffffffff;", ALL_POLL, False),
        ("bar.warp.sync 0xffffffff; @%p1 fence.acq_rel.cta;", ALL_POLL, False),
        ("bar.warp.sync 0xffffffff; fence.acq_rel.gpu;", ONE_POLLS + "fence.acq_rel.gpu; bar.warp.sync -1;", True),
        ("bar.warp.sync 0xffffffff; fence.acq_rel.gpu;", ONE_POLLS + "bar.warp.sync -1; fence.acq_rel.gpu;", False),
        ("bar.warp.sync 0xffffffff; fence.acq_rel.gpu;", ONE_POLLS + "fence.acq_rel.gpu;", False),
        ("bar.warp.sync 0xffffffff; fence.acq_rel.gpu;", POLL.format(guard="") + "fence.acq_rel.cluster;", False),
    ],
    ids=[
        "one lane for all",
        "every lane for itself",
        "every lane for itself, then the warp meets",
        "scope of the release",
        "one lane acquires, then the warp meets",
        "the warp meets before the fence",
        "one lane acquires for the others",
        "scope of the acquire",
    ],
)
def test_a_fence_is_one_of_its_own_thread(release: str, poll: str, is_right: bool) -> None:
    """A release pattern is a fence and a later store of one thread, an acquire pattern a load and a later fence."""
    report = checked(PUBLISH.format(release=release, poll=poll), grid=2, block=32, words=128, budget=0)
    assert codes(report) == (set() if is_right else codes(report) & {"VISIBILITY", "LANE_RELEASE", "RACE_RAW"})
    assert bool(report.findings) is not is_right


CLUSTER = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<32>; .reg .pred %p<8>; .reg .b64 %rd<8>;
    .shared .align 128 .b8 data[4096];
    mov.u32 %r1, %tid.x; mov.u32 %r2, data;
    shl.b32 %r4, %r1, 2; add.u32 %r5, %r2, %r4;
    mov.u32 %r7, %cluster_ctarank; xor.b32 %r8, %r7, 1;
    mapa.shared::cluster.u32 %r9, %r5, %r8;
    setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r7, 0;
    ld.param.u64 %rd1, [out];
    mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; mul.wide.u32 %rd2, %r7, 256; add.u64 %rd3, %rd3, %rd2;
    BODY
    ret;
}
"""
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def in_cluster(body: str) -> warploom.Report:
    launch = {"grid": 2, "cluster": 2, "block": 32, "args": [np.zeros(1024, np.uint32)]}
    return warploom.check(CLUSTER.replace("BODY", body), launch=launch, budget=0)


FLAG = f"""
    mapa.shared::cluster.u32 %r21, %r2, 0; add.u32 %r21, %r21, 2048;
    @%p1 st.shared.u32 [%r2+2048], 0;
    {MEET}
    @!%p1 bra END;
    @!%p2 bra READ;
    st.shared.u32 [%r2], 42;
    fence.acq_rel.RELEASE;
    st.relaxed.cluster.shared::cluster.u32 [%r21], 1;
    bra END;
READ:
    ld.relaxed.cluster.shared::cluster.u32 %r22, [%r21];
    setp.eq.u32 %p5, %r22, 0;
    @%p5 bra READ;
    fence.acq_rel.ACQUIRE;
    sub.u32 %r23, %r21, 2048;
    ld.shared::cluster.u32 %r24, [%r23];
    st.global.u32 [%rd3], %r24;
END:
    {MEET}
"""


@pytest.mark.parametrize("release", ["cta", "cluster"])
@pytest.mark.parametrize("acquire", ["cta", "cluster"])
def test_fences_between_ctas_of_a_cluster_need_its_scope(release: str, acquire: str) -> None:
    report = in_cluster(FLAG.replace("RELEASE", release).replace("ACQUIRE", acquire))
    assert codes(report) == (set() if release == acquire == "cluster" else {"VISIBILITY"})


@pytest.mark.parametrize("fence", ["", "fence.acq_rel.cta;", "fence.acq_rel.cluster;"])
def test_a_fence_before_a_relaxed_arrival_of_the_cluster_barrier(fence: str) -> None:
    """The example of the PTX ISA for `barrier.cluster`."""
    report = in_cluster(
        f"st.shared.u32 [%r5], %r1; {fence} barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned; "
        f"ld.shared::cluster.u32 %r20, [%r9]; st.global.u32 [%rd3], %r20; {MEET}"
    )
    assert codes(report) == (set() if "cluster" in fence else {"VISIBILITY"})


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("access", ["st.shared::cluster.u32 [%r9], %r1;", "ld.shared::cluster.u32 %r20, [%r9];"])
def test_a_cta_has_begun_before_others_reach_its_memory(access: str, begins: bool) -> None:
    body = f"st.shared.u32 [%r5], %r1; {MEET * begins} {access} {MEET}"
    report = in_cluster(body)
    assert ("REMOTE_BEFORE_START" in codes(report)) is not begins


def test_an_asynchronous_reduction_does_not_race_with_itself() -> None:
    report = in_cluster(
        "mov.u32 %r3, data; add.u32 %r3, %r3, 4088; mapa.shared::cluster.u32 %r10, %r3, %r8;"
        "@%p1 mbarrier.init.shared.b64 [%r3], 1; st.shared.u32 [%r5], 0;"
        f"@%p1 fence.mbarrier_init.release.cluster; {MEET} @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 128;"
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r9], %r1, [%r10];"
        "WAIT: mbarrier.try_wait.parity.shared.b64 %p7, [%r3], 0; @!%p7 bra WAIT;"
        f"ld.shared.u32 %r20, [%r5]; st.global.u32 [%rd3], %r20; {MEET}"
    )
    assert codes(report) == set()


def test_lanes_that_acquire_from_flags_of_their_own_know_their_own() -> None:
    """Lane 0 has found the flag of thread 0 and reads what thread 1 has written."""
    body = """
    mov.u32 %r10, %ctaid.x; setp.eq.u32 %p2, %r10, 0; mov.u32 %r11, 1; mul.wide.u32 %rd4, %r1, 28;
    add.u64 %rd5, %rd3, %rd4;
    @!%p2 bra READ;
    setp.ne.u32 %p4, %r6, 0; @%p4 bra SECOND;
    @%p1 st.global.u32 [%rd1+1024], %r11; @%p1 st.release.gpu.global.u32 [%rd1], %r11;
    bra END;
SECOND:
    setp.eq.u32 %p5, %r1, 32; @%p5 st.global.u32 [%rd1+1028], %r11; @%p5 st.release.gpu.global.u32 [%rd1+32], %r11;
    bra END;
READ:
    setp.gt.u32 %p6, %r1, 1; @%p6 bra END;
AGAIN:
    ld.acquire.gpu.global.u32 %r12, [%rd5]; setp.eq.u32 %p3, %r12, 0; @%p3 bra AGAIN;
    ld.global.u32 %r13, [%rd6+1024]; st.global.u32 [%rd3+512], %r13;
END:
    """
    for other, found in ((0, set()), (1, {"RACE_RAW", "VISIBILITY"})):
        at = f"xor.b32 %r14, %r1, {other}; mul.wide.u32 %rd7, %r14, 4; add.u64 %rd6, %rd1, %rd7;"
        report = checked(at + body, grid=2, block=64, words=1024, budget=0)
        assert codes(report) <= found
        assert bool(report.findings) == bool(found)


@pytest.mark.parametrize(("reuse", "found"), [(f"{MEET} REUSE", set[str]()), (f"REUSE {MEET}", {"RACE_WAR"})])
def test_a_copy_to_another_cta_has_read_its_source_when_it_is_announced_there(reuse: str, found: set[str]) -> None:
    copy = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    report = in_cluster(
        "mov.u32 %r3, data; add.u32 %r3, %r3, 4088; mapa.shared::cluster.u32 %r10, %r3, %r8;"
        "@%p1 mbarrier.init.shared.b64 [%r3], 1; st.shared.u32 [%r5], %r1; fence.proxy.async;"
        f"@%p1 fence.mbarrier_init.release.cluster; {MEET} @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 128;"
        f"mapa.shared::cluster.u32 %r23, %r2, %r8; add.u32 %r23, %r23, 1024; @%p1 {copy} [%r23], [%r2], 128, [%r10];"
        "WAIT: mbarrier.try_wait.parity.shared.b64 %p7, [%r3], 0; @!%p7 bra WAIT; ld.shared.u32 %r20, [%r5+1024];"
        f"st.global.u32 [%rd3], %r20; {reuse}".replace("REUSE", "st.shared.u32 [%r5], 5;")
    )
    assert codes(report) == found
