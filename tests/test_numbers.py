"""The numbers in the documents are those of the result files."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
HOPPER = (ROOT / "docs" / "hopper.md").read_text("utf-8")


def results(what: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((RESULTS / f"matmul_{what}.json").read_text("utf-8"))
    return read


def test_every_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    pages = runpy.run_path(str(ROOT / "bench" / "pages.py"))["pages"]()
    assert ROOT / "docs" / "hopper.md" in pages
    for file, text in pages.items():
        assert file.read_text("utf-8") == text, f"{file.name}: run `python bench/pages.py`"


@pytest.mark.parametrize("what", ["plain", "fused", "random", "odd", "mn_major"])
def test_summaries_are_those_that_were_measured(what: str) -> None:
    summary = results(what)["summary"]
    assert f"{summary['geometric_mean']:.3f}" in HOPPER
    if what == "mn_major":
        assert f"mean {summary['geometric_mean']:.3f}, lowest {summary['lowest']:.3f}." in HOPPER
    if what in ("random", "odd"):
        assert f"the lowest {summary['lowest']:.3f}" in HOPPER
    if what in ("plain", "random"):
        assert f"{summary['geometric_mean']:.3f}" in (ROOT / "README.md").read_text("utf-8")


def test_every_row_is_one_that_was_measured() -> None:
    plain, fused = ({row["label"]: row for row in results(what)["rows"]} for what in ("plain", "fused"))
    assert plain.keys() <= fused.keys()
    for label, row in plain.items():
        shape, with_epilogue = "×".join(map(str, row["shape"])), fused[label]
        values = (row["ratio"], with_epilogue["ratio"], with_epilogue["of_plain_cublas"])
        cells = " | ".join(f"{value:.3f}" for value in values)
        assert f"| {shape} | {row['config']} | {row['us']:.1f} | {row['tflops']:.0f} | {cells} |" in HOPPER


def test_every_rung_is_one_that_was_measured() -> None:
    file = RESULTS / "ladder.json"
    if not file.exists():
        pytest.skip("the ladder was not measured yet")
    rows = json.loads(file.read_text("utf-8"))["rows"]
    chart = (ROOT / "docs" / "ladder.svg").read_text("utf-8")
    for row in rows:
        assert "error" not in row
        assert f"{row['tflops']:.0f} ({row['ratio']:.3f})" in HOPPER
        assert f"{row['tflops']:.0f} TFLOP/s" in chart
