"""Accumulators, operands and scale factors in TMEM: writer and reader agree on the layout."""

import numpy as np
import pytest

from warploom.diagnostics import Diag, Fault
from warploom.hardware.fragments import tensor_move
from warploom.hardware.matrix_descriptors import decode_shared_descriptor
from warploom.hardware.tmem import COPY_SHAPES, PLACEMENTS
from warploom.machine.tensor.accumulators import (
    tensor_a,
    tensor_accumulate,
    tensor_accumulator,
    tensor_copy,
    tensor_load,
    tensor_scales,
    tensor_store,
)
from warploom.machine.tensor.elements import contained
from warploom.machine.tensor.operands import OperandReader

SHARED = 1 << 17


def empty():
    raw = np.empty(SHARED + 64, np.uint8)
    start = -raw.ctypes.data % 64
    shared = raw[start : start + SHARED]
    shared[:] = np.random.default_rng(0).integers(0, 256, SHARED)
    return shared


def test_integer_accumulators_wrap_or_saturate():
    top = np.full((128, 512), np.iinfo(np.int32).max, np.int32).view(np.uint32)
    placement, one = PLACEMENTS[1, 128, False], np.ones((128, 512), np.int32)
    wrapped, saturated = top.copy(), top.copy()
    tensor_accumulate(wrapped, placement, 0, 0, one, "s32", accumulate=True)
    tensor_accumulate(saturated, placement, 0, 0, one, "s32", accumulate=True, saturate=True)
    assert (wrapped.view(np.int32) == np.iinfo(np.int32).min).all()
    assert (saturated == top).all()


@pytest.mark.parametrize("case", sorted(PLACEMENTS))
@pytest.mark.parametrize("d_type", ["f32", "f16", "s32"])
def test_tensor_accumulators(case, d_type):
    rng = np.random.default_rng(11)
    placement, n, column = PLACEMENTS[case], 64, 96
    memory = rng.integers(0, 1 << 32, (128, 512), dtype=np.uint32)
    before = memory.copy()
    kind = np.int32 if d_type == "s32" else np.float32
    first, second = (rng.integers(-99, 100, (placement.rows, n)).astype(kind) for _ in range(2))
    lane = placement.lane_bases[-1]
    tensor_accumulate(memory, placement, lane, column, first, d_type, accumulate=False)
    assert (tensor_accumulator(memory, placement, lane, column, n, d_type) == first).all()
    tensor_accumulate(memory, placement, lane, column, second, d_type, accumulate=True)
    assert (tensor_accumulator(memory, placement, lane, column, n, d_type) == first + second).all()
    assert (memory != before).sum() <= placement.rows * n
    disabled = rng.random(128) < 0.5
    held = memory.copy()
    tensor_accumulate(memory, placement, lane, column, second, d_type, accumulate=True, disabled=disabled)
    assert (memory[disabled] == held[disabled]).all()
    tensor_accumulate(held, placement, lane, column, second, d_type, accumulate=True)
    assert (memory[~disabled] == held[~disabled]).all()


def test_scaled_input_accumulator():
    memory = np.zeros((128, 512), np.uint32)
    placement = PLACEMENTS[1, 128, False]
    eight = np.full((128, 8), 8, np.float32)
    tensor_accumulate(memory, placement, 0, 0, eight, "f32", accumulate=False)
    tensor_accumulate(memory, placement, 0, 0, eight, "f32", accumulate=True, scale=3)
    assert (tensor_accumulator(memory, placement, 0, 0, 8, "f32") == 9).all()


@pytest.mark.parametrize(("lane", "column", "n"), [(1, 0, 64), (0, 480, 64), (0, -8, 64), (16, 0, 64)])
def test_accumulators_stay_inside_tmem(lane, column, n):
    memory = np.zeros((128, 512), np.uint32)
    with pytest.raises(Fault) as caught:
        tensor_accumulate(
            memory, PLACEMENTS[1, 128, False], lane, column, np.zeros((128, n), np.float32), "f32", accumulate=True
        )
    assert caught.value.diag is Diag.TENSOR_MEMORY


@pytest.mark.parametrize("element", ["bf16", "tf32", "e4m3", "s8", "e2m1_packed", "e2m1", "e2m3"])
@pytest.mark.parametrize("case", [(1, 128, False), (1, 64, False), (2, 128, False), (2, 256, False)])
def test_a_from_tmem(element, case):
    rng = np.random.default_rng(12)
    placement = PLACEMENTS[case]
    words = rng.integers(0, 256, (placement.rows, 32)).astype(np.uint8)
    if element == "bf16":
        words[:, 1::2] &= 0x3F
    elif element == "tf32":
        words[:, 3::4] &= 0x3F
    elif element == "e4m3":
        words &= 0x77
    kind = contained(element)
    memory = np.full((128, 512), 0xFFFFFFFF, np.uint32)
    packed = words.view(np.uint32)
    blocks = memory.reshape(placement.blocks, 128 // placement.blocks, 512)
    lane = placement.lane_bases[-1]
    if placement.folded:
        blocks[:, :, 40:48] = packed
    else:
        blocks[:, lane : lane + placement.height, 40:48] = packed.reshape(placement.blocks, placement.height, 8)
    k = 256 // kind.bits
    found = tensor_a(memory, placement, lane, 40, k, element)
    assert found.shape == (placement.rows, k)
    np.testing.assert_array_equal(found, kind.decode(words))
    if placement.folded:
        blocks[1, 3, 44] ^= 1
        with pytest.raises(Fault) as caught:
            tensor_a(memory, placement, 0, 40, k, element)
        assert "not the same" in caught.value.what


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize(("vectors", "identifier"), [(1, 3), (2, 2), (4, 0)])
@pytest.mark.parametrize("rows", [128, 192, 48])
def test_scale_factors(rows, vectors, identifier, folded):
    """Written by tcgen05.cp from chunks of 128 rows times four, read by row."""
    rng = np.random.default_rng(13)
    parts = 2 if folded else 1
    factors = rng.integers(0, 256, (rows, 4)).astype(np.uint8)
    memory = np.zeros((128, 512), np.uint32)
    per_part = rows // parts
    for part in range(parts):
        for row in range(per_part):
            word = factors[part * per_part + row].view(np.uint32)[0]
            for quadrant in range(part * 2, part * 2 + 2) if folded else range(4):
                memory[32 * quadrant + row % 32, 60 + row // 32] = word
    found = tensor_scales(memory, 60, rows, vectors, identifier, folded=folded)
    assert (found == factors[:, identifier : identifier + vectors]).all()
    memory[33, 60] ^= 1 << 8 * identifier
    with pytest.raises(Fault) as caught:
        tensor_scales(memory, 60, rows, vectors, identifier, folded=folded)
    assert caught.value.diag is Diag.TENSOR_MEMORY


def test_scale_factors_through_shared_memory():
    """A 512-byte chunk, the descriptor that CuTe DSL emits, tcgen05.cp.32x128b.warpx4: factor (row, k) comes back."""
    rng = np.random.default_rng(14)
    factors = rng.integers(0, 256, (128, 4)).astype(np.uint8)
    shared = empty()
    start = 0x2000
    for row in range(128):
        at = start + (row % 32) * 16 + (row // 32) * 4
        shared[at : at + 4] = factors[row]
    source = decode_shared_descriptor(0x400800010000 | start >> 4, "sm_100")
    shape = COPY_SHAPES["32x128b.warpx4"]
    memory = np.zeros((128, 512), np.uint32)
    tensor_copy(memory, shape, 0, 32, OperandReader(shared).read_bytes(source, shape.rows, shape.row_bytes))
    assert (tensor_scales(memory, 32, 128, 4, 0) == factors).all()


@pytest.mark.parametrize("name", sorted(COPY_SHAPES))
def test_tensor_copies(name):
    shape = COPY_SHAPES[name]
    rng = np.random.default_rng(15)
    rows = rng.integers(0, 256, (shape.rows, shape.row_bytes)).astype(np.uint8)
    memory = np.zeros((128, 512), np.uint32)
    lane = 31 if name == "4x256b" else 0
    tensor_copy(memory, shape, lane, 8, rows)
    width = shape.row_bytes // 4
    assert (memory[:, :8] == 0).all()
    assert (memory[:, 8 + width :] == 0).all()
    for i, row in enumerate(rows.view(np.uint32)):
        for target in shape.targets[i // shape.height]:
            assert (memory[lane + target + i % shape.height, 8 : 8 + width] == row).all()
    with pytest.raises(Fault):
        tensor_copy(memory, shape, lane, 512 - width + 1, rows)


@pytest.mark.parametrize("shape", ["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"])
@pytest.mark.parametrize("repeats", [1, 4, 16])
@pytest.mark.parametrize("packed", [False, True])
def test_tensor_loads_and_stores(shape, repeats, packed):
    rng = np.random.default_rng(16)
    memory = rng.integers(0, 1 << 32, (128, 512), dtype=np.uint32)
    before = memory.copy()
    lane, column, split = (64, 24, 200) if shape == "32x32b" else (80, 24, 200)
    registers = tensor_load(memory, shape, repeats, lane, column, split=split, packed=packed)
    rows, columns = tensor_move(shape, repeats).coordinates()
    assert registers.shape == rows.shape
    factor = 2 if packed else 1
    for (r, thread), value in np.ndenumerate(registers):
        at = columns[r, thread]
        start = column
        if shape == "16x32bx2" and at >= repeats:
            at, start = at - repeats, column + split
        words = before[lane + rows[r, thread], start + factor * at : start + factor * (at + 1)]
        assert value == (words[0] & 0xFFFF | words[1] << 16 if packed else words[0])
    memory[...] = 0
    tensor_store(memory, shape, repeats, lane, column, registers, split=split, packed=packed)
    assert (tensor_load(memory, shape, repeats, lane, column, split=split, packed=packed) == registers).all()
    touched = memory != 0
    assert (memory[touched] == (before[touched] & 0xFFFF if packed else before[touched])).all()
    with pytest.raises(Fault) as caught:
        tensor_load(memory, shape, repeats, lane, 512, split=0, packed=packed)
    assert caught.value.diag is Diag.TENSOR_MEMORY
