"""Arithmetic on registers that all lanes share gives what it gives lane by lane."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.asynchronous import run

CASES = [
    ("mov.b32 {x}, 0fC0400000;", "cvt.rni.s8.f32 {d}, {x};", 0xFFFF_FFFD),
    ("mov.b32 {x}, 0xfffffff0;", "cvt.sat.s8.s32 {d}, {x};", 0xFFFF_FFF0),
    ("mov.b32 {x}, 0xfffffff0;", "cvt.s8.s32 {d}, {x};", 0xFFFF_FFF0),
    ("mov.b32 {x}, 0xfffffff0;", "cvt.u8.s32 {d}, {x};", 0xF0),
    ("mov.b32 {x}, 0x12345678;", "bfe.s32 {d}, {x}, 4, 8;", 0x67),
    ("mov.b32 {x}, 0x12345678;", "mad.lo.s32 {d}, {x}, -3, 7;", (0x12345678 * -3 + 7) & 0xFFFF_FFFF),
    ("mov.b32 {x}, 0x80000001;", "shr.s32 {d}, {x}, 40;", 0xFFFF_FFFF),
    ("mov.b32 {x}, 0x80000001;", "shl.b32 {d}, {x}, 40;", 0),
    ("mov.b32 {x}, 0x80000001;", "lop3.b32 {d}, {x}, 0x0f0f0f0f, 0x33333333, 0x96;", 0x80000001 ^ 0x3C3C3C3C),
]


@pytest.mark.parametrize(("setting", "instruction", "expected"), CASES, ids=[case[1] for case in CASES])
def test_uniform_and_lane_by_lane(setting, instruction, expected):
    out = np.zeros(64, np.uint32)
    body = f"""ld.param.u64 %rd1, [out]; mov.u32 %r9, %tid.x; mul.wide.u32 %rd2, %r9, 4; add.u64 %rd1, %rd1, %rd2;
     {setting.format(x="%r1")} {instruction.format(d="%r2", x="%r1")} st.global.u32 [%rd1], %r2;
     mul.lo.u32 %r8, %r9, 0; or.b32 %r3, %r1, %r8; {instruction.format(d="%r4", x="%r3")} st.global.u32 [%rd1+128], %r4;"""
    run(body, "ptr:out", (out,), block=32)
    assert out.tolist() == [expected] * 64
