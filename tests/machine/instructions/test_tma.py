"""Tensor copies: every rank, fill and swizzle against NumPy, the barriers that count their bytes, and when they take effect."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest
from tests.machine.asynchronous import SCHEDULES, fault, init, run, text, wait

from warploom import TensorMap, launch
from warploom.hardware.swizzles import SWIZZLES
from warploom.hardware.tensor_maps import MAP_TYPES
from warploom.machine.copy.tensor_map_bytes import encode

RNG = np.random.default_rng()
LOAD = "cp.async.bulk.tensor.{rank}d.shared::cta.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
COMMIT = "@%first cp.async.bulk.commit_group;"


def random(shape, dtype=np.uint32):
    return RNG.integers(0, 256, (*shape[:-1], shape[-1] * np.dtype(dtype).itemsize), dtype=np.uint8).view(dtype)


def dump(size):
    """All threads of a warp copy `data` to `out`."""
    return f"""ld.param.u64 %rd20, [out]; mov.u32 %r40, data; shl.b32 %r41, %lane, 2; add.u32 %r40, %r40, %r41;
    cvt.u64.u32 %rd21, %r41; add.u64 %rd20, %rd20, %rd21; mov.u32 %r42, 0;
    DUMP: ld.shared.u32 %r43, [%r40]; st.global.u32 [%rd20], %r43; add.u32 %r40, %r40, 128; add.u64 %rd20, %rd20, 128;
    add.u32 %r42, %r42, 128; setp.lt.u32 %p14, %r42, {size}; @%p14 bra DUMP;"""


def coordinates(coords):
    return "{" + ", ".join(map(str, coords)) + "}"


def load(coords, size, name="a", mode="", opcode=LOAD):
    """Thread 0 loads a box to `data`, and all wait for it."""
    return f"""mov.b64 %rd1, {name};
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {size};
    @%first {opcode.format(rank=len(coords))}{mode} [data], [%rd1, {coordinates(coords)}], [bars]; {wait("LOADED")}"""


def boxed(array, box, coords, steps=None, fill=0):
    """The box that NumPy cuts out, with the outside filled; coordinates innermost first."""
    out = np.full(box, fill, array.dtype)
    steps = steps or (1,) * len(box)
    for index in np.ndindex(*box):
        at = tuple(c + i * s for c, i, s in zip(coords[::-1], index, steps, strict=True))
        if all(0 <= a < n for a, n in zip(at, array.shape, strict=True)):
            out[index] = array[at]
    return out


BOXES = [
    ((198,), (64,), [(0,), (152,), (-20,), (500,)]),
    ((13, 24), (8, 8), [(0, 0), (20, 9), (-4, -3), (4, 13)]),
    ((5, 7, 12), (2, 3, 8), [(0, 0, 0), (8, 6, 4), (-4, -1, -1)]),
    ((3, 4, 5, 8), (2, 2, 3, 8), [(0, 0, 0, 0), (4, 3, -1, 2), (4, 3, 3, 2)]),
    ((2, 3, 2, 3, 8), (2, 2, 1, 2, 8), [(0, 0, 0, 0, 0), (4, 2, -1, 2, 1), (4, 2, 1, 2, 1)]),
]


@pytest.mark.parametrize(("shape", "box", "places"), BOXES, ids=lambda v: None)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
def test_loads_of_every_rank_fill_out_of_bounds_elements(shape, box, places, schedule, seed):
    array = random(shape)
    size = int(np.prod(box)) * 4
    for coords in places:
        out = np.zeros(-(-size // 128) * 32, np.uint32)
        given = TensorMap(array, box=box), out
        body = init(1) + load(coords, size) + dump(size)
        run(body, "map:a ptr:out", given, schedule=schedule, seed=seed)
        assert (out[: size // 4].reshape(box) == boxed(array, box, coords)).all()


@pytest.mark.parametrize(("shape", "box", "places"), BOXES, ids=lambda v: None)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
def test_stores_of_every_rank_are_clipped(shape, box, places, schedule, seed):
    """A whole box is loaded from one tensor and stored, clipped, to another."""
    size = int(np.prod(box)) * 4
    source = random(box)
    for coords in places:
        if min(coords) < 0:
            continue
        target = random(shape)
        want = target.copy()
        inside = tuple(slice(c, max(min(c + b, n), c)) for c, b, n in zip(coords[::-1], box, shape, strict=True))
        want[inside] = source[tuple(slice(0, s.stop - s.start) for s in inside)]
        body = f"""{init(1)} {load((0,) * len(box), size)} mov.b64 %rd2, b;
        @%first {STORE.format(rank=len(box))} [%rd2, {coordinates(coords)}], [data];
        {COMMIT} @%first cp.async.bulk.wait_group 0;"""
        given = TensorMap(source, box=box), TensorMap(target, box=box)
        run(body, "map:a map:b", given, schedule=schedule, seed=seed)
        assert (target == want).all()


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_swizzles_exchange_granules_by_their_address(swizzle):
    """The address bits of row r decide the position of its 16-byte granule g."""
    mode = SWIZZLES[swizzle]
    width = (mode.span or 64) // 2
    array = random((16, width), np.uint16).view(ml_dtypes.bfloat16)
    size = array.nbytes
    out = np.zeros(size // 4, np.uint32)
    body = init(1) + load((0, 0), size) + dump(size)
    run(body, "map:a ptr:out", (TensorMap(array, box=(16, width), swizzle=swizzle), out))
    granules, found = array.view(np.uint8).reshape(-1, 16), out.view(np.uint8).reshape(-1, 16)
    mask = {"none": 0, "32B": 1, "64B": 3, "128B": 7}[swizzle]
    for g, granule in enumerate(granules):
        assert (found[g ^ (g >> 3 & mask)] == granule).all()


@pytest.mark.parametrize(("dtype", "group"), [("16u4_align16b", 8), ("16u6_align16b", 12)])
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_padding_is_not_counted_by_barriers(dtype, group, schedule):
    """Sixteen values take 8 or 12 bytes in global memory and 16 in shared memory; a barrier counts the former."""
    array = random((16, 8 * group), np.uint8)
    out = np.zeros(16 * 128 // 4, np.uint32)
    body = init(1) + load((0, 0), array.nbytes) + dump(out.nbytes)
    run(body, "map:a ptr:out", (TensorMap(array, box=(16, 128), dtype=dtype), out), schedule=schedule)
    found = out.view(np.uint8).reshape(16, 8, 16)[..., :group]
    assert (found == array.reshape(16, 8, group)).all()


def test_a_swizzled_load_and_store_undo_each_other_at_any_line():
    """Both use the absolute address, so a box in the middle of a pattern comes back whole."""
    array, copy = random((8, 64), np.uint16), np.zeros((8, 64), np.uint16)
    body = f"""{init(1)} mov.b64 %rd1, a; mov.b64 %rd2, b;
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 1024;
    @%first {LOAD.format(rank=2)} [data+384], [%rd1, {{0, 0}}], [bars]; {wait("W")}
    @%first {STORE.format(rank=2)} [%rd2, {{0, 0}}], [data+384]; {COMMIT} @%first cp.async.bulk.wait_group 0;"""
    maps = tuple(TensorMap(each, box=(8, 64), swizzle="128B") for each in (array, copy))
    run(body, "map:a map:b", maps)
    assert (array == copy).all()


def test_strides_and_nan_fill_come_from_the_map():
    whole = RNG.normal(size=(12, 40)).astype(np.float32)
    view = whole[1:10:2, 4:36]
    given = TensorMap(view, box=(4, 8), element_strides=(2, 1), fill="nan")
    out = np.zeros(32, np.float32)
    run(init(1) + load((28, 2), 64) + dump(64), "map:a ptr:out", (given, out))
    want = boxed(view, (2, 8), (28, 2), steps=(2, 1), fill=np.nan)
    np.testing.assert_array_equal(out[:16].reshape(2, 8), want)


REDUCTIONS = [
    ("add", np.uint32, lambda a, b: a + b),
    ("add", np.float32, lambda a, b: a + b),
    ("min", np.int32, np.minimum),
    ("max", np.uint64, np.maximum),
    ("xor", np.uint32, np.bitwise_xor),
    ("inc", np.uint32, lambda a, b: np.where(a >= b, 0, a + 1)),
]


@pytest.mark.parametrize(("name", "dtype", "combine"), REDUCTIONS)
@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_reductions_combine_with_the_destination(name, dtype, combine, schedule):
    source, target = (RNG.integers(0, 1 << 20, (4, 16)).astype(dtype) for _ in range(2))
    want = target.copy()
    want[1:, 4:] = combine(target[1:, 4:], source[:3, :12])
    body = f"""{init(1)} {load((0, 0), source.nbytes)} mov.b64 %rd2, b;
    @%first cp.reduce.async.bulk.tensor.2d.global.shared::cta.{name}.bulk_group [%rd2, {{4, 1}}], [data];
    {COMMIT} @%first cp.async.bulk.wait_group 0;"""
    given = TensorMap(source, box=(4, 16)), TensorMap(target, box=(4, 16))
    run(body, "map:a map:b", given, schedule=schedule, seed=5)
    assert (target == want).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("cluster", [2, 4])
def test_multicast_fills_every_cta_of_the_mask_and_counts_on_its_own_barrier(schedule, seed, cluster):
    """Each CTA loads one slice of the box and sends it to all; every CTA then has the whole."""
    array = random((4 * cluster, 32))
    out = np.zeros((cluster, 4 * cluster, 32), np.uint32)
    size = array.nbytes
    body = f"""{init(1)}
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {size};
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.b64 %rd1, a; shl.b32 %r1, %rank, 2; mov.u32 %r2, data; shl.b32 %r3, %rank, 9; add.u32 %r2, %r2, %r3;
    mov.u16 %h1, {(1 << cluster) - 1}; mov.u32 %r4, 0;
    @%first cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
       [%r2], [%rd1, {{%r4, %r1}}], [bars], %h1;
    {wait("W")}
    ld.param.u64 %rd5, [out]; mul.wide.u32 %rd6, %rank, {size}; add.u64 %rd5, %rd5, %rd6;
    @%first cp.async.bulk.global.shared::cta.bulk_group [%rd5], [data], {size}; {COMMIT}
    @%first cp.async.bulk.wait_group 0;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""
    given = TensorMap(array, box=(4, 32)), out
    moved = run(body, "map:a ptr:out", given, grid=cluster, cluster=cluster, schedule=schedule, seed=seed).bytes_moved
    assert (out == array).all()
    assert moved["global->shared"] == cluster * size


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_pair_of_ctas_signals_the_even_one(schedule, seed):
    """Both CTAs load their half; with bit 24 cleared both signal CTA 0, which alone waits."""
    array = random((8, 32))
    out = np.zeros(2, np.uint32)
    body = f"""{init(1)} mov.b64 %rd1, a; mov.u32 %r1, bars; and.b32 %r1, %r1, 0xFEFFFFFF; mov.u32 %r2, data;
    setp.eq.u32 %p1, %rank, 0; and.pred %p2, %p1, %first;
    @%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 1024;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    shl.b32 %r3, %rank, 2; mov.u32 %r4, 0; ld.param.u64 %rd5, [out];
    @%first cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes
       [%r2], [%rd1, {{%r4, %r3}}], [%r1];
    @!%p1 bra MEET;
    {wait("W")}
    ld.shared.u32 %r5, [data]; st.global.u32 [%rd5], %r5;
    mapa.shared::cluster.u32 %r6, %r2, 1; ld.shared::cluster.u32 %r7, [%r6]; st.global.u32 [%rd5+4], %r7;
    MEET: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""
    given = TensorMap(array, box=(4, 32)), out
    run(body, "map:a ptr:out", given, grid=2, cluster=2, target="sm_100a", schedule=schedule, seed=seed)
    assert out.tolist() == [array[0, 0], array[4, 0]]


def test_a_load_read_too_early_is_poison_under_lazy():
    array, out = random((1, 32)), np.zeros(32, np.uint32)
    body = init(1) + load((0, 0), 128).partition("LOADED:")[0] + dump(128) + wait("LATE")
    run(body, "map:a ptr:out", (TensorMap(array, box=(1, 32)), out), schedule="lazy")
    assert (out == 0xFFFFFFFF).all()
    run(body, "map:a ptr:out", (TensorMap(array, box=(1, 32)), out), schedule="eager")
    assert (out == array).all()


OVERWRITE = f"""{init(1)} {load((0, 0), 128)} mov.b64 %rd2, b;
    @%first {STORE.format(rank=2)} [%rd2, {{0, 0}}], [data]; {COMMIT}
    @%first cp.async.bulk.wait_group.read 0;
    bar.warp.sync -1; mov.u32 %r1, 7; mov.u32 %r2, data; shl.b32 %r3, %lane, 2; add.u32 %r2, %r2, %r3;
    st.shared.u32 [%r2], %r1; fence.proxy.async.shared::cta; bar.warp.sync -1;
    @%first cp.async.bulk.wait_group 0;"""


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_source_may_be_reused_when_it_has_been_read(schedule, seed):
    array, out = random((1, 32)), np.zeros((1, 32), np.uint32)
    given = TensorMap(array, box=(1, 32)), TensorMap(out, box=(1, 32))
    run(OVERWRITE, "map:a map:b", given, schedule=schedule, seed=seed)
    assert (out == array).all()


def test_a_source_reused_too_early_is_stored_wrong_under_lazy():
    array, out = random((1, 32)), np.zeros((1, 32), np.uint32)
    given = TensorMap(array, box=(1, 32)), TensorMap(out, box=(1, 32))
    body = OVERWRITE.replace("@%first cp.async.bulk.wait_group.read 0;", "")
    run(body, "map:a map:b", given, schedule="lazy")
    assert (out == 7).all()


FENCED = f"""mov.u32 %r2, data; shl.b32 %r3, %lane, 2; add.u32 %r2, %r2, %r3; mov.b64 %rd2, b;
    st.shared.u32 [%r2], %thread; fence.proxy.async.shared::cta; bar.sync 0;
    @%first {STORE.format(rank=2)} [%rd2, {{0, 0}}], [data]; {COMMIT} @%first cp.async.bulk.wait_group 0;"""


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_missing_proxy_fence_stores_stale_bytes(schedule, seed):
    out = np.zeros((1, 32), np.uint32)
    unfenced = FENCED.replace("fence.proxy.async.shared::cta;", "")
    run(unfenced, "map:b", (TensorMap(out, box=(1, 32)),), schedule=schedule, seed=seed)
    assert (out == (np.arange(32) if schedule == "eager" else 0xFFFFFFFF)).all()
    run(FENCED, "map:b", (TensorMap(out, box=(1, 32)),), schedule=schedule, seed=seed)
    assert (out == np.arange(32)).all()


FIELDS = """
 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [data], %rd3;
 tensormap.replace.tile.rank.shared::cta.b1024.b32 [data], 1;
 tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [data], 0, 16;
 tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [data], 1, %r5;
 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [data], 0, 24;
 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [data], 1, 10;
 tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [data], 0, 48;
 tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [data], 0, 1;
 tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [data], 1, 1;
 tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [data], 10;
 tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [data], 1;"""
BUILT = f"""{init(1)} ld.param.u64 %rd3, [src]; ld.param.u64 %rd4, [place]; mov.u32 %r5, 4;
    mov.u32 %r2, data; shl.b32 %r3, %lane, 2; add.u32 %r2, %r2, %r3; mov.u32 %r4, 0; st.shared.u32 [%r2], %r4;
    bar.warp.sync -1; @!%first bra BUILT; {FIELDS}
    BUILT: bar.warp.sync -1;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd4], [data], 128;
    COPY
    fence.proxy.tensormap::generic.acquire.gpu [%rd4], 128; cvta.global.u64 %rd1, %rd4;
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 128;
    @%first {LOAD.format(rank=2)} [data+1024], [%rd1, {{8, 7}}], [bars]; {wait("W")}
    ld.param.u64 %rd5, [out]; @%first cp.async.bulk.global.shared::cta.bulk_group [%rd5], [data+1024], 128;
    {COMMIT} @%first cp.async.bulk.wait_group 0;"""
BY_HAND = (
    """ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd9]; st.global.v4.u32 [%rd9+256], {%r10, %r11, %r12, %r13};"""
)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_map_built_by_the_kernel_works_after_its_bytes_are_copied(schedule, seed, by_hand):
    array = random((10, 24), np.uint16).view(ml_dtypes.bfloat16)
    out, place = np.zeros(64, np.uint16), np.zeros(512, np.uint8)
    copy = ""
    if by_hand:
        copy = f"""setp.lt.u32 %p3, %lane, 8; mul.wide.u32 %rd9, %lane, 16; add.u64 %rd9, %rd9, %rd4; @!%p3 bra COPIED;
        {BY_HAND} COPIED: bar.warp.sync -1; add.u64 %rd4, %rd4, 256;"""
    given = array, place, out
    run(BUILT.replace("COPY", copy), "ptr:src ptr:place ptr:out", given, schedule=schedule, seed=seed)
    want = boxed(array.view(np.uint16), (4, 16), (8, 7)).view(np.uint8).reshape(-1, 16)
    found = out.view(np.uint8).reshape(-1, 16)
    for g, granule in enumerate(want):
        assert (found[g ^ (g >> 3 & 1)] == granule).all()


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("global_dim.shared::cta.b1024.b32 [data], 1, 10", "global_dim.shared::cta.b1024.b32 [data], 1, 90",
         "OUT_OF_BOUNDS", ("The box at (8, 7)", "past the end of `argument 0, src`", "shape (90, 24)")),
        ("[data], 0, 48;", "[data], 0, 40;", "BAD_SHAPE", ("the value 40 is not 0 to", "a multiple of 16")),
        ("[data], 0, 16;", "[data], 0, 257;", "BAD_SHAPE", ("the value 257 is not 1 to 256",)),
        ("rank.shared::cta.b1024.b32 [data], 1;", "rank.shared::cta.b1024.b32 [data], 5;", "BAD_SHAPE", ("not 0 to 4",)),
        ("[data], 0, 16;", "[data], 0, 10;", "BAD_DESCRIPTOR", ("not a multiple of 16", "dims [24, 10]")),
    ],
)  # fmt: skip
def test_a_map_built_by_the_kernel_is_validated(old, new, code, words):
    array = random((10, 24), np.uint16).view(ml_dtypes.bfloat16)
    assert old in BUILT
    body = BUILT.replace("COPY", "").replace(old, new)
    error = fault(body, "ptr:src ptr:place ptr:out", (array, np.zeros(512, np.uint8), np.zeros(64, np.uint16)))
    assert error.code == code
    assert all(word in f"{error.what} {error.advice} {error.notes}" for word in words)


HARDWARE_TYPES = {
    "u8": 0, "u16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5, "f16": 6, "f32": 7, "f32_ftz": 8, "f64": 9, "bf16": 10,
    "tf32": 7 | 1 << 9, "tf32_ftz": 8 | 1 << 9, "16u4_align8b": 11, "16u4_align16b": 12, "16u6_align16b": 13,
}  # fmt: skip
HARDWARE_SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3, "128B_32B_atom": 3 | 1 << 6, "128B_64B_atom": 3 | 3 << 6}


def ragged(array, box):
    """A map whose boxes end with a part of the array: coordinates (0, row - rows, part's end, 2^30), as Triton's ragged
    descriptors have them. Addresses wrap around.
    """
    (rows, columns), item = array.shape, array.itemsize
    assert rows < 1 << 30
    far = 1 << 30
    strides = ((1 << 34) - columns) * item, columns * item, columns * item, item
    return TensorMap(array, box=(1, 1, *box), shape=(far + 1, 1 << 31, far, columns), strides=strides, beyond=True)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
@pytest.mark.parametrize("row", [0, 3, 5])
def test_addresses_of_boxes_wrap_around(row, schedule, seed):
    """A box of 4 rows from `row` on of the part of 7 rows that begins at row 2 is cut where the part ends."""
    source, target, box = random((11, 8)), random((11, 8)), (4, 8)
    want = target.copy()
    kept = min(7 - row, 4)
    want[2 + row : 2 + row + kept] = source[2 + row : 2 + row + kept]
    coords = coordinates((0, (1 << 30) - 7 + row, 2 + 7, 1 << 30))
    body = f"""{init(1)} {load((0, (1 << 30) - 7 + row, 2 + 7, 1 << 30), 128)} mov.b64 %rd2, b;
    @%first {STORE.format(rank=4)} [%rd2, {coords}], [data]; {COMMIT} @%first cp.async.bulk.wait_group 0;"""
    run(body, "map:a map:b", (ragged(source, box), ragged(target, box)), schedule=schedule, seed=seed)
    assert (target == want).all()


@pytest.mark.parametrize(
    ("place", "words"),
    [((0, (1 << 30) - 2, 1, 1 << 30), "is 32 bytes before"), ((0, (1 << 30) - 4, 12, 1 << 30), "the first byte after")],
)
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_boxes_outside_the_array_are_faults(place, words, schedule):
    array = random((11, 8))
    error = fault(init(1) + load(place, 128), "map:a", (ragged(array, (4, 8)),), schedule=schedule)
    assert error.code == "OUT_OF_BOUNDS"
    assert words in error.what + "".join(error.notes)


def test_maps_have_the_bits_of_the_hardware():
    """Against the words that ptxas writes for `tensormap.replace`, packed here by hand."""
    memory = np.zeros(1 << 20, np.uint8)
    for name, swizzle in [(name, "none") for name in HARDWARE_TYPES] + [("u8", name) for name in HARDWARE_SWIZZLES]:
        rank = int(RNG.integers(1, 6))
        shape = (*RNG.integers(1, 4, rank - 1).tolist(), 128)
        steps = (*RNG.integers(1, 9, rank - 1).tolist(), 1)
        row = 16 if swizzle == "32B" else 32
        box = (*RNG.integers(1, 9, rank - 1).tolist(), 128 if name.endswith("16b") else row)
        element = MAP_TYPES[name]
        strides = [int(1024 * RNG.integers(1, 9)) for _ in range(rank - 1)] + [element.global_bytes // element.group]
        given = TensorMap(
            memory, shape=shape, strides=strides, box=box, element_strides=steps, dtype=name, swizzle=swizzle, offset=64
        )
        loaded = [-(-extent // step) for extent, step in zip(box, steps, strict=True)]
        held = [(count - 1) * step for count, step in zip(loaded, steps, strict=True)]
        word = rank - 1 << 4 | HARDWARE_TYPES[name] << 7 | HARDWARE_SWIZZLES[swizzle] << 13
        want = struct.pack("<QI", 0x7F0000001040, word)
        want += struct.pack("<5I", *[stride >> 4 for stride in strides[-2::-1]], *[0] * (6 - rank))
        want += struct.pack("<5I", *[extent - 1 for extent in shape[::-1]], *[0] * (5 - rank))
        packed = sum(step - 1 << 3 * at for at, step in enumerate(steps[::-1]))
        want += struct.pack("<I", packed | held[-1] << 24) + bytes([*held[-2::-1], *[0] * (5 - rank)])
        assert encode(given, 0x7F0000001000) == want.ljust(128, b"\0"), (name, swizzle)


def test_a_map_may_be_passed_by_pointer():
    array, out = random((4, 32)), np.zeros((4, 32), np.uint32)
    body = init(1) + load((0, 0), 512).replace("mov.b64 %rd1, a;", "ld.param.u64 %rd1, [a];") + dump(512)
    run(body, "ptr:a ptr:out", (TensorMap(array, box=(4, 32)), out))
    assert (out == array).all()


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_gather4_and_scatter4_move_four_rows(schedule):
    array, out = random((20, 32)), np.zeros((20, 32), np.uint32)
    body = f"""{init(1)} mov.b64 %rd1, a; mov.b64 %rd2, b; mov.u32 %r1, -1;
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 512;
    @%first cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
       [data], [%rd1, {{0, 3, 17, %r1, 8}}], [bars]; {wait("W")}
    @%first cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%rd2, {{0, 1, 2, 19, 5}}], [data];
    {COMMIT} @%first cp.async.bulk.wait_group 0;"""
    maps = tuple(TensorMap(each, box=(1, 32), swizzle="128B") for each in (array, out))
    run(body, "map:a map:b", maps, target="sm_100a", schedule=schedule)
    want = np.zeros_like(out)
    want[1], want[2], want[5] = array[3], array[17], array[8]
    assert (out == want).all()


FAULTS = {
    "rank": (("tensor.2d", "tensor.3d", "{0, 0}", "{0, 0, 0}"), "BAD_COORDINATES", "the map's tensor has rank 2"),
    "coordinates": (("{0, 0}", "{0, 0, 0}"), "BAD_COORDINATES", "there are 3 of them"),
    "alignment": (("[data],", "[data+64],"), "MISALIGNED", "128 bytes"),
    "bounds": (("[data],", "[data+3968],"), "OUT_OF_BOUNDS", "shared memory"),
    "no map": (("mov.b64 %rd1, a;", "mov.b64 %rd1, 65536;"), "OUT_OF_BOUNDS", "tensor map"),
    "barrier": (("[bars]; LOADED", "[bars+8]; LOADED"), "BARRIER_NOT_INITIALISED", "its barriers are bars"),
    "expected too little": (
        ("[bars], 512;", "[bars], 256;"),
        "DEADLOCK",
        "all arrivals are in, 256 bytes more than announced",
    ),
    "expected too much": (("[bars], 512;", "[bars], 768;"), "DEADLOCK", "all arrivals are in, 256 bytes missing"),
    "peer's barrier": (("[bars]; LOADED", "[bars+16777216]; LOADED"), "ASYNC_MISUSE", "without .cta_group::2"),
}


@pytest.mark.parametrize(("changes", "code", "words"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_illegal_loads_are_faults(changes, code, words, schedule):
    body = init(1) + load((0, 0), 512)
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in body
        body = body.replace(old, new)
    error = fault(body, "map:a", (TensorMap(random((4, 32)), box=(4, 32)),), schedule=schedule)
    assert error.code == code
    assert words in str(error)
    assert error.loc is not None


def test_bytes_that_are_not_a_map_are_reported():
    body = init(1) + load((0, 0), 512).replace("mov.b64 %rd1, a;", "ld.param.u64 %rd1, [a];")
    error = fault(body, "ptr:a", (np.zeros(128, np.uint8),))
    assert error.code == "BAD_DESCRIPTOR"
    assert "there is no tensor map" in error.what


def test_a_mask_may_not_name_an_absent_cta():
    opcode = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    body = (
        init(1) + "mov.u16 %h1, 3;" + load((0, 0), 512, opcode=opcode).replace("[bars]; LOADED", "[bars], %h1; LOADED")
    )
    error = fault(body, "map:a", (TensorMap(random((4, 32)), box=(4, 32)),))
    assert error.code == "ASYNC_MISUSE"
    assert "0x0003 names CTAs that a cluster of 1 does not have" in error.what


def test_a_store_to_a_read_only_array_is_refused():
    array = random((4, 32))
    array.flags.writeable = False
    body = f"mov.b64 %rd1, a; @%first {STORE.format(rank=2)} [%rd1, {{0, 0}}], [data];"
    assert fault(body, "map:a", (TensorMap(array, box=(4, 32)),)).code == "READ_ONLY"


def test_a_cta_must_not_exit_with_loads_in_flight():
    body = init(1) + load((0, 0), 512).partition("LOADED:")[0]
    given = (TensorMap(random((4, 32)), box=(4, 32)),)
    run(body, "map:a", given, schedule="eager")
    error = fault(body, "map:a", given, schedule="lazy")
    assert error.code == "CTA_EXITED"
    assert "load writes shared memory" in error.what
    assert error.loc is not None


STORES = {
    "bulk": "ld.param.u64 %rd2, [out]; mad.wide.u32 %rd2, %r1, 128, %rd2; "
    "@%first cp.async.bulk.global.shared::cta.bulk_group [%rd2], [data], 128;",
    "tensor": f"mov.b64 %rd2, b; @%first {STORE.format(rank=2)} [%rd2, {{0, %r1}}], [data];",
}


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("kind", STORES)
def test_a_cta_may_exit_with_stores_in_flight(kind, schedule, seed):
    """They still read its memory while the next CTAs start."""
    body = f"""mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 100, %lane; shl.b32 %r3, %lane, 2; mov.u32 %r4, data;
    add.u32 %r4, %r4, %r3; st.shared.u32 [%r4], %r2; fence.proxy.async.shared::cta; bar.warp.sync -1;
    {STORES[kind]} {COMMIT}"""
    out = np.zeros((40, 32), np.uint32)
    given = (TensorMap(out, box=(1, 32)), out)
    run(body, "map:b ptr:out", given, grid=40, sms=1, data=100_000, schedule=schedule, seed=seed)
    assert (out == 100 * np.arange(40)[:, None] + np.arange(32)).all()


def test_prefetches_and_hints_change_nothing():
    array, out = random((4, 32)), np.zeros((4, 32), np.uint32)
    hinted = LOAD + ".L2::cache_hint"
    body = f"""{init(1)} mov.b64 %rd1, a; mov.b64 %rd8, 0; prefetch.tensormap [%rd1];
    @%first cp.async.bulk.prefetch.tensor.2d.L2.global [%rd1, {{0, 0}}];
    {load((0, 0), 512, opcode=hinted).replace("[bars]; LOADED", "[bars], %rd8; LOADED")} {dump(512)}"""
    run(body, "map:a ptr:out", (TensorMap(array, box=(4, 32)), out))
    assert (out == array).all()


def test_observers_receive_completions():
    seen = []

    class Watcher:
        def on_event(self, event):
            seen.append(event)

    array, out = random((4, 32)), np.zeros((4, 32), np.uint32)
    ptx = text(init(1) + load((0, 0), 512) + dump(512), "map:a ptr:out")
    given = [TensorMap(array, box=(4, 32)), out]
    launch(ptx, grid=(1, 1, 1), block=(32, 1, 1), args=given, schedule="lazy", observers=[Watcher()])
    done = [event for event in seen if event.kind == "complete"]
    assert [event.verb for event in done] == ["operation", "phase"]
    assert done[0].bytes == 512 + 512 + 8
