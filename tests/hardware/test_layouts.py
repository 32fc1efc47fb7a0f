"""Layouts: swizzles, shared-memory layouts, register fragments and TMEM, against independent formulas."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warploom.hardware.fragments import (
    MATRIX_MOVES,
    TENSOR_MOVES,
    WGMMA_A,
    mma_a,
    mma_b,
    mma_c,
    mma_c_packed,
    tensor_move,
    wgmma_d,
)
from warploom.hardware.matrix_descriptors import decode_shared_descriptor, encode_shared_descriptor
from warploom.hardware.swizzles import SWIZZLES
from warploom.hardware.tmem import COPY_SHAPES, PLACEMENTS
from warploom.machine.tensor.accumulators import accumulator_view
from warploom.machine.tensor.operands import _gather


def cute(shape, stride, index):
    """A flat CuTe layout: index, taken apart column-major by shape, times stride."""
    total = 0
    for extent, step in zip(shape, stride, strict=True):
        total += (index % extent) * step
        index //= extent
    return total


def swizzled(x, name):
    table = {"none": (0, 4, 3), "32B": (1, 4, 3), "64B": (2, 4, 3), "128B": (3, 4, 3), "128B_32B_atom": (2, 5, 2)}
    bits, base, shift = table[name]
    return x ^ ((x >> (base + shift)) & ((1 << bits) - 1)) << base


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("32B", ["01234567", "10325476"]),
        ("64B", ["01234567", "10325476", "23016745", "32107654"]),
        (
            "128B",
            ["01234567", "10325476", "23016745", "32107654", "45670123", "54761032", "67452301", "76543210"],
        ),
        ("128B_32B_atom", ["01234567", "23016745", "45670123", "67452301"]),
        ("128B_64B_atom", ["01234567", "45670123"]),
    ],
)
def test_swizzle_patterns_of_the_isa(name, lines):
    swizzle = SWIZZLES[name]
    assert swizzle.period == 128 * len(lines)
    for y, line in enumerate(lines):
        for x, cell in enumerate(line):
            assert swizzle.apply(128 * y + 16 * int(cell)) == 128 * y + 16 * x


@given(st.integers(0, 1 << 18), st.sampled_from(sorted(SWIZZLES)))
def test_swizzles_are_their_own_inverse(address, name):
    swizzle = SWIZZLES[name]
    assert swizzle.apply(swizzle.apply(address)) == address
    assert swizzle.apply(address + 4 * swizzle.period) == swizzle.apply(address) + 4 * swizzle.period
    assert swizzle.apply(address) // 128 == address // 128


def test_base_offset_counts_lines_from_the_pattern_start():
    swizzle = SWIZZLES["128B"]
    for base, x in itertools.product(range(8), range(0, 1024, 16)):
        assert swizzle.apply(x + 128 * base, base) == swizzle.apply(x) + 128 * base


@pytest.mark.parametrize("element_bytes", [1, 2, 4])
@pytest.mark.parametrize("name", ["none", "32B", "64B", "128B"])
def test_canonical_layouts(name, element_bytes):
    """Every granule of K- and MN-major operands, against the CuTe layouts of the ISA."""
    t, width = 16 // element_bytes, {"none": 1, "32B": 2, "64B": 4, "128B": 8}[name]
    leading, stride = 4096 + 512, 2048 + 1024
    rows, k = 8 * width * t, 32 // element_bytes
    gather = _gather(name, leading, stride, 0, 0, rows, k // t, False, 1, 0).index
    for mn, granule in itertools.product(range(rows), range(k // t)):
        linear = (
            (mn % 8) * 16 + (mn // 8) * stride + granule * leading
            if name == "none"
            else (mn % 8) * 16 * width + (mn // 8) * stride + granule * 16
        )
        assert gather[mn, granule] * 16 == swizzled(linear, name)
    gather = _gather(name, leading, stride, 0, 0, k, rows // t, True, 1, 0).index
    for kk, granule in itertools.product(range(k), range(rows // t)):
        linear = (
            granule * stride + (kk % 8) * 16 + (kk // 8) * leading
            if name == "none"
            else (granule % width) * 16 + (granule // width) * leading + (kk % 8) * 16 * width + (kk // 8) * stride
        )
        assert gather[kk, granule] * 16 == swizzled(linear, name)


def test_mn_major_with_32_byte_atoms_has_four_lines():
    """CUTLASS: Swizzle<2,5,2> o ((T,8,m),(4,k)):((1,T,LBO),(8T,SBO)) for tf32."""
    leading, stride = 8192, 512
    gather = _gather("128B_32B_atom", leading, stride, 0, 0, 8, 16, True, 1, 0).index
    for k, granule in itertools.product(range(8), range(16)):
        linear = (granule % 8) * 16 + (granule // 8) * leading + (k % 4) * 128 + (k // 4) * stride
        assert gather[k, granule] * 16 == swizzled(linear, "128B_32B_atom")


def test_k_advance_stays_inside_the_atom():
    whole = _gather("128B", 0, 1024, 0, 0, 64, 8, False, 1, 0).index
    for step in range(4):
        part = _gather("128B", 0, 1024, 0, 32 * step, 64, 2, False, 1, 0).index
        assert (part == whole[:, 2 * step : 2 * step + 2]).all()
    run = _gather("128B", 0, 1024, 0, 0, 64, 2, False, 4, 32).index
    assert (run == whole).all()


@pytest.mark.parametrize("n", [8, 24, 128, 256])
def test_wgmma_accumulator(n):
    rows, columns = wgmma_d(n).coordinates()
    assert rows.shape == (n // 2, 128)
    for t, r in itertools.product(range(128), range(n // 2)):
        offset = cute((4, 8, 4), (128, 1, 16), t) + cute((2, 2, n // 8), (64, 8, 512), r)
        assert (rows[r, t], columns[r, t]) == (offset % 64, offset // 64)


@pytest.mark.parametrize(
    ("per_word", "thread", "values"),
    [
        (1, (64, 1, 16), ((2, 2), (8, 256))),
        (2, (128, 1, 16), ((2, 2, 2), (64, 8, 512))),
        (4, (256, 1, 16), ((4, 2, 2), (64, 8, 1024))),
    ],
)
def test_wgmma_a_from_registers(per_word, thread, values):
    """CUTLASS ALayout_64x8, 64x16 and 64x32."""
    rows, words = WGMMA_A.coordinates()
    for t, e in itertools.product(range(128), range(4 * per_word)):
        offset = cute((4, 8, 4), thread, t) + cute(*values, e)
        r, sub = divmod(e, per_word)
        assert (rows[r, t], words[r, t] * per_word + sub) == (offset % 64, offset // 64)


ISA_A = {
    # (m, k, bits): row and column of a_i, as the ISA prints them
    (16, 16, 16): lambda g, q, i: (
        g if i < 2 or 4 <= i < 6 else g + 8,
        q * 2 + (i & 1) + (8 if i >= 4 else 0),
    ),
    (16, 8, 16): lambda g, q, i: (g if i < 2 else g + 8, q * 2 + (i & 1)),
    (16, 8, 32): lambda g, q, i: (g + 8 * (i % 2), q + 4 * (i // 2)),
    (16, 4, 32): lambda g, q, i: (g + 8 * i, q),
    (16, 32, 8): lambda g, q, i: (g if i < 4 or 8 <= i < 12 else g + 8, q * 4 + (i & 3) + (16 if i >= 8 else 0)),
    (16, 16, 8): lambda g, q, i: (g if i < 4 else g + 8, q * 4 + (i & 3)),
    (8, 16, 8): lambda g, q, i: (g, q * 4 + i),
    (8, 4, 64): lambda g, q, i: (g, q),
    (16, 16, 64): lambda g, q, i: (g if i % 2 == 0 else g + 8, (i * 2 + q) if i % 2 == 0 else i * 2 - 2 + q),
}
ISA_B = {
    (16, 16, 16): lambda g, q, i: (q * 2 + (i & 1) + (8 if i >= 2 else 0), g),
    (16, 8, 16): lambda g, q, i: (q * 2 + i, g),
    (16, 8, 32): lambda g, q, i: (q + 4 * i, g),
    (16, 4, 32): lambda g, q, i: (q, g),
    (16, 32, 8): lambda g, q, i: (q * 4 + (i & 3) + (16 if i >= 4 else 0), g),
    (16, 16, 8): lambda g, q, i: (q * 4 + i, g),
    (8, 16, 8): lambda g, q, i: (q * 4 + i, g),
    (8, 4, 64): lambda g, q, i: (q, g),
    (16, 16, 64): lambda g, q, i: (q + i * 4, g),
}


@pytest.mark.parametrize("case", sorted(ISA_A))
def test_mma_sync_fragments(case):
    m, k, bits = case
    per = max(32 // bits, 1)
    a_registers, b_registers = m * k // 32 // per, 8 * k // 32 // per
    for fragment, formula, transposed in (
        (mma_a(m, a_registers), ISA_A[case], False),
        (mma_b(b_registers), ISA_B[case], True),
    ):
        rows, words = fragment.coordinates()
        for lane, i in itertools.product(range(32), range(rows.shape[0] * per)):
            r, sub = divmod(i, per)
            found = (rows[r, lane], words[r, lane] * per + sub)
            assert (found[::-1] if transposed else found) == formula(lane >> 2, lane % 4, i)


@pytest.mark.parametrize("m", [8, 16])
def test_mma_sync_accumulators(m):
    rows, columns = mma_c(m).coordinates()
    for lane, i in itertools.product(range(32), range(m // 4)):
        assert (rows[i, lane], columns[i, lane]) == ((lane >> 2) + 8 * (i // 2), (lane % 4) * 2 + (i & 1))
    packed = mma_c_packed(m).coordinates()
    assert (packed[0] == rows[::2]).all()
    assert (packed[1] * 2 == columns[::2]).all()


def test_matrix_moves():
    lane = np.arange(32)
    g, q = lane // 4, lane % 4
    row, column = MATRIX_MOVES["m8n8", False, "b16"].fragment.coordinates()
    for p in range(2):
        assert (row[0, :, p] == g).all()
        assert (column[0, :, p] == 2 * q + p).all()
    row, column = MATRIX_MOVES["m8n8", True, "b16"].fragment.coordinates()
    for p in range(2):
        assert (row[0, :, p] == 2 * q + p).all()
        assert (column[0, :, p] == g).all()
    row, column = MATRIX_MOVES["m16n16", True, "b8"].fragment.coordinates()
    for r, e in itertools.product(range(2), range(4)):
        assert (row[r, :, e] == 4 * q + e).all()
        assert (column[r, :, e] == g + 8 * r).all()
    row, column = MATRIX_MOVES["m16n8", True, "b8"].fragment.coordinates()
    for e in range(4):
        assert (row[0, :, e] == 2 * q + e % 2).all()
        assert (column[0, :, e] == g + 8 * (e // 2)).all()
    row, column = MATRIX_MOVES["m8n16", False, "b4x16_p64"].fragment.coordinates()
    for e in range(4):
        assert (row[0, :, e] == g).all()
        assert (column[0, :, e] == 4 * q + e).all()


@pytest.mark.parametrize("key", sorted(MATRIX_MOVES))
def test_matrix_moves_hold_every_element_once(key):
    move = MATRIX_MOVES[key]
    rows, columns = move.fragment.coordinates()
    assert move.fragment.matrix_shape == (move.rows, 16 // move.element_bytes)
    assert len(set(zip(rows.flat, columns.flat, strict=True))) == rows.size == move.rows * 16 // move.element_bytes


TENSOR_FORMULAS = {
    "32x32b": lambda lane, r, n: (lane, r),
    "16x64b": lambda lane, r, n: (lane // 4 + 8 * (lane % 2), 2 * r + (lane // 2) % 2),
    "16x128b": lambda lane, r, n: (lane // 4 + 8 * (r % 2), 4 * (r // 2) + lane % 4),
    "16x256b": lambda lane, r, n: (lane // 4 + 8 * ((r // 2) % 2), 8 * (r // 4) + 2 * (lane % 4) + r % 2),
    "16x32bx2": lambda lane, r, n: (lane % 16, r + n * (lane // 16)),
}


@pytest.mark.parametrize("shape", sorted(TENSOR_MOVES))
@pytest.mark.parametrize("repeats", [1, 2, 4, 32])
def test_tmem_fragments(shape, repeats):
    fragment = tensor_move(shape, repeats)
    rows, columns = fragment.coordinates()
    assert rows.shape == (TENSOR_MOVES[shape].registers * repeats, 32)
    assert fragment.matrix_shape[0] == TENSOR_MOVES[shape].lanes
    for lane, r in itertools.product(range(32), range(rows.shape[0])):
        assert (rows[r, lane], columns[r, lane]) == TENSOR_FORMULAS[shape](lane, r, repeats)


@pytest.mark.parametrize(
    ("shape", "thread", "values"),
    [
        ("16x256b", lambda n: ((4, 8), (64, 256 * n)), lambda n: ((2, 2, n), (32, 2048 * n, 256))),
        ("16x128b", lambda n: ((4, 8), (32, 128 * n)), lambda n: ((2, n), (1024 * n, 128))),
        ("16x64b", lambda n: ((2, 2, 8), (512 * n, 32, 64 * n)), lambda n: ((n,), (64,))),
    ],
)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_tmem_fragments_of_cutlass(shape, thread, values, n):
    pitch = int(shape[3:-1]) * n
    rows, columns = tensor_move(shape, n).coordinates()
    for lane, r in itertools.product(range(32), range(rows.shape[0])):
        bit = cute(*thread(n), lane) + cute(*values(n), r)
        assert (rows[r, lane], columns[r, lane]) == (bit // pitch, bit % pitch // 32)


@given(st.sampled_from(sorted(TENSOR_MOVES)), st.sampled_from([1, 2, 8]), st.integers(0, 1 << 30))
def test_fragments_round_trip(shape, repeats, seed):
    fragment = tensor_move(shape, repeats)
    matrix = np.random.default_rng(seed).integers(0, 1 << 32, fragment.matrix_shape, dtype=np.uint32)
    assert (fragment.to_matrix(fragment.to_registers(matrix)) == matrix).all()


PLACED = {
    (1, 128, False): lambda m, n, total: (m, n),
    (1, 64, False): lambda m, n, total: (m % 16 + 32 * (m // 16), n),
    (2, 256, False): lambda m, n, total: (m % 128, n),
    (2, 128, False): lambda m, n, total: (m % 64 + 64 * (n // (total // 2)), n % (total // 2)),
    (1, 128, True): lambda m, n, total: (m, n),
    (1, 64, True): lambda m, n, total: (m + 64 * (n // (total // 2)), n % (total // 2)),
    (1, 32, True): lambda m, n, total: (m + 32 * (n // (total // 4)), n % (total // 4)),
}


@pytest.mark.parametrize("case", sorted(PLACEMENTS))
@pytest.mark.parametrize("base", [0, 16])
def test_accumulator_placement(case, base):
    placement = PLACEMENTS[case]
    if base not in placement.lane_bases:
        return
    n, column = 64, 40
    memory = np.arange(128 * 512, dtype=np.uint32).reshape(128, 512)
    view = accumulator_view(memory, placement, base, column, n)
    words = view.transpose(1, 0, 2) if placement.folded else view
    words = words.reshape(placement.rows, n)
    assert len(np.unique(words)) == placement.rows * n
    for m, c in itertools.product(range(placement.rows), range(n)):
        lane, offset = PLACED[case](m, c, n)
        assert divmod(int(words[m, c]), 512) == (lane + base, column + offset)


def test_copy_shapes_write_all_their_lanes():
    lanes = {
        name: sorted(t + i for targets in s.targets for t in targets for i in range(s.height))
        for name, s in COPY_SHAPES.items()
    }
    assert lanes["128x256b"] == lanes["32x128b.warpx4"] == lanes["64x128b.warpx2::01_23"] == list(range(128))
    assert lanes["64x128b.warpx2::02_13"] == list(range(128))
    assert lanes["4x256b"] == [0, 32, 64, 96]
    assert COPY_SHAPES["64x128b.warpx2::01_23"].targets == ((0, 32), (64, 96))  # one half to warps 0, 1, one to 2, 3
    assert COPY_SHAPES["64x128b.warpx2::02_13"].targets == ((0, 64),)  # warps 0, 2 get the same rows


def test_descriptor_start_may_lie_inside_the_pattern():
    value = encode_shared_descriptor("sm_90", 0x4060, 0, 1024, "128B")
    assert decode_shared_descriptor(value, "sm_90").start == 0x4060
