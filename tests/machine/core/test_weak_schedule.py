"""The schedule `weak`: ordinary stores reach other warps late, unless a fence, barrier or release orders them, and
loads miss what was stored since the last acquire.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.asynchronous import run, text
from tests.machine.families import FAMILIES

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.machine.core.schedule import Recorded, Weak, by_name

SEEDS = (0, 1, 2)

MESSAGE = """ld.param.u64 %rd1, [values]; ld.param.u64 %rd2, [flag]; ld.param.u64 %rd3, [out];
 mov.u32 %r9, {who}; setp.ne.u32 %p1, %r9, 0; @!%leader bra END; @%p1 bra READ;
 st.global.u32 [%rd1], 41; {middle} {store}; bra END;
READ: {load} %r1, [%rd2]; setp.eq.u32 %p2, %r1, 0; @%p2 bra READ; {after}
 ld.global.u32 %r2, [%rd1]; st.global.u32 [%rd3], %r2; END:"""


def received(schedule="weak", seed=0, *, who="%ctaid.x", middle="", store="st.relaxed.gpu.global.u32 [%rd2], 1",
             load="ld.acquire.gpu.global.u32", after="", **shape):  # fmt: skip
    """The value that a reader finds after the writer's flag."""
    data, flag, out = (np.zeros(1, np.uint32) for _ in range(3))
    body = MESSAGE.format(who=who, middle=middle, store=store, load=load, after=after)
    run(body, "ptr:values ptr:flag ptr:out", (data, flag, out), schedule=schedule, seed=seed, **shape)
    assert (data[0], flag[0]) == (41, 1), "all stores reach memory at the end"
    return int(out[0])


@pytest.mark.parametrize(("who", "shape"), [("%ctaid.x", {"grid": 2}), ("%warp", {"block": 64})])
@pytest.mark.parametrize(
    ("kind", "right"),
    [
        ({}, False),
        ({"store": "st.volatile.global.u32 [%rd2], 1"}, False),
        ({"store": "red.relaxed.gpu.global.add.u32 [%rd2], 1"}, False),
        ({"middle": "fence.acq_rel.gpu;"}, True),
        ({"middle": "membar.gl;"}, True),
        ({"middle": "fence.sc.sys;"}, True),
        ({"store": "st.release.gpu.global.u32 [%rd2], 1"}, True),
        ({"store": "red.release.gpu.global.add.u32 [%rd2], 1"}, True),
        ({"store": "atom.acq_rel.gpu.global.exch.b32 %r8, [%rd2], 1"}, True),
    ],
    ids=str,
)
def test_a_message_needs_a_release(who, shape, kind, right):
    found = [received(seed=seed, who=who, **kind, **shape) for seed in SEEDS]
    if right:
        assert found == [41] * len(SEEDS)
    else:
        assert found[0] == 0
    assert received("lazy", who=who, **kind, **shape) == 41


RELEASED = {"store": "st.release.gpu.global.u32 [%rd2], 1"}


@pytest.mark.parametrize(
    ("kind", "right"),
    [
        ({}, True),
        ({"load": "ld.relaxed.gpu.global.u32"}, False),
        ({"load": "ld.volatile.global.u32"}, False),
        ({"load": "ld.acquire.cta.global.u32"}, False),
        ({"load": "ld.relaxed.gpu.global.u32", "after": "fence.acq_rel.gpu;"}, True),
        ({"load": "ld.volatile.global.u32", "after": "membar.gl;"}, True),
        ({"load": "ld.relaxed.gpu.global.u32", "after": "fence.acq_rel.cta;"}, False),
        ({"load": "ld.relaxed.gpu.global.u32", "after": "atom.acquire.gpu.global.or.b32 %r7, [%rd2], 0;"}, True),
        ({"load": "ld.relaxed.gpu.global.u32", "after": "bar.warp.sync 1;"}, False),
    ],
    ids=str,
)
def test_a_message_needs_an_acquire(kind, right):
    found = [received(grid=2, seed=seed, **RELEASED, **kind) for seed in SEEDS]
    assert found == [41] * len(SEEDS) if right else found[0] == 0
    assert received("lazy", grid=2, **RELEASED, **kind) == 41


def test_warps_of_a_cluster_see_each_others_stores_without_an_acquire():
    relaxed = {**RELEASED, "load": "ld.relaxed.gpu.global.u32"}
    assert [received(who="%warp", block=64, seed=seed, **relaxed) for seed in SEEDS] == [41] * len(SEEDS)
    assert [received(grid=2, cluster=2, seed=seed, **relaxed) for seed in SEEDS] == [41] * len(SEEDS)


ANNOUNCED = """ld.param.u64 %rd1, [values]; ld.param.u64 %rd2, [flag]; ld.param.u64 %rd3, [out];
 mov.u32 %r9, %ctaid.x; setp.ne.u32 %p1, %r9, 0; mul.wide.u32 %rd4, %thread, 4; add.u64 %rd5, %rd1, %rd4;
 @%p1 bra READ; st.global.u32 [%rd5], 41; bar.sync 0; @%first st.release.gpu.global.u32 [%rd2], 1; bra END;
READ: @!%first bra MEET;
POLL: {load} %r1, [%rd2]; setp.eq.u32 %p2, %r1, 0; @%p2 bra POLL;
MEET: bar.sync 0; ld.global.u32 %r2, [%rd5]; add.u64 %rd6, %rd3, %rd4; st.global.u32 [%rd6], %r2; END:"""


@pytest.mark.parametrize(("load", "right"), [("ld.acquire.gpu.global.u32", True), ("ld.relaxed.gpu.global.u32", False)])
def test_a_barrier_hands_on_what_a_warp_has_acquired(load, right):
    data, flag, out = np.zeros(128, np.uint32), np.zeros(1, np.uint32), np.zeros(128, np.uint32)
    for seed in SEEDS if right else SEEDS[:1]:
        data[:], flag[:], out[:] = 0, 0, 0
        args = (ANNOUNCED.format(load=load), "ptr:values ptr:flag ptr:out", (data, flag, out))
        run(*args, block=128, grid=2, schedule="weak", seed=seed)
        assert (out == 41).all() == right


WORD = """ld.param.u64 %rd1, [values]; ld.param.u64 %rd2, [out]; @!%leader bra END;
 mov.u32 %r9, %ctaid.x; setp.ne.u32 %p1, %r9, 0; @%p1 bra READ; st.relaxed.gpu.global.u32 [%rd1], 41; bra END;
READ: ld.relaxed.gpu.global.u32 %r1, [%rd1]; setp.eq.u32 %p2, %r1, 0; @%p2 bra READ;
 ld.global.u32 %r2, [%rd1]; st.global.u32 [%rd2], %r2; END:"""


def test_one_word_is_not_read_backwards():
    data, out = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    run(WORD, "ptr:values ptr:out", (data, out), grid=2, schedule="weak")
    assert out[0] == 41


def test_a_fence_reaches_as_far_as_its_scope():
    fence = "fence.acq_rel.cta;"
    assert received(middle=fence, who="%warp", block=64) == 41
    assert received(middle=fence, grid=2) == 0
    assert received(middle="fence.acq_rel.cluster;", grid=2) == 0
    assert received(middle="fence.acq_rel.cluster;", grid=2, cluster=2) == 41


TEAM = """ld.param.u64 %rd1, [values]; ld.param.u64 %rd2, [flag]; ld.param.u64 %rd3, [out];
 mov.u32 %r9, %ctaid.x; setp.ne.u32 %p1, %r9, 0; mul.wide.u32 %rd4, %thread, 4; add.u64 %rd5, %rd1, %rd4;
 @%p1 bra READ; st.global.u32 [%rd5], 41; {middle} @%first {store}; bra END;
READ: ld.acquire.gpu.global.u32 %r1, [%rd2]; setp.eq.u32 %p2, %r1, 0; @%p2 bra READ;
 ld.global.u32 %r2, [%rd5]; add.u64 %rd6, %rd3, %rd4; st.global.u32 [%rd6], %r2; END:"""


@pytest.mark.parametrize(
    ("middle", "store", "right"),
    [
        ("bar.sync 0;", "st.release.gpu.global.u32 [%rd2], 1", True),
        ("bar.sync 0; fence.acq_rel.gpu;", "st.relaxed.gpu.global.u32 [%rd2], 1", True),
        ("bar.sync 0;", "st.relaxed.gpu.global.u32 [%rd2], 1", False),
        ("", "st.release.gpu.global.u32 [%rd2], 1", False),
    ],
)
def test_a_release_covers_the_stores_of_warps_that_its_warp_has_synchronised_with(middle, store, right):
    data, flag, out = np.zeros(128, np.uint32), np.zeros(1, np.uint32), np.zeros(128, np.uint32)
    body = TEAM.format(middle=middle, store=store)
    run(body, "ptr:values ptr:flag ptr:out", (data, flag, out), block=128, grid=2, schedule="weak")
    assert (out == 41).all() == right


SHARED = """ld.param.u64 %rd3, [out]; mov.u32 %r1, data; mul.lo.u32 %r2, %thread, 4; add.u32 %r3, %r1, %r2;
 xor.b32 %r4, %r2, 128; add.u32 %r5, %r1, %r4; st.shared.u32 [%r3], 0; bar.sync 0;
 add.u32 %r6, %thread, 7; st.shared.u32 [%r3], %r6; {middle}
 ld.shared.u32 %r7, [%r5]; mul.wide.u32 %rd4, %thread, 4; add.u64 %rd5, %rd3, %rd4; st.global.u32 [%rd5], %r7;"""


@pytest.mark.parametrize(
    ("middle", "right"),
    [
        ("bar.sync 0;", True),
        ("barrier.cluster.arrive; barrier.cluster.wait;", True),
        ("barrier.cluster.arrive.relaxed; barrier.cluster.wait;", False),
        ("", False),
    ],
)
def test_shared_memory_is_buffered_too(middle, right):
    out = np.zeros(64, np.uint32)
    run(SHARED.format(middle=middle), "ptr:out", (out,), block=64, schedule="weak")
    assert (out == (np.arange(64) ^ 32) + 7).all() == right


OWN = """ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %thread, 4; add.u64 %rd3, %rd1, %rd2;
 st.global.u32 [%rd3], %thread; ld.global.u32 %r1, [%rd3]; add.u32 %r1, %r1, 5; st.global.u32 [%rd3], %r1;
 red.global.add.u32 [%rd3], 10; ld.global.u8 %r2, [%rd3]; st.global.v2.u8 [%rd3], {%r2, %r2};"""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_warp_sees_its_own_stores(seed):
    out = np.zeros(64, np.uint32)
    run(OWN, "ptr:out", (out,), block=64, schedule="weak", seed=seed)
    assert (out == (np.arange(64) + 15) * 257).all()


@pytest.mark.parametrize(
    "body", ["st.global.u32 [%rd1+4], 1;", "st.global.u32 [%rd1+2], 1;", "st.shared.u32 [data+8000], 1;"]
)
def test_a_store_outside_faults_where_it_is_executed(body):
    messages = []
    for schedule in ("lazy", "weak"):
        with pytest.raises(WarploomError) as caught:
            run(f"ld.param.u64 %rd1, [out]; {body}", "ptr:out", (np.zeros(1, np.uint32),), schedule=schedule)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_weak_run_is_found_by_explore_shrunk_and_replayed(tmp_path):
    data, flag, out = (np.zeros(1, np.uint32) for _ in range(3))
    after = {"middle": "", "store": "st.relaxed.gpu.global.u32 [%rd2], 1", "after": ""}
    ptx = text(MESSAGE.format(who="%ctaid.x", load="ld.acquire.gpu.global.u32", **after), "ptr:values ptr:flag ptr:out")
    ran = launch(ptx, grid=2, block=32, args=(data, flag, out), schedule="explore")
    assert ran.failure.found_by == "weak, seed 0"
    assert ran.failure.delayed == ("CTA (0,0) warp 0: store.global 0",)
    assert ran.failure.event.source.text.startswith("st.global.u32")
    assert f"parts from a passing run where CTA (0,0), warp 0 at {ran.failure.event.source.loc}" in str(ran.failure)
    file = tmp_path / "weak.json"
    ran.failure.schedule.save(file)
    for array in (data, flag, out):
        array[:] = 0
    launch(ptx, grid=2, block=32, args=(data, flag, out), schedule=str(file))
    assert (data[0], out[0]) == (41, 0)


class Watch:
    def __init__(self):
        self.events = 0

    def on_event(self, event):
        self.events += 1


@pytest.mark.parametrize("seed", SEEDS)
def test_an_observer_changes_nothing(seed):
    """Every choice has the same options, and the stale value is the same."""
    runs = []
    for watch in ((), (Watch(),)):
        recorded = Recorded(Weak(seed))
        runs.append((received(recorded, grid=2, observers=watch), recorded.choices))
    assert runs[0] == runs[1]
    assert watch[0].events


@pytest.mark.parametrize("seed", [0, 3])
def test_a_recorded_run_is_the_same(tmp_path, seed):
    results = []
    recorded, file = Recorded(Weak(seed)), tmp_path / "weak.json"
    for schedule in (recorded, str(file), by_name("weak", seed)):
        bound, out = FAMILIES["sm_90a split-K in memory"]()
        launch(bound, schedule=schedule)
        results.append(out.tobytes())
        recorded.save(file)
    assert len(set(results)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_library_kernels_give_the_same_bits(name):
    found = []
    for schedule, seed in (("eager", 0), ("weak", 0), ("weak", 1)):
        bound, out = FAMILIES[name]()
        launch(bound, schedule=schedule, seed=seed)
        found.append(out.tobytes())
    assert found[0] == found[1] == found[2]


FENCED = """ld.param.u64 %rd1, [out]; mov.u32 %r1, data; mov.u32 %r2, %tid.x; shl.b32 %r3, %r2, 2; add.u32 %r3, %r3, %r1;
 st.shared.u32 [%r3], 7; {before} bar.sync 0; {after} setp.ne.u32 %p1, %r2, 0; @%p1 bra END;
 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END:"""


@pytest.mark.parametrize("schedule", ["weak", "lazy", "random"])
@pytest.mark.parametrize(("place", "right"), [("before", True), ("after", True), ("", False)])
def test_a_proxy_fence_on_either_side_of_a_barrier(schedule, place, right):
    """A warp that fences after the barrier publishes stores of the other warp that are still in its buffer."""
    fences = {"before": "", "after": "", place: "fence.proxy.async.shared::cta;"}
    body, found = FENCED.format(**fences), []
    for seed in SEEDS:
        out = np.zeros(64, np.uint32)
        run(body, "ptr:out", (out,), schedule=schedule, seed=seed, block=64)
        found.append(bool((out == 7).all()))
    assert all(found) if right else not all(found)
