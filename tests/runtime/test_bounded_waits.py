"""Kernels with bounded waits: same results, they assemble, and their records are reported."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.fake_driver import FakeLibrary, FakeTensor

from warploom import Launch, TensorMap, launch
from warploom.diagnostics import WarploomError
from warploom.ptx.syntax.parser import parse
from warploom.ptx.syntax.printer import print_module
from warploom.runtime.gpu.bounded_waits import CTAS, PARAMETER, RECORD_WORDS, UNKNOWN, WARPS, bounded
from warploom.runtime.gpu.hangs import VARIABLE, deadlock_error, default_timeout
from warploom.runtime.gpu.prepared import Prepared
from warploom.runtime.toolchain.assembler import assemble

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import first_kernel as example

sys.path.pop(0)
MILLISECOND = 1_000_000
SPIN = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry spin(.param .u64 flag)
{
	.reg .b64 %rd<2>;
	.reg .b32 %r<2>;
	.reg .pred %p<2>;
	ld.param.u64 %rd0, [flag];
	cvta.to.global.u64 %rd1, %rd0;
	mov.u32 %r1, 0;
again:
	add.u32 %r1, %r1, 1;
	setp.lt.u32 %p1, %r1, 10;
	@%p1 bra again;
wait:
	ld.acquire.gpu.global.u32 %r0, [%rd1+4];
	setp.eq.u32 %p0, %r0, 0;
	@%p0 bra wait;
	st.global.u32 [%rd1], %r1;
	ret;
}
"""


def matmul(rows=256, columns=128, depth=320):
    rng = np.random.default_rng()
    a, b = (rng.integers(-4, 5, (size, depth)).astype(ml_dtypes.bfloat16) for size in (rows, columns))
    d = np.full((rows, columns), np.nan, np.float32)
    maps = (TensorMap(x, box=(example.TILE, example.TILE_K), swizzle="128B") for x in (a, b))
    grid = (columns // example.TILE, rows // example.TILE, 1)
    bound = example.matmul.bind(*maps, d, depth // example.TILE_K, grid=grid, block=(288, 1, 1))
    return bound, d, a.astype(np.float32) @ b.astype(np.float32).T


def test_a_bounded_kernel_computes_what_it_did():
    bound, d, want = matmul()
    module, kernel, sites = bounded(bound.program, bound.program.kernels[0], MILLISECOND)
    assert parse(print_module(module)) == module
    assert [site.is_barrier for site in sites] == [True, True]
    assert [Path(site.loc.file).name for site in sites] == ["first_kernel.py"] * 2
    records = np.zeros(CTAS * WARPS * RECORD_WORDS, np.uint32)
    launch(replace(bound, program=module, args=(*bound.args, records)))
    assert np.array_equal(d, want)
    assert not records.any()
    assert kernel.params[-1].name == PARAMETER
    assert assemble(module).kernel().spill_stores == 0


def test_other_loops_are_unchanged():
    module = parse(SPIN)
    made, _, sites = bounded(module, module.kernels[0], MILLISECOND)
    assert [site.text for site in sites] == ["ld.acquire.gpu.global.u32 %r0, [%rd1+4]"]
    text = print_module(made)
    assert "bra again" in text
    flag = np.array([7, 1], np.uint32)
    records = np.zeros(CTAS * WARPS * RECORD_WORDS, np.uint32)
    launch(Launch(made, (1, 1, 1), (32, 1, 1), (flag, records)))
    assert flag[0] == 10
    assemble(made)


LOOPS = {
    "ld.volatile.global.u32 %r0, [%rd1];": True,
    "ld.global.relaxed.gpu.u32 %r0, [%rd1];": True,
    "ld.acquire.sys.global.u32 %r0, [%rd1]; nanosleep.u32 20; membar.gl;": True,
    "ld.acquire.gpu.global.u32 %r0, [%rd1]; popc.b32 %r0, %r0; lop3.b32 %r0, %r0, %r1, 1, 0x80;": True,
    "ld.global.u32 %r0, [%rd1];": False,
    "ld.weak.global.u32 %r0, [%rd1];": False,
    "ld.acquire.gpu.global.u32 %r0, [%rd1]; st.global.u32 [%rd1+8], %r0;": False,
    "ld.acquire.gpu.global.u32 %r0, [%rd1]; bar.sync 0;": False,
    "ld.acquire.gpu.global.u32 %r0, [%rd1]; @%p1 bra done;": False,
    "atom.acquire.gpu.global.or.b32 %r0, [%rd1], 0;": False,
    "ld.acquire.gpu.global.u32 %r0, [%rd1]; of.an.unknown.family %r0;": False,
}


@pytest.mark.parametrize("inside", LOOPS)
def test_a_loop_is_a_wait_if_it_only_polls(inside):
    module = parse(SPIN.replace("ld.acquire.gpu.global.u32 %r0, [%rd1+4];", inside).replace("\tret;", "done:\n\tret;"))
    _, _, sites = bounded(module, module.kernels[0], MILLISECOND)
    assert [site.text.partition(" ")[0] for site in sites] == ([inside.partition(" ")[0]] if LOOPS[inside] else [])


TURNS = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry turns(.param .u64 to)
{
	.reg .b64 %rd<2>;
	.reg .b32 %r<4>;
	.reg .pred %p<2>;
	.shared .align 8 .b64 full;
	mov.u32 %r0, full;
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, 0;
	setp.eq.u32 %p0, %r1, 0;
	@%p0 mbarrier.init.shared.b64 [%r0], 64;
	bar.sync 0;
again:
	mbarrier.arrive.shared.b64 _, [%r0];
	and.b32 %r3, %r2, 1;
	{
	.reg .pred P1;
	LAB_WAIT:
	mbarrier.try_wait.parity.shared::cta.b64 P1, [%r0], %r3;
	@P1 bra DONE;
	bra LAB_WAIT;
	DONE:
	}
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p1, %r2, 3;
	@%p1 bra again;
	and.b32 %r3, %r2, 1;
	xor.b32 %r3, %r3, 1;
	{
	.reg .pred P1;
	LAB_WAIT:
	mbarrier.try_wait.parity.shared::cta.b64 P1, [%r0], %r3;
	@P1 bra.uni DONE;
	bra.uni LAB_WAIT;
	DONE:
	}
	ld.param.u64 %rd0, [to];
	cvta.to.global.u64 %rd1, %rd0;
	@%p0 st.global.u32 [%rd1], %r2;
	ret;
}
"""


def test_a_wait_that_is_left_from_its_middle():
    """As CUTLASS writes it: a guarded branch out, and one back that is not guarded."""
    module = parse(TURNS)
    made, kernel, sites = bounded(module, module.kernels[0], MILLISECOND)
    assert [site.text.split()[1] for site in sites] == ["P1$1,", "P1$2,"]
    assert parse(print_module(made)) == made
    text = print_module(made)
    for number in (0, 1):
        assert f"$wl_over_{number}:\n\tmov.u64 %wl_since_{number}, 0;\n\tadd.u32 %wl_count_{number}" in text
        assert text.count(f"$wl_over_{number};") == 1
    assert "bra DONE$1;" not in text
    to, records = np.zeros(1, np.uint32), np.zeros(CTAS * WARPS * RECORD_WORDS, np.uint32)
    launch(Launch(made, (1, 1, 1), (64, 1, 1), (to, records)))
    assert to[0] == 3
    assert not records.any()
    assert assemble(made).kernel(kernel.name).spill_stores == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("@P1 bra DONE;", "@P1 bra DONE; add.u32 %r3, %r3, 0; st.shared.u32 [full], %r3;"),
        ("@P1 bra DONE;", "@P1 bra far;"),
        ("@P1 bra DONE;", "@P1 bra DONE; @%p0 bra far;"),
        ("@P1 bra DONE;", ""),
        ("\tDONE:\n", "\tadd.u32 %r2, %r2, 7;\n\tDONE:\n"),
    ],
    ids=["it stores", "it goes elsewhere", "it may go elsewhere", "it never ends", "something lies between"],
)
def test_a_loop_that_does_more_or_has_other_exits_is_unchanged(before, after):
    module = parse(TURNS.replace(before, after, 1).replace("\tret;", "far:\n\tret;"))
    made, _, sites = bounded(module, module.kernels[0], MILLISECOND)
    assert [site.text.split()[1] for site in sites] == ["P1$2,"]
    assert "bra LAB_WAIT$1;" in print_module(made)


def test_a_kernel_without_waits_only_gets_the_parameter():
    module = parse(SPIN.replace("@%p0 bra wait;", ""))
    _, kernel, sites = bounded(module, module.kernels[0], MILLISECOND)
    assert sites == ()
    assert kernel.body == module.kernels[0].body
    assert len(kernel.params) == 2


def record(site, turns, phase, place, base, cta, warp):
    return (site, turns, phase, place, base, *cta, warp, 0, *(0,) * 6)


def test_a_hang_is_reported_by_role_barrier_stage_phase_and_iteration():
    bound, _, _ = matmul()
    module = bound.program
    _, _, sites = bounded(module, module.kernels[0], MILLISECOND)
    base = 1024
    full, empty = base + 131072, base + 131104
    records = [
        record(number, turns, phase, place, base, (0, row, 0), warp)
        for row in (0, 1)
        for number, turns, phase, place, warp in (
            (1, 5, 1, empty + 8, 8),
            *((2, 5, 1, full + 8, warp) for warp in range(8)),
        )
    ]
    error = deadlock_error(records, sites, module, module.kernels[0])
    assert error.code == "DEADLOCK"
    text = str(error)
    lines = text.splitlines()
    assert "CTAs (0,0) (0,1): 18 warps timed out waiting on the GPU." in lines[0]
    (consume,) = [line for line in lines if line.strip().startswith("consume")]
    (load,) = [line for line in lines if line.strip().startswith("load")]
    for line, words in (
        (consume, ("warps 0-7", "first_kernel.py:", "waits for full[1] phase of parity 1 (after 5 waits here)")),
        (load, ("warp 8", "first_kernel.py:", "waits for empty[1] phase of parity 1 (after 5 waits here)")),
    ):
        assert all(each in line for each in words), line
    other = [record(2, 0, UNKNOWN, 5000, base, (7, 0, 0), 3), *records]
    text = str(deadlock_error(other, sites, module, module.kernels[0]))
    assert "CTA (7,0):" in text
    assert "waits for the mbarrier at shared+0x1388 (after 0 waits here)" in text


def test_a_watched_call_waits_and_reports(install, monkeypatch, tmp_path):
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path))
    library = install(FakeLibrary(sizes=(8, 8)))
    flag = FakeTensor(0x1000, (2,), "float32")
    bound = Launch(SPIN, (1, 1, 1), (32, 1, 1), (flag,))
    call = Prepared(bound, (flag,), timeout=0.5)
    call(flag)
    assert library.synchronised == [0]
    (address,) = library.host
    assert library.launched[0].parameters[1] == address.to_bytes(8, "little")

    def hang():
        library.write(address, record(1, 3, UNKNOWN, 0x1004, 0, (2, 0, 0), 0))
        return 719

    library.on_synchronise = hang
    with pytest.raises(WarploomError) as caught:
        call(flag)
    assert caught.value.code == "DEADLOCK"
    assert "warp 0  <ptx>" in str(caught.value)
    assert "waits for a change at 0x1004 of global memory (after 3 waits here)" in str(caught.value)
    library.on_synchronise = lambda: 700
    other = Prepared(bound, (flag,), timeout=0.5)
    with pytest.raises(WarploomError) as caught:
        other(flag)
    assert caught.value.code == "GPU_FAULT"


def test_the_environment_sets_the_timeout(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert default_timeout() is None
    monkeypatch.setenv(VARIABLE, "1.5")
    assert default_timeout() == 1.5
    for wrong in ("soon", "-1", "0"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(WarploomError, match="it is a number of seconds"):
            default_timeout()
