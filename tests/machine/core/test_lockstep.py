"""Warps in lockstep while operations are late: where the analysis allows it, and that it hides no mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from tests.machine.engine.mutants import engine

import warploom
from warploom.machine.core.schedule import Lazy, Recorded, Reverse, Schedule
from warploom.machine.observers.events import Event
from warploom.machine.translate.prepared import prepared_program

STEPS, THREADS, TILE = 7, 128, 2048
_BEGIN = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry copies(.param .u64 x, .param .u64 y, .param .u32 steps)
{
  .reg .b32 %r<40>; .reg .b64 %rd<20>; .reg .pred %p<9>; .reg .f32 %f<4>;
  .shared .align 1024 .b8 tiles[6144];
  ld.param.u64 %rd0, [x]; ld.param.u64 %rd1, [y]; ld.param.u32 %r0, [steps];
  mov.u32 %r1, %tid.x; mul.lo.u32 %r2, %r1, 16; mov.u32 %r3, tiles;
  cvt.u64.u32 %rd2, %r2; add.u64 %rd3, %rd0, %rd2; add.u32 %r4, %r3, %r2;
  cp.async.cg.shared.global [%r4], [%rd3], 16;
  cp.async.commit_group;
  cp.async.cg.shared.global [%r4+2048], [%rd3+2048], 16;
  cp.async.commit_group;
  mov.u32 %r6, 0; mov.u32 %r7, 0; mov.u32 %r8, 2; mov.u32 %r20, 0;
  mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
  xor.b32 %r10, %r1, 37; mul.lo.u32 %r10, %r10, 16; add.u32 %r10, %r10, %r3;
LOOP:
  cp.async.wait_group 1;
  bar.sync 0;
"""
_LOADS = """
  mad.lo.u32 %r11, %r7, 2048, %r10;
  ld.shared.u32 %r12, [%r11];
  mad.lo.u32 %r20, %r20, 3, %r12;
"""
_PRODUCTS = """
  fence.proxy.async.shared::cta;
  wgmma.fence.sync.aligned;
  mad.lo.u32 %r11, %r7, 2048, %r3; shr.u32 %r11, %r11, 4; cvt.u64.u32 %rd8, %r11; or.b64 %rd8, %rd8, 0x1000080000;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %rd8, %rd8, 1, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 1;
"""
_NEXT = """
  add.u32 %r13, %r6, 2; setp.lt.u32 %p0, %r13, %r0; selp.b32 %r14, 16, 0, %p0;
  bar.sync 0;
  mad.lo.u32 %r15, %r8, 2048, %r4;
  cp.async.cg.shared.global [%r15], [%rd3+4096], 16, %r14;
  cp.async.commit_group;
  add.u64 %rd3, %rd3, 2048;
  add.u32 %r7, %r7, 1; setp.eq.u32 %p1, %r7, 3; selp.b32 %r7, 0, %r7, %p1;
  add.u32 %r8, %r8, 1; setp.eq.u32 %p2, %r8, 3; selp.b32 %r8, 0, %r8, %p2;
  add.u32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, %r0;
  @%p3 bra LOOP;
"""
_END = """
  cp.async.wait_group 0;
  bar.sync 0;
  st.shared.u32 [%r4], %r20;
  bar.sync 0;
  ld.shared.u32 %r21, [%r10];
  mul.lo.u32 %r22, %r1, 4; cvt.u64.u32 %rd6, %r22; add.u64 %rd7, %rd1, %rd6;
  st.global.u32 [%rd7], %r21;
  ret;
}
"""
_RESULT = """
  wgmma.wait_group.sync.aligned 0;
  mov.b32 %r20, %f0; mov.b32 %r23, %f3; xor.b32 %r20, %r20, %r23;
"""
LOADS, PRODUCTS = _BEGIN + _LOADS + _NEXT + _END, _BEGIN + _PRODUCTS + _NEXT + _RESULT + _END
"""A ring of three tiles: warps read what others have copied, by ordinary loads or by `wgmma`, and exchange results."""
KERNELS = {"loads": LOADS, "products": PRODUCTS}
_SYNCHRONISES = re.compile(r"^  (bar\.sync|fence\.proxy|wgmma\.(fence|commit|wait)|cp\.async\.(commit|wait))")


def _input() -> np.ndarray:
    values = np.random.default_rng().integers(-8, 9, (STEPS, THREADS, 8))
    return values.astype(ml_dtypes.bfloat16)


def _outcome(text: str, x: np.ndarray, schedule: str | Schedule, *observers: object) -> bytes | str:
    """The bytes of the output, or the code of an error."""
    y = np.full(2 * THREADS, 0x7FC00000, np.uint32)
    try:
        warploom.launch(
            text, grid=(2, 1, 1), block=(THREADS, 1, 1), args=[x, y, STEPS], schedule=schedule, observers=observers
        )
    except warploom.WarploomError as error:
        return error.diag.name
    return y.tobytes()


def _is_in_lockstep(text: str) -> bool:
    program = prepared_program(text, None, follow_x=128, preemptible=False)
    return program.program.lockstep is not None


def _mutants(text: str) -> Iterator[str]:
    """Copies of a kernel without one instruction that synchronises, or with a weaker one."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if _SYNCHRONISES.match(line):
            yield "\n".join([*lines[:at], *lines[at + 1 :]])
            if "wait_group" in line:
                weaker = re.sub(r"(\d);", lambda found: f"{int(found[1]) + 1};", line)
                yield "\n".join([*lines[:at], weaker, *lines[at + 1 :]])


class _Nothing:
    def on_event(self, event: Event) -> None:
        """Ignore it."""


@pytest.mark.parametrize("name", KERNELS)
def test_lockstep_does_not_change_results(name: str) -> None:
    text, x = KERNELS[name], _input()
    assert _is_in_lockstep(text)
    expected = _outcome(text, x, "eager")
    assert isinstance(expected, bytes)
    for chosen in ("numpy", "native"):
        with engine(chosen):
            for schedule in ("lazy", "reverse"):
                assert _outcome(text, x, schedule) == expected
                assert _outcome(text, x, schedule, _Nothing()) == expected


def test_loads_sum_what_other_warps_have_copied() -> None:
    x = _input()
    words = x.view(np.uint32).reshape(STEPS, THREADS, 4)[:, :, 0]
    other, total = np.arange(THREADS) ^ 37, np.zeros(THREADS, np.uint32)
    for step in range(STEPS):
        total = total * np.uint32(3) + words[step, other]
    y = np.zeros(THREADS, np.uint32)
    warploom.launch(LOADS, grid=(1, 1, 1), block=(THREADS, 1, 1), args=[x, y, STEPS], schedule="lazy")
    assert (y == total[other]).all()


@pytest.mark.parametrize("name", KERNELS)
def test_lockstep_finds_the_mistakes_that_warps_one_by_one_find(name: str) -> None:
    text, x = KERNELS[name], _input()
    whole = _outcome(text, x, "eager")
    found = 0
    for mutant in _mutants(text):
        apart = any(_outcome(mutant, x, Recorded(each)) != whole for each in (Lazy(), Reverse()))
        together = {}
        for chosen in ("numpy", "native"):
            with engine(chosen):
                together[chosen] = [_outcome(mutant, x, each) for each in ("lazy", "reverse")]
        assert together["numpy"] == together["native"], mutant
        assert not apart or any(each != whole for each in together["native"]), mutant
        found += apart
    assert found >= 5


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cp.async.wait_group 1;\n  bar.sync 0;", "cp.async.wait_group 1;"),
        ("cp.async.wait_group 0;\n  bar.sync 0;", "cp.async.wait_group 0;"),
        ("  @%p3 bra LOOP;", "  setp.lt.u32 %p4, %r6, %r1; @%p4 bra LOOP;"),
        ("  ret;", "  atom.global.add.u32 %r30, [%rd1], 1;\n  ret;"),
        ("st.shared.u32", "st.volatile.shared.u32"),
        ("  bar.sync 0;\n  ld", "  bar.sync 0, 128;\n  ld"),
    ],
)
def test_a_kernel_without_lockstep(old: str, new: str) -> None:
    text = LOADS.replace(old, new, 1)
    assert text != LOADS
    assert not _is_in_lockstep(text)


def test_a_product_without_a_proxy_fence_has_no_lockstep() -> None:
    assert not _is_in_lockstep(PRODUCTS.replace("  fence.proxy.async.shared::cta;\n", ""))
    assert not _is_in_lockstep(PRODUCTS.replace("wait_group 1;\n  bar.sync 0;", "wait_group 1;", 1))


def test_a_fault_of_a_late_copy_names_its_instruction() -> None:
    x = _input()[:3].copy()
    for chosen in ("numpy", "native"):
        y = np.zeros(THREADS, np.uint32)
        with engine(chosen), pytest.raises(warploom.Fault, match="OUT_OF_BOUNDS") as caught:
            warploom.launch(LOADS, grid=(1, 1, 1), block=(THREADS, 1, 1), args=[x, y, STEPS], schedule="lazy")
        assert any("cp.async.cg.shared.global [%r15]" in note for note in caught.value.notes)
