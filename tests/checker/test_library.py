"""The kernel families of the library have no finding under `strict`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.machine.families import BF16, E4M3, FAMILIES, empty, normal

import warploom
from warploom.checker.report import Verdict
from warploom.launcher import prepare
from warploom.machine.core.schedule import Eager
from warploom.ptx.syntax.printer import print_module


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_proved_under_strict(name: str) -> None:
    launch, _ = FAMILIES[name]()
    report = warploom.check(launch)
    assert report.findings == ()
    assert report.verdict is Verdict.PROVED
    assert not report.relaxed


def residual_launch() -> warploom.Launch:
    """A GEMM whose epilogue-load stages are filled more than once."""
    config = warploom.MatmulConfig(cta_group=1, mma_shape=(128, 96, 16), use_tma_epilogue_load=True)
    out = empty(128, 96, dtype=BF16)
    given = normal(128, 64), normal(64, 96)
    return warploom.matmul.bind(*given, residual=normal(128, 96), out=out, config=config, target="sm_100a")


def test_a_residual_stage_is_refilled_after_a_proxy_fence() -> None:
    assert warploom.check(residual_launch(), budget=0).findings == ()


def test_without_the_fence_the_refill_is_refuted() -> None:
    launch = residual_launch()
    text = print_module(prepare(launch, Eager(), None, None, (), None).program.module)
    lines = [line for line in text.splitlines() if "fence.proxy.async" not in line]
    report = warploom.check(replace(launch, program="\n".join(lines)), budget=0)
    (reused,) = (each for each in report.findings if each.excused_by == "read-then-async-write")
    assert reused.code == "FENCE_PROXY"
    refill, read = reused.parties
    assert refill.role == "epilogue_load"
    assert read.role == "epilogue"
    assert any(each.code == "FENCE_PROXY" for each in report.remaining_under_lenient)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_stage_with_scales_is_refilled_after_a_proxy_fence(target: str) -> None:
    blocks = 9  # more than the stages of the pipeline
    a, b = normal(24, 128 * blocks, dtype=E4M3), normal(32, 128 * blocks, dtype=E4M3)
    scales = np.abs(normal(24, blocks, dtype=np.float32)), np.abs(normal(1, blocks, dtype=np.float32))
    launch = warploom.blockwise_matmul.bind(a, b, *scales, out=empty(24, 32, dtype=BF16), target=target)
    assert warploom.check(launch, budget=0).findings == ()
