"""TMEM under the names of the five pages: addresses, fragments, arrays and stages."""

from __future__ import annotations

import numpy as np
import pytest
from tests.structured.writing import allocate, deallocate
from tests.trace.harness import run

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.structured import (
    OutputPipelineConfig,
    TmemAddress,
    TmemAllocation,
    TmemArrayType,
    TmemFragments,
    TmemStage,
    TmemTensor,
    WarpGroupBarrier,
)
from warploom.structured.tensor_cores.tmem import places_of
from warploom.trace import Array, f32, kernel, lane, literal, s32, shared, thread, u32, warp_index, when

BLOCK = (128, 1, 1)


@kernel(target="sm_100a")
def round_trip(x: Array[f32], y: Array[f32], *, m, group, rep):
    """Store fragments to TMEM, load them back, and check the position of each value."""
    slot = shared(u32, 1, name="slot")
    allocate(slot)
    tensors = TmemArrayType("f32", (m, 8 * rep), 2, group)
    base = TmemAddress(TmemAllocation.from_shared(slot).addr).of_warp(warp_index())
    for index in range(2):
        tensor = tensors.at(base)[index]
        rows = 32 if tensor.is_lower_required else 16
        row, column = (warp_index() * rows + lane() // 4).to(s32), (lane() % 4 * 2).to(s32) + index * 8 * rep

        def read(view, half, row=row, column=column):
            return [view[row + half + down, column + along] for down, along in places_of(4 * rep)]

        like = tensor.load_fragments(rep)
        halves = [
            half and type(half)(tuple(read(x, down)), half.layout) for half, down in ((like.upper, 0), (like.lower, 16))
        ]
        TmemAddress.wait_load()
        tensor.store_fragments(TmemFragments(*halves))
        TmemAddress.wait_store()
        found = tensor.load_fragments(rep)
        TmemAddress.wait_load()
        assert (found.lower is not None) == (rows == 32)
        for (down, along), value in found.cast("bf16").by_place.items():
            y[row + down, column + along] = value.to("f32")
    deallocate(slot, WarpGroupBarrier(128))


@pytest.mark.parametrize("rep", [1, 8])
@pytest.mark.parametrize(("m", "group", "rows"), [(128, 1, 128), (64, 1, 64), (128, 2, 128)])
def test_fragments_round_trip_through_tmem(m, group, rows, rep):
    x = np.random.default_rng().integers(-99, 100, (rows, 16 * rep)).astype(np.float32)
    y = np.full_like(x, np.nan)
    run(round_trip, x, y, block=BLOCK, m=m, group=group, rep=rep)
    np.testing.assert_array_equal(x, y)


def test_addresses_match_the_move():
    assert [tuple(place) for place in places_of(8)] == [
        (0, 0), (0, 1), (8, 0), (8, 1), (0, 8), (0, 9), (8, 8), (8, 9)
    ]  # fmt: skip


@kernel(target="sm_100a")
def staged(out: Array[u32], index: s32, *, config):
    stage = TmemStage(config, thread() * 0 + 7, index.to(u32))
    again = TmemStage.from_offset(config, stage.offset, index.to(u32))
    address = stage.address(thread() * 0 + 3)
    tensor = TmemTensor("f32", (128, 32), 1, address)
    with when(thread() == 0):
        out[0] = stage.offset
        out[1] = again.base
        out[2] = tensor.col_addr.upper_addr.address
        out[3] = tensor.col_addr.lower_addr.address
        out[4] = (address + 16).addr


def test_stages_are_a_stride_apart():
    out = np.zeros(5, np.uint32)
    config = OutputPipelineConfig(num_stages=2, stage_stride_cols=256, cta_group=1)
    launch(staged.bind(out, 1, grid=(1, 1, 1), block=(32, 1, 1), config=config))
    offset = 7 + 256
    assert out.tolist() == [offset, 7, offset + (96 << 16), offset + (112 << 16), offset + (96 << 16) + 16]


def test_is_lower_required():
    def required(m, group):
        return TmemTensor("f32", (m, 8), group, None).is_lower_required

    assert [required(*case) for case in ((64, 1), (128, 1), (64, 2), (128, 2))] == [False, True, True, True]
    assert TmemTensor.frag_size == 4
    with pytest.raises(IndexError):
        TmemArrayType("f32", (128, 8), 2, 1)[0]


@kernel(target="sm_100a")
def allocating(out: Array[u32]):
    slot = shared(u32, 1, name="slot")
    with when(warp_index() == 0):
        memory = TmemAllocation.allocate(slot, columns=64)
        memory.release_lock()
        out[0] = memory.addr
        memory.deallocate()


def test_an_allocation_from_first_to_last():
    out = np.full(1, 1 << 31, np.uint32)
    run(allocating, out, block=(32, 1, 1))
    assert out[0] < 512
    assert TmemAllocation.max_columns == 512


@kernel(target="sm_100a")
def parts(y: Array[f32], *, columns):
    """Fill each part of an allocation with its number, then read all of them."""
    slot = shared(u32, 1, name="slot")
    allocate(slot)
    places = TmemAllocation.from_shared(slot).split(*columns)
    tensors = [TmemTensor("f32", (128, 8), 1, place.of_warp(warp_index())) for place in places]
    for number, tensor in enumerate(tensors):
        like = tensor.load_fragments(1)
        TmemAddress.wait_load()
        halves = [type(half)((literal(float(number), "f32"),) * 4, half.layout) for half in (like.upper, like.lower)]
        tensor.store_fragments(TmemFragments(*halves))
    TmemAddress.wait_store()
    for number, tensor in enumerate(tensors):
        found = tensor.load_fragments(1)
        TmemAddress.wait_load()
        y[number, thread().to(s32)] = found.upper.values[0]
    deallocate(slot, WarpGroupBarrier(128))


def test_parts_of_an_allocation_do_not_overlap():
    columns = (8, 64, 16, 400)
    y = np.full((len(columns), 128), np.nan, np.float32)
    launch(parts.bind(y, grid=(1, 1, 1), block=BLOCK, columns=columns))
    assert (y == np.arange(len(columns))[:, None]).all()


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(WarploomError, match="parts of 256, 264 columns need 520, but 512 are allocated"):
        parts.ptx(np.zeros((2, 128), np.float32), block=BLOCK, columns=(256, 264))
    with pytest.raises(WarploomError, match="a part has 0 columns"):
        parts.ptx(np.zeros((2, 128), np.float32), block=BLOCK, columns=(0, 8))
