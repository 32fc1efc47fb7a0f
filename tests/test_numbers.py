"""The numbers in the documents are those of the result files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
HOPPER = (ROOT / "docs" / "hopper.md").read_text("utf-8")


def results(what: str) -> dict[str, object]:
    read: dict[str, object] = json.loads((RESULTS / f"matmul_{what}.json").read_text("utf-8"))
    return read


@pytest.mark.parametrize("what", ["plain", "fused", "random", "odd"])
def test_summaries_are_those_that_were_measured(what: str) -> None:
    summary = results(what)["summary"]
    assert isinstance(summary, dict)
    assert f"{summary['geometric_mean']:.3f}" in HOPPER
    if what in ("random", "odd"):
        assert f"the lowest {summary['lowest']:.3f}" in HOPPER
    if what in ("plain", "random"):
        assert f"{summary['geometric_mean']:.3f}" in (ROOT / "README.md").read_text("utf-8")


def test_every_row_is_one_that_was_measured() -> None:
    plain, fused = (results(what)["rows"] for what in ("plain", "fused"))
    assert isinstance(plain, list)
    assert isinstance(fused, list)
    for row, with_epilogue in zip(plain, fused, strict=True):
        shape = "×".join(map(str, row["shape"]))
        assert row["shape"] == with_epilogue["shape"]
        values = (row["ratio"], with_epilogue["ratio"], with_epilogue["of_plain_cublas"])
        cells = " | ".join(f"{value:.3f}" for value in values)
        assert f"| {shape} | {row['config']} | {row['us']:.1f} | {row['tflops']:.0f} | {cells} |" in HOPPER
