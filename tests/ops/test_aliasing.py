"""Results that overlap an input: operands are copied first, and a residual may be overwritten in place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.references import BF16, exact, integers, rounded
from tests.runtime.fake_driver import FakeTensor

from warploom.diagnostics import WarploomError
from warploom.ops import grouped_matmul, linear, matmul
from warploom.ops.planning.arrays import clashes, overlap

TARGETS = pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])


@TARGETS
@pytest.mark.parametrize("which", ["x", "w"])
def test_out_may_be_an_operand(target, which):
    arrays = {"x": integers(96, 96), "w": integers(96, 96)}
    want = rounded(exact(arrays["x"]) @ exact(arrays["w"]).T, BF16)
    found = linear(**arrays, out=arrays[which], target=target)
    assert found is arrays[which]
    assert np.array_equal(exact(found), want)


@TARGETS
def test_out_may_be_both_an_operand_and_the_residual(target):
    x, w = integers(72, 72), integers(72, 72)
    want = rounded(exact(x) @ exact(w).T + exact(x), BF16)
    assert np.array_equal(exact(linear(x, w, residual=x, out=x, target=target)), want)


@TARGETS
def test_out_may_be_an_operand_of_a_grouped_gemm(target):
    a, b = integers(100, 64), integers(2, 64, 64)
    want = np.concatenate([exact(a[:40]) @ exact(b[0]), exact(a[40:]) @ exact(b[1])])
    found = grouped_matmul(a, b, np.array([40, 100]), out=a, target=target)
    assert np.array_equal(exact(found), rounded(want, BF16))


@TARGETS
def test_an_epilogue_that_stores_anywhere_reads_no_element_that_it_wrote(target):
    a, b, residual = integers(40, 64), integers(64, 40), integers(40, 40)
    want = rounded((exact(a) @ exact(b) + exact(residual)).T, BF16)

    def turned(value, at, out):
        out[at.column, at.row] = value

    matmul(a, b, residual=residual, out=residual, store=turned, target=target)
    assert np.array_equal(exact(residual), want)


@TARGETS
def test_one_launch_cannot_read_and_write_an_operand(target):
    x, w = integers(64, 64), integers(64, 64)
    for out in (x, w):
        with pytest.raises(WarploomError, match="`out` overlaps an input"):
            linear.bind(x, w, out=out, target=target)
    assert linear.bind(x, w, residual=(residual := integers(64, 64)), out=residual, target=target) is not None


MEMORY = np.zeros(64, np.uint8)


@st.composite
def views(draw):
    """Views of one memory: any start, extents and strides that stay inside."""
    shape = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    strides = draw(st.tuples(st.integers(-4, 4), st.integers(-4, 4)))
    return np.ndarray(shape, np.uint8, MEMORY, draw(st.integers(24, 40)), strides)


@given(views(), views())
def test_arrays_that_share_an_element_overlap(one, other):
    elements = [{int(each.ctypes.data + at) for at in _offsets(each)} for each in (one, other)]
    assert not elements[0] & elements[1] or overlap(one, other)
    if all(each.size for each in (one, other)) and (
        max(elements[0]) < min(elements[1]) or max(elements[1]) < min(elements[0])
    ):
        assert not overlap(one, other)


def _offsets(array):
    return [sum(i * s for i, s in zip(at, array.strides, strict=True)) for at in np.ndindex(array.shape)]


@given(views(), views())
def test_only_the_same_array_may_be_overwritten_in_place(out, read):
    same = (out.ctypes.data, out.shape, out.strides) == (read.ctypes.data, read.shape, read.strides)
    assert clashes(out, [read], [], stores_anywhere=False) == overlap(out, read)
    assert clashes(out, [], [read, None, 2.0], stores_anywhere=False) == (overlap(out, read) and not same)
    assert clashes(out, [], [read], stores_anywhere=True) == overlap(out, read)


def test_arrays_of_a_gpu_overlap_by_their_addresses():
    first = FakeTensor(0x1000, (4, 8))
    assert overlap(first, FakeTensor(0x103E, (1,)))
    assert not overlap(first, FakeTensor(0x1040, (1,)))
    assert not clashes(first, [], [FakeTensor(0x1000, (4, 8))], stores_anywhere=False)
    assert clashes(first, [], [FakeTensor(0x1000, (4, 8), "float16")], stores_anywhere=False)
    assert clashes(first, [FakeTensor(0x1000, (4, 8))], [], stores_anywhere=False)
