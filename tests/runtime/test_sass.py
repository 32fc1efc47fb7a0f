from __future__ import annotations

import pytest
from tests.assembly import sass_of
from tests.runtime.kernels import LOCAL_AND_FENCES

from warploom.diagnostics import AssemblyError, Loc, WarploomError
from warploom.runtime import disassemble
from warploom.runtime.toolchain.sass import read
from warploom.runtime.toolchain.tools import find

LISTING = """
	.target	sm_100a
//--------------------- .text.matmul              --------------------------
	.section	.text.matmul,"ax",@progbits
matmul:
.text.matmul:
	//## File "/a b/first.py", line 42
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0120*/               @P1 BRA `(.L_x_1) ;
.L_x_1:
	//## File "/a b/first.py", line 45
        /*01a0*/              @!UP0 UTCHMMA.2CTA gdesc[UR4], gdesc[UR6], tmem[UR8] ;
        /*01b0*/                   UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8] ;
        /*01c0*/                   STL.64 [R1+0x168], R10             (*"SpillRefill"*);
        /*01d0*/                   ERRBAR;
	.section	.text.other,"ax",@progbits
        /*0000*/                   UTMALDG.2D.MULTICAST.2CTA [UR8], [UR4], UR12 ;
"""


def test_a_listing_is_read():
    code = read(LISTING)
    assert [each.opcode for each in code.kernels["matmul"]] == [
        "LDC",
        "BRA",
        "UTCHMMA.2CTA",
        "UTCHMMA",
        "STL.64",
        "ERRBAR",
    ]
    assert [each.loc and each.loc.line for each in code.kernels["matmul"]] == [42, 42, 45, 45, 45, 45]
    assert code.kernels["matmul"][2].text.startswith("@!UP0 UTCHMMA.2CTA gdesc")
    assert code.kernels["matmul"][0].loc == Loc("/a b/first.py", 42)
    assert code.kernels["other"][0].loc is None


def test_instructions_are_counted_by_mnemonic_and_modifiers():
    code = read(LISTING)
    assert code.counts["UTCHMMA"] == 2
    assert (code.count("UTCHMMA"), code.count("UTCHMMA", "2CTA"), code.count("UTCH")) == (2, 1, 0)
    assert code.count("UTMALDG", "2CTA", "2D") == 1
    assert code.count("UTMALDG", "2CT") == 0


def test_suspicious_instructions_are_reported_with_their_lines():
    (lint,) = read(LISTING).lints
    assert lint.startswith("1 × STL (first.py:45): ")


def test_real_code_with_calls_fences_and_local_memory():
    code = sass_of(LOCAL_AND_FENCES)
    assert set(code.kernels) == {"caller", "second"}
    assert code.counts["LDL"] == 1  # in the function, which counts with its caller
    told = {lint.split()[2].rstrip(":"): lint for lint in code.lints}
    assert set(told) == {"MEMBAR", "CCTL", "LDL", "STL"}
    assert "author.py:9" in told["MEMBAR"]
    assert code.text.count("EXIT") == code.counts["EXIT"] == 2


def test_bytes_that_are_not_a_cubin_are_reported():
    try:
        find("nvdisasm")
    except WarploomError as error:
        pytest.skip(error.what)
    for wrong in (b"", b"hello", b"\x7fELF" + bytes(100)):
        with pytest.raises(AssemblyError, match="NOT_DISASSEMBLED"):
            disassemble(wrong)
