"""Small kernels with and without defects, as PTX."""

from __future__ import annotations

from typing import Any

import numpy as np

import warploom

HEAD = """.version 8.6
.target {target}
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .pred %p<8>;
    .reg .b32 %r<32>;
    .reg .b64 %rd<16>;
    .shared .align 128 .b8 data[4096];
    .shared .align 8 .b64 bars[8];
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, data;
    mov.u32 %r3, bars;
    shl.b32 %r4, %r1, 2;
    add.u32 %r5, %r2, %r4;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    shr.u32 %r6, %r1, 5;
    setp.eq.u32 %p1, %r1, 0;
"""


def kernel(body: str, target: str = "sm_90a") -> str:
    """A kernel with an output array, shared memory `data` at %r2 (its own word at %r5), barriers at %r3.

    %r1 is the thread, %r6 the warp, %rd1 the output and %rd3 the thread's word of it; %p1 is true in thread 0.
    """
    return HEAD.format(target=target) + body + "\n    ret;\n}\n"


def checked(
    body: str, *, block: int = 64, grid: int = 1, profile: str = "strict", target: str = "sm_90a", words: int = 0,
    **options: Any,
) -> warploom.Report:  # fmt: skip
    """The report of a small kernel whose output has so many words, or one for each thread."""
    out = np.zeros(words or block * grid, np.uint32)
    return warploom.check(
        kernel(body, target), launch={"grid": grid, "block": block, "args": [out]}, profile=profile, **options
    )


def codes(report: warploom.Report) -> set[str]:
    """The codes of a report's findings."""
    return {finding.code for finding in report.findings}
