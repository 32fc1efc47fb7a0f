"""Message passing between proxies: the patterns of Dat3M's `Nvidia/proxy`, with the async proxy in place of surfaces and textures.

A value is written to shared memory by a store or by a bulk copy, a flag is released and acquired, and the value is read by a
load or by a bulk copy. An outcome that the PTX ISA allows must not be proved impossible, and one that it forbids not refuted.
"""

from __future__ import annotations

import numpy as np
import pytest

import warploom

FENCE = "fence.proxy.async.shared::cta;"
STORE = "st.shared.v4.u32 [place], {%r1, %r1, %r1, %r1};"
LOAD = "ld.shared.u32 %r2, [place]; st.global.u32 [%rd1+64], %r2;"
COPY_OUT = (
    "cp.async.bulk.global.shared::cta.bulk_group [%rd2], [place], 16; cp.async.bulk.commit_group; "
    "cp.async.bulk.wait_group 0;"
)
ISSUE = (
    "mbarrier.arrive.expect_tx.shared.b64 _, [full], 16; "
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [place], [%rd1], 16, [full];"
)
ARRIVED = "full_{n}: mbarrier.try_wait.parity.shared.b64 %p1, [full], 0; @!%p1 bra full_{n};"
COPY_IN = f"{ISSUE} {ARRIVED}"


def release(flag: int) -> str:
    return f"mbarrier.arrive.release.cta.shared.b64 _, [flag{flag}];"


def acquire(flag: int) -> str:
    return f"got{flag}: mbarrier.try_wait.parity.acquire.cta.shared.b64 %p1, [flag{flag}], 0; @!%p1 bra got{flag};"


def check(*threads: str) -> warploom.Report:
    """Check a kernel in which lane 0 of each warp executes one of the texts."""
    parts = []
    for number, text in enumerate(threads):
        lane = f"setp.ne.u32 %p2, %r3, {32 * number}; @%p2 bra after{number};"
        parts.append(f"{lane} {text.replace('{n}', str(number))} after{number}:")
    kernel = f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .reg .pred %p<4>;
    .shared .align 16 .b8 place[16];
    .shared .align 8 .b64 full;
    .shared .align 8 .b64 flag0;
    .shared .align 8 .b64 flag1;
    ld.param.u64 %rd1, [out];
    add.u64 %rd2, %rd1, 128;
    mov.u32 %r1, 7;
    mov.u32 %r3, %tid.x;
    setp.ne.u32 %p3, %r3, 0;
    @%p3 bra begun;
    mbarrier.init.shared.b64 [full], 1;
    mbarrier.init.shared.b64 [flag0], 1;
    mbarrier.init.shared.b64 [flag1], 1;
    fence.mbarrier_init.release.cluster;
    fence.proxy.async;
begun:
    bar.sync 0;
    {chr(10).join(parts)}
    ret;
}}
"""
    launch = {"grid": 1, "block": 32 * len(threads), "args": [np.zeros(64, np.uint32)]}
    return warploom.check(kernel, launch=launch, budget=5)


FORBIDDEN = {
    "generic, generic": (f"{STORE} {release(0)}", f"{acquire(0)} {LOAD}"),
    "generic, async, fence of the writer": (f"{STORE} {FENCE} {release(0)}", f"{acquire(0)} {COPY_OUT}"),
    "generic, async, fence of the reader": (f"{STORE} {release(0)}", f"{acquire(0)} {FENCE} {COPY_OUT}"),
    "generic, async, fence of a thread between": (
        f"{STORE} {release(0)}", f"{acquire(0)} {FENCE} {release(1)}", f"{acquire(1)} {COPY_OUT}"
    ),
    "async, generic": (f"{COPY_IN} {release(0)}", f"{acquire(0)} {LOAD}"),
    "async, async": (f"{COPY_IN} {release(0)}", f"{acquire(0)} {COPY_OUT}"),
    "one thread: generic, fence, async": (f"{STORE} {FENCE} {COPY_OUT}",),
    "one thread: async, generic": (f"{COPY_IN} {LOAD}",),
    "one thread: async, async": (f"{COPY_IN} {COPY_OUT}",),
    "one thread: async, generic, fence, async": (f"{COPY_IN} {STORE} {FENCE} {COPY_OUT}",),
}  # fmt: skip
"""The weak outcome is forbidden: the read finds the value."""
ALLOWED = {
    "generic, async": (f"{STORE} {release(0)}", f"{acquire(0)} {COPY_OUT}"),
    "generic, async, fence before the write": (f"{FENCE} {STORE} {release(0)}", f"{acquire(0)} {COPY_OUT}"),
    "generic, async, fence after the release": (f"{STORE} {release(0)} {FENCE}", f"{acquire(0)} {COPY_OUT}"),
    "generic, async, fence before the acquire": (f"{STORE} {release(0)}", f"{FENCE} {acquire(0)} {COPY_OUT}"),
    "generic, async, fence of an unordered thread": (f"{STORE} {release(0)}", f"{acquire(0)} {COPY_OUT}", FENCE),
    "generic, async, fence for global memory": (
        f"{STORE} fence.proxy.async.global; {release(0)}", f"{acquire(0)} {COPY_OUT}"
    ),
    "generic, async, fence for the alias proxy": (f"{STORE} fence.proxy.alias; {release(0)}", f"{acquire(0)} {COPY_OUT}"),
    "one thread: generic, async": (f"{STORE} {COPY_OUT}",),
    "one thread: fence, generic, async": (f"{FENCE} {STORE} {COPY_OUT}",),
    "one thread: async, generic, async": (f"{COPY_IN} {STORE} {COPY_OUT}",),
}  # fmt: skip
"""The weak outcome is allowed, for want of a proxy fence on the path."""
UNORDERED = {
    "async, generic, without its completion": (f"{ISSUE} {release(0)}", f"{acquire(0)} {LOAD}"),
    "one thread: async, generic, without its completion": (f"{ISSUE} {LOAD} {ARRIVED}",),
}
"""The weak outcome is allowed, because nothing waits for the copy."""


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_forbidden_outcome_is_proved_impossible(name: str) -> None:
    report = check(*FORBIDDEN[name])
    assert report.findings == ()
    assert report.verdict == "PROVED"


@pytest.mark.parametrize("name", ALLOWED)
def test_an_allowed_outcome_is_shown_by_a_schedule(name: str) -> None:
    report = check(*ALLOWED[name])
    assert {finding.code for finding in report} == {"FENCE_PROXY"}
    (finding,) = report
    assert finding.witness is not None
    assert finding.witness.confirmed


@pytest.mark.parametrize("name", UNORDERED)
def test_a_copy_is_waited_for(name: str) -> None:
    report = check(*UNORDERED[name])
    assert "RACE_RAW" in {finding.code for finding in report.remaining_under_lenient}
