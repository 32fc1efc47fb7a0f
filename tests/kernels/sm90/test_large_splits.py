"""Split-K of large tiles in a cluster: partial accumulators are received where the input stages were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warploom
from warploom.checker.report import Verdict
from warploom.structured.config.sm90 import HopperConfig
from warploom.trace.language.barriers import Barrier, Barriers

RNG = np.random.default_rng()


def launch(config: HopperConfig, m: int, n: int) -> tuple[warploom.Launch, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    k = 64 * (5 * config.num_split_k + 1) - 8  # uneven shares, and more K tiles than stages
    a, b = (RNG.integers(-2, 3, (rows, k)).astype(np.float16) for rows in (m, n))
    out = np.full((m, n), np.nan, np.float16)
    bound = warploom.matmul.bind(a, b.T, out=out, config=config, target="sm_90a")
    return bound, out, a.astype(float) @ b.T.astype(float)


@pytest.mark.parametrize("schedule", ["lazy", "reverse", "random"])
@pytest.mark.parametrize("swapped", [False, True])
def test_results_are_exact(schedule: str, swapped: bool) -> None:
    config = HopperConfig(tile=(256, 128) if swapped else (128, 256), num_split_k=2, AB_swapped=swapped)
    assert config.receives_in_stages
    assert config.num_pipeline_stages == 4
    bound, out, exact = launch(config, 40, 72)
    warploom.launch(bound, schedule=schedule, seed=int(RNG.integers(1 << 30)))
    np.testing.assert_array_equal(out, exact)


def test_a_cta_sends_after_the_others_have_read_their_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    config = HopperConfig(tile=(128, 256), num_split_k=2)
    assert warploom.check(launch(config, 40, 72)[0]).verdict is Verdict.PROVED

    class Hasty(Barrier):
        def wait(self, parity: Any) -> None:
            """Wait for nothing."""

    usual = Barriers.__getitem__
    monkeypatch.setattr(
        Barriers,
        "__getitem__",
        lambda row, index: (Hasty if row.name == "stages_read" else Barrier)(usual(row, index).at),
    )
    report = warploom.check(launch(config.replace(swizzle_size=2), 40, 72)[0], budget=0)
    assert report.verdict is Verdict.REFUTED
