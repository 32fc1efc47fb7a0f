"""Events: their exact sequence for known kernels, none missing or duplicated, and observers change nothing."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from functools import cache

import numpy as np
import pytest
from tests.machine.asynchronous import init, run, wait
from tests.machine.protocols import PROTOCOLS, RING_STEPS, Protocol, kernel, without

from warploom import TensorMap, launch
from warploom.machine.core.schedule import Random
from warploom.machine.observers import events, reporting
from warploom.ptx.isa.table import decode_kernel
from warploom.ptx.syntax.parser import parse

SCHEDULES = (("eager", 0), ("lazy", 0), ("reverse", 0), ("random", 1), ("random", 2))
ALL = 0xFFFFFFFF


@cache
def protocol(name: str) -> Protocol:
    return PROTOCOLS[name]()


class Watch:
    """Keeps every event but exits."""

    def __init__(self):
        self.events = []

    def on_event(self, event):
        if event.kind != "exit":
            self.events.append(event)


def watched(name: str, text: str | None = None, **options) -> list:
    watch = Watch()
    protocol(name).wrong(text, observers=[watch], **options)
    return watch.events


def line(event) -> str:
    """Format an event: kind, verb, barrier and phase, count, group, touches."""
    parts = [event.kind, event.verb]
    if event.barrier is not None:
        parts.append(f"{event.barrier.name}#{event.phase}")
    if event.count:
        parts.append(f"x{event.count}")
    if event.group is not None:
        parts.append(f"{event.group.kind}:{event.group.number}")
    parts += [f"{t.verb[0]} {t.space}/{t.proxy} {t.bytes}" for t in event.touches if t.space != "register"]
    return " ".join(parts)


def of_warp(events: list, warp: int) -> list[str]:
    """The events of a warp and its asynchronous operations, without its parameter loads."""
    return [line(e) for e in events if e.agent.warp == warp and e.space != "param"]


MEET = ["arrive syncs barrier 0#{0} x32", "wait syncs barrier 0#{0}"]


def test_events_of_a_producer_name_barriers_phases_and_bytes():
    """Under the eager schedule a copy completes at issue, between expect_tx and the end of the phase."""
    expected = [part.format(0) for part in MEET]
    for step in range(RING_STEPS):
        stage, lap = step % 2, step // 2
        if lap:
            expected.append(f"wait waits empty[{stage}]#{lap - 1}")
        expected += [f"arrive expects full[{stage}]#{lap} x2304", f"arrive arrives full[{stage}]#{lap} x1"]
        for size in (2048, 256):
            moved = f"operation r global/async {size} w shared/async {size} c shared/generic 8"
            expected += [f"issue {moved}", f"complete {moved}", f"arrive completes full[{stage}]#{lap} x{size}"]
        expected.append(f"complete phase full[{stage}]#{lap}")
    assert of_warp(watched("ring"), 4)[:-2] == expected


def test_events_of_a_consumer_name_waits_groups_and_operands():
    events = watched("ring", schedule="lazy")
    expected = [
        f"alloc allocates {name}[{i}]#0 x{count}" for name, count in (("full", 1), ("empty", 4)) for i in (0, 1)
    ]
    expected += [part.format(0) for part in MEET]
    for step in range(RING_STEPS):
        stage, lap = step % 2, step // 2
        reads = "r shared/async 2048 r shared/async 256"
        expected += [
            f"wait waits full[{stage}]#{lap}",
            "fence fences",
            f"issue operation wgmma:{step} {reads}",
            f"issue commits wgmma:{step}",
            f"complete operation wgmma:{step} {reads}",
            f"wait drains wgmma:{step + 1}",
            f"arrive arrives empty[{stage}]#{lap} x1",
        ]
    got = [text for text in of_warp(events, 0) if not text.startswith("complete phase")]
    assert got[: len(expected)] == expected


def test_events_of_tcgen05_name_order_and_memory():
    """Operations of one thread are numbered; a commit arrives after them; TMEM loads and waits match."""
    events = [e for e in watched("tensor copy", schedule="lazy") if e.agent.warp == 0]
    work = [line(e) for e in events if e.kind not in ("access", "fence") and "barrier 0" not in line(e)]
    mma = "tcgen05:0 r shared/async 512 r shared/async 4096 w tensor/tcgen05 8192"
    copy = "tcgen05:1 r shared/async 4096 w tensor/tcgen05 4096"
    commit = "tcgen05:2 a shared/generic 8"
    load = "tensor load:0 r tensor/tcgen05 2048"
    assert work == [
        "alloc allocates bars#0 x1",
        "wait syncs",
        "alloc allocates a tensor/tcgen05 32768",
        f"issue operation {mma}",
        f"issue operation {copy}",
        f"issue operation {commit}",
        f"complete operation {mma}",
        f"complete operation {copy}",
        f"complete operation {commit}",
        "arrive arrives bars#0 x1",
        "complete phase bars#0",
        "wait waits bars#0",
        f"issue operation {load}",
        f"complete operation {load}",
        "wait drains tensor load:1",
        "wait waits bars#0",
        "free frees f tensor/tcgen05 32768",
    ]


def test_events_of_a_store_name_its_read_and_its_write():
    events = watched("store", schedule="lazy")
    groups = [line(e) for e in events if e.agent.warp == 0 and e.group is not None]
    expected = []
    for tile in (0, 1):
        read, write = f"bulk:{tile} r shared/async 256", f"bulk:{tile} w global/async 256"
        expected += [f"issue operation {read}", f"issue operation {write}", f"issue commits bulk:{tile}"]
        expected += [f"complete operation {read}", f"wait drains bulk:{tile + 1}"] if tile == 0 else []
    assert groups[: len(expected)] == expected
    assert [e.semantics for e in events if e.verb == "drains"] == ["read", ""]
    assert all(e.lanes == 1 for e in events if e.group is not None)


def test_fields_of_single_events():
    """Agent, lanes, scope, semantics and source of single events."""
    events = watched("tensor", schedule="lazy")
    fences = [e for e in events if e.kind == "fence" and e.proxy == "async"]
    assert [(e.agent.warp, e.lanes, e.space) for e in fences] == [(warp, ALL, "shared") for warp in range(4)]
    assert fences[0].source.text == "fence.proxy.async.shared::cta"
    listing = protocol("tensor").text.splitlines()
    assert all(listing[e.source.line - 1].find(e.source.text.split()[0]) >= 0 for e in events)
    wait_event = next(e for e in events if e.verb == "waits")
    assert (wait_event.semantics, wait_event.scope, wait_event.barrier.kind) == ("acquire", "cta", "mbarrier")
    commit = next(e for e in events if e.verb == "arrives" and e.operation)
    assert commit.agent.operation == commit.operation
    assert (commit.lanes, commit.scope, commit.semantics) == (1, "cluster", "release")
    stores = [e for e in events if e.kind == "access" and e.verb == "writes" and e.space == "shared" and e.lanes == ALL]
    first = stores[0].touches[0]
    assert (first.width, first.cta, first.proxy, stores[0].semantics) == (16, (0, 0, 0), "generic", "weak")
    np.testing.assert_array_equal(np.diff(first.addresses), 16)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_operation_is_issued_once_and_completes_once(name, schedule, seed):
    events = watched(name, schedule=schedule, seed=seed)
    issued = [e.operation for e in events if e.kind == "issue" and e.operation]
    done = [e.operation for e in events if e.kind == "complete" and e.operation]
    assert len(issued) == len(set(issued))
    assert sorted(issued) == sorted(done)
    begun = set()
    for event in events:
        if event.operation:
            assert event.kind == "issue" or event.operation in begun, "nothing happens before its issue"
            begun.add(event.operation)


@pytest.mark.parametrize("name", ["load", "ring", "store", "tensor copy"])
def test_bytes_of_events_are_the_bytes_moved(name):
    args, _, _ = protocol(name).make()
    watch = Watch()
    block = (protocol(name).block, 1, 1)
    done = launch(protocol(name).text, grid=(1, 1, 1), block=block, args=args, observers=[watch], schedule="random")
    moved = Counter()
    for event in watch.events:
        if event.kind == "complete" and event.operation:
            spaces = {(t.verb, t.space): t.bytes for t in event.touches}
            if ("writes", "shared") in spaces:
                moved["global->shared"] += spaces["writes", "shared"]
            elif ("writes", "global") in spaces:
                moved["shared->global"] += spaces["writes", "global"]
            elif "cp" in event.source.text.split(".")[1]:
                moved["shared->tensor"] += spaces["writes", "tensor"]
    assert moved == done.bytes_moved


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_observers_change_nothing(name, schedule, seed):
    outcomes = []
    for observers in ([], [Watch()]):
        args, out, _ = protocol(name).make()
        block = (protocol(name).block, 1, 1)
        options = {"schedule": schedule, "seed": seed, "observers": observers}
        done = launch(protocol(name).text, grid=(1, 1, 1), block=block, args=args, **options)
        outcomes.append((out.tobytes(), done.counts, done.bytes_moved, done.coverage))
    assert outcomes[0] == outcomes[1]


def test_observers_do_not_change_a_choice():
    """The same choices in the same order, so that a recording fits both."""

    class Log(Random):
        def __post_init__(self):
            super().__post_init__()
            self.log = []

        def choose(self, kind, options, groups):
            answer = super().choose(kind, options, groups)
            self.log.append((kind, tuple(options), groups, answer))
            return answer

    for name in PROTOCOLS:
        logs = [Log(7), Log(7)]
        protocol(name).wrong(schedule=logs[0])
        protocol(name).wrong(schedule=logs[1], observers=[Watch()])
        assert logs[0].log == logs[1].log


@pytest.mark.parametrize("made", [events.Event, events.Touch, reporting.Reporter, reporting.Actor, events.CommitGroup])
def test_no_event_is_created_without_observers(made, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError(f"{made.__name__} is made")

    monkeypatch.setattr(made, "__new__" if issubclass(made, tuple) else "__init__", refuse)
    for name in PROTOCOLS:
        for schedule in ("eager", "random"):
            assert protocol(name).wrong(schedule=schedule) == 0


@pytest.mark.parametrize("schedule", ["eager", "random"])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_declared_effect_has_an_event(name, schedule):
    """Every effect of every executed instruction's row has an event; those that happen later are in the touches."""
    module = parse(protocol(name).text)
    declared = defaultdict(set)
    for op in decode_kernel(module.kernels[0], module.target[0]):
        declared[op.instruction.text].update(effect.verb for effect in op.form.effects)
    told = defaultdict(set)
    for event in watched(name, schedule=schedule):
        told[event.source.text] |= {event.verb, *(touch.verb for touch in event.touches)}
    optional = {"tcgen05.mma": {"reads"}}
    for text, verbs in told.items():
        missing = declared[text] - verbs
        assert missing <= next((o for start, o in optional.items() if start in text), set()), text
    executed = {text for text, verbs in declared.items() if verbs}
    assert executed <= set(told)


def test_events_of_a_convoy_are_per_warp():
    """Four warps in lockstep: accesses, copies, arrivals and their groups belong to the warp that made them."""
    body = f"""{init(128)} mov.u32 %r4, %tid.x; shl.b32 %r1, %r4, 2; mov.u32 %r2, data; add.u32 %r2, %r2, %r1;
        ld.param.u64 %rd1, [src]; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd1, %rd1, %rd2;
        cp.async.ca.shared.global [%r2], [%rd1], 4; cp.async.commit_group; cp.async.wait_group 0;
        st.shared.u32 [%r2], %r4; mbarrier.arrive.shared.b64 _, [bars]; bar.sync 0;"""
    watch, src = Watch(), np.zeros(128, np.uint32)
    run(body, "ptr:src", (src,), block=128, observers=[watch])
    told = defaultdict(list)
    for event in watch.events:
        told[event.source.text.split()[0], event.kind].append(event)
    for (text, kind), found in told.items():
        if text.startswith(("cp.async", "st.shared", "bar.sync")) or (
            text.startswith("mbarrier.arrive") and kind == "arrive"
        ):
            assert [e.agent.warp for e in found] == [0, 1, 2, 3] * (len(found) // 4), text
            assert all(e.lanes == ALL for e in found), text
    stores = told["st.shared.u32", "access"]
    assert [e.touches[0].addresses[0] - stores[0].touches[0].addresses[0] for e in stores] == [0, 128, 256, 384]
    copies = told["cp.async.ca.shared.global", "complete"]
    assert [len(t.addresses) for e in copies for t in e.touches] == [32] * 8
    assert len({e.operation for e in copies}) == 4
    arrivals = told["mbarrier.arrive.shared.b64", "arrive"]
    assert [e.count for e in arrivals] == [32] * 4
    assert len(told["mbarrier.arrive.shared.b64", "complete"]) == 1
    assert {e.count for e in told["bar.sync", "arrive"]} == {32}


class UseBeforeWait:
    """Finds generic reads of what a copy wrote, by a warp that has not waited for the phase that counts its bytes."""

    def __init__(self):
        self.owner, self.known, self.found, self.flying = {}, defaultdict(set), set(), {}

    def on_event(self, event):
        if event.kind == "issue":
            self.flying[event.operation] = [t for t in event.touches if t.verb == "writes" and t.space == "shared"]
        elif event.verb == "completes" and event.operation in self.flying:
            for touch in self.flying[event.operation]:
                self.owner |= {at // 16: (event.barrier, event.phase) for at in range(*bounds(touch), 16)}
        elif event.kind == "wait" and event.passed and event.barrier is not None:
            self.known[event.agent.warp].add((event.barrier, event.phase))
        elif event.kind == "access" and event.space == "shared" and event.verb == "reads":
            for at in event.touches[0].addresses.tolist():
                if self.owner.get(at // 16, (None, 0)) not in {(None, 0), *self.known[event.agent.warp]}:
                    self.found.add(event.source.line)


def bounds(touch) -> tuple[int, int]:
    return int(touch.addresses.min()), int(touch.addresses.max()) + touch.width


def test_a_short_check_finds_a_race_that_the_results_hide():
    for text, expected in ((protocol("load").text, 0), (without(protocol("load").text, "wait"), 1)):
        check = UseBeforeWait()
        assert protocol("load").wrong(text, observers=[check], schedule="eager") == 0
        assert len(check.found) == expected


def access_events(body: str, params: str = "", args: tuple = (), **options) -> list:
    watch = Watch()
    run(body, params, args, observers=[watch], **options)
    return [e for e in watch.events if e.kind == "access" and e.space != "param"]


def test_generic_addresses_are_reported_by_space_and_owner():
    """Even lanes store to shared memory, odd ones to global memory, through one generic store."""
    out = np.zeros(32, np.uint32)
    body = """ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %lane, 4; add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r1, data; cvt.u64.u32 %rd3, %r1; cvta.shared.u64 %rd3, %rd3; add.u64 %rd3, %rd3, %rd2;
    and.b32 %r2, %lane, 1; setp.eq.u32 %p1, %r2, 1; selp.b64 %rd4, %rd1, %rd3, %p1;
    st.u32 [%rd4], %lane;"""
    events = access_events(body, "ptr:out", (out,))
    assert {(e.space, e.lanes) for e in events} == {("shared", 0x55555555), ("global", 0xAAAAAAAA)}
    by_space = {e.space: e.touches[0] for e in events}
    assert by_space["shared"].cta == (0, 0, 0)
    assert by_space["global"].cta is None
    np.testing.assert_array_equal(np.diff(by_space["shared"].addresses), 8)


def test_memory_of_a_peer_is_reported_as_such():
    body = """mapa.shared::cluster.u32 %r1, %thread, 0; xor.b32 %r2, %rank, 1; mov.u32 %r3, data;
    mapa.shared::cluster.u32 %r1, %r3, %r2; st.shared::cluster.u32 [%r1], %rank;
    barrier.cluster.arrive; barrier.cluster.wait;"""
    events = access_events(body, grid=2, cluster=2)
    assert [(e.agent.cta[0], e.touches[0].cta[0]) for e in events] == [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("text", "verbs", "width", "semantics", "lanes"),
    [
        ("ld.volatile.shared.v2.u32 {%r1, %r2}, [data];", ["reads"], 8, "volatile", ALL),
        ("@%leader st.release.cta.shared.u64 [data], %rd1;", ["writes"], 8, "release", 1),
        ("atom.acq_rel.gpu.shared.add.u32 %r1, [data], 1;", ["reads", "writes"], 4, "atomic acq_rel", ALL),
        ("red.shared.add.u32 [data], 1;", ["reads", "writes"], 4, "atomic relaxed", ALL),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [data];", ["reads"], 16, "weak", 0xFFFF),
    ],
)
def test_widths_semantics_and_lanes_come_from_the_row(text, verbs, width, semantics, lanes):
    events = access_events(text)
    assert [e.verb for e in events] == verbs
    assert {(e.touches[0].width, e.semantics, e.lanes) for e in events} == {(width, semantics, lanes)}


def test_lanes_at_different_barriers_have_separate_events():
    body = f"""{init(16, 16)} and.b32 %r1, %lane, 1; shl.b32 %r1, %r1, 3; mov.u32 %r2, bars; add.u32 %r1, %r1, %r2;
    mbarrier.arrive.shared::cta.b64 %rd3, [%r1];
    W: mbarrier.try_wait.shared::cta.b64 %p1, [%r1], %rd3; @!%p1 bra W;"""
    watch = Watch()
    run(body, observers=[watch])
    arrivals = [(e.barrier.name, e.lanes, e.count) for e in watch.events if e.verb == "arrives"]
    assert arrivals == [("bars", 0x55555555, 16), ("bars+0x8", 0xAAAAAAAA, 16)]
    waits = [(e.barrier.name, e.lanes, e.phase, e.passed) for e in watch.events if e.verb == "waits"]
    assert waits == [("bars", 0x55555555, 0, True), ("bars+0x8", 0xAAAAAAAA, 0, True)]


def test_a_failed_wait_is_reported_as_such():
    watch = Watch()
    run(f"{init(1)} mbarrier.test_wait.parity.shared::cta.b64 %p1, [bars], 0;", observers=[watch])
    assert [(e.phase, e.passed) for e in watch.events if e.kind == "wait" and e.verb == "waits"] == [(0, False)]


def test_lanes_on_different_paths_arrive_before_they_continue():
    body = """setp.lt.u32 %p1, %lane, 10; @%p1 bra A; bar.warp.sync -1; bra B; A: bar.warp.sync -1; B:"""
    watch = Watch()
    run(body, observers=[watch])
    told = [(e.kind, e.lanes, e.phase) for e in watch.events if e.verb == "syncs"]
    assert [kind for kind, _, _ in told] == ["arrive", "arrive", "wait", "wait"]
    assert {lanes for _, lanes, _ in told} == {0x3FF, ALL ^ 0x3FF}
    assert {phase for _, _, phase in told} == {0}


def test_cp_async_belongs_to_groups_and_arrives_on_barriers():
    source = np.arange(64, dtype=np.uint32)
    body = f"""{init(64)} ld.param.u64 %rd1, [src]; mul.wide.u32 %rd2, %thread, 4; add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r1, data; shl.b32 %r2, %thread, 2; add.u32 %r1, %r1, %r2;
    cp.async.ca.shared.global [%r1], [%rd1], 4; cp.async.commit_group;
    cp.async.ca.shared.global [%r1+256], [%rd1], 4, 0;
    cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bars]; {wait("W")}
    cp.async.wait_all;"""
    watch = Watch()
    run(body, "ptr:src", (source,), block=64, observers=[watch], schedule="lazy")
    told = [line(e) for e in watch.events if e.agent.warp == 0 and e.group is not None and e.kind != "complete"]
    assert told == [
        "issue operation cp.async:0 r global/generic 128 w shared/generic 128",
        "issue commits cp.async:0",
        "issue operation cp.async:1 w shared/generic 128",
        "issue operation cp.async:1 a shared/generic 8",
        "issue commits cp.async:1",
        "wait drains cp.async:2",
    ]


def test_a_clipped_box_touches_only_the_tensor():
    array = np.zeros((9, 20), np.uint32)
    body = f"""{init(1)} mov.b64 %rd1, a; @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 256;
    @%first cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [data], [%rd1, {{16, 7}}], [bars];
    {wait("W")}"""
    watch = Watch()
    run(body, "map:a", (TensorMap(array, box=(4, 16)),), observers=[watch])
    reads, writes, _ = next(e for e in watch.events if e.kind == "issue").touches
    assert (len(reads.addresses), reads.width, reads.bytes) == (2, 16, 32)
    assert np.diff(reads.addresses).tolist() == [80]
    assert writes.bytes == 256


def test_a_swizzled_box_with_narrow_rows_touches_its_granules():
    array = np.zeros((16, 8), np.uint32)
    body = f"""{init(1)} mov.b64 %rd1, a; @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 128;
    @%first cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [data], [%rd1, {{0, 0}}], [bars];
    {wait("W")}"""
    watch = Watch()
    run(body, "map:a", (TensorMap(array, box=(4, 8), swizzle="64B"),), observers=[watch])
    writes = next(e for e in watch.events if e.kind == "issue").touches[1]
    assert (len(writes.addresses), writes.width) == (8, 16)


def test_fences_name_their_space_proxy_and_scope():
    body = "fence.acq_rel.gpu; fence.proxy.async; fence.mbarrier_init.release.cluster; membar.cta;"
    watch = Watch()
    launch(kernel("", body), grid=(1, 1, 1), block=(32, 1, 1), observers=[watch])
    assert [(e.space, e.proxy, e.scope, e.semantics) for e in watch.events] == [
        ("", "generic", "gpu", "acq_rel"),
        ("", "async", "", ""),
        ("shared", "generic", "cluster", "mbarrier_init"),
        ("", "generic", "cta", "sc"),
    ]


def test_the_cost_of_observers(capsys):
    """Printed, not asserted."""

    class Nothing:
        def on_event(self, event):
            pass

    times = {}
    for name, observers in (("plain", []), ("watched", [Nothing()])):
        protocol("ring").wrong(observers=observers, schedule="lazy")
        start = time.perf_counter()
        for _ in range(3):
            protocol("ring").wrong(observers=observers, schedule="lazy")
        times[name] = time.perf_counter() - start
    with capsys.disabled():
        print(f" watched / plain: {times['watched'] / times['plain']:.2f} ", end="")


STORES = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    st.global.u32 [%rd1], %r1;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 3;
    ret;
}
"""


def test_events_of_a_launch_name_instructions_exits_and_stores_that_change_nothing():
    class Watcher(Watch):
        def on_start(self, started):
            self.started, self.exits = started, []

        def on_event(self, event):
            super().on_event(event)
            if event.kind == "exit":
                self.exits.append((event.agent.cta, event.agent.warp, event.lanes))

    watch, out = Watcher(), np.zeros(4, np.uint32)
    launch(STORES, grid=2, block=64, args=[out], observers=[watch])
    assert watch.started.block == (64, 1, 1)
    (array,) = watch.started.arrays
    assert array.size == 16
    stores = [e for e in watch.events if e.kind == "access" and e.verb == "writes"]
    assert {e.touches[0].addresses[0] for e in stores} == {array.base}
    numbers = sorted({e.source.number for e in stores})
    assert len(numbers) == 2
    assert [e.changes for e in stores].count(True) == 1
    assert stores[0].changes
    assert {e.leave for e in watch.events if e.verb == "drains"} == {3}
    assert sorted(watch.exits) == [((x, 0, 0), warp, 0xFFFF_FFFF) for x in range(2) for warp in range(2)]
