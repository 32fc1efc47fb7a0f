"""Equal passes of a loop are judged once; the report is the one of a check that judges every event."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import warploom
from warploom.checker import equal_passes, runs
from warploom.checker.equal_clusters import Clusters
from warploom.checker.report import Report
from warploom.host.launch import Launch
from warploom.launcher import launch_of

RNG = np.random.default_rng()
LOOP = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 in, .param .u32 passes, .param .u32 wrong)
{
    .reg .b32 %r<20>;
    .reg .b64 %rd<12>;
    .reg .pred %p<6>;
    .shared .align 16 .b8 tile[8192];
    .shared .align 8 .b64 bar;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, tile;
    shl.b32 %r3, %r1, 2;
    add.u32 %r4, %r2, %r3;
    xor.b32 %r5, %r3, 252;
    add.u32 %r5, %r2, %r5;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [in];
    ld.param.u32 %r6, [passes];
    ld.param.u32 %r15, [wrong];
    mul.wide.u32 %rd3, %r1, 4;
    add.u64 %rd4, %rd1, %rd3;
    add.u64 %rd5, %rd2, %rd3;
    mov.u32 %r8, bar;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra ready;
    mbarrier.init.shared::cta.b64 [%r8], 64;
ready:
    bar.sync 0;
    mov.u32 %r7, 0;
    mov.u32 %r10, 0;
pass:
    BODY
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p1, %r7, %r6;
    @%p1 bra pass;
    AFTER
    st.global.u32 [%rd4], %r10;
    ret;
}
"""
EXCHANGE = """
    st.shared.u32 [%r4], %r7;
    bar.sync 0;
    ld.shared.u32 %r9, [%r5];
    add.u32 %r10, %r10, %r9;
    bar.sync 0;
"""
PHASES = """
    st.shared.u32 [%r4], %r7;
    and.b32 %r11, %r7, 1;
    mbarrier.arrive.shared::cta.b64 _, [%r8];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r8], %r11;
    @!%p3 bra wait;
    ld.shared.u32 %r9, [%r5];
    add.u32 %r10, %r10, %r9;
    bar.sync 0;
"""
FRESH = """
    mul.wide.u32 %rd6, %r7, 256;
    add.u64 %rd7, %rd5, %rd6;
    add.u64 %rd8, %rd4, %rd6;
"""
READ = f"{EXCHANGE}{FRESH} ld.global.u32 %r12, [%rd7];\n add.u32 %r10, %r10, %r12;"
ONCE = "setp.eq.u32 %p4, %r7, 37;\n"
KERNELS = {
    # name: (body, after, verdict, whether passes are left out)
    "barriers": (EXCHANGE, "", "PROVED", True),
    "phases": (PHASES, "", "PROVED", True),
    "reads of global memory": (READ, "", "PROVED", True),
    "writes of global memory": (f"{EXCHANGE}{FRESH} st.global.u32 [%rd8+256], %r9;", "", "PROVED", True),
    "a race in every pass": (EXCHANGE.replace("bar.sync 0;", "", 1), "", "REFUTED", False),
    "a race in one pass": (f"{ONCE}@%p4 bra late;\nbar.sync 0;\nlate:{EXCHANGE}".replace("bar.sync 0;\n    ld", "@!%p4 bar.sync 0;\n    ld"), "", "REFUTED", True),
    "a phase that nothing waits for": (
        PHASES.replace("bar.sync 0;", "") + f"{ONCE}@!%p4 bar.sync 0;", "", "REFUTED", True
    ),
    "a race after the loop": (PHASES, "st.shared.u32 [%r4+4], %r10;\nld.shared.u32 %r13, [%r5];", "REFUTED", True),
    "a late phase": (PHASES, "mbarrier.arrive.shared::cta.b64 _, [%r8];\nmbarrier.arrive.shared::cta.b64 _, [%r8];", "REFUTED", True),
    "a write of what the passes have read": (
        READ, "xor.b32 %r14, %r3, 252;\ncvt.u64.u32 %rd9, %r14;\nadd.u64 %rd10, %rd2, %rd9;\nst.global.u32 [%rd10], %r10;",
        "PROVED", False,
    ),
    "an unordered write of what the passes have read": (
        READ.replace(EXCHANGE, EXCHANGE.replace("bar.sync 0;", "", 2).replace("ld.shared.u32 %r9, [%r5];", "")),
        "xor.b32 %r14, %r3, 252;\ncvt.u64.u32 %rd9, %r14;\nadd.u64 %rd10, %rd2, %rd9;\nst.global.u32 [%rd10], %r10;",
        "REFUTED", False,
    ),
    "writes of the same bytes": (f"{EXCHANGE} st.global.u32 [%rd4+512], %r9;", "", "PROVED", False),
    "a fault after the loop": (PHASES, "ld.global.u32 %r13, [%rd4+1048576];", "REFUTED", True),
}  # fmt: skip


def once(defect: str, whole: str = "") -> str:
    """Code of a loop that is different in one pass, whose number is a parameter of the kernel."""
    return f"setp.eq.u32 %p4, %r7, %r15;\n@%p4 bra then;\n{whole}\nbra.uni on;\nthen:{defect}\non:"


WORDS = """
    and.b32 %r16, %r3, MASK;
    shl.b32 %r16, %r16, 2;
    and.b32 %r17, %r7, 3;
    shl.b32 %r17, %r17, 2;
    add.u32 %r16, %r16, %r17;
    add.u32 %r16, %r16, %r2;
"""
"""The address of one of four words of a thread, in turn: its own, or those of a thread of the first warp."""
OWN, OTHERS = WORDS.replace("MASK", "255"), WORDS.replace("MASK", "127")
PLACE = """
    add.u32 %r16, %r7, 8;
    mul.wide.u32 %rd6, %r16, 256;
    and.b32 %r17, %r3, MASK;
    cvt.u64.u32 %rd7, %r17;
    add.u64 %rd7, %rd7, %rd6;
    add.u64 %rd7, %rd7, %rd1;
"""
"""A place in global memory."""
RING = """
    and.b32 %r17, %r7, 15;
    shl.b32 %r17, %r17, 8;
    add.u32 %r16, %r2, %r17;
    add.u32 %r17, %r16, %r3;
    st.shared.u32 [%r17], %r7;
    FENCE
    bar.sync 0;
    @%p2 bra stored;
    mul.wide.u32 %rd6, %r7, 256;
    add.u64 %rd7, %rd1, %rd6;
    cp.async.bulk.global.shared::cta.bulk_group [%rd7+256], [%r16], 256;
    cp.async.bulk.commit_group;
    WAIT
stored:
    bar.sync 0;
"""
FENCE = "fence.proxy.async.shared::cta;"
WAIT = "cp.async.bulk.wait_group.read 15;"
ONE_PASS = {
    # name: (body, the finding, the first and the last pass where it is one if not all)
    "a barrier is left out": (EXCHANGE.replace("bar.sync 0;", once("", "bar.sync 0;"), 1), "RACE_RAW"),
    "another lane stores": (
        (f"{EXCHANGE} and.b32 %r16, %r1, 31;\nsetp.eq.u32 %p5, %r1, 0;\n"
        f"{once('setp.eq.u32 %p5, %r16, 0;')}\n@%p5 st.shared.u32 [%r2+1024], %r1;"),
        "RACE_WAW",
    ),
    "more lanes load": (
        ("setp.lt.u32 %p5, %r1, 32;\n@%p5 st.shared.u32 [%r4+1024], %r7;\n"
        f"{EXCHANGE}{once('setp.lt.u32 %p5, %r1, 48;')}\n@%p5 ld.shared.u32 %r16, [%r4+1024];"),
        "UNINITIALISED",
    ),
    "another address": (f"{EXCHANGE}{once(OTHERS, OWN)} st.shared.u32 [%r16+1024], %r1;", "RACE_WAW"),
    "the same place in global memory": (
        EXCHANGE + once(PLACE.replace("MASK", "127"), PLACE.replace("MASK", "255")) + "st.global.u32 [%rd7], %r1;",
        "RACE_WAW",
    ),
    "no fence": (RING.replace("FENCE", once("", FENCE)).replace("WAIT", WAIT), "FENCE_PROXY"),
    "no wait": (RING.replace("FENCE", FENCE).replace("WAIT", once("", WAIT)), "RACE_WAR", 15, 94),
    "a wait for too few": (
        RING.replace("FENCE", FENCE).replace("WAIT", once(WAIT.replace("15", "16"), WAIT)),
        "RACE_WAR", 15, 94,
    ),
    "no wait for a phase": (
        PHASES.replace("wait:", "setp.eq.u32 %p4, %r7, %r15;\n@%p4 bra late;\nwait:")
        .replace("bra wait;", "bra wait;\nlate:"), "RACE_RAW",
    ),
    "the other phase": (PHASES.replace("wait:", f"{once('xor.b32 %r11, %r11, 1;')}\nwait:"), "DEADLOCK"),
    "a value decides": (
        f"{FRESH} ld.global.u32 %r16, [%rd7];\nsetp.lt.s32 %p5, %r16, 0;\n"
        + EXCHANGE.replace("bar.sync 0;", "@%p5 bra late;\nbar.sync 0;\nlate:", 1),
        "RACE_RAW",
    ),
}  # fmt: skip
"""Loops that are right but for one pass."""


def made(name: str, passes: int = 64, grid: int = 1, wrong: int = 0) -> Launch:
    body, after, *_ = KERNELS[name] if name in KERNELS else (ONE_PASS[name][0], "")
    text = LOOP.replace("BODY", body).replace("AFTER", after)
    values = RNG.integers(0, 9, 64 * 200, np.int32)
    values[64 * wrong : 64 * wrong + 64] -= 9 * (name in ONE_PASS)
    return launch_of(text, grid=grid, block=64, args=(np.zeros(64 * 200, np.int32), values, passes, wrong))


def judged(launch: Launch, profile: str, monkeypatch: pytest.MonkeyPatch, budget: int = 0) -> tuple[Report, list[int]]:
    """The report of a check, and how many events each of its runs has left out."""
    left_out = list[int]()
    finish = Clusters.finish

    def finished(self):
        finish(self)
        left_out.append(self.left_out)

    with monkeypatch.context() as patch:
        patch.setattr(Clusters, "finish", finished)
        report = warploom.check(launch, profile=profile, budget=budget)
    return report, left_out


def of_every_event(launch: Launch, profile: str, monkeypatch: pytest.MonkeyPatch, budget: int = 0) -> Report:
    """The report of a check that judges each event by itself."""
    with monkeypatch.context() as patch:
        patch.setattr(runs, "Clusters", lambda checker, *_: Direct(checker))
        return warploom.check(launch, profile=profile, budget=budget)


class Direct:
    """Hands every event to the checker as it comes."""

    needs_completions = False

    def __init__(self, checker):
        self.on_start, self.on_event = checker.on_start, checker.on_event

    def finish(self):
        pass


def same_reports(
    launch: Launch, profile: str, monkeypatch: pytest.MonkeyPatch, budget: int = 0
) -> tuple[Report, list[int]]:
    """A report that is the one of a check of every event, and the events that each run has left out."""
    found, left_out = judged(launch, profile, monkeypatch, budget)
    wanted = of_every_event(launch, profile, monkeypatch, budget)
    assert found.findings == wanted.findings
    assert replace(found, cost=None, error=None) == replace(wanted, cost=None, error=None)
    assert str(found.error) == str(wanted.error)
    assert found.cost.events == wanted.cost.events
    return found, left_out


@pytest.mark.parametrize("name", KERNELS)
def test_loops_have_the_report_of_a_check_of_every_event(name, monkeypatch):
    report, left_out = same_reports(made(name), "strict", monkeypatch)
    *_, verdict, leaves_out = KERNELS[name]
    assert report.verdict == verdict
    assert any(left_out) == ((leaves_out and verdict == "PROVED") or name == "a fault after the loop")


@pytest.mark.parametrize("wrong", [1, 2, 37, 95])
@pytest.mark.parametrize("name", ONE_PASS)
def test_a_pass_that_alone_is_wrong_is_found(name, wrong, monkeypatch):
    """The second of the passes, the third, one in the middle, the last."""
    report, _ = same_reports(made(name, 96, wrong=wrong), "strict", monkeypatch)
    _, code, *first_and_last = ONE_PASS[name]
    first, last = first_and_last or (0, 95)
    assert (code in [each.code for each in report.findings]) == (first <= wrong <= last)


@pytest.mark.parametrize("name", ONE_PASS)
def test_without_that_pass_the_others_are_left_out(name, monkeypatch):
    report, left_out = same_reports(made(name, 96, wrong=100), "strict", monkeypatch)
    assert any(left_out)
    assert not report.findings


def test_clusters_with_long_loops_have_the_report_of_a_check_of_every_event(monkeypatch):
    same_reports(made("reads of global memory", grid=3), "strict", monkeypatch)


CONFIGS = {
    "sm_90a": warploom.HopperConfig(tile=(64, 32), consumers=1, num_pipeline_stages=3),
    "sm_100a": warploom.MatmulConfig(cta_group=1, mma_shape=(128, 32, 16), num_pipeline_stages=3),
}


@pytest.mark.parametrize(("target", "profile"), [("sm_90a", "strict"), ("sm_90a", "lenient"), ("sm_100a", "strict")])
def test_a_matmul_with_a_long_k_has_the_report_of_a_check_of_every_event(target, profile, monkeypatch):
    a, b = (RNG.integers(-4, 5, shape).astype(np.float16) for shape in ((64, 4096), (4096, 32)))
    launch = warploom.matmul.bind(a, b, target=target, config=CONFIGS[target])
    assert any(same_reports(launch, profile, monkeypatch)[1])


def test_passes_are_left_out_again_after_an_interruption(monkeypatch):
    """The pass that differs is judged, and those after it are left out again."""
    body = f"{EXCHANGE}{ONCE.replace('37', '300')}@%p4 bra other;\nbra.uni on;\nother:{EXCHANGE}on:"
    KERNELS["interrupted"] = (body, "", "PROVED", True)
    try:
        attempts = []
        begin = equal_passes.Passes._begin
        monkeypatch.setattr(equal_passes.Passes, "_begin", lambda self, *a: (attempts.append(1), begin(self, *a))[1])
        assert any(same_reports(made("interrupted", 400), "strict", monkeypatch)[1])
        assert len(attempts) > 1
    finally:
        del KERNELS["interrupted"]
