"""Arrivals at barriers of other CTAs: those of one instruction, and those that outlive the CTA."""

from __future__ import annotations

import numpy as np
import pytest

import warploom

KERNEL = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) .explicitcluster .reqnctapercluster 2, 1, 1
{{
    .reg .pred %p<8>;
    .reg .b32 %r<16>;
    .shared .align 8 .b64 bars[2];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, bars;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r2], 2;
    @%p1 mbarrier.init.shared::cta.b64 [%r2+8], 2;
    @%p1 fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    setp.lt.u32 %p2, %r1, 2;
    @!%p2 bra end;
    mapa.shared::cluster.u32 %r3, %r2, %r1;
    mov.u32 %r4, 0;
round:
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3+8];
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r2], %r4;
    @!%p3 bra wait;
again:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r2+8], %r4;
    @!%p3 bra again;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p4, %r4, {rounds};
    @%p4 bra round;
    {last}
end:
    {end}
    ret;
}}
"""
SYNC = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"


def checked(profile: str, *, end: str = SYNC, rounds: int = 2, last: str = "") -> warploom.Report:
    text = KERNEL.format(end=end, rounds=rounds, last=last)
    launch = {"grid": 2, "block": 32, "cluster": 2, "args": [np.zeros(4, np.uint32)]}
    return warploom.check(text, launch=launch, profile=profile)


def test_arrivals_of_one_instruction_take_effect_together_only_in_the_lenient_profile() -> None:
    strict, lenient = checked("strict"), checked("lenient")
    assert strict.verdict == "REFUTED"
    assert "PHASE_MIXUP" in {finding.code for finding in strict.findings}
    assert lenient.verdict == "PROVED", lenient
    assert [each.name for each in lenient.relaxed] == ["simultaneous-arrivals"]


def test_the_barriers_of_an_array_share_a_finding() -> None:
    found = [each for each in checked("strict").findings if each.code == "PHASE_MIXUP"]
    assert len(found) == len({party.line for each in found for party in each.parties})


@pytest.mark.parametrize("profile", ["strict", "lenient"])
def test_a_fault_is_the_witness_of_its_own_finding_only(profile: str) -> None:
    last = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];"
    report = checked(profile, end="", last=last)
    by_code = {each.code: each for each in report.findings}
    outlived = by_code["FAULT"].witness  # the eager run shows it
    assert outlived is not None
    assert outlived.confirmed
    assert outlived.kind == "CTA_EXITED"
    for code in set(by_code) - {"FAULT"}:
        witness = by_code[code].witness
        assert witness is None or "exited" not in witness.text


PAIR = """.version 8.6
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out) .explicitcluster .reqnctapercluster 2, 1, 1
{{
    .reg .pred %p<8>;
    .reg .b32 %r<16>;
    .shared .align 8 .b64 bar;
    .shared .align 8 .b64 slot;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, bar;
    mov.u32 %r3, %cluster_ctarank;
    mov.u32 %r4, slot;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    setp.lt.u32 %p2, %r1, 32;
    @%p2 bra use;
    tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r4], 32;
    setp.eq.u32 %p3, %r1, 32;
    setp.eq.u32 %p4, %r3, {arrives};
    and.pred %p3, %p3, %p4;
    mapa.shared::cluster.u32 %r5, %r2, 1;
    @%p3 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
    bra.uni end;
use:
    setp.eq.u32 %p5, %r3, 0;
    @%p5 bra end;
wait:
    {wait}
    mov.u32 %r6, 0;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r6], {{%r1}};
    tcgen05.wait::st.sync.aligned;
end:
    tcgen05.fence::before_thread_sync;
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    tcgen05.fence::after_thread_sync;
    @%p2 bra over;
    mov.u32 %r6, 0;
    tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r6, 32;
    tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
over:
    ret;
}}
"""
WAIT = "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p6, [%r2], 0; @!%p6 bra wait;"


@pytest.mark.parametrize("arrives", [0, 1])
@pytest.mark.parametrize("waits", [True, False])
def test_the_ctas_of_a_pair_allocate_together(arrives: int, waits: bool) -> None:
    """To know of the allocation of either CTA is enough; to know of neither is a finding."""
    text = PAIR.format(arrives=arrives, wait=WAIT if waits else "bar.warp.sync 0xffffffff;")
    launch = {"grid": 2, "block": 64, "cluster": 2, "args": [np.zeros(4, np.uint32)]}
    codes = {each.code for each in warploom.check(text, launch=launch, profile="lenient", budget=0).findings}
    assert codes <= {"TMEM_ALLOC_ORDER", "FAULT"}
    assert bool(codes) is not waits
