"""Small kernels in which every synchronisation is necessary: each has a mark, and the kernel is wrong without it.

A mark is a comment `//@name` at the end of a line; `without(text, name)` leaves those lines out. Numbers are small
integers, so that every product is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from warploom import TensorMap, launch
from warploom.hardware.instruction_descriptors import encode_instruction_descriptor
from warploom.hardware.matrix_descriptors import encode_shared_descriptor

Array = npt.NDArray[Any]

HEAD = """
.version 8.7
.target {target}
.address_size 64
.visible .entry k({params})
{{
 .reg .pred %p, %q, %first, %lead, %on; .reg .b16 %h<4>; .reg .b32 %r<32>, %me, %lane, %warp, %smem; .reg .f32 %f<16>;
 .reg .b64 %rd<16>, %out, %d0, %d1, %g; .reg .b32 %taddr, %v<16>;
 .shared .align 1024 .b8 data[{data}];
 .shared .align 16 .b8 bars[64];
 .shared .align 16 .b8 slot[16];
 {notes}
 mov.u32 %me, %tid.x; and.b32 %lane, %me, 31; shr.u32 %warp, %me, 5; mov.u32 %smem, data;
 setp.eq.u32 %first, %me, 0; setp.eq.u32 %lead, %lane, 0; setp.eq.u32 %on, %me, 0;
"""
PARAMS = {"map": ".param .align 64 .b8 {}[128]", "ptr": ".param .u64 {}"}
WAIT = "{label}: mbarrier.try_wait.parity.shared::cta.b64 %p, [bars+{at}], {parity}; @!%p bra {label};"
TENSOR_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


def kernel(params: str, body: str, *, target: str = "sm_90a", data: int = 16384, notes: str = "") -> str:
    """A kernel with the usual registers; `params` are words such as `map:a ptr:out`."""
    given = ", ".join(PARAMS[kind].format(name) for kind, name in (word.split(":") for word in params.split()))
    return HEAD.format(target=target, params=given, data=data, notes=notes) + body + "\n ret;\n}\n"


def wait(label: str, at: int, parity: int) -> str:
    """Spin until a phase of the barrier at an offset is complete."""
    return WAIT.format(label=label, at=at, parity=parity)


def without(text: str, mark: str) -> str:
    """The text without the lines that carry a mark."""
    lines = text.splitlines()
    left = [line for line in lines if f"//@{mark}" not in line]
    assert len(left) < len(lines), f"no line has the mark {mark}"
    return "\n".join(left) + "\n"


@dataclass
class Protocol:
    """A kernel, fresh arguments with the array that it fills, and the expected result."""

    text: str
    block: int
    make: Callable[[], tuple[list[Any], Array, Array]]
    cluster: int = 1
    marks: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        found = [part.split()[0] for part in self.text.split("//@")[1:]]
        self.marks = tuple(dict.fromkeys(found))

    def wrong(self, text: str | None = None, **options: Any) -> int:
        """Count the elements of a run that differ from the reference."""
        args, out, expected = self.make()
        options.setdefault("limit", 200_000)
        shape = {"grid": (self.cluster, 1, 1), "block": (self.block, 1, 1), "cluster": (self.cluster, 1, 1)}
        launch(text or self.text, args=args, **shape, **options)
        return int((out != expected).sum())


def integers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(ml_dtypes.bfloat16)


def product(a: Array, b: Array) -> Array:
    return (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float32)


def _load() -> Protocol:
    """Thread 0 loads a box of 8 rows of 16 words; a warp reads it and writes it out."""
    text = kernel(
        "map:a ptr:out",
        f"""
 @%first mbarrier.init.shared::cta.b64 [bars], 1;
 bar.sync 0;
 mov.b64 %rd0, a; ld.param.u64 %out, [out];
 @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 512;
 @%first {TENSOR_LOAD} [data], [%rd0, {{4, 3}}], [bars];
 {wait("FULL", 0, 0)} //@wait
 shl.b32 %r0, %lane, 4; add.u32 %r1, %smem, %r0; ld.shared.v4.b32 {{%v0, %v1, %v2, %v3}}, [%r1];
 cvt.u64.u32 %g, %r0; add.u64 %g, %out, %g; st.global.v4.b32 [%g], {{%v0, %v1, %v2, %v3}};
 {wait("LATE", 0, 0)}
""",
    )

    def make() -> tuple[list[Any], Array, Array]:
        source = np.random.default_rng(5).integers(0, 1 << 32, (17, 24), dtype=np.uint32)
        out = np.zeros((8, 16), np.uint32)
        return [TensorMap(source, box=(8, 16)), out], out, source[3:11, 4:20]

    return Protocol(text, 32, make)


# An operand without swizzle: 16 bytes of k of all rows, then the next 16 bytes; a core matrix is 8 rows of 16 bytes.
_A_ROWS, _B_ROWS, _DEPTH = 64, 8, 16
_A_BYTES, _B_BYTES = _A_ROWS * _DEPTH * 2, _B_ROWS * _DEPTH * 2
_WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3}}, %d0, %d1, {scale}, 1, 1, 0, 0;"
_FRAGMENT = """
 shr.u32 %r0, %lane, 2; shl.b32 %r1, %warp, 4; add.u32 %r0, %r0, %r1; and.b32 %r2, %lane, 3;
 shl.b32 %r0, %r0, 5; shl.b32 %r2, %r2, 3; add.u32 %r0, %r0, %r2;
"""
"""%r0: the byte of D[64, 8] in float32 where a thread's first pair of accumulators goes; the second is 256 bytes later."""


def _descriptor(register: str, offset: int, rows: int, family: str) -> str:
    constant = encode_shared_descriptor(family, 0, rows * 16, 128, "none")
    return (
        f"add.u32 %r30, %smem, {offset}; shr.u32 %r30, %r30, 4; cvt.u64.u32 {register}, %r30; "
        f"or.b64 {register}, {register}, {constant:#x};"
    )


def image(matrix: Array) -> Array:
    """The bytes of an operand in shared memory."""
    chunks = matrix.view(np.uint8).reshape(len(matrix), -1, 16)
    return np.ascontiguousarray(chunks.transpose(1, 0, 2)).reshape(-1)


def _wgmma_load(step: int) -> str:
    """Thread 0 loads the operands of one step along k."""
    return f"""
 @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {_A_BYTES + _B_BYTES};
 @%first {BULK_LOAD} [data], [%rd0+{step * _A_BYTES}], {_A_BYTES}, [bars];
 @%first {BULK_LOAD} [data+{_A_BYTES}], [%rd1+{step * _B_BYTES}], {_B_BYTES}, [bars];
"""


def _wgmma() -> Protocol:
    """One stage, two steps along k: load, multiply, wait, load over it, multiply, wait, write out."""
    body = f"""
 @%first mbarrier.init.shared::cta.b64 [bars], 1;
 bar.sync 0;
 ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; ld.param.u64 %out, [out];
 mov.f32 %f0, 0f3F800000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
 {_descriptor("%d0", 0, _A_ROWS, "sm_90")} {_descriptor("%d1", _A_BYTES, _B_ROWS, "sm_90")}
 {_wgmma_load(0)}
 {wait("FULL0", 0, 0)} //@wait0
 wgmma.fence.sync.aligned;
 {_WGMMA.format(scale=0)}
 wgmma.commit_group.sync.aligned;
 wgmma.wait_group.sync.aligned 0; //@reuse
 bar.sync 0;
 {_wgmma_load(1)}
 {wait("FULL1", 0, 1)} //@wait1
 wgmma.fence.sync.aligned;
 {_WGMMA.format(scale=1)}
 wgmma.commit_group.sync.aligned;
 wgmma.wait_group.sync.aligned 0; //@drain
 {_FRAGMENT} cvt.u64.u32 %g, %r0; add.u64 %g, %out, %g;
 st.global.v2.f32 [%g], {{%f0, %f1}}; st.global.v2.f32 [%g+256], {{%f2, %f3}};
 wgmma.wait_group.sync.aligned 0;
"""

    def make() -> tuple[list[Any], Array, Array]:
        a, b, out = integers(1, _A_ROWS, 2 * _DEPTH), integers(2, _B_ROWS, 2 * _DEPTH), np.zeros((64, 8), np.float32)
        return [image(a), image(b), out], out, product(a, b)

    return Protocol(kernel("ptr:a ptr:b ptr:out", body), 128, make)


RING_STEPS, _STAGES = 3, 2
RING_NOTES = """
 //!wl barrier full bars 8 2
 //!wl barrier empty bars+16 8 2
 //!wl role multiply 0-3
 //!wl role load 4
"""


def _ring() -> Protocol:
    """Warp 4 loads the operands of three steps into two stages; warps 0 to 3 multiply and release the stages."""
    stage_bytes = _A_BYTES + _B_BYTES
    produce, consume = [], []
    for step in range(RING_STEPS):
        stage, lap = step % _STAGES, step // _STAGES
        at, full, empty = stage * stage_bytes, 8 * stage, 16 + 8 * stage
        if lap:
            produce.append(wait(f"EMPTY{step}", empty, (lap - 1) & 1))
        produce += [
            f"@%lead mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars+{full}], {stage_bytes};",
            f"@%lead {BULK_LOAD} [data+{at}], [%rd0+{step * _A_BYTES}], {_A_BYTES}, [bars+{full}];",
            f"@%lead {BULK_LOAD} [data+{at + _A_BYTES}], [%rd1+{step * _B_BYTES}], {_B_BYTES}, [bars+{full}];",
        ]
        consume += [
            wait(f"FULL{step}", full, lap & 1) + " //@full",
            _descriptor("%d0", at, _A_ROWS, "sm_90") + _descriptor("%d1", at + _A_BYTES, _B_ROWS, "sm_90"),
            "wgmma.fence.sync.aligned;",
            _WGMMA.format(scale=int(step > 0)),
            "wgmma.commit_group.sync.aligned;",
            "wgmma.wait_group.sync.aligned 0; //@drain",
            f"@%lead mbarrier.arrive.shared::cta.b64 _, [bars+{empty}];",
        ]
    counts = " ".join(
        f"@%first mbarrier.init.shared::cta.b64 [bars+{8 * i}], {1 if i < _STAGES else 4};" for i in range(2 * _STAGES)
    )
    body = f"""
 {counts}
 bar.sync 0;
 ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; ld.param.u64 %out, [out];
 setp.eq.u32 %q, %warp, 4; @!%q bra MULTIPLY;
 {chr(10).join(produce)}
 bra END;
MULTIPLY:
 mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
 {chr(10).join(consume)}
 {_FRAGMENT} cvt.u64.u32 %g, %r0; add.u64 %g, %out, %g;
 st.global.v2.f32 [%g], {{%f0, %f1}}; st.global.v2.f32 [%g+256], {{%f2, %f3}};
 wgmma.wait_group.sync.aligned 0;
END:
 bar.sync 0;
"""

    def make() -> tuple[list[Any], Array, Array]:
        depth = RING_STEPS * _DEPTH
        a, b, out = integers(9, _A_ROWS, depth), integers(10, _B_ROWS, depth), np.zeros((64, 8), np.float32)
        return [image(a), image(b), out], out, product(a, b)

    return Protocol(kernel("ptr:a ptr:b ptr:out", body, notes=RING_NOTES), 160, make)


def _stored_operands() -> Protocol:
    """Every thread stores 16 bytes of A or B; a fence, a barrier, and wgmma reads them."""
    body = f"""
 ld.param.u64 %rd0, [a]; ld.param.u64 %out, [out];
 mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
 mul.wide.u32 %g, %me, 32; add.u64 %rd0, %rd0, %g; shl.b32 %r0, %me, 5; add.u32 %r1, %smem, %r0;
 setp.lt.u32 %q, %me, {(_A_BYTES + _B_BYTES) // 32};
 @%q ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%rd0]; @%q st.shared.v4.b32 [%r1], {{%v0, %v1, %v2, %v3}};
 @%q ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%rd0+16]; @%q st.shared.v4.b32 [%r1+16], {{%v0, %v1, %v2, %v3}};
 fence.proxy.async.shared::cta; //@fence
 bar.sync 0;
 {_descriptor("%d0", 0, _A_ROWS, "sm_90")} {_descriptor("%d1", _A_BYTES, _B_ROWS, "sm_90")}
 wgmma.fence.sync.aligned;
 {_WGMMA.format(scale=0)}
 wgmma.commit_group.sync.aligned;
 wgmma.wait_group.sync.aligned 0;
 {_FRAGMENT} cvt.u64.u32 %g, %r0; add.u64 %g, %out, %g;
 st.global.v2.f32 [%g], {{%f0, %f1}}; st.global.v2.f32 [%g+256], {{%f2, %f3}};
"""

    def make() -> tuple[list[Any], Array, Array]:
        a, b, out = integers(3, _A_ROWS, _DEPTH), integers(4, _B_ROWS, _DEPTH), np.zeros((64, 8), np.float32)
        return [np.concatenate([image(a), image(b)]), out], out, product(a, b)

    return Protocol(kernel("ptr:a ptr:out", body), 128, make)


def _store() -> Protocol:
    """Two tiles through one staging buffer: store, fence, barrier, TMA store, wait until it was read, repeat."""
    tile = """
 st.shared.u32 [%r1], %r2;
 fence.proxy.async.shared::cta; //@fence{number}
 bar.sync 0; //@meet{number}
 @%first cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd0, {{0, {row}}}], [data];
 @%first cp.async.bulk.commit_group;
"""
    body = f"""
 mov.b64 %rd0, out; shl.b32 %r0, %me, 2; add.u32 %r1, %smem, %r0; mad.lo.u32 %r2, %me, 17, 3;
 {tile.format(number=0, row=0)}
 @%first cp.async.bulk.wait_group.read 0; //@read
 bar.sync 0;
 not.b32 %r2, %r2;
 {tile.format(number=1, row=4)}
 @%first cp.async.bulk.wait_group 0;
"""

    def make() -> tuple[list[Any], Array, Array]:
        out = np.zeros((8, 16), np.uint32)
        values = (np.arange(64, dtype=np.uint32) * 17 + 3).reshape(4, 16)
        return [TensorMap(out, box=(4, 16))], out, np.concatenate([values, ~values])

    return Protocol(kernel("map:out", body), 64, make)


_N = 16
_TA_BYTES, _TB_BYTES = 128 * _DEPTH * 2, _N * _DEPTH * 2


def _tensor(use_copy: bool) -> Protocol:
    """Threads store A and B (and a tile that tcgen05.cp moves); one thread issues the MMA; all read TMEM."""
    idesc = encode_instruction_descriptor("f16", 128, _N, "bf16", "bf16")
    copied = f"""
 {_descriptor("%d1", _TA_BYTES + _TB_BYTES, 128, "sm_100")}
 @%on tcgen05.cp.cta_group::1.128x256b [%taddr+32], %d1;
"""
    words = [", ".join(f"%v{4 * i + j}" for j in range(4)) for i in range(4)]
    body = f"""
 ld.param.u64 %rd0, [a]; ld.param.u64 %out, [out];
 @%first mbarrier.init.shared::cta.b64 [bars], 1;
 shl.b32 %r0, %me, 4; add.u32 %r1, %smem, %r0; mul.wide.u32 %g, %me, 16; add.u64 %rd0, %rd0, %g; mov.u32 %r3, 0;
FILL:
 ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%rd0]; st.shared.v4.b32 [%r1], {{%v0, %v1, %v2, %v3}};
 add.u64 %rd0, %rd0, 2048; add.u32 %r1, %r1, 2048; add.u32 %r3, %r3, 1; setp.lt.u32 %q, %r3, 5; @%q bra FILL;
 fence.proxy.async.shared::cta; //@fence
 setp.ne.u32 %q, %warp, 0; @%q bra ALLOCATED;
 bar.warp.sync -1;
 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 64;
ALLOCATED:
 bar.sync 0; //@barrier
 ld.shared.b32 %taddr, [slot];
 {_descriptor("%d0", 0, 128, "sm_100")} {_descriptor("%d1", _TA_BYTES, _N, "sm_100")}
 mov.b32 %r4, {idesc}; setp.ne.u32 %q, %me, %me;
 @!%on bra ISSUED;
 tcgen05.mma.cta_group::1.kind::f16 [%taddr], %d0, %d1, %r4, %q;
 {copied if use_copy else ""}
 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bars];
ISSUED:
 {wait("DONE", 0, 0)} //@wait
 tcgen05.fence::after_thread_sync;
 shl.b32 %r5, %warp, 21; add.u32 %r5, %r5, %taddr;
 tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{", ".join(words)}}}, [%r5{"+32" if use_copy else ""}];
 tcgen05.wait::ld.sync.aligned;
 mul.wide.u32 %g, %me, 64; add.u64 %g, %out, %g;
 {" ".join(f"st.global.v4.b32 [%g+{16 * i}], {{{four}}};" for i, four in enumerate(words))}
 {wait("LATE", 0, 0)}
 tcgen05.fence::before_thread_sync;
 bar.sync 0;
 setp.ne.u32 %q, %warp, 0; @%q bra END;
 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %taddr, 64;
END:
"""

    def make() -> tuple[list[Any], Array, Array]:
        a, b = integers(6, 128, _DEPTH), integers(7, _N, _DEPTH)
        tile = np.random.default_rng(8).integers(0, 256, (128, 32), dtype=np.uint8)
        raw = np.concatenate([image(a), image(b), image(tile), np.zeros(2048, np.uint8)])
        out = np.zeros((128, 16), np.float32 if not use_copy else np.uint32)
        expected = product(a, b)
        if use_copy:
            expected = np.full((128, 16), 0xFFFFFFFF, np.uint32)
            expected[:, :8] = tile.view(np.uint32)
        return [raw, out], out, expected

    return Protocol(kernel("ptr:a ptr:out", body, target="sm_100a", data=12288), 128, make)


PROTOCOLS: dict[str, Callable[[], Protocol]] = {
    "load": _load,
    "wgmma": _wgmma,
    "ring": _ring,
    "stored operands": _stored_operands,
    "store": _store,
    "tensor": lambda: _tensor(use_copy=False),
    "tensor copy": lambda: _tensor(use_copy=True),
}
