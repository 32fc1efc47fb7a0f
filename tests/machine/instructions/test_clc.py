"""Cluster launch control: every tile is computed exactly once, and refusals are final."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from tests.machine.asynchronous import SCHEDULES, fault, init, run, wait

LOOP = """ {init}
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, 0; ld.param.u64 %rd1, [out];
    TILE: {meet}
    {ask}
    mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; mov.u32 %r3, 1; @%first red.global.add.u32 [%rd3], %r3;
    and.b32 %r4, %r2, 1;
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bars], %r4; @!%p1 bra WAIT;
    {read}
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q1;
    @!%p2 bra END;
    {take}
    fence.proxy.async.shared::cta;
    add.u32 %r2, %r2, 1; bra TILE;
    END: {meet}"""
ASK = """@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 16;
    @%first clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [data], [bars];"""
READS = (
    "ld.shared.b128 %q1, [data];",
    "ld.shared.v2.b64 {%rd10, %rd11}, [data]; mov.b128 %q1, {%rd10, %rd11};",
)
TAKES = (
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %q1;",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r8, %r9, _}, %q1;",
)


def loop(read=READS[0], take=TAKES[0], ask=ASK, meet="bar.sync 0;"):
    return LOOP.format(init=init(1), read=read, take=take, ask=ask, meet=meet)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("take", TAKES)
def test_every_tile_is_computed_once(schedule, seed, read, take):
    for tiles, sms, block in ((1, 1, 32), (7, 2, 64), (40, 3, 32)):
        out = np.zeros(tiles, np.uint32)
        body = loop(read, take)
        options = {"grid": tiles, "sms": sms, "block": block, "target": "sm_100a", "schedule": schedule, "seed": seed}
        run(body, "ptr:out", (out,), **options)
        assert (out == 1).all()


def test_eager_grants_all_ctas_that_have_not_started():
    """One cluster computes all tiles: the others never start."""
    out = np.zeros(9, np.uint32)
    done = run(loop(), "ptr:out", (out,), grid=9, sms=1, target="sm_100a")
    assert (out == 1).all()
    assert done.counts["clusterlaunchcontrol.is_canceled"] >= 9


CLUSTER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
ASK_ALL = """@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 16;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    setp.eq.u32 %p5, %rank, 0; and.pred %p5, %p5, %first;
    @%p5 clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.multicast::cluster::all.b128
      [%rd8], [%rd9];"""
GENERIC = """mov.u32 %r20, data; cvt.u64.u32 %rd8, %r20; cvta.shared.u64 %rd8, %rd8;
    mov.u32 %r21, bars; cvt.u64.u32 %rd9, %r21; cvta.shared.u64 %rd9, %rd9;"""


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_response_may_go_to_every_cta_of_the_cluster(schedule, seed):
    tiles = 12
    out = np.zeros(tiles, np.uint32)
    body = GENERIC + loop(take=f"{TAKES[0]} add.u32 %r1, %r1, %rank;", ask=ASK_ALL, meet=CLUSTER)
    options = {"grid": tiles, "cluster": 2, "sms": 4, "target": "sm_100a", "schedule": schedule, "seed": seed}
    run(body, "ptr:out", (out,), **options)
    assert (out == 1).all()


@dataclass
class _Refuses:
    """Eager, but the launcher refuses."""

    name: str = "refuses"
    convoys: bool = False
    two_views: bool = True
    preempts: bool = False

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        return 0


def test_a_refusal_leaves_the_tiles_to_the_launcher():
    out = np.zeros(5, np.uint32)
    done = run(loop(), "ptr:out", (out,), grid=5, sms=1, target="sm_100a", schedule=_Refuses())
    assert (out == 1).all()
    assert "clusterlaunchcontrol.get_first_ctaid" not in done.counts


ONCE = f"{init(1)} {ASK} {wait('W')} {READS[0]} clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q1;"


def test_asking_again_after_a_refusal_is_a_fault():
    error = fault(f"{ONCE} {ASK} {wait('V', parity=1)}", target="sm_100a")
    assert error.code == "ASYNC_MISUSE"
    assert "has seen a try_cancel fail and asks again" in error.what


def test_a_response_read_too_early_is_a_fault():
    early = f"{init(1)} {ASK} {READS[0]} clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q1; {wait('W')}"
    run(early, target="sm_100a", schedule="eager")
    error = fault(early, target="sm_100a", schedule="lazy")
    assert error.code == "ASYNC_MISUSE"
    assert "that no completed try_cancel has written" in error.what


def test_the_response_needs_sixteen_aligned_bytes():
    error = fault(f"{init(1)} {ASK}".replace("[data]", "[data+8]"), target="sm_100a")
    assert error.code == "MISALIGNED"


def test_hopper_has_no_launch_control():
    assert fault(ONCE).code == "WRONG_TARGET"
