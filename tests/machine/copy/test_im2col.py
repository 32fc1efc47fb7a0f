"""im2col copies against a walk of the pixel box, one pixel at a time, and against a convolution."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.machine.asynchronous import SCHEDULES, fault, init, run, wait

from warploom import TensorMap
from warploom.diagnostics import Diag, WarploomError
from warploom.hardware.swizzles import SWIZZLES
from warploom.machine.copy.boxes import collect_box, global_runs, place_box, read_box, reduce_box, write_box
from warploom.trace import (
    Array,
    barriers,
    f32,
    fence_barrier_init,
    kernel,
    s32,
    shared,
    sync_threads,
    thread,
    u16,
    when,
)
from warploom.trace.isa import cp

LOAD = "cp.async.bulk.tensor.{rank}d.shared::cta.global.mbarrier::complete_tx::bytes.{mode}"


def walked(shape, box, first, shift, low, high, steps, *, wide=False):
    """The index of each pixel (n, d, h, w), None outside the tensor: NumPy axis order."""
    spatial = [0] * (len(shape) - 3) + [1] if wide else [1] * (len(shape) - 2)
    low, high = list(low), list(high)
    place = list(first[:-1])
    found = []
    for _ in range(box[0]):
        shifted = [at + by for at, by in zip(place, (0, *shift), strict=True)]
        inside = all(0 <= at < extent for at, extent in zip(shifted, shape[:-1], strict=True))
        found.append(tuple(shifted) if inside else None)
        axis = len(place) - 1
        while axis > 0:
            if spatial[axis - 1]:
                corner = axis - 1 - (len(shape) - 2 - len(low))
                place[axis] += steps[axis]
                if place[axis] <= shape[axis] - 1 + high[corner]:
                    break
                place[axis] = low[corner]
            axis -= 1
        else:
            place[0] += 1
    return found


def expected(array, box, first, shift, low, high, steps, *, fill=0, wide=False):
    """The box of a load: pixels by channels."""
    out = np.full(box, fill, array.dtype)
    for row, at in enumerate(walked(array.shape, box, first, shift, low, high, steps, wide=wide)):
        for channel in range(box[1]):
            if at is not None and 0 <= first[-1] + channel < array.shape[-1]:
                out[row, channel] = array[(*at, first[-1] + channel)]
    return out


def case(rng, rank):
    """A random tensor, its map and the place of a copy."""
    shape = (*rng.integers(1, 5, rank - 1).tolist(), int(rng.integers(1, 5)) * 4)
    low = rng.integers(-3, 2, rank - 2).tolist()
    high = [int(rng.integers(max(lo - extent + 1, -3), 4)) for lo, extent in zip(low, shape[1:-1], strict=True)]
    steps = (1, *rng.integers(1, 4, rank - 2).tolist(), 1)
    box = (int(rng.integers(1, 40)), int(rng.choice([4, 8])))
    spatial = [
        lo + int(rng.integers(0, extent + hi - lo)) for lo, hi, extent in zip(low, high, shape[1:-1], strict=True)
    ]
    first = (int(rng.integers(-1, shape[0] + 1)), *spatial, int(rng.integers(-1, 5)) * 4)
    shift = rng.integers(0, 4, rank - 2).tolist()
    return shape, low, high, steps, box, first, shift


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_boxes_equal_a_walk_of_the_pixels(rank):
    rng = np.random.default_rng(rank + 1000)
    for _ in range(60):
        shape, low, high, steps, box, first, shift = case(rng, rank)
        array = rng.integers(1, 1 << 32, shape, dtype=np.uint32)
        given = TensorMap(array, box=box, mode="im2col", lower_corner=low, upper_corner=high, element_strides=steps)
        dense = read_box(array.reshape(-1).view(np.uint8), given.geometry, first[::-1], 0, shift[::-1])
        want = expected(array, box, first, shift, low, high, steps)
        assert (dense.view(np.uint32).reshape(box) == want).all(), (shape, low, high, steps, box, first, shift)
        addresses, width = global_runs(given.geometry, first[::-1], 0, shift[::-1])
        assert len(addresses) * width == np.count_nonzero(want) * 4


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_stores_and_reductions_reach_the_same_elements(rank):
    rng = np.random.default_rng(rank + 2000)
    for _ in range(30):
        shape, low, high, steps, box, first, _ = case(rng, rank)
        first = (*first[:-1], max(first[-1], 0))
        target = rng.integers(0, 1000, shape, dtype=np.uint32)
        values = rng.integers(1, 1000, box, dtype=np.uint32)
        stored, added = target.copy(), target.copy()
        for row, at in enumerate(walked(shape, box, first, (0,) * (rank - 2), low, high, steps)):
            for channel in range(box[1]):
                if at is not None and 0 <= first[-1] + channel < shape[-1]:
                    stored[(*at, first[-1] + channel)] = values[row, channel]
                    added[(*at, first[-1] + channel)] += values[row, channel]
        given = TensorMap(
            target, box=box, mode="im2col", lower_corner=low, upper_corner=high, element_strides=steps
        ).geometry
        dense = values.reshape(-1).view(np.uint8)
        for want, action in ((stored, write_box), (added, lambda *rest: reduce_box("add", *rest))):
            memory = target.copy()
            action(memory.reshape(-1).view(np.uint8), given, first[::-1], dense)
            assert (memory == want).all()


@pytest.mark.parametrize(("mode", "pixels"), [("im2col::w", 23), ("im2col::w::128", 128)])
def test_wide_modes_keep_the_row_and_go_on_in_the_next_image(mode, pixels):
    rng = np.random.default_rng(pixels)
    for rank in (3, 4, 5):
        shape = (*rng.integers(2, 5, rank - 2).tolist(), 9, 8)
        array = rng.integers(1, 1 << 32, shape, dtype=np.uint32)
        low, high, steps = [-1], [1], (1,) * (rank - 2) + (2, 1)
        given = TensorMap(
            array, box=(pixels, 8), mode=mode, lower_corner=low, upper_corner=high, element_strides=steps, swizzle="32B"
        )
        first = (*rng.integers(0, 3, rank - 2).tolist(), int(rng.integers(-4, 9)), 0)  # left of the box is allowed
        dense = read_box(array.reshape(-1).view(np.uint8), given.geometry, first[::-1], 0, (3,))
        shift = (0,) * (rank - 3) + (3,)
        want = expected(array, (pixels, 8), first, shift, low, high, steps, wide=True)
        assert (dense.view(np.uint32).reshape(pixels, 8) == want).all()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_the_columns_of_a_convolution(dtype):
    """Padding, stride and dilation as a convolution uses them: all taps of all outputs."""
    rng = np.random.default_rng(5)
    images, height, width, channels = 2, 7, 6, 16
    (rows, columns), pad, stride, dilation = (3, 2), (2, 1), (2, 3), (2, 1)
    image = rng.integers(-8, 8, (images, height, width, channels)).astype(dtype)
    reach = [dilation[0] * (rows - 1), dilation[1] * (columns - 1)]
    outputs = [
        (extent + 2 * p - r - 1) // s + 1 for extent, p, r, s in zip((height, width), pad, reach, stride, strict=True)
    ]
    total = images * outputs[0] * outputs[1]
    given = TensorMap(
        image,
        box=(total, channels),
        mode="im2col",
        lower_corner=[-p for p in pad],
        upper_corner=[p - r for p, r in zip(pad, reach, strict=True)],
        element_strides=(1, *stride, 1),
    ).geometry
    padded = np.zeros((images, height + 2 * pad[0], width + 2 * pad[1], channels), dtype)
    padded[:, pad[0] : pad[0] + height, pad[1] : pad[1] + width] = image
    for r in range(rows):
        for s in range(columns):
            top, left = r * dilation[0], s * dilation[1]
            want = padded[:, top :: stride[0], left :: stride[1]][:, : outputs[0], : outputs[1]]
            first = (0, -pad[1], -pad[0], 0)
            dense = read_box(image.reshape(-1).view(np.uint8), given, first, 0, (left, top))
            assert (dense.view(dtype).reshape(total, channels) == want.reshape(total, channels)).all()


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_shared_memory_is_swizzled_by_pixels(swizzle):
    rng = np.random.default_rng(9)
    image = rng.integers(1, 1 << 16, (1, 5, 5, 64), dtype=np.uint16)
    channels = (SWIZZLES[swizzle].span or 32) // 2
    given = TensorMap(
        image, box=(20, channels), mode="im2col", lower_corner=(0, 0), upper_corner=(0, 0), swizzle=swizzle
    ).geometry
    memory, shared = image.reshape(-1).view(np.uint8), np.zeros(8192, np.uint8)
    dense = read_box(memory, given, (0, 2, 1, 0), 0, (0, 0))
    place_box(shared, 1024, given, dense)
    for pixel in range(20):
        byte = 1024 + pixel * given.pitch
        at = SWIZZLES[swizzle].apply(byte + np.arange(given.row_bytes))
        row = divmod(7 + pixel, 5)
        want = image[0, row[0], row[1], :channels] if row[0] < 5 else np.zeros(channels, np.uint16)
        assert (shared[at].view(np.uint16) == want).all()
    assert (collect_box(shared, 1024, given) == dense).all()


@pytest.mark.parametrize("fill", ["zero", "nan"])
def test_fill_outside_the_tensor(fill):
    image = np.ones((1, 2, 4), np.float32)
    given = TensorMap(image, box=(4, 4), mode="im2col", lower_corner=(-1,), upper_corner=(1,), fill=fill).geometry
    dense = read_box(image.reshape(-1).view(np.uint8), given, (0, -1, 0), 0, (0,)).view(np.float32).reshape(4, 4)
    assert (dense[1:3] == 1).all()
    outside = dense[[0, 3]]
    assert np.isnan(outside).all() if fill == "nan" else (outside == 0).all()


def load(rank, mode, coords, offsets, size):
    halves = "".join(f"mov.b16 %h{at}, {value};" for at, value in enumerate(offsets))
    names = ", ".join(f"%h{at}" for at in range(len(offsets)))
    return f"""{init(1)} mov.b64 %rd1, a; {halves}
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {size};
    @%first {LOAD.format(rank=rank, mode=mode)} [data], [%rd1, {{{", ".join(map(str, coords))}}}], [bars], {{{names}}};
    {wait("LOADED")}"""


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
def test_a_kernel_loads_shifts_and_stores_pixels(schedule, seed):
    rng = np.random.default_rng(31)
    image = rng.integers(1, 1 << 32, (2, 4, 5, 8), dtype=np.uint32)
    out = np.zeros((2, 4, 5, 8), np.uint32)
    corners = {"lower_corner": (-1, -1), "upper_corner": (-1, -1)}
    maps = (
        TensorMap(image, box=(25, 8), mode="im2col", **corners),
        TensorMap(out, box=(25, 8), mode="im2col", lower_corner=(0, 0), upper_corner=(0, 0)),
    )
    store = "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group"
    body = f"""{load(4, "im2col", (0, -1, 0, 0), (2, 1), 800)} mov.b64 %rd2, b;
    @%first {store} [%rd2, {{0, 1, 2, 0}}], [data];
    @%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group 0;"""
    run(body, "map:a map:b", maps, schedule=schedule, seed=seed)
    loaded = expected(image, (25, 8), (0, 0, -1, 0), (1, 2), (-1, -1), (-1, -1), (1, 1, 1, 1))
    want = np.zeros_like(out)
    for row, at in enumerate(walked(out.shape, (25, 8), (0, 2, 1, 0), (0, 0), (0, 0), (0, 0), (1, 1, 1, 1))):
        if at is not None:
            want[at] = loaded[row]
    assert (out == want).all()


@pytest.mark.parametrize(
    ("mode", "coords", "offsets", "words"),
    [
        ("im2col", (0, 0, 0, 0), (0,), "has 2 offsets, not 1"),
        ("im2col", (0, 0, 0, 0), (256, 0), "are 0 to 255"),
        ("im2col", (0, -2, 0, 0), (0, 0), "the first pixel is at -2 of axis 2, outside the pixel box (-1 to 3)"),
        ("im2col", (0, 0, 3, 0), (0, 0), "the first pixel is at 3 of axis 1, outside the pixel box (-1 to 2)"),
        ("im2col", (2, 0, 0, 0), (0, 0), "a multiple of 4"),
        ("tile", (0, 0, 0, 0), (), "the instruction is in mode .tile and the map in mode im2col"),
    ],
)
def test_illegal_copies_are_faults(mode, coords, offsets, words):
    image = np.zeros((2, 4, 5, 8), np.uint32)
    given = TensorMap(image, box=(4, 8), mode="im2col", lower_corner=(-1, -1), upper_corner=(-1, -1))
    body = load(4, mode, coords, offsets, 128).replace(", {}", "")
    error = fault(body, "map:a", (given,))
    assert error.code == "BAD_COORDINATES"
    assert words in str(error)


@kernel(block=32)
def column(image: TensorMap, out: Array[f32], top: s32, left: s32) -> None:
    """One box of the im2col matrix: the pixels under one tap of a filter."""
    pixels, channels = image.geometry.box
    tile, full = shared(f32, (pixels, channels), name="tile"), barriers("full")
    with when(thread() == 0):
        full.init(1)
        fence_barrier_init()
    sync_threads()
    with when(thread() == 0):
        full[0].arrive_and_expect(image.box_bytes)
        cp.async_bulk_tensor_load(tile, image.at(0, -1, -1, 0), full[0], [left.to(u16), top.to(u16)], mode="im2col")
    full[0].wait(0)
    for pixel in range(pixels):
        with when(thread() < channels):
            out[pixel, thread()] = tile[pixel, thread()]


def test_a_traced_kernel_takes_the_taps_as_values():
    image = np.random.default_rng(3).integers(1, 99, (1, 3, 4, 8)).astype(np.float32)
    corners = {"lower_corner": (-1, -1), "upper_corner": (-1, -1)}
    given = TensorMap(image, box=(12, 8), mode="im2col", **corners)
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
    for top, left in np.ndindex(3, 3):
        out = np.full((12, 8), np.nan, np.float32)
        column[1](given, out, top, left)
        assert (out == padded[0, top : top + 3, left : left + 4].reshape(12, 8)).all()


def rows_of_halos(mode, pixels, halo):
    """The number of the pixel in each row, one row at a time."""
    rows = list(range(pixels))
    if mode == "im2col::w":
        return rows + [pixels + at for at in range(halo)]
    for at in range(halo):
        rows += [
            32 + at,
            64 + at,
            96 + at,
            128 + at,
        ]  # one lane of each quadrant of TMEM, as tcgen05.cp.4x256b takes them
    return rows


@pytest.mark.parametrize(("mode", "pixels"), [("im2col::w", 23), ("im2col::w", 128), ("im2col::w::128", 128)])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_halos_follow_the_pixels(rank, mode, pixels):
    rng = np.random.default_rng()
    for halo in (1, 2, int(rng.integers(3, 32))):
        shape = (int(rng.integers(2, 40)), *rng.integers(1, 4, rank - 3).tolist(), 9, 8)
        array = rng.integers(1, 1 << 32, shape, dtype=np.uint32)
        low, high, steps = [-1], [1], (1,) * (rank - 2) + (int(rng.integers(1, 4)), 1)
        given = TensorMap(
            array, box=(pixels, 8), mode=mode, lower_corner=low, upper_corner=high, element_strides=steps, swizzle="32B"
        )
        first = (0, *(int(rng.integers(0, extent)) for extent in shape[1:-2]), int(rng.integers(-4, 9)), 0)
        tap = int(rng.integers(0, 4))
        geometry = given.geometry.with_halo(halo)
        rows = rows_of_halos(mode, pixels, halo)
        walk = expected(array, (max(rows) + 1, 8), first, (0,) * (rank - 3) + (tap,), low, high, steps, wide=True)
        dense = read_box(array.reshape(-1).view(np.uint8), geometry, first[::-1], 0, (tap,))
        assert (dense.view(np.uint32).reshape(len(rows), 8) == walk[rows]).all()


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
@pytest.mark.parametrize(("mode", "halos"), [("im2col::w", 1), ("im2col::w::128", 4)])
def test_a_kernel_loads_halos(mode, halos, schedule):
    """All rows are in shared memory, and the mbarrier gets the bytes of all."""
    rng = np.random.default_rng()
    image = rng.integers(1, 1 << 32, (50, 3, 7, 8), dtype=np.uint32)
    corners = {"lower_corner": (0,), "upper_corner": (0,), "swizzle": "32B"}
    given, rows = TensorMap(image, box=(128, 8), mode=mode, **corners), rows_of_halos(mode, 128, 2)
    out = np.zeros((len(rows), 8), np.uint32)
    lines = "".join(
        f"""ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [data+{at * 32 + half * 16}];
        st.global.v4.u32 [%rd3+{at * 32 + (half ^ (at >> 2 & 1)) * 16}], {{%r4, %r5, %r6, %r7}};"""
        for at in range(len(rows))
        for half in range(2)
    )
    assert len(rows) == 128 + 2 * halos
    body = load(4, mode, (0, 2, 1, 3), (2, 1), 32 * len(rows)) + f"ld.param.u64 %rd3, [out]; {lines}"
    run(body, "map:a ptr:out", (given, out), target="sm_100a", data=8192, schedule=schedule)
    walk = expected(image, (max(rows) + 1, 8), (3, 1, 2, 0), (0, 1), (0,), (0,), (1, 1, 1, 1), wide=True)
    assert (out == walk[rows]).all()


@pytest.mark.parametrize(("mode", "most"), [("im2col::w", 511), ("im2col::w::128", 31)])
def test_a_halo_beyond_the_limit_is_refused(mode, most):
    corners = {"lower_corner": (0,), "upper_corner": (0,), "swizzle": "32B"}
    given = TensorMap(np.zeros((2, 4, 8), np.uint32), box=(4, 8), mode=mode, **corners)
    error = fault(load(3, mode, (0, 0, 0), (most + 1, 0), 128), "map:a", (given,), target="sm_100a")
    assert error.code == "BAD_COORDINATES"
    assert f"is 0 to {most} pixels" in error.what


BROKEN = [
    ("mode", {"mode": "im2row"}, "'im2row' is not one of tile, im2col"),
    ("rank", {"shape": (8, 64), "lower_corner": (), "upper_corner": ()}, "2 is not 3 to 5"),
    ("box", {"box": (4, 1, 8)}, "mode im2col has pixels and channels"),
    ("box", {"box": (1025, 8)}, "axis 0 has 1025 elements, not 1 to 1024"),
    ("box", {"box": (4, 257)}, "axis 1 has 257 elements, not 1 to 256"),
    ("box", {"box": (4, 3)}, "takes 6 bytes, not a multiple of 16"),
    ("box", {"box": (4, 64), "swizzle": "32B"}, "takes 128 bytes; swizzle 32B allows 32"),
    ("element_strides", {"element_strides": (1, 9, 1, 1)}, "axis 1 has 9, not 1 to 8"),
    ("lower_corner", {"lower_corner": (0,)}, "has 1 axes; mode im2col of rank 4 has 2"),
    ("lower_corner", {"lower_corner": (0, -129)}, "-129 is not -128 to 127"),
    ("upper_corner", {"upper_corner": (128, 0)}, "128 is not -128 to 127"),
    ("upper_corner", {"upper_corner": (-4, 0)}, "no position lies between 0 and -4 of an axis of 4 elements"),
    ("upper_corner", {"mode": "tile", "box": (1, 4, 4, 8)}, "mode tile of rank 4 has 0"),
    ("lower_corner", {"mode": "im2col::w", "swizzle": "128B"}, "mode im2col::w of rank 4 has 1"),
    ("swizzle", {"mode": "im2col::w", "lower_corner": (0,), "upper_corner": (0,)}, "mode im2col::w needs one"),
]


@pytest.mark.parametrize(("subject", "change", "words"), BROKEN)
def test_every_rule_of_im2col_maps_broken_once(subject, change, words):
    rules = {"box": (4, 64), "mode": "im2col", "lower_corner": (0, 0), "upper_corner": (0, 0), **change}
    with pytest.raises(WarploomError) as caught:
        TensorMap(np.zeros((2, 4, 5, 64), np.float16), **rules)
    assert caught.value.diag is Diag.BAD_TENSOR_MAP
    assert any(note.startswith(f"{subject}: ") and words in note for note in caught.value.notes), caught.value.notes
