"""Proofs for every number of tiles with every number of K steps, and for loops that more than their bounds steer."""

from __future__ import annotations

import numpy as np
import pytest
from tests.checker.recurrence.test_sizes import PIPELINE, STAGES

import warploom
from warploom.checker.report import Verdict

ROOM = 24
"""Tiles that the output has room for."""
INIT = "    mov.b32 %r12, 1;\n"
NEXT = """    add.u32 %r22, %r22, 1;
    setp.lt.u32 %p7, %r22, %r23;
    @%p7 bra {LABEL};
"""


def persistent(*, every_pass: str = "", only_fill: str = "") -> str:
    """The pipeline of two warps in a loop over tiles; the ring goes on from tile to tile."""
    text = PIPELINE.replace("{PARITY}", every_pass + only_fill).replace("{LAST}", "%r20")
    text = text.replace(".param .u32 steps)", ".param .u32 steps, .param .u32 tiles)")
    text = text.replace("    mov.u32 %r1, %tid.x;\n", "    mov.u32 %r1, %tid.x;\n    ld.param.u32 %r23, [tiles];\n")
    text = text.replace("    mov.b32 %r19, 0;\n", "    mov.b32 %r22, 0;\n")
    text = text.replace("FILL:\n", "FILL_TILE:\n    mov.b32 %r10, 0;\nFILL:\n")
    text = text.replace("    bra END;\n", NEXT.format(LABEL="FILL_TILE") + "    bra END;\n")
    text = text.replace("TAKE:\n", "TAKE_TILE:\n    mov.b32 %r10, 0;\n    mov.b32 %r19, 0;\nTAKE:\n")
    stored = "    st.global.u32 [%rd3], %r19;\n"
    return text.replace(stored, stored + "    add.u64 %rd1, %rd1, 128;\n" + NEXT.format(LABEL="TAKE_TILE"))


def checked(text: str, sizes: str, tiles: int = ROOM) -> warploom.Report:
    args = [np.zeros(32 * ROOM, np.uint32), np.uint32(STAGES), np.uint32(tiles)]
    return warploom.check(text, launch={"grid": 1, "block": 64, "args": args}, sizes=sizes, budget=0)


def test_every_pair_of_steps_and_tiles_is_proved() -> None:
    report = checked(persistent(), "pairs")
    assert report.verdict is Verdict.PROVED
    (pairs,) = report.covers.generalised
    assert pairs.startswith("steps >= 1 with any number of tiles of a cluster >= 1 (1 to ")
    assert f"a period of {2 * STAGES} steps" in pairs
    assert report.covers.as_run == ("configuration", "input data")


AT_ONE_PAIR = """rem.u32 %r30, %r20, 4;
    setp.eq.u32 %p8, %r30, 3;
    setp.eq.u32 %p9, %r22, 2;
    and.pred %p8, %p8, %p9;
    @%p8 bra FREED;
"""
"""The producer does not wait in the third tile, if the number of steps is 3 modulo 4."""


def test_a_defect_of_one_remainder_in_one_tile_is_found_by_pairs() -> None:
    text = persistent(only_fill=AT_ONE_PAIR).replace("    @!%p3 bra FREE;\n", "    @!%p3 bra FREE;\nFREED:\n")
    assert checked(text, "all").verdict is Verdict.PROVED  # of each size with one of the other
    report = checked(text, "pairs")
    assert report.verdict is Verdict.REFUTED
    assert any("tiles of 3 K steps" in note for each in report.findings for note in each.notes)


def test_a_defect_after_many_steps_of_all_tiles_is_not_generalised() -> None:
    # A counter that goes on from tile to tile: the parity is wrong at step 70, counted over all tiles.
    late = "add.u32 %r31, %r31, 1; setp.eq.u32 %p8, %r31, 70; selp.b32 %r30, 1, 0, %p8; xor.b32 %r12, %r12, %r30;"
    text = persistent(only_fill=late).replace(INIT, INIT + "    mov.b32 %r31, 0;\n", 1)
    report = checked(text, "pairs")
    assert report.verdict is not Verdict.PROVED
    assert not report.covers.generalised


SKIP = "    add.u32 %r17, %r11, 1;\n    setp.eq.u32 %p4, %r17, 2;\n    selp.b32 %r11, 0, %r17, %p4;\n"
STAGE = """    add.u32 %r17, %r11, 1;
    {AMOUNT}
    add.u32 %r17, %r17, %r32;
    and.b32 %r11, %r17, 1;
    setp.eq.u32 %p4, %r11, 0;
"""


@pytest.mark.parametrize(
    ("amount", "is_right"), [("shl.b32 %r32, %r20, 1;", True), ("shr.u32 %r32, %r20, 9; shr.u32 %r32, %r32, 1;", False)]
)
def test_a_stage_that_skips_by_the_number_of_steps(amount: str, is_right: bool) -> None:
    # Twice the number of steps is a multiple of the stages for every number; a 1,024th of it is not from 1,024 on.
    text = PIPELINE.replace("{PARITY}", "").replace("{LAST}", "%r20")
    assert text.count(SKIP) == 2
    text = text.replace(SKIP, STAGE.replace("{AMOUNT}", amount))
    launch = {"grid": 1, "block": 64, "args": [np.zeros(32, np.uint32), np.uint32(STAGES)]}
    report = warploom.check(text, launch=launch, sizes="all", budget=0)
    assert report.verdict is (Verdict.PROVED if is_right else Verdict.INCOMPLETE)
    assert bool(report.covers.generalised) == is_right
    if not is_right:
        assert any("depends on steps" in each for each in report.covers.as_run)


HALFWAY = "setp.eq.u32 %p8, %r10, %r33; {GUARDED}"


@pytest.mark.parametrize("guarded", ["@%p8 fence.proxy.async;", "@%p8 xor.b32 %r12, %r12, 1;"])
def test_an_instruction_halfway_through_the_steps(guarded: str) -> None:
    text = PIPELINE.replace("{PARITY}", HALFWAY.replace("{GUARDED}", guarded)).replace("{LAST}", "%r20")
    text = text.replace(INIT, INIT + "    shr.u32 %r33, %r20, 1;\n", 1)
    launch = {"grid": 1, "block": 64, "args": [np.zeros(32, np.uint32), np.uint32(1)]}
    report = warploom.check(text, launch=launch, sizes="all", budget=0)
    if "xor" in guarded:
        assert report.verdict is Verdict.REFUTED
        return
    assert report.verdict is Verdict.PROVED
    assert f"a period of {4 * STAGES} steps" in report.covers.generalised[0]  # a lap and its parity on each side


def without_the_last_wait() -> str:
    """The consumer does not wait for its last stage, if the number of steps is 1 modulo 4 and not 1."""
    last = """CONSUME:
    rem.u32 %r30, %r20, 4;
    setp.eq.u32 %p8, %r30, 1;
    setp.gt.u32 %p9, %r20, 1;
    and.pred %p8, %p8, %p9;
    sub.u32 %r31, %r20, 1;
"""
    skip = "    setp.eq.u32 %p10, %r10, %r31;\n    and.pred %p10, %p10, %p8;\n    @%p10 bra TAKEN;\nFULL:\n"
    text = PIPELINE.replace("{PARITY}", "").replace("{LAST}", "%r20")
    text = text.replace("CONSUME:\n", last).replace("FULL:\n", skip)
    return text.replace("    @!%p3 bra FULL;\n", "    @!%p3 bra FULL;\nTAKEN:\n")


def of_one_tile(text: str, sizes: str) -> warploom.Report:
    launch = {"grid": 1, "block": 64, "args": [np.zeros(32, np.uint32), np.uint32(STAGES)]}
    return warploom.check(text, launch=launch, sizes=sizes, budget=0)


def test_a_wait_that_is_missing_at_the_end_of_one_remainder_is_found() -> None:
    text = without_the_last_wait()
    assert of_one_tile(text, "launch").verdict is Verdict.PROVED
    report = of_one_tile(text, "all")
    assert report.verdict is Verdict.REFUTED
    assert report.covers.generalised == ()


@pytest.mark.parametrize("is_right", [True, False])
def test_runs_in_copies_of_the_process_give_the_same_report(is_right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PIPELINE.replace("{PARITY}", "").replace("{LAST}", "%r20") if is_right else without_the_last_wait()
    reports = []
    for worth, cores in ((float("inf"), {0}), (0.0, {0, 1})):  # seconds that runs must take to be made in copies
        monkeypatch.setattr("warploom.checker.recurrence.sizes._WORTH", worth)
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: cores, raising=False)
        report = of_one_tile(text, "all")
        assert report.verdict is (Verdict.PROVED if is_right else Verdict.REFUTED)
        reports.append((report.covers, report.findings, report.assumptions, report.cost.events, report.cost.runs))
    assert reports[0] == reports[1]
