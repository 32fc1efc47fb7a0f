"""Source lines of instructions in inline assembly, where LLVM's `.loc` counts the lines of the assembly."""

from __future__ import annotations

from warploom.ptx.syntax.model import Instruction
from warploom.ptx.syntax.parser import parse

TEXT = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry k()
{
 .reg .b32 %r<4>;
 .loc 1 24 17
 mov.u32 %r1, 1;
 // begin inline asm
 .loc 1 24 17
 mov.u32 %r2, 2;
 .loc 1 28 17
 mov.u32 %r3, 3;
 // end inline asm
 mov.u32 %r1, 4;
 .loc 1 30 2
 ret;
}
 .file 1 "kernel.py"
"""


def lines(text: str) -> list[int]:
    return [each.loc.line for each in parse(text).kernels[0].body if isinstance(each, Instruction)]


def test_the_place_before_inline_assembly_is_that_of_its_instructions():
    assert lines(TEXT) == [24, 24, 24, 24, 30]


def test_without_the_comments_every_loc_counts():
    assert lines("\n".join(line for line in TEXT.splitlines() if "inline asm" not in line)) == [24, 24, 28, 28, 30]
