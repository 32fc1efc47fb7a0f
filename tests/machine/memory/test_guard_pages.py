"""Guard pages: an access past a memory ends the process, and results are the same with them."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest
from tests.machine.engine.mutants import engine

from warploom import launch
from warploom.machine.memory import guard_pages
from warploom.machine.memory.byte_memory import padded

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no mprotect")
PAGE = 4096
TOUCH = """
import ctypes
import numpy as np
from warploom.machine.memory import guard_pages
array = guard_pages.empty({shape}, np.uint32)
assert array.ctypes.data % 64 == 0 and not array.any()
array.fill(7)
print(ctypes.{kind}.from_address(array.ctypes.data + {offset}).value, flush=True)
"""


@pytest.fixture
def guarded(monkeypatch):
    monkeypatch.setenv(guard_pages.SWITCH, "1")


def touched(shape, offset, kind="c_uint8"):
    script = TOUCH.format(shape=shape, offset=offset, kind=kind)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("shape", [(3, 128), (5, 4096)])
def test_an_access_past_the_end_or_before_the_beginning_ends_the_process(shape, guarded):
    size = int(np.prod(shape)) * 4
    assert touched(shape, size - 4, "c_uint32").stdout == "7\n"
    for offset in (size, -(-size // PAGE) * -PAGE + size - 1):
        done = touched(shape, offset)
        assert done.returncode == -signal.SIGSEGV
        assert not done.stdout


def test_a_memory_ends_within_64_bytes_of_its_guard_page(guarded):
    for size in (1, 15, 16, 63, 64, 65, 4095, 4097, 232448):
        memory = padded(size)
        whole = -(-size // 16) * 16
        assert memory.nbytes == whole
        assert memory.ctypes.data % 64 == 0
        assert -(memory.ctypes.data + whole) % PAGE < 64


def test_without_the_switch_there_are_none(monkeypatch):
    monkeypatch.delenv(guard_pages.SWITCH, raising=False)
    assert not guard_pages.are_wanted()
    assert guard_pages.empty(4, np.uint8).base is None


KERNEL = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry reversed(.param .u64 x)
{
	.reg .b32 %r<8>;
	.reg .b64 %rd<4>;
	.shared .align 16 .b8 held[1024];
	.local .align 4 .b8 own[16];
	ld.param.u64 %rd0, [x];
	mov.u32 %r0, %tid.x;
	mul.wide.u32 %rd1, %r0, 4;
	add.u64 %rd2, %rd0, %rd1;
	ld.global.u32 %r1, [%rd2];
	st.local.u32 [own+12], %r1;
	ld.local.u32 %r2, [own+12];
	shl.b32 %r3, %r0, 2;
	mov.u32 %r4, held;
	add.u32 %r5, %r4, %r3;
	st.shared.u32 [%r5], %r2;
	bar.sync 0;
	sub.u32 %r6, 1020, %r3;
	add.u32 %r6, %r4, %r6;
	ld.shared.u32 %r7, [%r6];
	st.global.u32 [%rd2], %r7;
	ret;
}
"""


@pytest.mark.parametrize("name", ["numpy", "native"])
def test_a_kernel_gives_the_same_between_guard_pages(name, guarded):
    if name == "native":
        pytest.importorskip("llvmlite")
    x = np.random.default_rng().integers(0, 2**32, 256, np.uint32)
    want = x[::-1].copy()
    with engine(name):
        launch(KERNEL, grid=(1, 1, 1), block=(256, 1, 1), args=[x])
    assert np.array_equal(x, want)
