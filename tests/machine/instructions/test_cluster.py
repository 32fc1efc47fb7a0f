"""Clusters: their barrier, addresses in peers, asynchronous stores, fences, and the register pool."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.simt import SCHEDULES, threads

from warploom.diagnostics import WarploomError
from warploom.ptx.isa import match

RNG = np.random.default_rng()
by_schedule = pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)


@by_schedule
@pytest.mark.parametrize(("size", "cluster"), [(64, 2), (33, 4), (128, 8)])
def test_values_are_exchanged_between_ctas(size: int, cluster: int, schedule: str, seed: int) -> None:
    """Every CTA writes into its right neighbour, reads its left one's word, and adds to a counter in CTA 0."""
    body = """
    mov.u32 %r6, sh; mad.lo.u32 %r7, %r0, 4, %r6; add.u32 %r7, %r7, 64;
    mov.u32 %r3, %cluster_ctarank; mov.u32 %r4, %cluster_nctarank;
    st.shared.u32 [%r6], 0; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    add.u32 %r5, %r3, 1; rem.u32 %r5, %r5, %r4;
    mapa.shared::cluster.u32 %r8, %r7, %r5; st.shared::cluster.u32 [%r8], %r1;
    cvt.u64.u32 %rd3, %r6; cvta.shared.u64 %rd3, %rd3; mapa.u64 %rd4, %rd3, 0; red.add.u32 [%rd4], 1;
    barrier.cluster.arrive; barrier.cluster.wait;
    ld.shared.u32 %r9, [%r7]; mapa.shared::cluster.u32 %r10, sh, 0; ld.shared::cluster.u32 %r11, [%r10];
    getctarank.shared::cluster.u32 %r12, %r8; getctarank.u64 %r13, %rd4;
    barrier.cluster.arrive.relaxed; st.global.v4.u32 [%rd0], {%r9, %r11, %r12, %r13}; barrier.cluster.wait;"""
    grid = 2 * cluster
    values = RNG.integers(0, 1 << 32, grid * size, dtype=np.uint32)
    got = threads(body, size, words=4, grid=grid, cluster=cluster, source=values, schedule=schedule, seed=seed)
    for cta in range(grid):
        first, rank = cta // cluster * cluster, cta % cluster
        left = first + (rank - 1) % cluster
        for t in range(size):
            want = [int(values[left * size + t]), cluster * size, (rank + 1) % cluster, 0]
            assert got[cta * size + t].tolist() == want


@by_schedule
def test_exited_threads_count_as_arrived(schedule: str, seed: int) -> None:
    body = """
    mov.u32 %r3, %cluster_ctarank; setp.eq.u32 %p1, %r3, 1; and.b32 %r4, %r0, 1; setp.eq.u32 %p2, %r4, 0;
    @%p1 bra ONE; barrier.cluster.arrive; barrier.cluster.wait; st.global.u32 [%rd0], 5; ret;
    ONE: @%p2 ret; mov.u32 %r5, 90; LOOP: sub.u32 %r5, %r5, 1; setp.ne.u32 %p3, %r5, 0; @%p3 bra LOOP;
    st.global.u32 [%rd0], 6;"""
    got = threads(body, 40, grid=2, cluster=2, schedule=schedule, seed=seed)
    assert got[:, 0].tolist() == [5] * 40 + [0, 6] * 20


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("barrier.cluster.arrive; barrier.cluster.arrive;", "BAD_BARRIER", "arrive twice"),
        ("barrier.cluster.wait;", "BAD_BARRIER", "without having arrived"),
        ("and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 barrier.cluster.arrive.aligned;", "BAD_PARTICIPATION", ""),
        (
            "setp.eq.u32 %p1, %r0, 0; @%p1 bra A; barrier.cluster.arrive; barrier.cluster.wait; A: bar.sync 0;",
            "DEADLOCK",
            "",
        ),
        ("mapa.shared::cluster.u32 %r3, sh, 2; ld.shared::cluster.u32 %r4, [%r3];", "OUT_OF_BOUNDS", ""),
    ],
)
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_misuse(body: str, code: str, words: str, schedule: str) -> None:
    with pytest.raises(WarploomError) as caught:
        threads(body, 64, grid=2, cluster=2, schedule=schedule)
    assert caught.value.code == code
    assert words in caught.value.what


STORES = """
 mov.u32 %r6, sh; mov.u32 %r3, %cluster_ctarank; xor.b32 %r4, %r3, 1; setp.eq.u32 %p1, %r0, 0;
 @%p1 mbarrier.init.shared.b64 [%r6], 1; fence.mbarrier_init.release.cluster;
 barrier.cluster.arrive; barrier.cluster.wait;
 @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], {bytes};
 mad.lo.u32 %r7, %r0, {size}, %r6; add.u32 %r7, %r7, 64; mapa.shared::cluster.u32 %r8, %r7, %r4;
 mapa.shared::cluster.u32 %r9, %r6, %r4;
 add.u32 %r20, %r1, 1; add.u32 %r21, %r1, 2; add.u32 %r22, %r1, 3;
 {store}
 WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r6], 0; @!%p2 bra WAIT;
 {load}
 barrier.cluster.arrive; barrier.cluster.wait;"""


@by_schedule
def test_stores_complete_on_the_barrier_of_the_peer(schedule: str, seed: int) -> None:
    head = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
    cases = {
        4: (f"{head}.b32 [%r8], %r1, [%r9];", "ld.shared.u32 %r10, [%r7]; st.global.u32 [%rd0], %r10;", 1),
        8: (
            f"{head}.v2.u32 [%r8], {{%r1, %r20}}, [%r9];",
            "ld.shared.v2.u32 {%r10, %r11}, [%r7]; st.global.v2.u32 [%rd0], {%r10, %r11};",
            2,
        ),
        16: (
            f"{head}.v4.b32 [%r8], {{%r1, %r20, %r21, %r22}}, [%r9];",
            "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r7]; st.global.v4.u32 [%rd0], {%r10, %r11, %r12, %r13};",
            4,
        ),
    }
    values = RNG.integers(0, 1 << 30, 64, dtype=np.uint32)
    for size, (store, load, words) in cases.items():
        body = STORES.format(size=size, bytes=32 * size, store=store, load=load)
        got = threads(body, 32, words=4, grid=2, cluster=2, source=values, schedule=schedule, seed=seed)
        for t in range(64):
            assert got[t, :words].tolist() == [int(values[t ^ 32]) + i for i in range(words)]


@by_schedule
@pytest.mark.parametrize(
    ("name", "want"), [("add.u32", 32 * 5 + 3), ("max.s32", 5), ("or.b32", 7), ("inc.u32", 2), ("dec.u32", 1)]
)
def test_reductions_complete_on_the_barrier_of_the_peer(name: str, want: int, schedule: str, seed: int) -> None:
    store = f"""
    @%p1 st.shared.u32 [%r6+8], 3; barrier.cluster.arrive; barrier.cluster.wait;
    mapa.shared::cluster.u32 %r8, sh, %r4; mov.u32 %r5, 5;
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{name} [%r8+8], %r5, [%r9];"""
    load = "ld.shared.u32 %r10, [%r6+8]; st.global.u32 [%rd0], %r10;"
    got = threads(
        STORES.format(size=4, bytes=128, store=store, load=load), 32, grid=2, cluster=2, schedule=schedule, seed=seed
    )
    steps, value = {"inc.u32": lambda v: 0 if v >= 5 else v + 1, "dec.u32": lambda v: 5 if v in (0, 6) else v - 1}, 3
    if name in steps:
        for _ in range(32):
            value = steps[name](value)
        want = value
    assert (got == want).all()


def test_the_barrier_must_be_in_the_destination_cta() -> None:
    body = STORES.format(
        size=4, bytes=128, store="st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r8], %r1, [%r6];", load=""
    )
    with pytest.raises(WarploomError) as caught:
        threads(body, 32, grid=2, cluster=2)
    assert caught.value.code == "BAD_BARRIER"


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_stores_to_global_memory_may_come_later(schedule: str) -> None:
    body = "st.async.release.gpu.global.b32 [%rd0], %r1; red.async.release.gpu.global.add.u32 [%rd1], 2;"
    values = RNG.integers(0, 1 << 30, 50, dtype=np.uint32)
    first = int(values[0])
    got = threads(body, 50, source=values, schedule=schedule, target="sm_100a")
    assert got[1:, 0].tolist() == values[1:].tolist()
    assert values[0] == first + 100


FENCES = [
    "fence.acq_rel.gpu",
    "fence.sc.sys",
    "fence.acquire.cluster",
    "fence.release.cta",
    "fence.gpu",
    "membar.cta",
    "membar.gl",
    "membar.sys",
    "fence.proxy.alias",
    "membar.proxy.alias",
    "fence.proxy.async",
    "fence.proxy.async.global",
    "fence.proxy.async.shared::cta",
    "fence.proxy.async.shared::cluster",
    "fence.mbarrier_init.release.cluster",
    "fence.proxy.tensormap::generic.release.gpu",
    "fence.acquire.sync_restrict::shared::cluster.cluster",
    "fence.release.sync_restrict::shared::cta.cluster",
    "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster",
    "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster",
    "griddepcontrol.wait",
    "griddepcontrol.launch_dependents",
    "fence.gpu.acq_rel",
]


@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_fences_are_known_and_declare_their_effects(schedule: str) -> None:
    body = " ".join(f"{fence};" for fence in FENCES)
    body += """
    fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128; nanosleep.u32 20; pmevent 3; pmevent.mask 7;
    createpolicy.fractional.L2::evict_last.b64 %rd3, 0.5; createpolicy.cvt.L2.b64 %rd4, %rd3;
    discard.global.L2 [%rd1], 128; st.global.u32 [%rd0], 1;"""
    assert (threads(body, 64, schedule=schedule) == 1).all()
    for fence in FENCES:
        (row, _), *_ = match(fence)
        assert any(effect.verb in ("fences", "waits", "arrives") for effect in row.effects)


@pytest.mark.parametrize("fence", ["fence.proxy.async.shared", "fence.view.async", "membar.proxy.async", "fence.sc"])
def test_unknown_fences_are_refused(fence: str) -> None:
    with pytest.raises(WarploomError) as caught:
        threads(f"{fence};")
    assert caught.value.code == "UNKNOWN_INSTRUCTION"


DISAGREE = """
 shr.u32 %r3, %r0, 5; setp.eq.u32 %p1, %r3, 1; @%p1 bra A; setmaxnreg.dec.sync.aligned.u32 40; bra B;
 A: setmaxnreg.dec.sync.aligned.u32 48; B:"""
HANDOVER = """
 shr.u32 %r3, %r0, 7; setp.eq.u32 %p1, %r3, 0; @%p1 bra PRODUCER;
 setmaxnreg.inc.sync.aligned.u32 {more}; bra END; PRODUCER: setmaxnreg.dec.sync.aligned.u32 {less};
 END: st.global.u32 [%rd0], %r3;"""


@by_schedule
@pytest.mark.parametrize(("less", "more"), [(24, 240), (40, 232), (168, 168)])
def test_registers_move_between_warpgroups(less: int, more: int, schedule: str, seed: int) -> None:
    """384 threads start with 168 registers each; what the first warpgroup releases, the other two can acquire."""
    got = threads(HANDOVER.format(less=less, more=more), 384, schedule=schedule, seed=seed, directives=".maxntid 384")
    assert got[:, 0].tolist() == [t // 128 for t in range(384)]


@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_warps_of_a_warpgroup_may_change_registers_separately_on_blackwell(schedule: str) -> None:
    body = f"{DISAGREE} st.global.u32 [%rd0], %r3;"
    assert threads(body, 384, target="sm_100a", schedule=schedule)[:, 0].tolist() == [t // 32 for t in range(384)]


@pytest.mark.parametrize(
    ("body", "size", "directives", "code"),
    [
        (HANDOVER.format(less=32, more=240), 384, "", "DEADLOCK"),
        (HANDOVER.format(less=24, more=248), 384, "", "DEADLOCK"),
        (HANDOVER.format(less=24, more=176), 256, ".maxnreg 96", "DEADLOCK"),
        (HANDOVER.format(less=24, more=160), 256, ".maxnreg 96", ""),
        ("setmaxnreg.inc.sync.aligned.u32 100;", 128, "", "REGISTER_POOL"),
        ("setmaxnreg.dec.sync.aligned.u32 16;", 128, "", "REGISTER_POOL"),
        ("setmaxnreg.inc.sync.aligned.u32 64;", 384, ".maxnreg 168", "REGISTER_POOL"),
        ("setmaxnreg.dec.sync.aligned.u32 200;", 384, "", "REGISTER_POOL"),
        (DISAGREE, 384, "", "REGISTER_POOL"),
        ("setp.eq.u32 %p1, %r0, 0; @%p1 setmaxnreg.dec.sync.aligned.u32 40;", 384, "", "BAD_PARTICIPATION"),
    ],
)
@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_the_register_pool_is_accounted_for(body: str, size: int, directives: str, code: str, schedule: str) -> None:
    if not code:
        threads(body, size, directives=directives, schedule=schedule)
        return
    with pytest.raises(WarploomError) as caught:
        threads(body, size, directives=directives, schedule=schedule)
    assert caught.value.code == code
