"""Barriers that are missing, miscounted or misused, and missing lanes."""

from __future__ import annotations

import numpy as np
from tests.negatives.negative import INIT, Negative

from warploom import TensorMap

_TENSOR_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
_ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [bars];"
_ARM = "and.b32 %r0, %lane, 1; setp.eq.u32 %q, %r0, 0; @%q bra A; {} A: st.shared.u32 [data], %r0;"
"""A branch that only odd lanes take."""
_WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d0, 0, 1, 1, 0, 0;"


def boxes():
    return [TensorMap(np.zeros((8, 32), np.uint32), box=(4, 32))]


CASES = {
    "arrive_without_init": Negative("BARRIER_NOT_INITIALISED", _ARRIVE),
    "wait_without_init": Negative(
        "BARRIER_NOT_INITIALISED",
        f"{INIT.format(1)} mbarrier.try_wait.parity.shared::cta.b64 %p, [bars+8], 0;",
        notes="//!wl barrier full bars 8 1",
    ),
    "copy_without_init": Negative(
        "BARRIER_NOT_INITIALISED",
        f"mov.b64 %rd0, a; @%first {_TENSOR_LOAD} [data], [%rd0, {{0, 0}}], [bars];",
        "map:a",
        boxes,
    ),
    "barrier_overwritten": Negative(
        "BARRIER_NOT_INITIALISED", f"{INIT.format(32)} @%first st.shared.u32 [bars+4], 0; bar.warp.sync -1; {_ARRIVE}"
    ),
    "barrier_invalidated_before_its_bytes": Negative(
        "BARRIER_NOT_INITIALISED",
        f"""{INIT.format(1)} mov.b64 %rd0, a; @%first {_TENSOR_LOAD} [data], [%rd0, {{0, 0}}], [bars];
 @%first mbarrier.init.shared::cta.b64 [bars+8], 1; @%first mbarrier.inval.shared::cta.b64 [bars]; bar.sync 0;
 W: mbarrier.try_wait.parity.shared::cta.b64 %p, [bars+8], 0; @!%p bra W;""",
        "map:a",
        boxes,
        options={"schedule": "lazy"},
    ),
    "init_twice": Negative(
        "BARRIER_REINITIALISED", f"{INIT.format(2)} {INIT.format(2)}", notes="//!wl barrier full bars 8 2"
    ),
    "init_by_all_lanes": Negative("BARRIER_REINITIALISED", "mbarrier.init.shared::cta.b64 [bars], 32;"),
    "too_many_arrivals": Negative("BARRIER_OVERFLOW", f"{INIT.format(31)} {_ARRIVE}"),
    "too_many_bytes": Negative(
        "BARRIER_OVERFLOW",
        f"{INIT.format(2)} @%first mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bars], 1048575;"
        " @%first mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bars], 16;",
    ),
    "init_with_no_arrivals": Negative("BARRIER_OVERFLOW", "@%first mbarrier.init.shared::cta.b64 [bars], 0;"),
    "arrival_count_zero": Negative(
        "BARRIER_OVERFLOW", f"{INIT.format(1)} @%first mbarrier.arrive.shared::cta.b64 _, [bars], 0;"
    ),
    "no_complete_arrival_completes_a_phase": Negative(
        "BARRIER_OVERFLOW", f"{INIT.format(1)} @%first mbarrier.arrive.noComplete.shared::cta.b64 %rd0, [bars], 1;"
    ),
    "barrier_number_too_high": Negative("BAD_BARRIER", "mov.u32 %r0, 16; bar.sync %r0;"),
    "barrier_count": Negative("BAD_BARRIER", "bar.sync 1, 48;", block=64),
    "barrier_count_above_the_block": Negative("BAD_BARRIER", "bar.sync 1, 96;", block=64),
    "barrier_number_differs_by_lane": Negative("BAD_BARRIER", "and.b32 %r0, %lane, 1; bar.sync %r0;"),
    "barrier_with_two_counts": Negative(
        "BAD_BARRIER",
        "setp.eq.u32 %q, %warp, 0; @%q bra A; bar.sync 1, 96; bra B; A: bar.sync 1, 64; B:",
        block=96,
    ),
    "barrier_reduction_and_plain_arrival": Negative(
        "BAD_BARRIER",
        "setp.eq.u32 %q, %warp, 0; @%q bra A; bar.red.popc.u32 %r0, 1, 64, %q; bra B; A: bar.sync 1, 64; B:",
        block=64,
    ),
    "cluster_arrives_twice": Negative(
        "BAD_BARRIER", "barrier.cluster.arrive.aligned; barrier.cluster.arrive.aligned;", grid=2, cluster=2
    ),
    "cluster_waits_first": Negative("BAD_BARRIER", "barrier.cluster.wait.aligned;", grid=2, cluster=2),
    "wait_on_a_remote_mbarrier": Negative(
        "BAD_BARRIER",
        f"""{INIT.format(1)} mov.u32 %r0, bars; mapa.shared::cluster.u32 %r0, %r0, 1;
 mov.u32 %r1, %cluster_ctarank; setp.ne.u32 %q, %r1, 0; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
 @%q bra A; mbarrier.try_wait.parity.shared::cta.b64 %p, [%r0], 0; A:""",
        grid=2,
        cluster=2,
    ),
    "mbarrier_state_of_an_old_phase": Negative(
        "BAD_BARRIER",
        f"{INIT.format(32)} mbarrier.arrive.shared::cta.b64 %rd0, [bars]; {_ARRIVE} {_ARRIVE}"
        " mbarrier.test_wait.shared::cta.b64 %p, [bars], %rd0;",
    ),
    "data_and_barrier_in_two_ctas": Negative(
        "BAD_BARRIER",
        f"""{INIT.format(1)} mov.u32 %r0, bars; mapa.shared::cluster.u32 %r1, %smem, 1;
 mapa.shared::cluster.u32 %r0, %r0, 0;
 @%first st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %me, [%r0];""",
        grid=2,
        cluster=2,
    ),
    "barrier_in_a_branch": Negative("BAD_PARTICIPATION", _ARM.format("bar.sync 0;")),
    "shuffle_in_a_branch": Negative(
        "BAD_PARTICIPATION", "and.b32 %r0, %lane, 1; setp.eq.u32 %q, %r0, 0; @%q shfl.sync.idx.b32 %r1, %me, 0, 31, -1;"
    ),
    "shuffle_outside_its_mask": Negative("BAD_PARTICIPATION", "shfl.sync.idx.b32 %r1, %me, 0, 31, 0xffff;"),
    "matrix_in_a_branch": Negative(
        "BAD_PARTICIPATION", _ARM.format("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%v0}, [data];")
    ),
    "wgmma_without_a_warpgroup": Negative("BAD_PARTICIPATION", f"mov.b64 %d0, 0; {_WGMMA}", block=96),
    "wgmma_descriptor_differs_by_thread": Negative(
        "BAD_PARTICIPATION",
        f"mov.b64 %d0, 0x800040; setp.eq.u32 %q, %warp, 2; @%q mov.b64 %d0, 0x800048; {_WGMMA}",
        block=128,
    ),
    "setmaxnreg_by_some_lanes": Negative("BAD_PARTICIPATION", "@%lead setmaxnreg.dec.sync.aligned.u32 40;", block=128),
    "cta_group_2_without_a_peer": Negative(
        "BAD_PARTICIPATION",
        "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], 32;",
        target="sm_100a",
    ),
}
