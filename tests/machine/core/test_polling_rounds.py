"""Warps that poll together, with barriers or shuffles in their loop: suspended, woken, and reported if nothing can end it."""

import numpy as np
import pytest
from tests.machine.asynchronous import run

from warploom import Stuck, launch
from warploom.diagnostics import Fault

SCHEDULES = ["eager", "lazy", "reverse", "hold:cp-async", "starve:warp 0", "random", "weak"]
HEAD = """.version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 lock, .param .u64 out)
{
 .reg .pred %p<6>; .reg .b32 %r<16>; .reg .b64 %rd<4>;
 .shared .align 16 .b8 seen[16];
 ld.param.u64 %rd0, [lock]; ld.param.u64 %rd1, [out];
 mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r5, 0; mov.u32 %r9, %ctaid.x;
"""
LOOPS = {
    "a lock by Triton": """
POLL: @%p0 atom.acquire.gpu.global.cas.b32 %r1, [%rd0], 0, 1;
 @%p0 st.shared.u32 [seen], %r1;
 bar.sync 0;
 ld.shared.u32 %r2, [seen];
 bar.sync 0;
 {extra}
 setp.ne.u32 %p1, %r2, 0; @%p1 bra POLL;
END: """,
    "a semaphore by CUTLASS": """
POLL: @%p0 ld.global.acquire.gpu.b32 %r1, [%rd0];
 @!%p0 mov.u32 %r1, 1;
 setp.ne.u32 %p1, %r1, 0;
 bar.red.and.pred %p2, 0, %p1;
 {extra}
 @%p2 bra POLL;
END: """,
    "a sum through shared memory": """
POLL: mul.wide.u32 %rd2, %r0, 0; add.u64 %rd2, %rd2, %rd0;
 ld.volatile.global.u32 %r1, [%rd2];
 and.b32 %r2, %r0, 31; setp.eq.u32 %p2, %r2, 0; shr.u32 %r3, %r0, 3; and.b32 %r3, %r3, 4; mov.u32 %r4, seen; add.u32 %r4, %r4, %r3;
 @%p2 st.shared.u32 [%r4], %r1;
 bar.sync 0;
 ld.shared.u32 %r6, [seen]; ld.shared.u32 %r7, [seen+4]; add.u32 %r6, %r6, %r7;
 bar.sync 0;
 @%p0 st.shared.u32 [seen], %r6;
 bar.sync 0;
 ld.shared.u32 %r2, [seen];
 bar.sync 0;
 {extra}
 setp.ne.u32 %p1, %r2, 0; @%p1 bra POLL;
END: """,
    "lanes that part and shuffle": """
POLL: @%p0 bra FIRST;
 mov.u32 %r1, 1; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; bra MET;
FIRST: ld.volatile.global.u32 %r1, [%rd0]; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;
MET: bar.sync 0;
 {extra}
 setp.ne.u32 %p1, %r2, 0; setp.lt.u32 %p2, %r0, 32; and.pred %p1, %p1, %p2; bar.red.or.pred %p1, 0, %p1; @%p1 bra POLL;
END: """,
}
TAIL = " @%p0 st.global.u32 [%rd1], %r5; ret; }"


@pytest.fixture(params=["native", "numpy"])
def engine(request, monkeypatch):
    monkeypatch.setenv("WARPLOOM_ENGINE", request.param)
    return request.param


def outcome(loop, schedule, extra="", *, grid=1, block=64, lock=1, before="", limit=5_000_000, **options):
    """The error, or the number that the first thread stored."""
    held, out = np.full(2, lock, np.uint32), np.zeros(1, np.uint32)
    text = HEAD + before + LOOPS[loop].format(extra=extra) + TAIL
    launch(text, grid=grid, block=block, args=[held, out], schedule=schedule, limit=limit, **options)
    return int(out[0])


@pytest.mark.parametrize(
    ("loop", "schedule"),
    [(loop, schedule) for loop in LOOPS for schedule in SCHEDULES if ("sum" in loop, schedule) != (True, "weak")],
)
def test_a_loop_with_barriers_that_cannot_end_is_a_deadlock(loop, schedule, engine):
    """The report names the word, its buffer and the instruction that reads it, for the warps that do."""
    with pytest.raises(Stuck) as caught:
        outcome(loop, schedule)
    error = caught.value
    assert error.code == "DEADLOCK"
    assert {waiter.state for waiter in error.waiters} <= {"polling", "joining"}
    polled = {waiter.warp for waiter in error.waiters if "byte 0 of `argument 0, lock` (8 bytes)" in waiter.what}
    assert polled == ({0, 1} if "sum" in loop else {0})
    first = next(waiter for waiter in error.waiters if waiter.warp == 0 and waiter.state == "polling")
    assert "global" in first.instruction
    assert first.what.endswith("which holds 1")
    assert {str(waiter.loc) for waiter in error.waiters if waiter.state == "polling"} == {str(error.loc)}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ctas_that_poll_one_lock_do_not_wake_each_other(schedule, engine):
    """Each stores to its own shared memory in its loop, and releases those stores at the lock and at barriers."""
    body = LOOPS["a lock by Triton"].replace("atom.acquire.gpu", "atom.acq_rel.gpu")
    text = HEAD + body.format(extra="") + TAIL
    held, out = np.ones(1, np.uint32), np.zeros(1, np.uint32)
    with pytest.raises(Stuck, match="DEADLOCK"):
        launch(text, grid=4, block=128, args=(held, out), schedule=schedule, limit=5_000_000)


@pytest.mark.parametrize("block", [32, 128, 256, 1024])
def test_the_number_of_warps_does_not_matter(block):
    for schedule in ("eager", "lazy", "random"):
        with pytest.raises(Stuck, match="DEADLOCK"):
            outcome("a lock by Triton", schedule, block=block, limit=20_000_000)


def test_some_lanes_of_a_warp_may_read_addresses_of_their_own(engine):
    """A load of some lanes is made of a load of fewer lanes, which does not count again."""
    some = "mul.wide.u32 %rd2, %r0, 0; add.u64 %rd2, %rd2, %rd0; setp.lt.u32 %p3, %r0, 24; @%p3 ld.volatile.global.u32 %r8, [%rd2];"
    with pytest.raises(Stuck, match="DEADLOCK"):
        outcome("a lock by Triton", "eager", some)


def test_rows_of_matrices_may_be_stored_in_a_loop_with_barriers(engine):
    """`stmatrix` has eight addresses for 32 lanes."""
    rows = "mov.u32 %r10, seen; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r10], {%r9}; "
    with pytest.raises(Stuck) as caught:
        outcome("a lock by Triton", "eager", rows, limit=400_000)
    assert caught.value.code in ("DEADLOCK", "LIMIT")


def test_a_store_outside_of_shared_memory_is_a_fault_in_a_round_too(engine):
    far = "add.u32 %r5, %r5, 1; setp.gt.u32 %p3, %r5, 800; mov.u32 %r10, seen; @%p3 add.u32 %r10, %r10, 9000000; st.shared.u32 [%r10+8], %r9; "
    with pytest.raises(Fault, match="OUT_OF_BOUNDS"):
        outcome("a lock by Triton", "eager", far)


def test_a_cluster_that_meets_at_its_own_barrier_is_found():
    meet = "barrier.cluster.arrive; barrier.cluster.wait;"
    text = HEAD + LOOPS["a lock by Triton"].format(extra="").replace("bar.sync 0;", meet) + TAIL
    args = [np.ones(2, np.uint32), np.zeros(1, np.uint32)]
    for schedule in ("eager", "lazy", "random"):
        with pytest.raises(Stuck, match="DEADLOCK"):
            launch(text, grid=2, cluster=(2, 1, 1), block=64, args=args, schedule=schedule, limit=20_000_000)


COUNTS = "add.u32 %r5, %r5, 1; "
ENDINGS = {
    "attempts": COUNTS + "setp.gt.u32 %p3, %r5, 1500; @%p3 bra END;",
    "attempts in memory": COUNTS
    + "shr.u32 %r7, %r5, 10; @%p0 st.shared.u32 [seen+8], %r7; bar.sync 0; ld.shared.u32 %r8, [seen+8]; bar.sync 0; "
    + "setp.ne.u32 %p3, %r8, 0; @%p3 bra END;",
    "a longer and longer sleep": "add.u32 %r5, %r5, 8; nanosleep.u32 %r5; setp.gt.u32 %p3, %r5, 16000; @%p3 bra END;",
    "a clock": "mov.u32 %r6, %clock; setp.gt.u32 %p3, %r6, 60000; @%p3 bra END;",
}


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random", "weak"])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("loop", ["a lock by Triton", "a semaphore by CUTLASS"])
def test_a_loop_that_gives_up_is_no_deadlock(loop, ending, schedule):
    outcome(loop, schedule, ENDINGS[ending])


def test_a_warp_that_gives_up_by_the_clock_is_no_deadlock():
    body = """ld.param.u64 %rd1, [flag]; L: ld.volatile.global.u32 %r1, [%rd1]; setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
        mov.u32 %r2, %clock; setp.lt.u32 %p2, %r2, 60000; @%p2 bra L; END:"""
    for schedule in ("eager", "lazy", "random"):
        run(body, "ptr:flag", (np.zeros(1, np.uint32),), block=64, schedule=schedule)


@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_attempts_that_only_are_counted_do_not_hide_a_deadlock(schedule):
    with pytest.raises(Stuck, match="DEADLOCK"):
        outcome("a lock by Triton", schedule, COUNTS)


LATE = """
 setp.ne.u32 %p4, %r9, 0; @%p4 bra POLL;
 {work}
 @%p0 st.release.gpu.global.u32 [%rd0], 0; ret;
"""
WORK = "WORK: add.u32 %r5, %r5, 1; bar.sync 0; setp.lt.u32 %p3, %r5, 6000; @%p3 bra WORK;"


@pytest.mark.parametrize("schedule", SCHEDULES[:-1])
@pytest.mark.parametrize("loop", ["a semaphore by CUTLASS", "a sum through shared memory"])
def test_suspended_ctas_go_on_when_the_word_changes(loop, schedule):
    """CTA 0 releases the others after they have been suspended, or is launched last."""
    outcome(loop, schedule, before=LATE.format(work=WORK), grid=4, limit=50_000_000)


def test_a_change_that_another_warp_may_miss_does_not_count_as_a_round():
    """Warp 1 raises a flag in shared memory and takes it back; warp 0 ends when it happens to see that."""
    text = (
        HEAD
        + """ setp.lt.u32 %p1, %r0, 32; mov.u32 %r7, 1; st.shared.u32 [seen], 0; bar.sync 0;
POLL: bar.sync 0;
 @%p1 bra LOOK;
 st.volatile.shared.u32 [seen], 1; bra BACK;
BACK: st.volatile.shared.u32 [seen], 0; mov.u32 %r1, 0; bra MET;
LOOK: ld.volatile.shared.u32 %r1, [seen]; ld.volatile.global.u32 %r8, [%rd0];
MET: setp.ne.u32 %p2, %r1, 0; bar.red.or.pred %p3, 0, %p2; @!%p3 bra POLL;
END: """
        + TAIL
    )
    for seed in range(3):
        arguments = [np.ones(2, np.uint32), np.zeros(1, np.uint32)]
        launch(text, grid=1, block=64, args=arguments, schedule="random", seed=seed, limit=50_000_000)
    with pytest.raises(Stuck, match="LIMIT"):  # one order of the warps never ends, but another may
        launch(text, grid=1, block=64, args=arguments, schedule="lazy", limit=300_000)


def test_both_engines_and_observers_suspend_at_the_same_instruction(monkeypatch):
    def ran(**options):
        held, out = np.ones(2, np.uint32), np.zeros(1, np.uint32)
        loop = (
            LOOPS["a lock by Triton"]
            .format(extra=COUNTS)
            .replace("cas.b32 %r1, [%rd0], 0, 1", "add.u32 %r1, [%rd0], 0")
        )
        text = HEAD + LATE.format(work=WORK) + loop + TAIL
        done = launch(text, grid=4, block=64, args=[held, out], schedule="random", seed=3, **options)
        return done.instructions, int(out[0])

    class Nothing:
        def on_event(self, event):
            """Look at nothing."""

    first = ran()
    assert ran(observers=[Nothing()]) == first
    monkeypatch.setenv("WARPLOOM_ENGINE", "numpy")
    assert ran() == first


PREPARED = """ .local .align 8 .b8 own[16]; .shared .align 8 .b8 bar[16];
 @%p0 mbarrier.init.shared::cta.b64 [bar], 2; @%p0 mbarrier.init.shared::cta.b64 [bar+8], 2; bar.sync 0;
 st.local.u32 [own], 0; st.local.u32 [own+4], 0; mov.u32 %r11, bar;
"""
LOOK = "ld.volatile.global.u32 %r1, [%rd0]; setp.ne.u32 %p1, %r1, 0; "
MEET = "@%p0 ld.volatile.global.u32 %r1, [%rd0]; @%p0 st.shared.u32 [seen], %r1; bar.sync 0; ld.shared.u32 %r1, [seen]; bar.sync 0; setp.ne.u32 %p1, %r1, 0; "
WAIT = "mbarrier.{wait}.parity.shared::cta.b64 %p2, [%r11], 0; @%p2 bra END; "
EFFECTS = {
    "local memory": "st.local.u32 [own], %r1; ld.local.u32 %r2, [own]; ",
    "global memory": "st.volatile.global.u32 [%rd1], 7; ",
    "generic addresses": "st.volatile.u32 [%rd1], 7; ",
    "shared memory": "st.volatile.shared.u32 [seen+8], 7; ",
    "test_wait": WAIT.format(wait="test_wait") + "st.local.u32 [own], %r1; ",
    "try_wait": WAIT.format(wait="try_wait") + "st.local.u32 [own], %r1; ",
    "two mbarriers in turn": "xor.b32 %r11, %r11, 8; " + WAIT.format(wait="try_wait"),
}


def looped(body, before="", after="", *, schedule, lock=1, grid=1, limit=5_000_000, **options):
    """Run `POLL: body; @%p1 bra POLL`; what the kernel stored."""
    held, out = np.full(2, lock, np.uint32), np.full(2, 7, np.uint32)
    text = f"{HEAD}{PREPARED}{before}\nPOLL: {body} @%p1 bra POLL;\nEND: {after} ret; }}"
    launch(text, grid=grid, block=64, args=[held, out], schedule=schedule, limit=limit, **options)
    return out.tolist()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("look", [LOOK, MEET], ids=["alone", "together"])
def test_a_loop_that_stores_or_waits_and_cannot_end_is_a_deadlock(look, effect, schedule, engine):
    if schedule == "weak" and effect in ("global memory", "generic addresses"):
        pytest.skip("stores that are buffered are not followed")
    with pytest.raises(Stuck) as caught:
        looped(look + EFFECTS[effect], schedule=schedule)
    assert caught.value.code == "DEADLOCK"
    assert {waiter.warp for waiter in caught.value.waiters} == {0, 1}
    if "wait" not in effect and "mbarriers" not in effect:
        assert "byte 0 of `argument 0, lock` (8 bytes), which holds 1" in str(caught.value)


GIVE_UP = "setp.gt.u32 %p3, %r5, 4000; @%p3 bra END; "
PATIENT = {
    "attempts in local memory": LOOK + "ld.local.u32 %r6, [own+4]; add.u32 %r6, %r6, 1; st.local.u32 [own+4], %r6; setp.lt.u32 %p3, %r6, 4000; and.pred %p1, %p1, %p3; mov.u32 %r6, 0; ",
    "attempts in global memory": LOOK + "@%p0 atom.global.add.u32 %r5, [%rd1], 1; @!%p0 ld.volatile.global.u32 %r5, [%rd1]; " + GIVE_UP,
    "the same store, and attempts": LOOK + EFFECTS["global memory"] + COUNTS + GIVE_UP,
    "attempts at try_wait": LOOK + WAIT.format(wait="try_wait") + COUNTS + GIVE_UP,
    "attempts at test_wait": LOOK + WAIT.format(wait="test_wait") + COUNTS + GIVE_UP,
    "attempts at try_wait, with barriers": MEET + WAIT.format(wait="try_wait") + COUNTS + GIVE_UP,
    "a clock and try_wait": LOOK + WAIT.format(wait="try_wait") + "mov.u64 %rd2, %clock64; setp.gt.u64 %p3, %rd2, 9000000000; @%p3 bra END; ",
    "a timer and stores": LOOK + EFFECTS["local memory"] + "mov.u64 %rd2, %globaltimer; setp.gt.u64 %p3, %rd2, 30000; @%p3 bra END; ",
}  # fmt: skip


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random", "weak"])
@pytest.mark.parametrize("attempts", PATIENT)
def test_a_loop_that_stores_or_waits_and_gives_up_is_no_deadlock(attempts, schedule, engine):
    looped(PATIENT[attempts], schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES[:-1])
@pytest.mark.parametrize("effect", EFFECTS)
def test_a_loop_that_stores_or_waits_goes_on_when_the_word_changes(effect, schedule):
    """CTA 0 works for so long that the others are suspended, and then releases them."""
    late = LATE.format(work=WORK)
    looped(LOOK + EFFECTS[effect], late, grid=4, schedule=schedule, limit=50_000_000)


@pytest.mark.parametrize("schedule", SCHEDULES[:-1])
def test_a_word_that_a_suspended_loop_stores_to_is_stored_again(schedule, engine):
    """CTA 0 overwrites the word that the others store to, and waits until they have stored it again."""
    work = (
        WORK
        + " st.volatile.global.u32 [%rd1], 9; BACK: ld.volatile.global.u32 %r1, [%rd1]; setp.ne.u32 %p3, %r1, 7; @%p3 bra BACK;"
    )
    found = looped(LOOK + EFFECTS["global memory"], LATE.format(work=work), grid=2, schedule=schedule, limit=50_000_000)
    assert found == [7, 7]


@pytest.mark.parametrize("schedule", SCHEDULES[:-1])
@pytest.mark.parametrize("wait", ["test_wait", "try_wait"])
def test_a_loop_with_an_mbarrier_goes_on_when_its_phase_completes(wait, schedule):
    """Warp 1 arrives after long work; warp 0 stores to its local memory and looks at the mbarrier meanwhile."""
    work = """ setp.lt.u32 %p4, %r0, 32; @%p4 bra POLL;
WORK: add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 60000; @%p3 bra WORK;
 setp.eq.u32 %p4, %r0, 32; @%p4 mbarrier.arrive.shared::cta.b64 _, [bar], 2; ret;
"""
    body = LOOK + EFFECTS["local memory"] + WAIT.format(wait=wait)
    found = looped(body, work, "@%p0 st.global.u32 [%rd1], 5;", schedule=schedule, limit=50_000_000)
    assert found == [5, 7]
