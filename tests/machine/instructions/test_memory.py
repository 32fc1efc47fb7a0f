"""Tests of generic addresses: the windows of shared, local, constant and parameter memory."""

from __future__ import annotations

import numpy as np
import pytest

from warploom import launch

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry")
_TEXT = """
.version 8.7
.target sm_90a
.address_size 64
.const .align 4 .b32 table[2] = {{7, 1007}};
.visible .entry k(.param .u64 y) {{
 .reg .pred %p0; .reg .b32 %r<8>; .reg .b64 %rd<8>; .shared .align 8 .b8 tile[64]; .local .align 8 .b8 stack[64];
 ld.param.u64 %rd0, [y]; mov.u32 %r0, tile; mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %tid.x;
 mapa.shared::cluster.u32 %r3, %r0, {rank}; cvt.u64.u32 %rd1, %r3; cvta.shared::cluster.u64 %rd1, %rd1;
 mov.u64 %rd2, stack; cvta.local.u64 %rd2, %rd2; mov.u64 %rd3, table; cvta.const.u64 %rd3, %rd3;
 cvta.param.u64 %rd4, y; mul.wide.u32 %rd5, %r2, {vary}; add.u64 %rd6, %{address}, %rd5;
 mad.wide.u32 %rd0, %r1, {bytes}, %rd0; mad.wide.u32 %rd0, %r2, {count}, %rd0;
 {tests}
 ret;
}}
"""


@pytest.mark.parametrize("vary", [0, 4], ids=["uniform", "by lane"])
@pytest.mark.parametrize(
    ("address", "spaces"),
    [
        ("rd0", "global"),
        ("rd2", "local"),
        ("rd3", "const"),
        ("rd4", "param param::entry"),
        ("rd1", "shared shared::cta shared::cluster"),
    ],
)
def test_isspacep_distinguishes_windows(address: str, spaces: str, vary: int) -> None:
    """Shared memory of another CTA of the cluster is in `.shared::cluster` alone (PTX ISA, isspacep)."""
    tests = "\n ".join(
        f"isspacep.{space} %p0, %rd6; selp.u32 %r4, 1, 0, %p0; st.global.u8 [%rd0+{at}], %r4;"
        for at, space in enumerate(SPACES)
    )
    given = {"address": address, "vary": vary, "bytes": 2 * len(SPACES), "count": len(SPACES), "tests": tests}
    found = np.full((2, 2, len(SPACES)), 9, np.uint8)
    launch(_TEXT.format(rank=0, **given), grid=2, block=2, cluster=2, args=[found])
    expected = np.array([space in spaces.split() for space in SPACES], np.uint8)
    assert (found[0] == expected).all()
    if address == "rd1":
        expected = np.array([space == "shared::cluster" for space in SPACES], np.uint8)
    assert (found[1] == expected).all()
