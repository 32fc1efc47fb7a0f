"""Run a kernel from its PTX text, with NumPy arrays, on any CPU. This file runs in the test suite."""

import numpy as np

import warploom as wl

# A row sum: each warp takes one row; its lanes add their elements and reduce with shuffles.
ROW_SUM = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry row_sum(.param .u64 x, .param .u64 out, .param .u32 columns)
{
    .reg .pred %p, %more;
    .reg .b32 %lane, %warp, %row, %columns, %column, %at, %other, %mask;
    .reg .f32 %sum, %value;
    .reg .b64 %x, %out, %offset, %address;

    ld.param.u64 %x, [x];
    ld.param.u64 %out, [out];
    ld.param.u32 %columns, [columns];
    mov.u32 %lane, %laneid;
    mov.u32 %warp, %tid.x;
    shr.u32 %warp, %warp, 5;
    mov.u32 %row, %ctaid.x;
    mad.lo.u32 %row, %row, 2, %warp;        // two rows per CTA
    mov.f32 %sum, 0f00000000;
    mov.u32 %column, %lane;
NEXT:
    setp.ge.u32 %p, %column, %columns;
    @%p bra ADD;                            // lanes leave the loop at different times and reconverge at ADD
    mad.lo.u32 %at, %row, %columns, %column;
    mul.wide.u32 %offset, %at, 4;
    add.u64 %address, %x, %offset;
    ld.global.f32 %value, [%address];
    add.f32 %sum, %sum, %value;
    add.u32 %column, %column, 32;
    bra NEXT;
ADD:
    mov.u32 %mask, 16;
FOLD:
    shfl.sync.bfly.b32 %other, %sum, %mask, 31, -1;
    mov.b32 %value, %other;
    add.f32 %sum, %sum, %value;
    shr.u32 %mask, %mask, 1;
    setp.ne.u32 %more, %mask, 0;
    @%more bra FOLD;
    setp.ne.u32 %p, %lane, 0;
    @%p ret;
    mul.wide.u32 %offset, %row, 4;
    add.u64 %address, %out, %offset;
    st.global.f32 [%address], %sum;
    ret;
}
"""

rng = np.random.default_rng(0)
x = rng.integers(-9, 10, (6, 77)).astype(np.float32)
out = np.full(6, np.nan, np.float32)

run = wl.launch(ROW_SUM, grid=(3, 1, 1), block=(64, 1, 1), args=[x, out, x.shape[1]])

assert np.array_equal(out, x.sum(axis=1))
print(f"{run.instructions} warp instructions, of them {run.counts['shfl']} shuffles; sums {out}")

# One CTA too many: the emulator reports the out-of-bounds access with its lane and address.
try:
    wl.launch(ROW_SUM, grid=(4, 1, 1), block=(64, 1, 1), args=[x, out, x.shape[1]])
except wl.Fault as fault:
    print(fault)
    assert fault.code == "OUT_OF_BOUNDS"
