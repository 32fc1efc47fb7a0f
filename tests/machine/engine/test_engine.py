"""Kernels on both engines: the same results, faults and schedules; and what happens where native code fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from tests.machine.simt import threads

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.machine.engine import selection, store
from warploom.machine.engine.control_kernels import Escape
from warploom.machine.routines.turn_loop import TurnLoop
from warploom.machine.semantics.vectors import EngineError
from warploom.machine.translate import prepared
from warploom.runtime.cache.disk import Cache

pytest.importorskip("llvmlite")

from warploom.machine.engine import native
from warploom.machine.engine.native import Engine, Kernel

RNG = np.random.default_rng()

BODIES = {
    "arithmetic of all widths": """
    cvt.u16.u32 %h1, %r1; mul.wide.u16 %r3, %h1, %h1; cvt.rn.f32.u32 %f1, %r1; sqrt.rn.f32 %f2, %f1;
    cvt.f64.f32 %d1, %f2; fma.rn.f64 %d2, %d1, %d1, 0d3FF0000000000000; cvt.rn.f32.f64 %f3, %d2;
    mov.b32 %r4, %f3; mov.b64 %rd3, {%r3, %r4}; mov.b64 {%r5, %r6}, %rd3; prmt.b32 %r7, %r5, %r6, 0x3175;
    xor.b32 %r8, %r7, %r0; st.global.v2.u32 [%rd0], {%r8, %r4};""",
    "guards": """
    and.b32 %r3, %r1, 3; setp.ne.u32 %p1, %r3, 0; setp.lt.and.u32 %p2|%p3, %r1, 40000, %p1; mov.u32 %r4, 7;
    @%p1 add.u32 %r4, %r4, %r0; @!%p2 shl.b32 %r4, %r4, 3; @%p3 ld.global.u32 %r4, [%rd2];
    selp.b32 %r5, %r4, %r1, %p2; @%p1 st.global.u32 [%rd0], %r5; @!%p1 st.global.u32 [%rd0+4], %r5;""",
    "divergent loops": """
    and.b32 %r3, %r1, 7; mov.u32 %r4, 0; AGAIN: add.u32 %r4, %r4, %r3; mul.lo.u32 %r4, %r4, 3; sub.u32 %r3, %r3, 1;
    setp.gt.s32 %p1, %r3, 0; @%p1 bra AGAIN; st.global.u32 [%rd0], %r4; ld.global.u32 %r5, [%rd0];
    st.global.u32 [%rd0+4], %r5;""",
    "shared and local memory": """
    .local .align 8 .b8 mine[64]; mov.u32 %r3, sh; shl.b32 %r4, %r0, 2; and.b32 %r4, %r4, 1020; add.u32 %r4, %r3, %r4;
    st.shared.u32 [%r4], %r1; bar.sync 0; xor.b32 %r5, %r4, 4; ld.shared.u32 %r6, [%r5]; ld.shared.u16 %h1, [%r4+2];
    cvt.u32.u16 %r7, %h1; and.b32 %r8, %r1, 56; mov.u64 %rd3, mine; cvt.u64.u32 %rd4, %r8; add.u64 %rd5, %rd3, %rd4;
    st.local.v2.u32 [%rd5], {%r6, %r7}; ld.local.s8 %r9, [%rd5]; add.u32 %r6, %r6, %r9;
    st.local.v2.u32 [mine+8], {%r1, %r0}; ld.local.u32 %r10, [mine+12]; add.u32 %r6, %r6, %r10;
    st.global.v2.u32 [%rd0], {%r6, %r7};""",
    "generic addresses": """
    mov.u32 %r3, sh; cvt.u64.u32 %rd3, %r3; cvta.shared.u64 %rd3, %rd3; mul.wide.u32 %rd4, %r0, 4;
    and.b64 %rd4, %rd4, 1020; add.u64 %rd3, %rd3, %rd4; st.u32 [%rd3], %r1; and.b32 %r4, %r0, 1;
    setp.eq.u32 %p1, %r4, 0; selp.b64 %rd5, %rd3, %rd2, %p1; ld.u32 %r5, [%rd5]; ld.u32 %r6, [%rd3];
    st.v2.u32 [%rd0], {%r5, %r6};""",
    "uniform operands": """
    mov.u32 %r3, 5; mov.u32 %r7, %ctaid.x; add.u32 %r8, %r7, 3; mad.lo.u32 %r4, %r1, %r8, %r3; add.u32 %r8, %r8, 1;
    add.u32 %r4, %r4, %r8; setp.gt.u32 %p1, %r8, 100; selp.b32 %r5, %r4, %r8, %p1; ld.global.u32 %r6, [%rd1];
    add.u32 %r5, %r5, %r6; st.global.v2.u32 [%rd0], {%r4, %r5};""",
    "small matrices": """
    mov.u32 %r3, sh; and.b32 %r4, %r0, 31; shl.b32 %r5, %r4, 4; add.u32 %r5, %r5, %r3; st.shared.v2.u32 [%r5], {%r1, %r0};
    st.shared.v2.u32 [%r5+8], {%r0, %r1}; bar.sync 0; xor.b32 %r6, %r4, 5; shl.b32 %r6, %r6, 4; add.u32 %r6, %r6, %r3;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r6];
    ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r14, %r6}, [%r6]; bar.sync 0;
    stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r5+512], {%r10, %r14, %r6, %r13};
    stmatrix.sync.aligned.m8n8.x1.shared::cta.b16 [%r5], {%r11}; bar.sync 0;
    ld.shared.u32 %r15, [%r5+516]; ld.shared.u32 %r16, [%r5+4]; add.u32 %r15, %r15, %r12;
    st.global.v2.u32 [%rd0], {%r15, %r16};""",
    "shuffles": """
    mov.u32 %r3, 3; shfl.sync.bfly.b32 %r4, %r1, 16, 31, -1; shfl.sync.up.b32 %r4|%p1, %r4, %r3, 0, 0xffffffff;
    and.b32 %r5, %r1, 31; shfl.sync.idx.b32 %r6, %r4, %r5, 0x1c1f, -1; shfl.sync.down.b32 %r7|%p2, %r6, 5, 0x101f, -1;
    selp.b32 %r8, %r6, %r7, %p1; selp.b32 %r9, %r8, %r4, %p2; shfl.sync.idx.b32 %r9, %r9, 7, %r5, -1;
    add.u32 %r8, %r8, %r9; st.global.v2.u32 [%rd0], {%r8, %r9};""",
    "transcendental functions": """
    cvt.rn.f32.u32 %f1, %r1; mul.f32 %f1, %f1, 0f3A83126F; ex2.approx.ftz.f32 %f2, %f1; lg2.approx.f32 %f3, %f1;
    sin.approx.f32 %f4, %f1; tanh.approx.f32 %f5, %f4; div.full.f32 %f6, %f2, %f3; rsqrt.approx.f32 %f7, %f6;
    fma.rn.f32 %f8, %f5, %f7, %f2; min.NaN.f32 %f9, %f8, %f3; st.global.v2.f32 [%rd0], {%f8, %f9};""",
}

FAULTS = {
    "outside": "add.u64 %rd3, %rd0, 99999; and.b64 %rd3, %rd3, -4; ld.global.u32 %r3, [%rd3];",
    "one lane outside": """setp.eq.u32 %p1, %r0, 21; mov.u64 %rd3, %rd2; @%p1 add.u64 %rd3, %rd3, 1048576;
                        st.global.u32 [%rd3], %r1;""",
    "misaligned": "add.u64 %rd3, %rd2, %rd1; sub.u64 %rd3, %rd3, %rd1; ld.global.u32 %r3, [%rd3+2];",
    "shared": "shl.b32 %r3, %r0, 7; st.shared.u32 [%r3+1024], %r1;",
    "a matrix": "mov.u32 %r3, sh; shl.b32 %r4, %r0, 4; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5, %r6, %r7, %r8}, [%r4+8];",
    "local": ".local .b8 mine[16]; cvt.u64.u32 %rd3, %r0; st.local.u8 [%rd3], %r1;",
    "a guarded store": "setp.gt.u32 %p1, %r0, 9; mul.wide.u32 %rd3, %r0, 4096; @%p1 st.global.v4.u32 [%rd3], {%r1, %r1, 3, 4};",
}


def both(monkeypatch: pytest.MonkeyPatch, body: str, **options: Any) -> list[Any]:
    """The outputs of a body, or its error, on both engines."""
    found: list[Any] = []
    for engine in ("numpy", "native"):
        monkeypatch.setenv("WARPLOOM_ENGINE", engine)
        try:
            found.append(threads(body, **options))
        except WarploomError as error:
            found.append((type(error), str(error)))
    return found


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("block", [32, 100, 256])
def test_results_are_equal(monkeypatch: pytest.MonkeyPatch, name: str, block: int) -> None:
    block = 96 if block % 32 and "matrix" in BODIES[name] else block  # whole warps
    source = RNG.integers(0, 1 << 16, 2 * block, dtype=np.uint32)
    for options in ({}, {"schedule": "random", "seed": 3}):
        reference, native = both(monkeypatch, BODIES[name], block=block, words=2, source=source, grid=2, **options)
        assert isinstance(reference, np.ndarray), reference
        assert np.array_equal(reference, native), (name, options)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_equal(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    reference, native = both(monkeypatch, FAULTS[name], block=64, words=1)
    assert isinstance(reference, tuple), reference
    assert reference == native


def test_a_read_only_array(monkeypatch: pytest.MonkeyPatch) -> None:
    source = np.arange(32, dtype=np.uint32)
    source.setflags(write=False)
    reference, native = both(monkeypatch, "st.global.u32 [%rd2], %r0;", source=source)
    assert reference == native
    assert "READ_ONLY" in reference[1]


def test_lanes_in_several_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes whose pointers lead to different arrays load and store in native code too."""
    text = """
    .version 8.7
    .target sm_90a
    .address_size 64
    .visible .entry k(.param .u64 a, .param .u64 b)
    {
     .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<8>;
     ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4;
     and.b32 %r1, %r0, 1; setp.eq.u32 %p0, %r1, 0; selp.b64 %rd3, %rd0, %rd1, %p0; add.u64 %rd3, %rd3, %rd2;
     ld.global.u32 %r2, [%rd3]; add.u32 %r2, %r2, 1; st.global.u32 [%rd3], %r2; ret;
    }"""
    for engine in ("numpy", "native"):
        monkeypatch.setenv("WARPLOOM_ENGINE", engine)
        a, b = RNG.integers(0, 1 << 31, (2, 64), dtype=np.uint32)
        odd = np.arange(64) % 2
        expected = a + (odd == 0), b + (odd == 1)
        launch(text, grid=1, block=64, args=[a, b])
        assert np.array_equal(a, expected[0])
        assert np.array_equal(b, expected[1])


def test_a_loop_that_polls_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A native loop that waits for another warp's store ends, after as many instructions as in the reference."""
    body = """
    mov.u32 %r3, sh; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [%r3], 0; bar.sync 0; setp.lt.u32 %p2, %r0, 32;
    @%p2 bra WAIT; mov.u32 %r5, 0; WORK: add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 3000; @%p3 bra WORK;
    st.volatile.shared.u32 [%r3], 9; bra END; WAIT: ld.volatile.shared.u32 %r4, [%r3]; setp.ne.u32 %p3, %r4, 9;
    @%p3 bra WAIT; END: ld.volatile.shared.u32 %r6, [%r3]; st.global.u32 [%rd0], %r6;"""
    reference, native = both(monkeypatch, body, block=64)
    assert (native == 9).all()
    assert np.array_equal(reference, native)


def test_kernels_are_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A second process compiles nothing; a damaged entry counts as missing."""
    cache = Cache(tmp_path)
    monkeypatch.setattr(store, "_stores", [lambda: cache])
    monkeypatch.setenv("WARPLOOM_ENGINE", "native")

    def compiled(number: int) -> int:
        """The kernels that a new engine compiles; a text that was not launched before."""
        monkeypatch.setattr(selection, "_made", [])
        count = 0
        compile_ = Engine._compiled

        def counted(self: Engine, functions: Iterable[str], level: int) -> bytes:
            nonlocal count
            functions = list(functions)
            count += sum(each.startswith("define i64 @k") for each in functions)
            return compile_(self, functions, level)

        monkeypatch.setattr(Engine, "_compiled", counted)
        threads(f"{BODIES['guards']} // {number}", words=2)
        monkeypatch.setattr(Engine, "_compiled", compile_)
        engine = selection.engine()
        assert engine is not None
        engine._objects.save(everything=True)  # as at the end of the process
        return count

    first = compiled(1)
    assert first > 5
    assert compiled(2) == 0
    (entry,) = tmp_path.glob("??/*")
    entry.write_bytes(entry.read_bytes()[:-7] + b"damaged")
    assert compiled(3) == first


def test_numpy_takes_over_where_native_code_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPLOOM_ENGINE", "auto")
    monkeypatch.setattr(selection, "_made", [])
    monkeypatch.setattr(selection, "_LOAD_AFTER", 0)

    def fail(*_: object) -> None:
        raise EngineError("no address")

    monkeypatch.setattr(Engine, "link", fail)
    source = RNG.integers(0, 99, 64, dtype=np.uint32)
    with pytest.warns(RuntimeWarning, match="no address"):
        found = threads("add.u32 %r3, %r1, 1; st.global.u32 [%rd0], %r3;", 64, source=source)
    assert np.array_equal(found[:, 0], source + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads("st.global.u32 [%rd0], %r1;", 64, source=source)
    assert selection.engine() is None


@pytest.mark.parametrize("often", [0, 1 << 20], ids=["optimised", "quick"])
def test_a_launch_after_an_interrupted_compilation_is_native(monkeypatch: pytest.MonkeyPatch, often: int) -> None:
    monkeypatch.setenv("WARPLOOM_ENGINE", "native")
    monkeypatch.setattr(store, "_stores", [])
    engine = Engine(often=often)
    monkeypatch.setattr(selection, "_made", [engine])
    interrupt_once(monkeypatch)
    source = RNG.integers(0, 99, 64, dtype=np.uint32)
    body = f"mul.lo.u32 %r3, %r1, 5; xor.b32 %r3, %r3, {often}; st.global.u32 [%rd0], %r3;"  # a program for each engine
    with pytest.raises(KeyboardInterrupt):
        threads(body, 64, source=source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = threads(body, 64, source=source)
    assert np.array_equal(found[:, 0], source * 5 ^ often)
    assert selection.engine() is engine


def test_a_kernel_has_an_address_after_an_interrupted_optimisation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_stores", [])
    engine = Engine()
    interrupt_once(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        engine.address(Escape())
    assert engine.routine(Escape()).address
    assert engine.address(Escape())


def interrupt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ctrl-C come while LLVM compiles."""
    compiled = Engine._compiled

    def interrupted(*_: object) -> None:
        monkeypatch.setattr(Engine, "_compiled", compiled)
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "_compiled", interrupted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("lock", [native._FINDING, native._COMPILING, prepared._change])
def test_a_fork_waits_for_a_thread_that_compiles(lock: Any) -> None:
    """The child can launch: it does not inherit a lock whose thread it does not have."""
    holds = Event()

    def compile_() -> None:
        with lock:
            holds.set()
            time.sleep(0.2)

    thread = Thread(target=compile_)
    thread.start()
    holds.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
        child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(timeout=0) else 1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("whole", [True, False])
def test_numpy_takes_over_from_native_turns(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    """At the start of a random run, or while warps wait at a barrier: the code for some lanes of a warp fails."""
    monkeypatch.setenv("WARPLOOM_ENGINE", "auto")
    monkeypatch.setattr(selection, "_made", [])
    monkeypatch.setattr(selection, "_seldom", lambda _: 0)  # with an empty cache too, native code executes every form
    linked = Engine.link

    def fail(self: Engine, kernels: Iterable[Kernel]) -> None:
        kernels = list(kernels)
        masked = any(getattr(getattr(kernel.form, "masks", None), "group", False) for kernel in kernels)
        if masked or (whole and any(isinstance(kernel.form, TurnLoop) for kernel in kernels)):
            raise EngineError("no address")
        linked(self, kernels)

    monkeypatch.setattr(Engine, "link", fail)
    body = """and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; setp.lt.u32 %p2, %r0, 96; @%p2 bra MEET;
     @%p1 bra MEET; add.u32 %r1, %r1, 5; MEET: mov.u32 %r40, sh; shl.b32 %r41, %r0, 2; add.u32 %r40, %r40, %r41;
     st.shared.u32 [%r40], %r1; bar.sync 0; xor.b32 %r42, %r41, 128; mov.u32 %r43, sh; add.u32 %r43, %r43, %r42;
     ld.shared.u32 %r44, [%r43]; st.global.u32 [%rd0], %r44;"""
    source = RNG.integers(0, 99, 128, dtype=np.uint32)
    with pytest.warns(RuntimeWarning, match="no address"):
        found = threads(body, 128, source=source, schedule="random", seed=2)
    thread = np.arange(128)
    stored = source + 5 * ((thread >= 96) & (thread % 2 == 1))
    assert np.array_equal(found[:, 0], stored[thread ^ 32])
    assert selection.engine() is None


def test_an_unknown_engine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPLOOM_ENGINE", "fast")
    with pytest.raises(WarploomError, match="WARPLOOM_ENGINE"):
        threads("st.global.u32 [%rd0], %r1;")


def test_without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy executes everything; asking for native code is an error that says what to install."""
    monkeypatch.setattr("warploom.machine.engine.native.installed", lambda: None)
    monkeypatch.setattr(selection, "_made", [])
    monkeypatch.delenv("WARPLOOM_ENGINE", raising=False)
    assert selection.engine() is None
    assert "warploom[fast]" in selection.describe()
    monkeypatch.setenv("WARPLOOM_ENGINE", "native")
    with pytest.raises(WarploomError, match=r"warploom\[fast\]"):
        selection.engine()


@pytest.mark.parametrize("name", ["auto", "native"])
def test_llvmlite_that_fails_is_tried_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("WARPLOOM_ENGINE", name)
    monkeypatch.setattr(selection, "_made", [])
    monkeypatch.setattr(selection, "_LOAD_AFTER", 0)

    def fail(*_: object) -> None:
        raise OSError("cannot open shared object file")

    monkeypatch.setattr(Engine, "__init__", fail)
    with pytest.warns(RuntimeWarning, match="cannot be used.*shared object"):
        assert selection.engine() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads("st.global.u32 [%rd0], %r1;")
        assert selection.engine() is None


def test_llvmlite_is_imported_by_the_first_launch_only() -> None:
    code = "import sys, warploom; warploom.launch; assert 'llvmlite' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_signed_load_to_a_wide_register_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = both(monkeypatch, "ld.global.s16 %q1, [%rd2]; st.global.u32 [%rd0], %r1;")
    assert found[0] == found[1]
    assert "a .b128 register where d is .s16" in found[0][1]


DISCARDED = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry discarded(.param .u64 x)
{
	.reg .b32 %r<3>;
	.reg .b64 %rd<1>;
	ld.param.u64 %rd0, [x];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, 7;
	mov.b64 _, {%r1, %r2};
	st.global.u32 [%rd0], %r2;
	ret;
}
"""


@pytest.mark.parametrize("name", ["numpy", "native"])
def test_an_instruction_whose_result_is_discarded(name, monkeypatch):
    monkeypatch.setenv("WARPLOOM_ENGINE", name)
    x = np.zeros(1, np.uint32)
    launch(DISCARDED, grid=(1, 1, 1), block=(1, 1, 1), args=[x])
    assert x[0] == 7
