"""A wgmma GEMM as a kernel, its operands laid out by hand, and the expected results."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.hardware.fragments import WGMMA_A, wgmma_d
from warploom.hardware.matrix_descriptors import encode_shared_descriptor

SCHEDULES = ("eager", "lazy", "reverse", "random")
K = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
}
D_DTYPES = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
SPANS = {"none": 16, "32B": 32, "64B": 64, "128B": 128}
BITS = {"none": 0, "32B": 1, "64B": 2, "128B": 3}


@dataclass(frozen=True)
class Layout:
    """One operand in shared memory, implemented from the manual's canonical layouts, independently of the emulator."""

    rows: int
    k: int
    dtype: str
    swizzle: str
    mn_major: bool = False
    base: int = 0

    @property
    def size(self):
        return np.dtype(DTYPES[self.dtype]).itemsize

    @property
    def strides(self):
        """(leading, stride) byte offsets of a dense placement."""
        span = SPANS[self.swizzle]
        if self.swizzle == "none":
            if self.mn_major:
                return 128 * -(-self.rows * self.size // 16), 128
            return 128, 128 * (self.k * self.size // 16)
        if self.mn_major:
            return span * self.k, span * 8
        return 16, span * 8

    @property
    def bytes(self):
        return max(int(self.places().max()) + self.size - self.base, 16)

    def places(self):
        """The byte address of every element [row, k]; a K-major swizzled operand may be several spans long."""
        leading, stride = self.strides
        row, k = np.arange(self.rows)[:, None], np.arange(self.k)[None, :]
        span, size = SPANS[self.swizzle], self.size
        if self.mn_major:
            unit = span // size
            if self.swizzle == "none":
                at = row % unit * size + k % 8 * 16 + k // 8 * leading + row // unit * stride
            else:
                at = row % unit * size + k % 8 * span + k // 8 * stride + row // unit * leading
        elif self.swizzle == "none":
            at = row % 8 * 16 + row // 8 * stride + k * size // 16 * leading + k * size % 16
        else:
            blocks = self.rows // 8 * stride
            at = row % 8 * span + row // 8 * stride + k * size % span + k * size // span * blocks
        at = at + self.base
        return at ^ ((at >> 7 & (1 << BITS[self.swizzle]) - 1) << 4)

    def descriptor(self, step):
        """The descriptor of the `step`th instruction along k, before the buffer's address: (start, other bits)."""
        size, span = self.size, SPANS[self.swizzle]
        begin = step * K[self.dtype]
        leading, stride = self.strides
        if self.mn_major:
            start = begin // 8 * (leading if self.swizzle == "none" else stride)
        elif self.swizzle == "none":
            start = begin * size // 16 * leading
        else:
            start = begin * size % span + begin * size // span * (self.rows // 8 * stride)
        return self.base + start, encode_shared_descriptor("sm_90", 0, leading, stride, self.swizzle)


@dataclass(frozen=True)
class Case:
    """One product D (+)= A·Bᵀ over `steps` instructions."""

    n: int = 64
    a_type: str = "bf16"
    b_type: str = ""
    d_type: str = "f32"
    steps: int = 1
    a_swizzle: str = "128B"
    b_swizzle: str = "128B"
    a_mn: bool = False
    b_mn: bool = False
    a_registers: bool = False
    accumulate: str = "1"
    scale_a: int = 1
    scale_b: int = 1
    suffix: str = ""

    @property
    def k(self):
        return K[self.a_type] * self.steps

    @property
    def d_count(self):
        return self.n // (4 if self.d_type == "f16" else 2)

    def layouts(self):
        a = Layout(64, self.k, self.a_type, self.a_swizzle, self.a_mn)
        start = 0 if self.a_registers else -(-a.bytes // 1024) * 1024
        return a, Layout(self.n, self.k, self.b_type or self.a_type, self.b_swizzle, self.b_mn, start)

    def instructions(self):
        """The wgmmas, with their descriptors made from the address of the buffer."""
        a, b = self.layouts()
        d = "{" + ",".join(f"%d{i}" for i in range(self.d_count)) + "}"
        text = []
        integer = self.d_type == "s32"
        half = self.a_type in ("f16", "bf16")
        for step in range(self.steps):
            if self.a_registers:
                left = "{" + ",".join(f"%a{4 * step + i}" for i in range(4)) + "}"
            else:
                text.append(make_descriptor("%da", *a.descriptor(step)))
                left = "%da"
            text.append(make_descriptor("%db", *b.descriptor(step)))
            options = [] if integer else [self.scale_a, self.scale_b]
            if half:
                options += ([] if self.a_registers else [int(self.a_mn)]) + [int(self.b_mn)]
            scale_d = self.accumulate if step == 0 else "1"
            tail = "".join(f",{o}" for o in options)
            name = (
                f"m64n{self.n}k{K[self.a_type]}.{self.d_type}.{self.a_type}.{self.b_type or self.a_type}{self.suffix}"
            )
            text.append(f"wgmma.mma_async.sync.aligned.{name} {d}, {left}, %db, {scale_d}{tail};")
        return "\n".join(text)

    def kernel(self, *, body="", wait="wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;", fence=True):
        layouts = self.layouts()
        size = max(layout.base + layout.bytes for layout in layouts)
        size = -(-size // 2048) * 2048
        return (
            KERNEL.replace("@BYTES", str(size))
            .replace("@FENCE", "fence.proxy.async.shared::cta;" if fence else "")
            .replace("@BODY", body or f"wgmma.fence.sync.aligned;\n{self.instructions()}\n{wait}")
            .replace("@LOAD_D", "\n".join(f"ld.global.b32 %d{i}, [%in+{512 * i}];" for i in range(self.d_count)))
            .replace(
                "@LOAD_A",
                "\n".join(f"ld.global.b32 %a{i}, [%ina+{512 * i}];" for i in range(4 * self.steps * self.a_registers)),
            )
            .replace("@STORE_D", "\n".join(f"st.global.b32 [%out+{512 * i}], %d{i};" for i in range(self.d_count)))
        )


KERNEL = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 pimage, .param .u64 pin, .param .u64 pina, .param .u64 pout)
{
    .shared .align 1024 .b8 memory[@BYTES];
    .reg .b32 %d<128>; .reg .b32 %a<64>; .reg .b32 %t, %s, %v<4>, %base, %i, %x, %y, %z;
    .reg .b64 %da, %db, %image, %in, %ina, %out, %w;
    .reg .pred %p, %q;
    ld.param.u64 %image, [pimage]; ld.param.u64 %in, [pin]; ld.param.u64 %ina, [pina]; ld.param.u64 %out, [pout];
    mov.u32 %t, %tid.x;
    mov.u32 %base, memory;
    setp.eq.u32 %p, %base, 0;
    shl.b32 %x, %t, 4;
    add.u32 %s, %base, %x;
    cvt.u64.u32 %w, %x; add.u64 %image, %image, %w;
    shl.b32 %x, %t, 2;
    cvt.u64.u32 %w, %x; add.u64 %in, %in, %w; add.u64 %ina, %ina, %w; add.u64 %out, %out, %w;
    mov.u32 %i, 0;
COPY:
    ld.global.v4.b32 {%v0,%v1,%v2,%v3}, [%image];
    st.shared.v4.b32 [%s], {%v0,%v1,%v2,%v3};
    add.u64 %image, %image, 2048; add.u32 %s, %s, 2048; add.u32 %i, %i, 2048;
    setp.lt.u32 %q, %i, @BYTES;
    @%q bra COPY;
    @FENCE
    bar.sync 0;
    @LOAD_D
    @LOAD_A
    @BODY
    @STORE_D
    ret;
}
"""


def make_descriptor(name, start, bits):
    return (
        f"add.u32 %z, %base, {start}; and.b32 %z, %z, 0x3FFFF; shr.u32 %z, %z, 4; cvt.u64.u32 {name}, %z;"
        f"or.b64 {name}, {name}, {bits};"
    )


def numbers(rng, shape, dtype, *, exact=True):
    """Small integers, which every type holds, or random values of a type."""
    if dtype in ("s8", "u8"):
        limits = np.iinfo(DTYPES[dtype])
        return rng.integers(limits.min, limits.max + 1, shape).astype(DTYPES[dtype])
    values = rng.integers(-3, 4, shape) if exact else rng.standard_normal(shape)
    return values.astype(DTYPES[dtype])


def registers_of(matrix, d_type):
    """The registers [register, lane] that hold an accumulator."""
    lists = wgmma_d(matrix.shape[1]).to_registers(matrix)
    if d_type != "f16":
        return lists.view(np.uint32)
    pairs = lists.reshape(-1, 2, 128).transpose(0, 2, 1)
    return np.ascontiguousarray(pairs).view(np.uint32)[..., 0]


def matrix_of(words, d_type):
    if d_type != "f16":
        return wgmma_d(len(words) * 2).to_matrix(words.view(D_DTYPES[d_type]))
    halves = words.view(np.float16).reshape(-1, 128, 2).transpose(0, 2, 1).reshape(-1, 128)
    return wgmma_d(len(halves) * 2).to_matrix(np.ascontiguousarray(halves))


@dataclass
class Data:
    """Operands of a case and the arrays that the kernel gets."""

    case: Case
    a: np.ndarray
    b: np.ndarray
    d: np.ndarray
    image: np.ndarray
    a_words: np.ndarray

    @classmethod
    def make(cls, case, seed=0, *, exact=True):
        rng = np.random.default_rng(seed)
        a, b = (
            numbers(rng, (64, case.k), case.a_type, exact=exact),
            numbers(rng, (case.n, case.k), case.b_type or case.a_type, exact=exact),
        )
        d = (
            rng.integers(-5, 6, (64, case.n)) if exact or case.d_type == "s32" else rng.standard_normal((64, case.n))
        ).astype(D_DTYPES[case.d_type])
        size = max(layout.base + layout.bytes for layout in case.layouts())
        image = rng.integers(0, 256, -(-size // 2048) * 2048).astype(np.uint8)
        for layout, matrix in zip(case.layouts(), (a, b), strict=True):
            if layout.rows == 64 and case.a_registers and matrix is a:
                continue
            places = layout.places()[..., None] + np.arange(layout.size)
            image[places] = matrix[..., None].view(np.uint8)
        words = a.view(np.uint32).reshape(64, case.steps, 8) if case.a_registers else np.zeros((64, 0, 8), np.uint32)
        lists = [WGMMA_A.to_registers(np.ascontiguousarray(words[:, step])) for step in range(words.shape[1])]
        return cls(case, a, b, d, image, np.concatenate(lists) if lists else np.zeros((4, 128), np.uint32))

    def expected(self):
        product = (self.a.astype(np.float64) @ self.b.astype(np.float64).T) * self.case.scale_a * self.case.scale_b
        return product + (self.d.astype(np.float64) if self.case.accumulate == "1" else 0)

    def run(self, schedule="eager", *, d=None, seed=0, **options):
        text = self.case.kernel(**options)
        start = registers_of(self.d if d is None else d, self.case.d_type)
        out = np.zeros_like(start)
        launch(
            text,
            grid=(1, 1, 1),
            block=(128, 1, 1),
            args=[self.image, start, self.a_words, out],
            schedule=schedule,
            seed=seed,
        )
        return matrix_of(out, self.case.d_type)


def check(case, schedules=("eager",), seed=0):
    data = Data.make(case, seed)
    for schedule in schedules:
        got = data.run(schedule)
        np.testing.assert_array_equal(got.astype(np.float64), data.expected(), err_msg=schedule)


def fault(case, schedule="eager", block=128, **options):
    data = Data.make(case)
    text = case.kernel(**options)
    start = registers_of(data.d, case.d_type)
    with pytest.raises(WarploomError) as caught:
        launch(
            text,
            grid=(1, 1, 1),
            block=(block, 1, 1),
            args=[data.image, start, data.a_words, np.zeros_like(start)],
            schedule=schedule,
        )
    return caught.value
