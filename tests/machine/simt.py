"""A small harness for hand-written kernels: every thread has its number, an input word and some output words."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from warploom import launch

SCHEDULES = (("eager", 0), ("lazy", 0), ("reverse", 0), ("random", 1), ("random", 2))

_TEXT = """
.version 8.7
.target {target}
.address_size 64
{module}
.visible .entry k(.param .u64 out, .param .u64 source)
{directives}
{{
 .reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .f32 %f<32>; .reg .b64 %rd<32>; .reg .f64 %d<16>;
 .reg .b128 %q<8>;
 .shared .align 128 .b8 sh[{shared}];
 ld.param.u64 %rd0, [out];
 ld.param.u64 %rd1, [source];
 mov.u32 %r0, %tid.z; mov.u32 %r1, %ntid.y; mov.u32 %r2, %tid.y; mad.lo.u32 %r0, %r0, %r1, %r2;
 mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r0, %r0, %r1, %r2;
 mov.u32 %r1, %ctaid.x; mov.u32 %r2, {threads}; mad.lo.u32 %r1, %r1, %r2, %r0;
 mul.wide.u32 %rd2, %r1, {stride}; add.u64 %rd0, %rd0, %rd2;
 mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd1, %rd2;
 ld.global.u32 %r1, [%rd2];
 {body}
 ret;
}}
"""


def threads(
    body: str,
    block: tuple[int, int, int] | int = 32,
    *,
    words: int = 1,
    source: npt.NDArray[Any] | None = None,
    grid: int = 1,
    cluster: int = 1,
    target: str = "sm_90a",
    shared: int = 1024,
    directives: str = "",
    module: str = "",
    fill: int = 0,
    **options: Any,
) -> npt.NDArray[np.uint32]:
    """Run a body in every thread; return [thread, word]. `%r0` is the thread's number in the CTA, `%r1` its input, `%rd0` its output."""
    shape = (block, 1, 1) if isinstance(block, int) else block
    count = shape[0] * shape[1] * shape[2]
    out = np.full((grid * count, words), fill, np.uint32)
    given = np.zeros(grid * count, np.uint32) if source is None else np.ascontiguousarray(source)
    text = _TEXT.format(
        body=body, target=target, threads=count, stride=4 * words, shared=shared, directives=directives, module=module
    )
    options.setdefault("limit", 200_000)
    launch(text, grid=(grid, 1, 1), block=shape, cluster=(cluster, 1, 1), args=[out, given], **options)
    return out
