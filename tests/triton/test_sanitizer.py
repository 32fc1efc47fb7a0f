"""Triton's concurrency sanitizer on the emulator: the kernels that ConSan has instrumented run without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")
knobs = pytest.importorskip("triton.knobs")

RACY = """
    import sys
    import torch
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    @gluon.jit
    def copy(source, out, WAITS: gl.constexpr):
        tile = gl.allocate_shared_memory(source.dtype, source.block_shape, source.layout)
        ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(ready, count=1)
        mbarrier.expect(ready, source.block_type.nbytes)
        tma.async_load(source, [0, 0], ready, tile)
        if WAITS:
            mbarrier.wait(ready, 0)
        layout: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
        rows = gl.arange(0, 32, gl.SliceLayout(1, layout))
        columns = gl.arange(0, 32, gl.SliceLayout(0, layout))
        gl.store(out + rows[:, None] * 32 + columns[None, :], tile.load(layout))
        if not WAITS:
            mbarrier.wait(ready, 0)
        mbarrier.invalidate(ready)

    x = torch.randn(32, 32, device="cuda")
    out = torch.full_like(x, float("nan"))
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
    copy[(1,)](TensorDescriptor.from_tensor(x, [32, 32], layout), out, WAITS="waits" in sys.argv)
    assert torch.equal(out, x)
"""


def run(tmp_path, *arguments, options=(), sanitizer=""):
    script = tmp_path / "racy.py"
    script.write_text(textwrap.dedent(RACY))
    environment = {**os.environ, "TRITON_INSTRUMENTATION_MODE": sanitizer}
    command = [sys.executable, "-m", "warploom", "triton", *options, str(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1200)


@pytest.mark.slow
def test_consan_reports_a_read_without_a_wait(tmp_path):
    if not hasattr(knobs.compilation, "instrumentation_mode"):
        pytest.skip("this release of Triton has no instrumentation mode")
    done = run(tmp_path, sanitizer="consan")
    assert done.returncode == 2, done.stderr
    assert "Buffer being accessed has outstanding writes." in done.stderr
    assert run(tmp_path, "waits", sanitizer="consan").returncode == 0


@pytest.mark.slow
def test_the_same_race_without_a_sanitizer(tmp_path):
    assert run(tmp_path).returncode == 0
    assert run(tmp_path, options=("--schedule", "lazy")).returncode == 1
    assert run(tmp_path, "waits", options=("--schedule", "lazy")).returncode == 0
