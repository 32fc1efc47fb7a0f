"""wgmma: every type, shape, layout and source of operands, when it reads and writes, and who must take part."""

from __future__ import annotations

import time
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.facts.descriptors import encode_shared_descriptor
from warploom.facts.fragments import WGMMA_A, wgmma_d

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
    """One operand in shared memory, written down from the manual's canonical layouts, independently of the machine."""

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


TYPES = [
    Case(n=8, a_type="f16"),
    Case(n=256, a_type="f16"),
    Case(n=40, a_type="f16", d_type="f16"),
    Case(n=8, a_type="f16", d_type="f16", a_registers=True),
    Case(n=256, a_type="bf16", steps=4),
    Case(n=24, a_type="bf16", a_registers=True, steps=2),
    Case(n=16, a_type="tf32", steps=4),
    Case(n=104, a_type="tf32", a_registers=True, steps=2),
    Case(n=8, a_type="e4m3", steps=2),
    Case(n=48, a_type="e4m3", b_type="e5m2", steps=4),
    Case(n=32, a_type="e5m2", b_type="e4m3", d_type="f16"),
    Case(n=72, a_type="e5m2", a_registers=True),
    Case(n=24, a_type="s8", d_type="s32", steps=3),
    Case(n=256, a_type="u8", d_type="s32", steps=4),
    Case(n=64, a_type="s8", b_type="u8", d_type="s32", a_registers=True, suffix=".satfinite"),
    Case(n=8, a_type="u8", b_type="s8", d_type="s32"),
]


@pytest.mark.parametrize("case", TYPES, ids=str)
def test_types_and_shapes(case):
    check(case, ("eager", "lazy"))


@pytest.mark.parametrize("swizzle", SPANS)
@pytest.mark.parametrize("mn_major", [False, True], ids=["k-major", "mn-major"])
@pytest.mark.parametrize("side", ["a", "b"])
def test_layouts(swizzle, mn_major, side):
    options = {f"{side}_swizzle": swizzle, f"{side}_mn": mn_major}
    check(Case(n=128, a_type="f16" if side == "a" else "bf16", steps=4, **options), seed=1)


@pytest.mark.parametrize("a_swizzle", ["none", "32B"])
def test_both_operands_mn_major(a_swizzle):
    check(Case(n=64, steps=2, a_swizzle=a_swizzle, b_swizzle="64B", a_mn=True, b_mn=True), SCHEDULES)


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B"])
def test_narrow_types_in_narrow_swizzles(swizzle):
    check(Case(n=16, a_type="e4m3", steps=4, a_swizzle=swizzle, b_swizzle=swizzle))
    check(Case(n=16, a_type="tf32", steps=3, a_swizzle=swizzle, b_swizzle="128B"))


@pytest.mark.parametrize(("scale_a", "scale_b"), [(-1, 1), (1, -1), (-1, -1)])
@pytest.mark.parametrize("accumulate", ["0", "1"])
def test_negative_scales(scale_a, scale_b, accumulate):
    for d_type in ("f32", "f16"):
        check(Case(n=16, a_type="f16", d_type=d_type, steps=2, scale_a=scale_a, scale_b=scale_b, accumulate=accumulate))


@pytest.mark.parametrize("accumulate", ["0", "%p"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_scale_d_the_accumulator_is_not_read(accumulate, schedule):
    data = Data.make(Case(n=32, steps=3, accumulate=accumulate))
    got = data.run(schedule, d=np.full((64, 32), np.nan, np.float32))
    np.testing.assert_array_equal(got, data.expected())


def test_tf32_ignores_the_low_bits():
    data = Data.make(Case(n=8, a_type="tf32"), exact=False)
    got = data.run()
    rounded = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64) for x in (data.a, data.b)]
    np.testing.assert_allclose(got, rounded[0] @ rounded[1].T + data.d, rtol=1e-5, atol=1e-5)


def test_a_half_accumulator_is_rounded_once_per_instruction():
    data = Data.make(Case(n=8, a_type="f16", d_type="f16", steps=2), exact=False)
    got = data.run()
    total = data.d
    for step in range(2):
        part = slice(16 * step, 16 * step + 16)
        product = data.a[:, part].astype(np.float32) @ data.b[:, part].astype(np.float32).T
        total = (total.astype(np.float32) + product).astype(np.float16)
    np.testing.assert_array_equal(got, total)


@pytest.mark.parametrize("saturate", ["", ".satfinite"])
def test_integers_wrap_or_saturate(saturate):
    case = Case(n=8, a_type="u8", d_type="s32", suffix=saturate)
    data = Data.make(case)
    data.d[:] = np.iinfo(np.int32).max - 1000
    got = data.run()
    exact = data.expected().astype(np.int64)
    assert (exact > np.iinfo(np.int32).max).any()
    wanted = np.minimum(exact, np.iinfo(np.int32).max) if saturate else exact.astype(np.int32)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "case",
    [
        Case(n=128, steps=4),
        Case(n=64, a_type="f16", steps=3, a_registers=True),
        Case(n=40, steps=4, a_mn=True, b_mn=True),
    ],
    ids=str,
)
def test_every_schedule_gives_the_same_bits(case):
    """Merging the reads of a run must not change the order in which its products are added."""
    data = Data.make(case, exact=False)
    results = [
        data.run(schedule, seed=seed) for schedule in SCHEDULES for seed in range(2 if schedule == "random" else 1)
    ]
    np.testing.assert_allclose(results[0], data.expected(), rtol=1e-3, atol=1e-3)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_reading_before_the_wait_gives_the_old_value_under_lazy():
    data = Data.make(Case(n=16))
    late = data.run("lazy", wait="wgmma.commit_group.sync.aligned;")
    np.testing.assert_array_equal(late, data.d)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_not_committed_is_not_waited_for(schedule):
    data = Data.make(Case(n=16))
    got = data.run(schedule, wait="wgmma.wait_group.sync.aligned 0;")
    if schedule in ("eager", "lazy"):
        np.testing.assert_array_equal(got, data.d)


def test_wait_group_1_leaves_one_group_pending():
    case = Case(n=16)
    data = Data.make(case)
    one = case.instructions()
    commit = "wgmma.commit_group.sync.aligned;"
    body = f"wgmma.fence.sync.aligned; {one} {commit} {one} {commit} {one} {commit} wgmma.wait_group.sync.aligned "
    product = data.expected() - data.d
    for left, schedule in ((3, "lazy"), (2, "lazy"), (1, "lazy"), (0, "lazy"), (0, "random"), (0, "eager")):
        got = data.run(schedule, body=f"{body}{left};")
        np.testing.assert_array_equal(got, data.d + (3 - left) * product, err_msg=f"{schedule} {left}")


def test_registers_of_a_are_read_when_the_operation_completes():
    case = Case(n=16, a_registers=True)
    data = Data.make(case)
    clear = "".join(f"mov.b32 %a{i}, 0;" for i in range(4))
    body = "wgmma.fence.sync.aligned;" + case.instructions() + "wgmma.commit_group.sync.aligned;"
    body = f"{body} {clear} wgmma.wait_group.sync.aligned 0;"
    np.testing.assert_array_equal(data.run("lazy", body=body), data.d)
    np.testing.assert_array_equal(data.run("eager", body=body), data.expected())


def test_without_a_proxy_fence_stale_bytes_are_read_under_lazy():
    data = Data.make(Case(n=16))
    np.testing.assert_array_equal(data.run("eager", fence=False), data.expected())
    assert not np.array_equal(data.run("lazy", fence=False), data.expected())
    np.testing.assert_array_equal(data.run("lazy"), data.expected())


def test_accumulators_that_are_not_adjacent():
    """Two instructions name the same registers in different orders, so that one list cannot be a slice."""
    case = Case(n=8)
    data = Data.make(case)
    straight = case.instructions()
    crossed = straight.replace("{%d0,%d1,%d2,%d3}", "{%d2,%d3,%d0,%d1}")
    wait = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    body = "".join(f"wgmma.fence.sync.aligned; {each} {wait}" for each in (straight, crossed))
    product = registers_of((data.expected() - data.d).astype(np.float32), "f32").view(np.float32)
    wanted = registers_of(data.d, "f32").view(np.float32) + product + product[[2, 3, 0, 1]]
    for schedule in SCHEDULES:
        got = data.run(schedule, body=body)
        np.testing.assert_array_equal(registers_of(got, "f32").view(np.float32), wanted)


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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("m64n16k16.f16.bf16.bf16", "goes with D of .f32"),
        ("m64n16k16.f32.f16.bf16", "goes with B of .f16"),
        ("m64n16k8.f32.bf16.bf16", "k of .bf16 is 16"),
        ("m64n16k16.s32.bf16.bf16", "goes with D of .f32"),
    ],
)
def test_illegal_shapes(name, said):
    case = Case(n=16)
    text = case.instructions().replace("m64n16k16.f32.bf16.bf16", name)
    error = fault(case, body=text)
    assert error.code == "BAD_SHAPE"
    assert said in str(error)


def test_illegal_n_of_integers():
    error = fault(Case(n=40, a_type="s8", d_type="s32"))
    assert error.code == "BAD_SHAPE"
    assert "not 40" in str(error)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",1,1,0,0;", ",2,1,0,0;", "scale_a is 2"),
        (",1,1,0,0;", ",1,1,0,2;", "trans_b is 2"),
        ("%d6,%d7}", "%d6}", "d has 7 registers and must have 8"),
    ],
)
def test_illegal_operands(old, new, said):
    case = Case(n=16)
    error = fault(case, body=case.instructions().replace(old, new))
    assert error.code == "BAD_OPERANDS"
    assert said in str(error)


def test_an_illegal_descriptor_is_a_fault_of_the_instruction():
    case = Case(n=16)
    bad = case.instructions().replace("wgmma.mma", "or.b64 %db, %db, 0x10000000000000; wgmma.mma")
    error = fault(case, body=bad)
    assert error.code == "BAD_DESCRIPTOR"
    assert "wgmma.mma_async" in str(error)


def test_an_operand_outside_shared_memory():
    case = Case(n=16)
    bad = case.instructions().replace("wgmma.mma", "add.u64 %db, %db, 0x3000; wgmma.mma")
    error = fault(case, body=bad)
    assert error.code == "OUT_OF_BOUNDS"
    assert "Operand B" in str(error)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_some_lanes_do_not_take_part(schedule):
    case = Case(n=16)
    body = f"setp.lt.u32 %q, %t, 100; @!%q bra SKIP; {case.instructions()} SKIP:"
    assert fault(case, schedule, body=body).code == "BAD_PARTICIPATION"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_predicate_that_differs_within_a_warp(schedule):
    case = Case(n=16)
    body = "and.b32 %y, %t, 1; setp.eq.u32 %q, %y, 0;" + case.instructions().replace("wgmma.mma", "@%q wgmma.mma")
    assert fault(case, schedule, body=body).code == "BAD_PARTICIPATION"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_half_a_warpgroup(schedule):
    assert fault(Case(n=16), schedule, block=64).code == "BAD_PARTICIPATION"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_with_different_descriptors(schedule):
    case = Case(n=16)
    other = "and.b32 %y, %t, 64; shr.u32 %y, %y, 5; cvt.u64.u32 %w, %y; add.u64 %db, %db, %w; wgmma.mma"
    error = fault(case, schedule, body=case.instructions().replace("wgmma.mma", other))
    assert error.code == "BAD_PARTICIPATION"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_with_different_instructions(schedule):
    case = Case(n=16)
    one = case.instructions()
    body = f"setp.lt.u32 %q, %t, 64; @!%q bra SECOND; {one} bra.uni JOIN; SECOND: {one} JOIN:"
    assert fault(case, schedule, body=body).code == "BAD_PARTICIPATION"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warp_that_stays_away_leaves_the_others_waiting(schedule):
    case = Case(n=16)
    wait = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    body = f"setp.lt.u32 %q, %t, 96; @!%q bra SKIP; {case.instructions()} {wait} SKIP:"
    error = fault(case, schedule, body=body)
    assert error.code == "DEADLOCK"
    assert "warp 3 has issued 0" in str(error)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_that_come_one_by_one(schedule):
    """Each warp takes its own way to the instruction; the operation begins when the last has come."""
    case = Case(n=16, steps=2)
    data = Data.make(case)
    ways = "shr.u32 %y, %t, 5; LOOP: setp.eq.u32 %q, %y, 0; @%q bra THERE; sub.u32 %y, %y, 1; bra.uni LOOP; THERE:"
    wait = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    got = data.run(schedule, body=f"{ways} wgmma.fence.sync.aligned; {case.instructions()} {wait}")
    np.testing.assert_array_equal(got, data.expected())


def test_completion_events_name_what_was_read():
    seen = []

    class Observer:
        def on_event(self, event):
            seen.append(event)

    case = Case(n=16)
    data = Data.make(case)
    start = registers_of(data.d, "f32")
    args = [data.image, start, data.a_words, np.zeros_like(start)]
    launch(case.kernel(), grid=(1, 1, 1), block=(128, 1, 1), args=args, observers=(Observer(),))
    reads = [e for e in seen if e.kind == "complete" and e.proxy == "async" and e.space == "shared"]
    sizes = sorted(len(e.details["address"]) * 16 for e in reads)
    assert sizes == [16 * 32, 64 * 32]


def test_speed_of_a_64_128_64_product():
    """A generous bound on a run of four instructions along k: issue, both gathers, products and registers."""
    case = Case(n=128, steps=4)
    data = Data.make(case)
    commit = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    loops = 200

    def seconds(count):
        body = f"mov.u32 %i, 0; AGAIN: wgmma.fence.sync.aligned; {case.instructions()} {commit} add.u32 %i, %i, 1;"
        body += f"setp.lt.u32 %q, %i, {count}; @%q bra AGAIN;"
        begin = time.process_time()
        data.run(body=body)
        return time.process_time() - begin

    seconds(2)
    each = min((seconds(loops) - seconds(2)) / (loops - 2) for _ in range(3))
    assert each < 1e-3


@pytest.mark.parametrize("d_type", ["f16", "f32"])
def test_nan_is_the_one_that_hardware_writes(d_type):
    data = Data.make(Case(n=16, a_type="f16", d_type=d_type))
    data.d[7, 2], data.d[9, 3] = -np.nan, np.inf
    got = data.run()
    bits = got.view({"f16": np.uint16, "f32": np.uint32}[d_type])
    nan = {"f16": 0x7FFF, "f32": 0x7FFFFFFF}[d_type]
    assert bits[7, 2] == nan
    assert (bits == nan).sum() == 1
    assert np.isposinf(got[9, 3])
