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
