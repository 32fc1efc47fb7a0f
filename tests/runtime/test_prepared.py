"""Launches on a GPU as the driver sees them: parameters, maps, shapes, and what a prepared call keeps."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.fake_driver import NO_CONTEXT, FakeLibrary, FakeTensor

from warploom import Launch, TensorMap, launch
from warploom.diagnostics import WarploomError
from warploom.host.arrays import scratch
from warploom.runtime import assemble
from warploom.runtime.gpu import launching as shaped
from warploom.runtime.gpu import loading
from warploom.runtime.gpu import workspace as scratch_memory
from warploom.runtime.gpu.driver import device, driver
from warploom.runtime.gpu.loading import load, resident_clusters
from warploom.runtime.gpu.prepared import Prepared, exchanged
from warploom.runtime.gpu.tensor_map_encoding import _TEMPLATES, template_of
from warploom.runtime.toolchain.tools import Tool, find
from warploom.trace import Array, f32, kernel, s32, thread, u8, when

SIZES = (128, 8, 4, 4, 1)
STREAM = 0x5000


@kernel(target="sm_90a")
def sample(a: TensorMap, x: Array[f32], n: s32, factor: f32, flag: u8):
    with when(thread().to(s32) < n):
        x[thread()] = x[thread()] * factor + flag.to("f32")


def bound(a, x, **options):
    a_map = TensorMap(a, box=(8, 64), swizzle="128B")
    return sample.bind(a_map, x, 7, 0.5, 3, grid=(4, 2, 1), block=(64, 1, 1), **options)


@pytest.fixture
def gpu(install, monkeypatch, tmp_path):
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(scratch_memory, "_shared", {})
    _TEMPLATES.clear()
    return install(FakeLibrary(sizes=SIZES))


def expected_map(address, swizzle=3):
    raw = struct.pack("<6B8Q", 9, 2, 0, swizzle, 0, 0, address, 64, 16, 128, 64, 8, 1, 1)
    return raw.ljust(128, b"\0")[:128]


def arrays(at=0x10000):
    return FakeTensor(at, (16, 64)), FakeTensor(at + 0x8000, (64,), "float32")


def test_a_launch_reaches_the_driver(gpu):
    a, x = arrays()
    launch(bound(a, x, cluster=(2, 1, 1)), stream=STREAM)
    (done,) = gpu.launched
    assert (done.grid, done.block, done.stream, done.function) == ((4, 2, 1), (64, 1, 1), STREAM, 0xF00)
    assert done.attributes[4][:3] == (2, 1, 1)
    assert done.parameters == [
        expected_map(0x10000),
        struct.pack("<Q", 0x18000),
        struct.pack("<i", 7),
        struct.pack("<f", 0.5),
        b"\3",
    ]
    assert gpu.images[0][:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("dtype", "code", "swizzle", "by", "values"),
    [
        ("16u4_align8b", 13, "128B", 3, 256),
        ("16u6_align16b", 15, "128B", 3, 128),
        ("tf32", 11, "128B_32B_atom", 4, 32),
    ],
)
def test_maps_that_only_blackwell_has_count_values_and_bytes(gpu, dtype, code, swizzle, by, values):
    row = {"16u4_align8b": 128, "16u6_align16b": 96, "tf32": 128}[dtype]
    array = FakeTensor(0x10000, (16, 32), "float32") if dtype == "tf32" else FakeTensor(0x10000, (16, row), "uint8")
    encoded = template_of(TensorMap(array, box=(8, values), swizzle=swizzle, dtype=dtype)).at(driver(), 0x10000)
    fields = (code, 2, 0, by, 0, 0, 0x10000, values, 16, row, values, 8, 1, 1)
    assert encoded == struct.pack("<6B8Q", *fields).ljust(128, b"\0")


def test_without_a_cluster_there_is_no_attribute(gpu):
    launch(bound(*arrays()))
    assert gpu.launched[0].attributes == {}


def test_a_dependent_launch_sets_its_attribute(gpu):
    plain = bound(*arrays())
    launch(
        Launch(plain.program, plain.grid, plain.block, plain.args, plain.entry, shared_bytes=512, dependent=True),
    )
    assert gpu.launched[0].attributes[6][0] == 1
    assert gpu.launched[0].shared_bytes == 512
    assert (8, 512) in gpu.function_attributes


def test_large_clusters_are_allowed_first(gpu):
    a, x = arrays()
    launched = bound(a, x, cluster=(4, 1, 1))
    launch(launched)
    assert (14, 1) not in gpu.function_attributes
    sixteen = sample.bind(*launched.args, grid=(16, 1, 1), block=(64, 1, 1), cluster=(16, 1, 1))
    launch(sixteen)
    assert (14, 1) in gpu.function_attributes


def test_a_prepared_call_exchanges_its_arrays(gpu):
    a, x = arrays()
    prepared = Prepared(bound(a, x), (a, x))
    for at in (0x10000, 0x40000, 0x10000, 0x40000):
        prepared(*arrays(at), stream=STREAM)
    assert [each.parameters[0] for each in gpu.launched] == [expected_map(at) for at in (0x10000, 0x40000) * 2]
    assert [each.parameters[1] for each in gpu.launched] == [struct.pack("<Q", at) for at in (0x18000, 0x48000) * 2]
    assert gpu.calls.count("cuTensorMapEncodeTiled") == 2, "maps are kept by address"
    assert len(prepared._records[STREAM]) == 2
    prepared(*arrays(), stream=9)
    assert gpu.launched[-1].stream == 9
    assert gpu.calls.count("cuTensorMapEncodeTiled") == 2


def test_numpy_arrays_can_describe_gpu_arrays(gpu):
    host = np.zeros(40 * 64, np.uint8)
    a = np.frombuffer(bytearray(4096), "uint16")[: 16 * 64].reshape(16, 64)
    a_map = TensorMap(a[8:], box=(8, 64), swizzle="128B", dtype="bf16")
    x = host[: 64 * 4].view(np.float32)
    made = sample.bind(a_map, x, 7, 0.5, 3, grid=(1, 1, 1), block=(64, 1, 1))
    prepared = Prepared(made, (a, x), device=device(0))
    given = FakeTensor(0x7000_0000, (16, 64), "float16"), FakeTensor(0x8000_0000, (64,), "float32")
    prepared.launch_at(tuple(each.data_ptr() for each in given), 0)
    (done,) = gpu.launched
    address, columns, rows = struct.unpack("<3Q", done.parameters[0][6:30])
    assert (address, columns, rows) == (0x7000_0000 + 8 * 64 * 2, 64, 8)
    assert done.parameters[1] == struct.pack("<Q", 0x8000_0000)


def test_an_array_that_is_not_exchanged_stays(gpu):
    a, x = arrays()
    prepared = Prepared(bound(a, x), (a,))
    prepared(FakeTensor(0x90000, (16, 64)))
    assert gpu.launched[0].parameters[1] == struct.pack("<Q", 0x18000)
    assert prepared._held == [x]


def test_all_mismatches_are_reported_at_once(gpu):
    a, x = arrays()
    prepared = Prepared(bound(a, x), (a, x))
    wrong = FakeTensor(0x10000, (16, 32)), FakeTensor(0x10000, (64,), "uint8", "cuda:1")
    with pytest.raises(WarploomError) as caught:
        prepared(*wrong)
    assert caught.value.code == "BAD_PLAN"
    text = str(caught.value)
    for words in (
        "array 0: its shape (16, 32) should be (16, 64)",
        "array 0: its strides",
        "array 1: its dtype uint8 should be float32",
        "array 1: it is on cuda:1, not on cuda:0",
    ):
        assert words in text
    with pytest.raises(WarploomError, match="1 arrays were given, it takes 2"):
        prepared(a)
    assert gpu.launched == []
    prepared(a, x)
    for bad in (wrong[0], x), (a, wrong[1]):
        with pytest.raises(WarploomError, match="should be"):
            prepared(*bad)


def test_a_misaligned_array_is_refused(gpu):
    a, x = arrays()
    prepared = Prepared(bound(a, x), (a, x))
    with pytest.raises(WarploomError, match="array 1: its address 0x18004 is not aligned"):
        prepared(a, FakeTensor(0x18004, (64,), "float32"))


def test_one_array_for_two_places_is_refused_where_it_is_ambiguous(gpu):
    whole = FakeTensor(0x10000, (16, 64))
    part = FakeTensor(0x10000, (8, 64))
    x = FakeTensor(0x80000, (64,), "float32")
    launched = bound(FakeTensor(0x10000, (16, 64)), x)
    with pytest.raises(WarploomError, match="part of 2 of the arrays"):
        Prepared(launched, (whole, part, x))


def test_a_host_array_that_is_not_exchanged_is_rejected(gpu):
    a, x = np.zeros((16, 64), np.float16), np.zeros(64, np.float32)
    with pytest.raises(WarploomError, match="it lies on the host"):
        Prepared(bound(a, x), (a,), device=device(0))


def test_a_thread_without_a_context_gets_one(gpu):
    gpu.launch_statuses = [NO_CONTEXT]
    launched = bound(*arrays())
    load(launched.program, launched.entry, device(0))
    gpu.current = None
    launch(launched)
    assert gpu.current == device(0).context.value
    assert len(gpu.launched) == 1


def test_a_lost_gpu_is_reported(gpu):
    gpu.launch_statuses = [700]
    with pytest.raises(WarploomError) as caught:
        launch(bound(*arrays()))
    assert caught.value.code == "GPU_FAULT"


def test_several_gpus_keep_their_contexts(install, monkeypatch, tmp_path):
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path))
    library = install(FakeLibrary(sizes=SIZES, count=2))
    library.current = device(0).context.value
    a = FakeTensor(0x10000, (16, 64), device="cuda:1")
    x = FakeTensor(0x20000, (64,), "float32", device="cuda:1")
    launch(bound(a, x))
    assert library.current == device(0).context.value
    with pytest.raises(WarploomError, match="these are on cuda:0, cuda:1"):
        launch(bound(a, FakeTensor(0x20000, (64,), "float32")))


def test_a_kernel_that_spills_is_loaded_with_a_warning_once(gpu, monkeypatch):
    def spilling(*given, **options):
        made = assemble(*given, **options)
        return replace(made, kernels=tuple(replace(row, spill_stores=12) for row in made.kernels))

    monkeypatch.setattr(loading, "assemble", spilling)
    with pytest.warns(RuntimeWarning, match=r"slower than it could: `sample` spills .* 12 bytes stored"):
        launch(bound(*arrays()))
    launch(bound(*arrays()))  # warnings are errors in tests


def test_the_driver_assembles_where_ptxas_is_too_new(install, monkeypatch):
    library = install(FakeLibrary(version=12080, sizes=SIZES))
    launch(bound(*arrays()))
    assert b".visible .entry sample" in library.images[0]
    monkeypatch.setattr(loading, "_LOADED", {})
    monkeypatch.setattr(shaped, "_SHAPES", {})
    library.load_status = 218
    with pytest.raises(WarploomError) as caught:
        launch(bound(*arrays()))
    assert caught.value.code == "NOT_ASSEMBLED"
    assert "ptxas error : bad" in str(caught.value)


def test_the_driver_assembles_where_ptxas_is_too_old(gpu, monkeypatch):
    monkeypatch.setattr(loading, "find", lambda name: Tool(name, Path(name), "PATH", "11.8.89"))
    launch(bound(*arrays()))
    assert b".visible .entry sample" in gpu.images[0]


def test_the_driver_assembles_where_there_is_no_ptxas(gpu, monkeypatch):
    def missing(name):
        monkeypatch.setenv("WARPLOOM_PTXAS", "no-such-program")
        return find(name)

    monkeypatch.setattr(loading, "find", missing)
    prepared = Prepared(bound(*arrays()))
    assert b".visible .entry sample" in gpu.images[0]
    assert prepared.loaded.assembler == "the driver (CUDA 13.0)"


@pytest.mark.parametrize(
    ("target", "capability", "fits"),
    [
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("sm_100a", (9, 0), False),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("sm_100f", (9, 0), False),
        ("sm_80", (9, 0), True),
        ("sm_100", (9, 0), False),
        ("sm_90", (10, 0), True),
    ],
)
def test_a_kernel_is_for_some_gpus(install, target, capability, fits):
    install(FakeLibrary(capability=capability))
    if fits:
        loading._check_target(target, device(0))
        return
    with pytest.raises(WarploomError, match=f"the kernel is for {target}"):
        loading._check_target(target, device(0))


def test_resident_clusters_of_a_gpu(gpu):
    a, x = arrays()
    assert resident_clusters(bound(a, x), device(0)) == 264
    assert resident_clusters(bound(a, x, cluster=(4, 1, 1)), device(0)) == 33


def test_host_and_gpu_arrays_do_not_mix(gpu):
    a, x = arrays()
    with pytest.raises(WarploomError) as caught:
        launch(bound(a, np.zeros(64, np.float32)))
    assert "some arrays are on the host and some on a GPU" in str(caught.value)
    assert "argument 1 is on cpu" in str(caught.value)
    with pytest.raises(WarploomError) as caught:
        launch(bound(a, x), schedule="lazy", observers=[print], limit=5)
    for name in ("schedule", "observers", "limit"):
        assert f"`{name}` is for the emulator" in str(caught.value)
    host = np.zeros((16, 64), np.float16), np.zeros(64, np.float32)
    with pytest.raises(WarploomError, match="`stream` is for a GPU"):
        launch(bound(*host), stream=3)


def test_a_launch_beyond_the_hardware_is_refused(gpu):
    a, x = arrays()
    good = bound(a, x)
    with pytest.raises(WarploomError, match="the kernel requires"):
        launch(Launch(good.program, good.grid, (32, 1, 1), good.args))
    with pytest.raises(WarploomError) as caught:
        launch(Launch(good.program, good.grid, good.block, good.args, shared_bytes=300000))
    assert caught.value.code == "TOO_MUCH_SHARED"
    with pytest.raises(WarploomError, match="takes 5 arguments; 1 were given"):
        launch(Launch(good.program, good.grid, good.block, good.args[:1]))
    assert gpu.launched == []


@kernel(target="sm_90a")
def with_scratch(x: Array[f32], sums: Array[f32], counter: Array[s32], more: Array[f32]):
    x[thread()] = sums[thread()] + more[thread()] + counter[0].to("f32")


def test_workspaces_are_allocated_on_the_gpu_per_stream(gpu):
    gpu.sizes = (8, 8, 8, 8)
    x = FakeTensor(0x10000, (32,), "float32")
    own = scratch((32,), np.float32), scratch((4,), np.int32, starts_at_zero=True), scratch((32,), np.float32)
    prepared = Prepared(with_scratch.bind(x, *own, grid=(1, 1, 1), block=(32, 1, 1)), (x,))
    for stream in (1, 1, 2):
        prepared(x, stream=stream)
    first, again, other = ([int.from_bytes(raw, "little") for raw in each.parameters] for each in gpu.launched)
    assert first == again
    assert first[0] == other[0] == 0x10000
    assert first[3] - first[1] == 256, "one workspace for both"
    assert not set(first[1:]) & set(other[1:]), "streams share nothing"
    assert sorted(gpu.memory.values()) == [256, 256, 512, 512]
    assert gpu.zeroed == {first[2]: 256, other[2]: 256}
    second = Prepared(with_scratch.bind(x, *own, grid=(1, 1, 1), block=(32, 1, 1)), (x,))
    second(x, stream=1)
    last = [int.from_bytes(raw, "little") for raw in gpu.launched[-1].parameters]
    assert last[1] == first[1], "launches of a stream share the workspace"
    assert last[2] != first[2], "and not what must keep its contents"


def test_workspaces_of_idle_streams_are_released(gpu):
    gpu.sizes = (8, 8, 8, 8)
    x = FakeTensor(0x1000, (1000,), "float32")
    own = scratch((32,), np.float32), scratch((4,), np.int32, starts_at_zero=True), scratch((32,), np.float32)
    calls = [Prepared(with_scratch.bind(x, *own, grid=(1, 1, 1), block=(32, 1, 1)), (x,)) for _ in range(2)]
    for stream in range(1, 33):
        for call in calls:
            call(x, stream=stream)
    most = scratch_memory._MOST_STREAMS
    assert len(scratch_memory._shared) == most
    held = len(gpu.memory) - len(gpu.freed)
    assert held == most * (1 + len(calls)), "a workspace per stream, and zeroed memory for each call"
    gpu.launched.clear()
    for call in calls:
        call(x, stream=1)
    addresses = [launched.parameters for launched in gpu.launched]
    assert addresses[0][1] == addresses[1][1], "a stream that lost its workspace gets another, for all of its launches"
    assert int.from_bytes(addresses[0][1], "little") not in gpu.freed


def test_a_larger_workspace_replaces_the_one_of_its_stream(gpu):
    gpu.sizes = (8, 8, 8, 8)
    x = FakeTensor(0x1000, (1000,), "float32")

    def prepared(count):
        own = scratch((count,), np.float32), scratch((4,), np.int32, starts_at_zero=True), scratch((32,), np.float32)
        return Prepared(with_scratch.bind(x, *own, grid=(1, 1, 1), block=(32, 1, 1)), (x,))

    small, large = prepared(32), prepared(3200)
    small(x, stream=1)
    large(x, stream=1)
    small(x, stream=1)
    (workspace,) = scratch_memory._shared.values()
    assert int.from_bytes(gpu.launched[-1].parameters[1], "little") == workspace.address
    sizes = [size for address, size in gpu.memory.items() if address not in gpu.freed]
    assert sizes.count(workspace.size) == 1
    assert sorted(sizes)[-2] < 1000, "the smaller workspace is freed"


def test_workspaces_of_a_graph_are_separate_and_kept(gpu):
    gpu.sizes = (8, 8, 8, 8)
    x = FakeTensor(0x10000, (32,), "float32")
    own = scratch((32,), np.float32), scratch((4,), np.int32, starts_at_zero=True), scratch((32,), np.float32)
    prepared = Prepared(with_scratch.bind(x, *own, grid=(1, 1, 1), block=(32, 1, 1)), (x,))
    prepared(x, stream=1)
    gpu.captured = {1}
    prepared(x, stream=1)
    prepared(x, stream=2)
    gpu.captured = set()
    prepared(x, stream=1)
    before, graph, beside, after = (
        [int.from_bytes(raw, "little") for raw in each.parameters[1:]] for each in gpu.launched
    )
    assert before == after
    assert not set(graph) & {*before, *beside}
    assert not {graph[0], graph[1]} & set(gpu.freed), "the graph runs later"


def test_zeroed_memory_is_cleared_once_for_all_launches_of_a_graph(gpu):
    gpu.sizes = (8, 8, 8, 8)
    x = FakeTensor(0x10000, (32,), "float32")
    own = scratch((32,), np.float32), scratch((4,), np.int32, starts_at_zero=True), scratch((32,), np.float32)
    prepared = Prepared(with_scratch.bind(x, *own, grid=(1, 1, 1), block=(32, 1, 1)), (x,))
    gpu.captured = {1}
    for graph in (7, 7, 8):
        gpu.graph = graph
        prepared(x, stream=1)
    first, second, third = (int.from_bytes(each.parameters[2], "little") for each in gpu.launched)
    assert first == second != third
    assert set(gpu.zeroed) == {first, third}
    assert gpu.synchronised == [0xBEEF, 0xBEEF], "zero before the graph runs, which has no node for it"


def test_arrays_that_a_launch_uses_directly():
    a, x = np.zeros((16, 64), np.float16), np.zeros(64, np.float32)
    first, second = exchanged(bound(a, x))
    assert first is a
    assert second is x


def test_im2col_maps_reach_their_encoders(gpu):
    tensor = FakeTensor(0x20000, (2, 5, 6, 7, 64))
    corners = {"lower_corner": (-3, -2, -1), "upper_corner": (3, 2, 1)}
    map_ = TensorMap(tensor, box=(96, 64), mode="im2col", element_strides=(1, 4, 3, 2, 1), swizzle="128B", **corners)
    template_of(map_).at(driver(), 0x20000)
    assert gpu.encoded == {
        "kind": 9, "rank": 5, "address": 0x20000, "dims": [64, 7, 6, 5, 2], "strides": [128, 896, 5376, 26880],
        "lower": [-1, -2, -3], "upper": [1, 2, 3], "channels": 64, "pixels": 96, "steps": [1, 2, 3, 4, 1],
        "codes": (0, 3, 0, 0),
    }  # fmt: skip
    wide = TensorMap(tensor, box=(96, 64), mode="im2col::w::128", lower_corner=(-1,), upper_corner=(2,), swizzle="128B")
    template_of(wide).at(driver(), 0x20000)
    assert gpu.encoded == {
        "rank": 5, "dims": [64, 7, 6, 5, 2], "corners": (-1, 2), "channels": 64, "pixels": 128,
        "steps": [1, 1, 1, 1, 1], "codes": (0, 1, 3),
    }  # fmt: skip
