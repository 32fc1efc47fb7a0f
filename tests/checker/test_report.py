"""Reports and their codes."""

from __future__ import annotations

from warploom.checker.codes import CODES
from warploom.checker.report import Covers, Finding, Party, Report, Verdict
from warploom.diagnostics import Loc


def party(action: str, warp: int) -> Party:
    return Party(
        action, (1, 0, 0), warp, Loc("/somewhere/gemm.py", 57), "st.shared.b32 [%r1], %r2;", role="load", space="shared",
        addresses=(0x400, 0x480), proxy="async",
    )  # fmt: skip


def test_a_finding_names_both_parties_and_what_is_missing() -> None:
    finding = Finding(
        "FENCE_PROXY", "a sentence", (party("reads", 2), party("writes", 5)), "bar.sync 0", "fence.proxy.async", count=3
    )
    text = str(finding)
    for words in ("gemm.py:57", "load warp 2 of CTA (1,0)", "reads shared 0x400-0x480 through the async proxy"):
        assert words in text
    assert "load warp 5 of CTA (1,0) writes" in text
    assert "ordered by bar.sync 0" in text
    assert "missing: fence.proxy.async" in text
    assert "3 pairs" in text
    assert finding.loc == Loc("/somewhere/gemm.py", 57)


def test_a_report_lists_what_remains_under_lenient() -> None:
    excused = Finding("FENCE_TCGEN", "no fence", excused_by="tcgen05-fences")
    stays = Finding("RACE_RAW", "no order")
    report = Report(Verdict.REFUTED, (excused, stays), Covers(generalised=("k_tiles >= 1",), as_run=("dtype",)))
    assert report.remaining_under_lenient == (stays,)
    assert not report.ok
    assert "REFUTED" in str(report)
    assert "k_tiles >= 1" in str(report)


def test_every_code_has_a_title_and_advice() -> None:
    for name, code in CODES.items():
        assert name.isupper()
        assert code.title
        assert code.advice.endswith(".")
