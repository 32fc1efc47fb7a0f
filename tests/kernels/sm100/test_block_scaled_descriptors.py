"""Descriptors of block-scaled multiplications: the bits that other compilers' kernels carry for the same thing."""

from __future__ import annotations

import re

import pytest
from tests.corpus.cases import CASES
from tests.corpus.compile import CompilerMissing
from tests.corpus.run import run
from tests.kernels.scaled_problems import scaled

from warploom.hardware.matrix_descriptors import decode_shared_descriptor
from warploom.machine.instructions.tcgen05 import mma as tcgen05
from warploom.ptx.syntax.printer import print_module

ADDRESS = 0x3FFF
LEADING = 0x3FFF << 16
BASE_OFFSET = 7 << 49
"""The bits that may differ: the start address, and unused fields. Triton leaves the leading offset of a swizzled matrix zero, CuTe DSL
one, and Triton gives a matrix without a swizzle a base offset.
"""

MXFP8 = {"a_type": "e4m3", "mma_shape": (128, 128, 32)}
MXFP4 = {"a_type": "e2m1", "mma_shape": (128, 128, 64), "scaling_kind": "mxf4"}
NVFP4 = {"a_type": "e2m1", "mma_shape": (128, 128, 64), "scaling_kind": "mxf4nvf4"}


def traced(**fields):
    return print_module(scaled(128, 128, 512, **fields).launch.program)


def test_constants_seen_in_other_compilers_ptx():
    """CuTe DSL's scale-factor copies and 2-CTA NVFP4 product; Triton's, Gluon's and CuTe DSL's MXFP8 product."""
    assert set(re.findall(r"block_scale\S* \[\S+\], \S+, \S+, (\d+),", traced(**MXFP8))) == {
        str(bits) for bits in (0x08A00000, 0x28A00010, 0x48A00020, 0x68A00030)
    }
    pair = traced(a_type="e2m1", cta_group=2, mma_shape=(256, 128, 64))
    assert set(re.findall(r"block_scale\S* \[\S+\], \S+, \S+, (\d+),", pair)) == {str(0x10200480)}
    assert re.search(rf"or\.b64 %rd\d+, %rd\d+, {0x400800010000};", pair)


@pytest.fixture
def seen(monkeypatch):
    """Every descriptor that the emulator sees: of MMAs, of their operands, and of scale-factor copies."""
    found = {"products": set(), "operands": set(), "copies": set()}
    issued, copied = tcgen05._Mma.issue, tcgen05._copy

    def product(self, core, g, lane, operands):
        _, a, b, i, _ = (value if isinstance(value, int) else int(value[lane]) for value in operands)
        found["products"].add((self.kind, self.vectors, i))
        found["operands"] |= {value & ~(ADDRESS | LEADING) for value in (a, b)}
        return issued(self, core, g, lane, operands)

    def copy(core, g, op, lane, what, place, read):
        found["copies"].add((what[0].name, read.value & ~(ADDRESS | LEADING | BASE_OFFSET)))
        return copied(core, g, op, lane, what, place, read)

    monkeypatch.setattr(tcgen05._Mma, "issue", product)
    monkeypatch.setattr(tcgen05, "_copy", copy)
    return found


FOREIGN = [
    ("gluon_block_scaled_mxfp8_sm100", MXFP8),
    ("gluon_block_scaled_nvfp4_sm100", NVFP4),
    ("triton_scaled_mxfp4_sm100", MXFP4),
    ("triton_scaled_mxfp8_sm100", {**MXFP8, "b_type": "e5m2"}),
]


@pytest.mark.parametrize(("name", "fields"), FOREIGN)
def test_a_foreign_kernel_has_the_same_descriptors(name, fields, seen):
    case = next(case for case in CASES if case.name == name)
    try:
        prepared = case.prepare(seed=1)
    except CompilerMissing as reason:
        pytest.skip(str(reason))
    run(prepared, schedule="eager", seed=0)
    theirs = {key: set(values) for key, values in seen.items()}
    for values in seen.values():
        values.clear()
    (n,) = {(bits >> 17 & 0x3F) * 8 for _, _, bits in theirs["products"]}
    depth = fields["mma_shape"][2]
    (swizzle,) = {decode_shared_descriptor(value, "sm_100").swizzle.name for value in theirs["operands"]}
    given = {"mma_shape": (128, n, depth), "a_swizzle": swizzle, "b_swizzle": swizzle}
    scaled(128, n, 512, **{**fields, **given}).check()
    assert theirs["products"]
    assert theirs["products"] == seen["products"]
    assert theirs["operands"] == seen["operands"]
    if theirs["copies"]:
        assert theirs["copies"] == seen["copies"]
