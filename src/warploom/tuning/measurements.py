"""The document that `warploom tune … --out FILE` writes and `--fit` reads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from warploom.heuristics.sm90.candidates import row_of
from warploom.runtime.gpu.driver import Gpu, driver
from warploom.tuning.report import Report

INPUTS = "A ~ N(0, 1), B ~ N(0, 1) / sqrt(K), 8-bit operands unscaled, the others ~ N(0, 1); random group sizes"


def document(reports: Sequence[Report], gpu: Gpu, when: float) -> dict[str, Any]:
    """Return the measurements, with the GPU, the time and the method."""
    configs = {row.label: row_of(row.config, each.key) for each in reports if each.key for row in each.rows}
    return {
        "what": "microseconds of configurations",
        "when": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(when)),
        "machine": {"gpu": gpu.name, "sms": gpu.sms, "cuda": ".".join(map(str, driver().cuda))},
        "inputs": INPUTS,
        "how": "CUDA graphs, inputs that rotate through more than the L2 holds, alternating candidates, medians",
        "configs": configs,
        "rows": [_row(each) for each in reports if each.key],
    }


def fitted_times(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the times of a row that trees are fitted to, in µs: those at the free clock (`cool_us`), if it has any.

    They are brought to the scale of the times alone by the other library's. Of a GEMM that reaches the power limit they
    are nearly always the lower ratio to the other library, and they vary less.
    """
    if "cool_us" not in row:
        return dict(row["us"])
    scale = row["peer_us"] / row["cool_peer_us"]
    return {name: us * scale for name, us in row["cool_us"].items()}


def compared_times(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the times by which the configurations of a row are compared: the longer of alone and at the free clock."""
    alone: dict[str, float] = row.get("us", {})
    return {name: max(us, alone.get(name, 0.0)) for name, us in fitted_times(row).items()}


def _row(report: Report) -> dict[str, Any]:
    key = report.key
    assert key is not None
    return {
        "kind": key.kind,
        "shape": [key.m, key.n, key.k],
        "count": key.count,
        "a_type": key.a_type,
        **{f"{name}_major": major for name, major in zip("ab", key.majors, strict=True) if major != "k"},
        **{name: True for name in ("light_epilogue", "fused", "residual") if getattr(key, name)},
        "dependent": True,  # configurations that are launched so by default were measured so
        "us": {row.label: round(row.us, 3) for row in report.rows if row.us is not None},
        "failures": {row.label: row.failure for row in report.rows if row.failure},
    }
