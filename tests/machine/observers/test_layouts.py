"""The layout of a tile, the map of a copy, the bytes of a fence, and the registers of a warp, as events have them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.asynchronous import init, run, wait
from tests.machine.observers.test_events import Watch

from warploom import TensorMap, launch
from warploom.hardware.matrix_descriptors import decode_shared_descriptor, encode_shared_descriptor
from warploom.machine.copy.tensor_map_bytes import encode
from warploom.machine.memory.byte_memory import GlobalMemory
from warploom.machine.observers.layouts import Layout, layout_of_map, layout_of_operand

LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [data], [%rd1, {0, 0}], [bars];"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {0, 0}], [data]; cp.async.bulk.commit_group;"


@pytest.mark.parametrize(
    ("shape", "box", "contiguous"),
    [
        ((16, 64), (8, 64), 8 * 64 * 2),
        ((16, 128), (8, 64), 64 * 2),
        ((4, 8, 64), (2, 8, 64), 2 * 8 * 64 * 2),
        ((4, 16, 64), (2, 8, 64), 8 * 64 * 2),
        ((4, 16, 64), (2, 1, 64), 64 * 2),
        ((4, 1, 64), (2, 1, 64), 2 * 64 * 2),
        ((16, 64), (8, 32), 32 * 2),
    ],
)
def test_bytes_of_a_box_that_follow_each_other_in_global_memory(shape, box, contiguous):
    found = layout_of_map(TensorMap(np.zeros(shape, np.float16), box=box).geometry)
    assert found == Layout("none", "f16", 16, contiguous=contiguous)
    offsets = np.arange(np.prod(shape)).reshape(shape)[tuple(slice(0, extent) for extent in box)].reshape(-1)
    run_ = np.flatnonzero(np.diff(offsets) != 1)
    assert contiguous == 2 * (len(offsets) if not len(run_) else run_[0] + 1)


def test_types_with_padding_use_a_part_of_each_granule():
    for name, used in (("16u4_align16b", 8), ("16u6_align16b", 12), ("16u4_align8b", 16), ("u8", 16)):
        tensor = TensorMap(np.zeros(1 << 14, np.uint8), dtype=name, shape=(8, 128), box=(8, 128))
        assert layout_of_map(tensor.geometry).used == used
    descriptor = decode_shared_descriptor(encode_shared_descriptor("sm_100", 0, 0, 1024, "128B", 3), "sm_100")
    assert layout_of_operand(descriptor, "e2m1") == Layout("128B", "e2m1", 8, 3)
    assert layout_of_operand(descriptor, "e2m1_packed").used == 16
    assert layout_of_operand(descriptor) == Layout("128B", "", 16, 3)


def issues(body: str, params: str, args: tuple, schedule: str) -> list:
    watch = Watch()
    run(body, params, args, observers=[watch], schedule=schedule)
    return [event for event in watch.events if event.kind == "issue" and event.verb == "operation"]


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("is_global", [False, True])
def test_a_copy_says_its_layout_and_the_map_that_it_reads(schedule, is_global):
    array = np.zeros((16, 16), np.uint32)
    tensor = TensorMap(array, box=(8, 16), swizzle="64B")
    held = np.frombuffer(encode(tensor, GlobalMemory().map_array(array, "first")), np.uint8).copy()
    where = "ld.param.u64 %rd1, [place];" if is_global else "mov.b64 %rd1, a;"
    body = f"""{init(1)} {where} @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 512; @%first {LOAD}
    {wait("W")} @%first {STORE} @%first cp.async.bulk.wait_group 0;"""
    load, *stores = issues(body, "map:a ptr:place", (tensor, held), schedule)
    layout = layout_of_map(tensor.geometry)
    assert [touch.layout for touch in load.touches if touch.space == "shared" and touch.verb == "writes"] == [layout]
    assert [touch.layout for touch in stores[0].touches if touch.space == "shared"] == [layout]
    for event, count in ((load, is_global), (stores[0], is_global), *((each, False) for each in stores[1:])):
        maps = [touch for touch in event.touches if touch.proxy == "tensormap"]
        assert [(touch.verb, touch.space, touch.width) for touch in maps] == [("reads", "global", 128)] * count


def test_fences_of_maps_name_their_bytes():
    body = """ld.param.u64 %rd1, [place]; fence.proxy.tensormap::generic.release.cluster;
    fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128; mov.u32 %r1, data;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.sys.sync.aligned [%rd1], [data], 128;"""
    watch = Watch()
    run(body, "ptr:place", (np.zeros(128, np.uint8),), observers=[watch])
    fences = [event for event in watch.events if event.kind == "fence"]
    assert [(each.verb, each.proxy, each.semantics, each.scope) for each in fences] == [
        ("fences", "tensormap", "release", "cluster"),
        ("fences", "tensormap", "acquire", "gpu"),
        ("fences", "tensormap", "release", "sys"),
    ]
    place = GlobalMemory().map_array(np.zeros(128, np.uint8), "first")
    assert [[(touch.space, *set(touch.addresses.tolist()), touch.width) for touch in each.touches] for each in fences] == [
        [], [("global", place, 128)], [("global", place, 128)],
    ]  # fmt: skip


def test_each_warp_says_its_registers_before_and_after():
    text = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k()
.reqntid 256
.maxnreg 128
{
    .reg .b32 %r<4>;
    .reg .pred %p;
    mov.u32 %r1, %tid.x; setp.lt.u32 %p, %r1, 128; @%p bra less;
    setmaxnreg.inc.sync.aligned.u32 168;
    ret;
less:
    setmaxnreg.dec.sync.aligned.u32 40;
    ret;
}
"""
    watch = Watch()
    launch(text, grid=1, block=256, args=[], observers=[watch])
    changes = [event for event in watch.events if event.space == "register"]
    found = sorted((each.kind, each.agent.warp, each.lanes, each.leave, each.count) for each in changes)
    every = (1 << 32) - 1
    given = [("alloc", warp, every, 128, 168) for warp in range(4, 8)]
    assert found == given + [("free", warp, every, 128, 40) for warp in range(4)]
