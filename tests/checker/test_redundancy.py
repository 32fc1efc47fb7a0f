"""Synchronisation that is not needed is a lint, with the path that orders what it ordered."""

from __future__ import annotations

import numpy as np

import warploom

TEXT = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry reverse(.param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 tile[256];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, tile;
    shl.b32 %r3, %r1, 2;
    add.u32 %r4, %r2, %r3;
    st.shared.u32 [%r4], %r1;
    bar.sync 0;
    SECOND
    xor.b32 %r5, %r3, 252;
    add.u32 %r5, %r2, %r5;
    ld.shared.u32 %r6, [%r5];
    ld.param.u64 %rd1, [out];
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd1, %rd1, %rd2;
    st.global.u32 [%rd1], %r6;
    ret;
}
"""


def lints(second: str) -> list[warploom.Finding]:
    launch = {"grid": 1, "block": 64, "args": [np.zeros(64, np.int32)]}
    report = warploom.check(TEXT.replace("SECOND", second), launch=launch, budget=0, redundant=True)
    assert report.verdict == "PROVED"
    return [lint for lint in report.lints if lint.code == "REDUNDANT"]


def test_a_barrier_that_is_needed_is_not_listed() -> None:
    assert lints("") == []


def test_of_two_barriers_each_stands_in_for_the_other() -> None:
    first, second = lints("bar.sync 0;")
    assert [lint.parties[0].line for lint in (first, second)] == [14, 15]
    (note,) = first.notes
    assert "st.shared.u32" in note
    assert "ld.shared.u32" in note
    assert note.endswith(":15 `bar.sync 0`")
    assert "no pair" in second.sentence


def test_a_fence_without_asynchronous_accesses_orders_nothing() -> None:
    (lint,) = lints("fence.proxy.async;")
    assert "fence.proxy.async" in lint.parties[0].instruction
    assert "no pair" in lint.sentence
