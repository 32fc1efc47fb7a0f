"""Measurements as a document: what `warploom tune … --out FILE` writes, `--fit` and bench/shipped_table.py read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from warploom.heuristics.sm90.candidates import row_of
from warploom.runtime.gpu.driver import Gpu, driver
from warploom.tuning.report import Report

INPUTS = "A ~ N(0, 1), B ~ N(0, 1) / sqrt(K), 8-bit ones unscaled, the others ~ N(0, 1); groups ragged, at random"


def document(reports: Sequence[Report], gpu: Gpu, when: float) -> dict[str, Any]:
    """What was measured, on what, when, and how."""
    configs = {row.label: row_of(row.config, each.sought) for each in reports if each.sought for row in each.rows}
    return {
        "what": "microseconds of configurations",
        "when": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(when)),
        "machine": {"gpu": gpu.name, "sms": gpu.sms, "cuda": ".".join(map(str, driver().cuda))},
        "inputs": INPUTS,
        "how": "CUDA graphs, inputs that rotate through more than the L2 holds, candidates in turn, medians",
        "configs": configs,
        "rows": [_row(each) for each in reports if each.sought],
    }


def _row(report: Report) -> dict[str, Any]:
    sought = report.sought
    assert sought is not None
    return {
        "kind": sought.kind,
        "shape": [sought.m, sought.n, sought.k],
        "count": sought.count,
        "a_type": sought.a_type,
        **{f"{name}_major": major for name, major in zip("ab", sought.majors, strict=True) if major != "k"},
        **{name: True for name in ("followed", "fused", "residual") if getattr(sought, name)},
        "us": {row.label: round(row.us, 3) for row in report.rows if row.us is not None},
        "failures": {row.label: row.failure for row in report.rows if row.failure},
    }
