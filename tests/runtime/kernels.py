"""Kernels for the assembler: one that is fine, one that spills, one that ptxas serialises, one with errors."""

from __future__ import annotations

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

from warploom.host.launch import Launch
from warploom.host.tensor_map import TensorMap

EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = '.version 8.6\n.target sm_90a\n.address_size 64\n.file 1 "author.py"\n'


def example(name: str, threads: int) -> Launch:
    """The launch of an example's matmul."""
    found = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    a, b = np.zeros((256, 320), ml_dtypes.bfloat16), np.zeros((128, 320), ml_dtypes.bfloat16)
    maps = (TensorMap(x, box=(found["TILE"], found["TILE_K"]), swizzle="128B") for x in (a, b))
    d = np.zeros((256, 128), np.float32)
    return found["matmul"].bind(*maps, d, 5, grid=(1, 2, 1), block=(threads, 1, 1))


def sums(count: int, registers: int) -> str:
    """Keeps `count` values alive over a barrier in `registers` registers."""
    loads = "".join(f"ld.global.f32 %f{i}, [%rd1+{4 * i}];\n" for i in range(count))
    mixes = "".join(
        f"fma.rn.f32 %f{i}, %f{i}, %f{(7 * i + 3) % count}, %f{(5 * i + 1) % count};\n" for i in range(count)
    )
    stores = "".join(f"st.global.f32 [%rd1+{4 * i}], %f{i};\n" for i in range(count))
    return f"""{HEAD}
.visible .entry sums(.param .u64 p) .maxntid 128 .maxnreg {registers}
{{
.reg .f32 %f<{count}>; .reg .b64 %rd<2>;
.loc 1 12 0
ld.param.u64 %rd1, [p];
{loads}bar.sync 0;
{mixes}bar.sync 0;
{stores}ret;
}}
"""


READS_TOO_EARLY = f"""{HEAD}
.visible .entry early(.param .u64 p, .param .u64 a, .param .u64 b) .reqntid 128, 1, 1
{{
.reg .f32 %f<4>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [p];
ld.param.u64 %rd2, [a];
ld.param.u64 %rd3, [b];
mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
wgmma.fence.sync.aligned;
.loc 1 57 0
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3}}, %rd2, %rd3, 1, 1, 1, 0, 0;
.loc 1 58 0
add.f32 %f0, %f0, %f1;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
st.global.f32 [%rd1], %f0;
st.global.f32 [%rd1+4], %f2;
ret;
}}
"""
ERRORS = f"""{HEAD}
.visible .entry wrong(.param .u64 p)
{{
.reg .b32 %r<4>;
.loc 1 5 0
add.s32 %r1, %r2, %r99;
.loc 1 6 0
tcgen05.wait::ld.sync.aligned;
ret;
}}
"""
LOCAL_AND_FENCES = f"""{HEAD}
.func (.param .b32 out) helper(.param .b32 in)
{{
.local .align 16 .b8 table[64];
.reg .b32 %r<4>;
ld.param.u32 %r1, [in];
and.b32 %r1, %r1, 7;
st.local.u32 [table+4], %r1;
mov.u32 %r3, table;
add.u32 %r3, %r3, %r1;
ld.local.u32 %r2, [%r3];
st.param.b32 [out], %r2;
ret;
}}
.visible .entry caller(.param .u64 p)
{{
.reg .b32 %r<4>; .reg .b64 %rd<2>;
.loc 1 7 0
mov.u32 %r1, %tid.x;
{{
.param .b32 given; .param .b32 result;
st.param.b32 [given], %r1;
call.uni (result), helper, (given);
ld.param.b32 %r2, [result];
}}
.loc 1 8 0
ld.param.u64 %rd1, [p];
st.global.u32 [%rd1], %r2;
.loc 1 9 0
fence.acq_rel.gpu;
ret;
}}
.visible .entry second(.param .u64 p) {{ .shared .b32 word[77]; .reg .b32 %r<3>; mov.u32 %r1, %tid.x; mov.u32 %r2, word; add.u32 %r2, %r2, %r1; st.shared.u32 [%r2], %r1; bar.sync 0; ret; }}
"""
