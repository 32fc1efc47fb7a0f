"""Witnesses: a finding comes with a recorded schedule that replays to the wrong result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.checker.kernels import checked, kernel
from tests.checker.test_ordinary_kernels import EXCHANGE, UPDATE

import warploom
from warploom.checker.report import Finding
from warploom.checker.witness import HoldBack
from warploom.launch_file import load

DATA = Path(warploom.__file__).parent / "data"
LOST = f"and.b32 %r8, %r1, 31; setp.eq.u32 %p2, %r8, 0; @!%p2 bra end; {UPDATE} end:"
FLAG = """
    mov.u32 %r13, 0; @%p1 st.shared.u32 [%r2+512], %r13; @%p1 st.shared.u32 [%r2+256], %r13; bar.sync 0;
    setp.eq.u32 %p3, %r6, 0; @%p3 bra producer;
poll:
    ld.relaxed.cta.shared.u32 %r10, [%r2+512]; setp.ne.u32 %p2, %r10, 1; @%p2 bra poll;
    ld.shared.u32 %r11, [%r2+256]; st.global.u32 [%rd3], %r11; bra end;
producer:
    mov.u32 %r12, 1; @%p1 st.shared.u32 [%r2+256], %r12; @%p1 st.relaxed.cta.shared.u32 [%r2+512], %r12;
end:
"""

TWO_FENCES = """
    @%p1 mbarrier.init.shared::cta.b64 [%r3], 1; @%p1 fence.proxy.async.shared::cta;
    mov.u32 %r10, 0; st.shared.u32 [%r5+1024], %r10; fence.proxy.async.shared::cta; bar.sync 0;
    ld.shared.u32 %r11, [%r5+1024]; add.u32 %r11, %r11, 7; st.shared.u32 [%r5], %r11;
    bar.sync 0;
    @!%p1 bra wait;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;
    add.u32 %r12, %r2, 1024;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r12], [%rd1], 256, [%r3];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra wait;
"""


@pytest.mark.parametrize("body", [EXCHANGE.format(sync=""), LOST, FLAG], ids=["exchange", "lost update", "flag"])
def test_a_witness_replays(body: str, tmp_path: Path) -> None:
    report = checked(body)
    finding: Finding = next(each for each in report.findings if each.witness and each.witness.confirmed)
    assert finding.witness is not None
    assert finding.witness.schedule is not None
    assert finding.witness.tried <= 5
    path = tmp_path / "witness.json"
    finding.witness.schedule.save(path)
    results = []
    for schedule in ("eager", str(path), str(path)):
        out = np.zeros(64, np.uint32)
        warploom.launch(kernel(body), grid=1, block=64, args=[out], schedule=schedule)
        results.append(out)
    assert not np.array_equal(results[0], results[1])
    assert np.array_equal(results[1], results[2])


def test_the_missing_fence_gives_wrong_numbers() -> None:
    file = load(DATA / "matmul_triton370_sm100.launch.json")
    report = warploom.check(file.launch(file.allocate()), profile="lenient")
    witness = report.findings[0].witness
    assert witness is not None
    assert witness.confirmed
    assert "nan instead of" in witness.text
    buffers = file.allocate()
    assert witness.schedule is not None
    warploom.launch(file.launch(buffers), schedule=witness.schedule.replayed())
    assert tuple(file.check(buffers))


def test_a_wrong_number_is_no_witness_of_a_finding_that_no_schedule_shows() -> None:
    stored, loaded = sorted(checked(TWO_FENCES).findings, key=lambda each: each.excused_by)
    assert (stored.code, stored.excused_by) == ("FENCE_PROXY", "")
    assert (loaded.code, loaded.excused_by) == ("FENCE_PROXY", "read-then-async-write")
    assert stored.witness is not None
    assert stored.witness.confirmed
    assert loaded.witness is not None
    assert not loaded.witness.confirmed
    assert loaded.witness.text == "no schedule shows it: a read before an asynchronous write is never late"


def test_a_deadlock_is_its_own_witness() -> None:
    (finding,) = checked("setp.eq.u32 %p2, %r6, 0; @%p2 bar.sync 1, 64;").findings
    assert finding.witness is not None
    assert finding.witness.kind == "DEADLOCK"
    assert finding.witness.confirmed


def test_no_budget_gives_no_witness() -> None:
    report = checked(LOST, budget=0)
    assert [finding.witness for finding in report.findings] == [None]
    assert report.cost.runs == 2


def test_the_held_warp_moves_last() -> None:
    schedule = HoldBack("CTA (0,0) warp 1", first="CTA (0,0) warp 2")
    assert schedule.choose("step", ["CTA (0,0) warp 1", "CTA (0,0) warp 10", "CTA (0,0) warp 2 lanes 0-3"], 3) == 2
    assert schedule.choose("step", ["CTA (0,0) warp 1", "CTA (0,0) warp 10"], 2) == 1
    assert schedule.choose("step", ["CTA (0,0) warp 1", "CTA (0,0) warp 1: cp.async 3"], 1) == 1
