"""`schedule="explore"`: a portfolio of schedules, the first failure shrunk and replayable, the eager results returned."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from tests.machine.asynchronous import run, text
from tests.machine.families import FAMILIES

import warploom
from warploom import MatmulConfig, Stuck, launch
from warploom.diagnostics import Fault, WarploomError
from warploom.machine.core.exploration import portfolio
from warploom.machine.core.schedule import Recorded, by_name
from warploom.ptx.syntax.printer import print_module


def product(without: str | None = None):
    """The library's Blackwell matmul on integers, complete or without the first instruction of a kind."""
    rng = np.random.default_rng()
    a, b = (rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((256, 128), (128, 128)))
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(ml_dtypes.bfloat16)
    out = np.full(want.shape, np.nan, ml_dtypes.bfloat16)
    config = MatmulConfig(cta_group=1, mma_shape=(128, 64, 16))
    bound = warploom.matmul.bind(a, b, out=out, config=config, target="sm_100a")
    lines = print_module(bound.program).splitlines()
    if without is not None:
        del lines[next(at for at, line in enumerate(lines) if without in line)]
    return replace(bound, program="\n".join(lines)), out, want


def test_a_correct_kernel_has_no_failure_and_gets_the_eager_results():
    bound, out, want = product()
    ran = launch(bound, schedule="explore", budget=12, sms=1)
    assert (ran.schedules, ran.failure, ran.remarks) == (12, None, ())
    assert (out == want).all()


def test_a_failure_is_shrunk_replayed_and_names_the_writer_of_the_first_wrong_element(tmp_path):
    bound, out, want = product("cp.async.bulk.wait_group.read")
    ran = launch(bound, schedule="explore", sms=1)
    assert (out == want).all(), "the arrays get the results of the eager schedule"
    failure = ran.failure
    assert (failure.kind, failure.found_by) == ("disagreement", "hold:bulk-store")
    assert ran.schedules < 64
    assert failure.array.endswith("matmul_d")
    assert failure.expected == want[failure.index] != failure.found
    assert "cp.async.bulk.tensor" in failure.written_by.source.text
    assert failure.event is not None
    assert f"parts from a passing run where CTA ({failure.event.agent.cta[0]}," in str(failure)
    assert 1 <= len(failure.delayed) <= 2
    assert all(": cp.async.bulk.tensor.store " in name for name in failure.delayed)
    file = tmp_path / "failure.json"
    failure.schedule.save(file)
    out[...] = np.nan
    launch(bound, schedule=str(file), sms=1)
    assert out[failure.index] == failure.found


def test_a_recording_has_a_format_and_the_digest_of_its_program(tmp_path):
    bound, _, _ = product()
    other, _, _ = product("fence.proxy.async")
    recorded, file = Recorded(by_name("lazy", 0)), tmp_path / "lazy.json"
    launch(bound, schedule=recorded)
    recorded.save(file)
    launch(bound, schedule=str(file))
    with pytest.raises(WarploomError, match="BAD_SCHEDULE") as caught:
        launch(other, schedule=str(file))
    assert "recorded from another program" in str(caught.value)
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "format": 1}))
    with pytest.raises(WarploomError, match="BAD_SCHEDULE") as caught:
        launch(bound, schedule=str(file))
    assert "this version reads format 2" in str(caught.value)


def test_compare_decides_if_it_is_given():
    bound, out, want = product("cp.async.bulk.wait_group.read")
    assert launch(bound, schedule="explore", budget=8, sms=1, compare=lambda: None).failure is None
    failure = launch(bound, schedule="explore", sms=1, compare=lambda: bool((out == want).all())).failure
    assert failure.kind == "mismatch"
    always = launch(bound, schedule="explore", sms=1, compare=lambda: False)
    assert (always.failure.kind, always.failure.found_by, always.schedules) == ("mismatch", "eager", 1)


LATE_DEADLOCK = """
 @%first mbarrier.init.shared::cta.b64 [bars], 1; bar.sync 0;
 mov.u32 %r1, 0; setp.eq.u32 %p1, %warp, 0; @%p1 st.shared.u32 [data], %r1; bar.sync 0;
 setp.eq.u32 %p2, %warp, 0; @!%p2 bra READ; mov.u32 %r2, 1; st.volatile.shared.u32 [data], %r2; bra END;
READ: ld.volatile.shared.u32 %r3, [data]; setp.eq.u32 %p3, %r3, 1; @%p3 bra END;
W: mbarrier.try_wait.parity.shared::cta.b64 %p4, [bars], 0; @!%p4 bra W;
END:
"""


def test_a_deadlock_of_one_schedule_is_raised_with_that_schedule(tmp_path):
    """Warp 1 waits forever if it reads before warp 0 has stored."""
    ptx = text(LATE_DEADLOCK.replace("@!%p2 bra READ", "@!%p2 bra LATER").replace("READ: ", "LATER: READ: "))
    with pytest.raises(Stuck) as caught:
        launch(ptx, grid=1, block=64, schedule="explore")
    assert re.search(r"\n  under `[^`]+`; not under `eager`\n", str(caught.value))
    caught.value.schedule.save(tmp_path / "stuck.json")
    with pytest.raises(Stuck):
        launch(ptx, grid=1, block=64, schedule=str(tmp_path / "stuck.json"))


EARLY = """
 @%first mbarrier.init.shared::cta.b64 [bars], 1; bar.sync 0; ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [out];
 @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 128;
 @%first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [data], [%rd1], 128, [bars];
 bar.sync 0; ld.shared.u32 %r1, [data]; @%first st.global.u32 [%rd2], %r1;
W: mbarrier.try_wait.parity.shared::cta.b64 %p4, [bars], 0; @!%p4 bra W;
"""


def test_a_late_copy_that_was_never_a_choice_is_named():
    """All threads read before they wait for the copy: it completes when nothing else can move, under `lazy`."""
    x, out = np.full(32, 7, np.uint32), np.zeros(1, np.uint32)
    failure = launch(text(EARLY, "ptr:x ptr:out"), grid=1, block=64, args=(x, out), schedule="explore").failure
    assert failure.delayed == ("CTA (0,0) warp 0: cp.async.bulk.load 0",)


LONG_UNDER_ONE = """
 ld.param.u64 %rd1, [flag]; ld.param.u64 %rd2, [out]; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @%p1 bra WRITE;
 ld.global.u32 %r2, [%rd1]; setp.eq.u32 %p2, %r2, 1; @%p2 bra END; mov.u32 %r3, 0;
AGAIN: add.u32 %r3, %r3, 1; st.global.u32 [%rd2], %r3; setp.ne.u32 %p3, %r3, 0; @%p3 bra AGAIN; bra END;
WRITE: st.global.u32 [%rd1], 1;
END:
"""


def test_a_time_limit_is_for_all_schedules_and_names_the_last():
    """CTA 1 loops if it reads before CTA 0 has stored."""
    flag, out = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    ptx = text(LONG_UNDER_ONE, "ptr:flag ptr:out")
    with pytest.raises(Stuck) as caught:
        launch(ptx, grid=2, block=32, args=(flag, out), schedule="explore", timeout=5)
    assert caught.value.code == "TIMEOUT"
    assert "did not finish within 5 s" in caught.value.what
    assert re.search(r"under `[^`]+`, after [1-9]\d* of at most 64 schedules", caught.value.notes[-1])
    assert flag[0] == 1  # the results of the eager run


def test_observers_receive_the_events_of_the_eager_run():
    seen = {"eager": [], "explore": []}
    for schedule, events in seen.items():

        class Watch:
            def on_event(self, event, events=events):
                events.append((event.kind, event.agent, event.source.line))

        run(ADDS, "ptr:sum", (np.zeros(1, np.float32),), grid=6, schedule=schedule, observers=[Watch()])
    assert seen["eager"]
    assert seen["explore"] == seen["eager"]


ADDS = """ld.param.u64 %rd1, [sum]; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0;
 selp.f32 %f1, 0f4B800000, 0f3F800000, %p1; @%first red.global.add.f32 [%rd1], %f1;"""


def test_the_order_of_float_atomics_is_a_remark_and_not_a_failure():
    total = np.zeros(1, np.float32)
    ran = run(ADDS, "ptr:sum", (total,), grid=6, schedule="explore", budget=24)
    assert ran.failure is None
    assert len(ran.remarks) == 1
    assert ran.remarks[0].startswith("order-dependent rounding: ")
    assert "red.global.add.f32" in ran.remarks[0]


EXCHANGE = """ld.param.u64 %rd1, [sum]; cvt.rn.f32.u32 %f1, %thread; mov.u32 %r1, data; mad.lo.u32 %r2, %thread, 4, %r1;
 st.shared.f32 [%r2], %f1; {barrier} xor.b32 %r3, %r2, 128; ld.shared.f32 %f2, [%r3]; {add}"""
BULK = """st.shared.f32 [data+512], %f2; @!%first bra END; fence.proxy.async.shared::cta;
 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [data+512], 16;
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:"""


@pytest.mark.parametrize(
    "add",
    [
        "red.global.add.f32 [%rd1], %f2;",
        "atom.global.add.f32 %f3, [%rd1], %f2;",
        "red.global.add.v2.f32 [%rd1], {%f2, %f2};",
        "mov.b16 %h1, 0; cvt.rn.bf16.f32 %h0, %f2; red.global.add.noftz.bf16 [%rd1], %h0;",
        "setp.ne.f32 %p1, %f2, 0f42000000; @%p1 bra END; " + BULK,
    ],
    ids=["red", "atom", "vector", "bf16", "bulk"],
)
def test_a_wrong_sum_of_float_atomics_is_a_failure(add):
    """Without the barrier, warps add what the other has not written yet; that is more than an order of additions."""
    for barrier, right in (("bar.sync 0;", True), ("", False)):
        total = np.zeros(4, np.float32)
        body = EXCHANGE.format(barrier=barrier, add=add)
        ran = run(body, "ptr:sum", (total,), block=64, schedule="explore", budget=8)
        assert (ran.failure is None) == right, barrier
        if not right:
            assert ran.failure.kind == "disagreement"
            assert ran.remarks == ()


SCRATCH = """ld.param.u64 %rd1, [sum]; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %thread, 37, 1; cvt.rn.f32.u32 %f1, %r2;
 mul.f32 %f1, %f1, 0f3DCCCCCD; mov.f32 %f2, 0f00000000; @%first st.shared.f32 [data], %f2; bar.sync 0;
 {adds} bar.sync 0; ld.shared.f32 %f3, [data]; mul.f32 %f3, %f3, 0f3F8CCCCD; mad.wide.u32 %rd2, %r1, 4, %rd1;
 st.global.f32 [%rd2], %f3;"""


def test_sums_in_shared_memory_whose_rounding_reaches_an_array_are_a_remark():
    adds, total = "red.shared.add.f32 [data], %f1;", np.zeros(3, np.float32)
    ran = run(SCRATCH.format(adds=adds), "ptr:sum", (total,), block=128, grid=3, schedule="explore", budget=24)
    assert ran.failure is None
    assert ["red.shared.add.f32" in remark for remark in ran.remarks] == [True]


def test_the_wrong_element_is_one_that_differs_by_more_than_rounding():
    """Element 0 is a sum that every order rounds in another way, element 2 the loser of a race."""
    body = ADDS + " @!%first bra END; st.global.u32 [%rd1+8], %r1; END:"
    total = np.zeros(4, np.float32)
    failure = run(body, "ptr:sum", (total,), grid=6, schedule="explore", budget=24).failure
    assert failure.kind == "disagreement"
    assert failure.index == (2,)
    assert "st.global.u32" in failure.written_by.source.text


def test_a_fault_of_the_eager_schedule_has_a_schedule_too(tmp_path):
    wrong = "ld.param.u64 %rd1, [sum]; ld.global.u32 %r1, [%rd1+64];"
    with pytest.raises(Fault) as caught:
        run(wrong, "ptr:sum", (np.zeros(1, np.float32),), schedule="explore")
    caught.value.schedule.save(tmp_path / "eager.json")
    with pytest.raises(Fault, match="OUT_OF_BOUNDS"):
        run(wrong, "ptr:sum", (np.zeros(1, np.float32),), schedule=str(tmp_path / "eager.json"))


def test_an_array_as_the_result_of_compare_is_refused():
    x = np.zeros(4, np.float32)
    with pytest.raises(WarploomError, match=r"returned an array of 4 values; return one"):
        run(ADDS, "ptr:sum", (x,), schedule="explore", compare=lambda: x == 0)


def test_the_portfolio_begins_with_the_fixed_schedules_and_ends_with_seeds():
    names = [each.name for each in portfolio({"wgmma.mma_async": 3, "add": 1}, 4, 16)]
    assert names[:3] == ["eager", "lazy", "weak"]
    assert {"random", "reverse", "starve:warp 3", "starve:CTA (0,0)"} <= set(names)
    assert "hold:wgmma" in names
    assert "hold:tcgen05-mma" not in names
    assert len(names) == 16
    assert [each.name for each in portfolio((), 4, 1)] == ["eager"]
    barred = [each.name for each in portfolio((), 4, 64, ["full[0]", "full[1]", "bars+0x8"])]
    assert [name for name in barred if "barrier" in name] == ["starve:barrier full", "starve:barrier bars+0x8"]


LOST = """ld.param.u64 %rd1, [sum]; @!%first bra END; ld.acquire.gpu.global.u32 %r1, [%rd1];
 add.u32 %r1, %r1, 1; st.release.gpu.global.u32 [%rd1], %r1; END:"""


def test_a_lost_update_is_shrunk_to_few_interruptions(tmp_path):
    """A CTA must be interrupted between its load and its store; the first event that differs is another CTA's load.

    With strong accesses store buffers do not show it.
    """
    total = np.zeros(1, np.uint32)
    failure = run(LOST, "ptr:sum", (total,), grid=8, schedule="explore").failure
    assert failure.found_by == "random, seed 0"
    assert failure.delayed == ()
    assert 1 <= len(failure.switched) <= 2
    assert " after " in failure.switched[0]
    assert failure.event.verb == "reads"
    assert failure.event.source.text.startswith("ld.acquire.gpu.global.u32")
    assert "shown by interrupting CTA" in str(failure)
    file = tmp_path / "lost.json"
    failure.schedule.save(file)
    total[:] = 0
    run(LOST, "ptr:sum", (total,), grid=8, schedule=str(file))
    assert total[0] == failure.found < 8


@pytest.mark.parametrize("budget", [0, -1, "64", None])
def test_a_wrong_budget_is_refused(budget):
    with pytest.raises(WarploomError, match="BAD_LAUNCH"):
        run("", schedule="explore", budget=budget)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_library_gives_the_same_bits_under_every_schedule(name):
    assert launch(FAMILIES[name]()[0], schedule="explore", budget=24).failure is None
