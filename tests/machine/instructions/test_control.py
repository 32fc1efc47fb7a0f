"""Services of the driver: printf, assertions, the grid's workspace and the reserved shared memory."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.simt import SCHEDULES, threads

from warploom import launch
from warploom.diagnostics import WarploomError

PRINT = r"""
.version 8.7
.target sm_90a
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 format[41] = {37,51,100,124,37,45,53,117,124,37,46,50,102,124,37,115,124,37,108,108,120,124,37,99,37,37,124,37,42,100,124,37,46,42,102,124,37,112,10};
.global .align 1 .b8 word[4] = {104, 101, 121};
.visible .entry k(.param .u64 out)
{
 .local .align 8 .b8 stack[80];
 .reg .b32 %r<8>; .reg .b64 %rd<16>; .reg .f64 %d<4>; .reg .pred %p;
 mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 1; setp.eq.u32 %p, %r1, 0; @%p bra END;
 mov.u64 %rd0, stack; cvta.local.u64 %rd1, %rd0;
 mov.u64 %rd2, format; cvta.global.u64 %rd2, %rd2; mov.u64 %rd3, word; cvta.global.u64 %rd3, %rd3;
 neg.s32 %r2, %r0; st.local.u32 [%rd0], %r2; st.local.u32 [%rd0+4], %r0;
 cvt.rn.f64.u32 %d0, %r0; mul.f64 %d0, %d0, 0d3FF4000000000000; st.local.f64 [%rd0+8], %d0; st.local.u64 [%rd0+16], %rd3;
 cvt.u64.u32 %rd4, %r0; shl.b64 %rd4, %rd4, 40; st.local.u64 [%rd0+24], %rd4;
 mov.u32 %r3, 65; st.local.u32 [%rd0+32], %r3; mov.u32 %r3, 4; st.local.u32 [%rd0+36], %r3; st.local.u32 [%rd0+40], %r0;
 mov.u32 %r3, 1; st.local.u32 [%rd0+44], %r3; st.local.f64 [%rd0+48], %d0; st.local.u64 [%rd0+56], %rd4;
 {
 .param .b64 p0; .param .b64 p1; .param .b32 r0;
 st.param.b64 [p0], %rd2; st.param.b64 [p1], %rd1;
 call.uni (r0), vprintf, (p0, p1);
 ld.param.b32 %r4, [r0];
 }
 ld.param.u64 %rd5, [out]; mul.wide.u32 %rd6, %r0, 4; add.u64 %rd5, %rd5, %rd6; st.global.u32 [%rd5], %r4;
 END: ret;
}"""


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_printed_text_is_kept(schedule: str, seed: int) -> None:
    out = np.zeros(6, np.uint32)
    run = launch(PRINT, grid=(1, 1, 1), block=(6, 1, 1), args=[out], schedule=schedule, seed=seed)
    lines = [f"{-t:3}|{t:<5}|{t * 1.25:.2f}|hey|{t << 40:x}|A%|{t:4}|{t * 1.25:.1f}|{t << 40:#x}\n" for t in (1, 3, 5)]
    assert sorted(run.printed.splitlines(keepends=True)) == lines
    assert out.tolist() == [0, 11, 0, 11, 0, 11]


def test_arguments_at_an_invalid_address_are_a_fault() -> None:
    nowhere = PRINT.replace("cvta.local.u64 %rd1, %rd0;", "mov.u64 %rd1, -8;")
    with pytest.raises(WarploomError) as caught:
        launch(nowhere, grid=(1, 1, 1), block=(6, 1, 1), args=[np.zeros(6, np.uint32)])
    assert caught.value.code == "OUT_OF_BOUNDS"


def test_printed_text_is_limited() -> None:
    forever = PRINT.replace("ld.param.u64 %rd5, [out];", "").replace(
        "mov.u32 %r0, %tid.x;", "mov.u32 %r0, 100000;\nAGAIN:"
    )
    looped = (
        forever.replace("@%p bra END;", "").split(" mul.wide.u32 %rd6")[0]
        + " sub.u32 %r0, %r0, 1; bra AGAIN; END: ret; }"
    )
    with pytest.raises(WarploomError) as caught:
        launch(looped, grid=(1, 1, 1), block=(1, 1, 1), args=[np.zeros(1)], limit=20_000)
    assert caught.value.code == "LIMIT"


ASSERT = """
.version 8.7
.target sm_90a
.address_size 64
.extern .func __assertfail (.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 c);
.global .align 1 .b8 message[6] = {120, 32, 60, 32, 55};
.visible .entry k(.param .u32 most)
{
 .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p;
 mov.u32 %r0, %tid.x; ld.param.u32 %r1, [most]; setp.lt.u32 %p, %r0, %r1; @%p bra END;
 mov.u64 %rd0, message; cvta.global.u64 %rd0, %rd0; mov.u32 %r2, 42;
 {
 .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4;
 st.param.b64 [p0], %rd0; st.param.b64 [p1], %rd0; st.param.b32 [p2], %r2; st.param.b64 [p3], %rd0; st.param.b64 [p4], 1;
 call.uni __assertfail, (p0, p1, p2, p3, p4);
 }
 END: ret;
}"""


def test_a_failed_assertion_names_its_expression() -> None:
    launch(ASSERT, grid=(1, 1, 1), block=(40, 1, 1), args=[40])
    with pytest.raises(WarploomError) as caught:
        launch(ASSERT, grid=(1, 1, 1), block=(40, 1, 1), args=[35])
    assert caught.value.code == "TRAP"
    assert any("assertion `x < 7` failed" in note and ":42" in note for note in caught.value.notes)


def test_other_system_functions_are_not_modelled() -> None:
    with pytest.raises(WarploomError) as caught:
        launch(ASSERT.replace("__assertfail", "cudaGetLastError"), grid=(1, 1, 1), block=(1, 1, 1), args=[35])
    assert caught.value.code == "NOT_MODELLED"


GRID_BARRIER = """
 mov.u32 %r3, %envreg1; mov.u32 %r4, %envreg2; cvt.u64.u32 %rd4, %r3; shl.b64 %rd4, %rd4, 32;
 cvt.u64.u32 %rd5, %r4; or.b64 %rd4, %rd4, %rd5;
 mov.u32 %r5, %ctaid.x; shl.b32 %r6, %r5, 5; add.u32 %r6, %r6, %r0; add.u32 %r6, %r6, 100;
 st.global.u32 [%rd0], %r6;
 bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra WAIT;
 atom.add.release.gpu.u32 %r7, [%rd4+4], 1;
 SPIN: ld.acquire.gpu.u32 %r8, [%rd4+4]; setp.lt.u32 %p2, %r8, 3; @%p2 bra SPIN;
 WAIT: bar.sync 0;
 add.u32 %r5, %r5, 1; rem.u32 %r5, %r5, 3; shl.b32 %r5, %r5, 5; add.u32 %r5, %r5, %r0; mul.wide.u32 %rd6, %r5, 8;
 ld.param.u64 %rd7, [out]; add.u64 %rd7, %rd7, %rd6; ld.global.u32 %r9, [%rd7]; st.global.u32 [%rd0+4], %r9;"""


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_the_grid_has_a_workspace_that_starts_at_zero(schedule: str, seed: int) -> None:
    got = threads(GRID_BARRIER, 32, words=2, grid=3, schedule=schedule, seed=seed)
    assert got[:, 1].tolist() == [(t + 32) % 96 + 100 for t in range(96)]


def test_other_environment_registers_are_not_modelled() -> None:
    with pytest.raises(WarploomError) as caught:
        threads("mov.u32 %r3, %envreg3;")
    assert caught.value.code == "NOT_MODELLED"


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_kernel_may_use_the_reserved_shared_memory_if_it_reads_its_offset(schedule: str, seed: int) -> None:
    body = """
    mov.u32 %r3, %reserved_smem_offset_1; shl.b32 %r4, %r0, 2; add.u32 %r3, %r3, %r4; st.shared.u32 [%r3], %r1;
    mov.u32 %r5, sh; add.u32 %r5, %r5, %r4; st.shared.u32 [%r5], %r0; bar.sync 0;
    xor.b32 %r6, %r3, 4; ld.shared.u32 %r7, [%r6]; ld.shared.u32 %r8, [%r5]; st.global.v2.u32 [%rd0], {%r7, %r8};"""
    values = np.arange(64, dtype=np.uint32) * 7
    got = threads(body, 64, words=2, source=values, schedule=schedule, seed=seed)
    assert got[:, 0].tolist() == [(t ^ 1) * 7 for t in range(64)]
    assert got[:, 1].tolist() == list(range(64))


def test_other_kernels_may_not_use_the_reserved_shared_memory() -> None:
    with pytest.raises(WarploomError) as caught:
        threads("mov.u32 %r3, 512; st.shared.u32 [%r3], %r1;")
    assert caught.value.code == "OUT_OF_BOUNDS"


@pytest.mark.parametrize(
    "text",
    ["tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%rd0, {%f4, %f5}];", "suld.b.2d.b8.trap %h0, [%rd0, {%r1, %r2}];"],
)
def test_textures_and_surfaces_are_refused_by_name(text: str) -> None:
    with pytest.raises(WarploomError) as caught:
        threads(text)
    assert caught.value.code == "NOT_MODELLED"
    assert "graphics" in str(caught.value)
