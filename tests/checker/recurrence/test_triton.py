"""Proofs for every K of the matmul that Triton pipelines: it prefetches up to two steps before the last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import warploom
from warploom.checker.report import Verdict
from warploom.launch_file import load

FOLDER = Path(__file__).parents[1] / "triton_fence"
K = 6
"""The number of the argument."""
WRAP = "setp.gt.s32 \t%p6, %r142, 2;"
"""The comparison that wraps the stage which is read."""


def launched(target: str) -> warploom.Launch:
    file = load(FOLDER / f"matmul_triton390_{target}.launch.json")
    return file.launch(file.allocate())


@pytest.mark.parametrize(("target", "period"), [("sm90", 3), ("sm100", 12)])
def test_every_k_is_proved(target: str, period: int) -> None:
    report = warploom.check(launched(target), profile="lenient", sizes="all", budget=0)
    assert report.verdict is Verdict.PROVED
    steps, clusters = report.covers.generalised
    assert steps.startswith("matmul_param_6 >= 1 (1 to ")
    assert f"a period of {period} steps" in steps
    assert clusters == "number of clusters"


def test_a_stage_that_wraps_too_late_is_found_with_more_steps() -> None:
    launch = launched("sm90")
    text = launch.program if isinstance(launch.program, str) else (FOLDER / "matmul_triton390_sm90.ptx").read_text()
    assert text.count(WRAP) == 1
    args = tuple(64 if at == K else each for at, each in enumerate(launch.args))
    wrong = replace(launch, program=text.replace(WRAP, WRAP.replace(" 2;", " 3;")), args=args)
    assert warploom.check(wrong, profile="lenient", budget=0).verdict is Verdict.PROVED
    report = warploom.check(wrong, profile="lenient", sizes="all", budget=0)
    assert report.verdict is Verdict.REFUTED
    assert report.covers.generalised == ()
