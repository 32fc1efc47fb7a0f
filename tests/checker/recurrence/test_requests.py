"""Proofs of kernels that ask for their tiles: defects that show only in later tiles, with more K steps, or with both."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from tests.checker.recurrence.test_sizes import PIPELINE, STAGES

import warploom
from warploom.checker.report import Verdict

TILES = 32
REQUEST = """FILL_TILE:
    mov.b32 %r10, 0;
    {FILL_BEGIN}
UNREAD:
    mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r3+40], %r35;
    @!%p8 bra UNREAD;
    xor.b32 %r35, %r35, 1;
    @!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+32], 16;
    @!%p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r36], [%r3+32];
FILL:
"""
ANSWER = """    add.u32 %r22, %r22, 1;
{ROLE}_ANSWER:
    mbarrier.try_wait.parity.shared::cta.b64 %p7, [%r3+32], %r34;
    @!%p7 bra {ROLE}_ANSWER;
    xor.b32 %r34, %r34, 1;
    ld.shared.b128 %q1, [%r36];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p11, %q1;
    @%p11 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r37, %q1;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.shared::cta.b64 _, [%r3+40];
    @%p11 bra {ROLE}_TILE;
"""


def asking(*, every_pass: str = "", fill: str = "", fill_begin: str = "", take_begin: str = "") -> str:
    """The pipeline of two warps, which asks for the next tile when it begins one; the ring goes on from tile to tile.

    %r22 is the number of tiles that the warp has finished, and %r10 the step.
    """
    text = PIPELINE.replace("{PARITY}", fill).replace("{LAST}", "%r20")
    text = text.replace("sm_90a", "sm_100a")
    text = text.replace("bars[4];", "bars[6];\n    .shared .align 16 .b8 mail[16];\n    .reg .b128 %q<2>;")
    init = "    mbarrier.init.shared::cta.b64 [%r3+24], 32;\n"
    more = "    mbarrier.init.shared::cta.b64 [%r3+32], 1;\n    mbarrier.init.shared::cta.b64 [%r3+40], 64;\n"
    text = text.replace(init, init + more + "    fence.mbarrier_init.release.cluster;\n")
    first = "    mov.b32 %r34, 0;\n    mov.b32 %r35, 1;\n    mov.u32 %r36, mail;\n    mov.u32 %r37, %ctaid.x;\n"
    text = text.replace("    mov.b32 %r19, 0;\n", "    mov.b32 %r22, 0;\n" + first)
    text = text.replace("FILL:\n", REQUEST.replace("{FILL_BEGIN}", fill_begin))
    text = text.replace("    bra END;\n", ANSWER.replace("{ROLE}", "FILL") + "    bra END;\n")
    begin = f"TAKE_TILE:\n    mov.b32 %r10, 0;\n    mov.b32 %r19, 0;\n    {take_begin}\nTAKE:\n    {every_pass}\n"
    text = text.replace("TAKE:\n", begin)
    address = "    mad.wide.u32 %rd3, %r37, 128, %rd1;\n    add.u64 %rd3, %rd3, %rd2;\n"
    text = text.replace("    add.u64 %rd3, %rd1, %rd2;\n", address)
    stored = "    st.global.u32 [%rd3], %r19;\n"
    return text.replace(stored, stored + ANSWER.replace("{ROLE}", "TAKE"))


def checked(text: str, steps: int = STAGES, sizes: str = "pairs") -> warploom.Report:
    args = [np.zeros(32 * TILES, np.uint32), np.uint32(steps)]
    return warploom.check(text, launch={"grid": TILES, "block": 64, "args": args}, sizes=sizes, budget=2)


def is_for_all_pairs(report: warploom.Report) -> bool:
    return any("with any number of tiles" in each for each in report.covers.generalised)


def test_every_pair_is_proved() -> None:
    report = checked(asking())
    assert report.verdict is Verdict.PROVED
    assert is_for_all_pairs(report)
    assert report.covers.as_run == ("configuration", "input data")


def test_every_pair_is_proved_without_copies_of_the_process() -> None:
    """Another thread may hold locks, so that the process is not copied."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        report = checked(asking())
    finally:
        over.set()
        thread.join()
    assert report.verdict is Verdict.PROVED
    assert is_for_all_pairs(report)


RESET_STAGE = "mov.b32 %r11, 0;"
RESET_ALL = "mov.b32 %r11, 0; mov.b32 %r12, 1;"
LATE_STEP = "setp.eq.u32 %p9, %r10, {AT}; setp.gt.u32 %p10, %r22, 0; and.pred %p9, %p9, %p10;"
FLIP = "selp.b32 %r30, 1, 0, %p9; xor.b32 %r12, %r12, %r30;"
DEFECTS = {
    "the stage begins at 0 in every tile": asking(fill_begin=RESET_STAGE),
    "stage and parity begin anew in every tile": asking(fill_begin=RESET_ALL),
    "a parity of the tile alone": asking(fill_begin="and.b32 %r12, %r22, 1; xor.b32 %r12, %r12, 1;"),
    "a parity of the tile times the steps": asking(
        # the tile times the steps, of which at most 5 are counted, and the step: right with up to 5 steps
        fill="min.u32 %r30, %r20, 5; mad.lo.u32 %r30, %r30, %r22, %r10; "
        "shr.u32 %r30, %r30, 1; not.b32 %r30, %r30; and.b32 %r12, %r30, 1;",
    ),
    "the third tile": asking(fill="setp.eq.u32 %p9, %r22, 2;" + FLIP),
    "a tile that no run has": asking(fill="setp.eq.u32 %p9, %r22, 4096;" + FLIP),
    "step 9": asking(fill="setp.eq.u32 %p9, %r10, 9;" + FLIP),
    "step 9 of the second tile": asking(fill=LATE_STEP.replace("{AT}", "9") + FLIP),
    "a step that no run has, in the second tile": asking(fill=LATE_STEP.replace("{AT}", "4096") + FLIP),
    "the fourth tile, with a remainder of 3": asking(
        fill="and.b32 %r30, %r20, 3; setp.eq.u32 %p9, %r30, 3; setp.eq.u32 %p10, %r22, 3; "
        "and.pred %p9, %p9, %p10; setp.eq.u32 %p10, %r10, 0; and.pred %p9, %p9, %p10;" + FLIP,
    ),
    "as many tiles as steps": asking(fill="setp.eq.u32 %p9, %r22, %r20;" + FLIP),
    "as many tiles as steps, from 200 on": asking(
        fill="max.u32 %r30, %r20, 200; setp.eq.u32 %p9, %r22, %r30;" + FLIP,
    ),
}
"""Defects of the producer, which are correct in one tile of as many K steps as four stages."""
NOT_REACHED = {
    "a parity of the tile times the steps",
    "a tile that no run has",
    "a step that no run has, in the second tile",
    "as many tiles as steps, from 200 on",
}
"""Defects in runs that the checker does not come to, because it refuses a proof before."""


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_not_proved_for_every_pair(name: str) -> None:
    report = checked(DEFECTS[name], steps=4)
    assert not is_for_all_pairs(report)
    assert report.verdict is (Verdict.INCOMPLETE if name in NOT_REACHED else Verdict.REFUTED)
    if name in NOT_REACHED:
        assert any("with other numbers of K steps" in each for each in report.reasons)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_not_proved_for_every_pair_without_copies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warploom.checker.recurrence.sizes.can_branch", lambda: False)
    report = checked(DEFECTS[name], steps=4)
    assert report.verdict is not Verdict.PROVED
    assert not is_for_all_pairs(report)


def test_a_drain_that_misses_one_remainder_is_found() -> None:
    # With 1 modulo 4 steps, the consumer does not wait for the last stage of a tile after the second.
    begin = """and.b32 %r30, %r20, 3;
    setp.eq.u32 %p9, %r30, 1;
    setp.gt.u32 %p10, %r22, 1;
    and.pred %p9, %p9, %p10;
    sub.u32 %r31, %r20, 1;
"""
    skip = "    setp.eq.u32 %p10, %r10, %r31;\n    and.pred %p10, %p10, %p9;\n    @%p10 bra TAKEN;\nFULL:\n"
    text = asking(take_begin=begin).replace("FULL:\n", skip)
    text = text.replace("    @!%p3 bra FULL;\n", "    @!%p3 bra FULL;\nTAKEN:\n")
    assert checked(text, steps=4, sizes="all").verdict is Verdict.PROVED  # of each size with one of the other
    report = checked(text, steps=4)
    assert report.verdict is Verdict.REFUTED


def test_knowledge_from_an_earlier_phase_does_not_stand_for_the_latest() -> None:
    # From the fourth tile on, the consumer waits in every second lap of the ring only.
    skip = "    setp.eq.u32 %p10, %r12, 1;\n    and.pred %p10, %p10, %p9;\n    @%p10 bra TAKEN;\nFULL:\n"
    text = asking(take_begin="setp.gt.u32 %p9, %r22, 2;").replace("FULL:\n", skip)
    text = text.replace("    @!%p3 bra FULL;\n", "    @!%p3 bra FULL;\nTAKEN:\n")
    report = checked(text)
    assert report.verdict is Verdict.REFUTED
    assert not report.covers.generalised
