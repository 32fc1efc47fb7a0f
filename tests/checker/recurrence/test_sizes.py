"""Proofs for all sizes: a pipeline is proved by recurrence, and defects that show late are not."""

from __future__ import annotations

import numpy as np
import pytest

import warploom
from warploom.checker.report import Verdict

STAGES = 2
PIPELINE = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry pipeline(.param .u64 out, .param .u32 steps)
{
    .reg .pred %p<12>;
    .reg .b32 %r<40>;
    .reg .b64 %rd<8>;
    .shared .align 128 .b8 data[256];
    .shared .align 8 .b64 bars[4];
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r20, [steps];
    mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 31;
    shl.b32 %r2, %r2, 2;
    mov.u32 %r3, bars;
    mov.u32 %r4, data;
    add.u32 %r5, %r4, %r2;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r3], 32;
    mbarrier.init.shared::cta.b64 [%r3+8], 32;
    mbarrier.init.shared::cta.b64 [%r3+16], 32;
    mbarrier.init.shared::cta.b64 [%r3+24], 32;
READY:
    bar.sync 0;
    mov.b32 %r10, 0;
    mov.b32 %r11, 0;
    mov.b32 %r19, 0;
    setp.ge.u32 %p2, %r1, 32;
    @%p2 bra CONSUME;
    mov.b32 %r12, 1;
FILL:
    shl.b32 %r13, %r11, 3;
    add.u32 %r14, %r3, %r13;
    {PARITY}
FREE:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r14+16], %r12;
    @!%p3 bra FREE;
    shl.b32 %r15, %r11, 7;
    add.u32 %r16, %r5, %r15;
    st.shared.u32 [%r16], %r10;
    mbarrier.arrive.shared::cta.b64 _, [%r14];
    add.u32 %r17, %r11, 1;
    setp.eq.u32 %p4, %r17, 2;
    selp.b32 %r11, 0, %r17, %p4;
    selp.b32 %r18, 1, 0, %p4;
    xor.b32 %r12, %r12, %r18;
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p5, %r10, %r20;
    @%p5 bra FILL;
    bra END;
CONSUME:
    mov.b32 %r12, 0;
TAKE:
    shl.b32 %r13, %r11, 3;
    add.u32 %r14, %r3, %r13;
FULL:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r14], %r12;
    @!%p3 bra FULL;
    shl.b32 %r15, %r11, 7;
    add.u32 %r16, %r5, %r15;
    ld.shared.u32 %r21, [%r16];
    add.u32 %r19, %r19, %r21;
    mbarrier.arrive.shared::cta.b64 _, [%r14+16];
    add.u32 %r17, %r11, 1;
    setp.eq.u32 %p4, %r17, 2;
    selp.b32 %r11, 0, %r17, %p4;
    selp.b32 %r18, 1, 0, %p4;
    xor.b32 %r12, %r12, %r18;
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p6, %r10, {LAST};
    @%p6 bra TAKE;
    cvt.u64.u32 %rd2, %r2;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r19;
END:
    bar.sync 1;
    ret;
}
"""


def pipeline(*, parity: str = "", last: str = "%r20", without: str = "", steps: int = STAGES) -> warploom.Report:
    """The report of a pipeline of two warps and two stages, launched with as many steps as stages."""
    text = PIPELINE.replace("{PARITY}", parity).replace("{LAST}", last)
    if without:
        assert without in text
        text = text.replace(without, "", 1)
    out = np.zeros(32, np.uint32)
    launch = {"grid": 1, "block": 64, "args": [out, np.uint32(steps)]}
    return warploom.check(text, launch=launch, sizes="all", budget=0)


def test_a_pipeline_is_proved_for_every_number_of_steps() -> None:
    report = pipeline()
    assert report.verdict is Verdict.PROVED
    (steps, clusters) = report.covers.generalised
    assert steps.startswith("steps >= 1 (")
    assert f"a period of {2 * STAGES} steps" in steps  # the parity of a barrier comes back after two laps
    assert clusters == "number of clusters"
    assert "sizes" not in report.covers.as_run
    assert any(each.startswith("fresh-tiles") for each in report.assumptions)


def test_the_launch_alone_says_nothing_of_other_sizes() -> None:
    out = np.zeros(32, np.uint32)
    launch = {"grid": 1, "block": 64, "args": [out, np.uint32(STAGES)]}
    text = PIPELINE.replace("{PARITY}", "").replace("{LAST}", "%r20")
    covers = warploom.check(text, launch=launch).covers
    assert covers.generalised == ()
    assert "sizes" in covers.as_run


@pytest.mark.parametrize("bit", [3, 12])
def test_a_parity_from_the_counter_is_not_generalised(bit: int) -> None:
    # The parity is wrong from step 8 (after the third wrap), or from step 4,096, which no run reaches.
    wrong = f"shr.u32 %r30, %r10, {bit}; and.b32 %r30, %r30, 1; xor.b32 %r12, %r12, %r30;"
    report = pipeline(parity=wrong)
    assert report.covers.generalised == ()
    if bit == 3:
        assert report.verdict is Verdict.REFUTED
        assert any("K steps" in note for finding in report.findings for note in finding.notes)
    else:
        assert report.verdict is Verdict.INCOMPLETE
        assert any("K steps" in each for each in report.covers.as_run)
        assert any("there is no proof for all K steps" in each for each in report.reasons)


@pytest.mark.parametrize("at", [1000, 1 << 20])
def test_a_comparison_that_comes_true_later_is_not_generalised(at: int) -> None:
    wrong = f"setp.eq.u32 %p8, %r10, {at}; selp.b32 %r30, 1, 0, %p8; xor.b32 %r12, %r12, %r30;"
    report = pipeline(parity=wrong)
    assert report.verdict is Verdict.INCOMPLETE
    assert report.covers.generalised == ()
    assert any("is not passed" in each for each in report.covers.as_run)


def test_a_wait_that_matters_after_the_first_lap_is_found() -> None:
    without = """    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r14+16], %r12;
    @!%p3 bra FREE;
"""
    report = pipeline(without=without)
    assert report.verdict is Verdict.REFUTED
    assert report.covers.generalised == ()


def test_a_parity_that_is_not_flipped_is_found() -> None:
    report = pipeline(without="    xor.b32 %r12, %r12, %r18;\n")  # the producer's, which comes first
    assert report.verdict is Verdict.REFUTED


def test_loops_of_different_lengths_are_not_generalised() -> None:
    # The consumer takes half of what it gets: right for no size but those that are run.
    report = pipeline(parity="shr.u32 %r31, %r20, 1;", last="%r31", steps=1)
    assert report.covers.generalised == ()


CONFIGURATIONS = {
    "sm_90a": lambda: warploom.HopperConfig(tile=(64, 32), consumers=1, num_pipeline_stages=2),
    "sm_90a ping-pong": lambda: warploom.HopperConfig(tile=(64, 32), pingpong=True, num_pipeline_stages=2),
    "sm_100a": lambda: warploom.MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), num_pipeline_stages=2),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_kernels_of_the_library_are_proved_for_every_k(name: str) -> None:
    tiles = 24  # at least as many as the recurrence of the tile loop needs
    given = np.ones((64 * tiles, 192), np.float16), np.ones((192, 32), np.float16)
    launch = warploom.matmul.bind(*given, target=name.partition(" ")[0], config=CONFIGURATIONS[name]())
    report = warploom.check(launch, sizes="all")
    assert report.verdict is Verdict.PROVED
    steps, tiles = report.covers.generalised
    assert ">= 1 with one tile of a cluster (1 to " in steps
    assert "a period of 4 steps" in steps
    assert tiles.startswith("tiles of a cluster >= 1")


def test_sizes_are_enumerated_where_data_steers() -> None:
    given = np.ones((70, 64), np.float16), np.ones((3, 64, 48), np.float16), np.array([9, 9, 70])
    report = warploom.check(warploom.grouped_matmul.bind(*given, target="sm_90a"), sizes="all")
    assert report.verdict is Verdict.PROVED
    assert report.covers.generalised == ()
    assert report.covers.cases[:2] == ("grouped_k_tiles of 1 to 18 K steps", "grouped_ends: all groups empty")
    assert len(report.covers.cases) == 7
    assert any("control depends on data" in each for each in report.covers.as_run)


def with_steps(steps: int, text: str = "") -> warploom.Launch:
    program = text or PIPELINE.replace("{PARITY}", "").replace("{LAST}", "%r20")
    return warploom.Launch(program, (1, 1, 1), (64, 1, 1), (np.zeros(32, np.uint32), np.uint32(steps)))


def test_further_launches_are_checked_by_name() -> None:
    cases = {f"{steps} steps": with_steps(steps) for steps in (1, 3)}
    covers = warploom.check(with_steps(STAGES), sizes=cases).covers
    assert covers.cases == ("1 steps", "3 steps")
    assert covers.generalised == ()
    # A defect at one size only: the parity is wrong at the fourth step.
    wrong = "setp.eq.u32 %p8, %r10, 3; selp.b32 %r30, 1, 0, %p8; xor.b32 %r12, %r12, %r30;"
    text = PIPELINE.replace("{PARITY}", wrong).replace("{LAST}", "%r20")
    given = {f"{steps} steps": with_steps(steps, text) for steps in (3, 5)}
    report = warploom.check(with_steps(STAGES, text), sizes=given, budget=0)
    assert report.verdict is Verdict.REFUTED
    assert report.covers.cases == ("3 steps",)
    assert all("found with 5 steps" in each.notes or each.code == "DEADLOCK" for each in report.findings)


def test_cases_must_be_launches() -> None:
    for sizes in ({"one": 1}, {}, 3, "some"):
        with pytest.raises(warploom.WarploomError, match="`sizes`"):
            warploom.check(with_steps(STAGES), sizes=sizes)


def test_an_address_outside_of_shared_memory_is_a_fault_at_any_size() -> None:
    # It is not a matter of arrays that are too small for more K steps.
    report = pipeline(parity="shl.b32 %r30, %r10, 16; add.u32 %r5, %r5, %r30;", steps=1)
    assert report.verdict is Verdict.REFUTED
    (fault,) = (each for each in report.findings if each.code == "FAULT")
    assert "OUT_OF_BOUNDS" in fault.sentence


MORE = """    ld.global.u32 %r36, [%rd5];
    mov.b32 %r37, 0;
MORE:
    add.u32 %r37, %r37, 1;
    bar.warp.sync -1;
    setp.lt.u32 %p11, %r37, {BOUND};
    @%p11 bra MORE;
"""


@pytest.mark.parametrize(("bound", "is_given"), [("%r36", False), ("3", True), ("%r20", False)])
def test_a_loop_whose_bound_comes_from_memory_is_not_generalised(bound: str, is_given: bool) -> None:
    """The passes of the loop depend on data at other sizes, or grow in each step with the number of steps."""
    text = PIPELINE.replace("{PARITY}", MORE.replace("{BOUND}", bound)).replace("{LAST}", "%r20")
    text = text.replace(".param .u32 steps)", ".param .u32 steps, .param .u64 counts)")
    text = text.replace("    mov.u32 %r1, %tid.x;\n", "    mov.u32 %r1, %tid.x;\n    ld.param.u64 %rd5, [counts];\n", 1)
    args = [np.zeros(32, np.uint32), np.uint32(STAGES), np.ones(1, np.uint32)]
    report = warploom.check(text, launch={"grid": 1, "block": 64, "args": args}, sizes="all", budget=0)
    assert report.verdict is (Verdict.INCOMPLETE if bound == "%r20" else Verdict.PROVED)  # data are enumerated
    assert bool(report.covers.generalised) == is_given
    assert bool(report.covers.cases) == (bound == "%r36")


ELEMENTS = ("    add.u32 %r10, %r10, 1;\n", "    add.u32 %r10, %r10, 16;\n")


@pytest.mark.parametrize(("ahead", "is_right"), [(16, True), (8, False)])
def test_a_size_in_elements_is_proved_if_only_the_number_of_steps_matters(ahead: int, is_right: bool) -> None:
    # With a look-ahead of half a step, sizes with equally many steps differ in what the last step does.
    guard = f"add.u32 %r33, %r10, {ahead}; setp.lt.u32 %p8, %r33, %r20; @%p8 fence.proxy.async;"
    text = PIPELINE.replace("{PARITY}", guard).replace("{LAST}", "%r20").replace(*ELEMENTS)
    launch = {"grid": 1, "block": 64, "args": [np.zeros(32, np.uint32), np.uint32(32)]}
    report = warploom.check(text, launch=launch, sizes="all", budget=0)
    assert report.verdict is (Verdict.PROVED if is_right else Verdict.INCOMPLETE)
    assert bool(report.covers.generalised) == is_right
    if is_right:
        assert "K steps of 16 run" in report.covers.generalised[0]
        assert "a period of 4 steps" in report.covers.generalised[0]
    else:
        assert any("by more than the number of steps" in each for each in report.covers.as_run)


FLIP = "selp.b32 %r30, 1, 0, %p8; xor.b32 %r12, %r12, %r30;"


@pytest.mark.parametrize(
    ("wrong", "is_right"),
    [
        (f"setp.eq.u32 %p8, %r20, 1000; {FLIP}", False),
        (f"setp.gt.u32 %p8, %r20, 1000; setp.lt.u32 %p9, %r20, 1010; and.pred %p8, %p8, %p9; {FLIP}", False),
        (f"min.u32 %r31, %r20, 5000; setp.eq.u32 %p8, %r31, 4999; {FLIP}", False),
        (f"and.b32 %r31, %r20, 1023; setp.eq.u32 %p8, %r31, 1000; {FLIP}", False),
        (f"shl.b32 %r31, %r20, 20; setp.eq.u32 %p8, %r31, 0; {FLIP}", False),
        ("setp.gt.u32 %p8, %r20, 4; @%p8 fence.proxy.async;", True),
        ("and.b32 %r31, %r20, 3; setp.eq.u32 %p8, %r31, 3; @%p8 fence.proxy.async;", True),
    ],
    ids=["one size", "a range", "a minimum", "some bits", "an overflow", "few steps", "a remainder"],
)
def test_a_size_that_steers_otherwise_is_not_generalised(wrong: str, is_right: bool) -> None:
    """Samples of the sizes do not show where a comparison of the parameter turns."""
    report = pipeline(parity=wrong)
    assert report.verdict is (Verdict.PROVED if is_right else Verdict.INCOMPLETE)
    assert bool(report.covers.generalised) == is_right


def test_a_bound_that_is_another_one_at_one_size_is_not_generalised() -> None:
    bound = "setp.eq.u32 %p8, %r20, 1000; selp.b32 %r31, 999, %r20, %p8; mov.u32 %r1, %tid.x;"
    text = PIPELINE.replace("mov.u32 %r1, %tid.x;", bound, 1).replace("%p5, %r10, %r20", "%p5, %r10, %r31")
    report = warploom.check(with_steps(STAGES, text.replace("{PARITY}", "").replace("{LAST}", "%r20")), sizes="all")
    assert report.verdict is Verdict.INCOMPLETE
