"""Kernels for the Blackwell tests: shared memory and tensor memory are filled, one thread works, tensor memory is read back.

How operands lie in shared memory is written here a second time, element by element, from the manual's layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from warploom import launch
from warploom.facts.descriptors import encode_shared_descriptor

LANES = 128
SPANS = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B_32B_atom": 128}
DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "s8": np.int8,
    "u8": np.uint8,
}
VALUES = {"e2m1": [-4, -3, -2, -1, 0, 1, 2, 3, 6], "u8": [0, 1, 2, 3, 5], "e2m3": [-7, -2, -1, 0, 1, 3, 5]}
"""Integers that a type holds; the others hold those of -4 to 4."""

KERNEL = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 p_image, .param .u64 p_before, .param .u64 p_after)
.reqntid 128, 1, 1
{{
  .reg .b32 %r<32>;
  .reg .b32 %v<32>;
  .reg .b64 %d<16>;
  .reg .b16 %h<4>;
  .reg .pred %p<8>;
  .reg .b32 %tid, %rank, %warp, %lanes, %taddr, %smem, %bar, %at, %c;
  .reg .b64 %image, %before, %after, %g;
  .shared .align 1024 .b8 memory[{size}];
  .shared .align 8 .b8 barrier[16];
  .shared .align 4 .b8 base[4];
  mov.u32 %tid, %tid.x;
  mov.u32 %rank, %cluster_ctarank;
  shr.u32 %warp, %tid, 5;
  shl.b32 %lanes, %warp, 21;
  mov.u32 %smem, memory;
  mov.u32 %bar, barrier;
  ld.param.u64 %image, [p_image];
  ld.param.u64 %before, [p_before];
  ld.param.u64 %after, [p_after];
  mad.wide.u32 %image, %rank, {size}, %image;
  mad.lo.u32 %at, %rank, 128, %tid;
  mad.wide.u32 %before, %at, {row}, %before;
  mad.wide.u32 %after, %at, {row}, %after;
  shl.b32 %at, %tid, 4;
FILL:
  setp.ge.u32 %p7, %at, {size};
  @%p7 bra FILLED;
  cvt.u64.u32 %g, %at;
  add.u64 %g, %image, %g;
  ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%g];
  add.u32 %c, %smem, %at;
  st.shared.v4.b32 [%c], {{%v0, %v1, %v2, %v3}};
  add.u32 %at, %at, 2048;
  bra FILL;
FILLED:
  {fence}
  setp.ne.u32 %p7, %tid, 0;
  @%p7 bra READY;
  mbarrier.init.shared.b64 [%bar], 1;
  mbarrier.init.shared.b64 [%bar+8], 1;
  fence.mbarrier_init.release.cluster;
READY:
  bar.warp.sync -1;
  setp.ne.u32 %p7, %warp, 0;
  @%p7 bra ALLOCATED;
  tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [base], {columns};
  tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
ALLOCATED:
  {sync}
  ld.shared.b32 %taddr, [base];
  add.u32 %lanes, %lanes, %taddr;
  mov.u32 %c, 0;
BEFORE:
  mul.wide.u32 %g, %c, 4;
  add.u64 %g, %before, %g;
  {loads}
  add.u32 %at, %lanes, %c;
  tcgen05.st.sync.aligned.32x32b.x32.b32 [%at], {{{values}}};
  add.u32 %c, %c, 32;
  setp.lt.u32 %p7, %c, {columns};
  @%p7 bra BEFORE;
  tcgen05.wait::st.sync.aligned;
  tcgen05.fence::before_thread_sync;
  {sync}
  tcgen05.fence::after_thread_sync;
  setp.ne.u32 %p7, %tid, 0;
  setp.ne.or.u32 %p7, %rank, {issuer}, %p7;
  @%p7 bra DONE;
  {body}
  {commit}
DONE:
  {wait}
  tcgen05.fence::after_thread_sync;
  mov.u32 %c, 0;
AFTER:
  mul.wide.u32 %g, %c, 4;
  add.u64 %g, %after, %g;
  add.u32 %at, %lanes, %c;
  tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{values}}}, [%at];
  tcgen05.wait::ld.sync.aligned;
  {stores}
  add.u32 %c, %c, 32;
  setp.lt.u32 %p7, %c, {columns};
  @%p7 bra AFTER;
  tcgen05.fence::before_thread_sync;
  {sync}
  setp.ne.u32 %p7, %warp, 0;
  @%p7 bra END;
  tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %taddr, {columns};
END:
  ret;
}}
"""
WAIT = """
WAITING:
  mbarrier.try_wait.parity.shared.b64 %p7, [%bar], 0;
  @!%p7 bra WAITING;"""
FENCE = "fence.proxy.async.shared::cta;"
CLUSTER_SYNC = "barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;"


def quads(template: str) -> str:
    """Eight vector accesses of four registers, 16 bytes apart."""
    lists = [", ".join(f"%v{4 * i + j}" for j in range(4)) for i in range(8)]
    return "\n  ".join(template.format(list=f"{{{names}}}", at=16 * i) for i, names in enumerate(lists))


@dataclass
class Bench:
    """Shared memory under construction and the instructions that work on it."""

    group: int = 1
    columns: int = 128
    issuer: int = 0
    """The rank of the CTA whose thread 0 works."""
    fence: str = FENCE
    commit: str = ""
    wait: str = WAIT
    size: int = 0
    lines: list[str] = field(default_factory=list)
    parts: list[tuple[int, list[np.ndarray]]] = field(default_factory=list)

    def place(self, *images: np.ndarray) -> int:
        """Put bytes into shared memory, one image for each CTA, at a multiple of 1024; their offset."""
        at = self.size
        self.parts.append((at, list(images)))
        self.size = at + -(-max(len(image) for image in images) // 1024) * 1024
        return at

    def add(self, text: str) -> None:
        self.lines.append(text)

    def descriptor(self, register: str, offset: int, leading: int, stride: int, swizzle: str) -> None:
        """Load a register with the descriptor of what lies at an offset of shared memory."""
        constant = encode_shared_descriptor("sm_100", 0, leading, stride, swizzle)
        self.add(f"add.u32 %r30, %smem, {offset};")
        self.add("shr.u32 %r30, %r30, 4;")
        self.add(f"cvt.u64.u32 {register}, %r30;")
        self.add(f"or.b64 {register}, {register}, {constant:#x};")

    def source(self) -> str:
        both = self.group == 2
        commit = self.commit or (
            "mov.b16 %h0, 3;\n  tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
            " [%bar], %h0;"
            if both
            else "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];"
        )
        return KERNEL.format(
            size=max(self.size, 1024),
            row=4 * self.columns,
            fence=self.fence,
            group=self.group,
            columns=self.columns,
            sync=CLUSTER_SYNC if both else "bar.sync 0;",
            loads=quads("ld.global.v4.b32 {list}, [%g+{at}];"),
            stores=quads("st.global.v4.b32 [%g+{at}], {list};"),
            values=", ".join(f"%v{i}" for i in range(32)),
            issuer=self.issuer,
            body="\n  ".join(self.lines),
            commit=commit,
            wait=self.wait,
        )

    def run(self, before: np.ndarray | None = None, schedule: str = "eager", seed: int = 0, **options: object) -> np.ndarray:
        """Tensor memory [CTA, lane, column] after the work, as words."""
        image = np.zeros((self.group, max(self.size, 1024)), np.uint8)
        for at, images in self.parts:
            for cta, part in enumerate(images):
                image[cta, at : at + len(part)] = part
        start = np.zeros((self.group, LANES, self.columns), np.uint32)
        if before is not None:
            start[:] = before
        after = np.zeros_like(start)
        launch(
            self.source(),
            grid=(self.group, 1, 1),
            block=(LANES, 1, 1),
            cluster=(self.group, 1, 1),
            args=[image, start, after],
            schedule=schedule,
            seed=seed,
            **options,
        )
        return after


def numbers(rng: np.random.Generator, shape: tuple[int, ...], element: str) -> np.ndarray:
    """Small integers that an element type holds exactly."""
    return rng.choice(VALUES.get(element, list(range(-4, 5))), shape).astype(np.float32)


def pack_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes of so many bits as bytes along the last axis, low bits first."""
    spread = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(*codes.shape[:-1], -1)
    return np.packbits(spread, axis=-1, bitorder="little")


def row_bytes(values: np.ndarray, element: str, *, packed: bool = False) -> np.ndarray:
    """The bytes of each row of a matrix [mn, k]: sixteen sub-byte elements and padding, or two to a byte."""
    raw = values.astype(DTYPES[element]).view(np.uint8).reshape(len(values), -1)
    bits = {"e2m1": 4, "e2m3": 6, "e3m2": 6}.get(element)
    if bits is None:
        return raw
    if packed:
        return pack_bits(raw, bits)
    dense = pack_bits(raw.reshape(len(raw), -1, 16), bits)
    return np.pad(dense, ((0, 0), (0, 0), (0, 16 - dense.shape[-1]))).reshape(len(raw), -1)


def swizzled(address: int, swizzle: str) -> int:
    match swizzle:
        case "none":
            return address
        case "128B_32B_atom":
            return address ^ (address >> 7 & 3) << 5
    return address ^ (address >> 7 & SPANS[swizzle] // 16 - 1) << 4


@dataclass(frozen=True)
class Tile:
    """An operand in shared memory: its bytes, and what its descriptor says; `step` is the way of one MMA along k."""

    image: np.ndarray
    leading: int
    stride: int
    swizzle: str
    step: int


def k_major(rows: np.ndarray, swizzle: str, step: int) -> Tile:
    """Rows of bytes along k, as many as the swizzle spans (any number without one)."""
    count, length = rows.shape
    span = SPANS[swizzle]
    stride = 8 * span if swizzle != "none" else 8 * length
    leading = 16 if swizzle != "none" else 128
    image = np.zeros(count * length, np.uint8)
    for row in range(count):
        for at in range(0, length, 16):
            if swizzle == "none":
                where = row % 8 * 16 + row // 8 * stride + at // 16 * leading
            else:
                assert length == span
                where = row % 8 * span + row // 8 * stride + at
            where = swizzled(where, swizzle)
            image[where : where + 16] = rows[row, at : at + 16]
    advance = step // 16 * leading if swizzle == "none" else step
    return Tile(image, leading, stride, swizzle, advance)


def mn_major(values: np.ndarray, element: str, swizzle: str, k: int) -> Tile:
    """A matrix [mn, all k] whose elements of one k follow each other; `k` is the depth of one MMA."""
    lines = values.T.astype(DTYPES[element])
    size = lines.itemsize
    raw = np.ascontiguousarray(lines).view(np.uint8).reshape(len(lines), -1)
    depth, length = raw.shape
    span, group = SPANS[swizzle], 4 if swizzle == "128B_32B_atom" else 8
    chunk = span * group
    if swizzle == "none":
        leading, stride = chunk, chunk * (depth // group)
    else:
        stride, leading = chunk, chunk * (depth // group)
    image = np.zeros(raw.size, np.uint8)
    for line in range(depth):
        for at in range(0, length, 16):
            across = at // span * (stride if swizzle == "none" else leading)
            down = line // group * (leading if swizzle == "none" else stride)
            where = swizzled(at % span + across + line % group * span + down, swizzle)
            image[where : where + 16] = raw[line, at : at + 16]
    assert size * values.shape[0] % 16 == 0
    return Tile(image, leading, stride, swizzle, k // group * chunk)


def accumulator(tensor: np.ndarray, m: int, n: int, group: int, *, column: int = 0, lane: int = 0, ws: bool = False) -> np.ndarray:
    """D[m, n] as words, found element by element where the manual's layouts put it."""
    d = np.empty((m, n), np.uint32)
    for row in range(m):
        for at in range(n):
            cta, where, along = located(row, at, m, n, group, ws)
            d[row, at] = tensor[cta, where + lane, column + along]
    return d


def located(row: int, at: int, m: int, n: int, group: int, ws: bool = False) -> tuple[int, int, int]:
    """(CTA, lane, column) of D[row, at]: layouts A to G without C."""
    if group == 2:
        if m == 256:
            return row // 128, row % 128, at
        return row // 64, row % 64 + 64 * (at >= n // 2), at % (n // 2)
    if m == 128:
        return 0, row, at
    if not ws:
        return 0, row % 16 + 32 * (row // 16), at
    blocks = 128 // m
    return 0, row + m * (at // (n // blocks)), at % (n // blocks)
