"""Out-of-bounds and misaligned accesses and writes to read-only memory, in every space."""

from __future__ import annotations

import numpy as np
from tests.negatives.negative import ADDRESS, INIT, Negative

from warploom import TensorMap
from warploom.hardware.matrix_descriptors import encode_shared_descriptor

_TENSOR_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
_BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
_BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group"


def words(count=24):
    return lambda: [np.zeros(count, np.uint32)]


def boxes():
    return [TensorMap(np.zeros((8, 32), np.uint32), box=(8, 32))]


def read_only():
    array = np.zeros(64, np.uint32)
    array.flags.writeable = False
    return [array]


def read_only_map():
    array = np.zeros((8, 32), np.uint32)
    array.flags.writeable = False
    return [TensorMap(array, box=(4, 32))]


CASES = {
    "global_past_the_end": Negative("OUT_OF_BOUNDS", f"{ADDRESS} ld.global.u32 %r0, [%rd0];", "ptr:a", words()),
    "global_guarded_lanes": Negative(
        "OUT_OF_BOUNDS", f"{ADDRESS} setp.gt.u32 %q, %me, 20; @%q st.global.u32 [%rd0], %me;", "ptr:a", words()
    ),
    "global_uniform_address": Negative(
        "OUT_OF_BOUNDS", "ld.param.u64 %rd0, [a]; ld.global.u64 %rd1, [%rd0+96];", "ptr:a", words()
    ),
    "global_null_pointer": Negative("OUT_OF_BOUNDS", "mov.u64 %rd0, 0; st.global.u32 [%rd0], 1;"),
    "global_atomic": Negative("OUT_OF_BOUNDS", f"{ADDRESS} red.global.add.u32 [%rd0], 1;", "ptr:a", words()),
    "global_bulk_copy": Negative(
        "OUT_OF_BOUNDS",
        f"{INIT.format(1)} ld.param.u64 %rd0, [a]; @%first {_BULK_LOAD} [data], [%rd0], 128, [bars];",
        "ptr:a",
        words(),
    ),
    "global_small_copy": Negative(
        "OUT_OF_BOUNDS",
        f"{ADDRESS} shl.b32 %r0, %me, 2; add.u32 %r0, %r0, %smem; cp.async.ca.shared.global [%r0], [%rd0], 4;"
        " cp.async.wait_all;",
        "ptr:a",
        words(),
        options={"schedule": "lazy"},
    ),
    "shared_past_the_end": Negative(
        "OUT_OF_BOUNDS", "mad.lo.u32 %r0, %me, 48, %smem; st.shared.u32 [%r0], %me;", block=32
    ),
    "dynamic_shared_forgotten": Negative(
        "NO_DYNAMIC_SHARED",
        """.version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry k()
{
  .reg .b32 %r<3>;
  mov.u32 %r0, %tid.x;
  mad.lo.u32 %r1, %r0, 4, global_smem;
  st.shared.u32 [%r1], %r0;
  ret;
}
""",
    ),
    "shared_address_zero": Negative("OUT_OF_BOUNDS", "mov.u32 %r0, 0; ld.shared.u32 %r1, [%r0];"),
    "shared_address_outside_the_cluster": Negative(
        "OUT_OF_BOUNDS", "mapa.shared::cluster.u32 %r0, %smem, 3; st.shared::cluster.u32 [%r0], 1;", grid=2, cluster=2
    ),
    "shared_matrix": Negative(
        "OUT_OF_BOUNDS",
        "mad.lo.u32 %r0, %lane, 16, %smem; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%v0, %v1, %v2, %v3}, [%r0+1024];",
    ),
    "shared_box": Negative(
        "OUT_OF_BOUNDS",
        f"{INIT.format(1)} mov.b64 %rd0, a; @%first {_TENSOR_LOAD} [data+512], [%rd0, {{0, 0}}], [bars];",
        "map:a",
        boxes,
    ),
    "shared_operand": Negative(
        "OUT_OF_BOUNDS",
        f"mov.b64 %d0, {encode_shared_descriptor('sm_90', 2048, 1024, 128, 'none'):#x};"
        " wgmma.fence.sync.aligned;"
        " wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d0, 0, 1, 1, 0, 0;",
        block=128,
    ),
    "local_past_the_end": Negative(
        "OUT_OF_BOUNDS",
        ".local .align 4 .b8 stack[64]; mov.u32 %r0, stack; shl.b32 %r1, %me, 2; add.u32 %r0, %r0, %r1;"
        " st.local.u32 [%r0], %me;",
    ),
    "parameter_past_the_end": Negative("OUT_OF_BOUNDS", "ld.param.u64 %rd0, [a+8];", "ptr:a", words()),
    "branch_index_out_of_range": Negative(
        "BAD_BRANCH", "T: .branchtargets A, B; mov.u32 %r0, 7; brx.idx %r0, T; A: mov.u32 %r1, 1; B:"
    ),
    "call_to_an_invalid_address": Negative(
        "BAD_CALL",
        "mov.b64 %rd0, 4096; { .param .b32 given; st.param.b32 [given], %me; call %rd0, (given), SIGNATURE; }"
        " SIGNATURE: .callprototype _ (.param .b32 _);",
    ),
    "tensor_map_at_an_invalid_address": Negative(
        "OUT_OF_BOUNDS",
        f"{INIT.format(1)} mov.b64 %rd0, 4096; @%first {_TENSOR_LOAD} [data], [%rd0, {{0, 0}}], [bars];",
    ),
    "misaligned_global": Negative("MISALIGNED", f"{ADDRESS} ld.global.u32 %r0, [%rd0+2];", "ptr:a", words(64)),
    "misaligned_global_uniform_address": Negative(
        "MISALIGNED", "ld.param.u64 %rd0, [a]; ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%rd0+8];", "ptr:a", words(64)
    ),
    "misaligned_shared": Negative("MISALIGNED", "mad.lo.u32 %r0, %me, 6, %smem; ld.shared.u32 %r1, [%r0];"),
    "misaligned_local": Negative(
        "MISALIGNED",
        ".local .align 8 .b8 stack[64]; mov.u32 %r0, stack; add.u32 %r0, %r0, %me; ld.local.u64 %rd0, [%r0];",
    ),
    "misaligned_parameter": Negative("MISALIGNED", "ld.param.u32 %r0, [a+2];", "ptr:a", words()),
    "misaligned_atomic": Negative("MISALIGNED", "atom.shared.add.u64 %rd0, [data+4], 1;"),
    "misaligned_matrix": Negative(
        "MISALIGNED",
        "mad.lo.u32 %r0, %lane, 8, %smem; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%v0}, [%r0];",
    ),
    "misaligned_barrier": Negative("MISALIGNED", "@%first mbarrier.init.shared::cta.b64 [bars+4], 1;"),
    "misaligned_box": Negative(
        "MISALIGNED",
        f"{INIT.format(1)} mov.b64 %rd0, a; @%first {_TENSOR_LOAD} [data+64], [%rd0, {{0, 0}}], [bars];",
        "map:a",
        lambda: [TensorMap(np.zeros((4, 32), np.uint32), box=(4, 32))],
    ),
    "misaligned_bulk_size": Negative(
        "MISALIGNED",
        f"{INIT.format(1)} ld.param.u64 %rd0, [a]; @%first {_BULK_LOAD} [data], [%rd0], 24, [bars];",
        "ptr:a",
        words(),
    ),
    "misaligned_bulk_source": Negative(
        "MISALIGNED",
        f"{INIT.format(1)} ld.param.u64 %rd0, [a]; @%first {_BULK_LOAD} [data], [%rd0+8], 16, [bars];",
        "ptr:a",
        words(),
    ),
    "misaligned_tensor_map": Negative(
        "MISALIGNED",
        f"{INIT.format(1)} mov.b64 %rd0, a; @%first {_TENSOR_LOAD} [data], [%rd0+16, {{0, 0}}], [bars];",
        "map:a",
        boxes,
    ),
    "read_only_store": Negative("READ_ONLY", f"{ADDRESS} st.global.u32 [%rd0], %me;", "ptr:a", read_only),
    "read_only_atomic": Negative("READ_ONLY", f"{ADDRESS} red.global.add.u32 [%rd0], 1;", "ptr:a", read_only),
    "read_only_bulk_store": Negative(
        "READ_ONLY", f"ld.param.u64 %rd0, [a]; @%first {_BULK_STORE} [%rd0], [data], 16;", "ptr:a", read_only
    ),
    "read_only_tensor_store": Negative(
        "READ_ONLY",
        "mov.b64 %rd0, a; @%first cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd0, {0, 0}], [data];",
        "map:a",
        read_only_map,
    ),
}
