"""Results of an H200, instruction by instruction, against the numerics.

`data/numerics_h200.npz` was recorded with one kernel per instruction (load the operands, execute it, store the result),
assembled by ptxas 13.4 for sm_90a: edges and random operands, 64 lanes for each of 1180 rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.machine.numerics.numerics_reference import extended, run, signature_of

from warploom.hardware.dtypes import ELEMENT_TYPES, PACKED_TYPES, storage_of

RECORD = np.load(Path(__file__).parents[1] / "data" / "numerics_h200.npz")
ROWS = list(zip(RECORD["opcodes"].tolist(), RECORD["sources"].tolist(), RECORD["results"], strict=True))
COUNTS = {"sh": "u32", "sh2": "u32", "sh5": "u32", "off": "u32"}
FAMILIES = sorted({opcode.partition(".")[0] for opcode, _, _ in ROWS})

# Rows in which the hardware deviates from the ISA; the emulator follows the ISA. (Operands, reason.)
ISA_HOLDS = {
    "bfe.u64": "positions and lengths modulo 256",
    "bfe.s64": "positions and lengths modulo 256",
    "bfi.b64": "positions and lengths modulo 256",
    "cvt.rm.ftz.f16.f32": "subnormal operands are flushed",
    "cvt.rp.ftz.f16.f32": "subnormal operands are flushed",
    "cvt.rna.satfinite.tf32.f32": "NaN stays NaN",
}
# Relative errors allowed for approximations: measured, and rounded up.
GRANTED = {
    "rcp": 2.0**-21,
    "sqrt": 2.0**-22,
    "rsqrt": 2.0**-22,
    "div": 2.0**-20,
    "ex2": 2.0**-21,
    "tanh": 2.0**-16,
    "lg2": 1e-5,
    "sin": 2e-6,
    "cos": 2e-6,
}
GRANTED_HALF = {"f16": 2.0**-9, "bf16": 2.0**-6}


def operands_of(sources):
    names = [COUNTS.get(name, name) for name in sources.partition("@")[0].split("|")]
    return [row.astype(storage_of(name)) for name, row in zip(names, RECORD[f"in:{sources}"], strict=True)]


def decided_by_both(opcode, operands):
    """The lanes on which ISA and hardware agree."""
    match ISA_HOLDS.get(opcode):
        case "positions and lengths modulo 256":
            return np.logical_and.reduce([count < 256 for count in operands[-2:]])
        case "subnormal operands are flushed":
            return (operands[0] & 0x7F800000) != 0
        case "NaN stays NaN":
            return (operands[0] & 0x7FFFFFFF) <= 0x7F800000
    return np.ones(len(operands[0]), bool)


def is_approximate(opcode):
    return ".approx" in opcode or ".full" in opcode


@pytest.mark.parametrize("family", FAMILIES)
def test_results_match_an_h200_bit_for_bit(family):
    wrong = []
    for opcode, sources, expected in ROWS:
        if opcode.partition(".")[0] != family or is_approximate(opcode):
            continue
        operands = operands_of(sources)
        got = run(opcode, *operands)
        _, signature = signature_of(opcode)
        if signature.get("dtype") in ("s8", "u8"):
            got = extended(got, signature["dtype"], np.uint16) if family == "cvt" and "pack" not in opcode else got
        differ = (got.astype(np.uint64) != expected) & decided_by_both(opcode, operands)
        if differ.any():
            lane = int(np.flatnonzero(differ)[0])
            bits = [hex(int(operand[lane])) for operand in operands]
            wrong.append(f"{opcode} {bits}: hardware {int(expected[lane]):#x}, here {int(got[lane]):#x}")
    assert not wrong


APPROXIMATE = [row for row in ROWS if is_approximate(row[0]) and not row[0].endswith("f64")]


@pytest.mark.parametrize(("opcode", "sources", "expected"), APPROXIMATE, ids=[row[0] for row in APPROXIMATE])
def test_approximations_are_close_to_an_h200(opcode, sources, expected):
    """Special values are the same; others differ by at most the measured error; sin and cos within one period."""
    root, type_name = opcode.split(".")[0], opcode.rpartition(".")[2]
    element = ELEMENT_TYPES[type_name]
    assert type_name not in PACKED_TYPES
    operands = operands_of(sources)
    with np.errstate(all="ignore"):
        both = (run(opcode, *operands), expected)
        ours, theirs = (bits.astype(element.storage).view(element.values).astype(np.float64) for bits in both)
        argument = operands[0].view(element.values).astype(np.float64)
        inside = ~np.isfinite(argument) | (np.abs(argument) <= np.pi) | (root not in ("sin", "cos"))
        scale = 1.0 if root in ("sin", "cos", "lg2") else np.abs(ours)
        error = np.abs(ours - theirs) - GRANTED_HALF.get(type_name, GRANTED[root]) * scale
    special = ~np.isfinite(ours) | ~np.isfinite(theirs)
    assert np.array_equal(ours[special & inside], theirs[special & inside], equal_nan=True)
    # Results of f16 may be subnormal; compare them in units of the last place.
    assert (error[inside & ~special] <= (2.0**-24 if type_name == "f16" else 0)).all()
