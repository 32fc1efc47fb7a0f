"""Runs that cannot go on: who waits, where, for what, and what is missing."""

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
    "a_stage_is_never_released": ring("@%lead mbarrier.arrive.shared::cta.b64 _, [bars+16];", ""),
    "more_bytes_announced_than_loaded": ring(", 2304;", ", 2320;"),
    "wrong_parity": Negative(
        "DEADLOCK",
        f"{INIT.format(32)} mbarrier.arrive.shared::cta.b64 _, [bars]; {WAIT.format(1)}",
        notes="//!wl barrier full bars 8 1",
    ),
    "a_count_that_is_too_high": Negative(
        "DEADLOCK", f"{INIT.format(128)} @%lead mbarrier.arrive.shared::cta.b64 _, [bars]; {WAIT.format(0)}", block=128
    ),
    "more_bytes_loaded_than_announced": Negative(
        "DEADLOCK",
        f"""{INIT.format(1)} mov.b64 %rd0, a; @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 256;
 @%first {_LOAD} [data], [%rd0, {{0, 0}}], [bars]; {WAIT.format(0)}""",
        "map:a",
        boxes,
    ),
    "named_barriers_crossed": Negative(
        "DEADLOCK",
        "setp.eq.u32 %q, %warp, 0; @%q bra A; bar.sync 1, 64; A: bar.sync 2, 64;",
        block=64,
        notes="//!wl role load 0\n //!wl role multiply 1",
    ),
    "a_barrier_of_too_many": Negative(
        "DEADLOCK", "setp.eq.u32 %q, %warp, 2; @%q bra A; bar.sync 1, 96; A: bar.sync 0;", block=96
    ),
    "a_cluster_barrier_that_one_cta_skips": Negative(
        "DEADLOCK",
        f"""{INIT.format(1)} mov.u32 %r0, %cluster_ctarank; setp.eq.u32 %q, %r0, 3; @%q bra A;
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; bra B; A: {WAIT.format(0)} B:""",
        grid=4,
        cluster=4,
        block=64,
    ),
    "no_columns_left": Negative(
        "DEADLOCK",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 512; bar.warp.sync -1;"
        " tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot+4], 32;",
        target="sm_100a",
    ),
    "a_peer_that_does_not_allocate": Negative(
        "DEADLOCK",
        """mov.u32 %r0, %cluster_ctarank; setp.eq.u32 %q, %r0, 1; @%q bra A;
 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], 32; bra B; A:
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; B:""",
        target="sm_100a",
        grid=2,
        cluster=2,
    ),
    "registers_that_nobody_gives_back": Negative("DEADLOCK", "setmaxnreg.inc.sync.aligned.u32 200;", block=384),
    "lanes_that_never_come": Negative(
        "DEADLOCK",
        f"{INIT.format(1)} setp.lt.u32 %q, %lane, 4; @%q bra A; bar.warp.sync -1; bra B; A: {WAIT.format(0)} B:",
    ),
    "a_warp_that_skips_wgmma": Negative(
        "DEADLOCK",
        """mov.b64 %d0, 0x800400040; setp.eq.u32 %q, %warp, 3; @%q bra A; wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d0, 0, 1, 1, 0, 0;
 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; A: bar.sync 0;""",
        block=128,
        data=8192,
    ),
    "a_cta_that_waits_for_one_that_has_no_room": Negative(
        "DEADLOCK",
        f"{INIT.format(1)} {WAIT.format(0)}",
        grid=6,
        options={"sms": 1, "shared_bytes": 120_000},
    ),
    "an_endless_loop": Negative(
        "LIMIT",
        "ld.param.u64 %rd0, [a]; L: add.u32 %r0, %r0, 1; st.global.u32 [%rd0], %r0; bra L;",
        "ptr:a",
        lambda: [np.zeros(1, np.uint32)],
        block=64,
        options={"limit": 5000},
    ),
    "a_lock_that_nobody_opens": Negative(
        "NO_PROGRESS", _LOCK, "ptr:a", lambda: [np.zeros(1, np.uint32)], block=96, notes="//!wl role load 0,2"
    ),
    "a_trap": Negative("TRAP", "setp.gt.u32 %q, %me, 40; @!%q bra A; trap; A:", block=64),
}
