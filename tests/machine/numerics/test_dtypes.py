"""The table of element types against NumPy and ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.machine.numerics.numerics_reference import value_of

from warploom.hardware.dtypes import ELEMENT_TYPES, PACKED_TYPES

FLOATS = [row for row in ELEMENT_TYPES.values() if row.is_float and row.name != "tf32"]


@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
def test_limits(row):
    info = ml_dtypes.finfo(row.values)
    if row.name not in ("ue8m0", "ue4m3"):
        assert (row.exponent, row.mantissa) == (info.nexp, info.nmant)
        assert 2.0**row.minimum_exponent == float(info.smallest_normal)
    assert float(np.array(row.largest, row.storage).view(row.values)) == float(info.max)
    for code, test in ((row.nan, np.isnan), (row.infinity, np.isinf)):
        if code is not None:
            assert test(np.array(code, row.storage).view(row.values).astype(np.float64))


@pytest.mark.parametrize(
    "row", [row for row in FLOATS if row.bits <= 16 and row.name != "ue8m0"], ids=lambda row: row.name
)
def test_every_code(row):
    """The fields and the bias determine the value of each code."""
    codes = np.arange(1 << row.bits).astype(row.storage)
    with np.errstate(invalid="ignore"):
        values = codes.view(row.values).astype(np.float64)
    for code in range(0, len(codes), 1 if row.bits <= 8 else 13):
        if np.isfinite(values[code]) and (row.has_sign or code <= row.largest):
            assert float(value_of(code, row)) == values[code], code


def test_tf32_is_the_top_of_f32():
    row, f32 = ELEMENT_TYPES["tf32"], ELEMENT_TYPES["f32"]
    assert row.bits + row.padding == f32.bits
    assert row.infinity << row.padding == f32.infinity
    assert row.sign == f32.sign


def test_integers():
    assert (ELEMENT_TYPES["s16"].low, ELEMENT_TYPES["s16"].high) == (-32768, 32767)
    assert (ELEMENT_TYPES["u64"].low, ELEMENT_TYPES["u64"].high) == (0, 2**64 - 1)
    for row in ELEMENT_TYPES.values():
        assert row.storage.kind == "u"


def test_packed():
    for row in PACKED_TYPES.values():
        assert row.field_bits >= row.element.bits
        assert 8 * row.storage.itemsize == row.bits
    assert PACKED_TYPES["e2m1x2"].bits == 8
    assert PACKED_TYPES["e2m3x2"].bits == 16
