"""Runs that cannot make progress: which warps wait, where, for what, and what is missing."""

from __future__ import annotations

import numpy as np
from tests.machine.protocols import PROTOCOLS
from tests.negatives.negative import INIT, WAIT, Negative

from warploom import TensorMap

_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"


def boxes():
    return [TensorMap(np.zeros((8, 16), np.uint32), box=(8, 16))]


def ring(old, new):
    """The ring of tests/machine/protocols.py with one line wrong."""
    protocol = PROTOCOLS["ring"]()
    assert old in protocol.text
    text = protocol.text.replace(old, new)
    return Negative("DEADLOCK", text, args=lambda: protocol.make()[0], block=160)


_LOCK = """ld.param.u64 %rd0, [a]; S: ld.volatile.global.u32 %r0, [%rd0]; setp.eq.u32 %q, %r0, 0; @%q bra S;"""

CASES = {
    "stage_never_released": ring("@%lead mbarrier.arrive.shared::cta.b64 _, [bars+16];", ""),
    "more_bytes_expected_than_loaded": ring(", 2304;", ", 2320;"),
    "wrong_parity": Negative(
        "DEADLOCK",
        f"{INIT.format(32)} mbarrier.arrive.shared::cta.b64 _, [bars]; {WAIT.format(1)}",
        notes="//!wl barrier full bars 8 1",
    ),
    "mbarrier_count_too_high": Negative(
        "DEADLOCK", f"{INIT.format(128)} @%lead mbarrier.arrive.shared::cta.b64 _, [bars]; {WAIT.format(0)}", block=128
    ),
    "more_bytes_loaded_than_expected": Negative(
        "DEADLOCK",
        f"""{INIT.format(1)} mov.b64 %rd0, a; @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 256;
 @%first {_LOAD} [data], [%rd0, {{0, 0}}], [bars]; {WAIT.format(0)}""",
        "map:a",
        boxes,
    ),
    "named_barriers_in_opposite_order": Negative(
        "DEADLOCK",
        "setp.eq.u32 %q, %warp, 0; @%q bra A; bar.sync 1, 64; A: bar.sync 2, 64;",
        block=64,
        notes="//!wl role load 0\n //!wl role multiply 1",
    ),
    "named_barrier_count_too_high": Negative(
        "DEADLOCK", "setp.eq.u32 %q, %warp, 2; @%q bra A; bar.sync 1, 96; A: bar.sync 0;", block=96
    ),
    "cluster_barrier_skipped_by_one_cta": Negative(
        "DEADLOCK",
        f"""{INIT.format(1)} mov.u32 %r0, %cluster_ctarank; setp.eq.u32 %q, %r0, 3; @%q bra A;
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; bra B; A: {WAIT.format(0)} B:""",
        grid=4,
        cluster=4,
        block=64,
    ),
    "tmem_columns_exhausted": Negative(
        "DEADLOCK",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 512; bar.warp.sync -1;"
        " tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot+4], 32;",
        target="sm_100a",
    ),
    "tmem_pair_allocation_without_the_peer": Negative(
        "DEADLOCK",
        """mov.u32 %r0, %cluster_ctarank; setp.eq.u32 %q, %r0, 1; @%q bra A;
 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], 32; bra B; A:
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; B:""",
        target="sm_100a",
        grid=2,
        cluster=2,
    ),
    "setmaxnreg_inc_without_free_registers": Negative("DEADLOCK", "setmaxnreg.inc.sync.aligned.u32 200;", block=384),
    "shuffle_mask_lanes_missing": Negative(
        "DEADLOCK",
        f"{INIT.format(1)} setp.lt.u32 %q, %lane, 4; @%q bra A; bar.warp.sync -1; bra B; A: {WAIT.format(0)} B:",
    ),
    "wgmma_skipped_by_one_warp": Negative(
        "DEADLOCK",
        """mov.b64 %d0, 0x800400040; setp.eq.u32 %q, %warp, 3; @%q bra A; wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d0, 0, 1, 1, 0, 0;
 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; A: bar.sync 0;""",
        block=128,
        data=8192,
    ),
    "cta_waits_for_a_cta_that_cannot_start": Negative(
        "DEADLOCK",
        f"{INIT.format(1)} {WAIT.format(0)}",
        grid=6,
        options={"sms": 1, "shared_bytes": 120_000},
    ),
    "endless_loop": Negative(
        "LIMIT",
        "ld.param.u64 %rd0, [a]; L: add.u32 %r0, %r0, 1; st.global.u32 [%rd0], %r0; bra L;",
        "ptr:a",
        lambda: [np.zeros(1, np.uint32)],
        block=64,
        options={"limit": 5000},
    ),
    "spin_lock_never_released": Negative(
        "DEADLOCK", _LOCK, "ptr:a", lambda: [np.zeros(1, np.uint32)], block=96, notes="//!wl role load 0,2"
    ),
    "trap": Negative("TRAP", "setp.gt.u32 %q, %me, 40; @!%q bra A; trap; A:", block=64),
}
