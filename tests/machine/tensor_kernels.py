"""Kernels for the Blackwell tests: memory is filled, one thread issues, TMEM is read back.

The layouts of accumulators in TMEM are implemented here a second time, from the manual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tests.machine.tensor_operands import SPANS, Tile, k_major, mn_major, numbers, row_bytes

from warploom import launch
from warploom.hardware.instruction_descriptors import encode_instruction_descriptor
from warploom.hardware.matrix_descriptors import encode_shared_descriptor

LANES = 128
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
  .reg .b32 %t, %rank, %warp, %lanes, %taddr, %smem, %bar, %at, %c;
  .reg .b64 %image, %before, %after, %g;
  .shared .align 1024 .b8 memory[{size}];
  .shared .align 8 .b8 barrier[16];
  .shared .align 4 .b8 base[4];
  mov.u32 %t, %tid.x;
  mov.u32 %rank, %cluster_ctarank;
  shr.u32 %warp, %t, 5;
  shl.b32 %lanes, %warp, 21;
  mov.u32 %smem, memory;
  mov.u32 %bar, barrier;
  ld.param.u64 %image, [p_image];
  ld.param.u64 %before, [p_before];
  ld.param.u64 %after, [p_after];
  mad.wide.u32 %image, %rank, {size}, %image;
  mad.lo.u32 %at, %rank, 128, %t;
  mad.wide.u32 %before, %at, {row}, %before;
  mad.wide.u32 %after, %at, {row}, %after;
  shl.b32 %at, %t, 4;
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
  setp.ne.u32 %p7, %t, 0;
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
  setp.ne.u32 %p7, %t, 0;
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
  {late}
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


def committed(group: int, mask: int | None = None) -> str:
    """A commit that signals the issuer's barrier, or that of each CTA in a mask."""
    name = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster"
    if mask is None:
        return f"{name}.b64 [%bar];"
    return f"mov.b16 %h0, {mask};\n  {name}.multicast::cluster.b64 [%bar], %h0;"


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
    """The rank of the CTA whose thread 0 issues."""
    fence: str = FENCE
    commit: str = ""
    wait: str = WAIT
    late: str = ""
    """Instructions after TMEM has been read back."""
    size: int = 0
    lines: list[str] = field(default_factory=list)
    parts: list[tuple[int, list[np.ndarray]]] = field(default_factory=list)

    def place(self, *images: np.ndarray) -> int:
        """Put bytes into shared memory, one image for each CTA, at a multiple of 1024; return the offset."""
        at = self.size
        self.parts.append((at, list(images)))
        self.size = at + -(-max(len(image) for image in images) // 1024) * 1024
        return at

    def add(self, text: str) -> None:
        self.lines.append(text)

    def descriptor(self, register: str, offset: int, leading: int, stride: int, swizzle: str) -> None:
        """Load a register with the descriptor of an operand at an offset of shared memory."""
        constant = encode_shared_descriptor("sm_100", 0, leading, stride, swizzle)
        self.add(f"add.u32 %r30, %smem, {offset};")
        self.add("shr.u32 %r30, %r30, 4;")
        self.add(f"cvt.u64.u32 {register}, %r30;")
        self.add(f"or.b64 {register}, {register}, {constant:#x};")

    def source(self) -> str:
        both = self.group == 2
        commit = self.commit or committed(self.group, 3 if both else None)
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
            late=self.late,
        )

    def run(
        self, before: np.ndarray | None = None, schedule: object = "eager", seed: int = 0, **options: object
    ) -> np.ndarray:
        """Run the kernel; return TMEM [CTA, lane, column] as words."""
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


def located(m: int, n: int, group: int, *, ws: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(CTA, lane, column) of every D[row, column]: the manual's layouts A to G without C."""
    row, at = np.meshgrid(np.arange(m), np.arange(n), indexing="ij")
    zero = np.zeros_like(row)
    match group, m, ws:
        case 2, 256, _:
            return row // 128, row % 128, at
        case 2, 128, _:
            return row // 64, row % 64 + 64 * (at >= n // 2), at % (n // 2)
        case 1, 128, _:
            return zero, row, at
        case 1, 64, False:
            return zero, row % 16 + 32 * (row // 16), at
        case 1, _, True:
            blocks = 128 // m
            return zero, row + m * (at // (n // blocks)), at % (n // blocks)
    raise AssertionError((group, m, ws))


K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
MX4 = ("mxf4", "mxf4nvf4")
A_BITS = {"f16": 16, "tf32": 32, "mxf4": 4, "mxf4nvf4": 4}
"""Bits of an element of A in TMEM; other types take a byte."""
D_DTYPES = {"f32": np.float32, "f16": np.uint32, "s32": np.int32}


@dataclass
class Product:
    """D = A·B of small integers: operands placed in shared memory, MMAs along k, and the expected result."""

    kind: str = "f16"
    a_type: str = "bf16"
    b_type: str = "bf16"
    m: int = 128
    n: int = 32
    group: int = 1
    d_type: str = "f32"
    a_swizzle: str = "128B"
    b_swizzle: str = "128B"
    a_major: str = "k"
    b_major: str = "k"
    ws: bool = False
    column: int = 0
    lane: int = 0
    a_column: int | None = None
    """The TMEM column of A; None: A is in shared memory."""
    options: dict[str, object] = field(default_factory=dict)
    seed: int = 0
    fill: Callable[[np.random.Generator, tuple[int, ...], str], np.ndarray] = numbers

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.a, a_tiles, a_steps = self._operand(rng, self.m, self.a_type, self.a_swizzle, self.a_major)
        self.b, b_tiles, b_steps = self._operand(rng, self.n, self.b_type, self.b_swizzle, self.b_major)
        self.steps = min(a_steps, b_steps)
        self.a_tiles, self.b_tiles = a_tiles, b_tiles
        depth = self.steps * K[self.kind]
        self.a, self.b = self.a[:, :depth], self.b[:, :depth]

    def _operand(
        self, rng: np.random.Generator, rows: int, element: str, swizzle: str, major: str
    ) -> tuple[np.ndarray, list[Tile], int]:
        """The matrix, its tiles by CTA, and the number of MMAs along K."""
        k, packed = K[self.kind], self.kind in MX4
        size = 4 if element == "tf32" else 2 if element.endswith("f16") else 1
        step = k * size if not packed else k // 2
        steps = max(SPANS[swizzle] // step, 1) if major == "k" and swizzle != "none" else 2
        values = self.fill(rng, (rows, k * steps), element)
        parts = np.split(values, self.group)
        if major == "k":
            return values, [k_major(row_bytes(part, element, packed=packed), swizzle, step) for part in parts], steps
        return values, [mn_major(part, element, swizzle, k) for part in parts], steps

    @property
    def width(self) -> int:
        """TMEM columns of D."""
        return int(located(self.m, self.n, self.group, ws=self.ws)[2].max()) + 1

    def descriptor(self, **changes: object) -> int:
        types = {"d_type": self.d_type} if not self.kind.startswith("mx") else {}
        options = {
            "transpose_a": self.a_major == "mn",
            "transpose_b": self.b_major == "mn",
            **types,
            **self.options,
            **changes,
        }
        return encode_instruction_descriptor(self.kind, self.m, self.n, self.a_type, self.b_type, **options)

    def place(self, bench: Bench) -> tuple[int, int]:
        """Put the operands into shared memory."""
        at_a = bench.place(*(tile.image for tile in self.a_tiles)) if self.a_column is None else 0
        return at_a, bench.place(*(tile.image for tile in self.b_tiles))

    def issue(
        self,
        bench: Bench,
        at: tuple[int, int],
        step: int,
        *,
        accumulate: bool,
        tail: str = "",
        head: str = "",
        **changes: object,
    ) -> None:
        """One MMA; `head` is inserted after the kind, `tail` after the instruction descriptor, which `changes` modify."""
        a, b = self.a_tiles[0], self.b_tiles[0]
        left = "%d0"
        if self.a_column is None:
            bench.descriptor("%d0", at[0] + step * a.step, a.leading, a.stride, a.swizzle)
        else:
            words = K[self.kind] * A_BITS.get(self.kind, 8) // 32
            left = f"[%taddr+{(self.lane << 16) + self.a_column + step * words}]"
        bench.descriptor("%d1", at[1] + step * b.step, b.leading, b.stride, b.swizzle)
        bench.add(f"mov.b32 %r0, {self.descriptor(**changes):#x};")
        bench.add(f"setp.ne.u32 %p0, {int(accumulate)}, 0;")
        name = f"tcgen05.mma{'.ws' if self.ws else ''}.cta_group::{self.group}.kind::{self.kind}{head}"
        bench.add(f"{name} [%taddr+{(self.lane << 16) + self.column}], {left}, %d1, %r0{tail or ', %p0'};")

    def bench(self, *, accumulate: bool = False, tail: str = "", head: str = "") -> Bench:
        """All MMAs along k."""
        needed = max(self.column + self.width, 32, (self.a_column or 0) + 32)
        bench = Bench(group=self.group, columns=1 << (needed - 1).bit_length())
        at = self.place(bench)
        for step in range(self.steps):
            self.issue(bench, at, step, accumulate=accumulate or step > 0, tail=tail, head=head)
        return bench

    def result(self, tensor: np.ndarray) -> np.ndarray:
        """D[m, n] as the kernel left it."""
        cta, lane, column = located(self.m, self.n, self.group, ws=self.ws)
        words = tensor[cta, lane + self.lane, column + self.column]
        if self.d_type == "f16":
            assert not (words >> 16).any()
            return words.astype(np.uint16).view(np.float16).astype(np.float32)
        return words.view(D_DTYPES[self.d_type])

    @property
    def expected(self) -> np.ndarray:
        return self.a @ self.b.T

    def check(self, schedule: str = "eager", **keywords: object) -> None:
        np.testing.assert_array_equal(self.result(self.bench().run(schedule=schedule, **keywords)), self.expected)
