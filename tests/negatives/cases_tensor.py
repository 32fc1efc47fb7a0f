"""Descriptors, shapes, coordinates, TMEM, the register pool, and asynchronous work that outlives its CTA."""

from __future__ import annotations

import numpy as np
from tests.negatives.negative import INIT, Negative

from warploom import TensorMap
from warploom.hardware.instruction_descriptors import encode_instruction_descriptor
from warploom.hardware.matrix_descriptors import encode_shared_descriptor

_LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes"
_WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d0, 0, 1, 1, 0, 0;"
_ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], {};"
_DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %taddr, {};"
_TENSOR_LD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%v0}}, [%taddr{}];"
_IDESC = encode_instruction_descriptor("f16", 128, 16, "bf16", "bf16")
_GOOD = encode_shared_descriptor("sm_100", 1024, 2048, 128, "none")


def boxes(*shape, box=None):
    return lambda: [TensorMap(np.zeros(shape, np.uint32), box=box or shape)]


def blackwell(code, text, **more):
    return Negative(code, text, target="sm_100a", data=8192, **more)


def multiply(idesc=_IDESC, a=_GOOD, address="%taddr"):
    return f"""{_ALLOC.format(64)} bar.sync 0; ld.shared.b32 %taddr, [slot]; setp.ne.u32 %q, %me, %me;
 mov.b64 %d0, {a:#x}; mov.b64 %d1, {_GOOD:#x}; mov.b32 %r0, {idesc:#x};
 @%first tcgen05.mma.cta_group::1.kind::f16 [{address}], %d0, %d1, %r0, %q;"""


CASES = {
    "wgmma_descriptor": Negative("BAD_DESCRIPTOR", f"mov.b64 %d0, 0x2004000000000040; {_WGMMA}", block=128),
    "tcgen05_descriptor": blackwell("BAD_DESCRIPTOR", multiply(a=_GOOD ^ 3 << 46)),
    "instruction_descriptor": blackwell("BAD_DESCRIPTOR", multiply(idesc=_IDESC | 7 << 7)),
    "no_tensor_map": Negative(
        "BAD_DESCRIPTOR",
        f"{INIT.format(1)} ld.param.u64 %rd0, [a]; @%first {_LOAD.format(2)} [data], [%rd0, {{0, 0}}], [bars];",
        "ptr:a",
        lambda: [np.zeros(64, np.uint32)],
    ),
    "wgmma_shape": Negative("BAD_SHAPE", _WGMMA.replace("k16", "k32"), block=128),
    "small_copy_of_12_bytes": Negative(
        "BAD_SHAPE",
        "ld.param.u64 %rd0, [a]; cp.async.ca.shared.global [data], [%rd0], 12;",
        "ptr:a",
        lambda: [np.zeros(64, np.uint32)],
    ),
    "tensor_copy_shape": blackwell("BAD_SHAPE", "tcgen05.cp.cta_group::1.32x128b [%taddr], %d0;"),
    "coordinates_of_wrong_rank": Negative(
        "BAD_COORDINATES",
        f"{INIT.format(1)} mov.b64 %rd0, a; @%first {_LOAD.format(3)} [data], [%rd0, {{0, 0, 0}}], [bars];",
        "map:a",
        boxes(8, 16),
    ),
    "negative_coordinates_of_a_store": Negative(
        "BAD_COORDINATES",
        """mov.b64 %rd0, a; @%first cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd0, {-4, 0}], [data];
 @%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group 0;""",
        "map:a",
        boxes(8, 16),
    ),
    "columns_not_allocated": blackwell("TENSOR_MEMORY", f"mov.b32 %taddr, 0; {_TENSOR_LD.format('')}"),
    "columns_past_the_allocation": blackwell("TENSOR_MEMORY", multiply(address="%taddr+56")),
    "tmem_lanes_of_another_warp": blackwell(
        "TENSOR_MEMORY",
        f"""setp.ne.u32 %q, %warp, 0; @%q bra A; {_ALLOC.format(32)} A: bar.sync 0; ld.shared.b32 %taddr, [slot];
 setp.ne.u32 %q, %warp, 1; @%q bra B; {_TENSOR_LD.format("")} B: bar.sync 0;""",
        block=64,
    ),
    "tmem_lane_not_aligned": blackwell(
        "TENSOR_MEMORY", f"{_ALLOC.format(32)} ld.shared.b32 %taddr, [slot]; {_TENSOR_LD.format('+524288')}"
    ),
    "tmem_address_differs_by_lane": blackwell(
        "TENSOR_MEMORY",
        f"{_ALLOC.format(32)} ld.shared.b32 %taddr, [slot]; add.u32 %taddr, %taddr, %lane; {_TENSOR_LD.format('')}",
    ),
    "tmem_never_freed": blackwell("TENSOR_MEMORY", _ALLOC.format(128)),
    "tmem_freed_twice": blackwell(
        "TENSOR_MEMORY",
        f"{_ALLOC.format(32)} ld.shared.b32 %taddr, [slot]; {_DEALLOC.format(32)} {_DEALLOC.format(32)}",
    ),
    "tmem_column_count_not_a_power_of_two": blackwell("TENSOR_MEMORY", _ALLOC.format(48)),
    "tmem_allocations_grow": blackwell("TENSOR_MEMORY", f"{_ALLOC.format(32)} {_ALLOC.format(64)}"),
    "tmem_allocation_after_relinquish": blackwell(
        "TENSOR_MEMORY", f"tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; {_ALLOC.format(32)}"
    ),
    "accumulator_at_an_invalid_lane": blackwell("TENSOR_MEMORY", multiply(address="%taddr+1048576")),
    "tmem_freed_before_the_mma_completes": blackwell(
        "TENSOR_MEMORY",
        f"""@%first mbarrier.init.shared::cta.b64 [bars], 1; {multiply()} {_DEALLOC.format(64)} bar.sync 0;
 W: mbarrier.try_wait.parity.shared::cta.b64 %p, [bars], 0; @!%p bra W;""",
        options={"schedule": "lazy"},
    ),
    "setmaxnreg_invalid_count": Negative("REGISTER_POOL", "setmaxnreg.inc.sync.aligned.u32 100;", block=128),
    "setmaxnreg_dec_increases": Negative("REGISTER_POOL", "setmaxnreg.dec.sync.aligned.u32 200;", block=384),
    "setmaxnreg_differs_in_a_warpgroup": Negative(
        "REGISTER_POOL",
        """setp.eq.u32 %q, %warp, 1; @%q bra A; setmaxnreg.dec.sync.aligned.u32 40; bra B;
 A: setmaxnreg.dec.sync.aligned.u32 48; B:""",
        block=384,
    ),
    "exit_before_a_copy_completes": Negative(
        "CTA_EXITED",
        f"""{INIT.format(1)} mov.b64 %rd0, a; @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 512;
 @%first {_LOAD.format(2)} [data], [%rd0, {{0, 0}}], [bars];""",
        "map:a",
        boxes(8, 16),
        options={"schedule": "lazy"},
    ),
    "store_to_an_exited_cta": Negative(
        "CTA_EXITED",
        """mov.u32 %r0, %cluster_ctarank; setp.eq.u32 %q, %r0, 1; @%q bra A; mov.u32 %r2, 0;
 S: add.u32 %r2, %r2, 1; setp.lt.u32 %p, %r2, 2000; @%p bra S;
 mov.u32 %r1, bars; mapa.shared::cluster.u32 %r1, %r1, 1; mbarrier.arrive.shared::cluster.b64 _, [%r1]; A:""",
        grid=2,
        cluster=2,
    ),
    "multicast_outside_the_cluster": Negative(
        "ASYNC_MISUSE",
        f"""{INIT.format(1)} mov.b64 %rd0, a; mov.b16 %h0, 6;
 @%first {_LOAD.format(2)}.multicast::cluster [data], [%rd0, {{0, 0}}], [bars], %h0;""",
        "map:a",
        boxes(8, 16),
        grid=2,
        cluster=2,
    ),
    "mixed_cta_groups": blackwell(
        "ASYNC_MISUSE",
        f"{_ALLOC.format(32)} tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;",
        grid=2,
        cluster=2,
    ),
    "shift_down": blackwell("NOT_MODELLED", "tcgen05.shift.cta_group::1.down [%taddr];"),
    "image_to_column_of_a_tile": Negative(
        "BAD_COORDINATES",
        f"""{INIT.format(1)} mov.b64 %rd0, a; mov.b16 %h0, 0;
 @%first {_LOAD.format(3)}.im2col [data], [%rd0, {{0, 0, 0}}], [bars], {{%h0}};""",
        "map:a",
        boxes(2, 4, 16),
    ),
}
