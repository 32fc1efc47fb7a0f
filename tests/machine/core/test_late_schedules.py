"""Schedules that delay one kind of operation or one warp until nothing else can run."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import ml_dtypes
import numpy as np
import pytest
from tests.machine.asynchronous import run
from tests.machine.families import FAMILIES
from tests.machine.instructions.test_clc import loop

import warploom
from warploom import MatmulConfig, Stuck, launch
from warploom.diagnostics import WarploomError
from warploom.machine.core.schedule import HELD, Hold, Recorded, Starve, by_name
from warploom.ptx.syntax.printer import print_module

NAMES = [
    *(f"hold:{kind}" for kind in HELD),
    "starve:warp 0",
    "starve:warp 3",
    "starve:CTA (0,0)",
    "starve:cta(0,0) warp 1",
    "starve:barrier inputs.full",
    "starve:barrier 1",
]


def wrong_without(pattern: str, which: int, schedule: str, seed: int = 0) -> int:
    """The wrong elements of the library's Blackwell matmul without one of its instructions."""
    rng = np.random.default_rng()
    a, b = (rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((256, 128), (128, 256)))
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(ml_dtypes.bfloat16)
    out = np.full(want.shape, np.nan, ml_dtypes.bfloat16)
    config = MatmulConfig(cta_group=1, mma_shape=(128, 64, 16))
    bound = warploom.matmul.bind(a, b, out=out, config=config, target="sm_100a")
    lines = print_module(bound.program).splitlines()
    found = [at for at, line in enumerate(lines) if pattern in line]
    text = "\n".join(line for at, line in enumerate(lines) if which < 0 or at != found[which])
    launch(replace(bound, program=text), schedule=schedule, seed=seed, sms=1)
    return int((out != want).sum())


def test_reused_staging_memory_is_found_if_stores_are_delayed():
    pattern = "cp.async.bulk.wait_group.read"
    assert wrong_without(pattern, 0, "lazy") == 0
    assert wrong_without(pattern, -1, "hold:bulk-store") == 0
    assert wrong_without(pattern, 0, "hold:bulk-store") > 0


def test_a_load_of_tmem_without_a_fence_after_the_wait_may_read_before_it():
    """The fence after the epilogue's wait for the accumulator is the fourth of the kernel."""
    pattern = "tcgen05.fence::after_thread_sync"
    assert wrong_without(pattern, 3, "eager") == 0
    for schedule in ("lazy", "reverse", "hold:tcgen05-ld"):
        assert wrong_without(pattern, 3, schedule) > 0


@pytest.mark.parametrize("family", ["sm_90a cooperative", "sm_100a one CTA"])
@pytest.mark.parametrize("name", NAMES)
def test_whole_kernels_are_right_under_every_schedule(family, name):
    found = []
    for schedule in ("eager", name):
        bound, out = FAMILIES[family]()
        launch(bound, schedule=schedule)
        found.append(out.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hold:stores", "tma-load, bulk-store"),
        ("hold:", "tma-load, bulk-store"),
        ("starve:", "`warp N`, `CTA (x,y)`"),
        ("starve:thread 3", "`warp N`, `CTA (x,y)`"),
        ("starve:barrier ", "`barrier NAME`"),
        ("hold", "no such name"),
        ("keep:warp 1", "no such name"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name, words):
    with pytest.raises(WarploomError) as caught:
        by_name(name, 0)
    assert words in str(caught.value)


def test_a_delayed_kind_completes_last():
    options = ["CTA (0,0) warp 0: cp.async.bulk.tensor.store", "CTA (0,0) warp 1: cp.async.bulk.tensor.load", "launch"]
    hold = Hold("bulk-store")
    assert hold.choose("step", ["CTA (0,0) warp 0", *options], 1) == 2
    assert hold.choose("step", ["CTA (0,0) warp 0", options[0], "launch"], 1) == 0
    assert hold.choose("step", [options[0], "launch"], 0) == 1
    assert hold.choose("step", [options[0]] * 2, 0) == 0


class Counts(list):
    """Options with the numbers of operations in flight; their names may not be read one by one."""

    counts: ClassVar[dict[str, int]] = {"cp.async": 4000, "wgmma.mma_async": 0}

    def __getitem__(self, index):
        assert not isinstance(index, slice)
        return super().__getitem__(index)


def test_hold_looks_at_no_operation_where_only_held_ones_are_in_flight():
    """There may be thousands, at every step."""
    assert (
        Hold("cp-async").choose("step", Counts(["CTA (0,0) warp 0", *["CTA (0,0) warp 0: cp.async 0"] * 4000]), 1) == 0
    )


def test_a_starved_warp_runs_last():
    starve = Starve("warp 1")
    groups = ["CTA (0,0) warp 1", "CTA (0,0) warp 1 lanes 0-3", "CTA (1,0) warp 2"]
    assert starve.choose("step", groups, 3) == 2
    assert starve.choose("step", [*groups[:2], "CTA (0,0) warp 1: cp.async", "launch"], 2) == 3
    assert starve.choose("step", [*groups[:2], "CTA (0,0) warp 1: cp.async"], 2) == 2
    assert starve.choose("step", ["CTA (0,0) warps 0-3: wgmma.mma_async 0-1", "launch"], 0) == 1
    assert Starve("CTA (1,0) warp 1").choose("step", groups, 3) == 0


HANDED = """
 @%first mbarrier.init.shared::cta.b64 [bars], 1; @%first mbarrier.init.shared::cta.b64 [bars+8], 1; bar.sync 0;
 ld.param.u64 %rd1, [out]; setp.eq.u32 %p1, %warp, 1; @!%leader bra END; @%p1 bra READ;
 st.shared.u32 [data], 5; mbarrier.arrive.shared::cta.b64 _, [bars]; {wait} st.shared.u32 [data], 6; bra END;
READ: W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bars], 0; @!%p2 bra W;
 ld.shared.u32 %r1, [data]; mbarrier.arrive.shared::cta.b64 _, [bars+8]; st.global.u32 [%rd1], %r1; END:
"""
EMPTY = "V: mbarrier.try_wait.parity.shared::cta.b64 %p3, [bars+8], 0; @!%p3 bra V;"


@pytest.mark.parametrize("observed", [False, True])
def test_arrivals_at_a_starved_barrier_come_last(observed):
    """A writer that does not wait until its data is read overtakes its own arrival."""

    class Watch:
        def on_event(self, event):
            pass

    for wait, right in ((EMPTY, 5), ("", 6)):
        out = np.zeros(1, np.uint32)
        options = {"block": 64, "observers": [Watch()] if observed else ()}
        run(HANDED.format(wait=wait), "ptr:out", (out,), schedule="starve:barrier bars", **options)
        assert out[0] == right


EARLY = HANDED.replace("ld.shared.u32 %r1, [data]; mbarrier.arrive.shared::cta.b64 _, [bars+8];", "{early}")
READ_FIRST = "ld.shared.u32 %r1, [data]; mbarrier.arrive.shared::cta.b64 _, [bars+8];"
ARRIVE_FIRST = "mbarrier.arrive.shared::cta.b64 _, [bars+8]; ld.shared.u32 %r1, [data];"


def test_a_starved_warp_stops_before_every_access(tmp_path):
    """A reader that releases its slot before it reads: the writer overtakes it between the two."""
    recorded, file = Recorded(Starve("warp 1")), tmp_path / "starved.json"
    for schedule, early, found in (
        (recorded, READ_FIRST, 5),
        ("lazy", ARRIVE_FIRST, 5),
        ("starve:warp 1", ARRIVE_FIRST, 6),
    ):
        out = np.zeros(1, np.uint32)
        run(EARLY.format(wait=EMPTY, early=early), "ptr:out", (out,), block=64, schedule=schedule)
        assert out[0] == found
    recorded.save(file)
    run(EARLY.format(wait=EMPTY, early=READ_FIRST), "ptr:out", (out,), block=64, schedule=str(file))
    assert out[0] == 5


def test_arrivals_at_a_starved_named_barrier_come_last(tmp_path):
    body = """ld.param.u64 %rd1, [out]; setp.eq.u32 %p1, %warp, 1; @%p1 bra READ;
        st.shared.u32 [data], 5; bar.arrive 3, 64; st.shared.u32 [data], 6; bra END;
        READ: bar.sync 3, 64; ld.shared.u32 %r1, [data]; @%leader st.global.u32 [%rd1], %r1; END:"""
    recorded, file = Recorded(Starve("barrier 3")), tmp_path / "starved.json"
    for schedule in (recorded, str(file)):
        out = np.zeros(1, np.uint32)
        run(body, "ptr:out", (out,), block=64, schedule=schedule)
        assert out[0] == 6
        recorded.save(file)


SPIN = """
 ld.param.u64 %rd1, [flag]; setp.ne.u32 %p1, %warp, {late};
 @%p1 bra POLL;
 @%leader st.global.u32 [%rd1], 7; bra END;
POLL: ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p2, %r1, 0; @%p2 bra POLL;
END:
"""


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "starve:warp 0", "starve:warp 7"])
@pytest.mark.parametrize("late", [0, 7])
def test_polling_warps_are_suspended_until_the_word_changes(schedule, late):
    """They cost a few instructions, not one for every effect of the rest of the grid."""
    flag = np.zeros(1, np.uint32)
    done = run(SPIN.format(late=late), "ptr:flag", (flag,), block=256, schedule=schedule)
    assert flag[0] == 7
    assert done.instructions < 40_000


@pytest.mark.parametrize("family", ["sm_90a split-K in memory", "sm_100a split-K"])
def test_reverse_executes_little_more_than_lazy_with_split_k(family):
    counts = {name: launch(FAMILIES[family]()[0], schedule=name).instructions for name in ("lazy", "reverse")}
    assert counts["reverse"] <= 2 * counts["lazy"]


def test_a_deadlock_has_its_waiters_as_data():
    body = """@%first mbarrier.init.shared::cta.b64 [bars], 2; bar.sync 0; setp.eq.u32 %p1, %warp, 1; @%p1 bra POLL;
        W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bars], 0; @!%p2 bra W; bra END;
        POLL: ld.param.u64 %rd1, [flag];
        L: ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p3, %r1, 0; @%p3 bra L; END:"""
    with pytest.raises(Stuck) as caught:
        run(body, "ptr:flag", (np.zeros(1, np.uint32),), block=64)
    waiting, polling = caught.value.waiters
    assert (waiting.cta, waiting.warp, waiting.lanes, waiting.state) == ((0, 0, 0), 0, 0xFFFFFFFF, "waiting")
    assert waiting.what.startswith("bars phase 0: 2 of 2 arrivals")
    assert waiting.instruction.startswith("mbarrier.try_wait")
    assert (polling.warp, polling.state) == (1, "polling")
    assert polling.what == "polls byte 0 of `argument 0, flag` (4 bytes), which holds 0"


@pytest.mark.parametrize(
    ("schedule", "most"), [("lazy", 1), ("reverse", 1), ("hold:bulk-store", 1), ("starve:warp 0", 1)]
)
def test_a_cta_that_asks_for_work_runs_many_tiles(schedule, most):
    """A launch would take the tiles away from the CTA, and its memory would not be reused."""
    out = np.zeros(12, np.uint32)
    done = run(loop(), "ptr:out", (out,), grid=12, sms=1, target="sm_100a", schedule=schedule)
    assert (out == 1).all()
    assert len({warp.cta for warp in done.warps}) <= most


def test_random_reuses_ctas_too():
    """Of 60 tiles in five runs, many are done by CTAs that have done another before."""
    started = 0
    for seed in range(5):
        out = np.zeros(12, np.uint32)
        options = {"grid": 12, "sms": 1, "target": "sm_100a", "schedule": "random", "seed": seed}
        started += len({warp.cta for warp in run(loop(), "ptr:out", (out,), **options).warps})
        assert (out == 1).all()
    assert 5 < started < 45


LOST = """ld.param.u64 %rd1, [sum]; @!%first bra END;
 ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1; END:"""


def test_a_lost_update_shows_within_a_few_seeds():
    """Eight CTAs add one to a word, without an atomic: between load and store another may run."""
    found = []
    for seed in range(6):
        total = np.zeros(1, np.uint32)
        run(LOST, "ptr:sum", (total,), grid=8, schedule="random", seed=seed)
        found.append(int(total[0]))
    assert min(found) < 8
    total = np.zeros(1, np.uint32)
    assert run(LOST, "ptr:sum", (total,), grid=8, schedule="explore", budget=16).failure is not None
    assert total[0] == 8


GRID_BARRIER = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry meet(.param .u64 counter, .param .u64 out)
{
 .reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %rd<4>;
 .shared .align 4 .b8 seen[4];
 ld.param.u64 %rd0, [counter]; ld.param.u64 %rd1, [out];
 mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0;
 @%p0 atom.release.gpu.global.add.u32 %r1, [%rd0], 1;
POLL:
 @%p0 atom.acquire.gpu.global.add.u32 %r1, [%rd0], 0;
 @%p0 st.shared.u32 [seen], %r1;
 bar.sync 0;
 ld.shared.u32 %r2, [seen];
 bar.sync 0;
 setp.lt.u32 %p1, %r2, CTAS;
 @%p1 bra POLL;
 mov.u32 %r3, %ctaid.x; mad.lo.u32 %r3, %r3, 64, %r0;
 mad.wide.u32 %rd2, %r3, 4, %rd1; st.global.u32 [%rd2], %r2;
 ret;
}
"""


@pytest.mark.parametrize("schedule", ["lazy", "reverse", "hold:arrivals", "random", "weak"])
def test_a_grid_barrier_that_polls_around_a_block_barrier_ends(schedule):
    """Its warps block and wake each other for ever: other CTAs are launched and run all the same."""
    ctas = 3
    counter, out = np.zeros(1, np.uint32), np.zeros(64 * ctas, np.uint32)
    text = GRID_BARRIER.replace("CTAS", str(ctas))
    launch(text, grid=ctas, block=64, args=[counter, out], schedule=schedule, timeout=600)
    assert (out == ctas).all()


WARPS_THAT_POLL_TOGETHER = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 data, .param .u64 flag)
{
.reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
.shared .align 16 .b8 copied[16];
.shared .align 4 .b32 seen;
ld.param.u64 %rd0, [data]; ld.param.u64 %rd1, [flag];
mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x;
setp.ne.u32 %p0, %r1, 0;
setp.ne.u32 %p1, %r0, 0;
mov.u32 %r2, copied;
@%p1 bra WAIT;
@%p0 bra COPIED;
cp.async.cg.shared.global [%r2], [%rd0], 16;
cp.async.commit_group;
cp.async.wait_group 0;
ld.shared.u32 %r3, [copied];
atom.global.release.gpu.exch.b32 %r4, [%rd1], %r3;
COPIED: ret;
WAIT:
@%p0 bra SEEN;
atom.global.acquire.gpu.cas.b32 %r3, [%rd1], 0, 0;
st.shared.u32 [seen], %r3;
SEEN: bar.sync 0;
ld.shared.u32 %r4, [seen];
bar.sync 0;
setp.eq.u32 %p2, %r4, 0;
@%p2 bra WAIT;
st.global.u32 [%rd0], %r4;
ret;
}
"""


@pytest.mark.parametrize("schedule", ["lazy", "reverse", "hold:cp-async", "weak"])
def test_an_operation_completes_although_warps_that_poll_together_never_wait(schedule):
    data, flag = np.full(4, 7, np.uint32), np.zeros(1, np.uint32)
    launch(WARPS_THAT_POLL_TOGETHER, grid=2, block=64, args=[data, flag], schedule=schedule, limit=10_000_000)
    assert data[0] == flag[0] == 7
