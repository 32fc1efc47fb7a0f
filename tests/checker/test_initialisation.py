"""The initialisation of an mbarrier must be visible to the other CTAs of a cluster."""

from __future__ import annotations

import numpy as np
import pytest

import warploom

TEXT = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry remote(.param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .pred %p<4>;
    .shared .align 8 .b64 bar;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %cluster_ctarank;
    mov.u32 %r3, bar;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r3], 1;
    FENCE
    barrier.cluster.arrive.SEMANTICS.aligned;
    barrier.cluster.wait.acquire.aligned;
    xor.b32 %r4, %r2, 1;
    mapa.shared::cluster.u32 %r5, %r3, %r4;
    @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;
    @!%p2 bra WAIT;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    ret;
}
"""
FENCE = "@%p1 fence.mbarrier_init.release.cluster;"


@pytest.mark.parametrize(
    ("fence", "semantics", "codes"),
    [
        (FENCE, "relaxed", set()),
        (FENCE, "release", set()),
        ("", "release", set()),
        ("", "relaxed", {"MBAR_INIT_ORDER"}),
    ],
)
def test_a_relaxed_barrier_needs_the_fence(fence: str, semantics: str, codes: set[str]) -> None:
    text = TEXT.replace("FENCE", fence).replace("SEMANTICS", semantics)
    launch = {"grid": 2, "cluster": 2, "block": 32, "args": [np.zeros(1, np.int32)]}
    report = warploom.check(text, launch=launch, profile="lenient", budget=0)
    assert {finding.code for finding in report} == codes
    for finding in report:
        assert "fence.mbarrier_init" in finding.missing
