"""Variables of a module that a kernel may change, by the PTX of small kernels."""

from __future__ import annotations

import pytest

from warploom.cuda.variables import changed_variables, used_variables
from warploom.ptx.syntax.parser import parse

HEAD = """
.version 8.7
.target sm_90a
.address_size 64
.global .align 4 .b32 table[4] = {1, 2, 3, 4};
.global .align 4 .b32 counter;
.global .align 8 .u64 places[1] = {counter};
"""
KERNEL = """.visible .entry k(.param .u64 out)
{
  .reg .b32 %r<4>; .reg .b64 %rd<6>; .reg .pred %p<2>;
  ld.param.u64 %rd1, [out];
"""


def judged(body: str) -> tuple[set[str], set[str]]:
    """The variables that a kernel uses, and those that it may change."""
    module = parse(HEAD + KERNEL + body + "  ret;\n}\n")
    kernel = module.kernels[0]
    return used_variables(module, kernel), changed_variables(module, kernel)


@pytest.mark.parametrize(
    "body",
    [
        "ld.global.b32 %r1, [table+4]; st.global.b32 [%rd1], %r1;\n",
        "mov.u64 %rd2, table; cvta.global.u64 %rd3, %rd2; add.s64 %rd4, %rd3, 8; ld.b32 %r1, [%rd4];\n",
    ],
)
def test_a_table_that_is_only_read_does_not_change(body):
    assert judged(body) == ({"table"}, set())


@pytest.mark.parametrize(
    "body",
    [
        "st.global.b32 [counter], %r1;\n",
        "atom.global.add.u32 %r1, [counter], 1;\n",
        "red.global.add.u32 [counter], 1;\n",
        "mov.u64 %rd2, counter; add.s64 %rd3, %rd2, 0; st.global.b32 [%rd3], %r1;\n",
        "mov.u64 %rd2, counter; st.global.u64 [%rd1], %rd2;\n",
        "$L: st.global.b32 [%rd3], %r1; mov.u64 %rd3, %rd2; mov.u64 %rd2, counter; @%p1 bra $L;\n",
    ],
)
def test_a_written_or_published_variable_changes(body):
    assert judged(body) == ({"counter"}, {"counter"})


def test_a_variable_to_which_another_points_may_change():
    assert judged("ld.global.u64 %rd2, [places]; st.global.b32 [%rd2], %r1;\n") == ({"places"}, {"counter"})
