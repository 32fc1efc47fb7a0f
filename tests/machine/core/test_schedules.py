"""Schedules: their choices, the errors they reveal in kernels without a synchronisation, recording and replay."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from tests.machine.asynchronous import run
from tests.machine.instructions.test_clc import loop
from tests.machine.protocols import PROTOCOLS, Protocol, kernel, without

import warploom
from warploom import HopperConfig, MatmulConfig, launch
from warploom.diagnostics import WarploomError
from warploom.machine.core.schedule import Eager, Lazy, Random, Recorded, Reverse, Schedule
from warploom.machine.memory.proxy_visibility import Exchange, Knowledge, Sight
from warploom.machine.memory.shared_memory import SharedMemory
from warploom.ptx.syntax.printer import print_module

SCHEDULES = (("eager", 0), ("lazy", 0), ("reverse", 0), *(("random", seed) for seed in range(5)))
LATE = SCHEDULES[1:]


@cache
def protocol(name: str) -> Protocol:
    return PROTOCOLS[name]()


class Watch:
    """Keeps every event."""

    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_whole_protocols_are_right(name, schedule, seed):
    assert protocol(name).wrong(schedule=schedule, seed=seed) == 0


@pytest.mark.parametrize(("name", "mark"), [(name, mark) for name in PROTOCOLS for mark in protocol(name).marks])
def test_without_a_synchronisation_some_schedule_gives_wrong_numbers(name, mark):
    cut, found = without(protocol(name).text, mark), Counter()
    for schedule, seed in LATE:
        try:
            found["wrong" if protocol(name).wrong(cut, schedule=schedule, seed=seed) else "right"] += 1
        except WarploomError as error:
            found[error.code] += 1
    assert found["wrong"], found


def test_the_eager_schedule_hides_errors_that_others_reveal():
    """A kernel that is right only if copies are fast: the reason for the other schedules."""
    cut = without(protocol("load").text, "wait")
    assert protocol("load").wrong(cut, schedule="eager") == 0
    assert protocol("load").wrong(cut, schedule="lazy") == 128


# Fences and the stores they publish. Two warps store 32 words each; thread 0 sends all of them with a bulk copy.
SEND = """
 ld.param.u64 %out, [out]; shl.b32 %r0, %me, 2; add.u32 %r1, %smem, %r0; mad.lo.u32 %r2, %me, 5, 7;
 setp.eq.u32 %q, %warp, 1;
 {before}
 st.shared.u32 [%r1], %r2;
 {between}
 bar.sync 0;
 {after}
 @%first cp.async.bulk.global.shared::cta.bulk_group [%out], [data], 256;
 @%first cp.async.bulk.commit_group;
 @%first cp.async.bulk.wait_group 0;
"""
FENCE = "fence.proxy.async.shared::cta;"
PLACES = {
    "every writer": ("", FENCE, "", set()),
    "the sender, after the barrier": ("", "", "@%first " + FENCE, set()),
    "no fence": ("", "", "", {0, 1}),
    "too early": (FENCE, "", "", {0, 1}),
    "warp 0 only": ("", "@!%q " + FENCE, "", {1}),
    "warp 1 only": ("", "@%q " + FENCE, "", {0}),
    "another warp, after the barrier": ("", "", "@%q " + FENCE + " bar.sync 1;", set()),
    "the wrong fence": ("", "fence.acq_rel.gpu;", "", {0, 1}),
    "the wrong space": ("", "fence.proxy.async.global;", "", {0, 1}),
    "a warp that saw the other's flag": (
        "",
        f"""@%q st.volatile.shared.u32 [slot], 1; @%q bra ON;
        SPIN: ld.volatile.shared.u32 %r5, [slot]; setp.ne.u32 %p, %r5, 1; @%p bra SPIN;
        {FENCE} ON:""",
        "",
        set(),
    ),
}


@pytest.mark.parametrize(("schedule", "seed"), LATE)
@pytest.mark.parametrize("where", PLACES)
def test_a_fence_publishes_what_its_warp_knows(where, schedule, seed):
    before, between, after, stale = PLACES[where]
    body = SEND.format(before=before, between=between, after=after)
    out = np.zeros(64, np.uint32)
    launch(kernel("ptr:out", body), grid=(1, 1, 1), block=(64, 1, 1), args=[out], schedule=schedule, seed=seed)
    right = out == np.arange(64, dtype=np.uint32) * 5 + 7
    poison = out == 0xFFFFFFFF
    for warp in (0, 1):
        lanes = slice(32 * warp, 32 * warp + 32)
        assert (poison if warp in stale else right)[lanes].all()


# The same through a peer: CTA 1 stores into CTA 0, which sends.
REMOTE = """
 ld.param.u64 %out, [out]; mov.u32 %r7, %cluster_ctarank; setp.eq.u32 %q, %r7, 1;
 mapa.shared::cluster.u32 %r1, %smem, 0; shl.b32 %r0, %me, 2; add.u32 %r1, %r1, %r0; mad.lo.u32 %r2, %me, 5, 7;
 @%q st.shared::cluster.u32 [%r1], %r2;
 {between}
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
 {after}
 not.pred %q, %q; and.pred %q, %q, %first;
 @%q cp.async.bulk.global.shared::cta.bulk_group [%out], [data], 128;
 @%q cp.async.bulk.commit_group;
 @%q cp.async.bulk.wait_group 0;
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
REMOTE_PLACES = {
    "the writer": ("@%q fence.proxy.async;", "", True),
    "the sender": ("", "@!%q fence.proxy.async;", True),
    "the sender, too early": ("@!%q fence.proxy.async;", "", False),
    "no fence": ("", "", False),
}


@pytest.mark.parametrize(("schedule", "seed"), LATE)
@pytest.mark.parametrize("where", REMOTE_PLACES)
def test_warps_of_two_ctas_are_distinguished(where, schedule, seed):
    """Warp 0 of one CTA is not warp 0 of the other, and knowledge crosses the cluster barrier."""
    between, after, fresh = REMOTE_PLACES[where]
    out = np.zeros(32, np.uint32)
    launch(
        kernel("ptr:out", REMOTE.format(between=between, after=after)),
        grid=(2, 1, 1),
        block=(32, 1, 1),
        cluster=(2, 1, 1),
        args=[out],
        schedule=schedule,
        seed=seed,
    )
    expected = np.arange(32, dtype=np.uint32) * 5 + 7 if fresh else np.full(32, 0xFFFFFFFF, np.uint32)
    np.testing.assert_array_equal(out, expected)


# st.async: the bytes of CTA 1 arrive at a barrier of CTA 0, whose waiter fences and sends.
STORED = """
 @%first mbarrier.init.shared::cta.b64 [bars], 1; @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 128;
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
 ld.param.u64 %out, [out]; mov.u32 %r7, %cluster_ctarank; setp.eq.u32 %q, %r7, 1; mov.u32 %r8, bars;
 mapa.shared::cluster.u32 %r1, %smem, 0; mapa.shared::cluster.u32 %r8, %r8, 0; shl.b32 %r0, %me, 2;
 add.u32 %r1, %r1, %r0; mad.lo.u32 %r2, %me, 5, 7;
 @%q st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r8];
 @%q bra END;
 W: mbarrier.try_wait.parity.shared::cta.b64 %p, [bars], 0; @!%p bra W;
 {fence}
 @%first cp.async.bulk.global.shared::cta.bulk_group [%out], [data], 128;
 @%first cp.async.bulk.commit_group;
 @%first cp.async.bulk.wait_group 0;
END:
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize(("schedule", "seed"), LATE)
@pytest.mark.parametrize("fence", [FENCE, ""])
def test_bytes_that_arrive_at_a_barrier_bring_knowledge(fence, schedule, seed):
    out = np.zeros(32, np.uint32)
    shape = {"grid": (2, 1, 1), "block": (32, 1, 1), "cluster": (2, 1, 1)}
    launch(kernel("ptr:out", STORED.format(fence=fence)), **shape, args=[out], schedule=schedule, seed=seed)
    expected = np.arange(32, dtype=np.uint32) * 5 + 7 if fence else np.full(32, 0xFFFFFFFF, np.uint32)
    np.testing.assert_array_equal(out, expected)


class TestTheTwoViews:
    """`SharedMemory` and `Knowledge` by themselves."""

    def make(self, warps=3):
        knowledge = Knowledge(warps)
        return SharedMemory(0, 0, 64, knowledge), knowledge

    def test_an_old_store_does_not_overwrite_a_newer_copy(self):
        shared, _ = self.make()
        shared.write(0, 7, 4, None, "a store", 0)
        shared.async_write(0, np.full(4, 9, np.uint8))
        shared.fence_async(0)
        assert shared.async_whole[:4].tolist() == [9] * 4
        assert shared.whole[:4].tolist() == [9] * 4

    def test_a_fence_does_not_publish_a_later_store_of_another_warp_to_the_same_bytes(self):
        shared, _ = self.make()
        shared.write(0, 7, 4, None, "a store", 0)
        shared.write(2, 1, 1, None, "a store", 1)
        shared.fence_async(0)
        assert shared.async_whole[:4].tolist() == [7, 0, 255, 0]
        shared.fence_async(1)
        assert shared.async_whole[:4].tolist() == [7, 0, 1, 0]

    def test_barriers_pass_on_the_knowledge_at_arrival(self):
        shared, knowledge = self.make()

        class Warp:
            def __init__(self, number):
                self.number = number

        first, second, third = (Warp(number) for number in range(3))
        one, two = Exchange(knowledge), Exchange(knowledge)
        shared.write(0, 1, 1, None, "a store", 0)
        one.arrive(first)
        shared.write(1, 1, 1, None, "a store", 0)
        one.turn()
        one.leave(second)
        two.arrive(second)
        two.turn()
        two.leave(third)
        shared.fence_async(2)
        assert shared.async_whole[:2].tolist() == [1, 255]

    def test_many_stores_to_the_same_address_are_not_kept(self):
        shared, _ = self.make()
        for value in range(5000):
            shared.write(np.arange(4, dtype=np.uint32) * 4, value & 255, 1, None, "a store", value % 3)
        assert len(shared._unfenced) < 2000
        for warp in range(3):
            shared.fence_async(warp)
        assert shared.async_whole[0] == 4999 & 255


def stream(name: str, schedule, seed: int = 0) -> list:
    watch = Watch()
    protocol(name).wrong(schedule=schedule, seed=seed, observers=[watch])
    return watch.events


@pytest.mark.parametrize("name", ["wgmma", "tensor copy", "store"])
def test_the_same_seed_gives_the_same_events(name):
    seeds = [stream(name, "random", seed) for seed in (3, 4, 3)]
    assert seeds[0] == seeds[2]
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("inner", [Eager, Lazy, Reverse, Random], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("name", ["wgmma", "tensor copy", "store"])
def test_a_recording_gives_the_same_events_again(name, inner, tmp_path):
    recorded, file = Recorded(inner()), tmp_path / "choices.json"
    first = stream(name, recorded)
    recorded.save(file)
    assert len(recorded.choices) == len(json.loads(file.read_text())["choices"]) > 0
    assert stream(name, str(file)) == first
    assert protocol(name).wrong(schedule=str(file)) == 0


@pytest.mark.parametrize("mark", ["fence0", "read"])
def test_a_recording_reproduces_a_wrong_result(mark, tmp_path):
    """The witness that a checker returns."""
    cut = without(protocol("store").text, mark)
    for seed in range(100):  # one in five shows it
        recorded = Recorded(Random(seed))
        wrong = protocol("store").wrong(cut, schedule=recorded)
        if wrong:
            break
    recorded.save(tmp_path / "witness.json")
    assert protocol("store").wrong(cut, schedule=str(tmp_path / "witness.json")) == wrong > 0


def refused(name: str, schedule, cut: str | None = None) -> str:
    with pytest.raises(WarploomError) as caught:
        protocol(name).wrong(cut, schedule=schedule)
    assert caught.value.code == "BAD_SCHEDULE"
    return caught.value.what


def test_a_recording_of_another_launch_is_refused(tmp_path):
    recorded, file = Recorded(Random(1)), tmp_path / "choices.json"
    protocol("store").wrong(schedule=recorded)
    recorded.save(file)
    for name, cut in (("wgmma", None), ("store", without(protocol("store").text, "read")), ("load", None)):
        assert "recorded from another program" in refused(name, str(file), cut)
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "choices": document["choices"][1:]}))
    assert "recorded from another launch" in refused("store", str(file))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "cannot be read as a recording"),
        ("[]", "is not a recorded schedule"),
        ("{}", "is not a recorded schedule"),
        ('{"two_views": true, "preempts": true, "choices": [["step", "x", 2, ""]]}', "has format 1"),
        ('{"format": 2, "two_views": true, "choices": [["step", "x", 2, ""]]}', "cannot be read as a recording"),
        ("[" * 5000, "cannot be read as a recording"),
    ],
    ids=["empty", "list", "object", "old", "letters", "deep"],
)
def test_a_file_that_is_not_a_recording_is_refused(content, what, tmp_path):
    file = tmp_path / "choices.json"
    file.write_text(content)
    assert what in refused("load", str(file))


@pytest.mark.parametrize("key", ["schedule", "two_views", "preempts", "starves"])
def test_a_recording_without_a_key_is_refused(key, tmp_path):
    recorded, file = Recorded(Random(1)), tmp_path / "choices.json"
    protocol("load").wrong(schedule=recorded)
    recorded.save(file)
    document = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in document.items() if name != key}))
    assert f"it has no '{key}'" in refused("load", str(file))
    file.write_text(json.dumps(5))
    assert "is not a recorded schedule" in refused("load", str(file))


def test_texts_of_a_recording_are_shown_without_control_characters_and_short(tmp_path):
    recorded, file = Recorded(Random(1)), tmp_path / "choices.json"
    protocol("load").wrong(schedule=recorded)
    recorded.save(file)
    document = json.loads(file.read_text())
    for change in (
        {"choices": [["step", 0, 10**300, "\x1b[31m" + "x" * 9999]]},
        {"choices": [["\x1b[31m" * 999, 0, 2, ""]]},
        {"program": "\x1b[31m" * 999},
        {"schedule": "\x1b[31m" * 999, "choices": [["step", 0, 1, ""]]},
    ):
        file.write_text(json.dumps({**document, **change}))
        message = refused("load", str(file))
        assert "\x1b" not in message
        assert len(message) < 900


@pytest.mark.parametrize("name", ["quick", "no/such.json", "random.txt"])
def test_an_unknown_name_is_refused(name):
    assert name in refused("load", name)


class Own(Schedule):
    """Takes the last option of every choice, and records the choices."""

    name = "last"

    def __init__(self):
        self.asked = Counter()
        self.steps = Counter()

    def choose(self, kind, options, groups):
        self.asked[kind] += 1
        answer = len(options) - 1 if kind in ("step", "lanes") else self.asked[kind] % 2
        if kind == "step":
            self.steps["group" if answer < groups else "launch" if options[answer] == "launch" else "operation"] += 1
        return answer


def test_every_kind_of_choice_is_requested():
    """The next warp, completion, CTA launch, CLC reply, order of atomics, and early return of try_wait."""
    own, out = Own(), np.zeros(9, np.uint32)
    served = "atom.shared.exch.b32 %r11, [bars+64], %lane;"
    run(served + loop(), "ptr:out", (out,), grid=9, sms=2, block=64, target="sm_100a", schedule=own)
    assert (out == 1).all()
    assert set(own.asked) == {"step", "cancel", "lanes", "giveup"}
    assert set(own.steps) == {"group", "launch", "operation"}


@pytest.mark.parametrize("answer", [-1, 10_000])
def test_an_answer_that_is_not_an_option_is_refused(answer):
    class Wrong(Own):
        def choose(self, kind, options, groups):
            return answer

    assert "there are" in refused("store", Wrong())


LANES = """ ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %me, 4; add.u64 %rd1, %rd1, %rd2;
 @%first st.shared.u32 [slot], 0; bar.sync 0;
 atom.shared.add.u32 %r1, [slot], 1; st.global.u32 [%rd1], %r1;"""


def test_the_schedule_decides_the_order_of_lanes_in_an_atomic():
    """Lane i gets the number of lanes before it."""
    orders = {}
    for schedule, seed in SCHEDULES:
        out = np.zeros(32, np.uint32)
        launch(kernel("ptr:out", LANES), grid=(1, 1, 1), block=(32, 1, 1), args=[out], schedule=schedule, seed=seed)
        assert sorted(out.tolist()) == list(range(32))
        orders[schedule, seed] = out.tolist()
    assert orders["eager", 0] == list(range(32))
    assert len({tuple(order) for order in orders.values()}) > 3


def test_a_try_wait_that_returns_early_is_retried():
    """A schedule under which every second wait returns early."""

    class Impatient(Own):
        def choose(self, kind, options, groups):
            self.asked[kind] += 1
            return self.asked[kind] % 2 if kind == "giveup" else 0

    own = Impatient()
    assert protocol("load").wrong(schedule=own) == 0
    assert own.asked["giveup"] > 1


FENCE = "fence.proxy.async.shared::cta"


def unfenced(config) -> tuple[int, list[int]]:
    """The fences of a library kernel, and the wrong elements under `lazy` of each variant without one of them."""
    rng = np.random.default_rng()
    a, b = (rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((200, 128), (128, 72)))
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(ml_dtypes.bfloat16)
    out = np.empty(want.shape, ml_dtypes.bfloat16)
    target = "sm_90a" if isinstance(config, HopperConfig) else "sm_100a"
    bound = warploom.matmul.bind(a, b, out=out, config=config, target=target)
    lines = print_module(bound.program).splitlines()
    fences = [at for at, line in enumerate(lines) if FENCE in line]
    wrong = []
    for left_out in (None, *fences):
        out[...] = np.nan
        text = "\n".join(line for at, line in enumerate(lines) if at != left_out)
        launch(replace(bound, program=text), schedule="lazy")
        wrong.append(int((out != want).sum()))
    assert wrong[0] == 0
    return len(fences), wrong[1:]


@pytest.mark.parametrize(
    ("config", "stores"),
    [
        (MatmulConfig(cta_group=1, mma_shape=(128, 64, 16)), 1),
        pytest.param(MatmulConfig(), 2, marks=pytest.mark.slow),
        (HopperConfig(tile=(128, 64)), 1),
    ],
    ids=["one CTA", "pair", "Hopper"],
)
def test_a_fence_by_another_role_does_not_repair_a_store_in_flight(config, stores):
    """Without the fence before a tile's store the whole kernel is wrong; the other fences guard the CLC mailbox."""
    fences, wrong = unfenced(config)
    assert fences >= stores
    assert sum(count > 0 for count in wrong) == stores


class TestSight:
    """Visibility of shared memory to an operation, decided by the knowledge of its issuer at issue."""

    def make(self):
        knowledge = Knowledge(3)
        return SharedMemory(0, 0, 64, knowledge), knowledge

    def seen(self, shared, sight):
        return shared.seen_by(sight, 0, 64)[:4].tolist()

    def test_a_fence_after_the_issue_does_not_count(self):
        shared, knowledge = self.make()
        shared.write(0, 7, 4, None, "a store", 0)
        before = knowledge.sight(0)
        shared.fence_async(0)
        assert self.seen(shared, before) == [255] * 4
        assert self.seen(shared, knowledge.sight(0)) == [7, 0, 0, 0]

    def test_a_fence_that_the_issuer_does_not_know_of_does_not_count(self):
        shared, knowledge = self.make()
        shared.write(0, 7, 4, None, "a store", 0)
        shared.fence_async(0)
        assert self.seen(shared, knowledge.sight(1)) == [255] * 4
        knowledge.take_over(1, np.full(4, knowledge.latest))
        assert self.seen(shared, knowledge.sight(1)) == [7, 0, 0, 0]

    def test_a_store_after_the_issue_is_seen_once_it_is_published(self):
        """Staging memory that is reused too early."""
        shared, knowledge = self.make()
        shared.write(0, 7, 4, None, "a store", 0)
        shared.fence_async(0)
        early = knowledge.sight(0)
        shared.write(0, 9, 4, None, "a store", 0)
        assert self.seen(shared, early) == [7, 0, 0, 0]
        shared.fence_async(0)
        assert self.seen(shared, early) == [9, 0, 0, 0]

    def test_later_writes_of_the_async_proxy_are_seen(self):
        shared, knowledge = self.make()
        shared.write(0, 7, 4, None, "a store", 0)
        before = knowledge.sight(0)
        shared.fence_async(0)
        shared.async_write(0, np.full(2, 3, np.uint8))
        assert self.seen(shared, before) == [3, 3, 255, 255]

    def test_overwritten_publications_are_not_kept(self):
        shared, _ = self.make()
        for value in range(1000):
            shared.write(0, value & 255, 1, None, "a store", 0)
            shared.fence_async(0)
        assert len(shared._publications) < 200

    def test_a_second_fence_of_published_stores_counts_for_its_warp(self):
        """Warps that synchronise and then each fence: the first fence publishes, the others cover the same stores."""
        shared, knowledge = self.make()
        shared.write(0, 7, 4, None, "a store", 0)
        for warp in (1, 2):
            knowledge.take_over(warp, knowledge.of[0])
        shared.fence_async(1)
        assert self.seen(shared, knowledge.sight(2)) == [255] * 4
        shared.fence_async(2)
        assert self.seen(shared, knowledge.sight(2)) == [7, 0, 0, 0]
        assert self.seen(shared, Sight.joined([knowledge.sight(1), knowledge.sight(2)])) == [7, 0, 0, 0]
        assert self.seen(shared, Sight.joined([knowledge.sight(1), knowledge.sight(0)])) == [255] * 4
